"""Views over HTTP: which there are, and lookups, as JSON, Arrow, CSV or lines of JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from upriver.client.client import LookupLimits
from upriver.client.dated_rows import DatedRows
from upriver.client.json_values import csv_bytes, json_bytes, ndjson_bytes, rows_of
from upriver.client.key_texts import json_text
from upriver.doors.gateway import Gateway
from upriver.doors.http.messages import (
    JSON_TYPE,
    HttpAnswer,
    HttpQuestion,
    Json,
    bad_request,
    check_names,
)
from upriver.doors.http.problems import HttpProblem
from upriver.errors import KeyTypeError, ProtocolError
from upriver.net.wire import read_stream
from upriver.plan.schemas import EVERYTHING_KEY

ARROW_TYPE = "application/vnd.apache.arrow.stream"
CSV_TYPE = "text/csv"
NDJSON_TYPE = "application/x-ndjson"
KEYS_MAX = 10_000
"""Keys of one request."""
ANSWER_BYTES_MAX = 64 << 20
"""Bytes of an answer's rows, as Arrow counts them."""
TIMEOUT_S_MAX = 60.0
"""Seconds that a lookup may take."""
LIMITS = ("at_least", "max_age", "allow_warming", "timeout")
"""Limits of a lookup, in the query and in the body."""


def views(question: HttpQuestion) -> HttpAnswer:
    """The names and keys of all views."""
    routes = question.gateway.routes()
    found = [{"view": name, "key": list(route.key), "tables": list(route.tables)} for name, route in routes.items()]
    return HttpAnswer.of_json({"views": found})


def view(question: HttpQuestion) -> HttpAnswer:
    """One view's description; with keys in the query, its rows."""
    name = question.path["view"]
    if not question.query:
        return HttpAnswer.of_json(question.gateway.described(name))
    key = question.gateway.route(name).key_schema
    texts = query_keys(question, key, LIMITS)
    check_count(len(texts))
    keys = question.gateway.keys_of_texts(name, texts)
    limits = {limit: _limit_of_text(limit, text) for limit in LIMITS if (text := question.one(limit)) is not None}
    return _looked_up(question, name, keys, limits)


def lookup(question: HttpQuestion) -> HttpAnswer:
    """A view's rows by the keys of the body, JSON or Arrow."""
    name = question.path["view"]
    if question.headers.get("content-type", "").partition(";")[0].strip().lower() == ARROW_TYPE:
        keys = _arrow_keys(question.body)
        check_count(keys.num_rows)
        limits = {limit: _limit_of_text(limit, text) for limit in LIMITS if (text := question.one(limit)) is not None}
        return _looked_up(question, name, keys, limits)
    if question.query:
        raise bad_request("the query has parameters: beside keys in JSON, limits are fields of the body")
    asked = question.json(("keys", *LIMITS))
    given = asked.pop("keys", None)
    if not isinstance(given, list):
        raise bad_request('"keys" is missing, or no list of keys')
    check_count(len(given))
    return _looked_up(question, name, json_keys(question.gateway, name, given), _checked_limits(asked))


def json_keys(gateway: Gateway, view: str, given: Sequence[Any]) -> pa.Table:
    """Keys from JSON: values for a key of one column, lists or objects by column for any. Raises KeyTypeError."""
    key = gateway.route(view).key_schema
    return gateway.keys_of_texts(view, [_key_text(view, key, value) for value in given])


def _key_text(view: str, key: pa.Schema, value: Any) -> str:
    names = [] if key == EVERYTHING_KEY else key.names
    if isinstance(value, dict):
        if value.keys() != set(names):
            raise KeyTypeError(
                f"view {view!r}: its key is ({', '.join(names)}); given was an object of {_shown(value)}"
            )
        value = [value[name] for name in names]
    elif not isinstance(value, list):
        value = [value]
    if len(value) != len(names):
        raise KeyTypeError(f"view {view!r}: its key has {len(names)} columns, not {len(value)}")
    for field, part in zip(key, value, strict=False):
        if pa.types.is_string(field.type) and not isinstance(part, str | None):
            raise KeyTypeError(f"view {view!r}: key column {field.name!r} is a STRING; given was {_shown(part)}")
    return json_text(value)


def _shown(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, dict) else value)[:50]


def query_keys(question: HttpQuestion, key: pa.Schema, others: Sequence[str]) -> Sequence[str]:
    """Keys in the query: ``key``, any number of times, or each column of the key, equally often. others: the names of
    its other parameters."""
    names = () if key == EVERYTHING_KEY else tuple(key.names)
    reserved = ("key", *others)
    columns = () if set(names) & set(reserved) else names
    check_names("the query", question.query, (*reserved, *columns))
    by_column = [question.query[name] for name in columns if name in question.query]
    if "key" in question.query:
        if by_column:
            raise bad_request(f"give keys by key=, or by {', '.join(columns)}, but not by both")
        return question.query["key"]
    if not by_column:
        raise bad_request(f"give a key: key=, or {', '.join(columns)}" if columns else "give a key: key=")
    if len(by_column) < len(columns) or len(set(map(len, by_column))) > 1:
        raise bad_request(f"a key has {len(columns)} columns: give {', '.join(columns)} equally often")
    return [json.dumps(parts) for parts in zip(*by_column, strict=True)]


def _arrow_keys(body: bytes) -> pa.RecordBatch:
    try:
        return read_stream(pa.py_buffer(body))
    except ProtocolError as error:
        raise bad_request(f"the body is no Arrow stream of one uncompressed batch: {error}") from None


def check_count(keys: int) -> None:
    """Raise HttpProblem for too many keys."""
    if keys > KEYS_MAX:
        raise HttpProblem(413, "TooManyKeys", f"{keys:,} keys: give at most {KEYS_MAX:,} in a request")


def _limit_of_text(name: str, text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    return _checked_limit(name, found)


def _checked_limits(given: Json) -> Json:
    return {name: _checked_limit(name, value) for name, value in given.items() if value is not None}


def _checked_limit(name: str, value: Any) -> Any:
    if name == "allow_warming":
        if not isinstance(value, bool):
            raise bad_request(f"{name}: give true or false")
        return value
    is_right = isinstance(value, int if name == "at_least" else int | float) and not isinstance(value, bool)
    if not is_right or not 0 <= value < 1 << 62:
        raise bad_request(f"{name}: give {'an epoch' if name == 'at_least' else 'seconds'}, a number from 0 on")
    if name == "timeout" and value > TIMEOUT_S_MAX:
        raise bad_request(f"timeout: give at most {TIMEOUT_S_MAX:g} seconds")
    return value


def _looked_up(question: HttpQuestion, view: str, keys: pa.Table | pa.RecordBatch, limits: Json) -> HttpAnswer:
    content_type = _wanted_type(question.headers.get("accept", "*/*"))
    typed: LookupLimits = limits  # type: ignore[assignment]  # the names are those of LIMITS
    found = question.gateway.lookup(view, keys, **typed)
    if found.rows.nbytes > ANSWER_BYTES_MAX:
        raise HttpProblem(
            413,
            "AnswerTooLarge",
            f"view {view!r}: the rows have {found.rows.nbytes:,} bytes, of {ANSWER_BYTES_MAX:,}: give fewer keys",
        )
    return HttpAnswer(_FORMS[content_type](view, found), content_type, headers=_age_headers(found))


def _as_json(view: str, found: DatedRows) -> bytes:
    return json_bytes({"view": view, "rows": rows_of(found.rows), **_age(found)})


def _arrow_bytes(table: pa.Table) -> bytes:
    """A stream of Arrow's IPC format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


_FORMS: Mapping[str, Callable[[str, DatedRows], bytes]] = {
    JSON_TYPE: _as_json,
    ARROW_TYPE: lambda _, found: _arrow_bytes(found.rows),
    NDJSON_TYPE: lambda _, found: ndjson_bytes(found.rows),
    CSV_TYPE: lambda _, found: csv_bytes(found.rows),
}
"""The forms of an answer, by content type; the first is the usual one."""


def _age(found: DatedRows) -> Json:
    committed = found.committed_at
    return {
        "epoch": found.epoch,
        "committed_at": None if committed is None else committed.isoformat(timespec="microseconds")[:26] + "Z",
        "age_s": found.age_s,
        "sources": found.sources,
    }


def _age_headers(found: DatedRows) -> dict[str, str]:
    """The same in headers, in every form."""
    return {
        f"upriver-{name.replace('_', '-')}": str(value).encode("ascii", "replace").decode()
        for name, value in _age(found).items()
        if value is not None
    }


def _wanted_type(accept: str) -> str:
    """The first content type of ``Accept`` that there is, by its q. Raises HttpProblem."""
    ranges: list[tuple[float, str]] = []
    for part in accept.split(","):
        name, *options = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for option in options:
            if option.startswith("q="):
                try:
                    quality = float(option[2:])
                except ValueError:
                    quality = 0.0
        ranges.append((quality, name))
    for quality, name in sorted(ranges, key=lambda one: -one[0]):
        found = [form for form in _FORMS if name in (form, "*/*", form.partition("/")[0] + "/*")]
        if quality > 0 and found:
            return found[0]
    raise HttpProblem(406, "NotAcceptable", f"there are {', '.join(_FORMS)}")
