"""Scans of the lake: the rows of some vnodes, or of some keys, as of one epoch.

A scan takes the slices of its vnodes from all epochs, in order. So two scans of different vnodes have no row in common,
and need nothing of each other (document 003, "Batch").

``TableScan``: the rows of a table. Of an upsert table these are the last versions. All versions of a row are in one
vnode of an index whose columns are in the primary key. So a scan finds the last version by itself.

``ViewScan``: the rows of a partial view, whose workers keep only some keys. A scan computes all of them from the tables
with the view's own operators, as a worker does.

Rows that must be held at the same time are bounded: a scan goes through its vnodes some at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.latest import Latest
from upriver.engine.region import ALL_ROWS, Region
from upriver.engine.retention import as_of
from upriver.hashing import HASH64_MAX, Hashes
from upriver.ids import Epoch
from upriver.lake.address import Root
from upriver.lake.history import merged_batches
from upriver.lake.lake import SLICE_ROWS_MAX, Lake
from upriver.lake.manifests import LakeEpochs
from upriver.plan.plan import DataflowPlan, ExchangeEdge, LakeEdge, LatestOp, RegionPlan, TableSpec
from upriver.protocol.plans import plan_from_json, plan_to_json
from upriver.state.run_order import TaskRows
from upriver.state.runs import RunInfo, run_schema
from upriver.vnodes import VnodeGroup, hashes_in, vnodes_of

HELD_ROWS_MAX = 1 << 20
"""Rows of tables that a scan holds at a time, or as many more as one vnode has."""


def scanned_epochs(lake: Lake, tables: Sequence[str], through: Epoch) -> Iterator[LakeEpochs]:
    """What a scan reads of these tables, in the order in which rows came: the one place that knows where it is."""
    for span in lake.spans(through):
        epochs = lake.epochs(span)
        if not epochs.batches.keys().isdisjoint(tables):
            yield epochs


def prunable(plan: DataflowPlan) -> dict[str, tuple[str, ...]]:
    """The tables that some keys of a view need only in part, each with an index: the rows there with the keys' hash64.

    That is so if rows come from the table into the last region alone, by one edge.
    """
    edges = [(region, entry.edge) for region in plan.regions for entry in region.inputs]
    ways: dict[str, set[tuple[str, tuple[str, ...]]]] = {}
    for region, edge in edges:
        if isinstance(edge, LakeEdge):
            ways.setdefault(edge.table, set()).add((region.name, edge.index))
    only = {table: min(ways_in) for table, ways_in in ways.items() if len(ways_in) == 1}
    return {table: index for table, (region, index) in only.items() if region == plan.regions[-1].name}


def scan_key(table: TableSpec) -> tuple[str, ...]:
    """The columns by whose hash64 the rows of a table are divided: its key, if all versions of a row have one key, else
    its primary key. The lake has this index of every epoch."""
    is_of_one_key = not table.primary_key or set(table.key) <= set(table.primary_key)
    return table.key if is_of_one_key else table.primary_key


class LakeScan(Protocol):
    """Rows that are computed from the lake alone; picklable. key: the columns by whose hash64 they are divided."""

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def schema(self) -> pa.Schema: ...

    def rows(self, through: Epoch, group: VnodeGroup, wanted: Hashes | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of these vnodes at the end of an epoch. wanted: only those whose key has one of these hash64
        (ascending, each once). Raises LakeError, RowError."""
        ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Slice:
    """A run's rows of a group of vnodes. starts: the first row of each vnode of the group, and the row behind the last.
    info: without its vnode_rows."""

    info: RunInfo
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, run: RunInfo, group: VnodeGroup) -> Self:
        counts = np.zeros(group.vnodes + 1, np.int64)
        vnodes, rows = np.array(run.vnode_rows, np.int64).reshape(-1, 2).T
        counts[vnodes + 1] = rows
        starts = np.cumsum(counts)[group.first : group.behind + 1]
        return cls(replace(run, vnode_rows=()), starts)

    @property
    def has_rows(self) -> bool:
        return bool(self.starts[-1] > self.starts[0])


class _Slices:
    """The slices of a group of vnodes, out of all epochs of some lake edges. wanted: only rows with these hash64."""

    def __init__(
        self, lake: Lake, edges: Sequence[LakeEdge], tables: Mapping[str, TableSpec], through: Epoch, group: VnodeGroup
    ) -> None:
        self.group = group
        self.retained = lake.retained(through)
        self._lake = lake
        self._tables = [tables[edge.table] for edge in edges]
        found = (
            (number, [each for run in epochs.runs_of(edge.channel) if (each := _Slice.of(run, group)).has_rows])
            for epochs in scanned_epochs(lake, [edge.table for edge in edges], through)
            for number, edge in enumerate(edges)
        )
        self._epochs = [(number, slices) for number, slices in found if slices]
        """Of each manifest or segment with rows: the lake edge, as its reader counts them, and the slices of its
        runs."""

    def parts(self, rows_max: int) -> Iterator[VnodeGroup]:
        """The group in parts of at most so many rows, or of one vnode with more."""
        rows = np.zeros(self.group.behind - self.group.first, np.int64)
        for each in (each for _, slices in self._epochs for each in slices):
            rows += np.diff(each.starts)
        first, held = self.group.first, 0
        for vnode, count in enumerate(rows.tolist(), start=self.group.first):
            if held and held + count > rows_max:
                yield replace(self.group, first=first, behind=vnode)
                first, held = vnode, 0
            held += count
        yield replace(self.group, first=first)

    def read(self, part: VnodeGroup, wanted: Hashes | None) -> Iterator[tuple[int, Batch]]:
        """(edge, rows) of a part of the group, in the order in which they came, without those that the
        tables no longer retain; of an upsert table these have weight 0."""
        low, high = part.first - self.group.first, part.behind - self.group.first
        hashes = None if wanted is None else wanted[hashes_in(part.hashes, wanted)]
        for edge, slices in self._epochs:
            table = self._tables[edge]
            retention = self.retained.get(table.name)
            of_part = [(each, int(each.starts[low]), int(each.starts[high])) for each in slices]
            there = [(each.info, start, end) for each, start, end in of_part if self._has(each, start, end, hashes)]
            for batch in self._rows(table, there) if hashes is None else self._rows_of(table, there, hashes):
                kept = batch if retention is None else as_of(batch, table, retention.column, retention.cut)
                yield edge, kept

    def _rows(self, table: TableSpec, runs: Iterable[tuple[RunInfo, int, int]]) -> Iterator[Batch]:
        """The rows of some epochs in order. runs: each with its first row, and the row behind the last."""
        for rows in self._lake.read_slices(((run, [(start, end - start)]) for run, start, end in runs), table):
            yield Batch(rows.drop_columns([rows.schema.names[0]]), rows.column(0).to_numpy())

    def _rows_of(self, table: TableSpec, runs: Sequence[tuple[RunInfo, int, int]], hashes: Hashes) -> Iterator[Batch]:
        """The same of the rows with these hash64."""
        schema, tasks = run_schema(table.schema), {run.task for run, *_ in runs}
        if len(tasks) < 2:
            for run, *_ in runs:
                yield from self._lake.open_run(run, schema).rows_of(hashes)
            return
        readers = [(run.task, self._lake.open_run(run, schema)) for run, *_ in runs]
        for first in range(0, len(hashes), SLICE_ROWS_MAX):
            keys = hashes[first : first + SLICE_ROWS_MAX]
            found = [(task, rows) for task, reader in readers for rows in reader.rows_of(keys)]
            if found:
                sources = [TaskRows(len(rows), 0, task) for task, rows in found]
                yield merged_batches([rows for _, rows in found], table, sources)

    def _has(self, each: _Slice, start: int, end: int, hashes: Hashes | None) -> bool:
        return start < end and (hashes is None or self._may_have(each, hashes))

    def _may_have(self, each: _Slice, hashes: Hashes) -> bool:
        """Whether a run has rows in the vnodes of these hashes."""
        vnodes = vnodes_of(hashes, self.group.vnodes) - self.group.first
        return bool((each.starts[vnodes + 1] > each.starts[vnodes]).any())


@dataclass(frozen=True)
class TableScan:
    """All rows of a table. root: of the lake. index: one of the table's; for an upsert table, columns of its primary
    key. held_rows_max: as ``HELD_ROWS_MAX``."""

    root: str
    table: TableSpec
    index: tuple[str, ...]
    held_rows_max: int = HELD_ROWS_MAX

    @property
    def key(self) -> tuple[str, ...]:
        return self.index

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def to_json(self) -> dict[str, Any]:
        return {"root": str(self.root), "tables": [self.table.to_json()]}

    def rows(self, through: Epoch, group: VnodeGroup, wanted: Hashes | None = None) -> Iterator[pa.RecordBatch]:
        """As ``LakeScan``: for an upsert table, the last version of each row."""
        edge = LakeEdge(self.table.name, self.index)
        slices = _Slices(Lake(self.root), [edge], {self.table.name: self.table}, through, group)
        if not self.table.primary_key:
            yield from (batch.rows for _, batch in slices.read(group, wanted))
            return
        retention = slices.retained.get(self.table.name)
        at = None if retention is None else retention.column
        for part in slices.parts(self.held_rows_max):
            yield from self._last_versions(at, (batch for _, batch in slices.read(part, wanted)))

    def _last_versions(self, at: str | None, versions: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
        """at: the column by which rows are retained."""
        op = LatestOp(self.table.primary_key, self.table.order_by, self.table.deletes, at)
        latest = Latest(op, self.table.schema, self.index, Evaluator())
        for batch in versions:
            latest.apply(0, batch)
        hashes = np.unique(latest.hashes_between(0, HASH64_MAX))
        for first in range(0, len(hashes), SLICE_ROWS_MAX):
            for kept in latest.collect(hashes[first : first + SLICE_ROWS_MAX]):
                _, *columns, is_row = kept.columns
                yield pa.RecordBatch.from_arrays(columns, schema=self.table.schema).filter(is_row)


@dataclass(frozen=True)
class ViewScan:
    """All rows of a partial view, computed from its tables. tables: those that it reads. held_rows_max: as
    ``HELD_ROWS_MAX``."""

    root: str
    plan: DataflowPlan
    tables: tuple[TableSpec, ...]
    held_rows_max: int = HELD_ROWS_MAX

    @property
    def key(self) -> tuple[str, ...]:
        return self.plan.key

    @property
    def schema(self) -> pa.Schema:
        return self.plan.schema

    def to_json(self) -> dict[str, Any]:
        tables = [table.to_json() for table in self.tables]
        return {"root": str(self.root), "tables": tables, "plan": plan_to_json(self.plan)}

    def rows(self, through: Epoch, group: VnodeGroup, wanted: Hashes | None = None) -> Iterator[pa.RecordBatch]:
        """As ``LakeScan``. The rows of regions before the last are divided by other keys: each scan computes all of
        them, and holds the state of one such region at a time."""
        lake, evaluator = Lake(self.root), Evaluator()
        clock = lake.clock(through) if self.plan.is_clocked else None
        *before, last = self.plan.regions
        everything = VnodeGroup(0, group.vnodes, group.vnodes)
        sent: _Sent = {}
        for plan in before:
            slices = self._slices(lake, plan, through, everything)
            region = self._fed(plan, slices, everything, None, sent, evaluator, clock)
            for out in region.drain(ALL_ROWS):
                sent.setdefault((out.to, out.port), []).append(out.batch)
        slices = self._slices(lake, last, through, group)
        for part in slices.parts(self.held_rows_max):
            region = self._fed(last, slices, part, wanted, sent, evaluator, clock)
            yield from region.scan().to_batches(max_chunksize=SLICE_ROWS_MAX)

    def _slices(self, lake: Lake, plan: RegionPlan, through: Epoch, group: VnodeGroup) -> _Slices:
        edges = [entry.edge for entry in plan.inputs if isinstance(entry.edge, LakeEdge)]
        return _Slices(lake, edges, {table.name: table for table in self.tables}, through, group)

    def _fed(
        self,
        plan: RegionPlan,
        slices: _Slices,
        part: VnodeGroup,
        wanted: Hashes | None,
        sent: "_Sent",
        evaluator: Evaluator,
        clock: int | None,
    ) -> Region:
        """The region, after all rows of these vnodes have gone in. wanted: only rows with these hash64. sent: the rows
        that other regions have sent, by region and port. clock: the instant of the epoch."""
        region = Region.build(self.plan, plan, evaluator)
        if clock is not None:
            region.advance(clock)
        ports = [port for port, _ in plan.lake_ports]
        for edge, batch in slices.read(part, wanted):
            region.apply(ports[edge], batch)
        for port, entry in enumerate(plan.inputs):
            if isinstance(entry.edge, ExchangeEdge):
                for batch in sent.get((plan.name, port), []):
                    region.apply(port, batch.filtered(_is_in(part, wanted, batch.hash64)))
        region.settle(ALL_ROWS)
        return region


_Sent = dict[tuple[str, int], list[Batch]]
"""What regions have sent, by the receiving region and its port."""


def _is_in(part: VnodeGroup, wanted: Hashes | None, hashes: Hashes) -> npt.NDArray[np.bool_]:
    least, highest = map(np.uint64, part.hashes)
    is_in: npt.NDArray[np.bool_] = (hashes >= least) & (hashes <= highest)
    return is_in if wanted is None else is_in & np.isin(hashes, wanted)


def scan_from_json(json: Mapping[str, Any], store: Mapping[str, str] = MappingProxyType({})) -> LakeScan:
    """The inverse of ``LakeScan.to_json``. store: settings that open the object store, which JSON leaves out."""
    root = Root(json["root"], store)
    tables = tuple(TableSpec.from_json(table) for table in json["tables"])
    if "plan" in json:
        return ViewScan(root, plan_from_json(json["plan"]), tables)
    (table,) = tables
    return TableScan(root, table, scan_key(table))
