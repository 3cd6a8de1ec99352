"""What a worker reads of an epoch, in pieces that are as long as may be."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from store_kit import HangingStore

from upriver.engine.retention import Retention
from upriver.ids import Channel, Epoch, FlowId, VnodeId
from upriver.lake.flow_threads import FlowThreads
from upriver.lake.lake import CommitTimes, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec
from upriver.protocol.worker_events import EpochRead, ReadEpoch, RowsRead
from upriver.runtime.lake_reader import READ_AGAIN_S_MAX, READ_AGAIN_S_MIN, LakeReader, end_of_piece
from upriver.runtime.pace import ROWS_BUDGET_S, ROWS_MIN
from upriver.runtime.read_ahead import Piece, ReadAhead, Reading, ReadNow
from upriver.state.runs import describe_run, encode_run, run_schema

VNODES = 4
ROWS = 150_000
WOKEN_S_MAX = 30.0
"""Seconds for a thread that no read holds up."""
BIDS = TableSpec("bids", pa.schema([("auction", pa.int64())]), ("auction",))
CHANNEL = Channel("bids/auction")
ALL = tuple(map(VnodeId, range(VNODES)))


@given(arrays(np.uint64, st.integers(1, 60), elements=st.integers(0, 12)), st.integers(1, 70))
def test_pieces_hold_all_rows_and_cut_no_key(hashes: npt.NDArray[np.uint64], rows_max: int) -> None:
    hashes = np.sort(hashes)
    cuts = [0]
    while cuts[-1] < len(hashes):
        cuts.append(end_of_piece(hashes, cuts[-1], rows_max, whole_keys=True))
    assert cuts[-1] == len(hashes)
    for first, end in pairwise(cuts):
        assert end == len(hashes) or hashes[end - 1] != hashes[end]
        before_the_last_key = np.searchsorted(hashes[first:end], hashes[end - 1])
        assert first < end
        assert before_the_last_key < rows_max


def test_what_is_left_is_cut_into_pieces_of_one_size() -> None:
    hashes = np.arange(100, dtype=np.uint64)
    assert [end_of_piece(hashes, first, 40, whole_keys=True) for first in (0, 34, 67)] == [34, 67, 100]


def ahead(pieces: Iterator[Piece]) -> Reading:
    """Read ahead, at once."""
    return ReadAhead(pieces, lambda job: job(), lambda: None)


Begin = Callable[[Iterator[Piece]], Reading]
EITHER_WAY = pytest.mark.parametrize("begin", [ReadNow, ahead])


@pytest.fixture(params=[ReadNow, ahead])
def reading(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LakeReader]:
    """Of one epoch, of one run in which each key has three rows."""
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(VNODES, (BIDS,), {"bids": (("auction",),)}), {})
    hashes = np.repeat(np.arange(ROWS // 3, dtype=np.uint64) << np.uint64(46), 3)
    encoded = encode_run(pa.table([hashes, np.arange(ROWS)], schema=run_schema(BIDS.schema)))
    lake.files.create("tables/bids/auction/run", encoded)
    run = describe_run("tables/bids/auction/run", encoded, hashes, VNODES)
    lake.publish(Manifest(epoch=Epoch(1), term=lake.term, table="bids", query="q", batch=0, runs={CHANNEL: (run,)}))
    reading = LakeReader(lake, CommitTimes(lake), begin=request.param)
    reading.assign(VNODES, {CHANNEL: BIDS})
    reading.begin(ReadEpoch(epoch=Epoch(1), channels=(CHANNEL,), vnodes=ALL))
    yield reading
    lake.release()


def pieces(reading: LakeReader, seconds: float, *, in_parts: bool = False) -> list[RowsRead]:
    """All pieces of the epoch, if each takes so many seconds of processor time to be taken in."""
    wanted = frozenset({CHANNEL} if in_parts else ())
    reading.begin(ReadEpoch(epoch=Epoch(1), channels=(CHANNEL,), vnodes=ALL, in_parts=wanted))
    taken: list[Piece] = []

    def take_in(piece: Piece) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            taken[:] = taken
        taken.append(piece)

    while reading.is_on:
        reading.feed(take_in)
    *rows, last = taken
    assert last == EpochRead(epoch=Epoch(1), promised={CHANNEL: ROWS})
    read = [piece for piece in rows if isinstance(piece, RowsRead)]
    assert len(read) == len(rows)
    assert np.concatenate([piece.batch.rows.column(0) for piece in read]).tolist() == list(range(ROWS))
    for one, other in pairwise(read):
        assert one.goes_on == (one.batch.hash64[-1] == other.batch.hash64[0])
    assert in_parts or not any(piece.goes_on for piece in read)
    return read


def test_pieces_that_are_taken_in_at_once_become_longer(reading: LakeReader) -> None:
    assert max(len(piece.batch) for piece in pieces(reading, 0.0)) > 2 * ROWS_MIN


def test_pieces_that_take_long_are_as_short_as_may_be(reading: LakeReader) -> None:
    assert all(len(piece.batch) <= ROWS_MIN + 2 for piece in pieces(reading, 2 * ROWS_BUDGET_S))


def test_a_key_goes_on_in_the_next_piece_where_that_may_be(reading: LakeReader) -> None:
    assert any(piece.goes_on for piece in pieces(reading, 2 * ROWS_BUDGET_S, in_parts=True))


@given(st.integers(1, 300), st.integers(1, 70))
def test_a_key_of_any_number_of_rows_is_cut_where_that_may_be(rows: int, rows_max: int) -> None:
    hashes, cuts = np.full(rows, 7, np.uint64), [0]
    while cuts[-1] < rows:
        cuts.append(end_of_piece(hashes, cuts[-1], rows_max, whole_keys=False))
    assert cuts[-1] == rows
    assert all(0 < end - first <= rows_max for first, end in pairwise(cuts))


def test_an_epoch_that_is_given_up_is_read_no_further(reading: LakeReader) -> None:
    taken: list[Piece] = []
    reading.feed(taken.append)
    reading.give_up()
    assert len(taken) == 1
    assert not reading.is_on


@EITHER_WAY
def test_an_epoch_that_cannot_be_read_is_tried_again_from_where_it_stood_with_back_off(
    tmp_path: Path, begin: Begin
) -> None:
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(VNODES, (BIDS,), {"bids": (("auction",),)}), {})
    keys = np.arange(3, dtype=np.uint64) << np.uint64(62)
    runs = []
    for number in range(3):
        encoded = encode_run(pa.table([keys[number : number + 1], [number]], schema=run_schema(BIDS.schema)))
        lake.files.create(f"tables/bids/auction/{number}", encoded)
        runs.append(describe_run(f"tables/bids/auction/{number}", encoded, keys[number : number + 1], VNODES))
    manifest = Manifest(epoch=Epoch(1), term=lake.term, table="bids", query="q", batch=0, runs={CHANNEL: tuple(runs)})
    lake.publish(manifest)
    last = tmp_path / "lake/tables/bids/auction/2"
    now = [0.0]
    reading, taken = LakeReader(lake, CommitTimes(lake), lambda: now[0], begin=begin), list[Piece]()
    reading.assign(VNODES, {CHANNEL: BIDS})
    content = last.read_bytes()
    last.unlink()
    reading.begin(ReadEpoch(epoch=Epoch(1), channels=(CHANNEL,), vnodes=ALL))
    waits = []
    for _ in range(12):
        while reading.is_on:
            reading.feed(taken.append)
        assert "epoch 1: CorruptFile: " in str(reading.held_up)
        assert f"{last}: the file is gone" in str(reading.held_up)
        waits.append(reading.due_in_s)
        now[0] += reading.due_in_s
    assert waits[:3] == pytest.approx([READ_AGAIN_S_MIN, 2 * READ_AGAIN_S_MIN, 4 * READ_AGAIN_S_MIN])
    assert waits[-1] == pytest.approx(READ_AGAIN_S_MAX)
    last.write_bytes(content)
    while reading.is_on:
        reading.feed(taken.append)
    rows = [piece.batch.rows.column(0).to_pylist() for piece in taken if isinstance(piece, RowsRead)]
    assert [row for piece in rows for row in piece] == [0, 1, 2]
    assert (reading.held_up, reading.due_in_s) == (None, math.inf)
    lake.release()


def test_a_read_beside_one_that_was_given_up_and_hangs_has_all_rows_that_leave_the_table() -> None:
    store, threads, woken = HangingStore(), FlowThreads("reads", 4), threading.Event()
    lake = OwnedLake("memory://lake", LakeRecord(VNODES, (BIDS,), {"bids": (("auction",),)}), {}, store)
    retained = [Retention("auction", newest=3), Retention("auction", newest=9, cut=3)]
    for number, (times, retention) in enumerate(zip(([1, 2, 3], [9]), retained, strict=True), 1):
        hashes = np.array(times, np.uint64)
        encoded = encode_run(pa.table([hashes, times], schema=run_schema(BIDS.schema)))
        lake.files.create(f"tables/bids/auction/{number}", encoded)
        runs = {CHANNEL: (describe_run(f"tables/bids/auction/{number}", encoded, hashes, VNODES),)}
        epoch, all_retained = Epoch(number), {"bids": retention}
        lake.publish(
            Manifest(
                epoch=epoch, term=lake.term, table="bids", query="q", batch=number, runs=runs, retained=all_retained
            )
        )
    reading = LakeReader(
        lake, CommitTimes(lake), begin=lambda pieces: ReadAhead(pieces, partial(threads.do, FlowId(1)), woken.set)
    )
    reading.assign(VNODES, {CHANNEL: BIDS})
    second = ReadEpoch(epoch=Epoch(2), channels=(CHANNEL,), vnodes=ALL)
    store.slow = "tables/bids/auction/1"
    reading.begin(second)
    assert store.hangs.wait(WOKEN_S_MAX)
    reading.begin(second)
    taken: list[Piece] = []
    while not taken or isinstance(taken[-1], RowsRead):
        assert woken.wait(WOKEN_S_MAX)
        woken.clear()
        while reading.is_on:
            reading.feed(taken.append)
    store.goes_on.set()
    threads.close()
    changes = Counter[int]()
    for piece in taken[:-1]:
        assert isinstance(piece, RowsRead)
        weights = [1] * len(piece.batch) if piece.batch.weight is None else piece.batch.weight.tolist()
        changes.update(dict(zip(piece.batch.rows.column(0).to_pylist(), weights, strict=True)))
    assert changes == {1: -1, 2: -1, 3: -1, 9: 1}
