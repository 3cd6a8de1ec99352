"""Collection: files that nothing needs are removed, some time after they were last needed (docs/internals/lake.md).

A manifest or segment is *superseded* by a segment that has all of its epochs, or that was rewritten later. A reader
that has begun may still use it. So it stays until the segment is ``grace_s`` old, and until no worker stands among the
epochs, or before the one as of which the segment was rewritten (segments.grace). Its file goes first, then its
supplements, then its runs: a reader never finds a manifest without its runs.

A segment that cannot be read, or whose runs are not all there, supersedes nothing; and no file is removed of which such
a segment may have runs.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from upriver.errors import CorruptFile, LakeError, NotRead
from upriver.ids import Channel, Epoch
from upriver.lake.lake import Lake, OwnedLake, epoch_path, segment_path, supplement_path
from upriver.lake.manifests import LakeEpochs, Segment
from upriver.lake.spans import EpochSpan, single
from upriver.state.runs import RunInfo, check_length

GRACE_S = 3600.0
"""Seconds for which replaced files stay, unless the user says otherwise."""
COLLECTED_MAX = 2_000
"""Manifests and segments that one collection removes: a driver that has many to remove does not hold on for long."""


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """What a collection has removed. epochs: manifests and segments. bytes: of runs. damage: why files stay that could
    go otherwise; each names a file."""

    epochs: int = 0
    runs: int = 0
    bytes: int = 0
    damage: tuple[str, ...] = ()

    def to_json(self) -> dict[str, int]:
        return {"epochs": self.epochs, "runs": self.runs, "bytes": self.bytes}

    def __add__(self, other: "RemovedFiles") -> "RemovedFiles":
        damage = tuple(dict.fromkeys((*self.damage, *other.damage)))
        return RemovedFiles(self.epochs + other.epochs, self.runs + other.runs, self.bytes + other.bytes, damage)


def superseded(lake: Lake, horizon: Epoch, made_before: float) -> Iterator[EpochSpan]:
    """The spans that a segment has all epochs of, that is no younger and ends at the horizon or before."""
    segments = sorted(lake.segments(), key=lambda span: (span.first, -span.last, -span.rewritten))
    outer: list[EpochSpan] = []
    for span in segments:
        if span.as_of > horizon or (outer and span.last <= outer[-1].last):
            continue
        found = _read(lake, span)
        if isinstance(found, Segment) and found.made_at < made_before:
            outer.append(span)
    starts = [span.first for span in outer]

    def is_inside(span: EpochSpan) -> bool:
        place = bisect_right(starts, span.first) - 1
        if place < 0 or span.last > outer[place].last:
            return False
        return span.bare != outer[place].bare or span < outer[place]

    # What is smaller goes first: a run may have gone on, as it is, from one epoch to ever larger segments.
    yield from filter(is_inside, map(single, sorted(lake.numbers("epochs"))))
    yield from filter(is_inside, sorted(segments, key=lambda span: (len(span), span)))


def _read(lake: Lake, span: EpochSpan) -> Segment | LakeError:
    """A segment, or why it cannot be read."""
    try:
        return lake.bare_segment(span)
    except (CorruptFile, NotRead) as error:
        return error


class KnownSegments:
    """The segments of a lake, for one collection: what each has, and which of those that stay are damaged."""

    def __init__(
        self, lake: Lake, going: Collection[EpochSpan], supplemented: Mapping[Channel, set[EpochSpan]]
    ) -> None:
        """going: the superseded spans. supplemented: by lake edge, the spans with a supplement."""
        found = {span: _read(lake, span) for span in sorted(lake.segments())}
        self._lake = lake
        self._supplemented = supplemented
        self.readable = [segment for segment in found.values() if isinstance(segment, Segment)]
        self._unchecked = [segment.span for segment in self.readable if segment.span not in going]
        damaged = {span: error for span, error in found.items() if isinstance(error, LakeError)}
        self.damage = {span: str(error) for span, error in damaged.items() if span not in going}
        """By span: why a segment cannot be read, or that a run of it is not there."""

    def forget(self, span: EpochSpan) -> None:
        """The span was removed: it names no run any more."""
        self.readable = [segment for segment in self.readable if segment.span != span]

    def may_go(self, span: EpochSpan) -> bool:
        """Whether each segment that has its epochs, and stays, is there with all its runs."""
        for outer in [outer for outer in self._unchecked if _is_within(span, outer)]:
            self._unchecked.remove(outer)
            self._check(outer)
        return not any(_is_within(span, damaged) for damaged in self.damage)

    def _check(self, span: EpochSpan) -> None:
        """Look whether the runs are there in their whole length; damage within a run is found when it is read."""
        try:
            for run in _runs_of(self._lake, span, _channels_with(span, self._supplemented)):
                check_length(run, self._lake.read_into(run.path, []))
        except CorruptFile as error:
            self.damage[span] = f"{error}; the epochs that it was made of stay until then"


def _is_within(span: EpochSpan, other: EpochSpan) -> bool:
    return other.first <= span.first and span.last <= other.last


def collect(lake: OwnedLake, spans: Iterable[EpochSpan], most: int = COLLECTED_MAX) -> RemovedFiles:
    """Remove superseded manifests and segments, at most so many, and the runs that only they name. Raises LakeInUse,
    CorruptFile."""
    lake.fence()
    going, supplemented, total = list(spans), _supplemented(lake), RemovedFiles()
    segments = KnownSegments(lake, set(going), supplemented)
    for span in filter(segments.may_go, going):
        if total.epochs == most:
            break
        if not total.epochs % 100:
            lake.check_owner()
        total += _remove(lake, span, segments.readable, _channels_with(span, supplemented))
        segments.forget(span)
    return replace(total, damage=tuple(segments.damage.values()))


def _remove(lake: OwnedLake, span: EpochSpan, segments: Iterable[Segment], channels: Sequence[Channel]) -> RemovedFiles:
    try:
        gone = _only_in(span, _runs_of(lake, span, channels), segments)
    except CorruptFile:
        gone = []  # its runs are litter, which a later start removes
    lake.files.remove(lake.path_of(segment_path(span)) if span.is_segment else epoch_path(span.last))
    lake.files.remove_all(lake.path_of(supplement_path(channel, span)) for channel in channels)
    lake.files.remove_all(run.path for run in gone)
    return RemovedFiles(1, len(gone), sum(run.bytes for run in gone))


def _only_in(span: EpochSpan, runs: Iterable[RunInfo], segments: Iterable[Segment]) -> list[RunInfo]:
    """Those of a span's runs that no segment of the same epochs and more has."""
    others = [other for other in segments if _is_within(span, other.span)]
    kept = {run.path for other in others if other.span != span for run in _all_runs(other)}
    return [run for run in runs if run.path not in kept]


def collectable(lake: Lake, spans: Iterable[EpochSpan]) -> RemovedFiles:
    """What ``collect`` would remove of all these spans. Raises CorruptFile."""
    removed = set(spans)
    staying = [lake.bare_segment(span) for span in sorted(lake.segments() - removed)]
    supplemented = _supplemented(lake)
    runs_of = {span: _runs_of(lake, span, _channels_with(span, supplemented)) for span in removed}
    gone = {run.path: run.bytes for span, runs in runs_of.items() for run in _only_in(span, runs, staying)}
    return RemovedFiles(len(removed), len(gone), sum(gone.values()))


def _supplemented(lake: Lake) -> dict[Channel, set[EpochSpan]]:
    return {channel: lake.supplemented(channel) for channel in lake.supplement_channels()}


def _channels_with(span: EpochSpan, supplemented: Mapping[Channel, set[EpochSpan]]) -> list[Channel]:
    """The lake edges with a supplement for the span. They need not be all later indexes: one that came after a larger
    segment has a supplement for that one only."""
    return [channel for channel, spans in supplemented.items() if span in spans]


def _runs_of(lake: Lake, span: EpochSpan, channels: Iterable[Channel]) -> list[RunInfo]:
    """The runs that a manifest or segment names, and its supplements on these lake edges."""
    supplements = (run for channel in channels for run in lake.supplement_runs(channel, span))
    return [*_all_runs(lake.bare_epochs(span)), *supplements]


def _all_runs(epochs: LakeEpochs) -> Iterator[RunInfo]:
    return (run for runs in epochs.runs.values() for run in runs)


def remove_litter(lake: OwnedLake, suspects: Iterable[str]) -> RemovedFiles:
    """Remove those of these runs that nothing in the lake names: batches, indexes and segments that were never
    committed left them, and collections that were interrupted; and supplements of epochs that were collected.
    suspects: paths of runs that were there before this driver wrote any. Raises LakeInUse, CorruptFile."""
    lake.fence()
    supplemented = _supplemented(lake)
    spans = _all_spans(lake)  # listed after the supplements, which name them
    needed = set(lake.spans(lake.last_epoch()))  # an error if one is gone: what it names is no litter
    named = set[str]()
    for span in sorted(spans | needed):
        with _perhaps_gone(span not in needed, partial(_has_span, lake, span)):
            named.update(run.path for run in _all_runs(lake.bare_epochs(span)))
    litter = []
    for channel, spans_of in supplemented.items():
        for span in spans_of & (spans | needed):
            with _perhaps_gone(span not in needed, partial(_has_supplement, lake, channel, span)):
                named.update(run.path for run in lake.supplement_runs(channel, span))
        litter += [lake.path_of(supplement_path(channel, span)) for span in spans_of - spans - needed]
    gone = [path for path in suspects if path not in named]
    lake.remove_all(litter)  # before their runs: a supplement names existing files
    lake.remove_all(gone)
    return RemovedFiles(runs=len(gone))


@contextmanager
def _perhaps_gone(is_superseded: bool, is_there: Callable[[], bool]) -> Iterator[None]:
    """Reads what a file names. Of superseded epochs it may be gone since it was listed: a store may carry out a
    predecessor's removal at any later time, and then what it has named is litter."""
    try:
        yield
    except CorruptFile:
        if not is_superseded or is_there():
            raise


def _all_spans(lake: Lake) -> set[EpochSpan]:
    return {*map(single, lake.numbers("epochs")), *lake.segments()}


def _has_span(lake: Lake, span: EpochSpan) -> bool:
    return span in _all_spans(lake)


def _has_supplement(lake: Lake, channel: Channel, span: EpochSpan) -> bool:
    return span in lake.supplemented(channel)
