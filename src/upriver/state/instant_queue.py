"""Slots in the order of an instant: those whose time has come are taken off first.

The queue is a few sorted blocks, each at least twice as long as the one behind it. So adding slots sorts few of them
again, and taking some off is one search in each block.
"""

import numpy as np
import numpy.typing as npt

from upriver.state.vectors import Slots

Instants = npt.NDArray[np.int64]


class InstantQueue:
    """Slots, each with an instant. A slot may be in it several times."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[tuple[Instants, Slots]] = []
        """Each ascending by instant; the longest first."""

    @property
    def nbytes(self) -> int:
        return sum(instants.nbytes + slots.nbytes for instants, slots in self._blocks)

    def add(self, instants: Instants, slots: Slots) -> None:
        if not len(slots):
            return
        self._blocks.append(_sorted(instants, slots))
        while len(self._blocks) > 1 and len(self._blocks[-2][1]) < 2 * len(self._blocks[-1][1]):
            last, before = self._blocks.pop(), self._blocks.pop()
            both = (np.concatenate(pair) for pair in zip(before, last, strict=True))
            self._blocks.append(_sorted(*both))

    def due(self, instant: int) -> Slots:
        """The slots whose instant is not after this one, in no particular order; they stay."""
        due = [slots[: _behind(instants, instant)] for instants, slots in self._blocks]
        return np.concatenate([np.empty(0, np.int64), *due])

    def take(self, instant: int) -> Slots:
        """As ``due``, and they are gone."""
        due = self.due(instant)
        if len(due):
            rest = [_rest(*block, _behind(block[0], instant)) for block in self._blocks]
            self._blocks = [block for block in rest if len(block[1])]
        return due


def _behind(instants: Instants, instant: int) -> int:
    return int(np.searchsorted(instants, instant, side="right"))


def _rest(instants: Instants, slots: Slots, start: int) -> tuple[Instants, Slots]:
    return (instants[start:], slots[start:]) if start else (instants, slots)


def _sorted(instants: Instants, slots: Slots) -> tuple[Instants, Slots]:
    order = np.argsort(instants, kind="stable")
    return instants[order], slots[order]
