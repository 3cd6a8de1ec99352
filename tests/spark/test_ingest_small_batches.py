"""Which batches one task writes alone."""

import pytest

from upriver.ids import VnodeId
from upriver.spark.ingest import ALONE_S_MAX, SHARED_BATCHES, SmallBatches
from upriver.spark.runs import PACK_BYTES_MAX, PACK_ROWS_MAX
from upriver.state.runs import RunInfo

SMALL = (PACK_ROWS_MAX // 2, PACK_BYTES_MAX // 2)
LARGE = [(PACK_ROWS_MAX // 2 + 1, 10), (10, PACK_BYTES_MAX // 2 + 1)]


def runs(rows: int, size: int) -> list[RunInfo]:
    """Two runs of so many rows and bytes together."""
    sizes = [(rows // 2, size // 2), (rows - rows // 2, size - size // 2)]
    return [RunInfo(f"{place}", n, size, "", ((VnodeId(0), n),)) for place, (n, size) in enumerate(sizes)]


def test_the_first_batch_is_expected_to_be_small_and_each_other_to_be_like_the_last() -> None:
    small = SmallBatches()
    assert small.expected
    for rows, size in LARGE:
        small.wrote_shared(runs(rows, size))
        assert not small.expected
        small.wrote_shared(runs(*SMALL))
        assert small.expected
        small.wrote_alone(runs(rows, size), 0.1)
        assert not small.expected
        small.wrote_shared([])
        assert small.expected


def test_a_first_batch_that_is_large_is_no_reason_for_caution() -> None:
    small = SmallBatches()
    small.was_too_large()
    small.wrote_shared(runs(*LARGE[0]))
    assert not small.expected
    small.wrote_shared(runs(*SMALL))
    assert small.expected


@pytest.mark.parametrize("is_slow", [False, True])
def test_after_a_batch_that_was_too_much_for_one_task_many_are_shared(is_slow: bool) -> None:
    small = SmallBatches()
    small.wrote_alone(runs(*SMALL), ALONE_S_MAX)
    assert small.expected
    if is_slow:
        small.wrote_alone(runs(*SMALL), ALONE_S_MAX + 0.1)
    else:
        small.was_too_large()
    for _ in range(SHARED_BATCHES):
        assert not small.expected
        small.wrote_shared(runs(*SMALL))
    assert small.expected
