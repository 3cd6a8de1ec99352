"""The machine by its rules, event by event, on real batches. Rule numbers: docs/internals/icadd.md."""

import numpy as np
import pytest
from migration_kit import (
    V0,
    V1,
    announce,
    batch,
    distributor,
    hash_in,
    messages,
    received,
    rows_of,
    vnode,
    vnode_map,
    where,
)

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import MapVersion, WorkerId
from upriver.migration.events import (
    AbortAsked,
    Collect,
    CollectAsked,
    Collected,
    Drop,
    Event,
    Interrogate,
    Interrogated,
    ReportSettled,
    RowsArrived,
    Send,
    TakeState,
)
from upriver.migration.icadd import TOGETHER_MAX
from upriver.migration.messages import Acquire, Done, Kept, Mark, RelayedMark, RowsSent
from upriver.migration.phases import Collecting, Interrogating, Normal, Settling

BEFORE = vnode_map(0, 0, 0, 1, 2)
"""Workers 0, 0, 1 and 2 own the four vnodes; in most tests vnode 0 moves from 0 to 1."""
MOVE = announce(BEFORE, 1, 0, 1, 2)


def key(vnode: int, number: int = 0) -> int:
    return hash_in(vnode, number, 4)


def keys(*hashes: int) -> np.ndarray:
    return np.array(hashes, np.uint64)


def arrive(*hashes: int) -> RowsArrived:
    return RowsArrived(rows=batch(hashes))


def sent(version: int, *hashes: int) -> RowsSent:
    return RowsSent(version=MapVersion(version), rows=batch(hashes))


def test_n1_n2_rows_go_to_their_owner() -> None:
    actions = distributor(0, BEFORE).step(arrive(key(0), key(2), key(1), key(3), key(2, 1)))
    assert where(actions) == {"N1": [0, 2], "to 1": [1, 4], "to 2": [3]}
    assert all(action.message.version == V0 for action in actions if isinstance(action, Send))


def test_i1_1_what_passes_is_whitelisted_and_i1_2_what_stays_is_not() -> None:
    machine = distributor(0, BEFORE, MOVE)
    assert where(machine.step(arrive(key(0, 5), key(1), key(2)))) == {"I1.1": [0], "I1.2": [1], "to 1": [2]}
    machine.step(Interrogated(keys=keys(key(0, 7))))
    assert isinstance(machine.phase, Collecting)
    assert machine.phase.whitelist.tolist() == [key(0, 5), key(0, 7)]


def test_i1_1_holds_for_rows_of_peers_too() -> None:
    machine = distributor(0, BEFORE, MOVE)
    assert where(machine.step(received(2, sent(1, key(0, 5))))) == {"I1.1": [0]}
    machine.step(Interrogated(keys=keys()))
    assert isinstance(machine.phase, Collecting)
    assert machine.phase.whitelist.tolist() == [key(0, 5)]


def test_c1_1_c1_2_c2_whitelisted_down_on_hold_held_others_relayed() -> None:
    machine = distributor(0, BEFORE, MOVE, Interrogated(keys=keys(key(0, 1), key(0, 2))))
    actions = machine.step(CollectAsked(keys_max=1))
    assert isinstance(machine.phase, Collecting)
    assert actions == (Collect(keys=machine.phase.hold),)
    rows = batch([key(0, 1), key(0, 2), key(0, 3), key(1), key(0, 1)])
    assert where(machine.step(RowsArrived(rows=rows))) == {"C1.1": [1], "I1.2": [3], "to 1": [2]}
    assert machine.rows_waiting == 2
    assert isinstance(machine.phase, Collecting)
    assert [rows_of(held) for held in machine.phase.held] == [[0, 4]]


def test_icadd_state_before_held_rows_then_drop_and_done_last() -> None:
    machine = distributor(
        0, BEFORE, MOVE, Interrogated(keys=keys(key(0, 1))), CollectAsked(keys_max=9), arrive(key(0, 1))
    )
    acquire, held, drop, *dones = machine.step(Collected(keys=keys(key(0, 1)), state="s"))
    assert isinstance(acquire, Send)
    assert isinstance(acquire.message, Acquire)
    assert (acquire.to, acquire.message.state, acquire.message.version) == (1, "s", V1)
    assert where([held]) == {"to 1": [0]}
    assert isinstance(drop, Drop)
    assert messages(dones) == [(1, Done(version=V1, vnode=vnode(0))), (2, Done(version=V1, vnode=vnode(0)))]
    assert isinstance(machine.phase, Settling)
    assert machine.rows_waiting == 0


def test_slices_go_one_by_one_in_order() -> None:
    machine = distributor(0, BEFORE)
    assert Interrogate(vnodes=(vnode(0),)) in machine.step(announce(BEFORE, 1, 2, 1, 2))
    actions = machine.step(Interrogated(keys=keys()))
    assert [to for to, _ in messages(actions)] == [1, 2]
    assert actions[-1] == Interrogate(vnodes=(vnode(1),))
    assert where(machine.step(arrive(key(0), key(1)))) == {"to 1": [0], "I1.1": [1]}


THREE = vnode_map(0, 0, 0, 0, 1)
"""Worker 0 owns three of the four vnodes."""
THREE_MOVE = announce(THREE, 1, 2, 1, 1, new=(0, 1, 2))
"""Vnodes 0 and 2 go to worker 1, and vnode 1 to worker 2."""


def test_slices_of_few_keys_that_go_to_one_worker_are_given_together() -> None:
    machine = distributor(0, THREE, THREE_MOVE, together=3)
    assert machine.step(Interrogated(keys=keys(key(0, 1)))) == (Interrogate(vnodes=(vnode(2),)),)
    assert machine.step(Interrogated(keys=keys(key(2, 1)))) == ()
    assert isinstance(machine.phase, Collecting)
    assert machine.phase.slices == (vnode(0), vnode(2))
    assert machine.phase.remaining == (vnode(1),)
    machine.step(CollectAsked(keys_max=9))
    assert machine.phase.hold.tolist() == [key(0, 1), key(2, 1)]
    actions = machine.step(Collected(keys=machine.phase.hold, state=None))
    dones = [message.vnode for to, message in messages(actions) if to == 1 and isinstance(message, Done)]
    assert dones == [vnode(0), vnode(2)]
    assert actions[-1] == Interrogate(vnodes=(vnode(1),))


@pytest.mark.parametrize(("together", "found"), [(1, 1), (2, 2), (3, 3), (9, 0)])
def test_a_slice_that_has_enough_keys_or_none_is_given_alone(together: int, found: int) -> None:
    machine = distributor(0, THREE, THREE_MOVE, together=together)
    machine.step(Interrogated(keys=keys(*(key(0, number) for number in range(found)))))
    phase = machine.phase
    assert isinstance(phase, Collecting if found else Interrogating)
    assert phase.slices == (vnode(0) if found else vnode(1),)


def test_icadd_whitelist_what_passes_holds_for_all_slices_that_are_given_together() -> None:
    machine = distributor(0, THREE, THREE_MOVE, Interrogated(keys=keys(key(0, 1))), together=9)
    assert where(machine.step(arrive(key(0, 2), key(2, 2), key(1)))) == {"I1.1": [0, 1], "I1.2": [2]}
    machine.step(Interrogated(keys=keys(key(2, 1))))
    assert isinstance(machine.phase, Collecting)
    assert machine.phase.whitelist.tolist() == [key(0, 1), key(0, 2), key(2, 1), key(2, 2)]


def test_no_more_slices_than_that_are_given_together() -> None:
    before = vnode_map(0, *[0] * (TOGETHER_MAX + 2))
    machine = distributor(0, before, announce(before, *[1] * (TOGETHER_MAX + 2)), together=99)
    for slice in range(TOGETHER_MAX):
        machine.step(Interrogated(keys=keys(hash_in(slice, 0, TOGETHER_MAX + 2))))
    assert isinstance(machine.phase, Collecting)
    assert machine.phase.slices == tuple(map(vnode, range(TOGETHER_MAX)))


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_abort_keeps_slices_that_are_given_together_or_finishes_all_of_them(is_begun: bool) -> None:
    machine = distributor(
        0, THREE, THREE_MOVE, Interrogated(keys=keys(key(0))), Interrogated(keys=keys(key(2))), together=9
    )
    if is_begun:
        machine.step(CollectAsked(keys_max=1))
    told = [message for to, message in messages(machine.step(AbortAsked(version=V1))) if to == 1]
    kept = (vnode(1),) if is_begun else (vnode(0), vnode(2), vnode(1))
    assert told == [Kept(version=V1, vnodes=kept)]
    assert isinstance(machine.phase, Collecting) is is_begun


def test_an_abort_before_the_operators_have_answered_keeps_all_that_they_were_asked_about() -> None:
    machine = distributor(0, THREE, THREE_MOVE, Interrogated(keys=keys(key(0))), together=9)
    machine.step(AbortAsked(version=V1))
    actions = machine.step(Interrogated(keys=keys(key(2))))
    assert (1, Kept(version=V1, vnodes=(vnode(0), vnode(2)))) in messages(actions)
    assert isinstance(machine.phase, Normal)
    assert machine.phase.map.owners == THREE.owners


def test_a_slice_not_begun_is_served_as_before() -> None:
    machine = distributor(0, BEFORE, announce(BEFORE, 1, 2, 1, 2))
    assert where(machine.step(arrive(key(1)))) == {"I1.2": [0]}


def test_i2_icadd_old_owner_first_rows_go_to_the_old_owner_until_done() -> None:
    machine = distributor(1, BEFORE, MOVE)
    assert where(machine.step(arrive(key(0)))) == {"to 0": [0]}
    assert messages(machine.step(received(0, Done(version=V1, vnode=vnode(0))))) == [
        (0, Mark(version=V1, vnode=vnode(0)))
    ]


def test_c3_3_a_bystander_goes_straight_after_done() -> None:
    machine = distributor(2, BEFORE, MOVE)
    assert where(machine.step(arrive(key(0)))) == {"to 0": [0]}
    machine.step(received(0, Done(version=V1, vnode=vnode(0))))
    assert isinstance(machine.phase, Normal)
    assert where(machine.step(arrive(key(0)))) == {"to 1": [0]}


def test_c3_1_what_the_old_owner_sends_goes_down() -> None:
    machine = distributor(1, BEFORE, MOVE)
    assert where(machine.step(received(0, sent(1, key(0))))) == {"C3.1": [0]}


def test_c3_2_straight_rows_wait_for_their_origins_mark() -> None:
    machine = distributor(1, BEFORE, MOVE)
    assert machine.step(received(2, sent(1, key(0, 1), key(0, 2)))) == ()
    machine.step(received(0, Done(version=V1, vnode=vnode(0))))
    assert machine.step(arrive(key(0, 3))) == ()
    assert machine.rows_waiting == 3
    assert where(machine.step(received(0, RelayedMark(version=V1, vnode=vnode(0), origin=WorkerId(2))))) == {
        "C3.2": [0, 1]
    }
    assert where(machine.step(received(2, sent(1, key(0, 4))))) == {"C3.2": [0]}
    own = machine.step(received(0, RelayedMark(version=V1, vnode=vnode(0), origin=WorkerId(1))))
    assert where(own) == {"C3.2": [0]}
    assert own[-1] == ReportSettled(version=V1, kept=())
    assert machine.rows_waiting == 0


def test_n3_icadd_take_from_old_owner_only_before_its_own_start_only_the_owner_is_believed() -> None:
    machine = distributor(1, BEFORE)
    assert where(machine.step(received(0, sent(1, key(0))))) == {"N3": [0]}
    assert machine.step(received(2, sent(1, key(0)))) == ()
    assert machine.rows_waiting == 1


def test_icadd_early_messages_kept_what_came_early_counts_at_the_start() -> None:
    machine = distributor(1, BEFORE, received(2, sent(1, key(0))), received(0, Done(version=V1, vnode=vnode(0))))
    machine.step(received(0, RelayedMark(version=V1, vnode=vnode(0), origin=WorkerId(2))))
    actions = machine.step(MOVE)
    assert where(actions) == {"C3.2": [0]}
    assert messages(actions) == [(0, Mark(version=V1, vnode=vnode(0)))]


def test_marks_are_relayed_to_the_new_owner_and_end_the_rescale() -> None:
    machine = distributor(0, BEFORE, MOVE, Interrogated(keys=keys()))
    mark = Mark(version=V1, vnode=vnode(0))
    first, second = machine.step(received(2, mark)), machine.step(received(1, mark))
    assert messages(first) == [(1, RelayedMark(version=V1, vnode=vnode(0), origin=WorkerId(2)))]
    assert second[-1] == ReportSettled(version=V1, kept=())
    assert machine.phase == Normal(map=MOVE.after)


def test_state_is_taken_before_the_rescale_is_announced() -> None:
    acquire = Acquire(version=V1, keys=keys(key(0)), state="s")
    (taken,) = distributor(1, BEFORE).step(received(0, acquire))
    assert isinstance(taken, TakeState)
    assert taken.state == "s"


def test_abort_keeps_what_is_not_begun() -> None:
    machine = distributor(0, BEFORE, announce(BEFORE, 1, 2, 1, 2))
    actions = machine.step(AbortAsked(version=V1))
    assert messages(actions) == [(to, Kept(version=V1, vnodes=(vnode(1),))) for to in (1, 2)]
    assert isinstance(machine.phase, Interrogating)
    actions = machine.step(Interrogated(keys=keys(key(0))))
    assert actions[-1] == ReportSettled(version=V1, kept=(vnode(0), vnode(1)))
    assert isinstance(machine.phase, Normal)
    assert machine.phase.map == vnode_map(1, 0, 0, 1, 2)


def test_abort_finishes_a_slice_of_which_a_key_has_moved() -> None:
    machine = distributor(0, BEFORE, announce(BEFORE, 1, 2, 1, 2), Interrogated(keys=keys(key(0))))
    machine.step(CollectAsked(keys_max=1))
    assert [message for _, message in messages(machine.step(AbortAsked(version=V1)))] == [
        Kept(version=V1, vnodes=(vnode(1),))
    ] * 2
    done = machine.step(Collected(keys=keys(key(0)), state=None))
    assert (2, Done(version=V1, vnode=vnode(0))) in messages(done)
    assert isinstance(machine.phase, Settling)


def test_icadd_begun_slice_is_finished_abort_finishes_a_slice_of_which_a_row_was_relayed() -> None:
    machine = distributor(0, BEFORE, MOVE, Interrogated(keys=keys(key(0, 1))))
    assert where(machine.step(arrive(key(0, 2)))) == {"to 1": [0]}
    assert machine.step(AbortAsked(version=V1)) == ()
    assert isinstance(machine.phase, Collecting)


def test_abort_is_obeyed_by_the_workers_that_hear_of_it() -> None:
    machine = distributor(1, BEFORE, MOVE)
    machine.step(received(0, Kept(version=V1, vnodes=(vnode(0),))))
    assert isinstance(machine.phase, Normal)
    assert machine.phase.map.owners == BEFORE.owners
    assert machine.phase.map.version == V1


@pytest.mark.parametrize(
    ("me", "event"),
    [
        (1, received(2, RowsSent(version=V0, rows=batch([key(0)])))),
        (1, received(0, Done(version=MapVersion(2), vnode=vnode(0)))),
        (1, received(0, Done(version=V0, vnode=vnode(0)))),
        (0, announce(vnode_map(0, 1, 1, 1, 1), 0, 0, 0, 0)),
    ],
)
def test_what_no_peer_would_send_is_a_protocol_error(me: int, event: Event) -> None:
    with pytest.raises(ProtocolError):
        distributor(me, BEFORE).step(event)


def test_a_row_of_no_owner_is_a_protocol_error_while_moving() -> None:
    with pytest.raises(ProtocolError, match="of vnodes"):
        distributor(2, BEFORE, MOVE).step(received(0, sent(1, key(0))))


@pytest.mark.parametrize("event", [CollectAsked(keys_max=1), Interrogated(keys=keys()), MOVE])
def test_an_event_out_of_place_is_illegal(event: Event) -> None:
    machine = distributor(1, BEFORE, MOVE)
    with pytest.raises(IllegalEvent):
        machine.step(event)


def test_no_key_is_collected_while_others_are_on_hold() -> None:
    machine = distributor(0, BEFORE, MOVE, Interrogated(keys=keys(key(0, 1), key(0, 2))))
    assert machine.can_collect
    machine.step(CollectAsked(keys_max=1))
    assert not machine.can_collect
    with pytest.raises(IllegalEvent):
        machine.step(CollectAsked(keys_max=1))


def test_a_collect_of_no_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        CollectAsked(keys_max=0)
