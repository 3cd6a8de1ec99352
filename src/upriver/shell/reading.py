"""What a worker reads out of the lake, a piece at a time: its slices of an epoch, or of checkpoints."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.plan import TableSpec
from upriver.ids import Channel
from upriver.machines.worker_events import AllStateRead, EpochRead, ReadEpoch, ReadState, RowsRead, StateRead
from upriver.shell.checkpoints import read_state
from upriver.shell.lake import Lake

Piece = RowsRead | EpochRead | StateRead | AllStateRead


class Reading:
    """Of one worker's loop. ``tables``: of the channels that its views read."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._vnodes = 0
        self.tables: Mapping[Channel, TableSpec] = {}
        self._pieces: Iterator[Piece] = iter(())
        self.is_on = False
        """Whether there is a piece more."""

    def assign(self, vnodes: int, tables: Mapping[Channel, TableSpec]) -> None:
        """From now on it is about these; what is under way is given up. vnodes: the lake's."""
        self._vnodes, self.tables = vnodes, tables
        self.give_up()

    def begin(self, asked: ReadEpoch | ReadState) -> None:
        self._pieces = self._epoch(asked) if isinstance(asked, ReadEpoch) else self._state(asked)
        self.is_on = True

    def next(self) -> Piece:
        """The next piece. Raises LakeError."""
        piece = next(self._pieces)
        self.is_on = not isinstance(piece, EpochRead | AllStateRead)
        return piece

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
        for channel in asked.channels:
            table = self.tables[channel]
            for rows in self._lake.read(manifest, channel, vnodes, table):
                hashes = rows.column(0).to_numpy()
                user = pa.RecordBatch.from_arrays(rows.columns[1:], schema=table.schema)
                yield RowsRead(epoch=asked.epoch, channel=channel, batch=Batch(user, hashes))
        promised = {channel: manifest.rows_of(channel, vnodes) for channel in asked.channels}
        yield EpochRead(epoch=asked.epoch, promised=promised)
