"""The worker machine, one event at a time: rules W1 to W6 of docs/design/0001-river.md, and what no phase allows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from upriver.dataflow.batch import Batch, Hashes
from upriver.dataflow.plan import AggregateCall, AggregatePlan, Projection, ViewPlan
from upriver.errors import IllegalEvent, KeyTypeError, ProtocolError, UnknownView, WrongOwner
from upriver.hashing import hash64
from upriver.ids import Channel, Epoch, SnapshotId, VnodeId, WorkerId
from upriver.machines.messages import (
    Assign,
    DropSnapshot,
    EpochFinished,
    OpenEpoch,
    Retire,
    SnapshotTaken,
    TakeSnapshot,
)
from upriver.machines.rules import ALL_RULES, Rules
from upriver.machines.worker import (
    LOOKUPS_PARKED_MAX,
    Answer,
    EpochRead,
    ForgetSnapshot,
    HoldSnapshot,
    LookupAsked,
    LookupGivenUp,
    ReadEpoch,
    Refuse,
    Report,
    RowsRead,
    Stop,
    WorkerAction,
    WorkerEvent,
    WorkerMachine,
)
from upriver.vnodes import vnodes_of

VNODES = 8
ROWS = pa.schema([("k", pa.string())])
COUNTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
CHANNEL = Channel("t/k")
PLAN = ViewPlan(
    name="counts",
    sql="SELECT k, count(*) AS n FROM t GROUP BY k",
    table="t",
    index=("k",),
    key=("k",),
    filter=None,
    project=Projection(("k",), ROWS),
    aggregate=AggregatePlan(("k",), (AggregateCall("count_star", None, "n", pa.int64()),)),
    having=None,
    output=Projection(("k", "n"), COUNTS),
)


class Counting:
    """A view that counts rows per key, and nothing else."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def apply(self, batch: Batch) -> None:
        self.counts.update(batch.rows.column("k").to_pylist())

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch) -> pa.RecordBatch:
        if keys.schema.types != [pa.string()]:
            raise KeyTypeError("key k is a string")
        found = [key for key in keys.column(0).to_pylist() if key in self.counts]
        return pa.RecordBatch.from_pylist([{"k": key, "n": self.counts[key]} for key in found], schema=COUNTS)

    def scan(self) -> pa.Table:
        return pa.Table.from_pylist([{"k": key, "n": n} for key, n in sorted(self.counts.items())], schema=COUNTS)

    def stats(self) -> Mapping[str, int]:
        return {"rows": self.counts.total(), "keys": len(self.counts), "bytes": 0}


def hashed(keys: Sequence[str]) -> Hashes:
    return hash64([pa.array(keys, pa.string())], len(keys))


def assign(vnodes: Sequence[int] = range(VNODES), serve_from: int = 0) -> Assign:
    owned = tuple(map(VnodeId, vnodes))
    return Assign(worker=WorkerId(0), vnodes_total=VNODES, vnodes=owned, plans=(PLAN,), serve_from=Epoch(serve_from))


def opened(epoch: int) -> OpenEpoch:
    return OpenEpoch(epoch=Epoch(epoch))


def rows(epoch: int, *keys: str, channel: str = CHANNEL) -> RowsRead:
    batch = Batch(pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], schema=ROWS), hashed(keys))
    return RowsRead(epoch=Epoch(epoch), channel=Channel(channel), batch=batch)


def read(epoch: int, promised: int) -> EpochRead:
    return EpochRead(epoch=Epoch(epoch), promised={CHANNEL: promised})


def asked(*keys: str, ticket: int = 1, view: str = "counts", at_least: int = 0) -> LookupAsked:
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=["k"])
    return LookupAsked(ticket=ticket, view=view, keys=batch, hash64=hashed(keys), at_least=Epoch(at_least))


def take(snapshot: int, at: int) -> TakeSnapshot:
    return TakeSnapshot(snapshot=SnapshotId(snapshot), view="counts", at=Epoch(at))


def worker(*events: WorkerEvent, rules: Rules = ALL_RULES) -> WorkerMachine:
    """A machine that has lived through these events."""
    machine = WorkerMachine(lambda _: Counting(), rules)
    for event in events:
        machine.step(event)
    return machine


def applied(*epochs: Sequence[str]) -> list[WorkerEvent]:
    """The events of whole epochs, from the first on, each of these keys."""
    events: list[WorkerEvent] = []
    for epoch, keys in enumerate(epochs, 1):
        events += [opened(epoch), rows(epoch, *keys), read(epoch, len(keys))]
    return events


READ_1, READ_2 = (ReadEpoch(epoch=Epoch(epoch), channels=(CHANNEL,)) for epoch in (1, 2))


def finished(epoch: int, received: int, keys: int, total: int) -> Report:
    stats = {"counts": {"rows": total, "keys": keys, "bytes": 0}}
    return Report(message=EpochFinished(epoch=Epoch(epoch), received={CHANNEL: received}, stats=stats))


def answered(actions: list[WorkerAction]) -> dict[int, tuple[dict[str, int], int]]:
    """By ticket: the counts found and their epoch."""
    answers = [action for action in actions if isinstance(action, Answer)]
    return {
        answer.ticket: ({row["k"]: row["n"] for row in answer.rows.to_pylist()}, answer.epoch) for answer in answers
    }


def refused(actions: list[WorkerAction]) -> dict[int, type[Exception]]:
    return {action.ticket: type(action.error) for action in actions if isinstance(action, Refuse)}


def test_an_epoch_is_read_applied_and_reported() -> None:
    machine = worker(assign())
    assert machine.step(opened(1)) == [READ_1]
    assert machine.step(rows(1, "a", "b")) == []
    assert machine.step(rows(1, "b")) == []
    assert machine.step(read(1, 3)) == [finished(1, received=3, keys=2, total=3)]


def test_rows_reach_every_view_that_their_channel_feeds() -> None:
    machine = worker(replace(assign(), plans=(PLAN, replace(PLAN, name="twin"))), *applied("ab"))
    for view in ("counts", "twin"):
        assert answered(machine.step(asked("a", view=view))) == {1: ({"a": 1}, 1)}


def test_an_epoch_without_rows_is_reported_too() -> None:
    assert worker(assign(), opened(1)).step(read(1, 0)) == [finished(1, received=0, keys=0, total=0)]


def test_w1_the_next_epoch_is_read_when_the_one_before_is_applied() -> None:
    machine = worker(assign(), opened(1))
    assert machine.step(opened(2)) == []
    assert machine.step(read(1, 0)) == [finished(1, received=0, keys=0, total=0), READ_2]


@pytest.mark.parametrize("already", [[opened(1)], [opened(1), opened(2)], applied("a"), applied("a", "b")])
def test_w1_an_epoch_opened_twice_is_applied_once(already: list[WorkerEvent]) -> None:
    machine, undisturbed = worker(assign(), *already), worker(assign(), *already)
    assert machine.step(opened(1)) == []
    following = [opened(epoch) for epoch in (1, 2, 3)]
    assert [machine.step(event) for event in following] == [undisturbed.step(event) for event in following]


@pytest.mark.parametrize("already", [[], applied("a"), [opened(1), opened(2)]])
def test_w1_a_gap_between_epochs_is_a_fault(already: list[WorkerEvent]) -> None:
    machine = worker(assign(), *already)
    with pytest.raises(ProtocolError, match="epoch 4 was opened after"):
        machine.step(opened(4))


@pytest.mark.parametrize("promised", [0, 1, 3])
def test_w2_an_epoch_with_more_or_fewer_rows_than_promised_does_not_end(promised: int) -> None:
    machine = worker(assign(), opened(1), rows(1, "a", "b"))
    with pytest.raises(ProtocolError, match=f"promised {{'t/k': {promised}}}, received {{'t/k': 2}}"):
        machine.step(read(1, promised))


def test_w3_a_lookup_waits_until_all_is_applied_that_was_published_at_joining() -> None:
    machine = worker(assign(serve_from=2), opened(1), opened(2), rows(1, "a"))
    assert machine.step(asked("a")) == []
    assert answered(machine.step(read(1, 1))) == {}
    machine.step(rows(2, "a", "b"))
    assert answered(machine.step(read(2, 2))) == {1: ({"a": 2}, 2)}


def test_w3_a_lookup_waits_for_the_epoch_that_it_asks_for() -> None:
    machine = worker(assign(), *applied("a"))
    assert answered(machine.step(asked("a", ticket=1, at_least=1))) == {1: ({"a": 1}, 1)}
    assert machine.step(asked("a", ticket=2, at_least=2)) == []
    assert machine.step(asked("a", ticket=3, at_least=3)) == []
    machine.step(opened(2))
    assert answered(machine.step(read(2, 0))) == {2: ({"a": 1}, 2)}


def test_w3_so_many_lookups_wait_and_one_more_is_refused() -> None:
    machine = worker(assign(serve_from=1))
    waiting = [machine.step(asked("a", ticket=ticket)) for ticket in range(LOOKUPS_PARKED_MAX)]
    assert not any(waiting)
    assert refused(machine.step(asked("a", ticket=LOOKUPS_PARKED_MAX))) == {LOOKUPS_PARKED_MAX: WrongOwner}
    machine.step(opened(1))
    assert len(answered(machine.step(read(1, 0)))) == LOOKUPS_PARKED_MAX


def test_w3_a_lookup_that_was_given_up_waits_no_more() -> None:
    machine = worker(
        assign(serve_from=1), asked("a", ticket=1), asked("a", ticket=2), LookupGivenUp(ticket=1), opened(1)
    )
    assert list(answered(machine.step(read(1, 0)))) == [2]
    assert worker().step(LookupGivenUp(ticket=1)) == []


FIRST, SECOND = sorted(["a", "b"], key=lambda key: int(hashed([key])[0]))


def test_w6_a_lookup_between_two_slices_sees_keys_of_which_no_more_rows_can_come() -> None:
    machine = worker(assign(), opened(1), rows(1, FIRST), rows(1, SECOND))
    assert answered(machine.step(asked(FIRST, "nobody"))) == {1: ({FIRST: 1}, 0)}


def test_w6_a_lookup_of_the_last_key_received_waits_for_the_slice_that_follows() -> None:
    machine = worker(assign(), opened(1), rows(1, FIRST))
    assert machine.step(asked(SECOND, FIRST)) == []
    assert machine.step(rows(1, FIRST, FIRST)) == []
    assert machine.step(rows(1)) == []
    assert machine.step(asked(FIRST, ticket=2)) == []
    assert answered(machine.step(rows(1, SECOND))) == {2: ({FIRST: 3}, 0)}
    assert answered(machine.step(read(1, 4))) == {1: ({FIRST: 3, SECOND: 1}, 1)}


def test_w6_of_a_slice_of_several_keys_only_the_last_one_waits() -> None:
    machine = worker(assign(), opened(1), rows(1, FIRST, SECOND))
    assert answered(machine.step(asked(FIRST, ticket=1))) == {1: ({FIRST: 1}, 0)}
    assert machine.step(asked(SECOND, ticket=2)) == []


def test_w6_an_epoch_that_is_read_has_no_last_key() -> None:
    machine = worker(assign(), opened(1), rows(1, FIRST), read(1, 1), opened(2))
    assert answered(machine.step(asked(FIRST))) == {1: ({FIRST: 1}, 1)}


def test_w6_a_key_may_be_the_last_one_of_one_channel_and_not_of_another() -> None:
    elsewhere = replace(PLAN, name="elsewhere", index=("j",))
    machine = worker(replace(assign(), plans=(PLAN, elsewhere)), opened(1), rows(1, FIRST))
    assert machine.step(asked(FIRST, ticket=1)) == []
    assert answered(machine.step(asked(FIRST, ticket=2, view="elsewhere"))) == {2: ({}, 0)}


def test_w4_keys_of_another_worker_are_refused() -> None:
    keys = ["a", "b", "c", "d", "e", "f"]
    vnodes = vnodes_of(hashed(keys), VNODES)
    own = [key for key, vnode in zip(keys, vnodes, strict=True) if vnode == vnodes[0]]
    foreign = [key for key, vnode in zip(keys, vnodes, strict=True) if vnode != vnodes[0]]
    machine = worker(assign(vnodes=[int(vnodes[0])]))
    assert answered(machine.step(asked(*own))) == {1: ({}, 0)}
    assert refused(machine.step(asked(*foreign))) == {1: WrongOwner}
    assert refused(machine.step(asked(own[0], foreign[0]))) == {1: WrongOwner}
    assert refused(machine.step(asked(*foreign, at_least=9))) == {1: WrongOwner}


def test_a_view_that_is_not_there_is_refused_with_the_names_of_those_that_are() -> None:
    (refuse,) = worker(assign()).step(asked("a", view="typo"))
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, UnknownView)
    assert str(refuse.error) == "no view 'typo'; there are: counts"


def test_keys_that_the_view_refuses_are_refused() -> None:
    keys = pa.RecordBatch.from_arrays([pa.array([1])], names=["k"])
    lookup = LookupAsked(ticket=1, view="counts", keys=keys, hash64=hash64(keys.columns), at_least=Epoch(0))
    assert refused(worker(assign()).step(lookup)) == {1: KeyTypeError}


def test_w5_a_snapshot_is_taken_at_once_when_the_worker_stands_at_its_cut() -> None:
    machine = worker(assign(), *applied("ab"))
    part = pa.table({"k": ["a", "b"], "n": [1, 1]})
    expected = [
        HoldSnapshot(snapshot=SnapshotId(7), rows=part),
        Report(message=SnapshotTaken(snapshot=SnapshotId(7), rows=2)),
    ]
    assert machine.step(take(7, at=1)) == expected


def test_w5_a_snapshot_waits_for_its_cut_and_sees_nothing_of_the_next_epoch() -> None:
    machine = worker(assign(), opened(1), opened(2), rows(1, "a"))
    assert machine.step(take(7, at=1)) == []
    report, hold, taken, next_read = machine.step(read(1, 1))
    assert isinstance(hold, HoldSnapshot)
    assert hold.rows.to_pylist() == [{"k": "a", "n": 1}]
    assert [report, taken, next_read] == [
        finished(1, received=1, keys=1, total=1),
        Report(message=SnapshotTaken(snapshot=SnapshotId(7), rows=1)),
        READ_2,
    ]


@pytest.mark.parametrize("already", [applied("a", "b"), [*applied("a"), opened(2), rows(2, "b"), read(2, 1)]])
def test_w5_a_cut_that_the_worker_has_passed_is_a_fault(already: list[WorkerEvent]) -> None:
    with pytest.raises(ProtocolError, match="snapshot 7 wants epoch 1, 2 is applied"):
        worker(assign(), *already).step(take(7, at=1))


def test_w5_a_cut_that_the_worker_is_just_leaving_is_a_fault_and_not_taken() -> None:
    machine = worker(assign(), *applied("a"), opened(2), rows(2, "b"))
    assert machine.step(take(7, at=1)) == []
    with pytest.raises(ProtocolError, match="snapshot 7 wants epoch 1, 2 is applied"):
        machine.step(read(2, 1))


def test_w5_cuts_go_back_when_the_foremost_worker_was_lost_and_each_is_taken_at_its_own() -> None:
    machine = worker(assign(), opened(1), opened(2), take(7, at=2), take(8, at=1))
    for epoch, snapshot in ((1, 8), (2, 7)):
        held = [action for action in machine.step(read(epoch, 0)) if isinstance(action, HoldSnapshot)]
        assert [action.snapshot for action in held] == [snapshot]


def test_a_snapshot_that_nobody_reads_any_more_is_not_taken() -> None:
    machine = worker(assign(), opened(1), take(7, at=1))
    assert machine.step(DropSnapshot(snapshot=SnapshotId(7))) == [ForgetSnapshot(snapshot=SnapshotId(7))]
    assert machine.step(read(1, 0)) == [finished(1, received=0, keys=0, total=0)]


def test_a_snapshot_that_nobody_reads_any_more_is_forgotten() -> None:
    machine = worker(assign(), take(7, at=0))
    assert machine.step(DropSnapshot(snapshot=SnapshotId(7))) == [ForgetSnapshot(snapshot=SnapshotId(7))]


@pytest.mark.parametrize("already", [[], [assign()], [assign(), opened(1), rows(1, "a")]])
def test_a_worker_that_is_told_to_retire_stops(already: list[WorkerEvent]) -> None:
    machine = worker(*already)
    assert machine.step(Retire()) == [Stop()]
    assert refused(machine.step(asked("a"))) == {1: WrongOwner}
    late: list[WorkerEvent] = [opened(1), rows(1, "a"), read(1, 9), take(1, at=0), DropSnapshot(snapshot=SnapshotId(1))]
    assert [machine.step(event) for event in late] == [[]] * len(late)


def test_lookups_that_wait_are_refused_when_the_worker_retires() -> None:
    machine = worker(assign(serve_from=1), asked("a", ticket=3), asked("b", ticket=4))
    actions = machine.step(Retire())
    assert refused(actions) == {3: WrongOwner, 4: WrongOwner}
    assert actions[-1] == Stop()


def test_a_worker_that_is_not_assigned_owns_nothing() -> None:
    assert refused(worker().step(asked("a"))) == {1: WrongOwner}


@pytest.mark.parametrize(
    ("already", "event"),
    [
        ([], opened(1)),
        ([], rows(1, "a")),
        ([], read(1, 0)),
        ([], take(1, at=0)),
        ([], DropSnapshot(snapshot=SnapshotId(1))),
        ([assign()], assign()),
        ([assign()], rows(1, "a")),
        ([assign()], read(1, 0)),
        ([assign(), opened(1), opened(2)], rows(2, "a")),
        ([assign(), opened(1), opened(2)], read(2, 0)),
        ([assign(), *applied("a")], rows(1, "a")),
        ([assign(), *applied("a")], read(1, 1)),
        ([assign(), opened(1)], rows(1, "a", channel="other/k")),
    ],
)
def test_illegal_events(already: list[WorkerEvent], event: WorkerEvent) -> None:
    machine = worker(*already)
    with pytest.raises(IllegalEvent):
        machine.step(event)
