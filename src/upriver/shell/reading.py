"""What a worker reads out of the lake, a piece at a time: its slices of an epoch, or of checkpoints.

Whoever looks a key up may have to wait until a piece is taken in. So how many rows it has follows from what those
before it took.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.plan import TableSpec
from upriver.ids import Channel
from upriver.machines.worker_events import AllStateRead, EpochRead, ReadEpoch, ReadState, RowsRead, StateRead
from upriver.shell.checkpoints import read_state
from upriver.shell.commit_times import CommitTimes
from upriver.shell.lake import Lake
from upriver.shell.row_pace import RowPace
from upriver.state.vectors import Hashes, true_at

Piece = RowsRead | EpochRead | StateRead | AllStateRead


class Reading:
    """Of one worker's loop. ``tables``: of the channels that its views read. commits: told of each manifest read."""

    def __init__(self, lake: Lake, commits: CommitTimes) -> None:
        self._lake = lake
        self._commits = commits
        self._vnodes = 0
        self.tables: Mapping[Channel, TableSpec] = {}
        self._pieces: Iterator[Piece] = iter(())
        self._paces: defaultdict[Channel, RowPace] = defaultdict(RowPace)
        """What a row costs depends on what is made of it."""
        self.is_on = False
        """Whether there is a piece more."""

    def assign(self, vnodes: int, tables: Mapping[Channel, TableSpec]) -> None:
        """From now on it is about these; what is under way is given up. vnodes: the lake's."""
        self._vnodes, self.tables = vnodes, tables
        self.give_up()

    def begin(self, asked: ReadEpoch | ReadState) -> None:
        self._pieces = self._epoch(asked) if isinstance(asked, ReadEpoch) else self._state(asked)
        self.is_on = True

    def feed(self, take_in: Callable[[Piece], object]) -> None:
        """Have the next piece taken in. Raises LakeError."""
        piece = next(self._pieces)
        self.is_on = not isinstance(piece, EpochRead | AllStateRead)
        if isinstance(piece, RowsRead):
            self._paces[piece.channel].timed(len(piece.batch), partial(take_in, piece))
        else:
            take_in(piece)

    def give_up(self) -> None:
        """What is left of it is of no use any more, or will be read again."""
        self.is_on, self._pieces = False, iter(())

    def _state(self, asked: ReadState) -> Iterator[Piece]:
        for region, vnodes in asked.vnodes.items():
            for chunk in read_state(self._lake, asked.chain, region, vnodes, self._vnodes):
                yield StateRead(region=region, chunk=chunk)
        yield AllStateRead()

    def _epoch(self, asked: ReadEpoch) -> Iterator[Piece]:
        vnodes = frozenset(asked.vnodes)
        manifest = self._lake.manifest(asked.epoch)
        self._commits.note(manifest)
        for channel in asked.channels:
            table = self.tables[channel]
            for rows in self._lake.read(manifest, channel, vnodes, table):
                hashes = rows.column(0).to_numpy()
                user = pa.RecordBatch.from_arrays(rows.columns[1:], schema=table.schema)
                whole, first = Batch(user, hashes), 0
                while first < len(hashes):
                    end = end_of_piece(hashes, first, self._paces[channel].rows)
                    yield RowsRead(epoch=asked.epoch, channel=channel, batch=whole.slice(first, end))
                    first = end
        promised = {channel: manifest.rows_of(channel, vnodes) for channel in asked.channels}
        yield EpochRead(epoch=asked.epoch, promised=promised)


def end_of_piece(hashes: Hashes, first: int, rows_max: int) -> int:
    """Where a piece ends that begins there and has at most so many rows, or as many more as belong to its last key:
    what is left is cut into pieces of one size."""
    left = len(hashes) - first
    end = first + math.ceil(left / math.ceil(left / rows_max))
    others = true_at(hashes[end:] != hashes[end - 1])
    return end + int(others[0]) if others.size else len(hashes)
