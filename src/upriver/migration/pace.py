"""How many keys to move at a time: document 001, "Speeding up Rescaling".

Few keys at a time keep each key's wait short and the rescale long; many do the opposite. So the number follows from
what the user cares about, the time that one step may take. A step takes some time however few its keys are, and some
more for each key. A line through the earlier steps estimates both.
"""

from dataclasses import dataclass

KEYS_FIRST = 64
"""Keys of the first step, when the cost of keys is not known: enough to compare with the steps that follow."""
KEYS_MIN = 16
"""Keys of one step, as long as steps take less than ``LONG_TIMES`` the budget."""
KEYS_MAX = 65_536
"""Keys of one step, however much time there is."""
AIM_SHARE = 0.125
"""Share of the budget that a step aims at: steps vary, and a lower aim stays within the budget."""
BARE_TIMES, WITHIN_SHARE = 1.5, 0.9
"""A step may take this many times the time of a step without keys, up to this share of the budget. So a third of its
time is of use, however expensive steps are here."""
OVER_TIMES = 1.2
"""A step may take this many times the time of a step without keys even beyond the budget. Where that time alone exceeds
the budget, fewer keys would mean more steps, not shorter ones."""
GROWTH_MAX = 2.0
"""How many times more keys a step may have than the one before it."""
LONG_TIMES = 2.0
"""After a step that takes so many times its aim, the next has at most half as many keys, whatever the line says."""
SMALLER_EVERY, SMALLER_TIMES = 4, 4
"""One of so many steps has so many times fewer keys: with equal steps no line could tell what a step takes without
keys."""
MEMORY = 0.9
"""Weight of the earlier steps against the last one."""
SPREAD_MIN = 1e-4
"""How much steps must differ for a line through them: the variance of their keys, in squares of the mean. Below it, all
of the time counts as the keys'."""
KEY_SHARE_MIN = 0.02
"""Share of a mean step's time that at least counts as its keys'."""


def aimed_at(budget_s: float, aim_share: float, bare_s: float) -> float:
    """Seconds that a step aims at if a step without any key would take ``bare_s``."""
    return max(aim_share * budget_s, min(BARE_TIMES * bare_s, WITHIN_SHARE * budget_s), OVER_TIMES * bare_s)


@dataclass(slots=True)
class Pace:
    """budget_s: seconds that a step may take. fixed: keys of each step, if the user has set them. aim_share: of the
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
    """Sums over the steps, earlier ones weighing less: of 1, of keys, of seconds, of keys times either."""

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
        """The seconds of a step without any key, and those of each key, by least squares; neither below zero."""
        keys, seconds = self._keys / self._weight, self._seconds / self._weight
        most = max(seconds / keys, 1e-12)
        variance = self._keys_keys / self._weight - keys * keys
        if variance <= SPREAD_MIN * keys * keys:
            return 0.0, most
        slope = (self._keys_seconds / self._weight - keys * seconds) / variance
        key_s = min(max(slope, KEY_SHARE_MIN * most), most)
        return seconds - key_s * keys, key_s
