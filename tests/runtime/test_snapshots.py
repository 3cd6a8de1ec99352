"""A worker's parts of snapshots: scans read them by vnodes or keys. A retiring worker waits until scans are through,
and no longer."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from upriver.errors import ProtocolError, WaitTimeout
from upriver.hashing import HASH64_MAX, hash64
from upriver.ids import SnapshotId
from upriver.runtime.snapshots import HeldSnapshots
from upriver.vnodes import VnodeGroup

FIRST, SECOND = SnapshotId(1), SnapshotId(2)
ROWS = pa.table({"k": ["a"]})
SECONDS_MAX = 30.0


@pytest.fixture
def held() -> HeldSnapshots:
    held = HeldSnapshots(again_s=0.0)
    held.hold(FIRST, ROWS)
    return held


def numbered(first: int, last: int) -> pa.Table:
    """Rows in the order of their keys' hash64, in two chunks."""
    keys = pa.array(range(first, last), pa.int64())
    rows = pa.table({"n": pa.array(range(last - first)), "k": keys}).take(pa.array(np.argsort(hash64([keys]))))
    return pa.concat_tables([rows.slice(0, 5), rows.slice(5)])


def test_a_scan_gets_the_rows_of_its_vnodes_and_of_its_keys(held: HeldSnapshots) -> None:
    rows = numbered(0, 100)
    held.hold(SECOND, rows)
    part = held.read(SECOND, "v")
    groups = [part.rows_in(["k"], [group.hashes]) for group in VnodeGroup.all(16, 3)]
    assert pa.concat_tables(groups).equals(rows)
    assert all(group.num_rows for group in groups)
    ends = [(hash, hash) for hash in hash64([rows.column("k").take([3, 98])]).tolist()]
    assert part.rows_in(["k"], ends).column("k").to_pylist() == rows.column("k").take([3, 98]).to_pylist()
    assert part.rows_in(["k"], []).equals(rows.slice(0, 0))


def test_rows_in_another_order_than_a_scan_thinks_are_refused(held: HeldSnapshots) -> None:
    """The view may have been declared anew."""
    held.hold(SECOND, numbered(100, 109))
    for key, said in (("n", "the rows are not in the order of"), ("m", "the view has no column 'm'")):
        with pytest.raises(ProtocolError, match=said):
            held.read(SECOND, "v").rows_in([key], [(0, HASH64_MAX)])


def leave(held: HeldSnapshots, pool: ThreadPoolExecutor) -> Future[None]:
    return pool.submit(held.wait_read, SECONDS_MAX)


def test_a_part_is_had_until_it_is_forgotten(held: HeldSnapshots) -> None:
    assert held.read(FIRST, "v").rows is ROWS
    held.was_read(FIRST)
    assert held.read(FIRST, "v").rows is ROWS
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
    assert held.read(FIRST, "v").rows is ROWS


@pytest.mark.parametrize(
    "end",
    [
        lambda held: held.was_read(FIRST),
        lambda held: held.forget(FIRST),
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
