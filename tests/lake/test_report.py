"""What a report says of blocks of epochs that become no segment."""

from pathlib import Path

from segments_kit import BY_K, EVENTS, owned, publish

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
