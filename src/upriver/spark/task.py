"""What runs inside a worker's Spark task. Executor side."""

import time
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext

from upriver.errors import DuplicateAttempt
from upriver.ids import WorkerId
from upriver.runtime.worker import WorkerConfig, serve_worker

KILLED_S_MAX = 10.0
"""Seconds that a second attempt of a worker's task waits for Spark to kill it, as the coordinator has asked. If it
ended by itself, Spark would either count a failure of the task, or take the task for done and kill the worker."""


def run_task(config: WorkerConfig, worker: WorkerId, _: Iterable[int]) -> Iterable[int]:
    """Fill a worker's place until it retires. The task's one row stays unread: so Spark ends the process, and does not
    keep it, with the memory that it has taken, for another task."""
    pa.set_cpu_count(1)  # the task has one slot
    pa.set_io_thread_count(1)
    context = TaskContext.get()
    assert context is not None
    try:
        serve_worker(replace(config, attempt=context.taskAttemptId()), worker)
    except DuplicateAttempt:
        time.sleep(KILLED_S_MAX)
        raise
    return ()
