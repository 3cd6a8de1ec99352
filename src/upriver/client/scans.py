"""Scans from any process, without Spark: all rows of a view as of the end of one epoch.

A full view is read from a snapshot that all workers take at the end of the same epoch. A partial view is computed in
this process from the lake's tables, so the process must be able to read the lake.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import pyarrow as pa

from upriver.arguments import whole
from upriver.errors import DeclarationError, UpriverError, WorkerLost
from upriver.hashing import HASH64_MAX
from upriver.ids import Epoch
from upriver.logs import with_short_errors
from upriver.net.remote import Connection, Remote
from upriver.net.wire import refusing_malformed
from upriver.plan.schemas import schema_from_json
from upriver.vnodes import VnodeGroup

if TYPE_CHECKING:
    from upriver.lake.scan import LakeScan

SOURCE_S_MAX = 10.0
"""Seconds in which the coordinator must describe the view."""
SNAPSHOT_S_MAX = 90.0
"""Seconds to wait for a snapshot: more than the coordinator gives the workers, so that its error comes first."""
READ_S_MAX = 2.0
"""Seconds to tell a worker that its part was read."""


@with_short_errors
@dataclass(frozen=True, slots=True)
class ScanReader:
    """The rows of one scan; iterate over it once. schema: the view's. epoch: at whose end the rows were so.
    tables: those from which this process computes the view's rows; empty for a full view, read from its workers."""

    schema: pa.Schema
    epoch: int
    tables: tuple[str, ...]
    _batches: Iterator[pa.RecordBatch]

    @classmethod
    def begin(
        cls, coordinator: Connection, view: str, timeout: float, store: Mapping[str, str] = MappingProxyType({})
    ) -> Self:
        """Begin a scan. timeout: seconds in which the rows must have been read. store: settings that open the lake's
        object store. Raises UnknownView, the error of a view that has failed, ClusterError, WaitTimeout."""
        source = coordinator.act("source", {"name": view}, timeout=SOURCE_S_MAX)
        give_up_at = time.monotonic() + timeout
        told = coordinator.act("scan", {"view": view, "scan": f"q{uuid4().hex}"}, timeout=SNAPSHOT_S_MAX)
        with refusing_malformed(coordinator.address):
            is_anew = told["lake"] != source["lake"]
            schema, epoch = schema_from_json(source["schema"]), Epoch(whole("epoch", told["epoch"]))
            asked = {"snapshot": whole("snapshot", told["snapshot"]), "view": view, "key": list(source["key"])}
            workers = [coordinator.remote.at(address) for address in told["addresses"]]
            (everything,) = VnodeGroup.all(source["vnodes"], 1)
            scan = None if source["lake"] is None else _lake_scan(source["lake"], store)
            tables = () if scan is None else tuple(table["name"] for table in source["lake"]["tables"])
        if is_anew:
            raise DeclarationError(f"view {view!r} has just been declared anew; query it again")
        if scan is None:
            return cls(schema, epoch, (), _of_workers(workers, asked, schema, give_up_at))
        return cls(schema, epoch, tables, scan.rows(epoch, everything))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches


def _lake_scan(told: Mapping[str, Any], store: Mapping[str, str]) -> "LakeScan":
    """The scan of a partial view, which this process computes. store: settings of the lake's object store.

    The lake, the engine and DuckDB are loaded here, at the first such scan. A client does nothing else with them, and
    starts with half the CPU time without them.
    """
    from upriver.lake.scan import scan_from_json

    return scan_from_json(told, store)


def _of_workers(
    workers: Sequence[Remote], asked: Mapping[str, Any], schema: pa.Schema, give_up_at: float
) -> Iterator[pa.RecordBatch]:
    """The rows of a snapshot, one worker's after another's."""
    asked = {**asked, "ranges": [[0, HASH64_MAX]]}
    for worker in workers:
        yield from snapshot_part(worker, asked, schema, max(0.0, give_up_at - time.monotonic()))


def snapshot_part(
    worker: Remote, asked: Mapping[str, Any], schema: pa.Schema, timeout: float
) -> Iterator[pa.RecordBatch]:
    """The rows that one worker holds of a snapshot, and then tell it that they were read. asked: ``snapshot``,
    ``view``, ``key``, and ``ranges`` of hash64. schema: of the rows. timeout: seconds for all rows. Raises WorkerLost,
    WaitTimeout."""
    with Connection(worker, WorkerLost) as connection:
        try:
            yield from connection.get("snapshot", asked, schema, timeout=timeout)
        finally:
            with suppress(UpriverError):  # a leaving worker need not wait for this call
                connection.act("snapshot_read", {"snapshot": asked["snapshot"]}, timeout=READ_S_MAX)
