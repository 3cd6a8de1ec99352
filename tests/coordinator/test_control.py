"""Control records, rules control.*: what the coordinator wants the next driver to know, and when."""

import pytest
from coordinator_kit import (
    BOTH,
    PLAN,
    abort,
    anew,
    came,
    finished,
    gone,
    left,
    met,
    only,
    outcomes,
    planned,
    published,
    settled,
    unwrapped,
    vnode_map,
    wanted,
)
from standbys_kit import Group

from upriver.coordinator.control import WORKERS_DEFAULT, placement_at_start
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import DeclarationError, NotWritten, ProtocolError
from upriver.ids import WorkerId
from upriver.protocol.coordinator_events import (
    ControlUnwritten,
    ControlWritten,
    CoordinatorAction,
    CoordinatorEvent,
    PlansTaken,
    PlansWanted,
    RescaleBegun,
    StartWorkers,
    WriteControl,
)
from upriver.protocol.messages import MigrationOrder
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.vnodes import Placement, VnodeMap

ZERO, ONE, TWO = map(WorkerId, range(3))
AT_2 = Placement((ZERO, ONE), vnode_map())
AT_3 = Placement((ZERO, ONE, TWO), vnode_map((0, 1, 0, 2), version=1))
BEGUN = RescaleBegun(ticket=1, before=2, after=3, vnodes=1)
FULL = NotWritten("the disk is full")


class Recorder:
    """A coordinator of workers 0 and 1 that are there, and the records that it has asked for."""

    def __init__(self, *events: CoordinatorEvent, rules: Rules = ALL_RULES) -> None:
        self.machine = CoordinatorMachine(vnode_map(), (PLAN,), rules)
        self.records: list[WriteControl] = []
        self.happens(*BOTH, *events)

    def happens(self, *events: CoordinatorEvent) -> list[CoordinatorAction]:
        """What comes of these, besides control records."""
        actions = [action for event in events for action in unwrapped(self.machine.step(event))]
        self.records += only(WriteControl, actions)
        return [action for action in actions if not isinstance(action, WriteControl)]

    def write(self) -> list[CoordinatorAction]:
        """The lake takes the newest record."""
        return self.happens(ControlWritten(number=self.records[-1].number))

    def refuse(self) -> list[CoordinatorAction]:
        """The lake does not take the newest record."""
        return self.happens(ControlUnwritten(number=self.records[-1].number, error=FULL))

    @property
    def targets(self) -> list[Placement | None]:
        return [record.target for record in self.records]


def test_the_layout_is_recorded_when_all_workers_are_there_and_when_it_has_changed() -> None:
    recorder = Recorder()
    assert recorder.records == [WriteControl(number=1, placement=AT_2)]
    recorder.happens(published(1), gone(2), came(1, 3))
    assert len(recorder.records) == 1, "it has not changed"


def test_nothing_is_recorded_before_all_workers_are_there() -> None:
    machine = CoordinatorMachine(vnode_map(), (PLAN,))
    assert only(WriteControl, [*machine.step(BOTH[0]), *machine.step(published(1))]) == []


def test_other_views_are_recorded() -> None:
    recorder = Recorder()
    other = planned("other")
    actions = recorder.happens(PlansWanted(ticket=7, plans=(PLAN, other), epochs=()))
    assert PlansTaken(ticket=7) in actions
    assert [record.placement for record in recorder.records] == [AT_2, AT_2]


def test_a_rescale_begins_when_its_target_is_recorded() -> None:
    recorder = Recorder()
    assert recorder.happens(wanted(1, workers=3)) == []
    assert recorder.records[-1] == WriteControl(number=2, placement=AT_2, target=AT_3, begins=BEGUN)
    assert recorder.happens(ControlWritten(number=1)) == [], "an earlier record says nothing of it"
    assert recorder.write() == [BEGUN, StartWorkers(workers=(TWO,))]


def test_without_the_rule_a_rescale_begins_at_once() -> None:
    recorder = Recorder(rules=Rules(control_record_before_begin=False))
    assert recorder.happens(wanted(1, workers=3)) == [BEGUN, StartWorkers(workers=(TWO,))]


def test_a_rescale_that_cannot_be_recorded_is_refused_and_the_next_one_goes_on() -> None:
    recorder = Recorder(wanted(1, workers=3), wanted(2, workers=1))
    assert recorder.refuse() == [], "the next record would say it"
    assert recorder.records[-2].ends is not None
    assert recorder.records[-1].begins == RescaleBegun(ticket=2, before=2, after=1, vnodes=2)
    assert outcomes(recorder.write()) == [(1, "refused", 0)]


def test_clients_hear_of_an_end_when_it_is_recorded() -> None:
    recorder = Recorder(wanted(1, workers=3))
    recorder.write()
    recorder.happens(came(2, 3), met(1), met(2), met(3), settled(1), settled(2))
    assert outcomes(recorder.happens(settled(3))) == []
    record = recorder.records[-1]
    assert (record.placement, record.target, record.ends) == (AT_3, None, record.ends)
    assert outcomes(recorder.write()) == [(1, "finished", 1)]
    assert recorder.write() == [], "once"


def test_without_the_rule_clients_hear_of_an_end_at_once() -> None:
    recorder = Recorder(wanted(1, workers=3), rules=Rules(control_record_before_end=False))
    recorder.write()
    assert outcomes(recorder.happens(abort(1))) == [(1, "aborted", 0)]


def test_clients_hear_of_an_end_although_the_lake_does_not_take_the_record() -> None:
    recorder = Recorder(wanted(1, workers=3))
    recorder.write()
    recorder.happens(abort(1))
    assert outcomes(recorder.refuse()) == [(1, "aborted", 0)]


def test_a_rescale_is_aborted_while_its_record_is_on_its_way() -> None:
    recorder = Recorder(wanted(1, workers=3), abort(1))
    assert (recorder.records[-1].placement, recorder.records[-1].target) == (AT_2, None)
    assert recorder.happens(ControlWritten(number=2)) == [], "it does not begin any more"
    assert outcomes(recorder.write()) == [(1, "aborted", 0)]


def test_an_abort_while_keys_move_is_recorded_at_once() -> None:
    recorder = Recorder(wanted(1, workers=3))
    recorder.write()
    assert only(MigrationOrder, recorder.happens(came(2, 3), met(1), met(2), met(3))) != []
    recorder.happens(abort(1))
    assert recorder.records[-1].target == AT_2


def test_an_abort_while_learners_learn_is_recorded_at_once() -> None:
    group = Group(standbys=0)
    group.happens(wanted(1, workers=2, strategy=Strategy.LEARNER))
    assert group.machine.cluster.workers == (0, 1)
    recorder = Recorder(wanted(1, workers=3, strategy=Strategy.LEARNER))
    recorder.write()
    recorder.happens(came(2, 3), met(1), met(2), met(3), abort(1))
    assert recorder.records[-1].target == AT_2


def test_a_rescale_that_fails_leads_back_to_the_map_before() -> None:
    recorder = Recorder(wanted(1, workers=3))
    recorder.write()
    recorder.happens(came(2, 3), met(1), met(2), met(3), gone(3))
    record = recorder.records[-1]
    assert (record.placement.workers, record.placement.vnode_map.owners, record.target) == (
        AT_2.workers,
        AT_2.vnode_map.owners,
        None,
    )
    assert outcomes(recorder.write()) == [(1, "failed", 0)]


def test_moves_alone_have_a_target_too() -> None:
    recorder = Recorder(wanted(1, moves={0: 1, 2: 1}))
    target = recorder.records[-1].target
    assert target == Placement((ZERO, ONE), vnode_map((1, 1, 1, 1), version=1)), "worker 0 stays, and owns nothing"


def test_a_place_whose_vnodes_standbys_have_taken_over_is_to_be_filled_again() -> None:
    group = Group()
    group.epoch()
    group.lose(2)
    group.lease_over(3)
    record = group.machine.records[-1]
    assert record.placement.workers == (0, 1)
    assert record.target is not None
    assert record.target.workers == (0, 1, 2)
    assert set(record.target.vnode_map.owners) == {0, 1, 2}


# What a driver begins with


def test_on_a_new_lake_there_are_as_many_workers_as_wanted_or_two() -> None:
    assert placement_at_start(None, None, 4) == Placement.initial(4, WORKERS_DEFAULT)
    assert placement_at_start(None, 3, 4) == Placement.initial(4, 3)
    assert placement_at_start(None, None, 1).workers == (0,)
    with pytest.raises(DeclarationError):
        placement_at_start(None, 5, 4)


@pytest.mark.parametrize("workers", [None, 3])
def test_the_recorded_layout_holds_if_no_other_number_is_wanted(workers: int | None) -> None:
    recorded = Placement((ZERO, ONE, WorkerId(3)), vnode_map((3, 1, 1, 1), version=7))
    assert placement_at_start(recorded, workers, 4) is recorded, "also where one owns nothing"


def test_for_another_number_as_few_vnodes_move_as_can() -> None:
    recorded = Placement((ZERO, ONE, WorkerId(3)), vnode_map((3, 1, 0, 0), version=7))
    fewer, more = placement_at_start(recorded, 2, 4), placement_at_start(recorded, 4, 4)
    assert fewer == Placement((ZERO, ONE), vnode_map((1, 1, 0, 0), version=8))
    assert more == Placement(tuple(map(WorkerId, range(4))), vnode_map((3, 1, 0, 2), version=8))


def test_a_layout_is_the_same_after_json_and_one_that_lacks_an_owner_is_refused() -> None:
    assert Placement.from_json(AT_3.to_json()) == AT_3
    with pytest.raises(ProtocolError, match="own vnodes"):
        Placement.from_json({"workers": [0], "map": VnodeMap.initial(4, AT_2.workers).to_json()})


def test_a_driver_begins_with_workers_that_own_nothing() -> None:
    machine = CoordinatorMachine(vnode_map((1, 1, 1, 1)), (PLAN,), workers=(ZERO, ONE))
    actions = [action for event in (*BOTH, anew(1, 0), published(1)) for action in machine.step(event)]
    assert only(WriteControl, actions)[0].placement.workers == (ZERO, ONE)
    assert machine.cluster.workers == (ZERO, ONE)
    assert [*machine.step(finished(1, 1)), *machine.step(finished(2, 1))] != []
    assert machine.cluster.ended == 1


def test_leavers_are_not_in_the_layout_that_is_recorded_at_the_end() -> None:
    recorder = Recorder(wanted(1, workers=1))
    recorder.write()
    recorder.happens(met(1), met(2), settled(1), settled(2), left(1, 1))
    assert recorder.records[-1].placement == Placement((ZERO,), vnode_map((0, 0, 0, 0), version=1))
