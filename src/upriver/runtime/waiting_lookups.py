"""Lookups at a worker that are not answered yet: each has a client's thread that waits for its outcome."""

import itertools
import secrets

from upriver.errors import UpriverError, WrongOwner
from upriver.net.byte_stream import Latch
from upriver.protocol.lookups import Answered
from upriver.protocol.worker_events import Answer

TICKET_BITS = 30
"""Bits of a ticket's number: each process draws so many at random, and as many count its lookups."""


class LookupWaiter:
    """Any thread calls ``settle``, once; the thread that asked calls ``wait``."""

    __slots__ = ("_is_settled", "_outcome")

    def __init__(self) -> None:
        self._is_settled = Latch()
        self._outcome: Answer | UpriverError | None = None

    def settle(self, outcome: Answer | UpriverError) -> None:
        """The lookup is answered, or refused."""
        self._outcome = outcome
        self._is_settled.open()

    def wait(self, seconds: float) -> Answer | UpriverError | None:
        """The outcome; ``None`` if there was none in so many seconds."""
        return self._outcome if self._is_settled.wait(seconds) else None


class WaitingLookups:
    """All and only the lookups that are not answered. Called by any thread."""

    def __init__(self) -> None:
        # Peers that answer late know a lookup by its ticket alone: no two processes may use the same ones.
        self._tickets = itertools.count(secrets.randbits(TICKET_BITS) << TICKET_BITS)
        self._waiters: dict[int, LookupWaiter] = {}
        """By ticket."""
        self._is_closed = False

    def begin(self) -> tuple[int, LookupWaiter]:
        """A new lookup's ticket and waiter. Raises WrongOwner after ``close``."""
        ticket, waiter = next(self._tickets), LookupWaiter()
        self._waiters[ticket] = waiter
        if self._is_closed:
            raise _retired()
        return ticket, waiter

    def give_up(self, ticket: int) -> None:
        """The thread has stopped waiting."""
        self._waiters.pop(ticket, None)

    def settle(self, ticket: int, outcome: Answer | UpriverError) -> None:
        """The lookup is answered, or refused. Does nothing if its thread has stopped waiting."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is not None:
            waiter.settle(outcome)

    def close(self) -> None:
        """The worker has retired: refuse all lookups, and those to come."""
        self._is_closed = True  # before the waiters are settled: later lookups see it
        for ticket in list(self._waiters):
            self.settle(ticket, _retired())


def _retired() -> WrongOwner:
    return WrongOwner("this worker has retired")


def answered(answer: Answer) -> Answered:
    """The machine's answer as it goes to the client. Takes long for many rows in several parts."""
    return Answered(answer.rows, answer.epoch, answer.version, answer.relayed, answer.held_up)
