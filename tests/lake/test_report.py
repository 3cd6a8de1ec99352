"""What a report says of blocks of epochs that become no segment, and what it reads."""

from collections import Counter
from pathlib import Path
from typing import Any

from segments_kit import BY_K, EVENTS, compacted, owned, publish

from upriver.ids import Epoch
from upriver.lake.compaction import VNODE_BYTES_MAX
from upriver.lake.lake import Lake, OwnedLake, epoch_path
from upriver.lake.report import report_of
from upriver.lake.spans import FAN_IN


def with_bytes(lake: OwnedLake, epoch: int, length: int) -> None:
    """Have the manifest of an epoch say that its runs are as long as this."""
    manifest = lake.manifest(Epoch(epoch)).to_json()
    for runs in manifest["runs"].values():
        for run in runs:
            run["bytes"] = length
    lake.files.remove(epoch_path(Epoch(epoch)))
    lake.write_record(epoch_path(Epoch(epoch)), manifest)


def test_a_block_that_is_too_large_is_not_due(tmp_path: Path) -> None:
    with owned(tmp_path) as lake:
        for number in range(2 * FAN_IN + 3):
            publish(lake, EVENTS, [(1, number)])
        with_bytes(lake, FAN_IN + 2, VNODE_BYTES_MAX)
        report = report_of(Lake(str(tmp_path)), 0.0)
        assert (report.due, report.too_large) == (1, 1)
        assert report.to_json()["too_large"] == 1
        assert report.indexes[BY_K][0].spans == 2 * FAN_IN + 3


class Counting:
    """Files of a lake whose reads are counted."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.reads = Counter[str]()

    def read(self, path: str) -> Any:
        self.reads[path] += 1
        return self._files.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_a_report_reads_each_manifest_and_segment_once(tmp_path: Path) -> None:
    """Two thirds of the epochs are in segments and may go."""
    with owned(tmp_path) as lake:
        for number in range(3 * FAN_IN):
            publish(lake, EVENTS, [(1, number)])
        compacted(lake, 2 * FAN_IN)
    read = Lake(str(tmp_path))
    read.files = counting = Counting(read.files)
    report = report_of(read, -1.0)
    assert (report.due, report.removable.epochs, report.spans) == (1, 2 * FAN_IN, 2 + FAN_IN)
    reads = {path: count for path, count in counting.reads.items() if path.startswith(("epochs/", "segments/"))}
    assert set(reads.values()) == {1}
    assert len(reads) == 3 * FAN_IN + 2
