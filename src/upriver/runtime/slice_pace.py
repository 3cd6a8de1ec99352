"""How many keys a slice of a chore has: what the last slices' speed makes of the time that one may take.

One slice is of one view and the next of another, whose keys may be dearer. So what all of them took says little
about the next (a line through them, as :mod:`upriver.migration.pace` has it, made one in eight too long), and one that
was too slow counts at once.
"""

from dataclasses import dataclass

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
