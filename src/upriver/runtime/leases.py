"""Who may speak for a worker's place, and until when. Rules leases.*: ``docs/internals/failures.md``.

A worker that is given up may live on: stopped by the system, or where nobody can reach it. It wakes up with what it
knew then. So it has a *lease*: it speaks only while it knows that the coordinator has heard something that it said
within the last ``lease_s`` seconds. And the coordinator fills a place again only when the lease of whoever was there
has run out.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from upriver.errors import DeclarationError, WorkerLost, WrongOwner
from upriver.ids import WorkerId
from upriver.net.channel import ChannelEnd, ChannelLimits, now
from upriver.net.lookups import Answered, KeysAsked, LookupHandler

SILENCE_S = 2.0
"""Seconds of silence after which a worker is given up, unless the user says otherwise."""
SILENCE_S_MIN = 0.5
"""With less, threads that wait for a processor would count as dead."""
BEATS = 8
"""Signs of life in that time."""
PATIENCE_S_MIN = 15.0
"""Seconds, at least, that a worker stands still for before it gives its coordinator up."""
CLOSING_S_MAX = 5.0
"""Seconds that a channel takes at most to be over when its connection was cut."""


@dataclass(frozen=True, slots=True)
class FailureDetection:
    """How soon silence is noticed. silence_s: seconds in which the coordinator has given up a worker that says nothing,
    and a worker a peer. Raises DeclarationError."""

    silence_s: float = SILENCE_S

    def __post_init__(self) -> None:
        is_number = isinstance(self.silence_s, Real) and not isinstance(self.silence_s, bool)
        if not (is_number and SILENCE_S_MIN <= self.silence_s < math.inf):
            raise DeclarationError(f"worker_silence_s={self.silence_s!r}: give seconds, at least {SILENCE_S_MIN:g}")

    @property
    def ping_s(self) -> float:
        """Between two signs of life."""
        return self.silence_s / BEATS

    @property
    def lease_s(self) -> float:
        """For which a worker may speak after the coordinator has heard from it."""
        return 3 * self.ping_s

    @property
    def limits(self) -> ChannelLimits:
        """Of the coordinator's end of a worker's channel, and of both ends between two workers.

        Silence is noticed with a beat, and threads may be late: so there is a beat for each.
        """
        return ChannelLimits(ping_s=self.ping_s, silence_s_max=self.silence_s - 2 * self.ping_s)

    @property
    def worker_limits(self) -> ChannelLimits:
        """Of the worker's end of its channel to the coordinator. A worker that hears nothing stands still
        (leases.speak_only_with_lease), and has time: if the coordinator comes back before it has given the worker up,
        all goes on."""
        return ChannelLimits(ping_s=self.ping_s, silence_s_max=max(PATIENCE_S_MIN, 4 * self.silence_s))


USUAL = FailureDetection()


class Lease:
    """A worker's right to speak; usable by any thread. There is none before ``begin``."""

    def __init__(self, vigilance: FailureDetection) -> None:
        self._seconds = vigilance.lease_s
        self._channel: ChannelEnd | None = None

    def begin(self, channel: ChannelEnd) -> None:
        """This is the channel to the coordinator."""
        self._channel = channel

    def wait(self, seconds: float | None) -> bool:
        """Block until this worker may speak, at most ``seconds`` if any are given, or until it never will again;
        whether it may."""
        return self._channel is not None and self._channel.heart.wait_confirmed(self._seconds, seconds)

    def guard(self, lookup: LookupHandler) -> LookupHandler:
        """Give an answer out only if this worker may still speak when it has it (leases.speak_only_with_lease).

        An answer that was found before the lease ran out is given out when the lease holds again: that it does says
        that the place was this worker's all the time.
        """

        def guarded(wanted: KeysAsked) -> Answered:
            answered = lookup(wanted)
            if not self.wait(self._seconds):
                raise WrongOwner("this worker has lost touch with its coordinator, and may have been replaced")
            return answered

        return guarded


class WorkerSlots:
    """The coordinator's side: whose channel stands for each place. Usable by any thread.

    vigilance: by which the workers keep their leases. clock: in seconds, that of the channels' hearts.
    """

    def __init__(self, vigilance: FailureDetection, clock: Callable[[], float] = now) -> None:
        self._lease_s = vigilance.lease_s
        self._clock = clock
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._ends: dict[WorkerId, ChannelEnd] = {}
        self._free_at: dict[WorkerId, float] = {}
        """When the lease of the last one has run out."""

    def make_room(self, worker: WorkerId) -> None:
        """Block until nobody can believe that a place is his (leases.place_free_after_lease). Who has it is put out.

        Raises WorkerLost if that does not come about.
        """
        with self._lock:
            before = self._ends.get(worker)
        if before is not None:
            before.give_up(WorkerLost(f"worker {worker}: another process has come for its place"))
            if not before.wait_closed(CLOSING_S_MAX):
                raise WorkerLost(f"worker {worker}: its place is not free")
        with self._lock:
            free_at = self._free_at.get(worker, 0.0)
        time.sleep(max(0.0, free_at - self._clock()))

    def has_lease(self, worker: WorkerId) -> bool:
        """Whether the process that has the place may still speak for it, as far as is known here."""
        with self._lock:
            end = self._ends.get(worker)
        return end is not None and self._clock() < end.heart.heard_at + self._lease_s

    def free_in(self, worker: WorkerId) -> float:
        """Seconds until whoever was in a place last can believe in it no more."""
        with self._lock:
            return max(0.0, self._free_at.get(worker, 0.0) - self._clock())

    def enter(self, worker: WorkerId, end: ChannelEnd) -> None:
        """Take a place for which room was made. Raises WorkerLost if another has been quicker."""
        with self._lock:
            if worker in self._ends:
                raise WorkerLost(f"worker {worker}: another process has come for its place")
            self._ends[worker] = end

    def leave(self, worker: WorkerId, end: ChannelEnd, *, is_silenced: bool) -> bool:
        """A place is given up; whether it was this one's until now. is_silenced: it has ended its lease itself."""
        with self._lock:
            if self._ends.get(worker) is not end:
                return False
            del self._ends[worker]
            self._free_at[worker] = 0.0 if is_silenced else end.heart.heard_at + self._lease_s
            return True
