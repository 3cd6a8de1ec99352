"""A region's state moved key by key: several regions that share the keys answer as one that saw every row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from region_kit import region_of
from soak import examples
from sql_kit import local_plan, parts_of
from state_kit import MANY, Row, table_batch, through_the_wire

from simulator.tables import TABLES, VIEWS
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import ProtocolError, RowError
from upriver.hashing import Hashes, hash64
from upriver.plan.plan import DataflowPlan, LakeEdge, TableSpec

EVENTS = TableSpec(
    "events",
    pa.schema(
        [
            ("k", pa.string()),
            ("g", pa.int32()),
            ("m", pa.int64()),
            ("f", pa.float64()),
            ("d", pa.decimal128(28, 6)),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("tags", pa.list_(pa.int32())),
        ]
    ),
    key=("k",),
)
SUMS = "count(*) AS n, count(m) AS c, sum(m) AS m, avg(m) AS am, sum(f) AS f, avg(f) AS af, sum(d) AS d, avg(d) AS ad"
EXTREMES = ", ".join(f"{of}({column}) AS {of}_{column}" for of, column in product(("min", "max"), "mfdsb"))
RETRACTABLE = {
    "sums": f"SELECT k, {SUMS} FROM events GROUP BY k",
    "finer": f"SELECT k, g, {SUMS} FROM events GROUP BY k, g",
    "finer_having": "SELECT k, g, sum(m) + 1 AS m FROM events GROUP BY k, g HAVING count(*) < 3",
    "rows": "SELECT s, f, k, tags FROM events WHERE g IS NULL OR g < 3",
}
GROWING = {
    "extremes": f"SELECT k, {EXTREMES} FROM events GROUP BY k",
    "finer_extremes": f"SELECT k, g, count(*) AS n, {EXTREMES} FROM events GROUP BY k, g",
    "having": "SELECT k, max(s) AS s FROM events GROUP BY k HAVING count(m) > 1",
}
EVENT = st.tuples(
    st.sampled_from(["a", "b", "", None, "long" * 9]),
    st.sampled_from([1, 2, 3, None]),
    st.none() | st.integers(-(2**55), 2**55),
    st.none() | st.sampled_from([0.1, 0.7, -0.0, 1e-300, 3e17, -1 / 3]),
    st.none() | st.sampled_from([Decimal("0.000001"), Decimal("-9999999999999999999999.999999"), Decimal("17")]),
    st.none() | st.text(max_size=4),
    st.none() | st.booleans(),
    st.none() | st.lists(st.none() | st.integers(0, 3), max_size=2),
)
VISIT = st.tuples(
    st.sampled_from([None, 0, 1]), st.sampled_from([None, "/", "/a"]), st.none() | st.integers(0, 9), st.integers(0, 99)
)
TRADE = st.tuples(
    st.sampled_from([None, "", "ACME", "BETA"]),
    st.none() | st.integers(1, 7),
    st.integers(0, 99).map(lambda n: n / 4),
    st.integers(0, 99),
)
ROWS = {"events": EVENT, "visits": VISIT, "trades": TRADE}
SCHEMAS = {table.name: table.schema for table in (EVENTS, *TABLES)}

Hasher = Callable[[Sequence[pa.Array]], Hashes]


def _few_hashes(columns: Sequence[pa.Array]) -> Hashes:
    return (hash64(columns) & np.uint64(1)) << np.uint64(63)


def _one_hash(columns: Sequence[pa.Array]) -> Hashes:
    return np.full(len(columns[0]), 2**64 - 1, np.uint64)


def _plan(name: str, sql: str, key: Sequence[str]) -> DataflowPlan:
    return local_plan(sql, key, EVENTS, *TABLES, name=name)


def _retracting(plan: DataflowPlan) -> DataflowPlan:
    """The same for rows that may be taken back."""
    (region,) = plan.regions
    assert region.store is not None
    aggregate = None if region.store.aggregate is None else replace(region.store.aggregate, retracts=True)
    store = replace(region.store, aggregate=aggregate, retracts=True)
    return replace(plan, regions=(replace(region, store=store),))


def _edge(plan: DataflowPlan) -> LakeEdge:
    """What feeds the view."""
    return parts_of(plan).edge


PLANS = {name: _retracting(_plan(name, sql, ("k",))) for name, sql in RETRACTABLE.items()}
PLANS |= {name: _plan(name, sql, ("k",)) for name, sql in GROWING.items()}
PLANS |= {view.name: _plan(view.name, view.sql, view.key) for view in VIEWS}
EVALUATOR = Evaluator()


@dataclass
class Fleet:
    """Regions that share the keys of one plan, and one region that has them all."""

    plan: DataflowPlan
    regions: list[Region]
    whole: Region
    owners: dict[int, int]
    seen: list[Batch]

    @classmethod
    def of(cls, plan: DataflowPlan, size: int = 3) -> "Fleet":
        """The last region gives memory back eagerly."""
        regions = [region_of(plan, EVALUATOR) for _ in range(size)]
        return cls(plan, regions, region_of(plan, EVALUATOR), {}, [])

    def apply(self, batch: Batch) -> None:
        owners = np.array([self.owners.setdefault(key, key % len(self.regions)) for key in batch.hash64.tolist()])
        for place, region in enumerate(self.regions):
            region.apply(0, batch.filtered(owners == place))
        self.whole.apply(0, batch)
        self.seen.append(batch)

    def move(self, keys: set[int], source: int, target: int) -> None:
        """Move the source's share of these keys."""
        moving = np.array(sorted(key for key in keys if self.owners[key] == source), np.uint64)
        if source != target:
            state = self.regions[source].collect(moving)
            self.regions[target].install(through_the_wire(state))
            self.regions[source].drop(moving)
            self.owners |= dict.fromkeys(moving.tolist(), target)

    def check(self) -> None:
        for batch in self.seen:
            keys = batch.rows.select(list(_edge(self.plan).index))
            for place in range(len(keys)):
                self._check_lookup(batch.hash64[place : place + 1], keys.slice(place, 1))
        scans = [rows for region in self.regions for rows in region.scan().to_pylist()]
        assert sorted(map(repr, scans)) == sorted(map(repr, self.whole.scan().to_pylist()))
        for what in ("rows", "keys"):
            assert sum(region.stats()[what] for region in self.regions) == self.whole.stats()[what]
        for vnode in range(4):
            wanted = self.whole.keys_of(vnode, 4).tolist()
            for place, region in enumerate(self.regions):
                mine = [key for key in wanted if self.owners[key] == place]
                assert region.keys_of(vnode, 4).tolist() == mine

    def _check_lookup(self, key: Hashes, keys: pa.RecordBatch) -> None:
        wanted = repr(self.whole.lookup(key, keys).to_pylist())
        for place, region in enumerate(self.regions):
            found = region.lookup(key, keys)
            found.validate(full=True)
            assert repr(found.to_pylist()) == (wanted if self.owners[int(key[0])] == place else "[]")


def _batch(plan: DataflowPlan, rows: list[Row], hasher: Hasher = hash64, weight: list[int] | None = None) -> Batch:
    """Off the edge of the view."""
    edge = _edge(plan)
    return table_batch(SCHEMAS[edge.table], rows, edge.index, hasher, weight)


def _drawn_batch(data: st.DataObject, plan: DataflowPlan, hasher: Hasher, present: list[Row]) -> Batch:
    """Some new rows and, where the plan allows it, some that go again; ``present`` is kept up to date."""
    rows = data.draw(st.lists(ROWS[_edge(plan).table], max_size=8))
    changes = [(row, 1) for row in rows]
    present += rows
    if plan.name in RETRACTABLE and present:
        for _ in range(data.draw(st.integers(0, 3))):
            if present:
                changes.append((present.pop(data.draw(st.integers(0, len(present) - 1))), -1))
    weight = [weight for _, weight in changes]
    return _batch(plan, [row for row, _ in changes], hasher, None if min(weight, default=1) > 0 else weight)


@pytest.mark.parametrize("name", PLANS)
@settings(MANY, max_examples=examples(8))
@given(data=st.data(), hasher=st.sampled_from([hash64, _few_hashes, _one_hash]))
def test_regions_that_share_the_keys_answer_as_one(name: str, data: st.DataObject, hasher: Hasher) -> None:
    fleet, present = Fleet.of(PLANS[name]), list[Row]()
    for _ in range(data.draw(st.integers(1, 6))):
        fleet.apply(_drawn_batch(data, PLANS[name], hasher, present))
        if fleet.owners:
            keys = data.draw(st.sets(st.sampled_from(sorted(fleet.owners))))
            fleet.move(keys, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)))
    fleet.check()


@pytest.mark.parametrize("name", PLANS)
def test_what_was_dropped_and_installed_again_never_left(name: str) -> None:
    """Every subset of four keys leaves and comes back, before and after more rows."""
    plan = PLANS[name]
    rows = _examples(_edge(plan).table)
    hashes = sorted(set(_batch(plan, rows).hash64.tolist()))
    for chosen in product((False, True), repeat=len(hashes)):
        fleet = Fleet.of(plan, 1)
        keys = np.array([key for key, goes in zip(hashes, chosen, strict=True) if goes], np.uint64)
        for part in (rows[:9], rows[9:]):
            fleet.apply(_batch(plan, part))
            (region,) = fleet.regions
            state = region.collect(keys)
            region.drop(keys)
            assert not set(keys.tolist()) & set(region.keys_of(0, 1).tolist())
            region.install(state)
        fleet.check()


def _examples(table: str) -> list[Row]:
    """Sixteen rows of four keys, many of them equal in part."""
    if table == "events":
        numbers = zip("abba" * 4, (1, 2, None, 1) * 4, (None, 5, 2**62 // 16, -7) * 4, strict=True)
        decimals = [Decimal("1.5"), None, Decimal("-9999999999999999999999.999999")]
        return [
            (
                (key, None, "")[place % 3],
                group,
                number,
                0.1 * place,
                decimals[place % 3],
                f"s{place}",
                place > 8,
                [place],
            )
            for place, (key, group, number) in enumerate(numbers)
        ]
    if table == "trades":
        return [((None, "", "A", "B")[place % 4], place % 5 or None, place / 4, place) for place in range(16)]
    return [((None, 1)[place % 2], (None, "/")[place // 2 % 2], place % 5 or None, place) for place in range(16)]


@pytest.mark.parametrize("name", PLANS)
def test_the_form_of_state_depends_on_the_plan_only(name: str) -> None:
    plan = PLANS[name]
    empty, filled = region_of(plan, EVALUATOR), region_of(plan, EVALUATOR)
    filled.apply(0, _batch(plan, _examples(_edge(plan).table)))
    nothing, something = empty.collect(np.empty(0, np.uint64)), filled.collect(filled.keys_of(0, 1))
    assert [batch.schema for batch in nothing] == [batch.schema for batch in something]
    assert all(type(batch) is pa.RecordBatch for batch in something)
    empty.install(nothing)
    assert empty.stats()["rows"] == 0


@pytest.mark.parametrize("name", PLANS)
def test_a_key_that_comes_back_starts_from_nothing(name: str) -> None:
    plan = PLANS[name]
    batch = _batch(plan, _examples(_edge(plan).table))
    fresh, used = region_of(plan, EVALUATOR), region_of(plan, EVALUATOR)
    for _ in range(3):
        used.apply(0, batch)
        used.drop(np.unique(batch.hash64))
        assert (used.stats()["rows"], used.stats()["keys"], used.scan().num_rows) == (0, 0, 0)
    fresh.apply(0, batch)
    used.apply(0, batch)
    assert repr(used.scan().to_pylist()) == repr(fresh.scan().to_pylist())


@pytest.mark.parametrize("name", ["sums", "finer", "extremes"])
def test_state_is_not_installed_twice(name: str) -> None:
    plan = PLANS[name]
    region = region_of(plan, EVALUATOR)
    region.apply(0, _batch(plan, _examples(_edge(plan).table)))
    with pytest.raises(ProtocolError, match="has state here"):
        region.install(region.collect(region.keys_of(0, 1)))


@pytest.mark.parametrize("totals", [(2**62, 1), (1, 2**62)])
def test_sums_still_overflow_where_other_sums_were_installed(totals: tuple[int, int]) -> None:
    plan = _plan("v", "SELECT k, sum(m) AS m FROM events GROUP BY k", ("k",))
    rows = [(key, 1, total, *[None] * 5) for key, total in zip("ab", totals, strict=True)]
    moved, own = (table_batch(EVENTS.schema, [row], ["k"], hash64) for row in rows)
    source, target = region_of(plan, EVALUATOR), region_of(plan, EVALUATOR)
    source.apply(0, moved)
    target.apply(0, own)
    target.install(source.collect(moved.hash64))
    with pytest.raises(RowError, match=r"sum\(m\) does not fit"):
        target.apply(0, max((moved, own), key=lambda batch: batch.rows.column("m")[0].as_py()))
