"""What waits for a worker's loop: all in order, and lookups ahead of it."""

import queue

import pyarrow as pa
import pytest

from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.protocol.worker_events import LookupAsked, LookupGivenUp
from upriver.runtime.worker_loop import Inbox


def asked(ticket: int) -> LookupAsked:
    keys = pa.RecordBatch.from_pydict({"k": [ticket]})
    hashes = hash64(keys.columns, keys.num_rows)
    return LookupAsked(ticket=ticket, view="v", keys=keys, hash64=hashes, at_least=Epoch(0), together=False)


def given_up(ticket: int) -> LookupGivenUp:
    return LookupGivenUp(ticket=ticket)


def test_events_come_in_their_order_and_a_lookup_wakes_the_waiting_thread() -> None:
    inbox = Inbox()
    inbox.put(given_up(1))
    inbox.ask(asked(7))
    inbox.put(given_up(2))
    assert [inbox.next(None) for _ in range(3)] == [given_up(1), None, given_up(2)]
    with pytest.raises(queue.Empty):
        inbox.next(0)


def test_lookups_are_there_before_the_events_that_came_earlier() -> None:
    inbox = Inbox()
    inbox.put(given_up(1))
    inbox.ask(asked(7))
    inbox.ask(asked(8))
    assert inbox.next(None) == given_up(1)
    assert [lookup.ticket for lookup in inbox.lookups()] == [7, 8]
    assert list(inbox.lookups()) == []


def test_lookups_that_come_while_others_are_taken_wait_for_the_next_time() -> None:
    inbox = Inbox()
    inbox.ask(asked(7))
    taken = inbox.lookups()
    assert next(taken).ticket == 7
    inbox.ask(asked(8))
    assert list(taken) == []
    assert [lookup.ticket for lookup in inbox.lookups()] == [8]
