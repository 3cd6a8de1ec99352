"""The rows of single keys, out of all epochs of a lake edge: what an upquery on a lake edge is answered with.

Of a manifest only where its runs are is kept, and at which places of the space of hashes they have rows, so that runs
without the keys need not be opened. Runs stay open, with what was read of them, as long as there is room; small ones
are merged (:mod:`upriver.lake.merged_runs`).
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.errors import ProtocolError
from upriver.ids import BEGINNING, Channel, Epoch, VnodeId
from upriver.lake.lake import Lake, Manifest
from upriver.lake.merged_runs import USUAL, Catalogue, Merged, Merging, Run
from upriver.lake.run_reader import FEW_KEYS_MAX, RunReader
from upriver.plan.plan import TableSpec
from upriver.state.keysets import contains
from upriver.state.ragged import spread
from upriver.state.runs import RunInfo, run_schema
from upriver.state.vectors import true_at
from upriver.vnodes import vnodes_of
from upriver.xxh64 import Hashes

OPEN_RUNS_MAX = 4_096
"""Runs that stay open. One costs about 8 kB and a mapping of memory, of which Linux gives a process 65,530, but no file
descriptor."""

OPEN_BYTES_MAX = 128 << 20
"""Bytes of all runs that stay open: what was read of them. A run of which more was read by itself is open while it is
read, and no longer."""

PLACES_MAX = 256
"""Equal parts of the space of hashes that a run is known to have rows in, or not."""


class History:
    """Rows of some keys, out of all runs of a lake edge. Used by one thread.

    runs_max, bytes_max: of the runs that stay open from one call to the next. merging: of small ones.
    """

    def __init__(
        self,
        lake: Lake,
        runs_max: int = OPEN_RUNS_MAX,
        bytes_max: int = OPEN_BYTES_MAX,
        merging: Merging = USUAL,
    ) -> None:
        self._lake = lake
        self._merging = merging
        self._catalogues: dict[Channel, Catalogue] = {}
        self.opened = OpenRuns(lake, runs_max, bytes_max)

    def rows_of(
        self, channel: Channel, table: TableSpec, keys: Hashes, through: Epoch, after: Epoch = BEGINNING
    ) -> Batch:
        """All rows on a lake edge of the keys with these hash64 (ascending, each once), of all epochs after ``after``
        up to and including ``through``: sorted by hash64, and those of one key in order of epoch and run.

        The rows are copies: they keep no file open. The first call for an edge reads all its manifests, with no keys
        nothing else. Raises CorruptFile, and ProtocolError for an index that is not complete.
        """
        runs = self._catalogue(channel, table, through).between(after, through)
        wanted = _bits(np.unique(vnodes_of(keys, self._places)).tolist())
        found = self._found([run for run in runs if run.places & wanted], keys, table, after, through)
        hash64 = np.concatenate([np.empty(0, np.uint64), *(piece.hash64 for piece in found)])
        none = pa.RecordBatch.from_pylist([], table.schema)  # concat_batches copies all that it is given, one at least
        rows = pa.concat_batches([none, *(piece.rows for piece in found)])
        if (hash64[:-1] <= hash64[1:]).all():
            return Batch(rows, hash64)
        order = np.argsort(hash64, kind="stable")
        return Batch(rows.take(pa.array(order)), hash64[order])

    def _found(
        self, runs: Sequence[Run | Merged], keys: Hashes, table: TableSpec, after: Epoch, through: Epoch
    ) -> list[Batch]:
        """The keys' rows in each of the runs, in their order."""
        few = keys.tolist() if len(keys) <= FEW_KEYS_MAX else None
        at_hand = [isinstance(run, Merged) or run.info in self.opened for run in runs]
        pieces: dict[int, list[Batch]] = {}
        # Those that are open come first: opening the others lets them go, and in order of epochs each run would be let
        # go just before its turn comes, as soon as there is one run more than may stay open.
        for number in sorted(range(len(runs)), key=lambda number: not at_hand[number]):
            run = runs[number]
            if isinstance(run, Run):
                # A slice keeps its run open: where all runs are opened anew, as many would be open as there are.
                stays = run.info in self.opened
                reader = self.opened.take(run.info, table.schema)
                if few is None:
                    pieces[number] = reader.rows_of(keys)
                else:
                    pieces[number] = reader.slices_of(few) if stays else reader.rows_of_few(few)
                self.opened.keep(run.info, reader)
            elif few is None:
                pieces[number] = _copy_of(run.between(after, through), keys)
            else:
                pieces[number] = _slices_of(run.between(after, through), few)
        return [piece for number in range(len(runs)) for piece in pieces[number]]

    def _catalogue(self, channel: Channel, table: TableSpec, through: Epoch) -> Catalogue:
        """All runs of the edge, of all epochs up to and including ``through`` at least."""
        catalogue = self._catalogues.setdefault(channel, Catalogue(self._merging))
        for epoch in map(Epoch, range(catalogue.through + 1, through + 1)):
            catalogue.add(epoch, self._runs_in(self._lake.manifest(epoch), channel))
        catalogue.tidy(lambda run: self.opened.rows_once(run, table.schema))
        return catalogue

    def _runs_in(self, manifest: Manifest, channel: Channel) -> list[Run]:
        return [
            Run(manifest.epoch, replace(info, vnode_rows=()), self._places_of(vnode for vnode, _ in info.vnode_rows))
            for info in manifest.runs_of(channel)
        ]

    def _places_of(self, vnodes: Iterable[VnodeId]) -> int:
        return _bits(vnode * self._places // self._vnodes for vnode in vnodes)

    @property
    def _places(self) -> int:
        return min(self._vnodes, PLACES_MAX)

    @cached_property
    def _vnodes(self) -> int:
        record = self._lake.record()
        if record is None:
            raise ProtocolError(f"{self._lake.root}: no app.json, and yet its history was asked for")
        return record.vnodes


class OpenRuns:
    """The runs of a lake that stay open. The one that was read least recently is let go first."""

    def __init__(self, lake: Lake, runs_max: int, bytes_max: int) -> None:
        self._lake = lake
        self._runs_max = runs_max
        self._bytes_max = bytes_max
        self._open: OrderedDict[str, RunReader] = OrderedDict()
        """By path."""
        self.bytes = 0
        """What was read of those that are open."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, run: RunInfo) -> bool:
        return run.path in self._open

    def take(self, run: RunInfo, schema: pa.Schema) -> RunReader:
        """A run, to read some of it; it stays open if it is given back. schema: of the user's columns. Raises
        CorruptFile."""
        return self._taken(run) or self._opened(run, schema)

    def keep(self, run: RunInfo, reader: RunReader) -> None:
        """A run that was taken and read."""
        filled_bytes = reader.filled_bytes
        if filled_bytes > self._bytes_max:
            return
        self._open[run.path] = reader
        self.bytes += filled_bytes
        while len(self._open) > self._runs_max or self.bytes > self._bytes_max:
            _, let_go = self._open.popitem(last=False)
            self.bytes -= let_go.filled_bytes

    def rows_once(self, run: RunInfo, schema: pa.Schema) -> Batch:
        """All rows of a run that will not be asked for again. schema: of the user's columns. Raises CorruptFile."""
        rows = self.take(run, schema).all_rows()
        return Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema), rows.column(0).to_numpy())

    def _opened(self, run: RunInfo, schema: pa.Schema) -> RunReader:
        return self._lake.open_run(run, run_schema(schema))

    def _taken(self, run: RunInfo) -> RunReader | None:
        reader = self._open.pop(run.path, None)
        if reader is not None:
            self.bytes -= reader.filled_bytes
        return reader


def _slices_of(run: Batch, keys: list[int]) -> list[Batch]:
    """The keys' rows, one slice for each that has any."""
    hashes = run.hash64.data  # bisecting it takes a fifth of what searchsorted needs to begin with
    slices = []
    for key in keys:
        start = bisect_left(hashes, key)
        if start < len(hashes) and hashes[start] == key:
            slices.append(run.slice(start, bisect_right(hashes, key, start)))
    return slices


def _copy_of(run: Batch, keys: Hashes) -> list[Batch]:
    """The keys' rows, as one batch; none if there are none."""
    hashes = run.hash64
    if not len(hashes):
        return []
    keys = keys[keys.searchsorted(hashes[0]) : keys.searchsorted(hashes[-1], "right")]
    if not len(keys):
        return []
    if len(keys) < len(hashes):
        starts = hashes.searchsorted(keys)
        is_there = hashes[starts] == keys  # no key is above the last hash
        starts = starts[is_there]
        positions = spread(starts, hashes.searchsorted(keys[is_there], "right") - starts)
    else:
        positions = true_at(contains(keys, hashes))
    return [Batch(run.rows.take(pa.array(positions)), hashes[positions])] if len(positions) else []


def _bits(numbers: Iterable[int]) -> int:
    """The number whose bits of these numbers are set."""
    return sum(1 << number for number in set(numbers))
