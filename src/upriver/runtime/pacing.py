"""How many rows a worker takes in at a time: whoever looks a key up may have to wait until they are taken in.

When a worker moves keys, and what it costs: the pace of a rescale in one worker's loop.

How many keys a slice of a chore has: what the last slices' speed makes of the time that one may take.

One slice is of one view and the next of another, whose keys may be dearer. So what all of them took says little
about the next (a line through them, as :mod:`upriver.migration.pace` has it, made one in eight too long), and one that
was too slow counts at once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from upriver.migration.messages import Acquire, Redistribute, Sets
from upriver.migration.pace import REST_SHARE_IDLE, REST_SHARE_MIN, Pace, Rests
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


KEYS_FIRST = 64
"""Keys of the first slice, of which nothing is known."""
KEYS_MIN = 16
"""Keys of one slice, as long as slices stay within the budget: each has a cost of its own, and where that alone is more
than what is aimed at, fewer and fewer keys would make slices no shorter, only more."""
KEYS_MAX = 65_536
"""Keys of one slice, however much time there is."""
AIM_SHARE = 0.25
"""Of the budget: slices vary, and one that aims at less than all of it stays within."""
BARE_TIMES = 2.0
"""How many times what a slice takes even with few keys another may take, within the budget: so half of its time is of
use at least, however dear slices are here."""
GROWTH_MAX = 2.0
"""How many times more keys a slice may have than the one before it."""
MEMORY = 0.7
"""How much the slices before count against the last one, as to speed."""


@dataclass(slots=True)
class SlicePace:
    """budget_s: seconds that a slice may take. aim_share: of the budget, as ``AIM_SHARE``. keys: of the next slice."""

    budget_s: float
    aim_share: float = AIM_SHARE
    keys: int = KEYS_FIRST
    _speed: float | None = None
    """Keys per second."""
    _bare_s: float = 0.0
    """Seconds of a slice of few keys; 0 if there was none."""

    def took(self, keys: int, seconds: float) -> None:
        """A slice of so many keys took so much time."""
        if not keys:
            return
        if keys <= KEYS_MIN:
            self._bare_s = self._mean(self._bare_s, seconds)
        speed = keys / max(seconds, 1e-9)
        if self._speed is None or speed < self._speed:
            self._speed = speed  # too slow counts at once
        else:
            self._speed = self._mean(self._speed, speed)
        aim_s = max(self.aim_share * self.budget_s, min(BARE_TIMES * self._bare_s, self.budget_s))
        least = KEYS_MIN if seconds <= self.budget_s else 1
        wanted = max(least, self._speed * aim_s)
        self.keys = int(min(wanted, GROWTH_MAX * self.keys, KEYS_MAX))

    @staticmethod
    def _mean(so_far: float, last: float) -> float:
        return MEMORY * so_far + (1 - MEMORY) * last if so_far else last


ROWS_BUDGET_S = 0.01
"""Seconds of processor time that a piece may take to be taken in."""
ROWS_AIM_SHARE = 0.75
"""Of that time."""
ROWS_MIN = 8_192
"""Rows of a piece, however long the last one took: each has a cost of its own, and with fewer rows that would be most
of it."""
ROWS_TIMED_MIN = ROWS_MIN // 2
"""Rows of a piece that tells something of how long others will take."""


class RowPace:
    """Follows from what pieces have taken."""

    def __init__(self) -> None:
        self._pace = SlicePace(ROWS_BUDGET_S, aim_share=ROWS_AIM_SHARE)

    @property
    def rows(self) -> int:
        """Of the next piece, at most."""
        return max(ROWS_MIN, self._pace.keys)

    def timed(self, rows: int, take_in: Callable[[], object]) -> None:
        """Have so many rows taken in."""
        if rows < ROWS_TIMED_MIN:
            take_in()
            return
        began = time.thread_time()
        take_in()
        self._pace.took(rows, time.thread_time() - began)
