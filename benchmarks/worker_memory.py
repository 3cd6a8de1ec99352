"""Memory of the processes that workers run in, read from Linux's ``/proc``, beside what they say that they keep."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hand_fed import HandFedApp
from benchmarks.recovery_kill import pid_listening

REST_S = 3.0
"""Seconds until workers that have nothing to do have given back what they do not need."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of some processes together. resident: all in memory, mapped files too. anonymous: what is no file's."""

    resident: int
    anonymous: int

    def __sub__(self, other: "Memory") -> "Memory":
        return Memory(self.resident - other.resident, self.anonymous - other.anonymous)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Bytes: of a view's state as its workers say, and of their processes."""

    said: int
    memory: Memory

    def __sub__(self, other: "MemoryReading") -> "MemoryReading":
        return MemoryReading(self.said - other.said, self.memory - other.memory)

    def figures(self) -> dict[str, Any]:
        """Of a difference, in megabytes, and how much of the processes' growth the workers know of."""
        return {
            "state_mb": as_mb(self.said),
            "anonymous_mb": as_mb(self.memory.anonymous),
            "rss_mb": as_mb(self.memory.resident),
            "known_share": round(self.said / self.memory.anonymous, 3) if self.memory.anonymous > 0 else None,
        }


class Gauge:
    """Reads the memory that a view takes."""

    def __init__(self, app: HandFedApp, view: str, pids: Sequence[int]) -> None:
        """pids: of the app's workers."""
        self._app = app
        self._view = view
        self._pids = pids

    def read_at_rest(self) -> MemoryReading:
        """As it is when what was only needed meanwhile has been given back."""
        time.sleep(REST_S)
        return self.read()

    def read(self) -> MemoryReading:
        """As it is now, and as the workers last said."""
        return MemoryReading(self._app.status()["views"][self._view]["bytes"], memory_of(self._pids))


def as_mb(count: int) -> float:
    """Bytes in megabytes."""
    return round(count / 2**20, 2)


def worker_pids(app: HandFedApp) -> list[int]:
    """Of all workers of the app. Raises ClusterError if one of them is not up."""
    return [pid_listening(str(worker["address"])) for worker in app.status()["workers"]]


def memory_of(pids: Sequence[int]) -> Memory:
    """Of processes that are running."""
    found = [_memory_of(pid) for pid in pids]
    return Memory(sum(memory.resident for memory in found), sum(memory.anonymous for memory in found))


def _memory_of(pid: int) -> Memory:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    resident, anonymous = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    return Memory(resident, anonymous)
