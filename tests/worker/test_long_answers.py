"""Long answers of a worker: read some rows at a time, as of one moment, while all else goes on."""

import pyarrow as pa
import pytest
from machines_kit import ALL_MINE, FLOW, KEYS, Seen, answered, applied, asked, assign, opened, read, refused, rows

from upriver.engine.operators.view import LongRead
from upriver.errors import RowError
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.protocol.messages import FailView, Retire
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import LookupGivenUp, TimeToAnswer
from upriver.state.failure import ViewFailure
from upriver.worker.long_answers import LONG_ANSWERS_MAX
from upriver.worker.share import FlowShare

MANY, OTHER = KEYS[0][:5], KEYS[1][0]


def worker(rules: Rules = ALL_RULES, region: type[Seen] = Seen) -> FlowShare:
    """It has a row of each key of epoch 1, and reads two rows of a lookup in one go."""
    machine = FlowShare(FLOW, lambda *_: region(), rules, answer_rows_max=2)
    for event in (assign(ALL_MINE), *applied([*MANY, OTHER])):
        machine.step(event)
    return machine


def read_all(machine: FlowShare, rows_max: int = 2) -> dict[int, tuple[dict[str, list[int]], int]]:
    answers: dict[int, tuple[dict[str, list[int]], int]] = {}
    while machine.unread:
        answers |= answered(machine.step(TimeToAnswer(rows_max=rows_max)))
    return answers


@pytest.mark.parametrize("one_moment", [True, False])
def test_a_long_answer_is_as_of_the_moment_at_which_it_began(one_moment: bool) -> None:
    machine = worker(Rules(lookups_one_moment=one_moment))
    assert machine.step(asked(*MANY, ticket=7)) == []
    assert machine.unread == 5
    assert answered(machine.step(TimeToAnswer(rows_max=2))) == {}
    for event in (opened(2), rows(2, *MANY), read(2, 5)):
        machine.step(event)
    assert answered(machine.step(asked(MANY[4], ticket=8))) == {8: ({MANY[4]: [1, 2]}, 2)}
    found = read_all(machine)
    assert list(found) == [7]
    assert (found[7] == ({key: [1] for key in MANY}, 1)) is one_moment


def test_other_keys_are_answered_and_epochs_are_taken_in_meanwhile() -> None:
    machine = worker()
    machine.step(asked(*MANY, ticket=7))
    assert answered(machine.step(asked(OTHER, ticket=8))) == {8: ({OTHER: [1]}, 1)}
    for event in (opened(2), rows(2, OTHER), read(2, 1)):
        machine.step(event)
    assert answered(machine.step(asked(OTHER, ticket=9))) == {9: ({OTHER: [1, 2]}, 2)}
    assert read_all(machine) == {7: ({key: [1] for key in MANY}, 1)}


def test_more_long_answers_than_may_be_under_way_wait_for_their_turn() -> None:
    machine = worker()
    tickets = range(LONG_ANSWERS_MAX + 2)
    for ticket in tickets:
        assert machine.step(asked(*MANY, ticket=ticket)) == []
    assert machine.unread == LONG_ANSWERS_MAX * 5
    assert read_all(machine) == dict.fromkeys(tickets, ({key: [1] for key in MANY}, 1))


def test_an_answer_that_no_client_waits_for_is_read_no_further() -> None:
    machine = worker()
    machine.step(asked(*MANY, ticket=7))
    machine.step(LookupGivenUp(ticket=7))
    assert machine.unread == 0
    assert machine.step(TimeToAnswer(rows_max=2)) == []


def test_a_view_that_fails_meanwhile_refuses_the_lookup() -> None:
    machine = worker()
    machine.step(asked(*MANY, ticket=7))
    failure = ViewFailure(kind="RowError", error="overflow")
    assert refused(machine.step(FailView(view="seen", failure=failure))) == {7: RowError}
    assert machine.unread == 0


def test_a_worker_that_retires_refuses_the_lookup() -> None:
    machine = worker()
    machine.step(asked(*MANY, ticket=7))
    assert list(refused(machine.step(Retire()))) == [7]
    assert machine.unread == 0


class Failing(Seen):
    """Its third row cannot be read."""

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        whole = super().long_read(hash64, keys)

        def read_rows(start: int, end: int) -> pa.RecordBatch:
            if end > 2:
                raise RowError("overflow")
            return whole.next(end - start)

        return LongRead(whole.rows, read_rows)


def test_a_row_that_cannot_be_read_refuses_the_lookup() -> None:
    machine = worker(region=Failing)
    machine.step(asked(*MANY, ticket=7))
    assert refused(machine.step(TimeToAnswer(rows_max=2))) == {}
    assert refused(machine.step(TimeToAnswer(rows_max=2))) == {7: RowError}
    assert answered(machine.step(asked(OTHER, ticket=8))) == {8: ({OTHER: [1]}, Epoch(1))}
