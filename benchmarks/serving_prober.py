"""Lookups of many callers from a process without Spark: ``python -m benchmarks.serving_prober TASK.json``, with the
token on stdin. The last line is one JSON object.

Each way of asking is timed by itself: so many threads, or tasks of an event loop, each with one lookup of so many
random keys after the other. A lookup of one key asks for its row, as a dict; others ask for a table. Redis has a row as
a text.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import percentile
from benchmarks.process_tree import TICKS_PER_S, parse_stat
from upriver.client.asyncio_client import connect_async
from upriver.client.client import connect
from upriver.errors import ProtocolError

WARM_UP = 50
"""Lookups of each caller before the clock starts."""

LookUp = Callable[[list[int]], Any]
"""Looks keys up; its result is right, or it raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWay:
    """So many threads or tasks, each with so many lookups of so many keys."""

    name: str
    threads: int = 0
    tasks: int = 0
    keys: int = 1
    lookups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTask:
    """What to ask. address: of the app; of Redis, its socket. keys: there are those from 0 up to but without it. pids:
    of the processes that serve."""

    address: str
    redis: bool
    view: str
    keys: int
    pids: list[int]
    ways: list[ServingWay]
    seed: int = 1


def main() -> None:
    """Do what the command line's file says and print what was measured."""
    fields = json.loads(Path(sys.argv[1]).read_text())
    task = ServingTask(**{**fields, "ways": [ServingWay(**way) for way in fields["ways"]]})
    token = sys.stdin.readline().strip()
    print(json.dumps({way.name: _measured(task, way, token) for way in task.ways}))


def _measured(task: ServingTask, way: ServingWay, token: str) -> Mapping[str, Any]:
    rng = np.random.default_rng([task.seed, way.threads, way.tasks, way.keys])
    callers = way.threads or way.tasks
    drawn = rng.integers(0, task.keys, (callers, WARM_UP + way.lookups, way.keys)).tolist()
    clock = _Clock(task.pids, callers)
    if way.tasks:
        asyncio.run(_on_tasks(task, token, drawn, clock))
    else:
        _on_threads(task, token, drawn, clock)
    lookups = callers * way.lookups
    return {
        "lookups_per_s": round(lookups / clock.seconds),
        "p50_ms": round(percentile(clock.latencies, 50) * 1e3, 3),
        "p99_ms": round(percentile(clock.latencies, 99) * 1e3, 3),
        "client_cpu_us": round(clock.own_cpu / lookups * 1e6),
        "server_cpu_us": round(clock.server_cpu / lookups * 1e6),
    }


class _Clock:
    """Begins when all callers are warm, and ends with the last one."""

    def __init__(self, pids: list[int], callers: int) -> None:
        self._pids = pids
        self.latencies: list[float] = []
        self.ready = threading.Barrier(callers, self.begin)

    def begin(self) -> None:
        self._began, self._own_at, self._server_at = time.perf_counter(), time.process_time(), self._server()

    def end(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.own_cpu = time.process_time() - self._own_at
        self.server_cpu = self._server() - self._server_at

    def _server(self) -> float:
        stats = (parse_stat(Path(f"/proc/{pid}/stat").read_bytes()) for pid in self._pids)
        return sum(stat.own for stat in stats) / TICKS_PER_S


# Threads


def _on_threads(task: ServingTask, token: str, drawn: list[list[list[int]]], clock: _Clock) -> None:
    with ExitStack() as opened:
        look_up = _of_redis(task, opened) if task.redis else _of_upriver(task, token, opened)

        def run(mine: list[list[int]]) -> None:
            for keys in mine[:WARM_UP]:
                look_up(keys)
            clock.ready.wait()
            clock.latencies += _timed(look_up, mine[WARM_UP:])

        threads = [threading.Thread(target=run, args=(mine,)) for mine in drawn]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clock.end()


def _timed(look_up: LookUp, drawn: Iterable[list[int]]) -> list[float]:
    seconds = []
    for keys in drawn:
        began = time.perf_counter()
        look_up(keys)
        seconds.append(time.perf_counter() - began)
    return seconds


def _of_upriver(task: ServingTask, token: str, opened: ExitStack) -> LookUp:
    client = opened.enter_context(connect(task.address, token))

    def look_up(keys: list[int]) -> None:
        if len(keys) == 1:
            _check_row(client.lookup_one(task.view, keys[0]), keys[0])
        else:
            _check_count(client.lookup(task.view, keys).num_rows, len(set(keys)))

    return look_up


def _of_redis(task: ServingTask, opened: ExitStack) -> LookUp:
    client = import_module("redis").Redis(unix_socket_path=task.address)
    opened.callback(client.close)

    def look_up(keys: list[int]) -> None:
        if len(keys) == 1:
            _check_count(client.get(f"k{keys[0]}") is not None, 1)
        else:
            _check_count(sum(value is not None for value in client.mget([f"k{key}" for key in keys])), len(keys))

    return look_up


def _check_row(row: Mapping[str, Any] | None, key: int) -> None:
    if row is None or row["k"] != key or row["n"] < 1:
        raise ProtocolError(f"{row} is not the row of key {key}")


def _check_count(found: int, expected: int) -> None:
    if found != expected:
        raise ProtocolError(f"{found} rows of {expected} keys that are all there")


# Tasks


async def _on_tasks(task: ServingTask, token: str, drawn: list[list[list[int]]], clock: _Clock) -> None:
    if task.redis:
        redis = import_module("redis.asyncio").Redis(unix_socket_path=task.address)

        async def get(key: int) -> None:
            _check_count(await redis.get(f"k{key}") is not None, 1)

        await _run_tasks(get, drawn, clock)
        await redis.aclose()
        return
    async with await connect_async(task.address, token) as client:

        async def look_up(key: int) -> None:
            _check_row(await client.lookup_one(task.view, key), key)

        await _run_tasks(look_up, drawn, clock)


async def _run_tasks(look_up: Callable[[int], Any], drawn: list[list[list[int]]], clock: _Clock) -> None:
    async def run(mine: list[list[int]]) -> list[float]:
        seconds = []
        for (key,) in mine:
            began = time.perf_counter()
            await look_up(key)
            seconds.append(time.perf_counter() - began)
        return seconds

    await asyncio.gather(*(run(mine[:WARM_UP]) for mine in drawn))
    clock.begin()
    for seconds in await asyncio.gather(*(run(mine[WARM_UP:]) for mine in drawn)):
        clock.latencies += seconds
    clock.end()


if __name__ == "__main__":
    main()
