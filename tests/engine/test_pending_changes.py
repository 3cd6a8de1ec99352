"""The changes of a view's rows by version, from images that move with their keys, against the rows after each epoch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from region_kit import region_of
from sql_kit import local_plan
from state_kit import MANY, Row, batch_of, plain_rows

from upriver.engine.change_kinds import ChangeKind
from upriver.engine.expressions import Evaluator
from upriver.engine.pending_changes import ChangedRows, PendingChanges
from upriver.engine.region import Region
from upriver.hashing import HASH64_MAX, Hashes
from upriver.ids import Epoch
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.state.vectors import key_set

VISITS = pa.schema([("page", pa.string()), ("user", pa.int32()), ("ms", pa.int64()), ("score", pa.float64())])
TABLE = TableSpec("visits", VISITS, ("page",))
EVALUATOR = Evaluator()
VISIT = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.none() | st.integers(1, 2),
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, float("nan"), 1.5]),
)


def logged(sql: str, key: str | list[str]) -> DataflowPlan:
    """The plan of a logged view whose table also takes rows back."""
    plan = local_plan(sql, key, TABLE)
    (region,) = plan.regions
    assert region.store is not None
    aggregate = None if region.store.aggregate is None else replace(region.store.aggregate, retracts=True)
    store = replace(region.store, retracts=True, aggregate=aggregate)
    return replace(plan, regions=(replace(region, store=store),), logs_changes=True)


SUMS = logged(
    "SELECT page, count(*) AS n, sum(ms) + 1 AS total, max(score) AS best FROM visits "
    "GROUP BY page HAVING count(*) < 4",
    "page",
)
ROWS = logged("SELECT user, page, score * 2 AS twice FROM visits WHERE ms <> 0", "page")
LATEST = logged(
    "SELECT user, page, ms FROM visits QUALIFY row_number() OVER (PARTITION BY page ORDER BY ms) = 1", "page"
)


def changes_of(region: Region) -> ChangedRows:
    return region.changes()


def text(rows: pa.RecordBatch | pa.Table) -> list[str]:
    """Equal texts for equal rows."""
    return [repr(tuple(0.0 if value == 0 else value for value in row)) for row in plain_rows(rows)]


def check_and_add(changed: ChangedRows, log: dict[int, Counter[str]]) -> None:
    """Add signed rows by version. Each pair of images is of one key."""
    named = text(changed.rows)
    for place, (row, version, kind) in enumerate(
        zip(named, changed.versions.tolist(), changed.kinds.tolist(), strict=True)
    ):
        log.setdefault(version, Counter())[row] += 1 if kind in (ChangeKind.INSERT, ChangeKind.POSTIMAGE) else -1
        if kind == ChangeKind.PREIMAGE:
            assert changed.kinds[place + 1] == ChangeKind.POSTIMAGE
            assert changed.hash64[place] == changed.hash64[place + 1]
    order = list(zip(changed.versions.tolist(), changed.hash64.tolist(), strict=True))
    assert order == sorted(order)


@MANY
@given(
    st.data(),
    st.sampled_from([SUMS, ROWS, LATEST]),
    st.lists(st.lists(st.tuples(VISIT, st.booleans()), max_size=8), min_size=1, max_size=6),
)
def test_the_changes_of_each_version_are_the_difference_of_the_rows(
    data: st.DataObject, plan: DataflowPlan, epochs: list[list[tuple[Row, bool]]]
) -> None:
    """Two workers' regions; keys move between them at any time, and images that are logged go at any cut."""
    regions = [region_of(plan, EVALUATOR), region_of(plan, EVALUATOR)]
    owner: dict[int, int] = {}
    for region in regions:
        assert region.pending is not None
        region.pending.log_through(Epoch(0))
    before: Counter[str] = Counter()
    wanted: dict[int, Counter[str]] = {}
    log: dict[int, Counter[str]] = {}
    live: list[Row] = []
    through = 0
    for version, visits in enumerate(epochs, start=1):
        for visit, goes in visits:
            if data.draw(st.booleans()) and owner:
                move(regions, owner, data.draw(st.sampled_from(sorted(owner))))
            row, weight = visit, 1
            if goes and live:
                row, weight = live.pop(data.draw(st.integers(0, len(live) - 1))), -1
            else:
                live.append(row)
            batch = batch_of(VISITS, [row], ["page"], weight=[weight])
            place = owner.setdefault(int(batch.hash64[0]), 0)
            pending = regions[place].pending
            assert pending is not None
            pending.begin(Epoch(version))
            regions[place].apply(0, batch)
        rows = Counter(row for region in regions for row in text(region.scan()))
        wanted[version] = Counter(
            {row: rows[row] - before[row] for row in {*rows, *before} if rows[row] != before[row]}
        )
        before = rows
        if data.draw(st.booleans()):
            for region in regions:
                check_and_add(changes_of(region), log)
                assert region.pending is not None
                if through < version:
                    region.pending.log_through(Epoch(version))
            through = version
    for region in regions:
        check_and_add(changes_of(region), log)
    net = {version: Counter({r: n for r, n in rows.items() if n}) for version, rows in log.items()}
    assert {v: dict(rows) for v, rows in net.items() if rows} == {v: dict(rows) for v, rows in wanted.items() if rows}


def move(regions: list[Region], owner: dict[int, int], key: int) -> None:
    keys = np.array([key], np.uint64)
    giver = owner[key]
    state = regions[giver].collect(keys)
    regions[giver].drop(keys)
    regions[1 - giver].install(state)
    owner[key] = 1 - giver


def test_nothing_is_noted_before_the_log_begins() -> None:
    region = region_of(SUMS, EVALUATOR)
    pending = region.pending
    assert pending is not None
    pending.begin(Epoch(1))
    region.apply(0, batch_of(VISITS, [("a", 1, 1, 0.0)], ["page"]))
    assert len(changes_of(region)) == 0
    assert len(key_set(pending.hashes_between(0, HASH64_MAX))) == 0
    pending.log_through(Epoch(1))
    region.apply(0, batch_of(VISITS, [("a", 1, 1, 0.0)], ["page"]))  # of an epoch that the log has
    assert len(changes_of(region)) == 0


def test_a_row_that_comes_and_goes_in_one_epoch_is_no_change() -> None:
    region = region_of(ROWS, EVALUATOR)
    assert region.pending is not None
    region.pending.log_through(Epoch(0))
    region.pending.begin(Epoch(1))
    region.apply(0, batch_of(VISITS, [("a", 1, 1, 0.0), ("a", 1, 1, 0.0)], ["page"], weight=[1, -1]))
    assert len(changes_of(region)) == 0


def test_one_row_of_a_key_that_changes_is_an_update() -> None:
    region = region_of(SUMS, EVALUATOR)
    assert region.pending is not None
    region.pending.log_through(Epoch(0))
    for version in (1, 2):
        region.pending.begin(Epoch(version))
        region.apply(0, batch_of(VISITS, [("a", 1, 5, 0.0)], ["page"]))
    changed = changes_of(region)
    assert changed.kinds.tolist() == [ChangeKind.INSERT, ChangeKind.PREIMAGE, ChangeKind.POSTIMAGE]
    assert changed.versions.tolist() == [1, 2, 2]
    assert changed.rows.column("n").to_pylist() == [1, 1, 2]


def test_two_keys_of_one_hash_are_noted_apart() -> None:
    """A hash that two keys share costs a comparison, and loses no change."""
    view = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    pending = PendingChanges(["k"], view, pa.schema([("k", pa.int64())]))
    pending.log_through(Epoch(0))
    pending.begin(Epoch(1))
    read: list[list[int]] = []

    def rows_of(hashes: Hashes, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        read.append(keys[0].to_pylist())
        return pa.RecordBatch.from_pylist([], view)

    same = np.array([7, 7], np.uint64)
    pending.note(same[:1], [pa.array([1])], rows_of)
    pending.note(same, [pa.array([1, 2])], rows_of)
    assert read == [[1], [2]]


@pytest.mark.parametrize("plan", [SUMS, ROWS])
def test_memory_is_given_back_once_the_log_has_the_changes(plan: DataflowPlan) -> None:
    region = region_of(plan, EVALUATOR)
    pending = region.pending
    assert pending is not None
    pending.log_through(Epoch(0))
    pending.begin(Epoch(1))
    region.apply(0, batch_of(VISITS, [(str(n), n, 1, 0.0) for n in range(50)], ["page"]))
    assert pending.nbytes > 0
    pending.log_through(Epoch(1))
    assert pending.nbytes == 0
