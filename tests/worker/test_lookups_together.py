"""Lookups of one request are answered as each by itself: at rest, while keys move, with keys that are not present, in
the middle of an epoch, and by a view that has failed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines_kit import (
    HALVES,
    KEYS,
    PLAN,
    VNODES,
    applied,
    asked,
    asked_together,
    assign,
    opened,
    owners_with,
    rows,
    worker,
)
from upquery_kit import PARTIAL, Workers

from upriver.errors import RowError, UnknownView, WrongOwner
from upriver.ids import Epoch
from upriver.protocol.worker_events import Answer, AnswerTogether, Refuse

POOL = [KEYS[vnode][place] for vnode in range(VNODES) for place in range(2)]
ROUNDS = 6


@dataclass(frozen=True)
class Asked:
    """A lookup of the test."""

    keys: tuple[str, ...]
    at_least: int | None
    together: bool


LOOKUPS = st.lists(
    st.builds(
        Asked,
        st.lists(st.sampled_from(POOL), max_size=4).map(tuple),
        st.sampled_from([None, None, 0, 1, 2, 5]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def lived(seed: int, is_partial: bool) -> Workers:
    """Two workers with some history, which the seed decides."""
    rng = Random(seed)
    workers = Workers(plan=PARTIAL if is_partial else PLAN)
    for _ in range(rng.randint(0, 3)):
        workers.epoch(*rng.sample(POOL, rng.randint(0, 6)))
    if is_partial:
        for key in rng.sample(POOL[: len(POOL) // 2], 3):
            workers.fill(0, key)
    kind = rng.randrange(4)
    if kind == 1:  # in the middle of an epoch
        epoch = workers.publish(*rng.sample(POOL, 5))
        for number in (0, 1):
            workers.open(number, epoch)
    elif kind >= 2:  # while keys move
        workers.meet()
        workers.rescale(owners_with(HALVES, v1=1, v5=0))
        if kind == 3:
            workers.carry_all()
        while workers.machines[0].can_move and rng.random() < 0.5:
            workers.move(0)
    return workers


def asked_apart(workers: Workers, lookups: Sequence[Asked]) -> None:
    for ticket, lookup in enumerate(lookups, 1_000):
        workers.step(0, asked(*lookup.keys, ticket=ticket, at_least=lookup.at_least or 0, together=lookup.together))


def asked_at_once(workers: Workers, lookups: Sequence[Asked]) -> None:
    workers.step(
        0,
        asked_together(
            *(lookup.keys for lookup in lookups),
            ticket=1_000,
            at_least=[lookup.at_least for lookup in lookups],
            together=[lookup.together for lookup in lookups],
        ),
    )


def outcomes(workers: Workers) -> tuple[object, object, object]:
    refusals = {ticket: (type(error), str(error)) for ticket, error in workers.refusals.items()}
    return workers.answers, refusals, workers.held_up


def go_on(workers: Workers) -> None:
    """Whatever waits is answered, as far as it can be."""
    for _ in range(ROUNDS):
        workers.carry_all()
        for number in (0, 1):
            while workers.upqueries[number]:
                workers.answer(number)
            workers.rest(number)
            while workers.machines[number].can_move:
                workers.move(number)


@given(st.integers(0, 10_000), st.booleans(), LOOKUPS)
def test_lookups_of_one_request_are_answered_as_each_by_itself(
    seed: int, is_partial: bool, lookups: list[Asked]
) -> None:
    apart, at_once = lived(seed, is_partial), lived(seed, is_partial)
    assert outcomes(apart) == outcomes(at_once)
    asked_apart(apart, lookups)
    asked_at_once(at_once, lookups)
    assert outcomes(at_once) == outcomes(apart)
    for workers in (apart, at_once):
        go_on(workers)
    assert outcomes(at_once) == outcomes(apart)


def test_lookups_that_wait_for_nothing_are_one_answer() -> None:
    machine = worker(assign(), *applied(("a", "b")))
    (action,) = machine.step(asked_together(("a",), ("b", "a"), (), ("c",), ticket=5))
    assert isinstance(action, AnswerTogether)
    assert list(action.tickets) == [5, 6, 7, 8]
    assert action.rows.column("k").to_pylist() == ["a", "b", "a"]
    assert action.ends.tolist() == [1, 3, 3, 3]


def test_one_that_waits_for_an_epoch_leaves_the_others_one_answer() -> None:
    machine = worker(assign(), *applied(("a",)))
    (action,) = machine.step(asked_together(("a",), ("a",), ("b",), at_least=[None, 9, None]))
    assert isinstance(action, AnswerTogether)
    assert list(action.tickets) == [1, 3]


@pytest.mark.parametrize("lookups", [1, 3])
def test_lookups_of_a_view_that_is_not_there_are_refused_each(lookups: int) -> None:
    machine = worker(assign(), *applied(("a",)))
    actions = machine.step(asked_together(*[("a",)] * lookups, view="gone"))
    assert [(type(action), action.ticket) for action in actions if isinstance(action, Refuse)] == [
        (Refuse, 1 + place) for place in range(lookups)
    ]
    assert {type(action.error) for action in actions if isinstance(action, Refuse)} == {UnknownView}


def test_lookups_of_a_failed_view_are_refused_each_with_its_error() -> None:
    machine = worker(assign(), *applied(("a",)))
    machine.step(opened(2))
    machine.step(replace(rows(99, "a"), epoch=Epoch(2)))
    actions = machine.step(asked_together(("a",), ("b",)))
    errors = {action.ticket: type(action.error) for action in actions if isinstance(action, Refuse)}
    assert errors == {1: RowError, 2: RowError}


def test_keys_of_other_workers_are_refused_and_no_other_lookup_is() -> None:
    machine = worker(assign(HALVES, 0))
    here, there = KEYS[0][0], KEYS[7][0]
    actions = machine.step(asked_together((here,), (there,), (here, there), (KEYS[1][0],)))
    (together,) = [action for action in actions if isinstance(action, AnswerTogether)]
    assert list(together.tickets) == [1, 4]
    refusals = [action for action in actions if isinstance(action, Refuse)]
    assert {action.ticket: type(action.error) for action in refusals} == {2: WrongOwner, 3: WrongOwner}
    assert not [action for action in actions if isinstance(action, Answer)]
