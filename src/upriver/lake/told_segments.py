"""What the readers of a lake know about its segments.

The driver commits a segment and then tells the readers. A write that seems to fail may have created the file, and a
segment may get runs of another index before the readers hear of it. So the files decide: each segment that is there
and was not told is read and told, as it is now.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol

from upriver.errors import CorruptFile, NotRead
from upriver.ids import Epoch
from upriver.lake.lake import Lake
from upriver.lake.manifests import Segment


class EpochReaders(Protocol):
    """Knows which epochs are needed apart, and is told which no longer are."""

    def horizon(self, seconds: float) -> Epoch:
        """The last epoch that none needs apart from those before it. Raises WaitTimeout."""

    def compacted(self, segment: Segment) -> None:
        """A segment is in the lake."""

    def rewritten(self, as_of: Epoch, segments: Iterable[Segment]) -> None:
        """All segments that were rewritten as of this epoch are in the lake."""


class ToldSegments:
    """The segments that the readers know. At first these are all segments in the lake."""

    def __init__(self, lake: Lake, readers: EpochReaders) -> None:
        self._lake = lake
        self._readers = readers
        self._told = set(lake.segments())
        self.failures: list[str] = []
        """Why readers go without segments that are there, each naming a file. Of the last call."""

    def tell(self) -> None:
        """Tell the readers of all other segments, but those that cannot be read now.

        The caller holds the lock under which a table's history changes: no index is completed between the reading of a
        segment and the telling.
        """
        self.failures = []
        untold = self._lake.segments() - self._told
        for span in sorted((span for span in untold if not span.rewritten), key=len):
            with self._noting_damage():
                self._readers.compacted(self._lake.segment(span))
                self._told.add(span)
        rewritten = sorted((span for span in untold if span.rewritten), key=lambda span: span.rewritten)
        for as_of, found in groupby(rewritten, key=lambda span: span.rewritten):
            if self.failures:
                return  # readers take them in order, and all of one epoch at once
            spans = list(found)
            with self._noting_damage():
                self._readers.rewritten(as_of, [self._lake.segment(span) for span in spans])
                self._told.update(spans)

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except (CorruptFile, NotRead) as error:
            self.failures.append(str(error))
