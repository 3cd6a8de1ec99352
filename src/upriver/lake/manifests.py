"""Manifests and segments: what the lake has of one epoch, or of several as one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from upriver.engine.retention import Retention
from upriver.errors import ProtocolError
from upriver.ids import BEGINNING, Channel, Epoch, Term, VnodeId
from upriver.lake.spans import EpochSpan, single
from upriver.plan.plan import TableSpec, lake_channel, table_of
from upriver.records import typed
from upriver.state.runs import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """The last batch of one table in an epoch or a segment, and what the table has got in all of it. epochs, rows: how
    many, before merging."""

    query: str
    batch: int
    epoch: Epoch
    committed_at: float | None
    epochs: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        last = cls(
            query=record["query"],
            batch=record["batch"],
            epoch=Epoch(record["epoch"]),
            committed_at=record["committed_at"],
            epochs=record["epochs"],
            rows=record["rows"],
        )
        return typed(last)

    def after(self, before: Self | None) -> Self:
        """The same of all epochs, if ``before`` is that of the epochs before."""
        if before is None:
            return self
        return replace(self, epochs=before.epochs + self.epochs, rows=before.rows + self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeEpochs(ABC):
    """What the lake has of one epoch, or of several as one. runs: for each lake edge, in the order in which they are
    read. committed_at: when the driver committed the last of the epochs, in seconds since 1970 by its clock; ``None``
    in manifests that are older than this field. retained: the retention at the end of the epochs, of every table that
    has ever had one."""

    epoch: Epoch
    term: Term
    committed_at: float | None = None
    runs: Mapping[Channel, tuple[RunInfo, ...]] = field(default_factory=dict)
    retained: Mapping[str, Retention] = field(default_factory=dict)

    @property
    def clock(self) -> int | None:
        """The instant of the epochs' end, for views that depend on the clock: when the driver committed the last of
        them, in microseconds since 1970."""
        return None if self.committed_at is None else round(self.committed_at * 1_000_000)

    @property
    @abstractmethod
    def span(self) -> EpochSpan:
        """The epochs."""

    @property
    @abstractmethod
    def batches(self) -> Mapping[str, LastBatch]:
        """By table that has got rows: its last batch."""

    def whole_runs(self, table: TableSpec) -> tuple[RunInfo, ...]:
        """All rows of a table, out of one of its indexes. Of an upsert table, that of the primary key: there the
        versions of one key lie in order."""
        preferred = lake_channel(table.name, table.primary_key)
        if table.primary_key and preferred in self.runs:
            return self.runs[preferred]
        return next((runs for channel, runs in self.runs.items() if table_of(channel) == table.name), ())

    def rows(self) -> dict[Channel, int]:
        """Rows per lake edge, over all vnodes."""
        return {channel: sum(run.rows for run in runs) for channel, runs in self.runs.items()}

    def rows_of(self, channel: Channel, vnodes: Iterable[VnodeId]) -> int:
        """Rows of those vnodes on one lake edge."""
        wanted = frozenset(vnodes)
        return sum(run.rows_of(wanted) for run in self.runs_of(channel))

    def has_runs_of(self, channel: Channel) -> bool:
        """Whether all runs on one lake edge are known: its index is complete, or its table has got no rows."""
        return channel in self.runs or table_of(channel) not in self.batches

    def runs_of(self, channel: Channel) -> tuple[RunInfo, ...]:
        """The runs on one lake edge: none if the edge is of a table that has got no rows."""
        if not self.has_runs_of(channel):  # lake.index_needs_its_record
            raise ProtocolError(f"epoch {self.epoch}: {channel} was asked for before the index was complete")
        return self.runs.get(channel, ())

    def epoch_of(self, channel: Channel) -> Epoch:
        """The epoch of the rows of one lake edge that do not have theirs: either all or none of an edge do."""
        return Epoch(max((run.epoch for run in self.runs_of(channel)), default=0)) or self.epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(LakeEpochs):
    """One epoch: the rows of one batch of one table. query, batch: name the batch at its source; no two epochs of a
    table have the same. table: empty in the epoch with which a driver fences its predecessor."""

    table: str
    query: str
    batch: int

    @property
    def span(self) -> EpochSpan:
        return single(self.epoch)

    @property
    def batches(self) -> Mapping[str, LastBatch]:
        if not self.table:
            return {}
        rows = max(self.rows().values(), default=0)  # all indexes of an epoch have the same
        last = LastBatch(
            query=self.query,
            batch=self.batch,
            epoch=self.epoch,
            committed_at=self.committed_at,
            epochs=1,
            rows=rows,
        )
        return {self.table: last}

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "term": self.term,
            "table": self.table,
            "query": self.query,
            "batch": self.batch,
            "committed_at": self.committed_at,
            "runs": _runs_to_json(self.runs),
            **_retained_to_json(self.retained),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        manifest = cls(
            epoch=Epoch(record["epoch"]),
            term=Term(record["term"]),
            table=record["table"],
            query=record["query"],
            batch=record["batch"],
            committed_at=record.get("committed_at"),
            runs=_all_runs_from_json(record["runs"]),
            retained=_retained_from_json(record),
        )
        return typed(manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(LakeEpochs):
    """The epochs from ``first`` to ``epoch`` as one, with merged runs (compaction.py). made_at: when the driver wrote
    it, in seconds since 1970 by its clock. last_batches: as ``batches``. rewritten: the epoch as of which rows that had
    left were left out; ``BEGINNING``: the segment is as of its own end. ``retained`` is as of its end in any case."""

    first: Epoch
    made_at: float
    last_batches: Mapping[str, LastBatch]
    rewritten: Epoch = BEGINNING

    @property
    def span(self) -> EpochSpan:
        return EpochSpan(self.first, self.epoch, self.rewritten)

    @property
    def batches(self) -> Mapping[str, LastBatch]:
        return self.last_batches

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "first": self.first,
            **({"rewritten": self.rewritten} if self.rewritten else {}),
            "term": self.term,
            "made_at": self.made_at,
            "committed_at": self.committed_at,
            "batches": {table: last.to_json() for table, last in self.batches.items()},
            "runs": _runs_to_json(self.runs),
            **_retained_to_json(self.retained),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        segment = cls(
            epoch=Epoch(record["epoch"]),
            first=Epoch(record["first"]),
            rewritten=Epoch(record.get("rewritten", BEGINNING)),
            term=Term(record["term"]),
            made_at=record["made_at"],
            committed_at=record["committed_at"],
            last_batches={table: LastBatch.from_json(last) for table, last in record["batches"].items()},
            runs=_all_runs_from_json(record["runs"]),
            retained=_retained_from_json(record),
        )
        return typed(segment)


def _retained_to_json(retained: Mapping[str, Retention]) -> dict[str, Any]:
    return {"retained": {table: each.to_json() for table, each in retained.items()}} if retained else {}


def _retained_from_json(record: Mapping[str, Any]) -> dict[str, Retention]:
    return {table: Retention.from_json(each) for table, each in record.get("retained", {}).items()}


def _runs_to_json(runs: Mapping[Channel, Iterable[RunInfo]]) -> dict[str, Any]:
    return {channel: [run.to_json() for run in of_channel] for channel, of_channel in runs.items()}


def _all_runs_from_json(record: Mapping[str, Any]) -> dict[Channel, tuple[RunInfo, ...]]:
    return {Channel(channel): runs_from_json(runs) for channel, runs in record.items()}


def runs_from_json(runs: Iterable[Mapping[str, Any]]) -> tuple[RunInfo, ...]:
    return tuple(RunInfo.from_json(run) for run in runs)
