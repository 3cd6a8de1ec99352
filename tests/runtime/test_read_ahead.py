"""What a thread reads ahead of the loop: everything in order, and no more than a bounded number of bytes.

The jobs that a thread would do are done one at a time, when a test says so.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from upriver.engine.batch import Batch
from upriver.errors import CorruptFile
from upriver.ids import Channel, Epoch
from upriver.protocol.worker_events import EpochRead, RowsRead
from upriver.runtime.read_ahead import READ_AHEAD_BYTES_MAX, Piece, ReadAhead

CHANNEL = Channel("bids/auction")
END = EpochRead(epoch=Epoch(1), promised={})


def rows(nbytes: int) -> RowsRead:
    """Rows of so many bytes: half of them are hashes."""
    values = np.zeros(nbytes // 16, np.int64)
    batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["auction"])
    return RowsRead(epoch=Epoch(1), channel=CHANNEL, batch=Batch(batch, values.astype(np.uint64)))


class ReadWorld:
    """A read of some pieces. read: how many were read. error: raised after them. meanwhile: called before each."""

    def __init__(
        self, pieces: list[Piece], error: Exception | None = None, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self.read = self.wakes = 0
        self.takes_at_once = False
        """The loop takes a piece as soon as it is woken, before the thread goes on."""
        self.taken: list[Piece] = []
        self._jobs: list[Callable[[], None]] = []
        self._error = error
        self._meanwhile = meanwhile
        self.reading = ReadAhead(self._read(pieces), self._jobs.append, self._wake)

    def _read(self, pieces: list[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            self._meanwhile()
            self.read += 1
            yield piece
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        self.wakes += 1
        if self.takes_at_once:
            self.taken.append(self.reading.next())

    def work(self) -> bool:
        """Do the job that waits; returns whether there was one."""
        assert len(self._jobs) <= 1
        if not self._jobs:
            return False
        self._jobs.pop()()
        return True


def test_the_loop_takes_all_pieces_in_order() -> None:
    pieces: list[Piece] = [rows(16), rows(32), END]
    world = ReadWorld(pieces)
    assert not world.reading.is_ready
    assert world.work()
    taken: list[Piece] = []
    while world.reading.is_ready:
        taken.append(world.reading.next())
    assert taken == pieces
    assert world.wakes == 1
    assert not world.work()


def test_the_thread_reads_on_only_while_there_is_room() -> None:
    world = ReadWorld([*(rows(READ_AHEAD_BYTES_MAX // 2) for _ in range(4)), END])
    assert world.work()
    assert world.read == 2
    assert not world.work()
    for taken in (1, 2):
        world.reading.next()
        assert world.work()
        assert world.read == 2 + taken
    while world.reading.is_ready:
        last = world.reading.next()
        world.work()
    assert last == END


def test_rows_that_are_larger_than_the_bound_come_by_themselves() -> None:
    world = ReadWorld([rows(2 * READ_AHEAD_BYTES_MAX), rows(2 * READ_AHEAD_BYTES_MAX), END])
    for read in (1, 2):
        assert world.work()
        assert world.read == read
        world.reading.next()
    assert world.wakes == 2
    assert world.work()
    assert world.reading.next() == END


def test_only_one_thread_reads_on_after_there_was_no_room() -> None:
    pieces: list[Piece] = [rows(READ_AHEAD_BYTES_MAX), rows(READ_AHEAD_BYTES_MAX), END]
    world = ReadWorld(pieces)
    world.takes_at_once = True
    for read in (1, 2, 3):
        assert world.work()  # the next job waits from now on
        assert world.read == read
    assert world.taken == pieces
    assert not world.work()


def test_an_error_comes_behind_the_pieces_before_it_and_ends_the_read() -> None:
    world = ReadWorld([rows(16)], CorruptFile("bad"))
    world.work()
    assert isinstance(world.reading.next(), RowsRead)
    with pytest.raises(CorruptFile, match="bad"):
        world.reading.next()
    assert not world.reading.is_ready
    assert not world.work()
    assert not world.reading.stop()


def test_a_read_that_is_stopped_before_it_begins_reads_nothing() -> None:
    world = ReadWorld([rows(16), END])
    assert world.reading.stop()
    assert world.work()
    assert (world.read, world.wakes) == (0, 0)
    assert not world.reading.stop()


def test_a_read_that_is_stopped_reads_no_further_piece() -> None:
    still_reads: list[bool] = []
    world = ReadWorld([rows(16), END], meanwhile=lambda: still_reads.append(world.reading.stop()))
    world.work()
    assert world.read == 1
    assert still_reads == [True]
    assert not world.reading.stop()
