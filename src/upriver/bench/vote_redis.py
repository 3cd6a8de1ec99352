"""Keys a second that Redis gives a Python program, to compare lookups with: ``python -m upriver.bench.vote_redis``.

A server of its own, on a socket in a temporary directory, with nothing saved; the last line is one JSON object. The
values are what the view has of an article, as one string.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from upriver.bench.vote_lookups import BATCH_KEYS, WARM_KEYS, WARM_UP
from upriver.bench.vote_model import titles
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
    """As ``--json`` prints it: keys a second by MGET, from a process of its own, or why it was left out."""
    why = why_no_redis()
    if why is not None:
        return {"keys_per_s": None, "skipped": why}
    command = [sys.executable, "-m", "upriver.bench.vote_redis", str(batches)]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=REDIS_S_MAX)
    if asked.returncode != 0:
        raise ClusterError(f"the comparison with Redis failed:\n{asked.stderr}")
    return {"keys_per_s": json.loads(asked.stdout.splitlines()[-1]), "skipped": None}


def main() -> None:
    """Measure so many batches as the command line says, and print keys a second."""
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
        socket = str(Path(directory) / "redis.sock")
        command = [SERVER, "--port", "0", "--unixsocket", socket, "--save", "", "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                print(json.dumps(round(_keys_per_s(_connected(socket), int(sys.argv[1])))))
            finally:
                server.terminate()


def _connected(socket: str) -> Any:
    """A client of the server, once that answers."""
    redis = import_module("redis")  # not among our dependencies: who has it can compare
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


def _keys_per_s(client: Any, batches: int) -> float:
    """Of MGETs of ``BATCH_KEYS`` random ones of ``WARM_KEYS`` keys, one after the other. Every key must be found."""
    names = [f"article:{number}" for number in range(WARM_KEYS)]
    values = [f"{title}|{number}" for number, title in enumerate(titles(np.arange(WARM_KEYS)).to_pylist())]
    client.mset(dict(zip(names, values, strict=True)))
    lots = np.random.default_rng(1)
    seconds = 0.0
    for number in range(WARM_UP + batches):
        places = lots.choice(WARM_KEYS, BATCH_KEYS, replace=False).tolist()
        asked = [names[place] for place in places]
        began = time.perf_counter()
        found = client.mget(asked)
        if number >= WARM_UP:
            seconds += time.perf_counter() - began
        if found != [values[place].encode() for place in places]:
            raise ClusterError("Redis gave other values than it was given")
    return BATCH_KEYS * batches / seconds


if __name__ == "__main__":
    main()
