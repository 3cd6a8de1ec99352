"""A worker with shares of several flows: what goes to which share, and what the worker does for all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pyarrow as pa
import pytest
from machines_kit import (
    ALL_MINE,
    FLOW,
    HALVES,
    KEYS,
    Seen,
    announce,
    answered,
    applied,
    asked,
    assign,
    batch,
    hashed,
    meet,
    opened,
    planned,
    read,
    refused,
    reports,
    rows,
    sent,
    take,
    vnode_map,
)
from share_events_kit import OF_EACH_KIND, kind
from upquery_kit import ROW_BYTES, Weighed

from upriver.engine.batch import Batch
from upriver.errors import BudgetExceeded, IllegalEvent, ProtocolError, UnknownView, WrongOwner
from upriver.hashing import Hashes
from upriver.ids import Epoch, FeedId, FlowId, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.migration.messages import Done
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol import messages, peers, worker_events
from upriver.protocol.messages import ForShare, OfShare
from upriver.protocol.peers import Envelope
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    PeerSaid,
    ShareEvent,
    ShareHears,
    ShareWants,
    StateRead,
    WorkerAction,
    WorkerEvent,
)
from upriver.state.checkpoint import StateChunk
from upriver.state.failure import ViewFailure
from upriver.worker.regions import BuildRegion
from upriver.worker.serving import Serving
from upriver.worker.step_mark import StepMark, marked
from upriver.worker.worker import WorkerMachine

TWIN = FlowId(2)
VIEWS = {FLOW: "seen", TWIN: "twin"}
MINE, THEIRS = KEYS[0][0], KEYS[7][0]


def to(flow: FlowId, event: ShareEvent) -> WorkerEvent:
    """The event, as it reaches the flow's share."""
    if isinstance(event, messages.ToShare):
        return ForShare(flow=flow, message=event)
    if isinstance(event, worker_events.LakeAnswer):
        return ShareHears(flow=flow, event=event)
    return replace(event, envelope=replace(event.envelope, flow=flow)) if isinstance(event, PeerSaid) else event


def begun(flow: FlowId, owners: Sequence[int] = ALL_MINE, full: bool = True, **fields: Any) -> WorkerEvent:
    """The flow's share is assigned, with the view of that flow."""
    plan = planned(VIEWS[flow])
    plans = (plan if full else replace(plan, full_because=None),)
    return to(flow, assign(owners, plans=plans, maps={VIEWS[flow]: vnode_map(owners)}, **fields))


def machine(
    *events: WorkerEvent,
    build: BuildRegion = lambda *_: Seen(),
    rules: Rules = ALL_RULES,
    memory_budget: int | None = None,
) -> WorkerMachine:
    """A worker that has lived through these events."""
    made = WorkerMachine(build, rules, memory_budget)
    for event in events:
        made.step(event)
    return made


def both(*events: WorkerEvent) -> WorkerMachine:
    """A worker with a share of each of two flows."""
    return machine(begun(FLOW), begun(TWIN), *events)


def epochs_of(flow: FlowId, *epochs: Sequence[str]) -> list[WorkerEvent]:
    return [to(flow, event) for event in applied(*epochs)]


def told(actions: Sequence[WorkerAction]) -> list[tuple[FlowId, Any]]:
    """What shares have told their flows."""
    return [(said.flow, said.message) for said in reports(actions) if isinstance(said, OfShare)]


def wishes(actions: Sequence[WorkerAction]) -> list[tuple[FlowId, str]]:
    """What shares want of the lake."""
    return [(action.flow, kind(action.action)) for action in actions if isinstance(action, ShareWants)]


def phase_of(worker: WorkerMachine, flow: FlowId) -> Serving:
    phase = worker.shares[flow].phase
    assert isinstance(phase, Serving)
    return phase


# What goes where --------------------------------------------------------------------------------------------------


def test_each_flow_has_its_own_epochs_and_a_lookup_goes_to_the_share_with_its_view() -> None:
    worker = both(*epochs_of(FLOW, [MINE], [MINE]), *epochs_of(TWIN, [MINE]))
    assert answered(worker.step(asked(MINE, ticket=1))) == {1: ({MINE: [1, 2]}, 2)}
    assert answered(worker.step(asked(MINE, ticket=2, view="twin"))) == {2: ({MINE: [1]}, 1)}


def test_reports_and_wishes_name_their_flow() -> None:
    worker = both()
    assert wishes(worker.step(to(TWIN, opened(1)))) == [(TWIN, "ReadEpoch")]
    ((flow, report),) = told(worker.step(to(TWIN, read(1, 0))))
    assert (flow, kind(report)) == (TWIN, "EpochFinished")


def test_what_a_share_says_to_peers_names_its_flow() -> None:
    worker = both(meet(0, 1), worker_events.PeersMet(meeting=1))
    (action,) = worker.step(to(TWIN, messages.Follow(feed=FeedId(1), owner=WorkerId(1), vnodes=())))
    assert isinstance(action, worker_events.SendPeer)
    assert action.envelope.flow == TWIN


def test_a_view_that_no_flow_has_is_refused_and_all_views_are_named() -> None:
    (refusal,) = both().step(asked(MINE, view="other"))
    assert isinstance(refusal, worker_events.Refuse)
    assert isinstance(refusal.error, UnknownView)
    assert "seen" in str(refusal.error)
    assert "twin" in str(refusal.error)
    assert refused(machine().step(asked(MINE))) == {1: WrongOwner}


def test_of_two_flows_with_a_view_of_one_name_the_first_answers_until_it_is_gone() -> None:
    later = FlowId(3)
    worker = both(*epochs_of(FLOW, [MINE]), to(later, assign(start_at=Epoch(7))))
    assert answered(worker.step(asked(MINE))) == {1: ({MINE: [1]}, 1)}
    worker.step(messages.DropFlow(flow=FLOW))
    assert answered(worker.step(asked(MINE))) == {1: ({}, 7)}


def test_a_lookup_is_given_up_where_it_waits() -> None:
    worker = both(asked(MINE, ticket=4, at_least=1), asked(MINE, ticket=5, view="twin", at_least=1))
    for ticket in (5, 77, -1):
        assert worker.step(worker_events.LookupGivenUp(ticket=ticket)) == []
    for flow in (FLOW, TWIN):
        worker.step(to(flow, opened(1)))
    assert answered(worker.step(to(TWIN, read(1, 0)))) == {}
    assert answered(worker.step(to(FLOW, read(1, 0)))) == {4: ({}, 1)}


def test_answers_of_the_lake_go_to_the_share_that_has_asked() -> None:
    worker = both(to(FLOW, opened(1)), to(TWIN, opened(1)))
    worker.step(to(TWIN, rows(1, MINE)))
    ((flow, finished),) = told(worker.step(to(TWIN, read(1, 1))))
    assert (flow, getattr(finished, "applied", None)) == (TWIN, {"twin": 1})
    assert phase_of(worker, FLOW).progress.applied == 0


def test_a_flow_is_assigned_anew_alone() -> None:
    worker = both(*epochs_of(FLOW, [MINE]), *epochs_of(TWIN, [MINE]), asked(MINE, ticket=9, view="twin", at_least=5))
    actions = worker.step(begun(TWIN, generation=1))
    assert told(actions) == [(TWIN, messages.StartedAnew(generation=1))]
    assert refused(actions) == {9: WrongOwner}
    assert answered(worker.step(asked(MINE))) == {1: ({MINE: [1]}, 1)}
    assert answered(worker.step(asked(MINE, view="twin"))) == {1: ({}, 0)}


# Flows that are gone --------------------------------------------------------------------------------------------------


def test_a_flow_that_is_dropped_refuses_its_lookups_and_its_snapshots_are_released() -> None:
    worker = both(asked(MINE, ticket=4, at_least=1), asked(MINE, ticket=5, view="twin", at_least=1))
    worker.step(to(FLOW, take(1, at=0)))
    actions = worker.step(messages.DropFlow(flow=FLOW))
    assert refused(actions) == {4: WrongOwner}
    assert worker_events.ForgetSnapshot(snapshot=SnapshotId(1)) in actions
    assert list(worker.shares) == [TWIN]
    assert worker.is_gone(FLOW)
    assert refused(worker.step(asked(MINE))) == {1: UnknownView}


CONTENTS: list[peers.PeerMessage] = [
    peers.ForRegion(region="seen", message=Done(version=MapVersion(1), vnode=VnodeId(0))),
    peers.Installed(region="seen"),
    peers.PeerLookupGivenUp(ticket=1),
    peers.PeerLookupRefused(ticket=1, error=WrongOwner("not here")),
    peers.FailedHere(view="seen", failure=ViewFailure(kind="RowError", error="overflow")),
    peers.BeginFeed(feed=FeedId(1), vnodes=()),
    peers.EndFeed(feed=FeedId(1), vnodes=()),
    peers.FedThrough(feed=FeedId(1), epoch=Epoch(1)),
    peers.RowsForwardedBack(feed=FeedId(1)),
]
OF_A_FLOW = (*get_args(messages.ToShare), *get_args(worker_events.LakeAnswer))
LATE = [to(FLOW, event) for event in OF_EACH_KIND if isinstance(event, OF_A_FLOW)]
LATE += [
    PeerSaid(sender=WorkerId(1), envelope=Envelope(flow=FLOW, generation=0, content=content)) for content in CONTENTS
]
LATE += [messages.DropFlow(flow=FLOW), worker_events.LookupGivenUp(ticket=4)]


def name_of(event: WorkerEvent) -> str:
    match event:
        case ForShare(message=inner) | ShareHears(event=inner):
            return kind(inner)
        case PeerSaid(envelope=envelope):
            return kind(envelope.content)
    return kind(event)


@pytest.mark.parametrize("event", LATE, ids=name_of)
def test_what_comes_for_a_flow_that_is_gone_changes_nothing(event: WorkerEvent) -> None:
    worker = both(asked(MINE, ticket=4, at_least=1), messages.DropFlow(flow=FLOW))
    assert worker.step(event) == []
    assert list(worker.shares) == [TWIN]
    assert refused(worker.step(asked(MINE))) == {1: UnknownView}


@pytest.mark.parametrize("event", [event for event in LATE if name_of(event) != "Assign"], ids=name_of)
def test_what_comes_for_a_flow_that_was_never_assigned_changes_nothing(event: WorkerEvent) -> None:
    worker = machine(begun(TWIN))
    assert worker.step(event) == []
    assert list(worker.shares) == [TWIN]


def test_a_worker_that_retires_refuses_the_lookups_of_all_flows_and_stops_once() -> None:
    worker = both(asked(MINE, ticket=4, at_least=1), asked(MINE, ticket=5, view="twin", at_least=1))
    actions = worker.step(messages.Retire())
    assert refused(actions) == {4: WrongOwner, 5: WrongOwner}
    assert [action for action in actions if isinstance(action, worker_events.Stop)] == [actions[-1]]
    assert worker.step(begun(FLOW)) == []
    assert refused(worker.step(asked(MINE))) == {1: WrongOwner}


# Peers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flows", [(), (FLOW,), (FLOW, TWIN)])
def test_a_worker_meets_its_peers_once_for_all_flows(flows: Sequence[FlowId]) -> None:
    worker = machine(*map(begun, flows))
    assert worker.step(meet(0, 1, meeting=3)) == [worker_events.MeetPeers(meet=meet(0, 1, meeting=3))]
    assert worker.step(worker_events.PeersMet(meeting=2)) == []
    assert reports(worker.step(worker_events.PeersMet(meeting=3))) == [messages.MetPeers(meeting=3)]


@pytest.mark.parametrize("flows", [(), (FLOW,), (FLOW, TWIN)])
def test_a_lost_channel_is_reported_once_for_all_flows(flows: Sequence[FlowId]) -> None:
    worker = machine(*map(begun, flows), meet(0, 1), worker_events.PeersMet(meeting=1))
    other = worker_events.PeerLost(why="it is gone", peer=WorkerId(1), incarnation=Incarnation(99))
    assert worker.step(other) == [], "a predecessor of the peer"
    lost = worker_events.PeerLost(why="it is gone", peer=WorkerId(1), incarnation=Incarnation(2))
    assert reports(worker.step(lost)) == [messages.PeersLost(meeting=1, why="it is gone", peer=WorkerId(1))]
    assert reports(worker.step(lost)) == []
    assert worker.step(worker_events.PeersMet(meeting=1)) == []


def test_a_probe_is_answered_once() -> None:
    for worker in (machine(), both()):
        assert reports(worker.step(messages.Probe(probe=5))) == [messages.Here(probe=5)]


def follow() -> WorkerEvent:
    return to(TWIN, messages.Follow(feed=FeedId(1), owner=WorkerId(1), vnodes=()))


MET: list[WorkerEvent] = [begun(FLOW), meet(0, 1), worker_events.PeersMet(meeting=1)]


@pytest.mark.parametrize("before", [[*MET, begun(TWIN)], [*MET, begun(TWIN), begun(TWIN, generation=1)]])
def test_a_share_that_is_assigned_after_the_meeting_can_speak_to_the_peers(before: Sequence[WorkerEvent]) -> None:
    worker = machine(*before)
    assert [(peer, kind(content)) for peer, content in sent(worker.step(follow()))] == [(1, "BeginFeed")]


def test_a_share_that_is_assigned_during_the_meeting_can_move_keys() -> None:
    worker = machine(begun(FLOW), meet(0, 1), begun(TWIN, HALVES), worker_events.PeersMet(meeting=1))
    worker.step(to(TWIN, announce(HALVES, ALL_MINE, 0, 1, view="twin")))
    questions = sent(worker.step(asked(THEIRS, view="twin")))
    assert [(peer, kind(content)) for peer, content in questions] == [(1, "RowsSent")]


def test_a_share_that_is_assigned_when_a_peer_was_lost_says_nothing_to_peers() -> None:
    lost = worker_events.PeerLost(why="it is gone", peer=WorkerId(1), incarnation=Incarnation(2))
    actions = machine(*MET, lost, begun(TWIN)).step(follow())
    assert (sent(actions), told(actions)) == ([], [(TWIN, messages.FeedEnded(feed=FeedId(1)))])


# Time ---------------------------------------------------------------------------------------------------------------


def test_shares_take_turns() -> None:
    keys = [KEYS[vnode][0] for vnode in range(4)]
    worker = machine(*(begun(flow, chain=()) for flow in (FLOW, TWIN)))
    for number, flow in enumerate((FLOW, TWIN), 1):
        for event in epochs_of(flow, keys if flow == FLOW else keys[:2]):
            worker.step(event)
        worker.step(to(flow, messages.TakeCheckpoint(checkpoint=number, at=Epoch(1), whole=True)))
    copied: list[FlowId] = []
    while worker.can_copy:
        copied += [
            flow for flow, wish in wishes(worker.step(worker_events.TimeToCopy(keys_max=1))) if wish == "WriteState"
        ]
    assert copied == [FLOW, TWIN, FLOW, TWIN, FLOW, FLOW]
    assert worker.step(worker_events.TimeToCopy(keys_max=1)) == []


def test_without_work_there_is_nothing_to_do() -> None:
    worker = both()
    assert (worker.can_move, worker.can_copy, worker.can_feed, worker.can_fill) == (False,) * 4
    assert (worker.unread, worker.unfilled, worker.unsettled, worker.evicted) == (0,) * 4
    assert (worker.next_to_move, worker.must_evict) == (None, False)
    for event in OF_EACH_KIND:
        if isinstance(event, worker_events.TimeToWork) and not isinstance(event, worker_events.TimeToEvict):
            assert worker.step(event) == []


# Failures -------------------------------------------------------------------------------------------------------------


class Torn(Seen):
    """Breaks where no error is expected."""

    def stats(self) -> dict[str, int]:
        raise ZeroDivisionError("a fault")


def build_torn(plan: DataflowPlan, _: RegionPlan) -> Seen:
    return Torn() if plan.name == "twin" else Seen()


BREAKS = to(TWIN, messages.Evict(eviction=1, view="twin", keys=None))
"""An event that makes the second flow's share raise an error."""


def failing(rules: Rules = ALL_RULES) -> WorkerMachine:
    return machine(begun(FLOW), *epochs_of(FLOW, [MINE]), begun(TWIN), build=build_torn, rules=rules)


def test_flows_fail_alone_an_error_of_one_share_fails_its_views_and_other_shares_go_on() -> None:
    worker = failing()
    worker.step(asked(MINE, ticket=6, view="twin", at_least=1))
    actions = worker.step(BREAKS)
    failure = ViewFailure(kind="ProtocolError", error="view 'twin': ZeroDivisionError: a fault")
    assert told(actions)[0] == (TWIN, messages.ViewFailed(view="twin", failure=failure))
    assert refused(actions) == {6: ProtocolError}
    assert refused(worker.step(asked(MINE, view="twin"))) == {1: ProtocolError}
    assert answered(worker.step(asked(MINE))) == {1: ({MINE: [1]}, 1)}
    for event in epochs_of(FLOW, [MINE], [MINE])[3:]:
        worker.step(event)
    assert answered(worker.step(asked(MINE))) == {1: ({MINE: [1, 2]}, 2)}


def test_a_flow_whose_views_have_failed_goes_on_through_epochs() -> None:
    worker = failing()
    worker.step(BREAKS)
    worker.step(to(TWIN, opened(1)))
    assert [kind(message) for _, message in told(worker.step(to(TWIN, read(1, 0))))] == ["EpochFinished"]


def test_flows_fail_alone_without_the_rule_the_machine_raises() -> None:
    with pytest.raises(ZeroDivisionError, match="a fault"):
        failing(Rules(flows_fail_alone=False)).step(BREAKS)


def test_a_fault_of_the_coordinator_ends_the_worker() -> None:
    with pytest.raises(ProtocolError, match="epoch 5 was opened after 0"):
        both().step(to(TWIN, opened(5)))
    with pytest.raises(IllegalEvent):
        both().step(to(TWIN, read(1, 0)))


# The mark of a step (flows.fail_when_deadly) --------------------------------------------------------------------------


class Died(BaseException):
    """The process dies."""


class Deadly(Seen):
    """Kills its process when a row of ``THEIRS`` comes, when it is looked up after that, and when state comes."""

    def apply(self, port: int, batch: Batch) -> None:
        super().apply(port, batch)
        if batch.rows.column("k").to_pylist() == [THEIRS]:
            raise Died

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        if keys.column(0).to_pylist() == [THEIRS]:
            raise Died
        return super().lookup(hash64, keys, rows_max)

    def install(self, state: tuple[pa.RecordBatch, ...]) -> None:
        raise Died


def build_deadly(plan: DataflowPlan, _: RegionPlan) -> Seen:
    return Deadly() if plan.name == "twin" else Seen()


def build_none(plan: DataflowPlan, _: RegionPlan) -> Seen:
    if plan.name == "twin":
        raise Died
    return Seen()


RESTORED = StateRead(region="twin", chunk=StateChunk(hashed([MINE]), (batch(1, MINE).rows,)))


@pytest.mark.parametrize(
    ("epoch", "build", "events"),
    [
        pytest.param(
            3, build_deadly, [*epochs_of(TWIN, [MINE], [MINE]), to(TWIN, opened(3)), to(TWIN, rows(3, THEIRS))]
        ),
        pytest.param(2, build_deadly, [*epochs_of(TWIN, [MINE]), asked(THEIRS, view="twin")], id="a lookup"),
        pytest.param(4, build_none, [begun(TWIN, start_at=Epoch(3))], id="an assignment"),
        pytest.param(
            5, build_deadly, [begun(TWIN, chain=(Epoch(5),), start_at=Epoch(5)), to(TWIN, RESTORED)], id="a restore"
        ),
    ],
)
def test_a_process_that_dies_in_a_step_leaves_its_flow_and_the_first_epoch_that_the_share_is_not_through(
    epoch: int, build: BuildRegion, events: Sequence[WorkerEvent]
) -> None:
    *before, last = events if build is build_none else [begun(TWIN), *events]
    worker = machine(begun(FLOW), *before, *epochs_of(FLOW, [MINE]), build=build)
    assert marked(worker.mark.memory) is None
    with pytest.raises(Died):
        worker.step(last)
    assert marked(worker.mark.memory) == (TWIN, epoch)


def test_a_step_that_raises_an_error_leaves_no_mark() -> None:
    worker = failing()
    worker.step(BREAKS)
    assert marked(worker.mark.memory) is None


def test_a_step_within_a_step_is_marked_and_then_the_outer_one_again() -> None:
    mark = StepMark()
    before = mark.begin(FLOW, Epoch(7))
    outer = mark.begin(TWIN, Epoch(2))
    assert marked(mark.memory) == (TWIN, 2)
    mark.end(outer)
    assert marked(mark.memory) == (FLOW, 7)
    mark.end(before)
    assert marked(mark.memory) is None


# Memory ---------------------------------------------------------------------------------------------------------------


def read_keys(actions: Sequence[WorkerAction]) -> list[tuple[FlowId, worker_events.ReadKeys]]:
    wants = [action for action in actions if isinstance(action, ShareWants)]
    return [(want.flow, want.action) for want in wants if isinstance(want.action, worker_events.ReadKeys)]


def fill(worker: WorkerMachine, key: str, flow: FlowId) -> None:
    """Have a lookup fill this key, of one row."""
    ((of, wish),) = read_keys(worker.step(asked(key, view=VIEWS[flow])))
    assert of == flow
    answer = worker_events.KeysRead(
        generation=wish.generation,
        region=wish.region,
        number=wish.upquery.number,
        rows=((0, batch(1, key)),),
        through=Epoch(1),
    )
    assert answered(worker.step(to(flow, answer))) == {1: ({key: [1]}, 1)}


def weighed(memory_budget: int, *, full: bool = False) -> WorkerMachine:
    flows = [begun(flow, full=full, start_at=Epoch(1 - full), serve_from=Epoch(1 - full)) for flow in (FLOW, TWIN)]
    return machine(*flows, build=lambda *_: Weighed(), memory_budget=memory_budget)


def present(worker: WorkerMachine, flow: FlowId) -> int:
    return phase_of(worker, flow).regions.stats()[VIEWS[flow]]["present"]


def test_one_budget_counts_the_keys_of_all_flows_and_the_largest_region_evicts() -> None:
    worker = weighed(9 * ROW_BYTES)
    for vnode in range(3):
        fill(worker, KEYS[vnode][0], FLOW)
    fill(worker, KEYS[0][0], TWIN)
    assert not worker.must_evict
    fill(worker, KEYS[1][0], TWIN)
    assert worker.must_evict
    actions = worker.step(worker_events.TimeToEvict(keys_max=1))
    assert (present(worker, FLOW), present(worker, TWIN), worker.evicted) == (2, 2, 1)
    assert not worker.must_evict
    assert [(flow, kind(message)) for flow, message in told(actions)] == [(FLOW, "Counted")]


def test_each_flow_that_has_evicted_reports_what_is_left_in_the_end() -> None:
    worker = weighed(5 * ROW_BYTES)
    for vnode in range(2):
        fill(worker, KEYS[vnode][0], FLOW)
    for flow, vnode in ((TWIN, 0), (TWIN, 1)):
        fill(worker, KEYS[vnode][0], flow)
    counted: list[FlowId] = []
    while worker.must_evict:
        counted += [flow for flow, _ in told(worker.step(worker_events.TimeToEvict(keys_max=1)))]
    assert (present(worker, FLOW), present(worker, TWIN)) == (1, 1)
    assert sorted(counted) == [FLOW, TWIN]


def test_a_flow_that_is_dropped_leaves_its_memory_to_the_others() -> None:
    worker = weighed(9 * ROW_BYTES)
    for vnode in range(3):
        fill(worker, KEYS[vnode][0], FLOW)
    for vnode in range(2):
        fill(worker, KEYS[vnode][0], TWIN)
    worker.step(messages.DropFlow(flow=FLOW))
    while worker.must_evict:
        worker.step(worker_events.TimeToEvict(keys_max=1))
    fill(worker, KEYS[2][0], TWIN)
    assert present(worker, TWIN) == 3


def test_a_view_of_another_flow_fails_if_it_is_the_largest() -> None:
    worker = weighed(3 * ROW_BYTES, full=True)
    for event in epochs_of(FLOW, [KEYS[0][0], KEYS[1][0]]):
        worker.step(event)
    actions = [action for event in epochs_of(TWIN, [MINE], [MINE]) for action in worker.step(event)]
    ((flow, message),) = [said for said in told(actions) if isinstance(said[1], messages.ViewFailed)]
    assert (flow, message.view, message.failure.kind) == (FLOW, "seen", "BudgetExceeded")
    assert refused(worker.step(asked(MINE))) == {1: BudgetExceeded}
    assert answered(worker.step(asked(MINE, view="twin"))) == {1: ({MINE: [1, 2]}, 2)}


def full_beside_a_build(rules: Rules = ALL_RULES) -> list[tuple[FlowId, str]]:
    """The flows and views that fail when a view that is built, and is the smaller one, takes more than there is."""
    serves = begun(FLOW)
    builds = begun(TWIN, serve_from=Epoch(9), builds=True)
    worker = machine(serves, builds, build=lambda *_: Weighed(), rules=rules, memory_budget=3 * ROW_BYTES)
    actions = [worker.step(event) for event in epochs_of(FLOW, [KEYS[0][0], KEYS[1][0]])]
    actions += [worker.step(event) for event in epochs_of(TWIN, [MINE], [MINE])]
    said = [said for of_one in actions for said in told(of_one)]
    return [(flow, message.view) for flow, message in said if isinstance(message, messages.ViewFailed)]


def test_flows_build_fails_first_a_view_that_is_built_makes_no_other_fail() -> None:
    assert full_beside_a_build() == [(TWIN, "twin")]


def test_flows_build_fails_first_without_the_rule_the_largest_view_fails() -> None:
    assert full_beside_a_build(Rules(flows_build_fails_first=False)) == [(FLOW, "seen")]
