"""Keys that have a part of an epoch's rows: rule worker.whole_keys."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from machines_kit import (
    CHANNEL,
    HALVES,
    KEYS,
    PLAN,
    ROWS,
    TABLE,
    announce,
    answered,
    asked,
    asked_together,
    assign,
    meet,
    opened,
    over,
    owners_with,
    read,
    rows,
    worker,
)
from relation_kit import count, dataflow, group, scan, union, where, windowed

from upriver.ids import Channel, Epoch
from upriver.plan.plan import Order, TableSpec, WindowCall
from upriver.plan.relation import Relation
from upriver.protocol.rules import ALL_RULES
from upriver.protocol.worker_events import AnswerTogether, EpochRead, PeersMet, ReadEpoch, ShareAction
from upriver.worker.unfinished_keys import UNFINISHED_KEYS_MAX, UnfinishedKeys

OTHER = TableSpec("u", ROWS, ("k",))
BOTH = dataflow("seen", union(scan(TABLE), scan(OTHER)), ("k",), TABLE, OTHER)
"""A key has rows of two channels."""
NUMBER = WindowCall("row_number", None, "n", pa.int32())
COUNTED = group(scan(TABLE), "k", n=("count", None, pa.int64()))
HALF, REST = "t/k", "u/k"
ONE, ANOTHER = KEYS[0][0], KEYS[1][0]


def end(epoch: int, **promised: int) -> EpochRead:
    return EpochRead(
        epoch=Epoch(epoch), promised={Channel(f"{table}/k"): promised.get(table, 0) for table in ("t", "u")}
    )


def reads(actions: Sequence[ShareAction]) -> list[frozenset[Channel]]:
    """The channels that may be read in parts, of each epoch that is read."""
    return [action.in_parts for action in actions if isinstance(action, ReadEpoch)]


def test_a_lookup_waits_for_the_rest_of_its_keys_rows() -> None:
    machine = worker(assign(plans=(BOTH,)), opened(1), rows(1, ONE, channel=HALF))
    assert answered(machine.step(asked(ONE))) == {}
    assert answered(machine.step(rows(1, ONE, ANOTHER, channel=REST))) == {}
    assert answered(machine.step(end(1, t=1, u=2))) == {1: ({ONE: [1, 1]}, 1)}


def test_a_key_without_rows_of_the_epoch_does_not_wait() -> None:
    machine = worker(assign(plans=(BOTH,)), opened(1), rows(1, ONE, channel=HALF))
    assert answered(machine.step(asked(ANOTHER))) == {1: ({}, 0)}
    (together, *_) = machine.step(asked_together([ONE], [ANOTHER], ticket=5))
    assert isinstance(together, AnswerTogether)
    assert list(together.tickets) == [6]


def test_a_mixed_epoch_must_be_over_everywhere() -> None:
    machine = worker(assign(plans=(BOTH,)), opened(1, mixed=True), rows(1, ONE, channel=HALF), end(1, t=1))
    assert answered(machine.step(asked(ONE))) == {}
    assert answered(machine.step(over(1))) == {1: ({ONE: [1]}, 1)}


def test_without_the_rule_a_lookup_gets_a_part() -> None:
    events = assign(plans=(BOTH,)), opened(1), rows(1, ONE, channel=HALF)
    machine = worker(*events, rules=replace(ALL_RULES, worker_whole_keys=False))
    assert answered(machine.step(asked(ONE))) == {1: ({ONE: [1]}, 0)}


def test_a_view_with_one_channel_waits_for_nothing() -> None:
    assert len(PLAN.regions[-1].inputs) == 1
    machine = worker(assign(), opened(1), rows(1, ONE))
    assert answered(machine.step(asked(ONE))) == {1: ({ONE: [1]}, 0)}


def test_a_lookup_of_a_key_that_goes_on_in_the_next_batch_waits_and_others_do_not() -> None:
    machine = worker(assign(), opened(1), replace(rows(1, ONE, ANOTHER, ANOTHER), goes_on=True))
    assert answered(machine.step(asked(ONE))) == {1: ({ONE: [1]}, 0)}
    assert answered(machine.step(asked(ANOTHER, ticket=2))) == {}
    assert answered(machine.step(rows(1, ANOTHER))) == {}
    assert answered(machine.step(read(1, 4))) == {2: ({ANOTHER: [1, 1, 1]}, 1)}


def test_keys_that_move_get_their_rows_whole() -> None:
    machine = worker(assign(HALVES), meet(0, 1), PeersMet(meeting=1))
    assert reads(machine.step(opened(1))) == [frozenset({CHANNEL})]
    machine.step(read(1, 0))
    machine.step(announce(HALVES, owners_with(HALVES, v0=1)))
    assert reads(machine.step(opened(2, mixed=True))) == [frozenset()]


@pytest.mark.parametrize(
    ("relation", "in_parts"),
    [
        (scan(TABLE), True),
        (COUNTED, True),
        (count(where(COUNTED, "10 / n > 2"), "k"), False),
        (
            windowed(scan(TABLE), "k", (Order("e", False, True),), WindowCall("row_number", None, "n", pa.int32())),
            False,
        ),
    ],
    ids=["rows", "count", "a test of the count that may fail for a part", "window"],
)
def test_only_what_may_see_parts_of_a_key_is_given_them(relation: Relation, in_parts: bool) -> None:
    machine = worker(assign(plans=(dataflow("seen", relation, ("k",), TABLE),)))
    assert reads(machine.step(opened(1))) == [frozenset({CHANNEL} if in_parts else ())]


def test_what_is_noted_is_forgotten_when_its_epoch_is_over() -> None:
    keys = UnfinishedKeys()
    keys.note(Epoch(1), np.array([7, 3, 7], np.uint64))
    keys.note(Epoch(2), np.array([5], np.uint64))
    asked_for = np.array([1, 3, 5, 7, 9], np.uint64)
    assert keys.among(asked_for).tolist() == [False, True, True, True, False]
    keys.over(Epoch(1))
    assert keys.among(asked_for).tolist() == [False, False, True, False, False]
    keys.over(Epoch(2))
    assert not keys
    assert not keys.among(asked_for).any()


@pytest.mark.parametrize("lots", [1, 3])
def test_of_very_many_keys_none_is_told_apart(lots: int) -> None:
    keys = UnfinishedKeys()
    for part in np.array_split(np.arange(UNFINISHED_KEYS_MAX + 1, dtype=np.uint64), lots):
        keys.note(Epoch(1), part)
    assert keys
    assert keys.among(np.array([2**60], np.uint64)).all()
    keys.over(Epoch(1))
    assert not keys.among(np.array([2**60], np.uint64)).any()
