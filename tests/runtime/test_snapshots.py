"""A worker's parts of snapshots: a retiring worker waits until scans are through, and no longer."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pytest

from upriver.errors import WaitTimeout
from upriver.ids import SnapshotId
from upriver.runtime.snapshots import HeldSnapshots

FIRST, SECOND = SnapshotId(1), SnapshotId(2)
ROWS = pa.table({"k": ["a"]})
SECONDS_MAX = 30.0


@pytest.fixture
def held() -> HeldSnapshots:
    held = HeldSnapshots(again_s=0.0)
    held.hold(FIRST, ROWS)
    return held


def leave(held: HeldSnapshots, pool: ThreadPoolExecutor) -> Future[None]:
    return pool.submit(held.wait_read, SECONDS_MAX)


def test_a_part_is_had_until_it_is_forgotten(held: HeldSnapshots) -> None:
    assert held.read(FIRST, "v") is ROWS
    held.was_read(FIRST)
    assert held.read(FIRST, "v") is ROWS
    held.forget(FIRST)
    with pytest.raises(WaitTimeout, match="view 'v': snapshot 1 is no longer held"):
        held.read(FIRST, "v")


def test_a_part_that_is_being_read_is_waited_for(held: HeldSnapshots) -> None:
    """Its first rows are on their way when the reader has asked; the worker that ends then would cut off the rest."""
    for _ in range(2):
        held.read(FIRST, "v")
    with ThreadPoolExecutor(1) as pool:
        left = leave(held, pool)
        held.hold(SECOND, ROWS)
        held.was_read(FIRST)
        held.was_read(SECOND)  # which no scan has begun to read
        assert not left.done()
        held.was_read(FIRST)
        assert not left.done()
        held.forget(SECOND)
        assert left.result(SECONDS_MAX) is None


def test_a_part_may_be_asked_for_again_in_a_while() -> None:
    held = HeldSnapshots(again_s=SECONDS_MAX)
    held.hold(FIRST, ROWS)
    held.read(FIRST, "v")
    held.was_read(FIRST)
    with ThreadPoolExecutor(1) as pool:
        left = leave(held, pool)
        assert not left.done()
        held.forget(FIRST)
        assert left.result(SECONDS_MAX) is None


def test_the_wait_is_bounded(held: HeldSnapshots) -> None:
    held.wait_read(0.01)
    assert held.read(FIRST, "v") is ROWS


@pytest.mark.parametrize(
    "end",
    [
        lambda held: held.was_read(FIRST),
        lambda held: held.forget(FIRST),
        HeldSnapshots.forget_all,
        HeldSnapshots.hurry,
    ],
)
def test_what_ends_the_wait(held: HeldSnapshots, end: Callable[[HeldSnapshots], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        held.read(FIRST, "v")
        left = leave(held, pool)
        assert not left.done()
        end(held)
        assert left.result(SECONDS_MAX) is None
