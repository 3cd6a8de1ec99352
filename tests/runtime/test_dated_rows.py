"""A flow that needs the epochs of rows reads those that the rows came with, however the lake has merged them since."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from segments_kit import ALL, BY_K, EVENTS, VNODES, compacted, owned, publish

from upriver.ids import Epoch
from upriver.lake.compaction import dated
from upriver.lake.lake import CommitTimes, OwnedLake
from upriver.plan.row_order import EPOCH_COLUMN
from upriver.protocol.worker_events import ReadEpoch, RowsRead
from upriver.runtime.lake_reader import LakeReader
from upriver.runtime.read_ahead import Piece

ROWS = {3: [(1, 30), (2, 31)], 9: [(1, 90)], 17: [(2, 170), (1, 171)], 60: [(1, 600)]}
"""The epochs that have rows."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    with owned(tmp_path / "lake") as made:
        yield made


def read(lake: OwnedLake, through: int) -> list[tuple[int, int, int]]:
    """(key, value, epoch) of all rows, as a flow reads them that begins now, segments as they are."""
    found: list[tuple[int, int, int]] = []

    def take(piece: Piece) -> None:
        if isinstance(piece, RowsRead):
            rows = piece.batch.rows
            found.extend(zip(*(rows.column(name).to_pylist() for name in ("k", "n", EPOCH_COLUMN)), strict=True))

    reader = LakeReader(lake, CommitTimes(lake))
    reader.assign(VNODES, {BY_K: dated(EVENTS)})
    after = 0
    for span in lake.spans(Epoch(through)):
        reader.begin(ReadEpoch(epoch=span.last, channels=(BY_K,), vnodes=tuple(ALL), after=Epoch(after)))
        while reader.due_in_s == 0:
            reader.feed(take)
        after = span.last
    return found


@pytest.mark.parametrize("epochs", [20, 60, 257])
def test_rows_have_the_epochs_that_they_came_with(lake: OwnedLake, epochs: int) -> None:
    expected = {(key, value, epoch) for epoch, rows in ROWS.items() if epoch <= epochs for key, value in rows}
    for epoch in range(1, epochs + 1):
        publish(lake, EVENTS, ROWS.get(epoch, []))
    for _ in range(3):
        found = read(lake, epochs)
        assert set(found) == expected
        for key in (1, 2):
            of_key = [epoch for k, _, epoch in found if k == key]
            assert of_key == sorted(of_key)
        compacted(lake)
    assert sum(span.is_segment for span in lake.spans(Epoch(epochs))) == epochs // 16 % 16 + epochs // 256
