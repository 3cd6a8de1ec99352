"""What runs inside a worker's Spark task. Executor side."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from upriver.ids import WorkerId
from upriver.shell.worker import WorkerConfig, serve_worker

DONE = pa.schema([("worker", pa.int32())])


def run_task(config: WorkerConfig, worker: WorkerId, _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fill a worker's place until it retires; the one row that it yields says which it was."""
    pa.set_cpu_count(1)  # the task has one slot
    pa.set_io_thread_count(1)
    serve_worker(config, worker)
    yield pa.RecordBatch.from_pydict({"worker": [int(worker)]}, schema=DONE)
