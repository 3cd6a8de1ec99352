"""Epochs that are open beside the one that is read: rows of partial views are applied together at their end, and a
lookup sees nothing of it meanwhile. docs/internals/partial.md, "Falling behind"."""

from dataclasses import replace

import pyarrow as pa
import pytest
from machines_kit import asked
from upquery_kit import ALSO_HERE, HERE, PARTIAL, THIRD, Workers, evict_at_once, present

from upriver.errors import ProtocolError, RowError
from upriver.partial.partial_region import PartialRegion
from upriver.partial.waiting_rows import BEHIND_ROWS_MAX
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.worker.epochs import EPOCHS_BEHIND_MAX
from upriver.worker.serving import Serving
from upriver.worker.shard import Shard

BAD = 99
"""The number of an epoch whose rows no view can be computed from."""


def share_of(workers: Workers, worker: int = 0) -> Shard:
    phase = workers.machines[worker].phase
    assert isinstance(phase, Serving)
    return phase.regions.shards[PARTIAL.name]


def with_open_epochs(count: int, *keys: str, first: int = 1, rules: Rules = ALL_RULES) -> Workers:
    """These keys are present at worker 0, where so many epochs are open, each with a row of each key."""
    workers = Workers(rules=rules)
    while len(workers.epochs) < first - 1:
        workers.epoch()
    workers.fill(0, *keys)
    for _ in range(count):
        workers.open(0, workers.publish(*keys))
    return workers


def test_rows_of_epochs_that_are_open_are_applied_together() -> None:
    workers = with_open_epochs(3, HERE, ALSO_HERE)
    together = workers.look_up(0, HERE, ALSO_HERE, together=True)
    for _ in range(2):
        workers.end(0)
        assert share_of(workers).is_behind
        assert present(workers, 0)["rows"] == 0
        assert together not in workers.answers
    workers.end(0)
    assert not share_of(workers).is_behind
    assert workers.answers == {**workers.answers, together: ({HERE: [1, 2, 3], ALSO_HERE: [1, 2, 3]}, 3)}


def test_a_lookup_of_one_key_is_answered_at_once_and_has_its_rows() -> None:
    workers = with_open_epochs(3, HERE, ALSO_HERE)
    workers.end(0)
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [1]}, 1)
    assert not share_of(workers).is_behind, "for one key all are applied"


def test_a_lookup_of_a_key_without_rows_leaves_those_of_others_alone() -> None:
    workers = with_open_epochs(0, HERE, ALSO_HERE)
    for _ in range(2):
        workers.open(0, workers.publish(HERE))
    workers.end(0)
    assert workers.answers[workers.look_up(0, ALSO_HERE)] == ({}, 1)
    assert share_of(workers).is_behind


def test_a_lookup_for_an_epoch_is_answered_at_its_end() -> None:
    """Another worker has answered for the other keys as of that epoch: a later one would be of no use."""
    workers = with_open_epochs(3, HERE, ALSO_HERE)
    exact = workers.look_up(0, HERE, ALSO_HERE, at_least=2, together=True)
    workers.end(0)
    assert share_of(workers).is_behind
    assert exact not in workers.answers
    workers.end(0)
    assert workers.answers[exact] == ({HERE: [1, 2], ALSO_HERE: [1, 2]}, 2)
    workers.end(0)
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [1, 2, 3]}, 3)


def test_a_worker_that_never_catches_up_answers_all_the_same() -> None:
    workers = with_open_epochs(1, HERE, ALSO_HERE)
    ticket = workers.look_up(0, HERE, ALSO_HERE, together=True)
    for _ in range(EPOCHS_BEHIND_MAX):
        workers.open(0, workers.publish(HERE, ALSO_HERE))
        assert ticket not in workers.answers
        workers.end(0)
    numbers = list(range(1, EPOCHS_BEHIND_MAX + 1))
    assert workers.answers[ticket] == ({HERE: numbers, ALSO_HERE: numbers}, EPOCHS_BEHIND_MAX)


def test_lookups_that_have_waited_are_answered_each_with_its_own_keys() -> None:
    workers = with_open_epochs(1, HERE, ALSO_HERE)
    same = [workers.look_up(0, HERE, ALSO_HERE, together=True), workers.look_up(0, ALSO_HERE, HERE, together=True)]
    half = workers.look_up(0, HERE, THIRD, together=True)
    one = workers.look_up(0, ALSO_HERE, at_least=1)
    nothing = workers.look_up(0, at_least=1)
    workers.end(0)
    for ticket in same:
        assert workers.answers[ticket] == ({HERE: [1], ALSO_HERE: [1]}, 1)
    assert workers.answers[one] == ({ALSO_HERE: [1]}, 1)
    assert workers.answers[nothing] == ({}, 1)
    assert half not in workers.answers, "a key of it is missing"
    workers.answer(0)
    assert workers.answers[half] == ({HERE: [1]}, 1)


def test_lookups_of_clients_that_describe_keys_differently_are_answered_together() -> None:
    workers = with_open_epochs(1, HERE, ALSO_HERE)
    strict = pa.schema([pa.field("k", pa.string(), nullable=False)], metadata={"a": "b"})
    ours = workers.look_up(0, HERE, at_least=1)
    theirs = asked(ALSO_HERE, ticket=77, at_least=1)
    workers.step(0, replace(theirs, keys=pa.RecordBatch.from_arrays(theirs.keys.columns, schema=strict)))
    workers.end(0)
    assert workers.answers[ours] == ({HERE: [1]}, 1)
    assert workers.answers[77] == ({ALSO_HERE: [1]}, 1)


def test_a_key_that_is_evicted_takes_its_rows_along() -> None:
    workers = with_open_epochs(2, HERE, ALSO_HERE)
    workers.end(0)
    evict_at_once(workers, 0, HERE)
    workers.end(0)
    assert (present(workers, 0)["present"], present(workers, 0)["keys"]) == (1, 1)
    assert workers.answers[workers.look_up(0, ALSO_HERE)] == ({ALSO_HERE: [1, 2]}, 2)
    workers.fill(0, HERE)
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [1, 2]}, 2)


def test_keys_that_are_filled_meanwhile_are_right() -> None:
    workers = with_open_epochs(0, HERE)
    for _ in range(3):
        workers.open(0, workers.publish(HERE, THIRD))
    workers.end(0)
    ticket = workers.look_up(0, THIRD)
    workers.end(0)
    workers.answer(0)
    assert workers.answers[ticket] == ({THIRD: [1, 2, 3]}, 2)  # by partial.read_ahead through epoch 3
    workers.end(0)
    both = workers.look_up(0, HERE, THIRD)
    assert workers.answers[both] == ({HERE: [1, 2, 3], THIRD: [1, 2, 3]}, 3)


def test_keys_begin_to_move_with_all_their_rows() -> None:
    workers = with_open_epochs(2, HERE)
    workers.end(0)
    assert share_of(workers).is_behind
    workers.meet()
    assert not share_of(workers).is_behind


def test_a_bad_row_of_a_present_key_makes_it_missing_and_a_lookup_says_why() -> None:
    workers = with_open_epochs(2, HERE, first=BAD - 1)
    workers.end(0)
    workers.end(0)
    assert share_of(workers).failure is None
    ticket = workers.look_up(0, HERE)
    workers.answer(0)
    assert isinstance(workers.refusals[ticket], RowError)
    assert "view 'seen': overflow" in str(workers.refusals[ticket])


def test_a_lookup_that_meets_a_bad_row_that_waits_is_refused_and_others_are_answered() -> None:
    workers = with_open_epochs(2, HERE, first=BAD)
    workers.end(0)
    bad, good = workers.look_up(0, HERE), workers.look_up(0, ALSO_HERE)
    for _ in range(2):
        workers.answer(0)
    assert isinstance(workers.refusals[bad], RowError)
    assert good in workers.answers


def test_many_rows_are_applied_at_once() -> None:
    workers = with_open_epochs(0, HERE)
    workers.open(0, workers.publish(*[HERE] * BEHIND_ROWS_MAX))
    workers.open(0, workers.publish(HERE))
    workers.end(0)
    assert share_of(workers).is_behind
    workers.end(0)
    workers.open(0, workers.publish(*[HERE] * (BEHIND_ROWS_MAX + 1)))
    workers.open(0, workers.publish(HERE))
    workers.end(0)
    assert not share_of(workers).is_behind


def test_a_region_that_is_behind_is_not_read_whole() -> None:
    workers = with_open_epochs(2, HERE)
    workers.end(0)
    region = share_of(workers).region
    assert isinstance(region, PartialRegion)
    with pytest.raises(ProtocolError, match="while it is behind"):
        region.scan()
    with pytest.raises(ProtocolError, match="while it is behind"):
        region.collect(region.keys_of(0, 1))
    assert region.keys_of(0, 1).size == 1
