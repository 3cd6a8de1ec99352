"""Lookups from a process without Spark: ``python -m benchmarks.lookups TASK.json``, with the token on stdin.

One client asks, one lookup after the other, for keys drawn at random. The last line is one JSON object.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import keys_per_s, percentile
from upriver.client.client import Client, connect
from upriver.errors import ProtocolError

WARM_UP = 50
"""Lookups before the clock starts."""
BULK_KEYS = 10_000
"""Keys of the largest lookup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupTask:
    """What to ask. keys: the view has those from 0 up to but without it. lookups: of each size that is timed."""

    address: str
    view: str
    keys: int
    lookups: int
    seed: int = 1


def main() -> None:
    """Do what the command line's file says and print what was measured."""
    task = LookupTask(**json.loads(Path(sys.argv[1]).read_text()))
    with connect(task.address, sys.stdin.readline().strip()) as client:
        print(json.dumps(measure_lookups(client, task)))


def measure_lookups(client: Client, task: LookupTask) -> Mapping[str, Any]:
    """Latencies of lookups of 1 and 100 keys in microseconds, and keys per second of large ones."""
    bulk_keys = min(BULK_KEYS, task.keys)
    one, hundred, bulk = (_timed(client, task, keys) for keys in (1, min(100, task.keys), bulk_keys))
    return {
        "one_p50_us": round(percentile(one, 50) * 1e6),
        "one_p99_us": round(percentile(one, 99) * 1e6),
        "hundred_p50_us": round(percentile(hundred, 50) * 1e6),
        "hundred_p99_us": round(percentile(hundred, 99) * 1e6),
        "keys_per_s": keys_per_s(bulk_keys, bulk),
        "keys_per_lookup": bulk_keys,
        "lookups": task.lookups,
        "without_spark": "pyspark" not in sys.modules,
    }


def _timed(client: Client, task: LookupTask, count: int) -> list[float]:
    """Seconds that each lookup of ``count`` different keys took. Every key must be found."""
    rng = np.random.default_rng([task.seed, count])
    seconds = []
    for _ in range(WARM_UP + task.lookups):
        keys = pa.array(rng.choice(task.keys, count, replace=False, shuffle=False))
        started = time.perf_counter()
        found = client.lookup(task.view, keys)
        seconds.append(time.perf_counter() - started)
        if found.num_rows != count:
            raise ProtocolError(f"{found.num_rows} rows of {count} keys that are all there")
    return seconds[WARM_UP:]


if __name__ == "__main__":
    main()
