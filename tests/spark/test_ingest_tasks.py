"""How many tasks write a batch, and whether its rows are shuffled."""

import pyarrow as pa
import pytest

from upriver.ids import VnodeId
from upriver.lake.lake import FORMAT, TASKS_FORMAT
from upriver.plan.plan import TableSpec
from upriver.spark.ingest import TASK_BYTES, TASK_S, UNSHUFFLED_TASKS_MAX, BatchTasks, Layout
from upriver.state.runs import RunInfo


def runs(size: int) -> list[RunInfo]:
    """Two runs of so many bytes together."""
    return [
        RunInfo(f"{place}", 1, part, "", ((VnodeId(0), 1),)) for place, part in enumerate((size // 2, -(-size // 2)))
    ]


def test_the_number_of_tasks_follows_the_bytes_of_the_last_batch() -> None:
    tasks = BatchTasks(4)
    assert tasks.next == 4
    for size, expected in [(0, 1), (TASK_BYTES, 1), (TASK_BYTES + 1, 2), (3 * TASK_BYTES, 3), (99 * TASK_BYTES, 4)]:
        tasks.wrote(runs(size), 0.1)
        assert tasks.next == expected
    tasks.wrote([], 0.1)
    assert tasks.next == 1
    assert BatchTasks(99).next == UNSHUFFLED_TASKS_MAX


def test_a_batch_that_takes_long_gets_more_tasks_until_it_does_not() -> None:
    tasks = BatchTasks(8)
    tasks.wrote(runs(10), 0.1)
    assert tasks.next == 1
    for expected in (3, 8, 8):
        tasks.wrote(runs(10), 3 * TASK_S)
        assert tasks.next == expected
    for expected in (4, 2, 1, 1):
        tasks.wrote(runs(10), TASK_S / 2)
        assert tasks.next == expected


def test_the_bytes_of_a_row_are_those_of_the_last_batch_that_had_rows() -> None:
    tasks = BatchTasks(4)
    assert tasks.row_bytes is None
    tasks.wrote(runs(300), 0.1)
    assert tasks.row_bytes == 150
    tasks.wrote([], 0.1)
    assert tasks.row_bytes == 150
    tasks.wrote(runs(90), 0.1)
    assert tasks.row_bytes == 45


@pytest.mark.parametrize("format", [TASKS_FORMAT - 1, FORMAT])
def test_many_tasks_shuffle_and_those_of_a_root_that_earlier_versions_may_read(format: int) -> None:
    layout = Layout(
        root="/", table=TableSpec("t", pa.schema([("k", pa.int64())]), ("k",)), vnodes=8, groups=2, format=format
    )
    unshuffled = UNSHUFFLED_TASKS_MAX if format == FORMAT else 1
    assert [tasks for tasks in range(1, 20) if not layout.must_shuffle(tasks)] == [*range(1, unshuffled + 1)]
