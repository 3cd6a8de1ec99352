"""Kills a worker's process, and watches from the driver how the app comes to be whole again."""

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upriver.errors import ClusterError, UserError

POLL_MS = 2
"""Milliseconds between two looks at the app's status."""
_LISTENING = "0A"
"""What the kernel calls the state, in its tables of sockets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Times by ``time.perf_counter``. died_at: when nothing was left of the process. noticed_at: when the coordinator
    no longer listed it as up. caught_up_at: when every place was filled and all workers had what was published.
    epoch: that was published when the process was killed."""

    epoch: int
    killed_at: float
    died_at: float
    noticed_at: float
    caught_up_at: float


def kill_worker(status: Callable[[], Mapping[str, Any]], worker: int, seconds: float) -> Watched:
    """``kill -9`` the process in a worker's place on this machine, and watch until the app has caught up.

    status: as ``App.status``. Raises ClusterError if it does not within so many seconds, or fails.
    """
    before = status()
    address = address_of(before, worker)
    if address is None:
        raise ClusterError(f"worker {worker} is not up: {before}")
    process = pid_listening(address)
    handle = os.pidfd_open(process)
    try:
        killed_at = time.perf_counter()
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return _watch(status, worker, address, handle, before["published"], killed_at, seconds)
    finally:
        os.close(handle)


def _watch(
    status: Callable[[], Mapping[str, Any]],
    worker: int,
    address: str,
    handle: int,
    epoch: int,
    killed_at: float,
    seconds: float,
) -> Watched:
    dying = select.poll()
    dying.register(handle, select.POLLIN)
    died_at = noticed_at = None
    while (now := time.perf_counter()) < killed_at + seconds:
        if died_at is None:
            died_at = now if dying.poll(POLL_MS) else None
        else:
            time.sleep(POLL_MS / 1e3)
        found = status()
        now = time.perf_counter()
        if found["failure"] is not None:
            raise ClusterError(f"the app has failed after worker {worker} was killed: {found['failure']}")
        if noticed_at is None and address_of(found, worker) != address:
            noticed_at = now
        if died_at is not None and noticed_at is not None and has_caught_up(found):
            return Watched(epoch=epoch, killed_at=killed_at, died_at=died_at, noticed_at=noticed_at, caught_up_at=now)
    raise ClusterError(f"{seconds:g} s after worker {worker} was killed the app has not caught up: {status()}")


def address_of(status: Mapping[str, Any], worker: int) -> str | None:
    """Where a worker serves; ``None`` if it is not up."""
    places = (place["address"] for place in status["workers"] if place["worker"] == worker)
    found: str | None = next(places, None)
    return found


def has_caught_up(status: Mapping[str, Any]) -> bool:
    """Whether every place that keeps anything is filled, by a worker that has all that is published."""
    keep = [place for place in status["workers"] if place["vnodes"]]
    return all(place["address"] is not None and place["epoch"] == status["published"] for place in keep)


def pid_listening(address: str) -> int:
    """The process of this machine that listens at ``host:port``. Raises ClusterError if there is none to be seen,
    UserError on a system that cannot say."""
    tables = [path for name in ("tcp", "tcp6") if (path := Path("/proc/net") / name).exists()]
    if not tables:
        raise UserError("this benchmark finds processes as Linux does, in /proc/net")
    port = f"{int(address.rpartition(':')[2]):04X}"
    sockets = set()
    for table in tables:
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[1].endswith(f":{port}"):
                sockets.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and sockets & _open_files(process):
            return int(process.name)
    raise ClusterError(f"no process of this machine listens at {address}")


def _open_files(process: Path) -> set[str]:
    try:
        return {os.readlink(entry) for entry in (process / "fd").iterdir()}
    except OSError:
        return set()  # it has just gone, or is another user's
