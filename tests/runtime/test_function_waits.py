"""While a function of one view is called, the worker goes on with its other views."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lookup_kit import KeysAsked, Served
from machines_kit import CHANNEL, FLOW, KEYS, TABLE, VNODES, Seen, assign, meet, opened, planned, read, rows, vnode_map

from upriver.engine.batch import Batch
from upriver.errors import WaitTimeout
from upriver.hashing import hash64
from upriver.ids import FlowId, WorkerId
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.lookups import LookupTerms
from upriver.protocol.messages import (
    DropFlow,
    EpochFinished,
    ForShare,
    FromWorker,
    Here,
    MetPeers,
    OfShare,
    Probe,
    Retire,
)
from upriver.protocol.peers import Envelope
from upriver.protocol.worker_events import LookupsAsked, PeersMet, ShareHears, WorkerEvent
from upriver.runtime.flow_functions import FlowFunctions
from upriver.runtime.worker_loop import WorkerLoop
from upriver.worker.held_events import HeldEvents, Rest
from upriver.worker.worker import WorkerMachine

TWIN, LATE = FlowId(2), FlowId(3)
VIEWS = {FLOW: "seen", TWIN: "twin", LATE: "late"}
KEY = KEYS[0][0]
WAIT_S = 30.0


class Calling(Seen):
    """Applies rows as if a function were called for them, until it is told to return."""

    def __init__(self, functions: FlowFunctions, flow: FlowId) -> None:
        super().__init__()
        self.functions = functions
        self.flow = flow
        self.is_called = threading.Event()
        self.may_return = threading.Event()

    def apply(self, port: int, batch: Batch) -> None:
        self.is_called.set()
        while not self.may_return.is_set():
            if not self.functions.meanwhile(self.flow):
                threading.Event().wait(0.001)
        super().apply(port, batch)


class Nobody:
    """There are no peers."""

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        raise AssertionError(f"{envelope} to {to}")

    def flush(self) -> None:
        pass


def begun(flow: FlowId) -> WorkerEvent:
    name = VIEWS[flow]
    return ForShare(flow=flow, message=assign(plans=(planned(name),), maps={name: vnode_map((0,) * VNODES)}))


class Worker:
    """A loop on a thread of its own; the views ``seen`` and ``late`` call a function."""

    def __init__(self, lake: OwnedLake) -> None:
        functions = FlowFunctions(self._build)
        self.calling, self.late = Calling(functions, FLOW), Calling(functions, LATE)
        self.machine = WorkerMachine(self._build, builders=functions.builder)
        self.loop = WorkerLoop(self.machine, lake, 0.005, functions)
        self.said: list[FromWorker] = []
        for flow in (FLOW, TWIN):
            self.loop.hear(begun(flow))
        self.thread = threading.Thread(target=self.loop.run, args=(self.said.extend, lambda _: None, Nobody()))
        self.thread.start()
        self.asking = Served(self.loop)

    def _build(self, plan: DataflowPlan, region: RegionPlan) -> Any:
        return {"seen": self.calling, "late": self.late}.get(plan.name) or Seen()

    def hear_epoch(self, flow: FlowId, epoch: int) -> None:
        """Each key of it comes, and then its end."""
        self.loop.hear(ForShare(flow=flow, message=opened(epoch)))
        self.loop.hear(ShareHears(flow=flow, event=rows(epoch, KEY)))
        self.loop.hear(ShareHears(flow=flow, event=read(epoch, 1)))

    def lookup(self, view: str, seconds: float = WAIT_S) -> Any:
        keys = pa.RecordBatch.from_arrays([pa.array([KEY])], names=["k"])
        asked = KeysAsked(view, keys, hash64(keys.columns), timeout=seconds)
        return self.asking.look_up(asked).rows.column("seen").to_pylist()

    def wait_for(self, message: Any) -> None:
        ends_at = time.monotonic() + WAIT_S
        while not any(message(said) for said in list(self.said)):
            assert time.monotonic() < ends_at, self.said
            threading.Event().wait(0.005)

    def wait_for_epoch(self, flow: FlowId, epoch: int) -> None:
        def is_it(said: FromWorker) -> bool:
            return (
                isinstance(said, OfShare)
                and said.flow == flow
                and isinstance(said.message, EpochFinished)
                and said.message.epoch == epoch
            )

        self.wait_for(is_it)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with _lake(tmp_path) as lake:
        worker = Worker(lake)
        yield worker
        for calling in (worker.calling, worker.late):
            calling.may_return.set()
        worker.loop.hear(Retire())
        worker.thread.join(WAIT_S)
        assert not worker.thread.is_alive()
        worker.asking.stop()


@contextmanager
def _lake(directory: Path) -> Iterator[OwnedLake]:
    lake = OwnedLake(str(directory / "lake"), LakeRecord(VNODES, (TABLE,), {TABLE.name: (TABLE.key,)}), {})
    try:
        yield lake
    finally:
        lake.release()


def test_epochs_lookups_and_meetings_of_another_view_go_on(worker: Worker) -> None:
    worker.hear_epoch(FLOW, 1)
    assert worker.calling.is_called.wait(WAIT_S)
    worker.hear_epoch(TWIN, 1)
    worker.wait_for_epoch(TWIN, 1)
    assert worker.lookup("twin") == [[1]]
    worker.loop.hear(Probe(probe=7))
    worker.wait_for(lambda said: said == Here(probe=7))
    worker.loop.hear(meet(0))
    worker.loop.hear(PeersMet(meeting=1))
    worker.wait_for(lambda said: isinstance(said, MetPeers))
    worker.hear_epoch(TWIN, 2)
    worker.wait_for_epoch(TWIN, 2)


def test_another_view_that_calls_a_function_goes_on_too(worker: Worker) -> None:
    worker.hear_epoch(FLOW, 1)
    assert worker.calling.is_called.wait(WAIT_S)
    worker.loop.hear(begun(LATE))
    worker.hear_epoch(LATE, 1)
    assert worker.late.is_called.wait(WAIT_S)
    worker.hear_epoch(TWIN, 1)
    worker.wait_for_epoch(TWIN, 1)
    worker.hear_epoch(LATE, 2)
    worker.loop.hear(meet(0))
    worker.loop.hear(Probe(probe=7))
    worker.wait_for(lambda said: said == Here(probe=7))
    worker.late.may_return.set()
    worker.wait_for_epoch(LATE, 2)
    assert worker.lookup("late") == [[1, 2]]
    assert worker.lookup("twin") == [[1]]
    worker.calling.may_return.set()
    worker.wait_for_epoch(FLOW, 1)


def test_what_comes_for_the_view_that_waits_is_done_after_the_call_and_in_order(worker: Worker) -> None:
    worker.hear_epoch(FLOW, 1)
    assert worker.calling.is_called.wait(WAIT_S)
    with pytest.raises(WaitTimeout):
        worker.lookup("seen", 0.2)
    worker.loop.hear(meet(0))
    worker.hear_epoch(FLOW, 2)
    worker.hear_epoch(TWIN, 1)
    worker.wait_for_epoch(TWIN, 1)
    assert not any(isinstance(said, OfShare) and said.flow == FLOW for said in worker.said)
    worker.calling.may_return.set()
    worker.wait_for_epoch(FLOW, 2)
    assert worker.lookup("seen") == [[1, 2]]


def test_a_flow_may_go_while_another_one_waits(worker: Worker) -> None:
    worker.hear_epoch(FLOW, 1)
    assert worker.calling.is_called.wait(WAIT_S)
    worker.loop.hear(DropFlow(flow=TWIN))
    worker.loop.hear(Probe(probe=8))
    worker.wait_for(lambda said: said == Here(probe=8))
    assert set(worker.machine.shares) == {FLOW}
    worker.loop.hear(DropFlow(flow=FLOW))
    worker.calling.may_return.set()
    worker.loop.hear(Probe(probe=9))
    worker.wait_for(lambda said: said == Here(probe=9))
    assert not worker.machine.shares


# What is held -----------------------------------------------------------------------------------------------------


def held(*flows: FlowId) -> tuple[HeldEvents, WorkerMachine]:
    machine = WorkerMachine(lambda *_: Seen())
    for flow in flows:
        machine.step(begun(flow))
    return HeldEvents(machine), machine


def asked(view: str) -> LookupsAsked:
    keys = pa.RecordBatch.from_arrays([pa.array([KEY])], names=["k"])
    terms = LookupTerms(1, 1, None, False, WAIT_S)
    return LookupsAsked(ticket=1, view=view, keys=keys, hash64=hash64(keys.columns), lookups=[terms])


def test_an_event_for_all_shares_passes_and_waits_for_the_paused_ones_only() -> None:
    events, _ = held(FLOW, TWIN)
    paused = frozenset({FLOW, LATE})
    assert not events.passes(ForShare(flow=FLOW, message=opened(1)), paused)
    assert events.passes(meet(0), paused)
    assert events.passes(ForShare(flow=TWIN, message=opened(1)), paused)
    assert events.next({FLOW}) is None
    assert events.next() == ForShare(flow=FLOW, message=opened(1))
    assert events.next() == Rest(meet(0), frozenset({FLOW}))
    assert not events


def test_after_a_held_assignment_a_meeting_waits_and_all_that_follows() -> None:
    """The share that begins hears of the meeting as it begins."""
    events, _ = held(FLOW, TWIN)
    paused = frozenset({FLOW})
    assert not events.passes(begun(FLOW), paused)
    assert events.passes(ForShare(flow=TWIN, message=opened(1)), paused)
    assert not events.passes(meet(0), paused)
    assert not events.passes(ForShare(flow=TWIN, message=read(1, 0)), paused)  # type: ignore[arg-type]
    assert events.passes(asked("twin"), paused)
    assert [type(events.next()) for _ in range(3)] == [ForShare, type(meet(0)), ForShare]
    assert events.passes(meet(0), frozenset())


def test_a_lookup_of_a_paused_view_waits() -> None:
    events, _ = held(FLOW, TWIN)
    assert events.passes(asked("twin"), {FLOW})
    assert not events.passes(asked("seen"), {FLOW})
    assert [lookup.view for lookup in events.lookups()] == ["seen"]
    assert not events.lookups()


def test_events_of_a_flow_that_waits_no_more_need_not_wait_for_those_of_another_one() -> None:
    events, _ = held(FLOW, TWIN)
    both = frozenset({FLOW, TWIN})
    for flow in (FLOW, TWIN):
        assert not events.passes(ForShare(flow=flow, message=opened(1)), both)
    assert events.passes(meet(0), both)
    assert not events.passes(ForShare(flow=TWIN, message=opened(2)), {FLOW}), "an earlier one waits"
    assert events.next({FLOW}) == ForShare(flow=TWIN, message=opened(1))
    assert events.next({FLOW}) == Rest(meet(0), frozenset({TWIN}))
    assert events.next({FLOW}) == ForShare(flow=TWIN, message=opened(2))
    assert events.next({FLOW}) is None
    assert events.flows == {FLOW}
    assert events.next() == ForShare(flow=FLOW, message=opened(1))
    assert events.next() == Rest(meet(0), frozenset({FLOW}))
    assert not events


def test_a_worker_that_retires_does_so_after_the_call() -> None:
    events, _ = held(FLOW, TWIN)
    assert not events.passes(Retire(), {FLOW})
    assert not events.passes(ForShare(flow=TWIN, message=opened(1)), {FLOW})
    assert isinstance(events.next(), Retire)


def test_a_paused_share_takes_no_turn_and_hears_of_the_meeting_later() -> None:
    _, machine = held(FLOW, TWIN)
    for flow in (FLOW, TWIN):
        machine.step(ForShare(flow=flow, message=opened(1)))
        machine.step(ShareHears(flow=flow, event=rows(1, KEY, channel=CHANNEL)))
    machine.pause(frozenset({FLOW}))
    machine.step(meet(0))
    machine.pause(frozenset())
    assert machine.step_rest(FLOW, meet(0)) == []
    assert machine.flow_of("seen") == FLOW
    assert machine.flow_of("nothing") is None
    assert machine.flow_asked(5) is None
