"""Schemas of queries' rows, kept: a driver asks for the schema of a statement three times for each run of it."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from upriver.doors.cancellation import Cancellation
from upriver.doors.execution import describe
from upriver.doors.queries import ViewQuery

SCHEMAS_MAX = 256
"""Queries whose schemas are kept; the one that was used longest ago goes first."""
KEPT_CHARS_MAX = 10_000
"""Characters of a query whose schema is kept."""

_Key = tuple[str, str, tuple[tuple[str, pa.Schema], ...]]


class QuerySchemas:
    """Describes queries, each once as long as its text and its views' columns stay the same. Usable by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, pa.Schema] = OrderedDict()

    def of(
        self, query: ViewQuery, parameters: Sequence[Any] = (), cancellation: Cancellation | None = None
    ) -> pa.Schema:
        """As ``describe``. parameters: NULL, or of types that the query's casts say."""
        key = (query.sql, query.zone, tuple((view, route.schema) for view, route in sorted(query.routes.items())))
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept
        schema = describe(query, parameters, cancellation=cancellation)
        if len(query.sql) <= KEPT_CHARS_MAX:
            with self._lock:
                self._kept[key] = schema
                if len(self._kept) > SCHEMAS_MAX:
                    self._kept.popitem(last=False)
        return schema
