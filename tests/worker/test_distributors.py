"""The worker machine's part in a rescale: meeting, giving, taking, holding still, leaving; rules
worker.bounded_loads_out and worker.own_generation_only."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    PLAN,
    Seen,
    abort,
    announce,
    answered,
    applied,
    asked,
    assign,
    batch,
    hashed,
    meet,
    move,
    of_region,
    opened,
    owners_with,
    planned,
    reports,
    rows,
    rows_from,
    said,
    sent,
    vnode_map,
    worker,
)

from upriver.errors import ProtocolError
from upriver.ids import FlowId, MapVersion, VnodeId, WorkerId
from upriver.migration.messages import Acquire, Bye, Done, Kept, Mark, RelayedMark, RowsSent
from upriver.protocol.messages import CloseInput, ContinueEpochs, Moved, PauseEpochs, PeerLeft, Settled, Still
from upriver.protocol.peers import ForRegion, Installed
from upriver.protocol.worker_events import PeerSaid, ShareAction, ShareEvent
from upriver.worker.distributors import LOADS_OUT_MAX

FIRST, SECOND = KEYS[0][:2]
STAYS = KEYS[1][0]
MOVES_0 = owners_with(ALL_MINE, v0=1)
BEFORE: list[ShareEvent] = [assign(), *applied([FIRST, SECOND, STAYS]), meet(0, 1)]
ONE_BY_ONE: list[ShareEvent] = [assign(), *applied([FIRST, SECOND, STAYS]), meet(0, 1, keys_max=1)]
"""The same, and the user has said that keys are to be moved one by one."""
MOVING: list[ShareEvent] = [*BEFORE, announce(ALL_MINE, MOVES_0, 0, 1)]
"""Worker 0 gives vnode 0 to worker 1; it has two keys there, and has given none."""
TAKING: list[ShareEvent] = [assign(me=1), meet(0, 1), announce(ALL_MINE, MOVES_0, 0, 1)]
"""The same, seen by worker 1."""
INSTALLED = said(1, Installed(region="seen"))
V1 = MapVersion(1)


def given(actions: Sequence[ShareAction]) -> list[list[str]]:
    """The keys of each load of state that was sent."""
    loads = [message for _, message in sent(actions) if isinstance(message, Acquire)]
    return [part.column("k").to_pylist() for load in loads for part in _state(load)]


def _state(load: Acquire) -> tuple[pa.RecordBatch, ...]:
    assert isinstance(load.state, tuple)
    return load.state


def load(*keys: str, generation: int = 0) -> PeerSaid:
    """A load of such keys, from worker 0."""
    giver, sorted_keys = Seen(), np.sort(hashed(keys))
    giver.apply(0, batch(1, *keys))
    return of_region(0, Acquire(version=V1, keys=sorted_keys, state=giver.collect(sorted_keys)), generation)


def test_the_worker_can_move_a_key_from_the_announcement_on() -> None:
    machine = worker(*BEFORE)
    assert (machine.can_move, machine.step(move())) == (False, [])
    machine.step(announce(ALL_MINE, MOVES_0, 0, 1))
    assert machine.can_move
    assert given(machine.step(move())) == [[FIRST]]


@pytest.mark.parametrize(("keys_max", "keys"), [(1, [FIRST]), (2, [FIRST, SECOND]), (9, [FIRST, SECOND])])
def test_so_many_keys_go_at_a_time_with_their_state(keys_max: int, keys: list[str]) -> None:
    machine = worker(*MOVING)
    assert given(machine.step(move(keys_max))) == [keys]
    left = answered(machine.step(asked(*({FIRST, SECOND, STAYS} - set(keys)))))
    assert left == {1: ({key: [1] for key in {FIRST, SECOND, STAYS} - set(keys)}, 1)}


def test_worker_bounded_loads_out_the_next_load_leaves_when_the_one_before_is_installed() -> None:
    assert LOADS_OUT_MAX == 1
    machine = worker(*MOVING, move())
    assert (machine.can_move, machine.step(move())) == (False, [])
    assert machine.step(INSTALLED) == []
    assert given(machine.step(move())) == [[SECOND]]


def test_worker_bounded_loads_out_two_views_share_the_bound_and_take_turns_in_order() -> None:
    views = ("seen", "twin")
    twins = assign(plans=(PLAN, planned(name="twin")), maps=dict.fromkeys(views, vnode_map(ALL_MINE)))
    orders = [announce(ALL_MINE, MOVES_0, 0, 1, view=view) for view in views]
    machine = worker(twins, *applied([FIRST]), meet(0, 1), *orders)
    assert (given(machine.step(move())), machine.can_move) == ([[FIRST]], False)
    machine.step(INSTALLED)
    assert (given(machine.step(move())), machine.can_move) == ([[FIRST]], False)


def test_a_load_is_installed_and_its_giver_is_told_so() -> None:
    machine = worker(*TAKING)
    assert sent(machine.step(load(FIRST, SECOND))) == [(0, Installed(region="seen"))]
    assert answered(machine.step(asked(FIRST, SECOND))) == {}, "it asks the old owner until that has said Done"


def test_a_slice_is_done_with_its_last_key_and_settled_when_the_taker_has_marked_it() -> None:
    machine = worker(*MOVING, move(), INSTALLED)
    done = Done(version=V1, vnode=VnodeId(0))
    assert sent(machine.step(move()))[-1] == (1, done)
    actions = machine.step(of_region(1, Mark(version=V1, vnode=VnodeId(0))))
    assert sent(actions) == [(1, RelayedMark(version=V1, vnode=VnodeId(0), origin=WorkerId(1)))]
    assert reports(actions, Settled) == [Settled(region="seen", version=V1, kept=())]


def test_the_taker_settles_when_its_own_mark_has_come_back() -> None:
    machine = worker(*TAKING, load(FIRST), of_region(0, Done(version=V1, vnode=VnodeId(0))))
    mark = RelayedMark(version=V1, vnode=VnodeId(0), origin=WorkerId(1))
    assert reports(machine.step(of_region(0, mark)), Settled) == [Settled(region="seen", version=V1, kept=())]
    assert answered(machine.step(asked(FIRST))) == {1: ({FIRST: [1]}, 0)}


def test_what_has_not_begun_to_move_is_kept_after_an_abort() -> None:
    machine = worker(*MOVING)
    actions = machine.step(abort())
    assert sent(actions) == [(1, Kept(version=V1, vnodes=(VnodeId(0),)))]
    assert reports(actions, Settled) == [Settled(region="seen", version=V1, kept=(VnodeId(0),))]
    assert not machine.can_move


def test_a_worker_that_holds_still_gives_nothing_until_it_may_go_on() -> None:
    machine = worker(*MOVING, move(), INSTALLED)
    assert reports(machine.step(PauseEpochs(pause=4))) == [Still(pause=4, given=1, taken=0)]
    assert (machine.can_move, machine.step(move())) == (False, [])
    assert machine.step(ContinueEpochs()) == []
    assert given(machine.step(move())) == [[SECOND]]


def test_a_worker_that_holds_still_tells_what_comes_meanwhile() -> None:
    machine = worker(*TAKING, load(FIRST))
    assert reports(machine.step(PauseEpochs(pause=4))) == [Still(pause=4, given=0, taken=1)]
    assert reports(machine.step(load(SECOND)), Still) == [Still(pause=4, given=0, taken=2)]
    machine.step(ContinueEpochs())
    assert reports(machine.step(load(KEYS[0][2])), Still) == []


def test_a_leaver_says_goodbye_to_the_workers_that_stay() -> None:
    machine = worker(assign(me=2), meet(0, 1, 2))
    actions = machine.step(CloseInput(flows=(FlowId(1),), peers=(WorkerId(0), WorkerId(1))))
    assert sent(actions) == [(0, Bye(version=MapVersion(0))), (1, Bye(version=MapVersion(0)))]
    assert reports(actions) == []


def test_a_worker_that_still_owns_vnodes_cannot_leave() -> None:
    with pytest.raises(ProtocolError, match="cannot leave"):
        worker(assign()).step(CloseInput(flows=(FlowId(1),), peers=(WorkerId(1),)))


def test_a_goodbye_is_told_to_the_coordinator() -> None:
    machine = worker(assign(), meet(0, 2))
    goodbye = of_region(2, Bye(version=MapVersion(0)))
    assert reports(machine.step(goodbye), PeerLeft) == [PeerLeft(region="seen", peer=WorkerId(2))]


def test_progress_is_told_when_a_slice_or_a_phase_has_changed_and_not_for_each_key() -> None:
    machine = worker(*BEFORE)
    (begun,) = reports(machine.step(announce(ALL_MINE, MOVES_0, 0, 1)))
    expected = Moved(
        region="seen", phase="Collecting", keys=0, bytes=0, keys_left=2, vnodes_left=0, gone=(), forwarded=0, bounced=0
    )
    assert begun == expected
    assert reports(machine.step(move())) == []
    machine.step(INSTALLED)
    (done,) = reports(machine.step(move()))
    assert isinstance(done, Moved)
    assert (done.phase, done.keys, done.keys_left, done.gone) == ("Settling", 2, 0, (VnodeId(0),))
    assert done.bytes > 0


def test_a_slice_that_has_gone_is_told_of_once() -> None:
    two_slices = owners_with(ALL_MINE, v0=1, v1=1)
    machine = worker(*ONE_BY_ONE, announce(ALL_MINE, two_slices, 0, 1))
    events: list[ShareEvent] = [move(), INSTALLED]
    told = [moved.gone for event in events * 3 for moved in reports(machine.step(event), Moved)]
    assert [gone for gone in told if gone] == [(VnodeId(0),), (VnodeId(1),)]


def test_slices_of_few_keys_are_given_together_unless_the_user_has_said_how_many_keys() -> None:
    order = announce(ALL_MINE, owners_with(ALL_MINE, v0=1, v1=1), 0, 1)
    assert given(worker(*BEFORE, order).step(move(9))) == [[FIRST, SECOND, STAYS]]
    assert given(worker(*ONE_BY_ONE, order).step(move(9))) == [[FIRST, SECOND]]


def test_the_region_whose_keys_are_next_is_told_for_the_pace_to_be_its_own() -> None:
    views = ("seen", "twin")
    twins = assign(plans=(PLAN, planned(name="twin")), maps=dict.fromkeys(views, vnode_map(ALL_MINE)))
    orders = [announce(ALL_MINE, MOVES_0, 0, 1, view=view) for view in views]
    machine = worker(twins, *applied([FIRST]), meet(0, 1), *orders)
    assert machine.next_to_move == "seen"
    machine.step(move())
    assert machine.next_to_move is None
    machine.step(INSTALLED)
    assert machine.next_to_move == "twin"


def test_progress_estimates_the_keys_of_slices_without_questions() -> None:
    two_slices = owners_with(ALL_MINE, v0=1, v1=1)
    (begun,) = reports(worker(*ONE_BY_ONE).step(announce(ALL_MINE, two_slices, 0, 1)))
    assert isinstance(begun, Moved)
    assert begun.vnodes_left == 1
    assert begun.keys_left == 2 + 3 // 8, "two keys of this slice, and of the other an eighth of all three"


def test_progress_counts_forwarded_rows_at_their_reader() -> None:
    machine = worker(*MOVING, move(), opened(2, mixed=True), rows(2, FIRST, SECOND), INSTALLED)
    machine.step(rows_from(1, 2, FIRST, FIRST, version=1))
    (moved,) = reports(machine.step(move()), Moved)
    assert isinstance(moved, Moved)
    assert (moved.forwarded, moved.bounced) == (1, 2)


def test_progress_begins_anew_with_each_rescale() -> None:
    marked = of_region(1, Mark(version=V1, vnode=VnodeId(0)))
    machine = worker(*MOVING, move(2), INSTALLED, marked, meet(0, 1, meeting=2))
    (begun,) = reports(machine.step(announce(MOVES_0, owners_with(MOVES_0, v1=1), version=1)))
    assert isinstance(begun, Moved)
    assert (begun.phase, begun.keys, begun.keys_left) == ("Collecting", 0, 1)


def test_worker_own_generation_only_what_a_peer_said_before_all_began_anew_is_not_heard() -> None:
    machine = worker(*TAKING, assign(me=1, generation=1))
    assert machine.step(load(FIRST, generation=0)) == []
    assert machine.step(rows_from(0, 1, KEYS[0][0], version=1)) == []
    machine.step(PauseEpochs(pause=1))
    assert sent(machine.step(load(FIRST, generation=1))) == [(0, Installed(region="seen"))]


def test_worker_own_generation_only_loads_on_their_way_when_all_began_anew_do_not_hold_the_next_ones_up() -> None:
    again = [assign(generation=1), *applied([FIRST]), meet(0, 1, meeting=2), announce(ALL_MINE, MOVES_0, 0, 1)]
    machine = worker(*MOVING, move(), *again)
    assert machine.can_move
    machine.step(INSTALLED)
    assert given(machine.step(move())) == [[FIRST]]
    assert not machine.can_move


def test_everything_said_to_peers_is_of_the_workers_generation() -> None:
    machine = worker(assign(generation=5), *applied([FIRST]), meet(0, 1), announce(ALL_MINE, MOVES_0, 0, 1))
    assert {action.envelope.generation for action in machine.step(move()) if hasattr(action, "envelope")} == {5}


def test_a_peer_that_speaks_of_a_view_that_is_not_kept_here_is_a_fault() -> None:
    message = RowsSent(version=MapVersion(0), rows=rows(1, "a").batch)
    with pytest.raises(ProtocolError, match="worker 1 speaks of region 'typo'"):
        worker(assign(HALVES), meet(0, 1)).step(said(1, ForRegion(region="typo", message=message)))
