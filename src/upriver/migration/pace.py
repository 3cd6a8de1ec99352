"""How long a worker rests from moving keys after a step, in steps.

Meanwhile it does all else that there is to do. Whoever looks something up may meet a step and wait for it; the longer
the rests, the fewer do, and the longer the rescale takes. So rests are long while that costs hardly anything: a rescale
that would be over in a moment may as well take some seconds.

How many keys to move at a time: document 001, "Speeding up Rescaling".

Few keys at a time keep each key's wait short and the rescale long; many do the opposite. So the number follows from
what the user cares about, the time that one step may take. A step takes some time however few its keys are, and some
more for each key: both are estimated from the steps before, by a line through them.
"""

from dataclasses import dataclass, field

KEYS_FIRST = 64
"""Keys of the first step, of which nothing is known: enough to tell from those that follow what keys cost."""
KEYS_MIN = 16
"""Keys of one step, as long as steps take less than ``LONG_TIMES`` the budget."""
KEYS_MAX = 65_536
"""Keys of one step, however much time there is."""
AIM_SHARE = 0.125
"""Of the budget: steps vary, and one that aims at less than all of it stays within. And short steps with short rests
keep who looks something up waiting less than long ones do with long rests."""
BARE_TIMES, WITHIN_SHARE = 1.5, 0.9
"""How many times what a step takes without any key another may take, up to what share of the budget: so a third of its
time is of use, however dear steps are here."""
OVER_TIMES = 1.2
"""How many times that it may take even beyond: where it is more than the budget by itself, fewer keys would make steps
no shorter, only more."""
GROWTH_MAX = 2.0
"""How many times more keys a step may have than the one before it."""
LONG_TIMES = 2.0
"""After a step that takes so many times what was aimed at there are half as many keys, whatever steps before say."""
SMALLER_EVERY, SMALLER_TIMES = 4, 4
"""Of so many steps one has so many times fewer keys: if all had the same, none could tell what a step takes without
any."""
MEMORY = 0.9
"""How much the steps before count against the last one."""
SPREAD_MIN = 1e-4
"""How different steps must be for a line through them, as the variance of their keys in squares of the mean; with less,
all of the time is put down to the keys."""
KEY_SHARE_MIN = 0.02
"""Of a mean step's time, that is at least put down to its keys."""


def aimed_at(budget_s: float, aim_share: float, bare_s: float) -> float:
    """Seconds that a step is to take where one without any key would take ``bare_s``."""
    return max(aim_share * budget_s, min(BARE_TIMES * bare_s, WITHIN_SHARE * budget_s), OVER_TIMES * bare_s)


@dataclass(slots=True)
class Pace:
    """budget_s: seconds that a step may take. fixed: keys of each step, if the user has said so. aim_share: of the
    budget, as ``AIM_SHARE``.

    ``keys``: of the next step.
    """

    budget_s: float
    fixed: int | None = None
    aim_share: float = AIM_SHARE
    _wanted: float = KEYS_FIRST
    _steps: int = 0
    _weight: float = 0.0
    _keys: float = 0.0
    _seconds: float = 0.0
    _keys_keys: float = 0.0
    _keys_seconds: float = 0.0
    """Sums over the steps, those long ago counting less: of one, of keys, of seconds, of keys times either."""

    @property
    def keys(self) -> int:
        if self.fixed is not None:
            return self.fixed
        is_smaller = self._steps % SMALLER_EVERY == SMALLER_EVERY - 1
        return max(1, int(self._wanted / SMALLER_TIMES if is_smaller else self._wanted))

    def took(self, keys: int, seconds: float) -> None:
        """A step has moved so many keys in so much time."""
        if not keys:
            return
        self._note(keys, seconds)
        bare_s, key_s = self._line()
        aim_s = aimed_at(self.budget_s, self.aim_share, bare_s)
        wanted = (aim_s - bare_s) / key_s
        if seconds > LONG_TIMES * aim_s:
            wanted = min(wanted, keys / 2)
        least = KEYS_MIN if seconds < LONG_TIMES * self.budget_s else 1
        self._wanted = max(1.0, min(max(wanted, least), GROWTH_MAX * max(keys, self._wanted), KEYS_MAX))

    def _note(self, keys: int, seconds: float) -> None:
        self._steps += 1
        self._weight = MEMORY * self._weight + 1
        self._keys = MEMORY * self._keys + keys
        self._seconds = MEMORY * self._seconds + seconds
        self._keys_keys = MEMORY * self._keys_keys + keys * keys
        self._keys_seconds = MEMORY * self._keys_seconds + keys * seconds

    def _line(self) -> tuple[float, float]:
        """What a step takes without any key, and how much more for each, by least squares; neither below zero."""
        keys, seconds = self._keys / self._weight, self._seconds / self._weight
        most = max(seconds / keys, 1e-12)
        variance = self._keys_keys / self._weight - keys * keys
        if variance <= SPREAD_MIN * keys * keys:
            return 0.0, most
        slope = (self._keys_seconds / self._weight - keys * seconds) / variance
        key_s = min(max(slope, KEY_SHARE_MIN * most), most)
        return seconds - key_s * keys, key_s


REST_SHARE_IDLE = 3.0
"""Steps that a rest is as long as, if nobody has looked anything up for a while."""
REST_SHARE_MIN, REST_SHARE_MAX = 15.0, 100.0
"""If somebody has: at least, and at most. With the latter, fewer than one lookup in a hundred meets a step."""
GENTLE_S = 8.0
"""Seconds that a worker may take to give its keys away: in between, rests are as long as will bring that about."""


@dataclass(slots=True)
class Rests:
    """Of one worker in one rescale."""

    _seconds: float = 0.0
    """Of the steps so far."""
    _first: dict[str, int] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)
    """By region: slices that were to be given, and those that still are."""

    def told(self, region: str, slices_left: int) -> None:
        """So many slices of a region are still to be given."""
        self._first[region] = max(slices_left, self._first.get(region, 0))
        self._left[region] = slices_left

    def took(self, seconds: float) -> None:
        """A step has taken so much processor time."""
        self._seconds += seconds

    @property
    def share(self) -> float:
        """How long to rest, in steps, where somebody may look something up."""
        first = sum(self._first.values())
        given = first - sum(self._left.values())
        if not given or not self._seconds:
            return REST_SHARE_MAX
        steps_s = self._seconds * first / given
        return min(max(GENTLE_S / steps_s - 1, REST_SHARE_MIN), REST_SHARE_MAX)
