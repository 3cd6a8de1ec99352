"""Boards of the worker machine: what is found on them is what a lookup would be answered at once; rules B1 to B5."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from board_kit import OfView, board_for
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    TABLE,
    Seen,
    announce,
    applied,
    asked,
    assign,
    hashed,
    meet,
    opened,
    over,
    owners_with,
    read,
    rows,
)
from relation_kit import dataflow, group, scan

from upriver.ids import Epoch
from upriver.protocol.messages import Evict, Retire
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.standby_messages import Resume
from upriver.protocol.worker_events import (
    Answer,
    BoardGiven,
    KeysRead,
    PeersMet,
    ReadKeys,
    TimeToEvict,
    WorkerAction,
    WorkerEvent,
)
from upriver.worker.following import Following
from upriver.worker.room import budget_of
from upriver.worker.worker import WorkerMachine

COUNTED = pa.schema([("k", pa.string()), ("seen", pa.int64())])
PLAN = dataflow("seen", group(scan(TABLE), "k", seen=("count", "e", pa.int64())), ("k",), TABLE)
PARTIAL = replace(PLAN, full_because=None)
STAYS, ALSO_STAYS, GOES = KEYS[0][0], KEYS[1][0], KEYS[3][0]
"""When vnode 3 goes to worker 1."""


class Counted(Seen):
    """A view of how many rows each key has."""

    def stats(self) -> dict[str, int]:
        return {**super().stats(), "live_bytes": 0}

    def _rows(self, keys: Sequence[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"k": key, "seen": len(self.epochs[key])} for key in keys], schema=COUNTED)


def given(of_view: OfView) -> BoardGiven:
    return BoardGiven(view="seen", board=of_view.board)


def machine_with(
    of_view: OfView, *events: WorkerEvent, rules: Rules = ALL_RULES, owners: Sequence[int] = ALL_MINE
) -> WorkerMachine:
    """A worker that was given a board before these events."""
    machine = WorkerMachine(lambda *_: Counted(), rules)
    for event in (assign(owners, plans=(PLAN,)), given(of_view), *events):
        machine.step(event)
    return machine


def on(of_view: OfView, *keys: str) -> tuple[dict[str, int], int]:
    """What is found of these keys, and as of which epoch; -1 for none."""
    rows = of_view.find(hashed(keys))
    if rows is None:
        return {}, -1
    return {row["k"]: row["seen"] for row in rows.to_pylist()}, of_view.board.epoch


def board_of_all_asked_before() -> OfView:
    of_view = board_for(COUNTED, "k")
    of_view.board.asked_again(hashed(["a", "b", STAYS, ALSO_STAYS, GOES]))
    return of_view


@pytest.fixture
def of_view() -> OfView:
    return board_of_all_asked_before()


@pytest.mark.smoke
def test_keys_are_put_up_when_they_are_asked_for_again() -> None:
    of_view = board_for(COUNTED, "k")
    machine = machine_with(of_view, *applied("abc"), asked("a", "b", together=True))
    assert on(of_view, "a", "b") == ({}, -1)
    machine.step(asked("z", "c", "a"))  # of z there are no rows
    assert on(of_view, "a", "b", "c") == ({"a": 1}, 1)
    machine.step(asked("a", "b", "c"))
    assert on(of_view, "a", "b", "c") == ({"a": 1, "b": 1, "c": 1}, 1)


def test_what_somebody_was_told_is_found_as_of_the_epoch(of_view: OfView) -> None:
    machine = machine_with(of_view, *applied("aab", "a"))
    assert on(of_view, "a", "b") == ({}, -1)
    machine.step(asked("a", "b", together=True))
    assert on(of_view, "a", "b", "c") == ({"a": 3, "b": 1}, 2)


def test_keys_without_rows_and_keys_asked_for_twice_are_not_there(of_view: OfView) -> None:
    machine = machine_with(of_view, *applied("ab"))
    machine.step(asked("z", "a", "a", "b"))
    assert on(of_view, "z", "a", "b") == ({"b": 1}, 1)


def test_b1_a_key_that_changes_is_taken_down_and_the_others_are_as_of_the_next_epoch(of_view: OfView) -> None:
    machine = machine_with(of_view, *applied("ab"), asked("a", "b", together=True))
    machine.step(opened(2))
    assert on(of_view, "a", "b") == ({"a": 1, "b": 1}, 1)
    machine.step(rows(2, "a"))
    assert on(of_view, "a", "b") == ({"b": 1}, 1)
    machine.step(read(2, 1))
    assert on(of_view, "a", "b") == ({"b": 1}, 2)
    machine.step(asked("a"))
    assert on(of_view, "a", "b") == ({"a": 2, "b": 1}, 2)


def test_b1_switched_off_shows_what_was(of_view: OfView) -> None:
    rules = Rules(b1_changed_keys_are_taken_down=False)
    machine_with(of_view, *applied("a"), asked("a"), opened(2), rows(2, "a"), read(2, 1), rules=rules)
    assert on(of_view, "a") == ({"a": 1}, 2)


def test_b2_a_key_that_is_about_to_move_is_taken_down(of_view: OfView) -> None:
    moving: list[WorkerEvent] = [meet(0, 1), PeersMet(meeting=1), announce(ALL_MINE, owners_with(ALL_MINE, v3=1), 0, 1)]
    events: list[WorkerEvent] = [*applied([STAYS, GOES]), asked(STAYS, GOES, together=True)]
    machine = machine_with(of_view, *events, *moving)
    assert on(of_view, STAYS, GOES) == ({STAYS: 1}, 1)
    machine.step(asked(STAYS, ALSO_STAYS))
    machine.step(asked(GOES, ticket=2))
    assert on(of_view, STAYS, GOES) == ({STAYS: 1}, 1)
    other = board_of_all_asked_before()
    machine_with(other, *events, *moving, rules=Rules(b2_moving_keys_are_taken_down=False))
    assert on(other, STAYS, GOES) == ({STAYS: 1, GOES: 1}, 1)


def test_b3_what_has_rows_of_an_epoch_that_is_not_over_is_not_put_up(of_view: OfView) -> None:
    in_mid_epoch: list[WorkerEvent] = [*applied("a"), opened(2), rows(2, "a"), asked("a")]
    machine = machine_with(of_view, *in_mid_epoch)
    assert on(of_view, "a") == ({}, -1)
    machine.step(read(2, 1))
    machine.step(asked("a", ticket=2))
    assert on(of_view, "a") == ({"a": 2}, 2)
    other = board_of_all_asked_before()
    machine_with(other, *in_mid_epoch, rules=Rules(b3_as_of_an_epochs_end=False))
    assert on(other, "a") == ({"a": 2}, 1)


def test_a_mixed_epoch_counts_when_it_is_over_everywhere(of_view: OfView) -> None:
    machine = machine_with(of_view, *applied("ab"), asked("a", "b"), opened(2, mixed=True), rows(2, "a"), read(2, 1))
    assert on(of_view, "a", "b") == ({"b": 1}, 1)
    machine.step(asked("a"))
    assert on(of_view, "a", "b") == ({"b": 1}, 1)
    machine.step(over(2))
    assert on(of_view, "a", "b") == ({"b": 1}, 2)


@pytest.mark.parametrize(
    "event",
    [
        assign(plans=(PLAN,), generation=1),
        Resume(maps=assign().maps, reads=assign().reads, at=Epoch(1), serve_from=Epoch(1), generation=1),
        Retire(),
    ],
)
def test_b4_who_begins_anew_or_goes_on_as_another_generation_or_retires_closes_its_boards(
    of_view: OfView, event: WorkerEvent
) -> None:
    machine = machine_with(of_view, *applied("a"), asked("a"))
    assert on(of_view, "a") == ({"a": 1}, 1)
    machine.step(event)
    assert on(of_view, "a") == ({}, -1)
    assert of_view.reader.is_closed
    other = board_of_all_asked_before()
    left_open = machine_with(other, *applied("a"), asked("a"), rules=Rules(b4_closed_with_its_share=False))
    left_open.step(event)
    assert on(other, "a") == ({"a": 1}, 1)


def test_who_follows_nothing_closes_what_it_is_given(of_view: OfView) -> None:
    machine = WorkerMachine(lambda *_: Counted())
    assert machine.step(given(of_view)) == []
    assert of_view.reader.is_closed
    other = board_of_all_asked_before()
    machine.step(Retire())
    assert machine.step(given(other)) == []
    assert other.reader.is_closed


@pytest.mark.parametrize(
    ("view", "schema", "key"),
    [("other", COUNTED, "k"), ("seen", COUNTED, "seen"), ("seen", pa.schema([*COUNTED, ("more", pa.int8())]), "k")],
)
def test_a_board_for_what_is_not_kept_here_is_closed(view: str, schema: pa.Schema, key: str) -> None:
    of_another = board_for(schema, key)
    machine = WorkerMachine(lambda *_: Counted())
    machine.step(assign(plans=(PLAN,)))
    machine.step(BoardGiven(view=view, board=of_another.board))
    assert of_another.reader.is_closed


def test_another_board_takes_the_place_of_the_first(of_view: OfView) -> None:
    machine = machine_with(of_view, *applied("a"), asked("a"))
    other = board_of_all_asked_before()
    machine.step(given(other))
    machine.step(asked("a", ticket=2))
    assert of_view.reader.is_closed
    assert on(other, "a") == ({"a": 1}, 1)


# Partial views


def filled(actions: Sequence[WorkerAction], *keys: str, through: int) -> KeysRead:
    """The answer of the upquery that was asked for: a row each, of epoch 1."""
    (wish,) = [action for action in actions if isinstance(action, ReadKeys)]
    assert set(wish.upquery.keys.tolist()) == set(hashed(keys).tolist())
    found = ((0, rows(1, *keys).batch),)
    return KeysRead(generation=0, region="seen", number=wish.upquery.number, rows=found, through=Epoch(through))


def partial_with(of_view: OfView, rules: Rules = ALL_RULES, memory_budget: int | None = None) -> WorkerMachine:
    """One that has filled and shown a key."""
    machine = WorkerMachine(lambda *_: Counted(), rules, memory_budget)
    for event in (assign(plans=(PARTIAL,)), given(of_view), *applied("a")):
        machine.step(event)
    machine.step(filled(machine.step(asked("a")), "a", through=1))
    assert on(of_view, "a") == ({}, -1)  # it had to be filled, and may never be read again
    machine.step(asked("a", ticket=2))
    assert on(of_view, "a") == ({"a": 1}, 1)
    return machine


def test_keys_that_had_to_be_filled_are_put_up_when_they_are_asked_for_again() -> None:
    of_view = board_for(COUNTED, "k")
    partial_with(of_view)
    assert of_view.board.keys.tolist() == hashed("a").tolist()


@pytest.mark.parametrize("keys", [None, hashed("a").tolist()])
def test_what_somebody_wants_forgotten_is_taken_down(of_view: OfView, keys: tuple[int, ...] | None) -> None:
    partial_with(of_view).step(Evict(eviction=1, view="seen", keys=keys))
    assert on(of_view, "a") == ({}, -1)


def filled_again(of_view: OfView, rules: Rules = ALL_RULES) -> None:
    """A key is evicted, and filled again, up to epoch 3; it is found where it was until it is asked for."""
    machine = partial_with(of_view, rules)
    machine.step(filled(machine.step(asked("z", ticket=2)), "z", through=1))
    of_view.board.read_lately()
    machine.step(TimeToEvict(keys_max=1))
    assert on(of_view, "a") == ({"a": 1}, 1)  # it has not changed
    machine.step(filled(machine.step(asked("a", ticket=3)), "a", "a", through=3))
    (shown,) = machine.step(asked("a", ticket=4))
    assert isinstance(shown, Answer)
    assert shown.rows.column("seen").to_pylist() == [2]


def test_b5_a_key_that_is_filled_again_is_taken_down(of_view: OfView) -> None:
    filled_again(of_view)
    assert on(of_view, "a") == ({}, -1)
    other = board_of_all_asked_before()
    filled_again(other, Rules(b5_filled_keys_are_taken_down=False))
    assert on(other, "a") == ({"a": 1}, 1)  # and another was told of two rows


def test_who_is_read_on_the_board_is_not_evicted_first(of_view: OfView) -> None:
    machine = partial_with(of_view)
    machine.step(filled(machine.step(asked("z", ticket=2)), "z", through=1))
    machine.step(asked("b", ticket=3))
    assert on(of_view, "a") == ({"a": 1}, 1)
    machine.step(TimeToEvict(keys_max=1))
    assert isinstance(machine.phase, Following)
    partial = machine.phase.shares["seen"].partial
    assert partial is not None
    assert partial.keys_of(0, 1).tolist() == hashed("a").tolist()


def test_a_board_is_part_of_the_budget(of_view: OfView) -> None:
    machine = machine_with(of_view)
    assert isinstance(machine.phase, Following)
    assert budget_of(machine.phase) is None
    machine = WorkerMachine(lambda *_: Counted(), memory_budget=1_000_000)
    machine.step(assign(HALVES, plans=(PARTIAL,)))
    machine.step(given(board := board_of_all_asked_before()))
    assert isinstance(machine.phase, Following)
    assert budget_of(machine.phase) == 1_000_000 - board.layout.nbytes
