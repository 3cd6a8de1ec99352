"""An app without Spark whose metrics have a value each, and Prometheus' text, parsed."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from coordinator_kit import CHANNEL, PLAN, TABLE, said, vnode_map
from prometheus_client.parser import text_string_to_metric_families

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import ClusterError, UpriverError, WrongOwner
from upriver.ids import Channel, Epoch, Incarnation, Term, VnodeId, WorkerId
from upriver.lake.manifests import Manifest
from upriver.protocol.messages import EpochFinished, ForShare, OpenEpoch, ToWorker
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.measures import LookupTotals, WorkerMeasures
from upriver.runtime.metrics import Metrics
from upriver.runtime.source_supervisor import SourceSupervisor
from upriver.state.runs import RunInfo

SECONDS_MAX = 30.0
STATS = {"rows": 3, "keys": 2, "held": 3, "bytes": 4096, "live_bytes": 2048, "present": 2, "pending": 0}
STATS |= {"looked_up": 7, "missed": 2, "evicted": 1, "unfillable": 0}
KEYS = pa.RecordBatch.from_pydict({"k": ["a", "b"]})


class ToldWorker:
    """The coordinator's end of a worker's channel. opened: set once the worker was told to apply an epoch."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def tell(self, *messages: ToWorker) -> None:
        if any(isinstance(each, ForShare) and isinstance(each.message, OpenEpoch) for each in messages):
            self.opened.set()

    def close(self) -> None:
        """Nothing: there is no process."""

    def give_up(self, error: UpriverError) -> None:
        """Nothing: there is no process."""


def manifest(epoch: int, rows: int, table: str = TABLE.name) -> Manifest:
    run = RunInfo(path=f"runs/{epoch}", rows=rows, bytes=100 * rows, checksum="", vnode_rows=((VnodeId(0), rows),))
    return Manifest(
        epoch=Epoch(epoch),
        term=Term(1),
        committed_at=float(epoch),
        runs={CHANNEL: (run,), Channel("t/other"): (run,)},
        table=table,
        query="query",
        batch=epoch,
    )


class Measured:
    """A coordinator of one worker and one view."""

    def __init__(self) -> None:
        self.supervisor = SourceSupervisor([TABLE.name])
        machine = CoordinatorMachine(vnode_map((0, 0, 0, 0)), (PLAN,))
        self.loop = CoordinatorLoop(machine, sources=self.supervisor)
        self.lookups = LookupTotals()
        self.metrics = Metrics(self.loop, self.lookups)

    def publish(self, epoch: int, rows: int) -> None:
        self.supervisor.published(manifest(epoch, rows))
        self.loop.published(manifest(epoch, rows))

    def live(self) -> None:
        """One epoch is old, one is new and ends, and one is new and not applied yet."""
        self.publish(1, 5)
        self.loop.progress.expect_sources({TABLE.name: True}, Epoch(1))
        end = ToldWorker()
        incarnation = self.loop.register(WorkerId(0), "host:1", end)
        self.publish(2, 3)
        assert end.opened.wait(SECONDS_MAX)
        for epoch, rows in ((1, 5), (2, 3)):
            finished = EpochFinished(
                epoch=Epoch(epoch),
                read={CHANNEL: rows, Channel("t/other"): rows},
                applied={PLAN.name: rows},
                stats={PLAN.name: STATS},
            )
            self.loop.hear(incarnation, said(incarnation, finished).message)
        self.loop.wait_ended(Epoch(2), SECONDS_MAX)
        self.loop.progress.read_through(TABLE.name, time.monotonic(), Epoch(2))
        self.publish(3, 4)
        measures = WorkerMeasures()
        measures.answered(PLAN.name, lookups=1, keys=2, seconds=0.001, held_up=True)
        measures.refused(PLAN.name, WrongOwner("another worker has the keys"))
        report = {"views": measures.to_json(), "upqueries": {PLAN.name: 2}}
        self.lookups.hear(WorkerId(0), Incarnation(incarnation), report)


@contextmanager
def measured() -> Iterator[Measured]:
    """A running coordinator, with a value for every metric."""
    app = Measured()
    app.loop.start()
    try:
        app.live()
        yield app
    finally:
        app.loop.fail(ClusterError("the test is over"))
        app.loop.stop(0.0)  # no process is behind the worker, so none ends


def parsed(text: str) -> Mapping[str, float]:
    """Values by sample, as it is written in the text: ``upriver_lake_runs``, ``upriver_view_rows{view="v",...}``."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
