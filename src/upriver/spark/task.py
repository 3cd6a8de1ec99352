"""What runs inside a worker's Spark task. Executor side."""

from collections.abc import Iterable

import pyarrow as pa

from upriver.ids import WorkerId
from upriver.shell.worker import WorkerConfig, serve_worker


def run_task(config: WorkerConfig, worker: WorkerId, _: Iterable[int]) -> Iterable[int]:
    """Fill a worker's place until it retires. The task's one row stays unread: so Spark ends the process, and does not
    keep it, with the memory that it has taken, for another task."""
    pa.set_cpu_count(1)  # the task has one slot
    pa.set_io_thread_count(1)
    serve_worker(config, worker)
    return ()
