"""What the flows of a worker read of the same spans: read and decoded once, and the same as without the cache."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from upriver.errors import CorruptFile
from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import LakeEpochs, Manifest
from upriver.lake.span_cache import SpanCache
from upriver.lake.spans import EpochSpan, single
from upriver.plan.plan import TableSpec
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema

VNODES = 4
BIDS = TableSpec("bids", pa.schema([("auction", pa.int64()), ("bidder", pa.int64())]), ("auction",))
AUCTIONS, BIDDERS = Channel("bids/auction"), Channel("bids/bidder")
ALL = frozenset(map(VnodeId, range(VNODES)))
FIRST = frozenset([VnodeId(0)])


class CountedLake(OwnedLake):
    """Counts what is read of it."""

    def __init__(self, root: str) -> None:
        super().__init__(root, LakeRecord(VNODES, (BIDS,), {"bids": (("auction",), ("bidder",))}), {})
        self.reads: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        """Called within each read."""

    def epochs(self, span: EpochSpan) -> LakeEpochs:
        self.reads.append(span.name)
        self.meanwhile()
        return super().epochs(span)

    def open_run(self, run: RunInfo, schema: pa.Schema) -> object:  # type: ignore[override]
        self.reads.append(run.path)
        self.meanwhile()
        return super().open_run(run, schema)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[CountedLake]:
    """Three epochs, of one row in each vnode."""
    lake = CountedLake(str(tmp_path / "lake"))
    hashes = np.arange(VNODES, dtype=np.uint64) << np.uint64(62)
    for epoch in (1, 2, 3):
        runs = {}
        for channel in (AUCTIONS, BIDDERS):
            rows = pa.table([hashes, np.arange(VNODES), np.full(VNODES, epoch)], schema=run_schema(BIDS.schema))
            path, encoded = f"tables/{channel}/{epoch}", encode_run(rows)
            lake.files.create(path, encoded)
            runs[channel] = (describe_run(path, encoded, hashes, VNODES),)
        lake.publish(Manifest(epoch=Epoch(epoch), term=lake.term, table="bids", query="q", batch=epoch, runs=runs))
    lake.reads.clear()
    yield lake
    lake.release()


def read(cache: SpanCache, epoch: int, channel: Channel = AUCTIONS, vnodes: frozenset[VnodeId] = ALL) -> pa.Table:
    manifest = cache.epochs(single(epoch), [channel])
    return pa.Table.from_batches(cache.read(manifest, channel, vnodes, BIDS), schema=run_schema(BIDS.schema))


def shared(lake: CountedLake, flows: int = 2, **bounds: int) -> SpanCache:
    """The cache of flows that all read both channels."""
    cache = SpanCache(lake, **bounds)
    for _ in range(flows):
        cache.add_reader([AUCTIONS, BIDDERS])
    return cache


def test_flows_read_and_decode_a_span_once_and_get_the_same_rows(lake: CountedLake) -> None:
    cache = shared(lake, flows=3)
    found = [read(cache, 1) for _ in range(3)]
    assert lake.reads == [single(1).name, f"tables/{AUCTIONS}/1"]
    alone = SpanCache(lake)
    alone.add_reader([AUCTIONS])
    assert found == [read(alone, 1)] * 3
    assert cache.bytes == alone.bytes == 0  # all readers have read it


@pytest.mark.parametrize(("channel", "vnodes"), [(BIDDERS, ALL), (AUCTIONS, FIRST)])
def test_other_channels_and_vnodes_are_other_rows(
    lake: CountedLake, channel: Channel, vnodes: frozenset[VnodeId]
) -> None:
    cache = shared(lake)
    assert read(cache, 1).num_rows == VNODES
    assert read(cache, 1, channel, vnodes).num_rows == len(vnodes)
    assert len(lake.reads) == 3
    assert cache.rows_of(cache.epochs(single(1), [channel]), channel, vnodes) == len(vnodes)


def test_a_flow_in_the_middle_of_the_rows_goes_on_beside_another(lake: CountedLake) -> None:
    cache = shared(lake)
    manifest = cache.epochs(single(1), [AUCTIONS])
    one = cache.read(manifest, AUCTIONS, ALL, BIDS)
    first = next(one)
    assert read(cache, 1).num_rows == VNODES
    assert first.num_rows + sum(rows.num_rows for rows in one) == VNODES
    assert len(lake.reads) == 2


def test_the_least_recently_used_rows_go_when_the_cache_is_full(lake: CountedLake) -> None:
    cache = shared(lake)
    for epoch in (1, 2):
        read(cache, epoch)
    cache = shared(lake, bytes_max=cache.bytes)
    for epoch in (1, 2, 3):
        read(cache, epoch)
    lake.reads.clear()
    for epoch in (3, 2, 1):
        read(cache, epoch)
    assert lake.reads == [f"tables/{AUCTIONS}/1"]


def test_rows_of_a_long_span_are_not_kept(lake: CountedLake) -> None:
    cache = shared(lake, entry_bytes_max=1)
    assert read(cache, 1) == read(cache, 1)
    assert cache.bytes == 0
    assert len(lake.reads) == 3


def test_a_read_that_fails_fails_for_all_who_read_it_and_is_not_kept(lake: CountedLake) -> None:
    path = Path(lake.root, f"tables/{AUCTIONS}/1")
    content = path.read_bytes()
    cache = shared(lake)
    manifest = cache.epochs(single(1), [AUCTIONS])
    path.write_bytes(content[::-1])
    readers = [cache.read(manifest, AUCTIONS, ALL, BIDS) for _ in range(2)]
    for reader in readers:
        with pytest.raises(CorruptFile):
            next(reader)
    path.write_bytes(content)
    assert read(cache, 1).num_rows == VNODES


def _leave(cache: SpanCache) -> None:
    cache.remove_reader([AUCTIONS, BIDDERS])


@pytest.mark.parametrize(("and_then", "bytes_left"), [(lambda _: None, True), (_leave, False)])
def test_rows_go_with_the_last_flow_that_has_not_read_them(
    lake: CountedLake, and_then: Callable[[SpanCache], None], bytes_left: bool
) -> None:
    cache = shared(lake)
    read(cache, 1)
    and_then(cache)
    assert (cache.bytes > 0) == bytes_left


READ_S_MAX = 30.0
"""Seconds for a read that no other one holds up."""


@pytest.mark.parametrize("after", [0, 1])
def test_a_read_that_hangs_holds_up_only_flows_that_read_the_same(lake: CountedLake, after: int) -> None:
    """after: the number of reads before the one that hangs, of a manifest and a run."""
    cache, hangs, goes_on = shared(lake, flows=3), threading.Event(), threading.Event()

    def hang() -> None:
        if len(lake.reads) == after + 1:
            hangs.set()
            assert goes_on.wait(READ_S_MAX)

    lake.meanwhile = hang
    with ThreadPoolExecutor(2) as threads:
        held_up = [threads.submit(read, cache, 1)]
        assert hangs.wait(READ_S_MAX)
        held_up.append(threads.submit(read, cache, 1))
        assert read(cache, 2).num_rows == VNODES
        assert not any(flow.done() for flow in held_up)
        goes_on.set()
        found = [flow.result(READ_S_MAX) for flow in held_up]
    assert sorted(lake.reads) == sorted(
        name for epoch in (1, 2) for name in (single(epoch).name, f"tables/{AUCTIONS}/{epoch}")
    )
    assert found == [read(cache, 1)] * 2


def test_a_manifest_that_lacks_a_channel_is_read_again(lake: CountedLake) -> None:
    cache, added = shared(lake), Channel("bids/none")
    assert cache.epochs(single(1), [AUCTIONS]) is cache.epochs(single(1), [BIDDERS])
    assert lake.reads == [single(1).name]
    assert not cache.epochs(single(1), [added]).has_runs_of(added)
    assert lake.reads == [single(1).name] * 2
