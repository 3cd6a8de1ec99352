"""Which checkpoints the sweep removes, in which order, and what it leaves alone. Rule
checkpoints.manifest_removed_first."""

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import (
    FIRST,
    PLANS,
    SECOND,
    a_lake,
    add_epochs,
    chunks_of,
    everything,
    kept_of,
    other,
    read,
    take,
    written,
)
from s3_kit import S3Server

from upriver.errors import CorruptFile
from upriver.ids import Epoch
from upriver.lake.checkpoints import chain, checkpoint_path, publish, sweep
from upriver.lake.files import Files
from upriver.lake.lake import Lake, LakeRecord, OwnedLake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


def swept(lake: OwnedLake, keep: Collection[int], before: int) -> int:
    return sweep(lake, [Epoch(epoch) for epoch in keep], Epoch(before))


def epochs_there(lake: Lake) -> list[int]:
    return [int(name) for name in lake.files.names("checkpoints")]


def test_the_sweep_keeps_what_the_kept_ones_build_on(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    take(lake, 3, None, FIRST)
    take(lake, 4, 3, SECOND)
    take(lake, 5, 4, {})
    before = everything(lake)
    assert swept(lake, [5], before=6) == 6
    assert epochs_there(lake) == [3, 4, 5]
    assert everything(lake) == before
    assert swept(lake, [5], before=6) == 0
    assert swept(lake, [4], before=6) == 1
    assert everything(lake) == before  # the last one had no changes
    assert swept(lake, [], before=6) == 6
    assert lake.files.names("checkpoints") == []
    assert chain(lake, PLANS) == ()


def test_an_object_store_will_do(s3: S3Server) -> None:
    lake = OwnedLake(s3.new_root(), LakeRecord(8, (), {}), {})
    add_epochs(lake, 3)
    take(lake, 1, None, SECOND)
    take(lake, 2, None, FIRST)
    take(lake, 3, 2, SECOND)
    assert swept(lake, [3], before=4) == 3
    assert epochs_there(lake) == [2, 3]
    assert everything(lake)[0] == kept_of(FIRST | SECOND)


def test_the_sweep_removes_what_was_given_up_and_leaves_what_is_being_written(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    written(lake, 1, None, {"a": [chunks_of(FIRST, 1)]})  # an earlier attempt at the same epoch
    written(lake, 2, 1, {"a": [chunks_of(SECOND, 1)]})
    under_way = written(lake, 4, 1, {"a": [chunks_of(SECOND, 1)]})
    assert swept(lake, [1], before=4) == 2
    assert epochs_there(lake) == [1, 4]
    publish(lake, under_way)
    assert everything(lake)[0] == kept_of(FIRST | SECOND)


def test_the_sweep_leaves_what_later_ones_build_on(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    take(lake, 3, None, FIRST)
    assert swept(lake, [], before=2) == 0
    assert epochs_there(lake) == [1, 2, 3]
    assert swept(lake, [], before=3) == 6
    assert epochs_there(lake) == [3]


def test_a_damaged_checkpoint_that_is_not_kept_can_be_removed(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, None, FIRST)
    for epoch in (1, 2):
        Path(lake.root, checkpoint_path(Epoch(epoch))).write_bytes(b"damaged")
    with pytest.raises(CorruptFile, match="000000000002/manifest"):
        swept(lake, [2], before=3)
    assert epochs_there(lake) == [1, 2]
    assert swept(lake, [], before=3) == 6
    assert epochs_there(lake) == []


class Dying:
    """Files whose process dies when it removes one more than ``removes`` files."""

    def __init__(self, files: Files, removes: int) -> None:
        self._files = files
        self._removes = removes

    def remove(self, path: str) -> None:
        if not self._removes:
            raise SystemError("the driver dies here")
        self._removes -= 1
        self._files.remove(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.mark.parametrize("removes", range(9))
def test_checkpoints_manifest_removed_first_a_sweep_may_die_between_any_two_removals(
    lake: OwnedLake, removes: int
) -> None:
    """Whatever has a manifest then has its files, and what it builds on."""
    for epoch, base in ((1, None), (2, 1), (3, 2), (4, None)):
        take(lake, epoch, base, FIRST)
    kept, lake.files = lake.files, Dying(lake.files, removes)
    with pytest.raises(SystemError, match="the driver dies here"):
        swept(lake, [4], before=5)
    lake.files = kept
    whole = [epoch for epoch in (1, 2, 3) if "manifest.json" in lake.files.names(f"checkpoints/{epoch:012d}")]
    assert whole == list(range(1, 4 - math.ceil(removes / 3)))  # newest first; three files each, the manifest first
    for epoch in whole:
        assert read(lake, "a", range(epoch, 0, -1)) == FIRST
        assert read(lake, "b", range(epoch, 0, -1)) == kept_of(other(FIRST))
    assert swept(lake, [4], before=5) == 9 - removes
    assert epochs_there(lake) == [4]
