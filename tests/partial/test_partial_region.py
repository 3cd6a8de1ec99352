"""Partial regions against a full one that has seen the same epochs: whatever is asked for, evicted and moved between.

Two workers share the keys of a view. Epochs are read in pieces; upqueries are answered late, and maybe some epochs
ahead. A small model knows how each key stands, and through which epoch its rows must show.
"""

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from dataflow_kit import ITEM, ITEMS, LONG, QUERIES, ROWS, SALES, STOCK, TABLES, TEXT
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from relation_kit import dataflow, group, join, scan
from soak import examples
from state_kit import Row, batch_of, keys_of, plain_rows, through_the_wire

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.errors import LakeError
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.partial.partial_region import UPQUERIES_MAX, PartialRegion, UnansweredKeys, Upquery, WantedKeys
from upriver.partial.presence import PRESENT
from upriver.partial.rules import ALL_RULES
from upriver.plan.plan import DataflowPlan, JoinKind, LakeEdge
from upriver.vnodes import vnodes_of

VNODES = 8
WORKERS = (0, 1)
EVALUATOR = Evaluator()
LEFT = join(scan(SALES), ITEM, {"item": "i_item"}, JoinKind.LEFT)
EXTREMES = group(
    scan(STOCK), "shop", n=("count_star", None, LONG), least=("min", "held", LONG), last=("max", "item", TEXT)
)
SUMS = group(LEFT, "item", n=("count", "i_size", LONG), total=("sum", "amount", LONG), most=("max", "i_maker", TEXT))
PLANS: Mapping[str, DataflowPlan] = MappingProxyType(
    {
        **{
            name: QUERIES[name].plan("v")
            for name in ("rows", "groups", "distinct", "latest", "anti join", "top", "except", "greatest group")
        },
        "extremes of an upsert table": dataflow("v", EXTREMES, ("shop",), STOCK),
        "left join": dataflow("v", LEFT, ("item",), SALES, ITEMS),
        "groups of a left join": dataflow("v", SUMS, ("item",), SALES, ITEMS),
    }
)
IN_ORDER = frozenset({"rows"})
"""Views whose rows come in the order in which they came."""
VALUES: Mapping[str, Sequence[Any]] = MappingProxyType(
    {"shop": (None, 0, 1, 2, 3), "item": (None, "", "a", "b", "c"), "thing": (None, "", "a", "b", "c")}
)
"""Of each key column, all that there can be."""


@dataclass(frozen=True)
class Stand:
    """How a key stands that is known. upquery: ``PRESENT``, or the one that it waits for."""

    upquery: int
    through: int


class Worker:
    """A partial region, and what the model knows of it."""

    def __init__(self, plan: DataflowPlan, retained_rows_max: int) -> None:
        self._plan = plan
        self.full: list[Region] = []
        """The regions that were built."""
        self.partial = PartialRegion(self._build, ALL_RULES, retained_rows_max)
        self.empty_bytes = self.partial.stats()["live_bytes"]
        self.stands: dict[int, Stand] = {}
        self.wanted: set[int] = set()
        self.under_way: dict[int, Upquery] = {}
        """Upqueries that are read, by number."""
        self.long: set[int] = set()
        """The numbers of those that take long."""
        self.fillings: dict[int, int] = {}
        """Of the upqueries whose answers are on their way in, the oldest first: how far each has read."""
        self.retained: list[int] = []
        """The key of each row that is retained."""
        self.retained_rows_max = retained_rows_max

    def _build(self) -> Region:
        self.full.append(Region.build(self._plan, self._plan.regions[0], EVALUATOR))
        return self.full[-1]

    @property
    def present(self) -> list[int]:
        return sorted(key for key, stand in self.stands.items() if stand.upquery == PRESENT)

    @property
    def pending(self) -> list[int]:
        return sorted(key for key, stand in self.stands.items() if stand.upquery != PRESENT)

    def waiting_for(self, number: int) -> list[int]:
        """The keys that are pending until that upquery's answer is in."""
        return sorted(key for key, stand in self.stands.items() if stand.upquery == number)

    def give_up(self, keys: Sequence[int]) -> bool:
        """What is pending or wanted of these keys is so no more; whether there was any."""
        unsettled = [key for key in keys if key in self.wanted or key in self.pending]
        for key in unsettled:
            self.wanted.discard(key)
            self.stands.pop(key, None)
        return bool(unsettled)

    def take(self, epoch: int, hashes: Sequence[int]) -> bool:
        """Rows of these keys have come; whether any of them was not dropped."""
        new = [key for key in hashes if key in self.stands and self.stands[key].through < epoch]
        self.retained += [key for key in new if self.stands[key].upquery != PRESENT]
        if len(self.retained) > self.retained_rows_max:
            self.wanted |= set(self.pending)
            self.stands = {key: self.stands[key] for key in self.present}
            self.retained = []
        return bool(new)


def hashed(keys: Sequence[int]) -> Hashes:
    return np.array(keys, np.uint64)


class PartialRegions(RuleBasedStateMachine):
    """The cluster of one view at two workers."""

    @initialize(
        name=st.sampled_from(sorted(PLANS)),
        retained_rows_max=st.sampled_from([2, 1000]),
        owners=st.lists(st.sampled_from(WORKERS), min_size=VNODES, max_size=VNODES),
    )
    def begin(self, name: str, retained_rows_max: int, owners: list[int]) -> None:
        self.name, self.plan = name, PLANS[name]
        (region,) = self.plan.regions
        self.edges = [entry.edge for entry in region.inputs if isinstance(entry.edge, LakeEdge)]
        assert len(self.edges) == len(region.inputs)
        self.key_schema = pa.schema([self.plan.schema.field(column) for column in self.plan.key])
        keys = list(product(*(VALUES[column] for column in self.plan.key)))
        self.keys = dict(zip(keys_of(self.key_schema, keys)[0].tolist(), keys, strict=True))
        """All that there can be, by hash64."""
        self.workers = [Worker(self.plan, retained_rows_max) for _ in WORKERS]
        self.owners = owners
        self.oracle = Region.build(self.plan, region, EVALUATOR)
        self.views: list[dict[int, list[Row]]] = [{}]
        """As of each epoch, the rows of each key."""
        self.lake: list[dict[int, Batch]] = []
        """Of each epoch, the rows at each port."""
        self.read: Epoch = Epoch(0)
        """The epoch that is open, or was last."""
        self.unread: list[int] = []
        """Of that epoch, the keys whose rows no upquery has read yet, in order."""
        self.rows_so_far = 0

    # Epochs

    @precondition(lambda self: not self.unread)
    @rule(data=st.data(), is_another_published=st.booleans())
    def open_next(self, data: st.DataObject, is_another_published: bool) -> None:
        if self.read == len(self.lake):
            self._publish(data)
        self.read = Epoch(self.read + 1)
        self.unread = sorted({key for batch in self.lake[-1].values() for key in batch.hash64.tolist()})
        if is_another_published:
            self._publish(data)

    def _publish(self, data: st.DataObject) -> None:
        table = TABLES[data.draw(st.sampled_from(sorted({edge.table for edge in self.edges})))]
        rows = [self._whole(table.name, row) for row in data.draw(st.lists(ROWS[table.name], min_size=1, max_size=8))]
        if table.order_by:
            rows.sort(key=lambda row: int(row[table.schema.get_field_index("seq")]))
        epoch = {
            port: batch_of(table.schema, rows, edge.index)
            for port, edge in enumerate(self.edges)
            if edge.table == table.name
        }
        self.lake.append(epoch)
        for port, batch in epoch.items():
            self.oracle.apply(port, batch)
        self.views.append(self._by_key(self.oracle.scan()))

    def _whole(self, table: str, row: Row) -> Row:
        """With its place among all rows, and whether it deletes. Versions of an upsert table come in any order."""
        self.rows_so_far += 1
        if table == "sales":
            return (*row, self.rows_so_far)
        version = self.rows_so_far * 7919 % 10_007
        return (*row, version, version % 4 == 0) if table == "stock" else row

    def _by_key(self, rows: pa.Table | pa.RecordBatch) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = defaultdict(list)
        columns = [rows.column(column) for column in self.plan.key]
        keys = zip(*(column.to_pylist() for column in columns), strict=True)
        hashes = dict(zip(self.keys.values(), self.keys, strict=True))
        for key, row in zip(keys, plain_rows(rows), strict=True):
            found[hashes[key]].append(row)
        return found if self.name in IN_ORDER else {key: sorted(rows, key=repr) for key, rows in found.items()}

    @precondition(lambda self: self.unread)
    @rule(count=st.integers(1, 5))
    def read_some(self, count: int) -> None:
        """The rows of a key come in one piece, at all ports."""
        keys, self.unread = self.unread[:count], self.unread[count:]
        for port, batch in self.lake[self.read - 1].items():
            piece = batch.filtered(np.isin(batch.hash64, hashed(keys)))
            for number, worker in enumerate(self.workers):
                mine = piece.filtered(self._owners_of(piece.hash64) == number)
                before = worker.partial.stats()["bytes"]
                if len(mine):
                    worker.partial.take(self.read, port, mine)
                if not worker.take(self.read, mine.hash64.tolist()):
                    assert worker.partial.stats()["bytes"] == before, "rows of missing keys take memory"

    def _owners_of(self, hashes: Hashes) -> np.ndarray[Any, Any]:
        return np.array(self.owners)[vnodes_of(hashes, VNODES)]

    # Upqueries

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """As lookups do, which ask each worker for what it keeps."""
        asked = data.draw(st.lists(st.sampled_from(sorted(self.keys)), min_size=1, max_size=8))
        owners = self._owners_of(hashed(asked))
        for number, worker in enumerate(self.workers):
            keys = [key for key, owner in zip(asked, owners, strict=True) if owner == number]
            worker.partial.want(hashed(keys))
            worker.wanted |= {key for key in keys if key not in worker.stands}
            self._begin_upquery(worker)

    def _begin_upquery(self, worker: Worker) -> None:
        upquery = worker.partial.upquery(self.read)
        if worker.under_way.keys() - worker.long or len(worker.under_way) + len(worker.fillings) == UPQUERIES_MAX:
            assert upquery is None
            return
        keys, worker.wanted = sorted(worker.wanted - worker.stands.keys()), set()
        assert (upquery is None) == (not keys)
        if upquery is not None:
            assert (upquery.keys.tolist(), upquery.through) == (keys, self.read)
            worker.under_way[upquery.number] = upquery
            worker.stands |= dict.fromkeys(keys, Stand(upquery.number, self.read))

    @precondition(lambda self: any(worker.under_way.keys() - worker.long for worker in self.workers))
    @rule()
    def overtake(self) -> None:
        """Reading takes long."""
        for worker in self.workers:
            for number in worker.under_way:
                worker.partial.overtake(number)
                worker.long.add(number)
            self._begin_upquery(worker)

    @precondition(lambda self: any(worker.under_way for worker in self.workers))
    @rule(
        both=st.booleans(),
        is_last=st.booleans(),
        ahead=st.integers(0, EPOCHS_AHEAD_MAX),
        rows_max=st.sampled_from([1, 2, 5, 1_000]),
    )
    def answer(self, both: bool, is_last: bool, ahead: int, rows_max: int) -> None:
        busy = [worker for worker in self.workers if worker.under_way]
        for worker in busy if both else busy[:1]:
            upquery = worker.under_way.pop((max if is_last else min)(worker.under_way))
            through = min(upquery.through + ahead, len(self.lake))
            rows = [(port, self._rows_of(port, upquery.keys, through)) for port in range(len(self.edges))]
            worker.fillings[upquery.number] = through
            self._filled(worker, upquery.number, worker.partial.answer(upquery.number, rows, Epoch(through), rows_max))
            self._begin_upquery(worker)

    @precondition(lambda self: any(worker.under_way for worker in self.workers))
    @rule()
    def refuse(self) -> None:
        """The lake cannot be read."""
        worker = next(worker for worker in self.workers if worker.under_way)
        upquery = worker.under_way.pop(min(worker.under_way))
        waiting = worker.waiting_for(upquery.number)
        (unanswered,) = worker.partial.refuse(upquery.number, LakeError("a run is damaged"))
        assert unanswered.keys.tolist() == waiting
        for key in waiting:
            del worker.stands[key]
        worker.retained = [key for key in worker.retained if key in worker.pending]
        self._begin_upquery(worker)

    @precondition(lambda self: any(worker.fillings for worker in self.workers))
    @rule(rows_max=st.sampled_from([1, 2, 5, 1_000]))
    def fill(self, rows_max: int) -> None:
        """Take in more of the oldest answer."""
        for worker in self.workers:
            if worker.fillings:
                self._filled(worker, next(iter(worker.fillings)), worker.partial.fill(rows_max))
                self._begin_upquery(worker)

    def _filled(self, worker: Worker, number: int, unanswered: Sequence[UnansweredKeys] | None) -> None:
        """Rows of an answer were taken in. ``None``: not all of them."""
        if unanswered is None:
            assert worker.partial.unfilled
            return
        assert unanswered == []
        worker.stands |= dict.fromkeys(worker.waiting_for(number), Stand(PRESENT, worker.fillings.pop(number)))
        worker.retained = [key for key in worker.retained if key in worker.pending]

    def _rows_of(self, port: int, keys: Hashes, through: int) -> Batch:
        """All rows of these keys, as the lake has them."""
        empty = batch_of(TABLES[self.edges[port].table].schema, [], self.edges[port].index)
        batches = [empty, *(epoch[port] for epoch in self.lake[:through] if port in epoch)]
        mine = [batch.filtered(np.isin(batch.hash64, keys)) for batch in batches]
        hashes = np.concatenate([batch.hash64 for batch in mine])
        order = np.argsort(hashes, kind="stable")
        return Batch(pa.concat_batches([batch.rows for batch in mine]).take(pa.array(order)), hashes[order])

    # What goes

    @precondition(lambda self: any(worker.stands for worker in self.workers))
    @rule(data=st.data(), how=st.sampled_from(["evict", "evict oldest", "give up"]))
    def forget(self, data: st.DataObject, how: str) -> None:
        keys = sorted(data.draw(st.sets(st.sampled_from(sorted(self.keys)), min_size=1, max_size=5)))
        for worker in self.workers:
            if how == "evict":
                self._evict(worker, keys)
            elif how == "evict oldest":
                self._evict_oldest(worker, keys[1:], keys_max=len(keys))
            else:
                assert worker.partial.give_up(hashed(keys)) == worker.give_up(keys)

    def _evict(self, worker: Worker, keys: Sequence[int]) -> None:
        present = set(keys) & set(worker.present)
        assert worker.partial.evict(hashed(keys)) == len(present)
        for key in present:
            del worker.stands[key]

    def _evict_oldest(self, worker: Worker, asked: Sequence[int], keys_max: int) -> None:
        """asked: that a lookup waits for."""
        before = worker.present
        evicted = worker.partial.evict_oldest(keys_max, [hashed(asked)] if asked else [])
        left = worker.partial.keys_of(0, 1).tolist()
        assert evicted == len(before) - len(left) <= keys_max
        assert set(before) & set(asked) <= set(left)
        for key in set(before) - set(left):
            del worker.stands[key]

    @precondition(lambda self: any(worker.stands for worker in self.workers))
    @rule(vnodes=st.sets(st.integers(0, VNODES - 1), min_size=1, max_size=3), begun=st.booleans())
    def move(self, vnodes: set[int], begun: bool) -> None:
        """Some vnodes go to the other worker, or only begin to."""
        for vnode in vnodes:
            self._move(vnode, begun)

    def _move(self, vnode: int, begun: bool) -> None:
        old, new = self.workers[self.owners[vnode]], self.workers[1 - self.owners[vnode]]
        keys = [key for key in sorted(self.keys) if vnodes_of(hashed([key]), VNODES)[0] == vnode]
        assert old.partial.give_up_vnode(vnode, VNODES) == old.give_up(keys)
        if begun:
            return
        old.partial.catch_up()
        present = old.partial.keys_of(vnode, VNODES)
        assert present.tolist() == [key for key in keys if key in old.present]
        new.partial.install(through_the_wire(old.partial.collect(present)))
        old.partial.drop(present)
        for key in present.tolist():
            new.stands[key] = old.stands.pop(key)
        self.owners[vnode] = 1 - self.owners[vnode]

    @precondition(lambda self: any(worker.partial.is_behind for worker in self.workers))
    @rule()
    def catch_up(self) -> None:
        for worker in self.workers:
            worker.partial.catch_up()
            assert not worker.partial.is_behind

    # What holds

    @invariant()
    def it_stands_with_keys_as_it_should(self) -> None:
        for worker in self.workers:
            assert worker.partial.keys_of(0, 1).tolist() == worker.present
            stats = worker.partial.stats()
            assert (stats["present"], stats["pending"]) == (len(worker.present), len(worker.pending))
            for key in self.keys:
                assert worker.partial.lacks(hashed([key])) == (key not in worker.present)
                awaited = key in worker.wanted or key in worker.pending
                assert worker.partial.awaited(hashed([key])).any() == awaited

    @invariant()
    def present_keys_are_as_in_a_full_region(self) -> None:
        for worker in self.workers:
            present = [key for key in worker.present if not worker.partial.is_behind_with(hashed([key]))]
            expected = {key: self._expected(key, worker.stands[key].through) for key in present}
            asked = [self.keys[key] for key in present]
            found = self._by_key(worker.partial.lookup(*keys_of(self.key_schema, asked)))
            assert {key: found.get(key, []) for key in present} == expected
            if worker.partial.is_behind or worker.partial.unfilled:
                continue
            whole = self._by_key(worker.partial.scan())
            assert whole == {key: rows for key, rows in expected.items() if rows}

    def _expected(self, key: int, through: int) -> list[Row]:
        """All rows through the last epoch that was read, or that its upquery has read."""
        read = self.read - 1 if key in self.unread else self.read
        return self.views[max(read, through)].get(key, [])

    @invariant()
    def nothing_is_kept_of_missing_keys(self) -> None:
        for worker in self.workers:
            (region,) = worker.full
            half_filled = worker.pending if worker.partial.unfilled else []
            assert set(region.keys_of(0, 1).tolist()) <= {*worker.present, *half_filled}
            if not worker.stands:
                assert worker.partial.stats()["live_bytes"] == worker.empty_bytes


PartialRegions.TestCase.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(15),
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPartialRegions = PartialRegions.TestCase


# Wanted keys


def test_the_first_ones_are_taken_and_the_others_left() -> None:
    wanted = WantedKeys()
    wanted.add(np.array([7, 3, 3], np.uint64))
    wanted.add(np.array([5], np.uint64))
    assert wanted.take(2).tolist() == [3, 5]
    assert wanted.keys.tolist() == [7]


def test_keys_that_were_taken_are_not_kept_in_memory() -> None:
    wanted = WantedKeys()
    wanted.add(np.arange(10, dtype=np.uint64))
    asked_for = weakref.ref(wanted.keys)
    wanted.take(10)
    assert asked_for() is None
