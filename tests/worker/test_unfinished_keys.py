"""Keys that have a part of an epoch's rows: rule worker.whole_keys."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from machines_kit import (
    ALL_MINE,
    CHANNEL,
    FLOW,
    HALVES,
    KEYS,
    PLAN,
    ROWS,
    TABLE,
    VNODES,
    announce,
    answered,
    asked,
    asked_together,
    assign,
    meet,
    move,
    opened,
    over,
    owners_with,
    read,
    reports,
    rows,
    vnode_map,
    worker,
)
from relation_kit import count, dataflow, group, scan, union, where, windowed

from upriver.engine.expressions import Evaluator
from upriver.engine.region import ALL_ROWS, Region
from upriver.hashing import hash64
from upriver.ids import Channel, Epoch, WorkerId
from upriver.plan.plan import Order, TableSpec, WindowCall
from upriver.plan.relation import Relation
from upriver.protocol.messages import BeginStage, RowsSettled, StageDone
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    Answer,
    AnswerTogether,
    EpochRead,
    LookupAsked,
    PeerSaid,
    PeersMet,
    ReadEpoch,
    SendPeer,
    ShareAction,
    ShareEvent,
    TimeToSettle,
)
from upriver.vnodes import vnodes_of
from upriver.worker.share import FlowShare
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


def test_keys_that_another_worker_keeps_get_their_rows_whole() -> None:
    """After a rescale a worker reads some epochs more by the map of before."""
    others = vnode_map(HALVES).vnodes_of_worker(WorkerId(1))
    machine = worker(assign(HALVES, reads=others), meet(0, 1), PeersMet(meeting=1))
    assert reads(machine.step(opened(1))) == [frozenset()]


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


# Stages ---------------------------------------------------------------------------------------------------------------

BY_COUNT = dataflow("seen", count(scan(TABLE), "k"), ("n",), TABLE)
"""The keys that have n rows: their counts go to another region."""
MANY = [f"key {number}" for number in range(24)]
PIECE = TimeToSettle(rows_max=4)


def two_epochs(*meanwhile: ShareEvent, me: int = 0, keys: Sequence[str] = MANY) -> list[ShareEvent]:
    """What worker ``me`` lives through until the counts of epoch 2 are gathered and their stage begins. Each epoch has
    a row of each of the keys: so rows of one count are taken back, and those of the next one come. Worker 0 keeps all.
    meanwhile: what happens between the epochs."""
    maps = dict.fromkeys([region.name for region in BY_COUNT.regions], vnode_map(ALL_MINE))
    every = TimeToSettle(rows_max=ALL_ROWS)
    gathered: list[list[ShareEvent]] = [
        [opened(epoch, mixed=True), rows(epoch, *keys), read(epoch, len(keys)), begin(epoch, 0), every, begin(epoch, 1)]
        for epoch in (1, 2)
    ]
    return [assign(me=me, plans=(BY_COUNT,), maps=maps), *gathered[0], every, over(1), *meanwhile, *gathered[1]]


def after(events: Sequence[ShareEvent], rules: Rules = ALL_RULES) -> FlowShare:
    machine = FlowShare(FLOW, partial(Region.build, evaluator=Evaluator()), rules)
    for event in events:
        machine.step(event)
    return machine


def begin(epoch: int, stage: int) -> BeginStage:
    return BeginStage(epoch=Epoch(epoch), stage=stage)


def asked_count(n: int, ticket: int) -> LookupAsked:
    keys = pa.RecordBatch.from_arrays([pa.array([n], pa.int64())], names=["n"])
    return LookupAsked(
        ticket=ticket, view="seen", keys=keys, hash64=hash64(keys.columns), at_least=Epoch(0), together=False
    )


def rows_answered(actions: Sequence[ShareAction]) -> dict[int, tuple[int, int]]:
    """By ticket: the number of rows, and the epoch."""
    return {a.ticket: (a.rows.num_rows, a.epoch) for a in actions if isinstance(a, Answer)}


def settled(actions: Sequence[ShareAction]) -> int:
    """Rows that the last region has taken in, of its epoch."""
    return int(reports(actions, RowsSettled)[-1].settled["seen"])


def seen_meanwhile(machine: FlowShare) -> tuple[dict[int, set[int]], set[tuple[int, int]]]:
    """Settles a few rows at a time, and looks keys up in between. Returns how many rows of each key were answered, and
    what is answered at the end: numbers of rows, and epochs."""
    seen: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    is_done, calls, so_far = False, 0, 0
    while not is_done:
        actions = machine.step(PIECE)
        assert settled(actions) - so_far <= 2 * PIECE.rows_max
        so_far, is_done, calls = settled(actions), bool(reports(actions, StageDone)), calls + 1
        for n, answers in seen.items():
            answers |= {rows for rows, _ in rows_answered(machine.step(asked_count(n, ticket=3 * calls + n))).values()}
    assert so_far == 2 * len(MANY)
    assert calls >= so_far / PIECE.rows_max
    return seen, set(rows_answered(machine.step(over(2))).values())


def test_a_key_is_settled_in_parts_and_its_lookups_wait_while_others_are_answered() -> None:
    seen, at_last = seen_meanwhile(after(two_epochs()))
    assert seen[1] <= {0, len(MANY)}
    assert seen[2] <= {0, len(MANY)}
    assert seen[3] == {0}
    assert at_last == {(0, 2), (len(MANY), 2)}


def test_without_the_rule_a_lookup_gets_what_is_settled() -> None:
    seen, at_last = seen_meanwhile(after(two_epochs(), replace(ALL_RULES, worker_whole_keys=False)))
    assert seen[1] | seen[2] > {0, len(MANY)}
    assert not at_last


@pytest.mark.parametrize("is_on", [True, False])
def test_worker_moving_keys_whole_a_new_owner_does_not_answer_with_a_part(is_on: bool) -> None:
    first = min((1, 2), key=lambda n: int(asked_count(n, ticket=1).hash64[0]))
    (vnode,) = vnodes_of(asked_count(first, ticket=1).hash64, VNODES).tolist()
    moves = announce(ALL_MINE, owners_with(ALL_MINE, **{f"v{vnode}": 1}), view="seen")
    rules = replace(ALL_RULES, worker_moving_keys_whole=is_on)
    meanwhile = meet(0, 1), PeersMet(meeting=1), moves
    giver = after(two_epochs(*meanwhile), rules)
    taker = after(two_epochs(*meanwhile, me=1, keys=())[:-1], rules)  # the stage has not begun there
    while not settled(giver.step(PIECE)):
        pass
    said = [(WorkerId(0), action) for action in giver.step(move())]
    for sender, action in said:
        if isinstance(action, SendPeer):
            actions = (giver, taker)[action.to].step(PeerSaid(sender=sender, envelope=action.envelope))
            said += [(action.to, answer) for answer in actions]
    ((shown, epoch),) = rows_answered(taker.step(asked_count(first, ticket=1))).values()
    assert epoch == 1
    assert (shown in {0, len(MANY)}) == is_on
