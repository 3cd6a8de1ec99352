"""Lookups at a worker that are not answered yet, and the passes in which they are answered.

``WaitingLookups``: each lookup has a ticket, by which the machine answers or refuses it, and the request that it came
in. No thread waits: the connection of the request is told.

``passes``: requests that have come, joined to one pass over each view.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from upriver.arguments import SECONDS_MAX
from upriver.errors import UpriverError, WaitTimeout, WrongOwner
from upriver.ids import Epoch
from upriver.net.byte_stream import Limit, Watch
from upriver.net.lookups import LookupConnection, LookupRequest
from upriver.protocol.lookups import Answered
from upriver.protocol.worker_events import Answer, AnswerTogether, LookupsAsked

TICKET_BITS = 30
"""Bits of a ticket's number: each process draws so many at random, and as many count its lookups."""
PASS_KEYS_MAX = 8_192
"""Keys of one pass over a view, unless a single request has more. Other requests wait for the next pass."""


def passes(requests: Sequence[LookupRequest]) -> Iterator[list[LookupRequest]]:
    """Requests of one view and key type together, in the order in which they came, at most so many keys at a time."""
    if len(requests) == 1:
        yield [*requests]
        return
    by_view: dict[str, list[LookupRequest]] = {}
    for request in requests:
        by_view.setdefault(request.view, []).append(request)
    for of_view in by_view.values():
        batch: list[LookupRequest] = []
        keys = 0
        for request in of_view:
            count = request.keys.num_rows
            if batch and (keys + count > PASS_KEYS_MAX or not request.keys.schema.equals(batch[0].keys.schema)):
                yield batch
                batch, keys = [], 0
            batch.append(request)
            keys += count
        yield batch


class WaitingLookups:
    """All and only the lookups that are not answered. Called by any thread."""

    def __init__(
        self, committed_at: Callable[[Epoch], float | None], late: Callable[[int, str, float], WaitTimeout]
    ) -> None:
        """committed_at: when an epoch was. late: gives up a lookup by its ticket, because its time is over; makes the
        error of its view and its seconds."""
        self._committed_at = committed_at
        self._late = late
        self._lock = threading.Lock()
        # Peers that answer late know a lookup by its ticket alone: no two processes may use the same ones.
        self._next = secrets.randbits(TICKET_BITS) << TICKET_BITS
        self._waiting: dict[int, tuple[LookupRequest, int]] = {}
        """By ticket: the request, and the lookup's place in it."""
        self._limits: dict[int, Limit] = {}
        """By ticket, of the lookups that were not answered at once."""
        self._watch = Watch()
        self._touched: set[LookupConnection] = set()
        """The connections that have something to send."""
        self.is_closed = False

    def begin(self, requests: Sequence[LookupRequest]) -> LookupsAsked:
        """The lookups of these requests, of one view, as one event."""
        first = requests[0]
        lookups = first.lookups if len(requests) == 1 else [each for request in requests for each in request.lookups]
        with self._lock:
            ticket = number = self._next
            self._next += len(lookups)
        for request in requests:
            for place in range(len(request.lookups)):
                self._waiting[number] = request, place
                number += 1
        if len(requests) == 1:
            keys, hash64 = first.keys, first.hash64
        else:
            # By column: pyarrow cannot concatenate batches whose schemas differ in whether a column may be null.
            parts = zip(*(request.keys.columns for request in requests), strict=True)
            keys = pa.RecordBatch.from_arrays([pa.concat_arrays(each) for each in parts], schema=first.keys.schema)
            hash64 = np.concatenate([request.hash64 for request in requests])
        return LookupsAsked(ticket=ticket, view=first.view, keys=keys, hash64=hash64, lookups=lookups)

    def end(self, event: LookupsAsked, requests: Sequence[LookupRequest]) -> None:
        """The machine has taken the event: what is not answered waits, and its time is limited."""
        for place, lookup in enumerate(event.lookups):
            if (ticket := event.ticket + place) in self._waiting:
                self._limit(ticket, event.view, lookup.timeout)
        for request in requests:
            request.connection.take(request)
            self._touched.add(request.connection)

    def _limit(self, ticket: int, view: str, seconds: float) -> None:
        def is_late() -> None:
            self._settle_now(ticket, self._late(ticket, view, seconds))

        self._limits[ticket] = limit = self._watch.limit(time.monotonic() + min(seconds, SECONDS_MAX), is_late)
        self._watch.begin(limit)
        if ticket not in self._waiting:  # it was answered meanwhile
            self._forget(ticket)

    def settle(self, ticket: int, outcome: Answer | UpriverError) -> None:
        """The lookup is answered, or refused. Does nothing if its client has stopped waiting."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return
        self._forget(ticket)
        request, place = waiting
        self._touched.add(request.connection)
        if isinstance(outcome, UpriverError):
            request.connection.refuse(request, place, outcome)
            return
        rows = outcome.rows  # takes long for many rows in several parts
        answered = Answered(
            outcome.epoch, outcome.version, outcome.relayed, outcome.held_up, self._committed_at(outcome.epoch)
        )
        request.connection.answer(request, (place,), rows, np.array([rows.num_rows]), answered)

    def settle_together(self, answer: AnswerTogether) -> None:
        """Several lookups are answered."""
        answered = Answered(answer.epoch, answer.version, committed_at=self._committed_at(answer.epoch))
        waiting = [self._waiting.pop(ticket, None) for ticket in answer.tickets]
        if len(waiting) == 1 and (only := waiting[0]) is not None:
            only[0].connection.answer(only[0], (only[1],), answer.rows, answer.ends, answered)
            self._touched.add(only[0].connection)
            return
        row = lookup = 0
        for request, group in groupby(waiting, lambda each: None if each is None else each[0]):
            places = [each[1] for each in group if each is not None]
            ends = answer.ends[lookup : lookup + max(1, len(places))]
            if request is not None:
                rows = answer.rows.slice(row, int(ends[-1]) - row)
                request.connection.answer(request, places, rows, ends - row, answered)
                self._touched.add(request.connection)
            row, lookup = int(ends[-1]), lookup + len(ends)

    def _settle_now(self, ticket: int, error: UpriverError) -> None:
        """The lookup is refused, by another thread than those that flush."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            self._limits.pop(ticket, None)
            request, place = waiting
            request.connection.refuse(request, place, error)
            request.connection.flush()

    def _forget(self, ticket: int) -> None:
        if (limit := self._limits.pop(ticket, None)) is not None:
            self._watch.end(limit)

    def flush(self) -> None:
        """Send what was settled."""
        while self._touched:
            self._touched.pop().flush()

    def leave(self, connection: LookupConnection) -> list[int]:
        """The client has gone. Returns the tickets of the lookups that it no longer waits for."""
        gone = [ticket for ticket, (request, _) in list(self._waiting.items()) if request.connection is connection]
        for ticket in gone:
            self._waiting.pop(ticket, None)
            self._forget(ticket)
        return gone

    def refuse(self, requests: Sequence[LookupRequest]) -> None:
        """Refuse requests that have come after ``close``."""
        for request in requests:
            for place in range(len(request.lookups)):
                request.connection.refuse(request, place, _retired())
            request.connection.take(request)
            request.connection.flush()

    def close(self) -> None:
        """The worker has retired: refuse all lookups, and those to come."""
        self.is_closed = True  # before the lookups are refused: later ones see it
        for ticket in list(self._waiting):
            self._settle_now(ticket, _retired())
        self._watch.close()


def _retired() -> WrongOwner:
    return WrongOwner("this worker has retired")
