"""Keys a second that Redis gives a Python program, to compare lookups with: ``python -m benchmarks.vote_redis``.

A server of its own, on a socket in a temporary directory, with nothing saved; the last line is one JSON object. The
values are what the view has of an article, as one string. The package ``redis`` parses answers in Python, or, if
``hiredis`` is there too, in C.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import keys_per_s
from benchmarks.many_threads import keys_per_s_on_threads
from benchmarks.vote_lookups import (
    BATCH_KEYS,
    LARGER_KEYS,
    THREADS,
    THREADS_TIMES,
    WARM_KEYS,
    WARM_UP,
    larger_batches,
)
from benchmarks.vote_model import titles
from upriver.errors import ClusterError

SERVER = "redis-server"
START_S_MAX = 10.0
"""Seconds for the server to answer."""
POLL_S = 0.05
REDIS_S_MAX = 120.0
"""Seconds that the whole comparison may take."""


def why_no_redis() -> str | None:
    """Why there can be no comparison, in words; ``None`` if there can."""
    if shutil.which(SERVER) is None:
        return f"there is no {SERVER} on the PATH"
    if find_spec("redis") is None:
        return "there is no Python package redis"
    return None


def measure_redis(batches: int) -> dict[str, Any]:
    """As ``--json`` prints it: keys a second by MGET, from a process of its own, or why it was left out. larger: by
    the number of keys; threads: by the number of threads, which share a client. parser: what parses the answers."""
    why = why_no_redis()
    if why is not None:
        return {"keys_per_s": None, "larger": {}, "threads": {}, "parser": None, "skipped": why}
    command = [sys.executable, "-m", "benchmarks.vote_redis", str(batches)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=REDIS_S_MAX)
    if asked.returncode != 0:
        raise ClusterError(f"the comparison with Redis failed:\n{asked.stderr}")
    return {**json.loads(asked.stdout.splitlines()[-1]), "skipped": None}


def main() -> None:
    """Measure so many batches as the command line says, and print what was found."""
    with (
        tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory,
        running_redis(directory) as (client, _, _),
    ):
        print(json.dumps(_measured(client, int(sys.argv[1]))))


@contextmanager
def running_redis(directory: str) -> Iterator[tuple[Any, str, int]]:
    """A server that saves nothing: a client of it, its socket in this directory, and the number of its process."""
    socket = str(Path(directory) / "redis.sock")
    command = [SERVER, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", directory]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            yield _connected(socket), socket, server.pid
        finally:
            server.terminate()


def _connected(socket: str) -> Any:
    """A client of the server, once that answers."""
    redis = import_module("redis")  # not among our dependencies: install it to compare
    client = redis.Redis(unix_socket_path=socket)
    give_up_at = time.monotonic() + START_S_MAX
    while True:
        try:
            client.ping()
            return client
        except redis.ConnectionError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(POLL_S)


def _measured(client: Any, batches: int) -> dict[str, Any]:
    names = [f"article:{number}" for number in range(WARM_KEYS)]
    values = [f"{title}|{number}" for number, title in enumerate(titles(np.arange(WARM_KEYS)).to_pylist())]
    client.mset(dict(zip(names, values, strict=True)))
    return {
        "keys_per_s": _keys_per_s(client, names, values, BATCH_KEYS, batches),
        "larger": {keys: _keys_per_s(client, names, values, keys, larger_batches(batches)) for keys in LARGER_KEYS},
        "threads": {threads: _on_threads(client, names, values, threads, batches) for threads in THREADS},
        "parser": "C" if find_spec("hiredis") else "Python",
    }


def _keys_per_s(client: Any, names: Sequence[str], values: Sequence[str], keys: int, batches: int) -> int:
    """Of MGETs of so many random ones of all keys, one after the other. Every key must be found."""
    rng = np.random.default_rng(1)
    seconds = []
    for _ in range(WARM_UP + batches):
        places = rng.choice(WARM_KEYS, keys, replace=False).tolist()
        asked = [names[place] for place in places]
        began = time.perf_counter()
        found = client.mget(asked)
        seconds.append(time.perf_counter() - began)
        _must_be(found, [values[place] for place in places])
    return keys_per_s(keys, seconds[WARM_UP:])


def _on_threads(client: Any, names: Sequence[str], values: Sequence[str], threads: int, batches: int) -> int:
    """Keys a second that so many threads are given together, by MGETs of ``BATCH_KEYS``."""
    rng = np.random.default_rng(threads)
    value_of = dict(zip(names, values, strict=True))

    def draw() -> list[list[str]]:
        places = [rng.choice(WARM_KEYS, BATCH_KEYS, replace=False).tolist() for _ in range(THREADS_TIMES * batches)]
        return [[names[place] for place in of_one] for of_one in places]

    def check(asked: Sequence[str], found: Sequence[bytes]) -> None:
        _must_be(found, [value_of[name] for name in asked])

    return keys_per_s_on_threads(threads, BATCH_KEYS, draw, client.mget, check)


def _must_be(found: Sequence[bytes], values: Sequence[str]) -> None:
    if found != [value.encode() for value in values]:
        raise ClusterError("Redis gave other values than it was given")


if __name__ == "__main__":
    main()
