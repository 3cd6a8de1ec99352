"""Epochs of views whose rows are exchanged: stages at the ledger, a worker, the coordinator; rules
coordinator.rows_have_arrived, coordinator.anew_when_torn, worker.settle_what_comes_late."""

from dataclasses import replace

import pytest
from coordinator_kit import (
    BOTH,
    CHANNEL,
    PLAN,
    anew,
    came,
    coordinator,
    ended,
    gone,
    listeners,
    met,
    only,
    published,
    said,
    tell,
    wanted,
)
from machines_kit import (
    ALL_MINE,
    FLOW,
    HALVES,
    KEYS,
    announce,
    answered,
    asked,
    meet,
    move,
    of_region,
    opened,
    over,
    read,
    reports,
    rows,
    rows_from,
    sent,
    take,
)
from stages_kit import FIRST, OTHER_END, STAGED, Gathering, staged, staged_worker

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.epochs import Ledger
from upriver.coordinator.meetings import MOVES_MAX
from upriver.coordinator.rescale.stages import MEETINGS_AGAIN_MAX
from upriver.errors import ProtocolError, UnknownView
from upriver.ids import Epoch, WorkerId
from upriver.migration.messages import Acquire, RowsSent
from upriver.protocol.coordinator_events import (
    CoordinatorEvent,
    EpochPublished,
    LinksBroken,
    LinksOverdue,
    MeetingDue,
    MeetingPostponed,
    MoveWorker,
    RescaleEnded,
    RescaleOutcome,
    WorkerSaid,
)
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    EpochFinished,
    EpochOver,
    Meet,
    OpenEpoch,
    PeersLost,
    RowsApplied,
    RowsSettled,
    SnapshotTaken,
    StageDone,
)
from upriver.protocol.peers import ForRegion
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import PeerSaid, Refuse, ShareAction, ShareEvent, TimeToSettle
from upriver.vnodes import VnodeMap
from upriver.worker.share import FlowShare

ZERO, ONE, TWO = WorkerId(0), WorkerId(1), WorkerId(2)
EVERYBODY = (ZERO, ONE)
A, Z = KEYS[0][0], KEYS[7][1]
"""A row of A, which is worker 0's, is passed on as one of Z, at the other end."""


def begin(stage: int, epoch: int = 1) -> BeginStage:
    return BeginStage(epoch=Epoch(epoch), stage=stage)


# The ledger -------------------------------------------------------------------------------------------------------


class Book:
    """A ledger of one epoch, of one view of two regions, that two workers go through."""

    def __init__(self, rows: int, *, mixed: bool = False, c9: bool = True) -> None:
        self.ledger = Ledger((STAGED,), replace(ALL_RULES, coordinator_rows_have_arrived=c9))
        self.ledger.epochs.add(EpochPublished(epoch=Epoch(1), rows={CHANNEL: rows}))
        if mixed:
            self.ledger.open_mixed(Epoch(1))

    def read(self, worker: WorkerId, rows: int) -> tuple[Epoch, int] | None:
        finished = EpochFinished(epoch=Epoch(1), read={}, applied={"seen/0": rows, "seen": 0}, stats={})
        self.ledger.finished(worker, finished)
        return self.due

    def settle(self, worker: WorkerId, settled: dict[str, int], sent: dict[str, int]) -> tuple[Epoch, int] | None:
        self.ledger.settled(worker, RowsSettled(epoch=Epoch(1), settled=settled, sent=sent))
        return self.due

    def apply(self, worker: WorkerId, rows: int) -> tuple[Epoch, int] | None:
        self.ledger.applied(worker, RowsApplied(epoch=Epoch(1), applied={"seen": rows}))
        return self.due

    def done(self, worker: WorkerId, stage: int) -> tuple[Epoch, int] | None:
        self.ledger.stage_done(worker, StageDone(epoch=Epoch(1), stage=stage, stats={}))
        return self.due

    @property
    def due(self) -> tuple[Epoch, int] | None:
        return self.ledger.stage_due(EVERYBODY)

    @property
    def ends(self) -> list[Epoch]:
        return self.ledger.end(EVERYBODY)


def test_the_first_stage_begins_when_all_rows_were_read() -> None:
    book = Book(3)
    assert book.read(ZERO, 2) is None
    assert book.read(ONE, 1) == (1, 0)
    assert (book.due, book.ends) == (None, [])


def test_coordinator_rows_have_arrived_a_stage_begins_when_all_rows_of_the_one_before_have_arrived() -> None:
    book = Book(3)
    book.read(ZERO, 2)
    book.read(ONE, 1)
    assert book.settle(ZERO, {"seen/0": 0}, {"seen": 2}) is None
    assert book.done(ZERO, 0) is None
    assert book.done(ONE, 0) is None
    assert book.apply(ONE, 2) == (1, 1)


def at_last_stage(mixed: bool = False) -> Book:
    """One row has come to the second region, at worker 1, and its stage has begun."""
    book = Book(1, mixed=mixed)
    book.read(ZERO, 1)
    book.read(ONE, 0)
    book.settle(ZERO, {}, {"seen": 1})
    book.apply(ONE, 1)
    book.done(ZERO, 0)
    assert book.done(ONE, 0) == (1, 1)
    return book


def test_an_epoch_ends_when_all_that_was_sent_is_taken_in() -> None:
    book = at_last_stage()
    book.done(ZERO, 1)
    book.done(ONE, 1)
    assert book.ends == []
    book.settle(ONE, {"seen": 1}, {})
    assert (book.due, book.ends, book.ledger.ended) == (None, [1], 1)


def test_rows_that_no_worker_has_sent_are_a_fault_unless_keys_move_and_some_are_not_taken_in() -> None:
    for mixed in (False, True):
        book = at_last_stage(mixed)
        book.apply(ONE, 2)
        book.done(ZERO, 1)
        book.done(ONE, 1)
        if mixed:
            assert book.ends == []
            book.settle(ONE, {"seen": 1}, {})
        assert book.ends == [1]
        assert "2 rows have come, and 1 went in" in book.ledger.miscounted["seen"]


def test_views_fail_miscounted_more_rows_taken_in_than_sent() -> None:
    book = at_last_stage()
    book.settle(ONE, {"seen": 2}, {})
    book.done(ZERO, 1)
    book.done(ONE, 1)
    assert book.ends == [1]
    assert "2 rows are settled, and 1 were sent" in book.ledger.miscounted["seen"]


def test_coordinator_late_reports_change_nothing_stages_done_earlier_and_told_again() -> None:
    book = at_last_stage()
    book.settle(ONE, {"seen": 1}, {})
    book.done(ZERO, 1)
    for stage in (1, 0):
        book.done(ONE, stage)
    assert book.ends == [1]
    book.settle(ONE, {"seen": 1}, {})
    book.done(ONE, 0)
    assert not book.ledger.miscounted


def test_coordinator_late_reports_change_nothing_a_stage_cannot_be_done_before_it_begins() -> None:
    book = Book(1)
    book.read(ZERO, 1)
    book.done(ONE, 1)
    assert book.read(ONE, 0) == (1, 0)
    assert book.done(ZERO, 0) is None


def test_worker_put_off_rows_count_a_stage_waits_for_rows_that_a_region_has_sent_to_itself() -> None:
    book = at_last_stage(mixed=True)
    book.settle(ZERO, {}, {"seen": 3})
    book.apply(ZERO, 2)
    book.settle(ONE, {"seen": 1}, {})
    book.done(ZERO, 1)
    book.done(ONE, 1)
    assert book.ends == [], "two rows are on their way to worker 1 with their keys"
    book.settle(ONE, {"seen": 3}, {})
    assert book.ends == [1]


def test_when_all_begin_anew_every_epoch_is_gone_through_again() -> None:
    book = at_last_stage()
    book.done(ZERO, 1)
    book.done(ONE, 1)
    book.settle(ONE, {"seen": 1}, {})
    assert book.ends == [1]
    book.ledger.start_anew()
    assert (book.ledger.through, book.ledger.ended) == (0, 1)
    book.read(ZERO, 0)
    assert book.read(ONE, 1) == (1, 0)


# A worker ---------------------------------------------------------------------------------------------------------

READ: list[ShareEvent] = [opened(1, mixed=True), rows(1, A), read(1, 1)]
SETTLE = TimeToSettle(rows_max=8)
STAGES: list[ShareEvent] = [begin(0), SETTLE, begin(1), SETTLE]


def through(machine: FlowShare, stage: int) -> list[ShareAction]:
    """Have a worker do what there is to do in a stage."""
    return [*machine.step(begin(stage)), *machine.step(SETTLE)]


def test_rows_are_passed_on_when_the_stage_begins_and_not_before() -> None:
    machine = staged_worker(staged(HALVES), meet(0, 1), *READ)
    actions = through(machine, 0)
    ((to, message),) = sent(actions)
    assert (to, message.rows.port, message.rows.batch.rows.column("k").to_pylist()) == (1, 0, [Z])
    assert reports(actions)[:1] == [RowsSettled(epoch=Epoch(1), settled={"seen/0": 0}, sent={"seen": 1})]
    assert reports(actions, StageDone)[0].stage == 0


def test_rows_that_stay_are_gathered_until_their_stage_begins() -> None:
    machine = staged_worker(staged(ALL_MINE), *READ)
    actions = through(machine, 0)
    assert reports(actions, RowsApplied) == [RowsApplied(epoch=Epoch(1), applied={"seen/0": 1, "seen": 1})]
    assert answered(machine.step(asked(Z))) == {1: ({}, 0)}
    (settled,) = reports(through(machine, 1), RowsSettled)
    assert (settled.settled["seen"], settled.sent["seen"]) == (1, 1)
    machine.step(over(1))
    assert answered(machine.step(asked(Z, at_least=1))) == {1: ({Z: [1]}, 1)}


B, Y = KEYS[1][0], KEYS[6][1]
TWO_READ: list[ShareEvent] = [opened(1, mixed=True), rows(1, A), rows(1, B), read(1, 2)]


def test_worker_whole_stages_a_stage_is_done_when_all_that_came_out_is_sent() -> None:
    machine = staged_worker(staged(HALVES), meet(0, 1), *TWO_READ, begin(0))
    assert machine.unsettled == 2
    one = TimeToSettle(rows_max=1)
    first = machine.step(one)
    assert reports(first) == [RowsSettled(epoch=Epoch(1), settled={"seen/0": 0}, sent={"seen": 1})]
    assert machine.unsettled == 1
    last = machine.step(one)
    assert [type(report) for report in reports(last)] == [RowsSettled, StageDone]
    assert [message.rows.batch.rows.column("k").to_pylist() for _, message in sent([*first, *last])] == [[Z], [Y]]
    assert machine.step(one) == []


def test_worker_whole_stages_a_stage_is_done_when_all_that_was_gathered_is_taken_in() -> None:
    machine = staged_worker(staged(ALL_MINE), *TWO_READ, begin(0), SETTLE, begin(1))
    (first,) = reports(machine.step(TimeToSettle(rows_max=1)))
    assert (first.settled["seen"], first.sent["seen"]) == (1, 2)
    assert reports(machine.step(TimeToSettle(rows_max=1)), StageDone) != []


def test_worker_whole_stages_rows_that_move_before_they_are_taken_in_hold_no_stage_up() -> None:
    events: list[ShareEvent] = [staged(HALVES, 1), meet(0, 1), *_read_by_one(), begin(1)]
    machine = staged_worker(*events, announce(HALVES, (0,) * 8, 0, 1))
    assert machine.unsettled == 1
    assert reports(machine.step(move()), StageDone) != []
    assert machine.unsettled == 0


@pytest.mark.parametrize("wrong", [begin(1), begin(0, epoch=2)])
def test_a_stage_out_of_turn_is_a_fault(wrong: BeginStage) -> None:
    with pytest.raises(ProtocolError, match="begins, and stage -1 of 1 is done"):
        staged_worker(staged(ALL_MINE), *READ).step(wrong)


def test_only_a_views_last_region_can_be_looked_up() -> None:
    (refusal,) = staged_worker(staged(ALL_MINE)).step(asked(A, view="seen/0"))
    assert isinstance(refusal, Refuse)
    assert isinstance(refusal.error, UnknownView)


def test_a_snapshot_is_taken_when_the_epoch_is_over_and_not_when_it_is_read() -> None:
    machine = staged_worker(staged(ALL_MINE), take(1, at=1), *READ, *STAGES)
    assert reports(machine.step(over(1)), SnapshotTaken) != []


def gathered_elsewhere() -> Acquire:
    """The state of Z, with a row that was gathered for epoch 1 and is not taken in."""
    giver = staged_worker(staged(HALVES, 1), meet(0, 1), *_read_by_one())
    announced = announce(HALVES, (0,) * 8, 0, 1)
    giver.step(announced)
    acquires = [m for _, m in sent(giver.step(move())) if isinstance(m, Acquire)]
    return acquires[0]


def _read_by_one() -> list[ShareEvent]:
    portion = sent(through(staged_worker(staged(HALVES), meet(0, 1), *READ), 0))[0][1]
    assert isinstance(portion, RowsSent)
    return [opened(1, mixed=True), read(1, 0), begin(0), of_region(0, portion)]


def test_worker_settle_what_comes_late_rows_that_come_late_with_their_keys_state_are_taken_in() -> None:
    machine = staged_worker(staged(HALVES), meet(0, 1), announce(HALVES, ALL_MINE, 0, 1), *READ, *STAGES)
    (late,) = reports(machine.step(of_region(1, gathered_elsewhere())), RowsSettled)
    assert late.settled["seen"] == 1


class PutsOff(Gathering):
    """Fails on the rows of the lake, and tries them again at its stage."""

    @property
    def gathered(self) -> int:
        return 0

    @property
    def waiting(self) -> int:
        return len(self.to_settle)

    @property
    def unsettled(self) -> int:
        return self.waiting

    def settle(self, rows_max: int) -> int:
        super().settle(rows_max)
        return 0


def that_puts_off(*events: ShareEvent, rules: Rules = ALL_RULES) -> FlowShare:
    machine = FlowShare(FLOW, lambda _, region: PutsOff() if region.name == "seen/0" else Gathering(), rules)
    for event in events:
        machine.step(event)
    return machine


def test_worker_put_off_rows_count_as_sent_by_the_region_to_itself() -> None:
    machine = that_puts_off(staged(ALL_MINE), opened(1, mixed=True), rows(1, A))
    sent_to_itself, end = reports(machine.step(read(1, 1)))
    assert sent_to_itself == RowsSettled(epoch=Epoch(1), settled={}, sent={"seen/0": 1})
    assert end.applied == {"seen/0": 2, "seen": 0}
    (settled,) = reports(through(machine, 0), RowsSettled)
    assert settled.settled == {"seen/0": 1}


def test_worker_put_off_rows_count_switched_off_a_stage_ends_without_them() -> None:
    rules = replace(ALL_RULES, worker_put_off_rows_count=False)
    machine = that_puts_off(staged(ALL_MINE), opened(1, mixed=True), rows(1, A), rules=rules)
    (end,) = reports(machine.step(read(1, 1)))
    assert end.applied == {"seen/0": 1, "seen": 0}
    book = Book(1, mixed=True)
    book.read(ZERO, 0)
    assert book.read(ONE, end.applied["seen/0"]) == (1, 0)
    book.done(ZERO, 0)
    book.done(ONE, 0)  # whose key has left with the row meanwhile
    book.done(ZERO, 1)
    book.done(ONE, 1)
    assert book.ends == [1], "the row that waits is tried by no stage"


def test_worker_put_off_rows_count_those_that_a_peer_sends_of_an_epoch_that_has_not_begun_here() -> None:
    done: list[ShareEvent] = [opened(1, mixed=True), read(1, 0), *STAGES]
    machine = that_puts_off(staged(HALVES), meet(0, 1), *done)
    ahead = rows_from(1, 2, A).envelope
    assert isinstance(ahead.content, ForRegion)
    of_lake = replace(ahead, content=replace(ahead.content, region="seen/0"))
    assert reports(machine.step(PeerSaid(sender=ONE, envelope=of_lake)), RowsSettled) == []
    machine.step(over(1))
    machine.step(opened(2, mixed=True))
    sent_to_itself, end = reports(machine.step(read(2, 0)))
    assert (sent_to_itself.sent, end.applied["seen/0"]) == ({"seen/0": 1}, 2)


# The coordinator --------------------------------------------------------------------------------------------------

MET: list[CoordinatorEvent] = [*BOTH, met(1), met(2)]


def staged_coordinator(*events: CoordinatorEvent, rules: Rules = ALL_RULES) -> CoordinatorMachine:
    return coordinator(*events, plans=(STAGED,), rules=rules)


def test_no_epoch_is_opened_before_all_have_met() -> None:
    machine = staged_coordinator(came(0, 1))
    assert listeners(Meet, machine.step(came(1, 2))) == [1, 2]
    assert only(OpenEpoch, machine.step(published(1))) == []
    machine.step(met(1))
    assert machine.step(met(2)) == [tell(i, OpenEpoch(epoch=Epoch(1), mixed=True, after=Epoch(0))) for i in (1, 2)]


def test_epochs_go_through_their_stages_one_at_a_time() -> None:
    machine = staged_coordinator(*MET, published(1), published(2))
    machine.step(finish(1))
    assert machine.step(finish(2)) == [tell(i, begin(0)) for i in (1, 2)]
    machine.step(done(1, 0))
    assert machine.step(done(2, 0)) == [tell(i, begin(1)) for i in (1, 2)]
    machine.step(done(1, 1))
    actions = machine.step(done(2, 1))
    assert actions[:1] == ended(1)
    assert only(EpochOver, actions) == [over(1)] * 2
    assert only(OpenEpoch, actions) == [OpenEpoch(epoch=Epoch(2), mixed=True, after=Epoch(1))] * 2


def finish(incarnation: int) -> WorkerSaid:
    return said(incarnation, EpochFinished(epoch=Epoch(1), read={CHANNEL: 0}, applied={}, stats={}))


def done(incarnation: int, stage: int) -> WorkerSaid:
    return said(incarnation, StageDone(epoch=Epoch(1), stage=stage, stats={}))


def test_coordinator_anew_when_torn_all_begin_anew_when_one_was_lost_as_soon_as_another_has_come() -> None:
    machine = staged_coordinator(*MET, published(1), finish(1))
    assert machine.step(gone(2)) == []
    actions = machine.step(came(1, 3))
    assert [(a.worker, a.start_at, a.generation) for a in only(Assign, actions)] == [(0, 0, 1), (1, 0, 1)]
    assert listeners(Meet, actions) == [1, 3]
    machine.step(anew(1))
    machine.step(met(1, meeting=2))
    assert listeners(OpenEpoch, machine.step(met(3, meeting=2))) == [1, 3]


def test_coordinator_anew_when_torn_all_begin_anew_when_a_channel_was_lost() -> None:
    machine = staged_coordinator(*MET, published(1))
    actions = machine.step(said(1, PeersLost(meeting=1, why="cut")))
    assert listeners(Assign, actions) == [1, 2]
    assert listeners(Meet, actions) == [1, 2]


def three_workers() -> CoordinatorMachine:
    """The first epoch is open."""
    machine = CoordinatorMachine(VnodeMap.initial(6, [ZERO, ONE, TWO]), (STAGED,))
    for event in (came(0, 1), came(1, 2), came(2, 3), met(1), met(2), met(3), published(1)):
        machine.step(event)
    return machine


CUT = said(1, PeersLost(meeting=1, why="cut", peer=ONE))
"""Worker 0 has lost its channel to worker 1, which is there."""


def test_coordinator_anew_when_met_no_worker_begins_anew_while_a_link_is_broken() -> None:
    machine = staged_coordinator(*MET, published(1))
    actions = machine.step(CUT)
    assert (listeners(Assign, actions), listeners(Meet, actions)) == ([], [1, 2])
    assert machine.broken_links == ((ZERO, ONE),)
    assert machine.step(said(2, PeersLost(meeting=2, why="no answer", unreached=ZERO))) == [MeetingPostponed(meeting=2)]
    assert machine.step(published(2)) == []
    assert listeners(Meet, machine.step(MeetingDue(meeting=2))) == [1, 2]
    assert machine.step(met(1, meeting=3)) == []
    assert machine.broken_links == ((ZERO, ONE),)
    assert listeners(Assign, machine.step(met(2, meeting=3))) == [1, 2]
    assert not machine.broken_links


def test_coordinator_anew_when_met_switched_off_all_begin_anew_across_a_broken_link() -> None:
    machine = staged_coordinator(*MET, published(1), rules=replace(ALL_RULES, coordinator_anew_when_met=False))
    assert listeners(Assign, machine.step(CUT)) == [1, 2]


def test_coordinator_anew_when_met_a_peer_that_has_died_is_no_broken_link() -> None:
    machine = staged_coordinator(*MET, published(1))
    machine.step(CUT)
    assert machine.step(gone(2)) == []
    assert machine.broken_links == ()
    assert listeners(Assign, machine.step(came(1, 3))) == [1, 3]


def test_coordinator_anew_when_met_a_loss_that_is_heard_when_the_next_process_is_there_breaks_no_link() -> None:
    machine = staged_coordinator(*MET, published(1), gone(2), came(1, 3))
    machine.step(CUT)
    assert machine.broken_links == ()


def test_coordinator_move_cut_off_an_end_of_a_link_that_stays_broken_moves_to_another_host() -> None:
    machine = staged_coordinator(*MET, published(1))
    assert only(LinksBroken, machine.step(CUT)) == [LinksBroken(time=1)]
    machine.step(said(2, PeersLost(meeting=1, why="cut", peer=ZERO)))  # the other end has noticed, too
    again, moves = machine.step(LinksOverdue(time=1))
    assert again == LinksBroken(time=1)
    assert isinstance(moves, MoveWorker)
    assert (moves.worker, moves.incarnation) == (ONE, 2)  # both ends have one broken link
    assert moves.error == "it does not reach worker 0, and moves to another host"
    machine.step(gone(2))
    assert machine.step(LinksOverdue(time=1)) == []
    assert listeners(Assign, machine.step(came(1, 3))) == [1, 3]


def test_coordinator_move_cut_off_the_end_with_more_broken_links_moves() -> None:
    machine = three_workers()
    machine.step(said(2, PeersLost(meeting=1, why="cut", peer=ZERO)))
    machine.step(said(3, PeersLost(meeting=1, why="cut", peer=ZERO)))  # behind the call to another meeting
    assert machine.broken_links == ((ZERO, ONE), (ZERO, TWO))
    (moves,) = only(MoveWorker, machine.step(LinksOverdue(time=1)))
    assert (moves.worker, moves.error) == (ZERO, "it does not reach workers 1, 2, and moves to another host")


def test_coordinator_move_cut_off_nothing_moves_once_all_have_met_or_while_a_worker_is_lost() -> None:
    machine = staged_coordinator(*MET, published(1), CUT, met(1, meeting=2), met(2, meeting=2))
    assert machine.step(LinksOverdue(time=1)) == []
    machine.step(met(1, meeting=3))
    machine.step(met(2, meeting=3))
    assert only(LinksBroken, machine.step(said(1, PeersLost(meeting=3, why="cut", peer=ONE)))) == [LinksBroken(time=2)]
    assert machine.step(LinksOverdue(time=1)) == []
    assert len(only(MoveWorker, machine.step(LinksOverdue(time=2)))) == 1
    machine = three_workers()
    machine.step(said(1, PeersLost(meeting=1, why="cut", peer=ONE)))
    machine.step(gone(3))
    assert machine.step(LinksOverdue(time=1)) == [LinksBroken(time=1)]


def test_coordinator_move_cut_off_a_place_whose_links_stay_broken_elsewhere_is_left_alone_in_the_end() -> None:
    machine = staged_coordinator(*MET, published(1), CUT)
    for incarnation in range(2, 2 + MOVES_MAX):
        (moves,) = only(MoveWorker, machine.step(LinksOverdue(time=incarnation - 1)))
        assert moves.incarnation == incarnation
        assert only(MoveWorker, machine.step(LinksOverdue(time=incarnation - 1))) == [moves]  # if no slot was free
        machine.step(gone(incarnation))
        (meet, *_) = only(Meet, machine.step(came(1, incarnation + 1)))
        machine.step(said(1, PeersLost(meeting=meet.meeting, why="no answer", unreached=ONE)))
    assert machine.broken_links == ((ZERO, ONE),)
    assert only(MoveWorker, machine.step(LinksOverdue(time=1 + MOVES_MAX))) == []


def test_coordinator_move_cut_off_where_no_rows_are_exchanged_nothing_moves_and_all_meet_again() -> None:
    machine = coordinator(*BOTH, wanted(1, 3), came(2, 3), plans=(PLAN,))
    for meeting in range(1, 2 + MEETINGS_AGAIN_MAX):
        actions = machine.step(said(1, PeersLost(meeting=meeting, why="cut", unreached=ONE)))
    (rescale,) = only(RescaleEnded, actions)
    assert (rescale.outcome, str(rescale.error)) == (RescaleOutcome.FAILED, "worker 0: cut; no key has moved")
    assert listeners(Assign, actions) == []
    assert machine.broken_links == ((ZERO, ONE),)
    assert only(MoveWorker, machine.step(LinksOverdue(time=1))) == []
    assert listeners(Meet, machine.step(MeetingDue(meeting=1 + MEETINGS_AGAIN_MAX))) == [1, 2]


def test_a_channel_that_is_lost_between_two_epochs_takes_no_row_with_it() -> None:
    machine = staged_coordinator(*MET, published(1), finish(1), finish(2))
    for stage in (0, 1):
        machine.step(done(1, stage))
        machine.step(done(2, stage))
    machine.step(CUT)
    machine.step(met(1, meeting=2))
    actions = machine.step(met(2, meeting=2))
    assert listeners(Assign, actions) == []
    assert listeners(OpenEpoch, machine.step(published(2))) == [1, 2]


def test_a_flow_without_exchanges_goes_on_while_a_link_is_broken() -> None:
    machine = coordinator(*MET, plans=(STAGED, PLAN))
    machine.step(published(1))
    machine.step(CUT)
    actions = machine.step(published(2))
    assert [(a.epoch, a.mixed) for a in only(OpenEpoch, actions)] == [(2, False)] * 2


def test_before_the_first_epoch_nothing_is_lost_with_a_channel() -> None:
    actions = staged_coordinator(*MET).step(said(1, PeersLost(meeting=1, why="cut")))
    assert (listeners(Assign, actions), listeners(Meet, actions)) == ([], [1, 2])


def test_depths_follow_the_edges() -> None:
    assert (STAGED.depths, STAGED.depth, STAGED.sends("seen/0")[0].to) == ({"seen/0": 0, "seen": 1}, 1, "seen")
    assert FIRST.lake_ports == ((0, CHANNEL),)
    assert OTHER_END[A] == Z
