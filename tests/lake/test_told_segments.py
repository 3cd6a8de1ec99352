"""The readers hear of each segment that is in the lake once, as it is then, whatever its write seemed to come to."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from segments_kit import BY_K, BY_N, EVENTS, INDEXES, TABLES, VNODES, compacted, owned, publish, write_run

from upriver.coordinator.published import PublishedEpochs
from upriver.engine.expressions import Evaluator
from upriver.errors import NotWritten
from upriver.ids import Epoch
from upriver.lake.compaction import SegmentPlanner, merge_runs
from upriver.lake.lake import OwnedLake, segment_path
from upriver.lake.manifests import Segment
from upriver.lake.spans import EpochSpan
from upriver.lake.told_segments import ToldSegments
from upriver.plan.plan import table_of
from upriver.protocol.coordinator_events import EpochPublished, SegmentPublished

ROWS = [(1, 2), (3, 4)]
SPAN = EpochSpan(Epoch(1), Epoch(16))


class Readers:
    """The order of epochs as the coordinator has it, which no worker holds up."""

    def __init__(self, lake: OwnedLake) -> None:
        self.epochs = PublishedEpochs()
        self.heard: list[EpochSpan] = []
        self.show(lake)

    def show(self, lake: OwnedLake) -> None:
        """The epochs are as the lake has them now."""
        found = [(lake.epochs(span), span.after) for span in lake.spans(lake.last_epoch())]
        self.epochs.replace(EpochPublished(epoch=each.epoch, rows=each.rows(), after=after) for each, after in found)

    def horizon(self, seconds: float) -> Epoch:
        return self.epochs.last

    def compacted(self, segment: Segment) -> None:
        self.heard.append(segment.span)
        told = SegmentPublished(epoch=segment.epoch, after=segment.span.after, rows=segment.rows())
        self.epochs.compacted(told)
        self.epochs.adopt([])

    def rewritten(self, as_of: Epoch, segments: Iterable[Segment]) -> None:
        self.heard += [segment.span for segment in segments]


class Forgetful:
    """Files of a lake where a segment's create comes to pass and seems to fail."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def create(self, path: str, content: Any) -> None:
        self._files.create(path, content)
        if path == segment_path(SPAN):
            raise NotWritten(f"{path}: no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    """Of 17 epochs, with one of the table's two indexes."""
    with owned(tmp_path, {**INDEXES, "events": (("k",),)}) as lake:
        for _ in range(17):
            publish(lake, EVENTS, ROWS, [("k",)])
        yield lake


def publish_first_block(lake: OwnedLake) -> None:
    plan = SegmentPlanner(lake, VNODES).plan(SPAN)
    assert plan is not None
    merged = [merge_runs(lake, merge, TABLES[table_of(merge.channel)], VNODES, Evaluator()) for merge in plan.merges]
    lake.publish_segment(plan.segment(merged, lake.term, 5.0))


def add_index(lake: OwnedLake) -> None:
    """As a backfill adds it: all spans that readers use get a supplement."""
    for span in lake.spans(lake.last_epoch()):
        rows = ROWS * len(span)
        lake.supplement(BY_N, span, [write_run(lake, EVENTS, ("n",), rows)])
    lake.complete("events", ("n",))


def test_a_segment_whose_write_seemed_to_fail_is_told_with_the_index_that_it_got_meanwhile(lake: OwnedLake) -> None:
    readers = Readers(lake)
    told, files = ToldSegments(lake, readers), lake.files
    lake.files = Forgetful(files)
    with pytest.raises(NotWritten):
        publish_first_block(lake)
    lake.files = files
    add_index(lake)
    readers.show(lake)
    told.tell()
    assert readers.heard == [SPAN]
    assert readers.epochs[SPAN.last].rows == {BY_K: 32, BY_N: 32}
    assert readers.epochs[Epoch(17)].rows == {BY_K: 2, BY_N: 2}


def test_each_segment_is_told_once_and_those_of_the_start_are_not(lake: OwnedLake) -> None:
    compacted(lake)
    readers = Readers(lake)
    told = ToldSegments(lake, readers)
    told.tell()
    assert readers.heard == []
    for _ in range(15):
        publish(lake, EVENTS, ROWS, [("k",)])
    readers.show(lake)
    made = [segment.span for segment in compacted(lake)]
    told.tell()
    told.tell()
    assert readers.heard == made == [EpochSpan(Epoch(17), Epoch(32))]


def test_a_segment_that_cannot_be_read_is_told_when_it_can(lake: OwnedLake) -> None:
    for _ in range(15):
        publish(lake, EVENTS, ROWS, [("k",)])
    readers = Readers(lake)
    told = ToldSegments(lake, readers)
    compacted(lake)
    path = Path(lake.root) / segment_path(SPAN)
    content = path.read_bytes()
    path.write_bytes(b"")
    told.tell()
    assert readers.heard == [EpochSpan(Epoch(17), Epoch(32))]
    assert len(told.failures) == 1
    assert segment_path(SPAN) in told.failures[0]
    path.write_bytes(content)
    told.tell()
    assert readers.heard[1:] == [SPAN]
    assert told.failures == []
