"""How many keys to move at a time: document 001, "Speeding up Rescaling".

Few keys at a time keep each key's wait short and the rescale long; many do the opposite. So the number follows from
what the user cares about, the time that one step may take: it is what the last steps' speed makes of the budget.
"""

from dataclasses import dataclass

KEYS_FIRST = 64
"""Keys of the first step, of which nothing is known."""
KEYS_MIN = 16
"""Keys of one step, as long as steps stay within the budget: each has a cost of its own, and where that alone is more
than what is aimed at, fewer and fewer keys would make steps no shorter, only more."""
KEYS_MAX = 65_536
"""Keys of one step, however much time there is."""
AIM_SHARE = 0.25
"""Of the budget: steps vary, and one that aims at less than all of it stays within."""
BARE_TIMES = 2.0
"""How many times what a step takes even with few keys another may take, within the budget: so half of its time is of
use at least, however dear steps are here."""
GROWTH_MAX = 2.0
"""How many times more keys a step may have than the one before it."""
MEMORY = 0.7
"""How much the steps before count against the last one, as to speed."""


@dataclass(slots=True)
class Pace:
    """budget_s: seconds that a step may take. fixed: keys of each step, if the user has said so. aim_share: of the
    budget, as ``AIM_SHARE``.

    ``keys``: of the next step.
    """

    budget_s: float
    fixed: int | None = None
    aim_share: float = AIM_SHARE
    _keys: int = KEYS_FIRST
    _speed: float | None = None
    """Keys per second."""
    _bare_s: float = 0.0
    """Seconds of a step of few keys; 0 if there was none."""

    @property
    def keys(self) -> int:
        return self._keys if self.fixed is None else self.fixed

    def took(self, keys: int, seconds: float) -> None:
        """A step has moved so many keys in so much time."""
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
        self._keys = int(min(wanted, GROWTH_MAX * self._keys, KEYS_MAX))

    @staticmethod
    def _mean(so_far: float, last: float) -> float:
        return MEMORY * so_far + (1 - MEMORY) * last if so_far else last
