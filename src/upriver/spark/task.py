"""What runs inside a worker's Spark task. Executor side."""

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from upriver.dataflow.expressions import Evaluator
from upriver.dataflow.region import Region
from upriver.ids import WorkerId
from upriver.machines.worker import WorkerMachine
from upriver.shell.worker import serve_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to find its app; picklable. The token is kept out of its ``repr``."""

    root: str
    coordinator: str
    token: str = field(repr=False)
    bind: str = "127.0.0.1"


def run_task(config: WorkerConfig, worker: WorkerId, _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fill a worker's place until it retires; the one row that it yields says which it was."""
    pa.set_cpu_count(1)  # the task has one slot
    pa.set_io_thread_count(1)
    serve_worker(config, worker)
    yield pa.RecordBatch.from_pydict({"worker": [int(worker)]}, schema=pa.schema([("worker", pa.int32())]))
