"""A region at a worker: what it gathers, settles and drains, and the state that moves with a key."""

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from dataflow_kit import LONG, QUERIES, SALES, TABLES, TEXT
from hypothesis import given
from hypothesis import strategies as st
from relation_kit import count, group, scan, where
from state_kit import MANY, Row, batch_of, plain_rows, plainly, through_the_wire

from simulator.dataflow_world import DataflowWorld
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.gather import Gather, hash_of_row
from upriver.engine.operators.operator import concatenated, consolidated
from upriver.engine.region import ALL_ROWS, Region
from upriver.errors import ProtocolError, RowError
from upriver.hashing import hash64
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.plan.planning import plan_regions
from upriver.state.vectors import NO_KEYS

EVALUATOR = Evaluator()
EVERY_KEY = (0, 1)
"""The only vnode of one."""

SCHEMA = pa.schema([("k", TEXT), ("x", pa.float64()), ("tags", pa.list_(pa.int32()))])
ROW = st.tuples(
    st.sampled_from([None, "", "a", "b"]),
    st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
    st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2),
)
CHANGES = st.lists(st.tuples(ROW, st.integers(-2, 2)), max_size=12)

Changes = list[tuple[Row, int]]


def batch(changes: Changes) -> Batch:
    rows, weight = [row for row, _ in changes], [weight for _, weight in changes]
    return batch_of(SCHEMA, rows, ["k"], weight)


def total(*batches: Batch) -> Counter[str]:
    """How often each row is there in all."""
    found: Counter[str] = Counter()
    for each in batches:
        weight = np.ones(len(each), np.int64) if each.weight is None else each.weight
        for row, times in zip(
            zip(*(map(plainly, c.to_pylist()) for c in each.rows.columns), strict=True), weight, strict=True
        ):
            found[repr(row)] += int(times)
    return Counter({row: times for row, times in found.items() if times})


# Rows that wait -------------------------------------------------------------------------------------------------------


@MANY
@given(changes=CHANGES)
def test_consolidated_changes_come_to_the_same(changes: Changes) -> None:
    before = batch(changes)
    after = consolidated(before)
    assert total(after) == total(before)
    if after is not before:
        assert len(after) == len(total(after))
        assert after.weight is not None
        assert np.all(after.weight != 0)
    assert after.hash64.tolist() == hash64([after.rows.column("k")], len(after)).tolist()


@MANY
@given(parts=st.lists(CHANGES, min_size=1, max_size=4))
def test_batches_together_come_to_the_same(parts: list[Changes]) -> None:
    batches = [batch(changes) for changes in parts]
    assert total(concatenated(batches)) == total(*batches)


@MANY
@given(data=st.data())
def test_gathered_rows_are_found_by_key_and_move(data: st.DataObject) -> None:
    """Two gathers share the keys: what both hold, or was taken, is always what came."""
    gathers, came, taken = [Gather(SCHEMA), Gather(SCHEMA)], [batch([])], [batch([])]
    for _ in range(data.draw(st.integers(1, 6))):
        came.append(batch(data.draw(CHANGES)))
        gathers[data.draw(st.integers(0, 1))].add(came[-1])
        source, target = data.draw(st.permutations(gathers))
        keys = np.unique(source.hashes_between(0, 2**64 - 1))
        keys = keys[[data.draw(st.booleans()) for _ in keys]]
        held = source.held + target.held
        (state,) = through_the_wire([source.collect(keys)])
        source.drop(keys)
        assert not set(keys.tolist()) & set(source.hashes_between(0, 2**64 - 1).tolist())
        target.install(state)
        assert source.held + target.held == held == sum(map(len, came)) - sum(map(len, taken))
        assert target.collect(keys).num_rows >= state.num_rows
        if len(sample := np.concatenate([*target.runs, NO_KEYS])) and data.draw(st.booleans()):
            most = data.draw(st.sampled_from(sample.tolist()))
            rows = target.take(most)
            assert rows is not None
            assert rows.hash64.max() == most
            assert not len(target.hashes_between(0, most))
            taken.append(rows)
    taken += [rows for gather in gathers if (rows := gather.take(2**64 - 1)) is not None]
    assert total(*taken) == total(*came)
    assert [gather.held for gather in gathers] == [0, 0]
    assert [gather.take(2**64 - 1) for gather in gathers] == [None, None]


@MANY
@given(data=st.data())
def test_of_one_key_all_rows_that_go_are_taken_before_any_that_comes(data: st.DataObject) -> None:
    """Some rows at a time, while the rest may move to another gather: what was taken is always net."""
    gather, parts = Gather(SCHEMA), data.draw(st.lists(CHANGES, min_size=1, max_size=4))
    for part in parts:
        gather.add(batch(part))
    net = total(*map(batch, parts))
    taken: list[Batch] = []
    while gather.held:
        key = int(min(hashes.min() for hashes in gather.runs if len(hashes)))
        rows_max = data.draw(st.integers(1, 4))
        if goes := gather.may_take_back(key):
            rows = gather.take_back(key, rows_max)
        else:
            rows = gather.take_some(key, rows_max)
            assert rows is not None
            assert len(rows) <= rows_max
        if rows is not None:
            assert set(rows.hash64.tolist()) == {key}
            assert rows.weight is None or ((rows.weight < 0) == goes).all()
            taken.append(rows)
            assert all(net[row] * times > 0 for row, times in total(*taken).items())
        if data.draw(st.booleans()):
            keys, other = np.array([key], np.uint64), Gather(SCHEMA)
            held = gather.held
            other.install(gather.collect(keys))
            gather.drop(keys)
            assert gather.held + other.held == held
            gather.install(other.collect(keys))
            assert gather.held == held
    assert total(*taken) == net


@pytest.mark.parametrize("length", [1, 20, 100, 700])
def test_so_many_rows_are_taken_as_are_asked_for_however_they_came(length: int) -> None:
    gather, hashes = Gather(pa.schema([("a", LONG)])), hash64([pa.array(range(7_000))])
    for start in range(0, len(hashes), length):
        some = hashes[start : start + length]
        gather.add(Batch(pa.RecordBatch.from_arrays([pa.array(some.view(np.int64))], ["a"]), some))
    while gather.held > 500:
        rows = gather.take(hash_of_row([gather], 500))
        assert rows is not None
        assert 300 <= len(rows) <= 800


def test_rows_of_other_columns_cannot_wait_here() -> None:
    state = Gather(pa.schema([("a", LONG)])).collect(np.empty(0, np.uint64))
    with pytest.raises(ProtocolError, match="1 columns cannot wait"):
        Gather(SCHEMA).install(state)


# Regions --------------------------------------------------------------------------------------------------------------


def _sales(*rows: tuple[int, str, int]) -> pa.RecordBatch:
    columns = list(
        zip(*((shop, item, amount, 1.0, place) for place, (shop, item, amount) in enumerate(rows)), strict=True)
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SALES.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SALES.schema)


def _by(rows: pa.RecordBatch, column: str) -> Batch:
    return Batch(rows, hash64([rows.column(column)]))


@pytest.fixture
def plan() -> DataflowPlan:
    """How often each item is sold, looked up by that."""
    relation = count(scan(SALES), "item")
    return DataflowPlan("v", "", ("n",), relation.schema, plan_regions("v", relation, ("n",), TABLES))


def _built(plan: DataflowPlan) -> tuple[Region, Region]:
    first, last = (Region.build(plan, region, EVALUATOR) for region in plan.regions)
    return first, last


def test_what_comes_out_is_drained_once_and_consolidated(plan: DataflowPlan) -> None:
    first, _ = _built(plan)
    for item in ("a", "a", "b"):
        first.apply(0, _by(_sales((1, item, 1)), "item"))
    (outgoing,) = first.drain(9)
    assert (outgoing.to, outgoing.port) == ("v", 0)
    assert Counter(plain_rows(outgoing.batch.rows)) == {("a", 2): 1, ("b", 1): 1}
    assert outgoing.batch.hash64.tolist() == hash64([outgoing.batch.rows.column("n")]).tolist()
    assert first.drain(9) == []


def test_nothing_is_sent_if_nothing_has_changed_in_all() -> None:
    plan = QUERIES["latest by another key"].plan("v")
    first, _ = _built(plan)
    schema = TABLES["stock"].schema
    for held, seq in ((1, 1), (2, 2), (1, 3)):
        version = {"shop": 1, "item": "a", "held": held, "seq": seq, "gone": False}
        first.apply(0, _by(pa.RecordBatch.from_pylist([version], schema), "shop"))
        if seq == 1:
            assert first.drain(9)
    assert first.drain(9) == []


def test_gathered_rows_show_only_once_they_are_settled(plan: DataflowPlan) -> None:
    first, last = _built(plan)
    first.apply(0, _by(_sales((1, "a", 1), (1, "b", 1), (1, "a", 2)), "item"))
    for outgoing in first.drain(9):
        last.apply(outgoing.port, outgoing.batch)
        last.apply(outgoing.port, Batch(outgoing.batch.rows, outgoing.batch.hash64, np.full(2, -1)))
        last.apply(outgoing.port, outgoing.batch)
    assert (last.gathered, last.stats()["gathered"], last.scan().num_rows) == (6, 6, 0)
    assert last.settle(9) == 6
    assert (last.gathered, last.settle(9)) == (0, 0)
    assert Counter(plain_rows(last.scan())) == {("a", 2): 1, ("b", 1): 1}
    assert (last.stats()["rows"], last.stats()["keys"]) == (2, 2)
    keys = pa.RecordBatch.from_arrays([pa.array([2, 2, 7], LONG)], ["n"])
    assert plain_rows(last.lookup(hash64(keys.columns), keys)) == [("a", 2)]


HOT = 300
"""Rows of one key."""
PIECE = 10


def _with_hot_key(plan: DataflowPlan) -> Region:
    """What stands at the last region when each of so many items, sold once until then, was sold once more, and some of
    another key."""
    first, last = _built(plan)
    items = [str(number) for number in range(HOT)]
    for rows in ([*items, "x", "x", "x"], items):
        while last.waiting:
            last.settle(HOT)
        first.apply(0, _by(_sales(*((1, item, 1) for item in rows)), "item"))
        for outgoing in first.drain(9 * HOT):
            for start in range(0, len(outgoing.batch), 7):
                last.apply(outgoing.port, outgoing.batch.slice(start, start + 7))
    return last


def test_of_a_key_with_very_many_rows_a_part_is_settled_at_a_time(plan: DataflowPlan) -> None:
    whole, parted = _with_hot_key(plan), _with_hot_key(plan)
    assert whole.gathered == parted.gathered == 2 * HOT
    assert whole.settle(PIECE) >= HOT
    settled = 0
    while waiting := parted.gathered:
        rows, keys = parted.settle_in_parts(PIECE)
        assert rows == waiting - parted.gathered <= 2 * PIECE
        assert len(keys) or parted.gathered in (0, HOT)
        settled += rows
    assert settled == 2 * HOT
    whole.settle(2 * HOT)
    assert Counter(plain_rows(parted.scan())) == Counter(plain_rows(whole.scan()))


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.regions > 1])
def test_keys_settled_in_parts_come_to_the_same(name: str) -> None:
    """Rows of few keys come and go, while keys move or stay."""
    plan, rng = QUERIES[name].plan("v"), Random(name)
    whole = DataflowWorld(plan, TABLES, EVALUATOR, Random(1), workers=1, moves_odds=0.0, settled_max=ALL_ROWS)
    in_parts = [
        DataflowWorld(plan, TABLES, EVALUATOR, Random(2), workers=2, moves_odds=odds, settled_max=2)
        for odds in (0, 0.2)
    ]
    for epoch in range(3):
        sales = _sales(*((rng.randint(0, 1), rng.choice("abc"), rng.randint(0, 3)) for _ in range(20)))
        items = [{"item": rng.choice("abcd"), "maker": rng.choice("mn"), "size": rng.randint(0, 3)} for _ in range(4)]
        stock = [
            {"shop": rng.randint(0, 1), "item": rng.choice("abc"), "held": rng.randint(0, 2), "seq": 20 * epoch + place}
            for place in range(6)
        ]
        rows = {
            "sales": sales,
            "items": pa.RecordBatch.from_pylist(items, TABLES["items"].schema),
            "stock": pa.RecordBatch.from_pylist(stock, TABLES["stock"].schema),
        }
        for world in (whole, *in_parts):
            world.run_epoch(rows)
        for world in in_parts:
            assert Counter(plain_rows(world.scan())) == Counter(plain_rows(whole.scan()))
    assert all(world.parts for world in in_parts)


def test_a_key_is_settled_whole_where_a_part_of_it_may_fail_for_good() -> None:
    """The number of items may be zero in between, and no node waits for the rest of a key."""
    numbers = group(count(scan(SALES), "item"), "n", items=("count", "item", LONG))
    relation = group(where(numbers, '10 / "items" > 0'), "n", groups=("count_star", None, LONG))
    plan = DataflowPlan("v", "", ("n",), relation.schema, plan_regions("v", relation, ("n",), TABLES))
    region = _with_hot_key(plan)
    rows, keys = region.settle_in_parts(PIECE)
    assert rows >= HOT
    assert not len(keys)


def test_a_region_amid_a_dataflow_has_no_view(plan: DataflowPlan) -> None:
    first, _ = _built(plan)
    with pytest.raises(ProtocolError, match="no view to read"):
        first.scan()
    first.apply(0, _by(_sales((1, "a", 1), (1, "b", 1)), "item"))
    assert {name: first.stats()[name] for name in ("rows", "keys", "held")} == {"rows": 0, "keys": 0, "held": 2}
    assert first.stats()["bytes"] > 0


def test_a_group_at_fault_is_told() -> None:
    sums = group(scan(SALES), "item", total=("sum", "amount", LONG))
    regions = plan_regions("v", sums, ("total",), TABLES)
    plan = DataflowPlan("v", "", ("total",), sums.schema, regions)
    first, _ = _built(plan)
    with pytest.raises(RowError, match="table 'sales': total does not fit BIGINT for item = a"):
        first.apply(0, _by(_sales((1, "a", 2**62), (1, "a", 2**62)), "item"))


def test_a_store_by_another_key_is_refused(plan: DataflowPlan) -> None:
    last = plan.regions[-1]
    assert last.store is not None
    wrong = RegionPlan(last.name, last.inputs, last.nodes, QUERIES["rows"].plan("v").regions[-1].store, last.why)
    with pytest.raises(ProtocolError, match="its key is not in"):
        Region.build(plan, wrong, EVALUATOR)


# State ----------------------------------------------------------------------------------------------------------------


def _filled(name: str) -> tuple[DataflowPlan, DataflowWorld]:
    """One worker that has seen some rows of each table."""
    plan = QUERIES[name].plan("v")
    world = DataflowWorld(plan, TABLES, EVALUATOR, Random(1), workers=1)
    sales = [(shop, item, shop + amount) for shop in range(4) for item in "abc" for amount in (1, 2)]
    items = pa.RecordBatch.from_pylist(
        [{"item": item, "maker": "m", "size": 2} for item in "abd"], TABLES["items"].schema
    )
    stock = [
        {"shop": shop, "item": item, "held": shop, "seq": shop, "gone": item == "c"}
        for shop in range(3)
        for item in "abc"
    ]
    rows = {"sales": _sales(*sales), "items": items, "stock": pa.RecordBatch.from_pylist(stock, TABLES["stock"].schema)}
    world.run_epoch(rows)
    return plan, world


@pytest.mark.parametrize("name", QUERIES)
def test_state_that_was_moved_is_the_same_state(name: str) -> None:
    """Collected and installed, it is collected as it was, in batches whose number and form the plan alone decides."""
    plan, world = _filled(name)
    for region in plan.regions:
        old, new = world.workers[0][region.name], Region.build(plan, region, EVALUATOR)
        for port, entry in enumerate(region.inputs):
            if port not in dict(region.lake_ports):
                nulls = pa.RecordBatch.from_arrays(
                    [pa.nulls(2, field.type) for field in entry.schema], schema=entry.schema
                )
                old.apply(port, Batch(nulls, np.array([5, 2**63], np.uint64)))
        keys = old.keys_of(*EVERY_KEY)
        assert keys.size or not old.stats()["bytes"]
        state, nothing = old.collect(keys), new.collect(keys)
        assert [part.schema for part in nothing] == [part.schema for part in state]
        assert [part.num_rows for part in nothing] == [0] * len(state)
        new.install(through_the_wire(state))
        assert new.keys_of(*EVERY_KEY).tolist() == keys.tolist()
        assert [sorted(map(repr, part.to_pylist())) for part in new.collect(keys)] == [
            sorted(map(repr, part.to_pylist())) for part in state
        ]
        old.drop(keys)
        assert old.keys_of(*EVERY_KEY).tolist() == []
        assert {old.stats()[what] for what in ("rows", "keys", "held", "gathered")} == {0}
