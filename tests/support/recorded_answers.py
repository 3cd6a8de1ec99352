"""Spark's recorded answers: the types and rows that Spark gives the queries of a conformance file, in a file beside it.

``groups.rows`` belongs to ``groups.test``. It has a record for each query, in the order of the queries::

    SELECT shop, count(*) AS n FROM sales GROUP BY shop
    types shop STRING, n BIGINT
    epoch 0
    ["a", 2]
    epoch 2
    ["a", 3]
    ["b", 1]

An epoch that is missing has the rows of the one before. Of a query that Spark refuses, there is a line ``refused``.
Records are separated by empty lines.

Of a view whose tables set bad rows aside, ``aside`` lists these by their numbers, and the rows are those of the others.
Of an expression, ``values`` are those over the rows that differ for it, ``{}`` where Spark raises; ``lenient`` is what
Spark gives there without ANSI mode: ``NULL``, ``raises`` or ``values``.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from plain_values import json_text

from upriver.errors import DeclarationError, UnknownTable, UnsupportedSql, UserError
from upriver.plan.types import array_type, is_array, is_map, is_struct, map_type, spark_name, struct_type

FOLDER = Path(__file__).parents[1] / "conformance"
Rows = list[tuple[Any, ...]]
_REFUSALS: Mapping[str, type[UserError]] = {
    kind.__name__: kind for kind in (DeclarationError, UnknownTable, UnsupportedSql)
}
_PLAIN = {
    spark_name(type).replace(" ", "_"): type
    for type in (
        *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.date32(), pa.duration("us"), pa.timestamp("us")),
    )
}
_SAID = re.compile("types |refused ")
_TOKEN = re.compile(r"`(?:[^`]|``)*`|\w+(?:\(\d+,\d+\))?|[<>,:]")


@dataclass
class Answer:
    """Of one query. said: its schema, or Spark's refusal; ``None`` if it was not asked. rows: after each
    epoch; ``None`` if only the types are recorded. aside: the numbers of the rows that are set aside; then good_rows
    are those of the others, as JSON. values, lenient: of an expression."""

    said: pa.Schema | UserError | None = None
    rows: list[Rows] | None = None
    aside: list[int] | None = None
    good_rows: list[str] = field(default_factory=list)
    values: list[Any] | None = None
    lenient: str = ""


def rows_path(conformance_file: Path) -> Path:
    return conformance_file.with_suffix(".rows")


def read_answers(path: Path) -> dict[str, Answer]:
    """The answers of a file, by query."""
    return dict(_answer(part) for part in path.read_text().split("\n\n") if part.strip())


def write_answers(path: Path, answers: Mapping[str, Answer]) -> None:
    path.write_text("\n".join(f"{text}\n" for text in (_text(sql, answer) for sql, answer in answers.items())))


def _text(sql: str, answer: Answer) -> str:
    lines = [sql]
    lines += [] if answer.said is None else [said_text(answer.said)]
    if answer.values is not None:
        lines.append(f"values {json_text(answer.values)}")
        lines += [f"lenient {answer.lenient}"] if answer.lenient else []
    if answer.aside is not None:
        lines += [f"aside {json.dumps(answer.aside)}", *answer.good_rows]
    before = None
    for epoch, rows in enumerate(answer.rows or ()):
        assert isinstance(answer.said, pa.Schema)
        texts = sorted(json.dumps(_row_to_json(row, answer.said), ensure_ascii=False) for row in rows)
        if texts != before:
            lines += [f"epoch {epoch}", *texts]
        before = texts
    if answer.rows is not None:
        lines.append(f"epochs {len(answer.rows)}")
    return "\n".join(lines)


def said_text(said: pa.Schema | UserError) -> str:
    """The line of what Spark said of a query."""
    if isinstance(said, UserError):
        return f"refused {type(said).__name__} {json.dumps(str(said))}"
    return f"types {types_text(said)}"


def _answer(text: str) -> tuple[str, Answer]:
    lines = text.strip("\n").split("\n")
    start = next((place for place, line in enumerate(lines) if _SAID.match(line)), len(lines))
    sql = "\n".join(lines[:start])
    answer, schema, epochs = Answer(), pa.schema([]), dict[int, Rows]()
    rows: Rows = []
    for line in lines[start:]:
        word, _, rest = line.partition(" ")
        if line[0] == "[" and answer.aside is not None:
            answer.good_rows.append(line)
        elif line[0] == "[":
            rows.append(
                tuple(_from_json(value, type) for value, type in zip(json.loads(line), schema.types, strict=True))
            )
        elif word == "types":
            answer.said = schema = types_from_text(rest)
        elif word == "refused":
            kind, _, words = rest.partition(" ")
            answer.said = _REFUSALS[kind](json.loads(words))
        elif word == "values":
            answer.values = json.loads(rest)
        elif word == "lenient":
            answer.lenient = rest
        elif word == "aside":
            answer.aside = json.loads(rest)
        elif word == "epoch":
            rows = epochs[int(rest)] = []
        else:
            assert word == "epochs", line
            answer.rows = []
            for epoch in range(int(rest)):
                answer.rows.append(epochs.get(epoch, answer.rows[-1] if answer.rows else []))
    return sql, answer


# Types ----------------------------------------------------------------------------------------------------------------


def types_text(schema: pa.Schema) -> str:
    """``shop STRING, n BIGINT``: names with other than word characters are quoted."""
    return ", ".join(f"{_quoted(one.name)} {_type_text(one.type)}" for one in schema)


def types_from_text(text: str) -> pa.Schema:
    """The inverse of :func:`types_text`. TIMESTAMP is in UTC."""
    tokens = _Tokens(_TOKEN.findall(text))
    fields = []
    while tokens.has_more:
        fields.append(pa.field(_unquoted(tokens.take()), _type(tokens)))
        tokens.skip(",")
    return pa.schema(fields)


def _type_text(type: pa.DataType) -> str:
    if is_struct(type):
        return f"STRUCT<{', '.join(f'{_quoted(part.name)}: {_type_text(part.type)}' for part in type)}>"
    if is_map(type):
        return f"MAP<{_type_text(type.key_type)}, {_type_text(type.item_type)}>"
    return f"ARRAY<{_type_text(type.value_type)}>" if is_array(type) else spark_name(type).replace(" ", "_")


class _Tokens:
    def __init__(self, tokens: Sequence[str]) -> None:
        self._left = list(reversed(tokens))

    @property
    def has_more(self) -> bool:
        return bool(self._left)

    def take(self) -> str:
        return self._left.pop()

    def skip(self, token: str) -> bool:
        """Whether this token came next."""
        return bool(self._left) and self._left[-1] == token and bool(self._left.pop())


def _type(tokens: _Tokens) -> pa.DataType:
    word = tokens.take()
    if not tokens.skip("<"):
        return _plain_type(word)
    if word == "STRUCT":
        names, types = list[str](), list[pa.DataType]()
        while not tokens.skip(">"):
            names.append(_unquoted(tokens.take()))
            tokens.skip(":")
            types.append(_type(tokens))
            tokens.skip(",")
        return struct_type(names, types)
    parts = list[pa.DataType]()
    while not tokens.skip(">"):
        parts.append(_type(tokens))
        tokens.skip(",")
    return map_type(*parts) if word == "MAP" else array_type(*parts)


def _plain_type(word: str) -> pa.DataType:
    if found := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", word):
        return pa.decimal128(int(found[1]), int(found[2]))
    return pa.timestamp("us", "UTC") if word == "TIMESTAMP" else _PLAIN[word]


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f"`{name.replace('`', '``')}`"


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name[0] == "`" else name


# Values: as Arrow gives them to Python --------------------------------------------------------------------------------


def _row_to_json(row: Sequence[Any], schema: pa.Schema) -> list[Any]:
    return [_to_json(value, type) for value, type in zip(row, schema.types, strict=True)]


def _to_json(value: Any, type: pa.DataType) -> Any:
    """Numbers, texts and booleans as JSON has them, all else as a text; a struct is a list, a map a list of pairs."""
    match value:
        case None | bool() | int() | str() | float():
            return value
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case date() | datetime():
            return value.isoformat()
        case timedelta():
            return value // timedelta(microseconds=1)
    return list(_parts_to_json(value, type))


def _parts_to_json(value: Any, type: pa.DataType) -> Iterator[Any]:
    if is_struct(type):
        for part in type:
            yield _to_json(value[part.name], part.type)
    elif is_map(type):
        for key, item in sorted(value, key=repr):
            yield [_to_json(key, type.key_type), _to_json(item, type.item_type)]
    else:
        for part in value:
            yield _to_json(part, type.value_type)


def _from_json(value: Any, type: pa.DataType) -> Any:
    if value is None:
        return None
    if is_struct(type):
        return {part.name: _from_json(of, part.type) for of, part in zip(value, type, strict=True)}
    if is_map(type):
        return [(_from_json(key, type.key_type), _from_json(item, type.item_type)) for key, item in value]
    if is_array(type):
        return [_from_json(part, type.value_type) for part in value]
    if pa.types.is_decimal(type):
        return Decimal(value)
    if pa.types.is_binary(type):
        return bytes.fromhex(value)
    if pa.types.is_date(type):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(type):
        return datetime.fromisoformat(value)
    if pa.types.is_duration(type):
        return timedelta(microseconds=value)
    return float(value) if pa.types.is_floating(type) else value
