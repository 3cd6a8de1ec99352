"""Pacing of one worker's loop: how many keys it moves at a time, and how many keys or rows a slice of work has.

``Mover``: how many keys a worker moves at a time, and what that costs; the pace of a rescale in one worker's loop.

``SlicePace``: how many keys a slice of background work has, by the speed of the last slices and the time that one may
take.

One slice is of one view and the next of another, with keys that may cost more. So what all slices took says little
about the next (a line through them, as in :mod:`upriver.migration.pace`, made one slice in eight too long). A slice
that was too slow counts at once.

``RowPace``: how many rows a worker takes in at a time; a lookup may have to wait until they are in.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from upriver.ids import FlowId
from upriver.migration.messages import Acquire, Redistribute, Sets
from upriver.migration.pace import Pace
from upriver.protocol.peers import Envelope, ForRegion, Installed


class Mover:
    """Paces the steps of a rescale. Used by the worker's loop alone; times are those of ``time.perf_counter``.

    The number of keys in a step follows from the processor time of the steps. By the clock, steps take longer on a busy
    machine, but no less with fewer keys.
    """

    def __init__(self, budget_s: float) -> None:
        """budget_s: seconds that one step may take."""
        self._budget_s = budget_s
        self._keys_max: int | None = None
        self._paces: dict[str, Pace] = {}
        """By region: the cost of a key depends on the region's state."""
        self._step_began = 0.0
        self._work_began = 0.0
        """By the processor time of the loop's thread."""
        self._keys_given = 0
        """In the step under way."""
        self._hold_began: float | None = None
        """When the keys that are collected next were put on hold; ``None`` if that happens in the same step."""
        self._load_keys, self._load_s = 0, 0.0
        """Of the load on its way: its number of keys, and the duration of the step that sent it."""
        self._load_began: float | None = None
        """When the keys of the load on its way were put on hold."""
        self._anew_since: dict[FlowId, float] = {}
        """When the worker's share of a flow began anew, until it is back where it was."""
        self.stall_s = 0.0
        """The longest step so far."""
        self.hold_s = 0.0
        """The longest time so far that keys given away here were out of service: from when they were put on hold until
        their new owner has said that their state is in place."""

    def begin(self, keys_max: int | None) -> None:
        """Begin another rescale. keys_max: keys at a time, if the user has set it."""
        self._keys_max, self._paces = keys_max, {}
        self.stall_s = self.hold_s = 0.0
        self._hold_began = self._load_began = None

    def begins_anew(self, flow: FlowId) -> None:
        """All keys that this worker keeps of the flow are out of service from now on."""
        self.hold_s, self._anew_since[flow] = 0.0, time.perf_counter()

    def is_back(self, flow: FlowId) -> bool:
        """All keys of the flow are back; returns whether they were away."""
        since = self._anew_since.pop(flow, None)
        if since is None:
            return False
        self.hold_s = max(self.hold_s, time.perf_counter() - since)
        return True

    def forget(self, flow: FlowId) -> None:
        """The flow is gone."""
        self._anew_since.pop(flow, None)

    def keys(self, region: str) -> int:
        """How many keys of this region the next step moves, if it moves any of them."""
        return self._pace(region).keys

    def _pace(self, region: str) -> Pace:
        return self._paces.setdefault(region, Pace(self._budget_s, self._keys_max))

    @property
    def gives(self) -> bool:
        """Whether the step under way has given keys away."""
        return self._keys_given > 0

    def step_begins(self) -> None:
        self._step_began, self._work_began, self._keys_given = time.perf_counter(), time.thread_time(), 0

    def sends(self, envelope: Envelope) -> Envelope:
        """The step under way sends this envelope; returns it with the step's time, if it carries one."""
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
        """The step under way handled this envelope, and is over."""
        match envelope.content:
            case ForRegion(message=Acquire()):
                self._has_worked()
            case Installed(region=region, seconds=seconds) if self._load_began is not None:
                self.hold_s = max(self.hold_s, time.perf_counter() - self._load_began)
                self._load_began = None
                # Lookups wait for the loops of both ends: the slower one sets the pace.
                self._pace(region).took(self._load_keys, max(self._load_s, seconds))

    def resumed(self) -> None:
        """The step under way has taken slices over, or given them up; their keys were out of service meanwhile."""
        seconds = time.perf_counter() - self._step_began
        self.stall_s, self.hold_s = max(self.stall_s, seconds), max(self.hold_s, seconds)

    def gave(self) -> None:
        """The step under way, which has given keys away, is over: their state is packed."""
        self._load_keys, self._load_s = self._keys_given, self._has_worked()

    def _has_worked(self) -> float:
        """Note how long the step has taken; returns its processor time, in seconds."""
        self.stall_s = max(self.stall_s, time.perf_counter() - self._step_began)
        return time.thread_time() - self._work_began


KEYS_FIRST = 64
"""Keys of the first slice, when no speed is known yet."""
KEYS_MIN = 16
"""At least how many keys a slice has, as long as slices stay within the budget. Each slice has a fixed cost: where that
alone exceeds the aim, ever fewer keys would mean more slices, not shorter ones."""
KEYS_MAX = 65_536
"""Keys of one slice, however much time there is."""
AIM_SHARE = 0.25
"""Share of the budget that a slice aims at: slices vary, and a lower aim stays within the budget."""
BARE_TIMES = 2.0
"""A slice may take this many times the time of a slice with few keys, within the budget. So at least half of its time
is of use, however expensive slices are here."""
GROWTH_MAX = 2.0
"""How many times more keys a slice may have than the one before it."""
MEMORY = 0.7
"""Weight of the speed of the earlier slices against that of the last one."""


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
"""At least how many rows a piece has, however long the last one took: with fewer rows, a piece's fixed cost would be
most of it. A piece with less than half of that, such as the last one, does not count for the pace."""


BUILD_ROWS_BUDGET_S = 0.002
"""Seconds of processor time that a piece may take of a flow that is built beside others."""
BUILD_ROWS_MIN = 1_024
"""At least how many rows such a piece has."""


class RowPace:
    """How many rows a piece has, by the time that earlier pieces took."""

    def __init__(self, budget_s: float = ROWS_BUDGET_S, rows_min: int = ROWS_MIN) -> None:
        """budget_s: seconds of processor time that a piece may take. rows_min: at least how many rows it has."""
        self._pace = SlicePace(budget_s, aim_share=ROWS_AIM_SHARE)
        self._rows_min = rows_min

    @property
    def rows(self) -> int:
        """At most how many rows the next piece has."""
        return max(self._rows_min, self._pace.keys)

    def timed(self, rows: int, take_in: Callable[[], object]) -> None:
        """Call ``take_in``, which takes in so many rows, and note its time."""
        if rows < self._rows_min // 2:
            take_in()
            return
        began = time.thread_time()
        take_in()
        self._pace.took(rows, time.thread_time() - began)
