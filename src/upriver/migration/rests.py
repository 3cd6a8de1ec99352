"""How long a worker rests from moving keys after a step, in steps.

Meanwhile it does all else that there is to do. Whoever looks something up may meet a step and wait for it; the longer
the rests, the fewer do, and the longer the rescale takes. So rests are long while that costs hardly anything: a rescale
that would be over in a moment may as well take some seconds.
"""

from dataclasses import dataclass, field

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
