"""What flows in a simulated cluster: small tables of few, skewed keys, and views of every kind over them.

Numbers are such that sums and averages are exact, so an answer is right or wrong and never nearly right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from upriver.hashing import hash64
from upriver.plan.plan import TableSpec
from upriver.plan.retention import Retain

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
OFFERS = TableSpec(
    "offers",
    pa.schema(
        [
            ("site", pa.int32()),
            ("page", pa.string()),
            ("sym", pa.string()),
            ("qty", pa.int64()),
            ("seq", pa.int64()),
            ("gone", pa.bool_()),
        ]
    ),
    key=("site",),
    order_by=("seq",),
    primary_key=("site", "page"),
    deletes='"gone"',
)
"""Upserted: of each page of a site the last one counts, unless it is gone."""
TABLES = (TRADES, VISITS, OFFERS)
NO_RETENTION: Mapping[str, Retain] = MappingProxyType({})
RETAINS: Sequence[Mapping[str, Retain]] = (
    MappingProxyType(
        {"trades": Retain("seq", 20, "20"), "visits": Retain("ms", 4, "4"), "offers": Retain("seq", 15, "15")}
    ),
    MappingProxyType(
        {"trades": Retain("qty", 5, "5"), "visits": Retain("seq", 8, "8"), "offers": Retain("qty", 4, "4")}
    ),
)
"""How rows leave these tables, if they do: in the order in which they came, or by numbers that come in no order, may be
null, and are too old at once."""

SYMBOLS = (None, "", "ACME", "BETA", "CERN", "DUNE", "ECHO", "FLUX", "GULF", "HYDE", "IRIS", "JADE")
SITES = (None, 0, 1, 2)
NUMBERS = (None, 1, 2, 3, 4, 5, 6, 7)
COUNTS_MAX = 5000
"""More rows than any key has."""
PAGES = (None, "/", "/about", "/buy", "/help")
VALUES: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "sym": SYMBOLS,
        "site": SITES,
        "page": PAGES,
        "qty": NUMBERS,
        "ms": NUMBERS,
        "n": range(1, COUNTS_MAX),
        "odds": (None, *(420 / (number - 7) for number in range(1, 7))),
        "gone": (None, False, False, True),
    }
)
"""By name, all that there can be in a column of a table or a view of ours."""


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """A view as a user declares it. duck: its query for DuckDB, where that reads another."""

    name: str
    sql: str
    key: tuple[str, ...]
    duck: str | None = None


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
TRACED = (
    ViewSpec(
        "fans", "SELECT v.page, count(*) AS n FROM trades t JOIN visits v ON t.qty = v.ms GROUP BY v.page", ("page",)
    ),
    ViewSpec(
        "hits",
        "SELECT o.page, count(*) AS n, sum(t.qty) AS qty FROM visits v JOIN trades t ON v.ms = t.qty"
        " JOIN offers o ON t.sym = o.sym GROUP BY o.page",
        ("page",),
    ),
    ViewSpec(
        "touched",
        "SELECT page, count(*) AS n, max(seq) AS last FROM (SELECT v.page, t.seq FROM trades t JOIN visits v"
        " ON t.qty = v.ms UNION ALL SELECT page, seq FROM offers) GROUP BY page",
        ("page",),
    ),
    ViewSpec(
        "misses",
        "SELECT t.sym, t.seq, v.page FROM trades t LEFT JOIN visits v ON t.qty = v.ms WHERE t.qty > 2",
        ("sym",),
    ),
)
"""Views whose rows go from worker to worker, and whose keys can be traced back to rows of tables."""
SPOILED = (
    ViewSpec("odds", "SELECT sym, count(*) AS n, sum(420 / (qty - 7)) AS odds FROM trades GROUP BY sym", ("sym",)),
    ViewSpec(
        "bets",
        "SELECT odds, count(*) AS n, min(seq) AS first FROM"
        " (SELECT 420 / (qty - 7) AS odds, seq FROM trades) GROUP BY odds",
        ("odds",),
    ),
)
"""Views that cannot be computed from all rows."""
UPSERTED = (
    ViewSpec("offered", "SELECT page, site, sym, qty FROM offers WHERE qty > 2", ("site", "page")),
    ViewSpec(
        "supply",
        "SELECT sym, count(*) AS n, count(DISTINCT site) AS sites, max(qty) AS qty FROM offers GROUP BY sym",
        ("sym",),
    ),
    ViewSpec(
        "deals",
        "SELECT t.sym, t.seq, o.page FROM trades t LEFT JOIN offers o ON t.sym = o.sym AND t.qty <= o.qty",
        ("sym",),
    ),
)
"""Views whose rows are taken back."""
UNSURE = (
    ViewSpec(
        "pairs",
        "SELECT t.sym, t.seq, o.page FROM trades t LEFT JOIN offers o ON t.sym = o.sym AND t.qty + o.qty > 6",
        ("sym",),
    ),
    ViewSpec(
        "unmet",
        "SELECT page, count(*) AS n FROM visits v WHERE NOT EXISTS"
        " (SELECT 1 FROM trades t WHERE t.qty = v.ms AND t.seq + v.seq > 20) GROUP BY page",
        ("page",),
    ),
    ViewSpec(
        "fulls",
        "SELECT n, count(*) AS syms FROM (SELECT coalesce(o.sym, t.sym) AS sym, count(*) AS n FROM trades t"
        " FULL JOIN offers o ON t.sym = o.sym AND 12 / t.qty > o.qty GROUP BY 1) GROUP BY n",
        ("n",),
    ),
)
"""Views with joins whose condition could fail on a row: rows wait until all of an epoch have come."""
PARTED = (
    ViewSpec(
        "twice",
        "SELECT qty, seq FROM trades UNION ALL SELECT seq % 7 + 1 AS qty, seq FROM trades WHERE qty > 1",
        ("qty",),
    ),
    ViewSpec(
        "halves",
        "SELECT n % 2 + 1 AS qty, sym, n FROM (SELECT sym, count(*) AS n FROM trades GROUP BY sym)",
        ("qty",),
    ),
)
"""Views whose lookups would see a part of an epoch: a key's rows come as they are read and over an exchange; or two
keys have all rows that come over an exchange."""
BROKEN = "12 % (v.seq % 40 - 39)"
"""It cannot be computed from one row in forty."""
ON = f"v.page = o.page AND {BROKEN} + o.qty > 4"
OPERATORS: Mapping[str, str] = MappingProxyType(
    {
        "projection": f"SELECT page, {BROKEN} AS x FROM visits v",
        "filter": f"SELECT page, seq FROM visits v WHERE {BROKEN} > 2",
        "inner_join": f"SELECT v.page, o.sym FROM visits v JOIN offers o ON {ON}",
        "left_join": f"SELECT v.page, o.sym FROM visits v LEFT JOIN offers o ON {ON}",
        "right_join": f"SELECT o.page, v.seq FROM visits v RIGHT JOIN offers o ON {ON}",
        "full_join": f"SELECT coalesce(v.page, o.page) AS page, v.seq, o.sym FROM visits v FULL JOIN offers o ON {ON}",
        "semi_join": f"SELECT page, seq FROM visits v WHERE EXISTS (SELECT 1 FROM offers o WHERE {ON})",
        "anti_join": f"SELECT page, seq FROM visits v WHERE NOT EXISTS (SELECT 1 FROM offers o WHERE {ON})",
        "aggregate": f"SELECT page, sum({BROKEN}) AS x FROM visits v GROUP BY page",
        "running_total": f"SELECT page, sum({BROKEN}) OVER (PARTITION BY page ORDER BY seq) AS x FROM visits v",
        "generator": f"SELECT page, explode(array({BROKEN})) AS x FROM visits v",
        "union_all": f"SELECT page, {BROKEN} AS x FROM visits v UNION ALL SELECT page, qty AS x FROM offers",
        "except": f"SELECT page, {BROKEN} AS x FROM visits v EXCEPT SELECT page, qty AS x FROM offers",
        "top": "SELECT page, seq FROM visits v"
        f" QUALIFY row_number() OVER (PARTITION BY page ORDER BY {BROKEN}, seq) = 1",
    }
)
"""Views that fail, by the operator that does."""
OPERATORS_IN_DUCKDB = MappingProxyType({"generator": f"SELECT page, unnest([{BROKEN}]) AS x FROM visits v"})
CLOCKED = (
    ViewSpec("fresh", "SELECT sym, seq, qty FROM trades WHERE seq > unix_timestamp() - 12", ("sym",)),
    ViewSpec(
        "ripe",
        "SELECT sym, count(*) AS n, sum(qty) AS qty FROM trades WHERE seq + qty <= unix_timestamp() GROUP BY sym",
        ("sym",),
    ),
    ViewSpec(
        "current",
        "SELECT page, count(*) AS n FROM visits WHERE unix_timestamp() BETWEEN seq + 2 AND seq + 14 GROUP BY page",
        ("page",),
    ),
    ViewSpec(
        "crowds",
        "SELECT n, count(*) AS syms FROM (SELECT sym, count(*) AS n FROM trades WHERE seq > unix_timestamp() - 15"
        " GROUP BY sym) GROUP BY n",
        ("n",),
    ),
    ViewSpec(
        "ages",
        "SELECT (unix_timestamp() - seq) DIV 4 AS age, count(*) AS n, sum(qty) AS qty FROM trades GROUP BY 1",
        ("age",),
        "SELECT trunc((unix_timestamp() - seq) / 4) AS age, count(*) AS n, sum(qty) AS qty FROM trades GROUP BY 1",
    ),
    ViewSpec(
        "renewed",
        "SELECT sym, count(*) AS n FROM offers GROUP BY sym HAVING max(seq) > unix_timestamp() - 10",
        ("sym",),
    ),
    ViewSpec("open_offers", "SELECT site, page, sym FROM offers WHERE seq + qty >= unix_timestamp()", ("site", "page")),
)
"""Views that depend on the clock, whose seconds about count the rows."""
CONSTANT = (
    ViewSpec(
        "marks",
        "SELECT t.sym, v.mark, count(*) AS n FROM trades t JOIN (VALUES (1, 'a'), (3, 'b'), (3, 'c')) AS v(qty, mark)"
        " ON t.qty = v.qty GROUP BY t.sym, v.mark",
        ("sym",),
    ),
    ViewSpec(
        "either", "SELECT sym, qty FROM offers UNION ALL SELECT 'ACME' AS sym, CAST(0 AS BIGINT) AS qty", ("sym",)
    ),
    ViewSpec(
        "above",
        "SELECT sym, seq FROM trades WHERE qty >= (SELECT avg(qty) FROM offers) AND (SELECT count(*) FROM visits) > 2",
        ("sym",),
    ),
    ViewSpec(
        "totals",
        "SELECT n, 420 / n AS share FROM (SELECT count(*) + 1 AS n FROM trades UNION ALL SELECT count(*) + 1 AS n FROM"
        " offers WHERE qty > 3)",
        ("n",),
    ),
)
"""Views with rows that are in no table: of VALUES, of a SELECT without FROM, of aggregates without GROUP BY."""
ALL_VIEWS = (*VIEWS, *EXCHANGED, *TRACED, *SPOILED, *UPSERTED)
SETS_ASIDE = frozenset({"trades"})
"""Tables whose bad rows are set aside."""
BAD_ROWS = MappingProxyType({"odds": ("trades", "qty", 7), "bets": ("trades", "qty", 7)})
"""By view, the bad rows: their table, and the value that they have in one of its columns."""
ORDERED = MappingProxyType({"ticks": "seq"})
"""Views of rows, and the column by which a key's rows are in order."""


@cache
def hashes_of_keys(index: tuple[str, ...]) -> Mapping[Key, int]:
    """hash64 of every key that there can be of these columns, which are among VALUES, in a fixed order."""
    types = {"sym": pa.string(), "site": pa.int32(), "page": pa.string(), "odds": pa.float64()}
    keys = list(product(*(VALUES[column] for column in index)))
    columns = [pa.array([key[place] for key in keys], types.get(name, pa.int64())) for place, name in enumerate(index)]
    return MappingProxyType(dict(zip(keys, hash64(columns).tolist(), strict=True)))


class KeyHashes(Mapping[Key, int]):
    """hash64 of any key of these types. Iterates over the null key and those that were asked for, in that order."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = types
        self._known: dict[Key, int] = {}
        self.__getitem__((None,) * len(types))

    def __getitem__(self, key: Key) -> int:
        if key not in self._known:
            columns = [pa.array([value], type) for value, type in zip(key, self._types, strict=True)]
            self._known[key] = int(hash64(columns)[0])
        return self._known[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)


class RowSource:
    """Draws rows; a few keys have most of them, and which ones is drawn too."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._keys: dict[str, list[Key]] = {}
        for table in TABLES:
            keys = list(hashes_of_keys(table.key))
            self._keys[table.name] = rng.sample(keys, rng.randint(1, len(keys)))
        self._skew = rng.choice((0.0, 1.0, 2.5))
        self._seq = 0

    def rows(self, table: TableSpec, count: int) -> pa.RecordBatch:
        """``count`` new rows, in order of ``seq``."""
        keys = self._keys[table.name]
        weights = [1.0 / rank**self._skew for rank in range(1, len(keys) + 1)]
        drawn = self._rng.choices(keys, weights, k=count)
        columns: dict[str, list[Any]] = {name: [key[place] for key in drawn] for place, name in enumerate(table.key)}
        columns["seq"] = list(range(self._seq, self._seq + count))
        self._seq += count
        columns["price"] = [number / 4 for number in self._rng.choices(range(100), k=count)]
        for name in table.schema.names:
            if name not in columns:
                columns[name] = self._rng.choices(VALUES[name], k=count)
        arrays = [pa.array(columns[field.name], field.type) for field in table.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
