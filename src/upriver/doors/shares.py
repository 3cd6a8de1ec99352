"""Shares of callers in what all of them use: turns to run a query or to read rows, and bytes of answers.

A caller is a token and a name at one host. One caller never has all turns, and all callers of one host do not either,
so another's query need not wait for theirs. A turn that becomes free goes to the caller that has the fewest.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from upriver.errors import Busy

LOOK_S = 0.1
"""Seconds between two looks whether the caller of a query still wants it."""


@dataclass(frozen=True, slots=True)
class QueryCaller:
    """Whose share a query takes. host: that it comes from. name: tells the callers of a host apart; a caller may choose
    it, so it opens no more than the host's share."""

    host: str = ""
    name: str = ""

    @property
    def counted_as(self) -> Sequence[tuple[object, str]]:
        """As of :class:`SharingCaller`; its group is the host."""
        return (self, "of this caller"), (self.host, "of this host"), (None, "of all callers")


OWN_CALLER = QueryCaller()
"""Of queries that this process makes for itself."""


class SharingCaller(Protocol):
    """Whose share something takes."""

    @property
    def counted_as(self) -> Sequence[tuple[object, str]]:
        """What counts are kept by, each with words for it: this caller, its group, and ``None`` for all callers."""


class ExceededBound(NamedTuple):
    """whose: as a count is kept by it. words: for it. most: the bound."""

    whose: object
    words: str
    most: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most of something that there may be in all, of one group of callers, and of one caller."""

    total: int
    group: int
    caller: int

    def exceeded(self, counts: Counter[object], caller: SharingCaller, more: int = 1) -> ExceededBound | None:
        """The first bound that has no room for so much more; ``None`` if all have. counts: as :func:`count` keeps
        them."""
        bounds = zip(caller.counted_as, (self.caller, self.group, self.total), strict=True)
        over = (ExceededBound(whose, words, most) for (whose, words), most in bounds if counts[whose] + more > most)
        return next(over, None)


def count(counts: Counter[object], caller: SharingCaller, more: int) -> None:
    """Count so much more of a caller, or less."""
    for whose, _ in caller.counted_as:
        counts[whose] += more
        if not counts[whose]:
            del counts[whose]


class TurnQueue:
    """Callers that have a turn or wait for one: a machine without clocks or threads. Tickets are numbers."""

    def __init__(self, turns: Bounds, waiting: Bounds) -> None:
        self._bounds, self._waiting_bounds = turns, waiting
        self._held: Counter[object] = Counter()
        self._waits: Counter[object] = Counter()
        self._queue: dict[int, QueryCaller] = {}
        """Callers that wait, by ticket, the longest first."""
        self._taken: dict[int, QueryCaller] = {}
        self._last = 0

    def request(self, caller: QueryCaller) -> tuple[int, bool]:
        """A ticket for a turn, and whether the turn begins at once. Raises Busy if too many wait."""
        self._last += 1
        if self._bounds.exceeded(self._held, caller) is None:  # else another that waits would have had it
            self._begin(self._last, caller)
            return self._last, True
        over = self._waiting_bounds.exceeded(self._waits, caller)
        if over is not None:
            raise Busy(
                f"{over.most:,} queries {over.words} wait for a turn already, and more may not wait: "
                "try again when some of them have ended"
            )
        self._queue[self._last] = caller
        count(self._waits, caller, 1)
        return self._last, False

    def end(self, ticket: int) -> list[int]:
        """End a turn, or the wait for it. Returns the tickets whose turns begin."""
        waited, had = self._queue.pop(ticket, None), self._taken.pop(ticket, None)
        if waited is not None:
            count(self._waits, waited, -1)
        if had is not None:
            count(self._held, had, -1)
        begun = []
        while (next_ticket := self._next()) is not None:
            caller = self._queue.pop(next_ticket)
            count(self._waits, caller, -1)
            self._begin(next_ticket, caller)
            begun.append(next_ticket)
        return begun

    def _begin(self, ticket: int, caller: QueryCaller) -> None:
        self._taken[ticket] = caller
        count(self._held, caller, 1)

    def _next(self) -> int | None:
        """Of those that may have a turn: the one whose host, and then whose caller, has the fewest; then the first."""
        able = [ticket for ticket, caller in self._queue.items() if self._bounds.exceeded(self._held, caller) is None]
        return min(able, key=lambda ticket: self._rank(self._queue[ticket]), default=None)

    def _rank(self, caller: QueryCaller) -> tuple[int, int]:
        return self._held[caller.host], self._held[caller]


class FairTurns:
    """A queue of turns for threads."""

    def __init__(self, turns: Bounds, waiting: Bounds, wait_s_max: float) -> None:
        """wait_s_max: seconds that a caller waits for its turn."""
        self._bounds, self._wait_s_max = turns, wait_s_max
        self._lock = threading.Lock()
        self._queue = TurnQueue(turns, waiting)
        self._begun: dict[int, threading.Event] = {}
        """Of each ticket that waits."""

    def take(self, caller: QueryCaller, check: Callable[[], None]) -> int:
        """Wait for a turn; returns its ticket. check: raises once the turn is not wanted any more. Raises Busy."""
        begun = threading.Event()
        with self._lock:
            ticket, is_begun = self._queue.request(caller)
            if is_begun:
                return ticket
            self._begun[ticket] = begun
        give_up_at = time.monotonic() + self._wait_s_max
        try:
            while not begun.wait(min(LOOK_S, self._wait_s_max)):
                check()
                if time.monotonic() >= give_up_at:
                    raise Busy(
                        f"the query has waited {self._wait_s_max:g} s for its turn: {self._bounds.total} have one at a "
                        f"time, {self._bounds.caller} of one caller: try again soon"
                    )
        except BaseException:
            self.end(ticket)
            raise
        return ticket

    def end(self, ticket: int) -> None:
        """End a turn, on any thread."""
        with self._lock:
            self._begun.pop(ticket, None)
            for other in self._queue.end(ticket):
                self._begun.pop(other).set()


class SharedBytes:
    """Counts bytes that callers hold. Usable by many threads, also while garbage is collected."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._lock = threading.RLock()
        self._held: Counter[object] = Counter()

    def take(self, caller: QueryCaller, nbytes: int) -> None:
        """Raises Busy if there is no room."""
        with self._lock:
            over = self._bounds.exceeded(self._held, caller, nbytes)
            if over is not None:
                raise Busy(
                    f"answers {over.words} of {self._held[over.whose] >> 20:,} MiB wait until they are read, and "
                    f"{over.most >> 20:,} MiB are the most: read them, or try again soon"
                )
            count(self._held, caller, nbytes)

    def give_back(self, caller: QueryCaller, nbytes: int) -> None:
        with self._lock:
            count(self._held, caller, -nbytes)
