"""The strategies of rescales."""

from enum import StrEnum


class Strategy(StrEnum):
    """How a rescale moves keys."""

    ICADD = "icadd"
    """Document 000: live, a few keys at a time, from worker to worker."""
    REDISTRIBUTE = "redistribute"
    """Document 001: live, a few keys at a time, on the word of every distributor."""
    LAZY = "lazy"
    """ICADD, but keys of partial views do not move. The new owner refills them on demand, and the most recently read
    ones at once."""
    LEARNER = "learner"
    """Document 002: the new owner learns slices while the old one serves, and takes them over between two epochs."""
    RESTART = "restart"
    """Stop at an epoch's end, begin with the new map and nothing, read everything again."""

    @property
    def holds_still(self) -> bool:
        """Whether a worker that is told to give no more keys away has none on their way."""
        return self in (Strategy.ICADD, Strategy.LAZY)
