"""Collection: files that nothing needs are removed, some time after they were last needed (docs/internals/lake.md).

A manifest or segment is *superseded* by a segment that has all of its epochs. A reader that has begun may still use it,
so it stays until the segment is ``grace`` old, and until no worker stands among the epochs (segments.grace). Its file
goes first, then its supplements, then its runs: a reader never finds a manifest without its runs.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from upriver.ids import Epoch
from upriver.lake.lake import Lake, OwnedLake, epoch_path, segment_path, supplement_path
from upriver.lake.manifests import LakeEpochs, Segment
from upriver.lake.spans import EpochSpan, single
from upriver.state.runs import RunInfo

GRACE_S = 3600.0
"""Seconds for which replaced files stay, unless the user says otherwise."""
COLLECTED_MAX = 2_000
"""Manifests and segments that one collection removes: a driver that has many to remove does not hold on for long."""


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """What a collection has removed. epochs: manifests and segments. bytes: of runs."""

    epochs: int = 0
    runs: int = 0
    bytes: int = 0

    def __add__(self, other: "RemovedFiles") -> "RemovedFiles":
        return RemovedFiles(self.epochs + other.epochs, self.runs + other.runs, self.bytes + other.bytes)


def superseded(lake: Lake, horizon: Epoch, made_before: float) -> Iterator[EpochSpan]:
    """The spans that a segment has all epochs of, that is no younger and ends at the horizon or before."""
    segments = sorted(lake.segments(), key=lambda span: (span.first, -span.last))
    outer: list[EpochSpan] = []
    for span in segments:
        if span.last > horizon or (outer and span.last <= outer[-1].last):
            continue
        if lake.segment(span).made_at < made_before:
            outer.append(span)
    starts = [span.first for span in outer]

    def is_inside(span: EpochSpan) -> bool:
        place = bisect_right(starts, span.first) - 1
        return place >= 0 and span.last <= outer[place].last and span != outer[place]

    # What is smaller goes first: a run may have gone on, as it is, from one epoch to ever larger segments.
    yield from filter(is_inside, map(single, sorted(lake.numbers("epochs"))))
    yield from filter(is_inside, sorted(segments, key=len))


def collect(lake: OwnedLake, spans: Iterable[EpochSpan]) -> RemovedFiles:
    """Remove superseded manifests and segments, and the runs that only they name. Raises LakeInUse, CorruptFile."""
    total = RemovedFiles()
    segments = [lake.segment(span) for span in sorted(lake.segments())]
    for number, span in enumerate(spans):
        if number == COLLECTED_MAX:
            break
        if not number % 100:
            lake.check_owner()
        total += _remove(lake, span, segments)
    return total


def _remove(lake: OwnedLake, span: EpochSpan, segments: Iterable[Segment]) -> RemovedFiles:
    epochs = lake.epochs(span)
    gone = _only_in(epochs, segments)
    lake.files.remove(epoch_path(span.last) if len(span) == 1 else segment_path(span))
    for channel in epochs.runs:
        lake.files.remove(supplement_path(channel, span))
    for run in gone:
        lake.files.remove(run.path)
    return RemovedFiles(1, len(gone), sum(run.bytes for run in gone))


def _only_in(epochs: LakeEpochs, segments: Iterable[Segment]) -> list[RunInfo]:
    """The runs that these epochs have, and no segment of the same epochs and more."""
    others = [other for other in segments if other.first <= epochs.span.first and epochs.epoch <= other.epoch]
    kept = {path for other in others if other.span != epochs.span for path in _paths(other)}
    return [run for runs in epochs.runs.values() for run in runs if run.path not in kept]


def collectable(lake: Lake, spans: Iterable[EpochSpan]) -> RemovedFiles:
    """What ``collect`` would remove of all these spans. Raises CorruptFile."""
    segments = [lake.segment(span) for span in sorted(lake.segments())]
    removed = set(spans)
    staying = [segment for segment in segments if segment.span not in removed]
    gone = {run.path: run.bytes for span in removed for run in _only_in(lake.epochs(span), staying)}
    return RemovedFiles(len(removed), len(gone), sum(gone.values()))


def _paths(epochs: LakeEpochs) -> Iterator[str]:
    return (run.path for runs in epochs.runs.values() for run in runs)


def remove_litter(lake: OwnedLake, suspects: Iterable[str]) -> RemovedFiles:
    """Remove those of these runs that nothing in the lake names: batches, indexes and segments that were never
    committed left them. suspects: paths of runs that were there before this driver wrote any. Raises LakeInUse."""
    named = {path for number in lake.numbers("epochs") for path in _named(lake, single(number))}
    named |= {path for span in lake.segments() for path in _named(lake, span)}
    for channel in lake.supplement_channels():
        for span in lake.supplemented(channel):
            named |= {run.path for run in lake.supplement_runs(channel, span)}
    gone = [path for path in suspects if path not in named]
    lake.check_owner()
    for path in gone:
        lake.files.remove(path)
    return RemovedFiles(runs=len(gone))


def _named(lake: Lake, span: EpochSpan) -> Iterator[str]:
    return _paths(lake.epochs(span))
