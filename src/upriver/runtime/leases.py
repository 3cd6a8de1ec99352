"""Leases: which process may speak for a worker's slot, and until when. Rules leases.*: ``docs/internals/failures.md``.

A worker that was given up may live on: stopped by the system, or unreachable. It wakes up with what it knew then. So it
has a *lease*: it speaks only while it knows that the coordinator has heard something that it said within the last
``lease_s`` seconds. The coordinator fills a slot again only when the lease of its last process has expired.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real

from upriver.errors import DeclarationError, WorkerLost, WrongOwner
from upriver.ids import WorkerId
from upriver.net.channel import ChannelEnd, ChannelLimits, now

SILENCE_S = 2.0
"""Seconds of silence after which a worker is given up, unless the user says otherwise."""
SILENCE_S_MIN = 0.5
"""With less, a worker whose threads wait for a processor would count as dead."""
BEATS = 8
"""Heartbeats in the time of silence."""
PATIENCE_S_MIN = 15.0
"""At least how many seconds a worker without its coordinator waits before it gives it up."""
CLOSING_S_MAX = 5.0
"""At most how many seconds a channel takes to close once its connection is cut."""


@dataclass(frozen=True, slots=True)
class FailureDetection:
    """How soon silence is noticed. silence_s: seconds after which the coordinator has given up a silent worker, and a
    worker a silent peer. Raises DeclarationError."""

    silence_s: float = SILENCE_S

    def __post_init__(self) -> None:
        is_number = isinstance(self.silence_s, Real) and not isinstance(self.silence_s, bool)
        if not (is_number and SILENCE_S_MIN <= self.silence_s < math.inf):
            raise DeclarationError(f"worker_silence_s={self.silence_s!r}: give seconds, at least {SILENCE_S_MIN:g}")

    @property
    def ping_s(self) -> float:
        """Seconds between two heartbeats."""
        return self.silence_s / BEATS

    @property
    def lease_s(self) -> float:
        """Seconds for which a worker may speak after the coordinator has heard from it."""
        return 3 * self.ping_s

    @property
    def limits(self) -> ChannelLimits:
        """Limits of the coordinator's end of a worker's channel, and of both ends between two workers.

        Silence is noticed with a heartbeat, and threads may be late. So the limit leaves a heartbeat for each.
        """
        return ChannelLimits(ping_s=self.ping_s, silence_s_max=self.silence_s - 2 * self.ping_s)

    @property
    def worker_limits(self) -> ChannelLimits:
        """Limits of the worker's end of its channel to the coordinator.

        A worker that hears nothing stands still (leases.speak_only_with_lease), so it can wait. If the coordinator
        comes back before it has given the worker up, all goes on.
        """
        return ChannelLimits(ping_s=self.ping_s, silence_s_max=max(PATIENCE_S_MIN, 4 * self.silence_s))


USUAL = FailureDetection()


class Lease:
    """A worker's right to speak; usable by any thread. The worker has no lease before ``begin``."""

    def __init__(self, failure_detection: FailureDetection) -> None:
        self._seconds = failure_detection.lease_s
        self._channel: ChannelEnd | None = None

    def begin(self, channel: ChannelEnd) -> None:
        """This is the channel to the coordinator."""
        self._channel = channel

    def wait(self, seconds: float | None) -> bool:
        """Block until this worker may speak, at most ``seconds`` if given, or until it never will again; returns
        whether it may."""
        return self._channel is not None and self._channel.heartbeats.wait_confirmed(self._seconds, seconds)

    @property
    def is_held(self) -> bool:
        """Whether this worker may speak now."""
        return self._channel is not None and self._channel.heartbeats.is_confirmed(self._seconds)

    def check(self) -> None:
        """Return when this worker may still speak now that it has an answer (leases.speak_only_with_lease). Raises
        WrongOwner if it may not in the time of a lease.

        An answer found before the lease expired is given out when the lease holds again: then the slot was this
        worker's all the time.
        """
        if not self.wait(self._seconds):
            raise WrongOwner("this worker no longer hears its coordinator, and may have been replaced")


class WorkerSlots:
    """The coordinator's side: which channel holds each worker slot. Usable by any thread.

    failure_detection: the workers' failure detection. clock: in seconds, that of the channels' heartbeats.
    """

    def __init__(self, failure_detection: FailureDetection, clock: Callable[[], float] = now) -> None:
        self._lease_s = failure_detection.lease_s
        self._clock = clock
        self._changed = threading.Condition()
        """Guards all that follows, and announces that a slot has become free before its time."""
        self._ends: dict[WorkerId, ChannelEnd] = {}
        self._free_at: dict[WorkerId, float] = {}
        """When the lease of each slot's last process has expired."""
        self._last_ends: dict[WorkerId, ChannelEnd] = {}
        """The channel of each slot's last process, which has closed."""
        self._exited: set[ChannelEnd] = set()
        """Of ``_ends``, those whose processes have exited."""

    def make_room(self, worker: WorkerId) -> None:
        """Close the channel that holds this slot, and block until every lease on the slot has expired
        (leases.place_free_after_lease).

        Raises WorkerLost if the channel does not close in time.
        """
        with self._changed:
            before = self._ends.get(worker)
        if before is not None:
            before.give_up(WorkerLost(f"worker {worker}: another process has taken its slot"))
            if not before.wait_closed(CLOSING_S_MAX):
                raise WorkerLost(f"worker {worker}: its slot is not free")
        while (seconds := self.free_in(worker)) > 0:
            with self._changed:
                self._changed.wait_for(partial(self._is_free, worker), seconds)

    def has_lease(self, worker: WorkerId) -> bool:
        """Whether the process in the slot may still have a lease, as far as the coordinator knows."""
        with self._changed:
            end = self._ends.get(worker)
            if end is None or end in self._exited:
                return False
        return self._clock() < end.heartbeats.heard_at + self._lease_s

    def _is_free(self, worker: WorkerId) -> bool:
        return self._clock() >= self._free_at.get(worker, 0.0)

    def free_in(self, worker: WorkerId) -> float:
        """Seconds until the lease of the slot's last process has expired."""
        with self._changed:
            return max(0.0, self._free_at.get(worker, 0.0) - self._clock())

    def enter(self, worker: WorkerId, end: ChannelEnd) -> None:
        """Take a slot for which room was made. Raises WorkerLost if another process was quicker."""
        with self._changed:
            if worker in self._ends:
                raise WorkerLost(f"worker {worker}: another process has taken its slot")
            self._ends[worker] = end

    def leave(self, worker: WorkerId, end: ChannelEnd, *, is_silenced: bool) -> bool:
        """Free a slot; returns whether this channel held it until now. is_silenced: the worker ended its lease
        itself."""
        with self._changed:
            if self._ends.get(worker) is not end:
                return False
            del self._ends[worker]
            is_over = is_silenced or end in self._exited
            self._exited.discard(end)
            self._free_at[worker] = 0.0 if is_over else end.heartbeats.heard_at + self._lease_s
            self._last_ends[worker] = end
            return True

    def exited(self, worker: WorkerId, end: ChannelEnd) -> bool:
        """The process at the other end of this channel has exited: it has no lease any more (leases.over_when_ended).
        Returns whether that ends a lease that is being waited for. Otherwise the channel is about to close by itself,
        behind the last messages of the process, or the slot is another's by now."""
        with self._changed:
            if self._ends.get(worker) is end:
                self._exited.add(end)
                return False
            if self._last_ends.get(worker) is not end:
                return False
            self._free_at[worker] = 0.0
            self._changed.notify_all()
            return worker not in self._ends

    def has_died(self, worker: WorkerId) -> bool:
        """Whether the slot's last process has died by itself: the coordinator had not given it up."""
        with self._changed:
            end = self._last_ends.get(worker)
            return end is not None and end.was_left
