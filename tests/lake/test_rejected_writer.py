"""Rows that were set aside while the lake takes no more: reports wait for them, in order, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from machines_kit import TABLE, VNODES

from upriver.engine.bad_rows import SetAside
from upriver.errors import LakeError
from upriver.ids import Epoch
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.rejected import OWED_MAX, WRITE_AGAIN_S_MIN, Rejected, RejectedWriter
from upriver.protocol.messages import FromWorker, StartedAnew
from upriver.protocol.worker_events import SetRowsAside


class Place:
    """A writer on a lake that can be told to take no more, and a clock."""

    def __init__(self, root: Path) -> None:
        self.lake = OwnedLake(str(root), LakeRecord(VNODES, (TABLE,), {TABLE.name: (TABLE.key,)}), {})
        self._obstacle = root / "rejected"
        self.said: list[FromWorker] = []
        self.now = 0.0
        self.writer = RejectedWriter(self.lake, self.said.append, lambda: self.now)
        self.writer.assign([TABLE])

    def take_no_more(self) -> None:
        """A file is where the directory of rejected rows is to be."""
        self._obstacle.write_text("")

    def take_again(self) -> None:
        self._obstacle.unlink()

    def rejected(self) -> list[int]:
        return [epoch for rows in Rejected(self.lake, TABLE).read() for epoch in rows.column("epoch").to_pylist()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "lake")
    yield place
    place.lake.release()


def aside(epoch: int) -> SetRowsAside:
    columns = [pa.nulls(1, field.type) for field in TABLE.schema]
    rows = pa.RecordBatch.from_arrays(columns, schema=TABLE.schema)
    return SetRowsAside(epoch=Epoch(epoch), aside=SetAside(table=TABLE.name, view="v", rows=rows, errors=("bad",)))


def report(number: int) -> FromWorker:
    return StartedAnew(generation=number)


def test_a_report_follows_the_rows_that_it_depends_on(place: Place) -> None:
    place.writer.set_aside(aside(1))
    place.writer.report(report(1))
    assert (place.rejected(), place.said) == ([1], [report(1)])
    assert place.writer.held_up is None


def test_reports_wait_until_the_lake_takes_the_rows_and_keep_their_order(place: Place) -> None:
    place.take_no_more()
    for number in (1, 2):
        place.writer.set_aside(aside(number))
        place.writer.report(report(number))
    assert place.said == []
    assert "rejected" in str(place.writer.held_up)
    assert place.writer.due_in_s == WRITE_AGAIN_S_MIN
    place.now += WRITE_AGAIN_S_MIN
    place.writer.try_again()
    assert place.writer.due_in_s == pytest.approx(2 * WRITE_AGAIN_S_MIN)
    place.take_again()
    place.writer.try_again()
    assert place.writer.held_up is None
    assert place.said == [report(1), report(2)]
    assert place.rejected() == [1, 2]
    assert place.writer.due_in_s == float("inf")


def test_only_so_much_waits(place: Place) -> None:
    place.take_no_more()
    place.writer.set_aside(aside(1))
    for number in range(1, OWED_MAX):
        place.writer.report(report(number))
    with pytest.raises(LakeError, match="rejected"):
        place.writer.report(report(0))
