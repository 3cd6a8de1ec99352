"""The lake of a simulated river: epochs in memory, each edge's rows sorted by hash64 as Spark would leave them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.graph import DataflowPlan, LakeEdge
from upriver.ids import Channel, Epoch, VnodeId
from upriver.sim.tables import TABLES, hashes_of_keys
from upriver.vnodes import offsets_by_vnode

CUTS_MAX = 3  # places where a worker's rows of one edge and epoch are cut, besides the gaps between its vnodes


@dataclass(frozen=True, slots=True)
class Run:
    """One edge's rows of one epoch, by hash64 and then in order. ``offsets``: where each vnode's rows begin."""

    batch: Batch
    offsets: npt.NDArray[np.int64]

    def rows_of(self, vnodes: Sequence[VnodeId]) -> int:
        """How many rows those vnodes have."""
        owned = np.array(vnodes, np.int64)
        return int((self.offsets[owned + 1] - self.offsets[owned]).sum())

    def slices_of(self, vnodes: Sequence[VnodeId], lots: Random) -> list[Batch]:
        """Those vnodes' rows in order, cut wherever the lots fall, but never between the rows of one key."""
        ranges = [(int(self.offsets[vnode]), int(self.offsets[vnode + 1])) for vnode in vnodes]
        joined: list[tuple[int, int]] = []
        for first, end in ranges:
            if joined and joined[-1][1] == first:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((first, end))
        rows = len(self.batch)
        drawn = [lots.randrange(rows) for _ in range(lots.choice((0, 0, 1, CUTS_MAX)))] if rows else []
        cuts = set(np.searchsorted(self.batch.hash64, self.batch.hash64[drawn]).tolist())
        return [self._slice(*piece) for first, end in joined if first < end for piece in _cut(first, end, cuts)]

    def _slice(self, first: int, end: int) -> Batch:
        return Batch(self.batch.rows.slice(first, end - first), self.batch.hash64[first:end])


def _cut(first: int, end: int, cuts: Iterable[int]) -> Iterable[tuple[int, int]]:
    return pairwise([first, *sorted(cut for cut in cuts if first < cut < end), end])


class FakeLake:
    """All epochs published so far, on the edges that feed ``plans``."""

    def __init__(self, plans: Sequence[DataflowPlan], vnodes: int) -> None:
        self._vnodes = vnodes
        edges = [entry.edge for plan in plans for region in plan.regions for entry in region.inputs]
        self._indexes = {edge.channel: (edge.table, edge.index) for edge in edges if isinstance(edge, LakeEdge)}
        self._epochs: list[Mapping[Channel, Run]] = []
        self._rows: dict[str, list[pa.RecordBatch]] = {table.name: [] for table in TABLES}

    @property
    def edges(self) -> tuple[Channel, ...]:
        return tuple(self._indexes)

    @property
    def published(self) -> Epoch:
        return Epoch(len(self._epochs))

    def publish(self, table: str, rows: pa.RecordBatch) -> Epoch:
        """One more epoch: rows of one table, as one micro-batch gives them, on each edge of that table."""
        edges = {channel: index for channel, (source, index) in self._indexes.items() if source == table}
        self._epochs.append({channel: self._run(rows, index) for channel, index in edges.items()})
        self._rows[table].append(rows)
        return self.published

    def _run(self, rows: pa.RecordBatch, index: tuple[str, ...]) -> Run:
        hashes = hashes_of_keys(index)
        keys = zip(*(rows.column(column).to_pylist() for column in index), strict=True)
        hash64 = np.array([hashes[key] for key in keys], np.uint64)
        order = np.argsort(hash64, kind="stable")
        hash64 = hash64[order]
        return Run(Batch(rows.take(pa.array(order)), hash64), offsets_by_vnode(hash64, self._vnodes))

    def runs(self, epoch: Epoch) -> Mapping[Channel, Run]:
        """The epoch's rows on each edge that has any part in it."""
        return self._epochs[epoch - 1]

    def rows(self, epoch: Epoch) -> dict[Channel, int]:
        """What the epoch's manifest promises, over all vnodes."""
        return {channel: len(run.batch) for channel, run in self.runs(epoch).items()}

    def promised(self, epoch: Epoch, vnodes: Sequence[VnodeId]) -> dict[Channel, int]:
        """What the epoch's manifest promises on every edge, for these vnodes."""
        runs = self.runs(epoch)
        return {channel: runs[channel].rows_of(vnodes) if channel in runs else 0 for channel in self._indexes}

    def all_rows(self) -> dict[str, pa.Table]:
        """Every row published so far, by table."""
        return {table.name: pa.Table.from_batches(self._rows[table.name], schema=table.schema) for table in TABLES}
