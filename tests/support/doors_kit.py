"""What tests of the doors share: views whose rows are in memory, and what was read of them."""

import datetime
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from upriver.client.keys import Keys, key_columns
from upriver.client.scans import ScanReader
from upriver.errors import UnknownView
from upriver.protocol.lookups import ViewRoute

ZONE = "Europe/Berlin"
EPOCH = 7
TOTALS = pa.table(
    {
        "customer": pa.array(["ada", "bob", None, "eve"]),
        "n": pa.array([2, 1, 5, 0], pa.int64()),
        "total": pa.array([Decimal("17.50"), Decimal("20.00"), None, Decimal("0.25")], pa.decimal128(10, 2)),
    }
)
ROUTES = pa.table(
    {
        "origin": pa.array(["JFK", "JFK", "LAX", "LAX"]),
        "dest": pa.array([1, 2, 1, None], pa.int32()),
        "at": pa.array(
            [datetime.datetime(2024, 1, day, 12, tzinfo=datetime.UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", ZONE)
        ),
        "delays": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32())),
    }
)
EVERYTHING = pa.table({"n": pa.array([10, 20], pa.int64())})
ENDLESS = "SELECT count(*) FROM totals, range(1000000) a(i), range(1000000) b(j) WHERE i + j = 7"
"""A query that reads a view, and then takes longer than a query may."""
FREED_S_MAX = 45.0
"""Seconds in which a place must be free after its caller has gone: less than a query may take."""
NO_TEXTS = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"\xff\xfeA", None]).buffers())
"""One of them is not UTF-8."""
ODD = pa.table(
    {
        "n": pa.array([1, 2, 3]),
        "k": NO_TEXTS,
        'it\'s "odd"': NO_TEXTS,
        "l": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), NO_TEXTS),
        "s": pa.StructArray.from_arrays([NO_TEXTS, pa.array([1, 2, 3])], ["f", "g"]),
        "m": pa.MapArray.from_arrays(pa.array([0, 1, 2, 2], pa.int32()), NO_TEXTS.slice(0, 2), NO_TEXTS.slice(0, 2)),
        "b": pa.array([b"\xff", b"", None], pa.binary()),
    }
)
"""A view with such a text alone, and within other values."""
TABLES = {"totals": TOTALS, "Routes": ROUTES, "everything": EVERYTHING}
KEYS: Mapping[str, tuple[str, ...]] = {"totals": ("customer",), "Routes": ("origin", "dest"), "everything": ()}


@dataclass
class KeptRows:
    """Views in memory. read: what was read of each, keys as tuples, or ``None`` for a scan."""

    tables: Mapping[str, pa.Table] = field(default_factory=lambda: TABLES)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: KEYS)
    read: dict[str, set[tuple[Any, ...]] | None] = field(default_factory=dict)

    def routes(self) -> Mapping[str, ViewRoute]:
        return {name: ViewRoute(self.keys[name], table.schema, ("events",)) for name, table in self.tables.items()}

    def definitions(self) -> Mapping[str, str]:
        return {name: f"SELECT {', '.join(table.schema.names)} FROM events" for name, table in self.tables.items()}

    def lookup(self, view: str, keys: Keys) -> pa.Table:
        route = self.routes()[view]
        wanted = set(zip(*(column.to_pylist() for column in key_columns(view, route.key_schema, keys)), strict=True))
        self.read[view] = wanted
        table = self.tables[view]
        if not route.key:
            return table
        rows = list(zip(*(table[name].to_pylist() for name in route.key), strict=True))
        return table.filter(pa.array([row in wanted for row in rows], pa.bool_()))

    def scan(self, view: str) -> ScanReader:
        if view not in self.tables:
            raise UnknownView.among(view, self.tables)
        self.read[view] = None
        table = self.tables[view]
        return ScanReader(table.schema, EPOCH, (), iter(table.to_batches(max_chunksize=2)))


@dataclass
class WatchedRows(KeptRows):
    """Views whose scans a test counts. begun: has a turn for each."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def scan(self, view: str) -> ScanReader:
        self.begun.release()
        return super().scan(view)


ODD_ROWS = KeptRows({"odd": ODD}, {"odd": ("n",)})
"""The view ``odd``."""
