"""A row from which the view cannot be computed spoils its own key's answer, and leaves no trace in the region."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import MANY, Row, batch_of, keys_of, plain_rows

from simulator.shared_analyser import SharedAnalyser
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import ALL_ROWS, Region
from upriver.errors import RowError
from upriver.ids import Epoch
from upriver.partial.partial_region import PartialRegion
from upriver.partial.rules import ALL_RULES
from upriver.plan.explain import why_full
from upriver.plan.plan import DataflowPlan, LakeEdge, TableSpec
from upriver.sql.views import declare_view

MOST = 2**63 - 1
SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("s", pa.string())])
TABLES = {name: TableSpec(name, SCHEMA, ("k",)) for name in ("a", "b")}
QUERIES = {
    "an expression": "SELECT k, x, CAST(s AS INT) AS n FROM a",
    "a sum kept": "SELECT k, count(*) AS n, min(x) AS least, sum(x) AS total FROM a GROUP BY k",
    "a sum of finer groups": "SELECT k, s, sum(x) AS total, count(DISTINCT x) AS n FROM a GROUP BY k, s",
    "a sum on the way": "SELECT a.k, a.x, v.total FROM a LEFT JOIN "
    "(SELECT k, max(s) AS most, sum(x) AS total FROM b GROUP BY k) v ON a.k = v.k",
    "finer sums on the way": "SELECT k, sum(total) AS all FROM "
    "(SELECT k, s, sum(x) AS total, max(x) AS most FROM a GROUP BY k, s) v GROUP BY k",
    "a quotient of sums": "SELECT k, sum(q) AS total FROM "
    "(SELECT k, s, 12 / sum(CAST(x AS DOUBLE) - 1) AS q FROM a GROUP BY k, s) v GROUP BY k",
    "a quotient of a match": "SELECT k, sum(q) AS total FROM "
    "(SELECT a.k, 12 / coalesce(b.x, 0) AS q FROM a LEFT JOIN b ON a.k = b.k) v GROUP BY k",
    "a condition": "SELECT a.k, a.x, b.x AS y FROM a LEFT JOIN b ON a.k = b.k AND CAST(a.s AS INT) < b.x",
    "a condition on both sides": "SELECT a.k, a.x, b.x AS y FROM a JOIN b "
    "ON a.k = b.k AND CAST(a.s AS INT) < CAST(b.s AS INT)",
    "after distinct": "SELECT k, sum(x) AS total FROM (SELECT DISTINCT k, x FROM a) v GROUP BY k",
}
KEYS = range(6)
ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from([0, 1, 2, MOST]), st.sampled_from([None, "1", "2", "x"])),
    max_size=24,
)
Rows = Mapping[str, Sequence[Row]]
EVALUATOR = Evaluator()


@cache
def planned(query: str) -> DataflowPlan:
    plan = declare_view("v", QUERIES[query], "k", TABLES, {}, SharedAnalyser(TABLES))
    return replace(plan, full_because=why_full(plan, True, ()))


class Keeper:
    """A partial region, and the rows that the lake has."""

    def __init__(self, plan: DataflowPlan, rows: Rows) -> None:
        assert plan.full_because is None
        (region,) = plan.regions
        self.tables = [entry.edge.table for entry in region.inputs if isinstance(entry.edge, LakeEdge)]
        self.build = partial(Region.build, plan, region, EVALUATOR)
        self.rows = rows
        self.kept = PartialRegion(self.build, ALL_RULES)

    def batches(self, keys: Sequence[int]) -> list[tuple[int, Batch]]:
        """The keys' rows, by port."""
        of_tables = [[row for row in self.rows[table] if row[0] in keys] for table in self.tables]
        return [(port, batch_of(SCHEMA, rows, ["k"])) for port, rows in enumerate(of_tables)]

    def ask(self, keys: Sequence[int]) -> set[int]:
        """Have missing keys filled; returns those that cannot be."""
        hashes, _ = keys_of(pa.schema([SCHEMA.field("k")]), [(key,) for key in keys])
        self.kept.want(hashes)
        upquery = self.kept.upquery(Epoch(1))
        if upquery is None:
            return set()
        asked = [key for key, hash64 in zip(keys, hashes.tolist(), strict=True) if hash64 in upquery.keys.tolist()]
        unanswered = self.kept.answer(upquery.number, self.batches(asked), Epoch(1), rows_max=2)
        while unanswered is None:
            unanswered = self.kept.fill(rows_max=2)
        bad = {int(one.keys[0]) for one in unanswered}
        assert all(len(one.keys) == 1 for one in unanswered)
        return {key for key, hash64 in zip(keys, hashes.tolist(), strict=True) if hash64 in bad}

    def alone(self, keys: Sequence[int]) -> Region:
        """A region that has seen the rows of these keys and no others. Raises RowError."""
        region: Region = self.build()
        for port, batch in self.batches(keys):
            region.apply(port, batch)
        region.settle(ALL_ROWS)
        return region

    def is_good(self, key: int) -> bool:
        try:
            self.alone([key])
        except RowError:
            return False
        return True


@settings(MANY, max_examples=examples(12))
@pytest.mark.parametrize("query", QUERIES)
@given(a=ROWS, b=ROWS, asked=st.lists(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), max_size=5))
def test_a_bad_row_leaves_no_trace(query: str, a: list[Row], b: list[Row], asked: list[list[int]]) -> None:
    keeper = Keeper(planned(query), {"a": a, "b": b})
    good = {key for key in KEYS if keeper.is_good(key)}
    present: set[int] = set()
    for number, keys in enumerate(asked):
        missing = set(keys) - present
        assert keeper.ask(keys) == missing - good
        present |= missing & good
        if number % 2:
            gone = min(present, default=0)
            keeper.kept.evict(keys_of(pa.schema([SCHEMA.field("k")]), [(gone,)])[0])
            present.discard(gone)
        _check(keeper, sorted(present))


def _check(keeper: Keeper, present: Sequence[int]) -> None:
    wanted = keeper.alone(present)
    assert Counter(plain_rows(keeper.kept.scan())) == Counter(plain_rows(wanted.scan()))
    hashes, keys = keys_of(pa.schema([SCHEMA.field("k")]), [(key,) for key in present])
    assert Counter(plain_rows(keeper.kept.lookup(hashes, keys))) == Counter(plain_rows(wanted.lookup(hashes, keys)))
    found, expected = keeper.kept.stats(), wanted.stats()
    assert {name: found[name] for name in ("rows", "keys", "held")} == {
        name: expected[name] for name in ("rows", "keys", "held")
    }
    assert np.array_equal(keeper.kept.keys_of(0, 1), np.sort(hashes))
