"""The redistribute machine by its rules, event by event, on real batches. Rule numbers:
docs/internals/redistribute.md."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migration_kit import V1, announce, batch, hash_in, messages, received, rows_of, vnode, vnode_map, where

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import MapVersion, WorkerId
from upriver.migration.events import (
    AbortAsked,
    Action,
    Collect,
    CollectAsked,
    Collected,
    Drop,
    Event,
    InputClosed,
    Interrogate,
    Interrogated,
    Leave,
    PassDown,
    ReportGone,
    ReportSettled,
    RowsArrived,
    TakeState,
)
from upriver.migration.messages import Acquire, Bye, Final, Kept, Redistribute, RowsSent, Scaleup, Sets, Shutdown
from upriver.migration.phases import Left
from upriver.migration.redistribute import Redistributor
from upriver.migration.redistribute_phases import (
    RedistributeCollecting,
    RedistributeInterrogating,
    RedistributeNormal,
    RedistributeSettling,
    Stage,
)

BEFORE = vnode_map(0, 0, 0, 1, 2)
"""Workers 0, 0, 1 and 2 own the four vnodes; in most tests vnode 0 moves from 0 to 1."""
MOVE = announce(BEFORE, 1, 0, 1, 2)


def key(vnode: int, number: int = 0) -> int:
    return hash_in(vnode, number, 4)


def keys(*hashes: int) -> np.ndarray:
    return np.array(hashes, np.uint64)


K1, K2, K3 = key(0, 1), key(0, 2), key(0, 3)


def arrive(*hashes: int) -> RowsArrived:
    return RowsArrived(rows=batch(hashes))


def sent(version: int, *hashes: int) -> RowsSent:
    return RowsSent(version=MapVersion(version), rows=batch(hashes))


def machine(me: int, *events: Event) -> Redistributor:
    made = Redistributor(WorkerId(me), BEFORE)
    for event in events:
        made.step(event)
    return made


def old_owner(*known: int) -> Redistributor:
    """Worker 0 once it has sent sets of these keys."""
    said = [received(peer, Scaleup(version=V1)) for peer in (1, 2)]
    return machine(0, MOVE, *said, Interrogated(keys=keys(*known)))


def sets(whitelist: tuple[int, ...], hold: tuple[int, ...]) -> Sets:
    return Sets(version=V1, whitelist=keys(*whitelist), hold=keys(*hold))


def redistribute(moved: tuple[int, ...], following: tuple[int, ...] = (), added: tuple[int, ...] = ()) -> Redistribute:
    return Redistribute(version=V1, keys=keys(*moved), following=keys(*following), added=keys(*added))


def final(*hashes: int) -> Final:
    return Final(version=V1, keys=keys(*hashes))


def said(actions: tuple[Action, ...]) -> list[tuple[int, str, list[list[int]]]]:
    """Control messages: the receiver, kind, and the keys in each of their fields."""
    told = []
    for to, message in messages(actions):
        parts = [getattr(message, name).tolist() for name in type(message).__slots__ if _is_keys(message, name)]
        told.append((to, type(message).__name__, parts))
    return told


def _is_keys(message: object, name: str) -> bool:
    return isinstance(getattr(message, name), np.ndarray)


def test_rows_go_to_their_owner_when_nothing_moves() -> None:
    assert where(machine(0).step(arrive(key(0), key(2), key(1), key(3)))) == {"N1": [0, 2], "to 1": [1], "to 2": [3]}


def test_every_old_owner_is_told_and_rows_go_on_as_before() -> None:
    made = machine(2)
    assert messages(made.step(MOVE)) == [(0, Scaleup(version=V1))]
    assert isinstance(made.phase, RedistributeSettling)
    assert where(made.step(arrive(K1, key(1), key(3)))) == {"I1.2": [2], "to 0": [1, 0]}
    leaver = announce(BEFORE, 1, 1, 1, 2)
    assert messages(machine(2).step(leaver)) == [(0, Shutdown(version=V1))]


def test_redistribute_all_have_announced_the_operators_are_asked_when_all_have_announced() -> None:
    made = machine(0)
    made.step(received(1, Scaleup(version=V1)))
    assert made.step(MOVE) == ()
    assert made.step(received(2, Scaleup(version=V1))) == (Interrogate(vnodes=(vnode(0),)),)
    with pytest.raises(ProtocolError, match="twice"):
        made.step(received(2, Scaleup(version=V1)))


def test_redistribute_what_passes_is_listed_what_passes_while_the_operators_are_asked_is_in_the_sets() -> None:
    made = machine(0, MOVE, received(1, Scaleup(version=V1)), received(2, Scaleup(version=V1)))
    assert where(made.step(received(2, sent(0, K3, key(1))))) == {"I1.1": [0], "I1.2": [1]}
    actions = made.step(Interrogated(keys=keys(K2)))
    assert said(actions) == [(peer, "Sets", [[K3], [K2]]) for peer in (1, 2)]
    assert isinstance(made.phase, RedistributeCollecting)


def test_redistribute_new_keys_wait_a_distributor_sends_the_whitelist_stores_the_hold_and_what_is_in_neither() -> None:
    made = machine(2, MOVE)
    assert said(made.step(received(0, sets((K2,), (K1,))))) == [(0, "Final", [[K1]])]
    assert where(made.step(arrive(K1, K2, K3, key(1)))) == {"to 0": [3, 1]}
    assert made.rows_waiting == 2


def test_redistribute_releases_what_was_stored_then_says_final_of_the_next() -> None:
    made = machine(2, MOVE, received(0, sets((K2,), (K1,))))
    made.step(arrive(K1, K2, K3))
    actions = made.step(received(0, redistribute((K1,), (K2,))))
    assert where(actions) == {"to 1": [0, 2]}
    assert said(actions[1:]) == [(0, "Final", [[K2]])]
    assert where(made.step(arrive(K1, K2, K3))) == {"to 1": [0, 2]}
    assert made.rows_waiting == 1
    done = made.step(received(0, redistribute((K2,))))
    assert where(done) == {"to 1": [1]}
    assert done[-1] == ReportSettled(version=V1, kept=())
    assert made.phase == RedistributeNormal(map=MOVE.after)


def test_redistribute_what_passes_is_listed_a_key_added_late_goes_to_the_old_owner_after_all() -> None:
    made = machine(2, MOVE, received(0, sets((), (K1,))))
    made.step(arrive(K2, K3))
    actions = made.step(received(0, redistribute((K1,), (K3,), added=(K3,))))
    assert where(actions) == {"to 1": [0]}
    assert made.rows_waiting == 1


def test_redistribute_all_are_final_then_the_hold_goes_to_its_new_owner_once() -> None:
    made = old_owner(K1, K2)
    made.step(received(1, final(K1)))
    assert not made.can_collect
    assert where(made.step(received(2, sent(1, K1, K2, K3)))) == {"I1.1": [0, 1, 2]}
    made.step(received(2, final(K1)))
    assert made.can_collect
    (collect,) = made.step(CollectAsked(keys_max=5))
    assert isinstance(collect, Collect)
    assert collect.keys.tolist() == [K1]
    actions = made.step(Collected(keys=keys(K1), state="s"))
    assert said(actions) == [
        (1, "Acquire", [[K1]]),
        (1, "Redistribute", [[K1], [K2, K3], [K3]]),
        (2, "Redistribute", [[K1], [K2, K3], [K3]]),
    ]
    assert isinstance(actions[-1], Drop)
    assert not made.can_collect


def test_redistribute_final_of_nothing_empty_sets_are_final_too() -> None:
    made = old_owner()
    made.step(received(1, final()))
    assert not made.can_collect
    actions = made.step(received(2, final()))
    assert said(actions) == [(peer, "Redistribute", [[], [], []]) for peer in (1, 2)]
    assert actions[-1] == ReportSettled(version=V1, kept=())


def test_keys_that_go_together_have_one_new_owner() -> None:
    before = vnode_map(0, 0, 0, 0, 0)
    made = Redistributor(WorkerId(0), before)
    made.step(announce(before, 1, 1, 2, 0, old=(0,), new=(0, 1, 2)))
    for peer in (1, 2):
        made.step(received(peer, Scaleup(version=V1)))
    made.step(Interrogated(keys=keys(key(0), key(0, 1), key(1), key(2), key(2, 1))))
    given: list[list[int]] = []
    while isinstance(made.phase, RedistributeCollecting):
        hold = made.phase.hold
        for peer in (1, 2):
            made.step(received(peer, Final(version=V1, keys=hold)))
        made.step(CollectAsked(keys_max=10))
        given.append(hold.tolist())
        made.step(Collected(keys=hold, state=None))
    assert given == [[key(0)], [key(0, 1), key(1)], [key(2), key(2, 1)]]


def test_redistribute_straight_rows_wait_the_new_owner_parks_what_comes_ahead_of_its_own_redistribute() -> None:
    made = machine(1, MOVE, received(0, sets((K2,), (K1,))))
    assert where(made.step(received(2, sent(1, K1, key(2))))) == {"I1.2": [1]}
    assert made.step(arrive(K1)) == ()
    (taken,) = made.step(received(0, Acquire(version=V1, keys=keys(K1), state="s")))
    assert isinstance(taken, TakeState)
    assert taken == TakeState(keys=taken.keys, state="s")
    assert made.rows_waiting == 2
    actions = made.step(received(0, redistribute((K1,), (K2,))))
    assert [rows_of(action.rows) for action in actions[:2] if isinstance(action, PassDown)] == [[0], [0]]
    assert where(made.step(received(2, sent(1, K1, K3)))) == {"C3.2": [0, 1]}


def test_redistribute_each_owner_by_itself_each_old_owner_counts_by_itself() -> None:
    made = machine(1, announce(BEFORE, 1, 0, 1, 1))
    made.step(received(0, sets((), (K1,))))
    assert where(made.step(arrive(K2, key(3)))) == {"to 2": [1]}
    assert made.rows_waiting == 1


def test_redistribute_joiner_knows_old_map_a_joining_worker_sends_by_the_old_map() -> None:
    made = machine(7)
    assert where(made.step(arrive(K1))) == {"to 0": [0]}
    made.step(announce(BEFORE, 7, 0, 1, 2, new=(0, 1, 2, 7)))
    assert where(made.step(arrive(K1))) == {"to 0": [0]}


def test_rows_of_a_peer_that_has_started_are_taken() -> None:
    made = machine(0)
    assert where(made.step(received(2, sent(1, K1)))) == {"N1": [0]}
    with pytest.raises(ProtocolError, match="belong to"):
        made.step(received(2, sent(1, key(2))))


@pytest.mark.parametrize("asked", [False, True])
def test_redistribute_begun_is_finished_an_old_owner_that_has_not_sent_its_sets_keeps_all(asked: bool) -> None:
    made = machine(0, MOVE, received(1, Scaleup(version=V1)))
    last = received(2, Scaleup(version=V1))
    if asked:
        made.step(last)
    made.step(AbortAsked(version=V1))
    before = made.phase
    assert isinstance(before, RedistributeInterrogating)
    actions = made.step(Interrogated(keys=keys(K1)) if asked else last)
    assert messages(actions) == [(peer, Kept(version=V1, vnodes=(vnode(0),))) for peer in (1, 2)]
    assert actions[-1] == ReportSettled(version=V1, kept=(vnode(0),))
    assert made.phase == RedistributeNormal(map=vnode_map(1, 0, 0, 1, 2))


def test_redistribute_begun_is_finished_sets_that_were_sent_are_taken_back_once_all_are_final() -> None:
    made = old_owner(K1)
    made.step(received(1, final(K1)))
    assert made.step(AbortAsked(version=V1)) == ()
    actions = made.step(received(2, final(K1)))
    assert [to for to, _ in messages(actions)] == [1, 2]
    assert actions[-1] == ReportSettled(version=V1, kept=(vnode(0),))


def test_redistribute_begun_is_finished_what_has_begun_is_finished() -> None:
    made = old_owner(K1, K2)
    for peer in (1, 2):
        made.step(received(peer, final(K1)))
    made.step(CollectAsked(keys_max=1))
    assert made.step(AbortAsked(version=V1)) == ()
    made.step(Collected(keys=keys(K1), state=None))
    assert made.step(AbortAsked(version=V1)) == ()
    assert isinstance(made.phase, RedistributeCollecting)
    assert made.phase.view.stage is Stage.CLOSED


def test_what_was_stored_goes_to_an_old_owner_that_keeps_its_keys() -> None:
    made = machine(2, MOVE, received(0, sets((), (K1,))))
    made.step(arrive(K1, K2))
    actions = made.step(received(0, Kept(version=V1, vnodes=(vnode(0),))))
    assert where(actions) == {"to 0": [0, 1]}
    assert actions[-1] == ReportSettled(version=V1, kept=(vnode(0),))


def test_redistribute_settle_when_all_told_a_leaver_settles_when_every_old_owner_is_through_and_says_bye() -> None:
    made = machine(2, announce(BEFORE, 1, 0, 1, 1, new=(0, 1)))
    for peer in (0, 1):
        made.step(received(peer, Shutdown(version=V1)))
    made.step(Interrogated(keys=keys()))
    for peer in (0, 1):
        made.step(received(peer, final()))
    assert isinstance(made.phase, RedistributeSettling)
    made.step(received(0, sets((), ())))
    assert ReportSettled(version=V1, kept=()) in made.step(received(0, redistribute(())))
    peers = (WorkerId(0), WorkerId(1))
    actions = made.step(InputClosed(peers=peers))
    assert messages(actions) == [(peer, Bye(version=V1)) for peer in peers]
    assert actions[-1] == Leave()
    assert isinstance(made.phase, Left)


def test_a_bye_is_reported() -> None:
    assert machine(0).step(received(2, Bye(version=MapVersion(0)))) == (ReportGone(peer=WorkerId(2)),)


@pytest.mark.parametrize(
    "wrong",
    [
        received(1, final(K2)),
        received(1, sets((), ())),
        received(1, redistribute((K1,))),
        received(1, sent(1, key(2))),
        received(1, Final(version=MapVersion(0), keys=keys(K1))),
        Collected(keys=keys(K1), state=None),
        CollectAsked(keys_max=1),
        AbortAsked(version=MapVersion(7)),
    ],
)
def test_messages_against_the_rules_are_refused(wrong: Event) -> None:
    with pytest.raises(ProtocolError):
        old_owner(K1).step(wrong)


def test_state_after_the_rescale_is_refused() -> None:
    with pytest.raises(ProtocolError, match="too late"):
        machine(1).step(received(0, Acquire(version=MapVersion(0), keys=keys(K1), state="s")))


def test_a_retired_worker_hears_only_of_aborts_that_are_over() -> None:
    made = machine(7, InputClosed(peers=()))
    assert made.step(AbortAsked(version=MapVersion(0))) == ()
    with pytest.raises(IllegalEvent):
        made.step(arrive(K1))


HASHES = st.lists(st.sampled_from([key(v, n) for v in range(4) for n in range(5)]), max_size=30)


@given(HASHES, st.sets(st.integers(0, 4)), st.integers(0, 2), st.sampled_from([0, 1, 2]))
def test_a_batch_goes_where_its_rows_would_go_one_by_one(
    hashes: list[int], known: set[int], gone: int, me: int
) -> None:
    listed = sorted(key(0, number) for number in known)
    whole, single = (_after(me, listed, gone) for _ in range(2))
    together = where(whole.step(RowsArrived(rows=batch(hashes))))
    one_by_one: dict[str, list[int]] = {}
    for number, hash64 in enumerate(hashes):
        for place, rows in where(single.step(RowsArrived(rows=batch([hash64], first=number)))).items():
            one_by_one.setdefault(place, []).extend(rows)
    assert {place: sorted(rows) for place, rows in together.items()} == one_by_one
    assert whole.rows_waiting == single.rows_waiting == len(hashes) - sum(map(len, together.values()))


def _after(me: int, listed: list[int], gone: int) -> Redistributor:
    """A worker once 0 has sent its sets, and given away so many keys (none, if it is 0 itself)."""
    if me == 0:
        return old_owner(*listed)
    made = machine(me, MOVE, received(0, sets(tuple(listed[1:]), tuple(listed[:1]))))
    for number in range(min(gone, len(listed))):
        made.step(received(0, redistribute((listed[number],), tuple(listed[number + 1 : number + 2]))))
    return made
