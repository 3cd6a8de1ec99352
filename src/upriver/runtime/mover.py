"""When a worker moves keys, and what it costs: the pace of a rescale in one worker's loop."""

import time
from dataclasses import replace

from upriver.migration.messages import Acquire
from upriver.migration.pace import Pace
from upriver.migration.redistribute_messages import Redistribute, Sets
from upriver.migration.rests import REST_SHARE_IDLE, REST_SHARE_MIN, Rests
from upriver.protocol.messages import FromWorker, Moved
from upriver.protocol.peers import Envelope, ForRegion, Installed

BUSY_S = 0.5
"""Seconds after a lookup in which another one is to be expected."""


class Mover:
    """Keeps the time. Used by the worker's loop alone; times are those of ``time.perf_counter``.

    How many keys a step may have, and how long to rest after it, follows from the processor time that steps take: what
    they take by the clock is longer on a busy machine, but no shorter with fewer keys.
    """

    def __init__(self, budget_s: float) -> None:
        """budget_s: seconds that one step may take."""
        self._budget_s = budget_s
        self._keys_max: int | None = None
        self._paces: dict[str, Pace] = {}
        """By region: what a key costs depends on what is kept of it."""
        self._rests = Rests()
        self._rests_until = 0.0
        self._busy_until = 0.0
        self._step_began = 0.0
        self._work_began = 0.0
        """By the processor time of the loop's thread."""
        self._keys_given = 0
        """In the step under way."""
        self._hold_began: float | None = None
        """When the keys were put on hold that are to be collected next; ``None`` if they will be in that step."""
        self._load_keys, self._load_s = 0, 0.0
        """Of the load on its way: how many keys, and how long the step took that has sent them."""
        self._load_began: float | None = None
        """When the keys were put on hold whose state is on its way."""
        self._anew_since: float | None = None
        """When this worker has begun anew, until it is where it was."""
        self.stall_s = 0.0
        """The longest step so far."""
        self.hold_s = 0.0
        """The longest that keys given away here were out of service so far: from when they were put on hold until
        their new owner has said that their state is in place."""

    def begin(self, keys_max: int | None) -> None:
        """Another rescale. keys_max: keys at a time, if the user has said so."""
        self._keys_max, self._paces, self._rests = keys_max, {}, Rests()
        self.stall_s = self.hold_s = 0.0
        self._hold_began = self._load_began = None

    def begins_anew(self) -> None:
        """All keys that this worker keeps are out of service from now on."""
        self.hold_s, self._anew_since = 0.0, time.perf_counter()

    def is_back(self) -> bool:
        """All keys are back; whether they were away."""
        if self._anew_since is None:
            return False
        self.hold_s, self._anew_since = time.perf_counter() - self._anew_since, None
        return True

    def keys(self, region: str) -> int:
        """Of this region, to be moved in the next step if it moves some of these."""
        return self._pace(region).keys

    def _pace(self, region: str) -> Pace:
        return self._paces.setdefault(region, Pace(self._budget_s, self._keys_max))

    @property
    def gives(self) -> bool:
        """Whether the step under way has given keys away."""
        return self._keys_given > 0

    @property
    def rest_share(self) -> float:
        """How long to rest after a step, in steps."""
        if time.perf_counter() >= self._busy_until:
            return REST_SHARE_IDLE
        if self._hold_began is not None:  # keys wait for the next step
            return REST_SHARE_MIN
        return self._rests.share

    def rest_s(self) -> float:
        """Seconds until the next step is due; 0 if it is."""
        return max(0.0, self._rests_until - time.perf_counter())

    def reports(self, message: FromWorker) -> None:
        """The coordinator is told this; perhaps how much there is still to give."""
        if isinstance(message, Moved):
            self._rests.told(message.region, message.vnodes_left)

    def asked(self) -> None:
        """Somebody looks something up here, and would wait for a step."""
        self._busy_until = time.perf_counter() + BUSY_S

    def step_begins(self) -> None:
        self._step_began, self._work_began, self._keys_given = time.perf_counter(), time.thread_time(), 0

    def sends(self, envelope: Envelope) -> Envelope:
        """The step under way sends this; with the time in it, if it is to tell one."""
        match envelope.content:
            case Installed() as installed:
                return replace(envelope, content=replace(installed, seconds=time.thread_time() - self._work_began))
            case ForRegion(message=Acquire(keys=keys)):
                self._keys_given += len(keys)
                self._load_began = self._step_began if self._hold_began is None else self._hold_began
                self._hold_began = None
            case ForRegion(message=Redistribute(following=hold) | Sets(hold=hold)) if len(hold):
                self._hold_began = time.perf_counter()
        return envelope

    def hears(self, envelope: Envelope) -> None:
        """The step under way was set off by this, and is over."""
        match envelope.content:
            case ForRegion(message=Acquire()):
                self._has_worked()
            case Installed(region=region, seconds=seconds) if self._load_began is not None:
                self.hold_s = max(self.hold_s, time.perf_counter() - self._load_began)
                self._load_began = None
                # Both ends have a loop that others wait for: the slower one sets the pace.
                self._pace(region).took(self._load_keys, max(self._load_s, seconds))

    def resumed(self) -> None:
        """The step under way has taken slices over, or given them up: meanwhile their keys were out of service."""
        seconds = time.perf_counter() - self._step_began
        self.stall_s, self.hold_s = max(self.stall_s, seconds), max(self.hold_s, seconds)

    def gave(self) -> None:
        """The step under way, which has given keys away, is over: their state is packed."""
        self._load_keys, self._load_s = self._keys_given, self._has_worked()

    def _has_worked(self) -> float:
        """Rest for a while; how long the step took, in seconds of processor time."""
        now, seconds = time.perf_counter(), time.thread_time() - self._work_began
        self._rests.took(seconds)
        self._rests_until = now + self.rest_share * seconds
        self.stall_s = max(self.stall_s, now - self._step_began)
        return seconds
