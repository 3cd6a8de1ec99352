"""Spans: the ranges of epochs that the lake's manifests and segments describe (docs/internals/lake.md).

A manifest describes one epoch, a segment an aligned block of them: at level ``k`` the epochs from ``i * 16**k + 1`` to
``(i + 1) * 16**k``. So two blocks are apart, or one contains the other, and for any number of epochs few blocks cover
all of them. A block may be described several times: once as of its own end, and once for each time that it was
rewritten without rows that have left since. Pure: names come in, spans go out.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from upriver.ids import BEGINNING, Epoch, preceding

FAN_IN = 16
"""Blocks of one level that make one of the next."""
LEVELS_MAX = 12
"""Levels of segments: more epochs than any app has."""


@dataclass(frozen=True, slots=True, order=True)
class EpochSpan:
    """The epochs from ``first`` to ``last``, both included. rewritten: the later epoch as of which a segment of them
    was rewritten (reclamation.py); ``BEGINNING``: it was not."""

    first: Epoch
    last: Epoch
    rewritten: Epoch = BEGINNING

    @property
    def as_of(self) -> Epoch:
        """The epoch from whose end on the files have every row that remains."""
        return max(self.last, self.rewritten)

    @property
    def is_segment(self) -> bool:
        """Whether a segment describes it, and not a manifest."""
        return len(self) > 1 or self.rewritten > BEGINNING

    @property
    def bare(self) -> "EpochSpan":
        """The same epochs, not rewritten."""
        return EpochSpan(self.first, self.last)

    @property
    def after(self) -> Epoch:
        """The epoch before the first."""
        return Epoch(self.first - 1)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __contains__(self, epoch: int) -> bool:
        return self.first <= epoch <= self.last

    def has_within(self, epoch: int) -> bool:
        """Whether these are epochs up to this one and after it, or their segment was rewritten as of a later one: then
        it may lack rows that a state as of this epoch has, and that later epochs take back."""
        return self.first <= epoch < self.as_of

    @property
    def name(self) -> str:
        """In names of files: in order of the last epoch."""
        name = f"{self.last:012d}-{self.first:012d}"
        return f"{name}-{self.rewritten:012d}" if self.rewritten else name

    @classmethod
    def of_name(cls, name: str) -> "EpochSpan | None":
        """``None`` if it is no span's name."""
        numbers = name.split("-")
        if len(numbers) not in (2, 3) or not all(number.isdecimal() for number in numbers):
            return None
        last, first, rewritten = (Epoch(int(number)) for number in (*numbers, "0")[:3])
        if first > last or (len(numbers) == 3 and rewritten <= last):
            return None
        return cls(first, last, rewritten)


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


def newest(segments: Iterable[EpochSpan], as_of: int) -> dict[EpochSpan, EpochSpan]:
    """Of the segments of the same epochs the newest that has every row that remains at the end of an epoch; by these
    epochs, not rewritten."""
    found: dict[EpochSpan, EpochSpan] = {}
    for segment in segments:
        if segment.as_of <= as_of:
            found[segment.bare] = max(segment, found.get(segment.bare, segment))
    return found


def newest_rewrite(segments: Iterable[EpochSpan]) -> Epoch:
    """The last epoch whose end a rewritten one of them shows; ``BEGINNING`` if none was rewritten."""
    return max((segment.rewritten for segment in segments), default=BEGINNING)


def opened(segments: Iterable[EpochSpan], span: EpochSpan, as_of: Epoch) -> EpochSpan:
    """The span as a reader opens it that takes segments as of an epoch up to this one."""
    return newest(segments, as_of).get(span, span) if as_of > span.last else span


def cover(
    segments: Iterable[EpochSpan], after: int, through: int, fan_in: int = FAN_IN, as_of: int = BEGINNING
) -> Iterator[EpochSpan]:
    """The epochs from ``after + 1`` to ``through``, in order, in as few spans as these segments allow. as_of: the
    reader also takes segments that were rewritten as of an epoch up to this one; without it, up to ``through``."""
    usable = newest(segments, max(as_of, through))
    first = after + 1
    while first <= through:
        found = single(first)
        for level in range(LEVELS_MAX, -1, -1):
            wanted = block(first, level, fan_in)
            if wanted is not None and wanted.last <= through and wanted in usable:
                found = usable[wanted]
                break
        yield found
        first = found.last + 1


def parts_of(there: Collection[EpochSpan], span: EpochSpan, as_of: int) -> list[EpochSpan]:
    """The spans that readers use in place of a segment if it is not there; none if they are not all there, or it is no
    segment. there: all manifests and segments. as_of: as for ``cover``."""
    others = {other for other in there if other != span}
    parts = list(cover(filter(lambda other: other.is_segment, others), span.after, span.last, as_of=as_of))
    return parts if span.is_segment and others.issuperset(parts) else []


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
