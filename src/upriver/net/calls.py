"""Calls: what a server is asked by name. A question is ``{"act": name, "fields": object}``, and is answered with an
object; or ``{"get": name, "fields": object, "from": row}``, and is answered with rows from that one on.

Rows are pulled, a bounded batch at a time: a client that stops reading holds nothing here.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.given import whole
from upriver.net.line import CALL_TERMS, Frame, Line, answer_all
from upriver.net.server import Caller

PING = "ping"
"""An action that every server has, and that does nothing."""
GET_ROWS_MAX = 65_536
"""Rows of one batch of a get's answer."""
GET_BYTES_MAX = 16 << 20
"""Bytes of one, unless a single row has more."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})

Action = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""JSON object in, JSON object out. An UpriverError goes to the caller."""
Get = Callable[[Mapping[str, Any], int], pa.Table]
"""JSON object and first row in, the whole table out: the same one each time that more of it is pulled."""


class Calls:
    """The service of calls. actions, gets: handlers by name; they are called on many threads at once."""

    def __init__(self, actions: Mapping[str, Action] = _NOTHING, gets: Mapping[str, Get] = _NOTHING) -> None:
        self._actions: Mapping[str, Action] = {PING: lambda _: {}, **actions}
        self._gets = dict(gets)

    def serve(self, caller: Caller) -> None:
        answer_all(Line(caller.stream, CALL_TERMS, caller.traffic), self._answer)

    def stop(self) -> None:
        """Nothing is to be said: calls that are under way end with their connections."""

    def _answer(self, question: Frame) -> tuple[Mapping[str, Any], pa.RecordBatch | None]:
        head = question.head
        fields = head.get("fields", {})
        if not isinstance(fields, dict):
            raise ProtocolError(f"fields {fields!r:.100}: give an object")
        if "get" in head:
            get, first = _named(self._gets, "get", head["get"]), whole("from", head.get("from", 0))
            return _rows(str(head["get"]), get(fields, first), first)
        return {"answer": dict(_named(self._actions, "action", head.get("act"))(fields))}, None


def _rows(name: str, table: pa.Table, first: int) -> tuple[Mapping[str, Any], pa.RecordBatch | None]:
    """Rows from the first on, as many as go at one time; and how many there are in all."""
    if not 0 <= first <= table.num_rows:
        raise ProtocolError(f"from {first}: {name!r} has {table.num_rows} rows")
    count = min(GET_ROWS_MAX, max(1, GET_BYTES_MAX * table.num_rows // max(1, table.nbytes)))
    batches = table.slice(first, count).combine_chunks().to_batches()
    return {"view": name, "rows": table.num_rows}, batches[0] if batches else None


def _named(handlers: Mapping[str, Any], what: str, name: object) -> Any:
    if not isinstance(name, str) or name not in handlers:
        raise ProtocolError(f"no {what} {name!r:.100}; there are: {', '.join(sorted(handlers)) or 'none'}")
    return handlers[name]
