"""When a worker moves keys, and what it costs: the pace of a rescale in one worker's loop."""

import time

from upriver.migration.pace import Pace

REST_SHARE = 1.0
"""How long a worker rests from moving keys after a step, in steps: meanwhile it does all else that there is to do."""


class Mover:
    """Keeps the time. Used by the worker's loop alone."""

    def __init__(self, budget_s: float) -> None:
        """budget_s: seconds that one step may take."""
        self._budget_s = budget_s
        self._pace = Pace(budget_s)
        self._rests_until = 0.0
        self._load_began: float | None = None
        self.stall_s = 0.0
        """The longest step so far."""
        self.hold_s = 0.0
        """The longest that keys given away here were out of service so far: from before their state was collected
        until their new owner has said that it is in place."""

    def begin(self, keys_max: int | None) -> None:
        """Another rescale. keys_max: keys at a time, if the user has said so."""
        self._pace = Pace(self._budget_s, keys_max)
        self.stall_s = self.hold_s = 0.0
        self._load_began = None

    @property
    def keys(self) -> int:
        """To be moved in the next step."""
        return self._pace.keys

    def rest_s(self) -> float:
        """Seconds until the next step is due; 0 if it is."""
        return max(0.0, self._rests_until - time.perf_counter())

    def gave(self, began: float, keys: int) -> None:
        """A step that began at that time (``time.perf_counter``) has sent the state of so many keys, packed."""
        now = time.perf_counter()
        self._pace.took(keys, now - began)
        self._load_began = began
        self._rests_until = now + REST_SHARE * (now - began)
        self.stall_s = max(self.stall_s, now - began)

    def took(self, began: float) -> None:
        """A step that began at that time has put state in place."""
        now = time.perf_counter()
        self._rests_until = now + REST_SHARE * (now - began)
        self.stall_s = max(self.stall_s, now - began)

    def installed(self) -> None:
        """The last load is in place at its new owner."""
        if self._load_began is not None:
            self.hold_s = max(self.hold_s, time.perf_counter() - self._load_began)
            self._load_began = None
