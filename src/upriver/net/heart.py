"""Signs of life on a channel: what one end says of its own, and what it knows of the other's.

Theory of operation. Each end beats, and says so: the number of its beat, and that of the last beat that it has heard of
the other. Two things follow from it. The other is *silent* when nothing has come from it for some beats of ours. And
what the other has heard of us, we know to be as old as the beat that it names, whatever time the news took: that is
what a lease rests on (docs/design/failures.md).

Silence is counted in beats of our own, not in seconds: an end that could not run itself (a process that was stopped, a
call that kept the interpreter's lock) has not listened in that time, and blames nobody. Nor is anybody silent while
what he said before is being handled.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from upriver.net.wire import Message

PING = "channel.ping"
"""A sign of life: ``{"beat": number, "heard": number of the last one that has come}``."""
UNHEARD_BEATS_MAX = 1000
"""Beats of which the time is known while no answer has come."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds by a clock that goes on while this process is stopped; on Linux, while the machine sleeps, too."""
    return time.clock_gettime(_CLOCK)


class Heart:
    """One end's beats. ``beat`` and ``silence`` are called by one thread, ``hearing`` and ``pinged`` by the one that
    reads, everything else by any."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._number = 0
        """Of our last beat."""
        self._times: deque[tuple[int, float]] = deque(maxlen=UNHEARD_BEATS_MAX)
        """When each of our beats was, of those that the other may still tell us it has heard."""
        self._theirs = 0
        """Of the last beat of the other that has come."""
        self._silent_beats = 0
        self._is_hearing = False
        self._heard_at = self._clock()
        self._changed = threading.Condition()
        """Guards and announces what follows."""
        self._confirmed_at = -math.inf
        self._is_over = False

    @property
    def heard_at(self) -> float:
        """When something last came from the other, by :func:`now`; before anything has, when this began."""
        return self._heard_at

    def beat(self) -> Message:
        """Beat once; what is to be said of it."""
        self._number += 1
        self._times.append((self._number, self._clock()))
        if not self._is_hearing:
            self._silent_beats += 1
        return Message(PING, {"beat": self._number, "heard": self._theirs})

    @property
    def silent_beats(self) -> int:
        """Beats of ours since something last came."""
        return self._silent_beats

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Something has come, and is handled in this block."""
        self._heard_at, self._is_hearing = self._clock(), True
        self._silent_beats = 0
        try:
            yield
        finally:
            self._heard_at, self._is_hearing = self._clock(), False
            self._silent_beats = 0

    def pinged(self, fields: Mapping[str, Any]) -> None:
        """The other has beaten, and says what it has heard of us."""
        self._theirs = int(fields["beat"])
        heard, at = int(fields["heard"]), None
        while self._times and self._times[0][0] <= heard:
            _, at = self._times.popleft()
        if at is not None:
            self._confirmed(at)

    # What a lease rests on

    def met(self, said_at: float) -> None:
        """The other has heard what we said at that time, by our clock, before anything was beaten."""
        self._confirmed(said_at)

    def _confirmed(self, at: float) -> None:
        with self._changed:
            self._confirmed_at = at
            self._changed.notify_all()

    def is_confirmed(self, within_s: float) -> bool:
        """Whether the other is known to have heard something that we have said at most so many seconds ago."""
        return not self._is_over and self._clock() < self._confirmed_at + within_s

    def wait_confirmed(self, within_s: float, seconds: float | None) -> bool:
        """Block until that is so, at most ``seconds`` if any are given, or until all is over; whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self.is_confirmed(within_s), seconds)
            return self.is_confirmed(within_s)

    def end(self) -> None:
        """Nothing more is to be heard."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
