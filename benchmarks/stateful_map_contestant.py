"""The benchmark of stateful maps in a process of its own: ``python -m`` this module, and its task's file.

Both sides are measured here, one after the other, confined to the same processors.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_tree import available_cores
from benchmarks.stateful_map import CASES, StatefulMapOptions, measure_stateful_map
from upriver.spark.session import local_session

RUN_S_MAX = 900.0
"""Seconds that all cases may take together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulMapTask:
    """What to measure. result: file for what :func:`measure_stateful_map` returns, as JSON. cores: processors that the
    process tree is confined to. seed: of the rows. keys: the cases out of CASES, by their number of keys."""

    result: str
    cores: int
    has_spark: bool
    seed: int
    keys: tuple[int, ...]


def main() -> None:
    """Run the task that the command line names."""
    task = StatefulMapTask(**json.loads(Path(sys.argv[1]).read_text()))
    os.sched_setaffinity(0, available_cores()[: task.cores])
    options = StatefulMapOptions(
        cases=[case for case in CASES if case.keys in task.keys],
        partitions=task.cores,
        has_spark=task.has_spark,
        seed=task.seed,
    )
    spark = local_session(0, ingest_slots=task.cores, app_name="upriver-bench")
    Path(task.result).write_text(json.dumps(measure_stateful_map(spark, options)))


if __name__ == "__main__":
    main()
