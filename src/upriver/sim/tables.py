"""What flows in a simulated river: small tables of few, skewed keys, and views of every kind over them.

Numbers are such that sums and averages are exact, so an answer is right or wrong and never nearly right.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from upriver.dataflow.plan import TableSpec
from upriver.hashing import hash64

Key = tuple[Any, ...]
"""The values of a view's key columns."""

TRADES = TableSpec(
    "trades",
    pa.schema([("sym", pa.string()), ("qty", pa.int64()), ("price", pa.float64()), ("seq", pa.int64())]),
    key=("sym",),
    order_by=("seq",),
)
VISITS = TableSpec(
    "visits",
    pa.schema([("site", pa.int32()), ("page", pa.string()), ("ms", pa.int64()), ("seq", pa.int64())]),
    key=("site", "page"),
    order_by=("seq",),
)
TABLES = (TRADES, VISITS)

SYMBOLS = (None, "", "ACME", "BETA", "CERN", "DUNE", "ECHO", "FLUX", "GULF", "HYDE", "IRIS", "JADE")
SITES = (None, 0, 1, 2)
NUMBERS = (None, 1, 2, 3, 4, 5, 6, 7)
COUNTS_MAX = 5000
"""More rows than any key has."""
PAGES = (None, "/", "/about", "/buy", "/help")


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """A view as a user declares it."""

    name: str
    sql: str
    key: tuple[str, ...]


VIEWS = (
    ViewSpec(
        "volumes",
        "SELECT sym, count(*) AS n, sum(qty) AS qty, min(price) AS low, max(price) AS high FROM trades GROUP BY sym",
        ("sym",),
    ),
    ViewSpec("ticks", "SELECT seq, sym, qty FROM trades WHERE qty > 2", ("sym",)),
    ViewSpec(
        "pages",
        "SELECT site, page, count(*) AS n, avg(ms) AS ms FROM visits GROUP BY site, page",
        ("site", "page"),
    ),
    ViewSpec("slowest", "SELECT page, max(ms) AS ms, count(site) AS sites FROM visits GROUP BY page", ("page",)),
)
EXCHANGED = (
    ViewSpec(
        "habits",
        "SELECT n, count(*) AS syms, sum(qty) AS qty FROM"
        " (SELECT sym, count(*) AS n, sum(qty) AS qty FROM trades GROUP BY sym) GROUP BY n",
        ("n",),
    ),
    ViewSpec(
        "matches",
        "SELECT sym, count(*) AS n, sum(v.times) AS times FROM trades JOIN"
        " (SELECT ms, count(*) AS times FROM visits GROUP BY ms) v ON qty = v.ms GROUP BY sym",
        ("sym",),
    ),
    ViewSpec(
        "rhythms",
        "SELECT page, count(*) AS habits FROM visits JOIN"
        " (SELECT n, count(*) AS syms FROM (SELECT sym, count(*) AS n FROM trades GROUP BY sym) GROUP BY n) t"
        " ON ms = t.syms GROUP BY page",
        ("page",),
    ),
)
"""Views whose rows go from worker to worker, once or more often."""
ORDERED = MappingProxyType({"ticks": "seq"})
"""Views of rows, and the column by which a key's rows are in order."""


@cache
def hashes_of_keys(index: tuple[str, ...]) -> Mapping[Key, int]:
    """hash64 of every key that there can be of these columns of tables or views, in a fixed order."""
    values = {"sym": SYMBOLS, "site": SITES, "page": PAGES, "qty": NUMBERS, "ms": NUMBERS, "n": range(1, COUNTS_MAX)}
    types = {"sym": pa.string(), "site": pa.int32(), "page": pa.string()}
    keys = list(product(*(values[column] for column in index)))
    columns = [pa.array([key[place] for key in keys], types.get(name, pa.int64())) for place, name in enumerate(index)]
    return MappingProxyType(dict(zip(keys, hash64(columns).tolist(), strict=True)))


class Crowd:
    """Draws rows; a few keys have most of them, and which ones is drawn too."""

    def __init__(self, lots: Random) -> None:
        self._lots = lots
        self._keys: dict[str, list[Key]] = {}
        for table in TABLES:
            keys = list(hashes_of_keys(table.key))
            self._keys[table.name] = lots.sample(keys, lots.randint(1, len(keys)))
        self._skew = lots.choice((0.0, 1.0, 2.5))
        self._seq = 0

    def rows(self, table: TableSpec, count: int) -> pa.RecordBatch:
        """``count`` new rows, in order of ``seq``."""
        keys = self._keys[table.name]
        weights = [1.0 / rank**self._skew for rank in range(1, len(keys) + 1)]
        drawn = self._lots.choices(keys, weights, k=count)
        columns: dict[str, list[Any]] = {name: [key[place] for key in drawn] for place, name in enumerate(table.key)}
        columns["seq"] = list(range(self._seq, self._seq + count))
        self._seq += count
        for name in ("qty", "ms"):
            columns[name] = self._lots.choices(NUMBERS, k=count)
        columns["price"] = [number / 4 for number in self._lots.choices(range(100), k=count)]
        arrays = [pa.array(columns[field.name], field.type) for field in table.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
