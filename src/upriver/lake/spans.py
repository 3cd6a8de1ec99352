"""Spans: the ranges of epochs that the lake's manifests and segments describe (docs/internals/lake.md).

A manifest describes one epoch, a segment an aligned block of them: at level ``k`` the epochs from ``i * 16**k + 1`` to
``(i + 1) * 16**k``. So two blocks are apart, or one contains the other, and for any number of epochs few blocks cover
all of them. Pure: names come in, spans go out.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

from upriver.ids import Epoch, preceding

FAN_IN = 16
"""Blocks of one level that make one of the next."""
LEVELS_MAX = 12
"""Levels of segments: more epochs than any app has."""


@dataclass(frozen=True, slots=True, order=True)
class EpochSpan:
    """The epochs from ``first`` to ``last``, both included."""

    first: Epoch
    last: Epoch

    @property
    def after(self) -> Epoch:
        """The epoch before the first."""
        return Epoch(self.first - 1)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __contains__(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last

    def has_within(self, epoch: int) -> bool:
        """Whether these are epochs up to this one and after it."""
        return self.first <= epoch < self.last

    @property
    def name(self) -> str:
        """In names of files: in order of the last epoch."""
        return f"{self.last:012d}-{self.first:012d}"

    @classmethod
    def of_name(cls, name: str) -> "EpochSpan | None":
        """``None`` if it is no span's name."""
        last, _, first = name.partition("-")
        if not (last.isdecimal() and first.isdecimal()):
            return None
        return cls(Epoch(int(first)), Epoch(int(last)))


def single(epoch: int) -> EpochSpan:
    """One epoch."""
    return EpochSpan(Epoch(epoch), Epoch(epoch))


def span_after(epoch: Epoch, after: Epoch | None) -> EpochSpan:
    """The epochs that workers apply as this one: those of a segment if ``after`` is the epoch before it."""
    return EpochSpan(Epoch(preceding(epoch, after) + 1), epoch)


def block(first: int, level: int, fan_in: int = FAN_IN) -> EpochSpan | None:
    """The block of this level that begins at this epoch; ``None`` if none does."""
    epochs = fan_in**level
    return None if (first - 1) % epochs else EpochSpan(Epoch(first), Epoch(first + epochs - 1))


def level_of(span: EpochSpan) -> int:
    """The level of a block; 0 for one epoch."""
    level, epochs = 0, 1
    while epochs < len(span):
        level, epochs = level + 1, epochs * FAN_IN
    return level


def cover(segments: Collection[EpochSpan], after: int, through: int, fan_in: int = FAN_IN) -> Iterator[EpochSpan]:
    """The epochs from ``after + 1`` to ``through``, in order, in as few spans as these segments allow."""
    first = after + 1
    while first <= through:
        found = single(first)
        for level in range(LEVELS_MAX, 0, -1):
            wanted = block(first, level, fan_in)
            if wanted is not None and wanted.last <= through and wanted in segments:
                found = wanted
                break
        yield found
        first = found.last + 1


def due(segments: Collection[EpochSpan], through: int, fan_in: int = FAN_IN) -> Iterator[EpochSpan]:
    """The blocks up to an epoch that are in no segment and may become one, smallest level first: all blocks of the
    level below have theirs, or are made before."""
    last = max((span.last for span in segments), default=0)
    spans = list(cover(segments, 0, max(through, last), fan_in))
    for level in range(1, LEVELS_MAX + 1):
        epochs = fan_in**level
        if epochs > through:
            return
        larger: list[EpochSpan] = []
        for number, inside in groupby(spans, key=lambda span: (span.last - 1) // epochs):
            parts = list(inside)
            whole = EpochSpan(Epoch(number * epochs + 1), Epoch((number + 1) * epochs))
            if whole.last > through or len(parts[0]) >= epochs:
                larger += parts
                continue
            yield whole
            larger.append(whole)
        spans = larger
