"""How many keys to move at a time: document 001, "Speeding up Rescaling".

Few keys at a time keep each key's wait short and the rescale long; many do the opposite. So the number follows from
what the user cares about, the time that one step may take: it is what the last steps' speed makes of the budget.
"""

from dataclasses import dataclass

KEYS_FIRST = 64
"""Keys of the first step, of which nothing is known."""
KEYS_MAX = 65_536
"""Keys of one step, however much time there is."""
AIM_SHARE = 0.25
"""Of the budget: steps vary, and one that aims at less than all of it stays within."""
GROWTH_MAX = 2.0
"""How many times more keys a step may have than the one before it."""
MEMORY = 0.7
"""How much the steps before count against the last one, as to speed."""


@dataclass(slots=True)
class Pace:
    """budget_s: seconds that a step may take. fixed: keys of each step, if the user has said so.

    ``keys``: of the next step.
    """

    budget_s: float
    fixed: int | None = None
    _keys: int = KEYS_FIRST
    _speed: float | None = None
    """Keys per second."""

    @property
    def keys(self) -> int:
        return self._keys if self.fixed is None else self.fixed

    def took(self, keys: int, seconds: float) -> None:
        """A step has moved so many keys in so much time."""
        if not keys:
            return
        speed = keys / max(seconds, 1e-9)
        if self._speed is None or speed < self._speed:
            self._speed = speed  # too slow counts at once
        else:
            self._speed = MEMORY * self._speed + (1 - MEMORY) * speed
        wanted = min(self._speed * AIM_SHARE * self.budget_s, GROWTH_MAX * self._keys, KEYS_MAX)
        self._keys = max(1, int(wanted))
