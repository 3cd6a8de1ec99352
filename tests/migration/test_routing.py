"""Rules as masks: a batch goes where its rows would go one by one, and every row goes to exactly one place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from migration_kit import V1, batch, distributor, hash_in, received, rows_of, vnode_map, where

from upriver.ids import VnodeId, WorkerId
from upriver.migration.events import (
    Action,
    CollectAsked,
    Collected,
    Event,
    Interrogate,
    Interrogated,
    RescaleAnnounced,
    RowsArrived,
)
from upriver.migration.icadd import Distributor
from upriver.migration.messages import Done, RelayedMark, RowsSent
from upriver.migration.phases import Collecting, Interrogating, Normal, Started
from upriver.vnodes import VnodeMap

VNODES, WORKERS, ME = 8, 3, WorkerId(0)
OWNERS = st.lists(st.integers(0, WORKERS - 1), min_size=VNODES, max_size=VNODES)
HASHES = st.builds(hash_in, st.integers(0, VNODES - 1), st.integers(0, 3), st.just(VNODES))


@dataclass(frozen=True)
class Made:
    """A rescale, and what has happened at worker 0 so far: some slices given, some of the others' done and open.
    together: keys for which it gives slices together."""

    before: VnodeMap
    after: VnodeMap
    events: list[Event]
    together: int

    def machine(self) -> Distributor:
        """After the events."""
        return distributor(0, self.before, *self.events, together=self.together)


@st.composite
def machines(draw: st.DrawFn) -> Made:
    made = Made(vnode_map(0, *draw(OWNERS)), vnode_map(1, *draw(OWNERS)), [], draw(st.sampled_from([1, 99])))
    events = made.events
    everyone = tuple(map(WorkerId, range(WORKERS)))
    announced = RescaleAnnounced(before=made.before, after=made.after, old=everyone, new=everyone)
    if draw(st.integers(0, 4)):
        events.append(announced)
        for vnode, (old, new) in made.before.diff(made.after).items():
            if old != ME and draw(st.booleans()):
                events.append(received(old, Done(version=V1, vnode=vnode)))
                opened = [WorkerId(w) for w in range(WORKERS) if w != old and new == ME and draw(st.booleans())]
                events += [received(old, RelayedMark(version=V1, vnode=vnode, origin=origin)) for origin in opened]
        events += _given(draw(st.integers(0, 12)), made.machine())
    return made


def _given(steps: int, machine: Distributor) -> Iterator[Event]:
    """So many events of the giving side: keys 0 and 1 of each slice have state, one moves at a time."""
    for _ in range(steps):
        match machine.phase:
            case Interrogating(slices=slices):
                keys = [hash_in(slices[-1], number, VNODES) for number in (0, 1)]
                event: Event = Interrogated(keys=np.array(keys, np.uint64))
            case Collecting(hold=hold) if len(hold):
                event = Collected(keys=hold, state=None)
            case Collecting():
                event = CollectAsked(keys_max=1)
            case _:
                return
        machine.step(event)
        yield event


def held_and_parked(machine: Distributor) -> list[int]:
    """The rows' numbers that wait, sorted."""
    phase = machine.phase
    assert isinstance(phase, Normal | Started)
    batches = list(phase.held) if isinstance(phase, Collecting) else []
    parked = phase.early.parked if isinstance(phase, Normal) else phase.migration.parked
    batches += [each.rows for each in parked]
    return sorted(row for rows in batches for row in rows_of(rows))


def places(machine: Distributor, actions: Sequence[Action]) -> dict[str, list[int]]:
    return {**where(actions), "wait": held_and_parked(machine)}


@given(machines(), st.lists(HASHES, min_size=1, max_size=12))
def test_a_batch_goes_where_its_rows_would_go_one_by_one(made: Made, hashes: list[int]) -> None:
    together, apart = made.machine(), made.machine()
    whole = places(together, together.step(RowsArrived(rows=batch(hashes))))
    actions: list[Action] = []
    for row, hash64 in enumerate(hashes):
        actions += apart.step(RowsArrived(rows=batch([hash64], first=row)))
    assert {place: sorted(rows) for place, rows in whole.items()} == {
        place: sorted(rows) for place, rows in places(apart, actions).items()
    }
    assert sorted(row for rows in whole.values() for row in rows) == list(range(len(hashes)))


@given(machines(), st.lists(HASHES, min_size=1, max_size=12), st.integers(1, WORKERS - 1))
def test_rows_of_a_peer_that_has_started_go_to_exactly_one_place(made: Made, hashes: list[int], sender: int) -> None:
    for_me = [hash64 for hash64 in hashes if ME in (_owner(made.before, hash64), _owner(made.after, hash64))]
    machine = made.machine()
    result = places(machine, machine.step(received(sender, RowsSent(version=V1, rows=batch(for_me)))))
    assert sorted(row for rows in result.values() for row in rows) == list(range(len(for_me)))


@given(machines())
def test_only_slices_of_this_worker_are_interrogated_and_each_once(made: Made) -> None:
    machine = distributor(0, made.before, together=made.together)
    actions = [action for event in made.events for action in machine.step(event)]
    asked = [vnode for action in actions if isinstance(action, Interrogate) for vnode in action.vnodes]
    mine = [vnode for vnode, (old, _) in made.before.diff(made.after).items() if old == ME]
    assert asked == mine[: len(asked)] if made.together == 1 else set(asked) <= set(mine)
    assert len(set(asked)) == len(asked)
    assert isinstance(machine.phase, Interrogating | Collecting) <= bool(mine)


def _owner(map: VnodeMap, hash64: int) -> WorkerId:
    return map.owners[VnodeId(hash64 * VNODES >> 64)]
