"""What a process and all that it starts use of the machine, read from Linux's ``/proc`` by a process outside the tree.

Spark's tree changes all the time: a JVM starts a Python daemon, the daemon forks workers, and workers come and go.
CPU time that is spent never leaves the account: a process that has gone counts with what its parent reaped of it or,
if none did (its parent died first, or ignores its children), with what was last seen of it.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upriver.errors import UserError

MEMORY_EVERY_S = 1.0
"""Seconds between two readings of memory: the kernel walks all page tables of the tree for one."""

_PROC = "/proc"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_Identity = tuple[int, int]
"""A pid, and when it started: a pid alone is given again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    """A line of the process table. started: clock ticks since boot. own: CPU ticks, user and system, of the process
    itself; reaped: of its children that it has waited for, and theirs."""

    pid: int
    parent: int
    started: int
    own: int
    reaped: int

    @property
    def identity(self) -> _Identity:
        return self.pid, self.started


def available_cores() -> list[int]:
    """The processors that this process may use. Raises UserError on a system without what is needed here."""
    if not sys.platform.startswith("linux"):
        raise UserError(f"this benchmark confines and meters processes as Linux does; this system is {sys.platform}")
    return sorted(os.sched_getaffinity(0))


def process_table() -> Iterator[ProcessTimes]:
    """All processes that there are."""
    for name in os.listdir(_PROC):
        if name.isdigit():
            try:
                with open(f"{_PROC}/{name}/stat", "rb", buffering=0) as stat:
                    yield parse_stat(stat.read())
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just gone


def parse_stat(stat: bytes) -> ProcessTimes:
    """One process from its ``/proc/<pid>/stat``, whose second field is a name in brackets that may hold anything."""
    before, _, after = stat.rpartition(b") ")
    fields = [int(field) for field in after.split()[1:20]]
    user, system, reaped_user, reaped_system = fields[10:14]
    return ProcessTimes(
        pid=int(before.split(b" ", 1)[0]),
        parent=fields[0],
        started=fields[18],
        own=user + system,
        reaped=reaped_user + reaped_system,
    )


@dataclass(slots=True)
class _Member:
    """A process that is or was in the tree. parent: the process that started it; ``None`` for the root and for
    orphans."""

    parent: _Identity | None
    own: int
    reaped: int
    is_alive: bool = True


class TreeAccount:
    """CPU ticks of a process and its descendants, from one process table after another."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._members: dict[_Identity, _Member] = {}

    def observe(self, table: Iterable[ProcessTimes]) -> int:
        """Take a process table in; returns the ticks that the tree has spent so far."""
        processes = {process.pid: process for process in table}
        self._update(processes)
        self._admit(processes)
        self._part_orphans()
        return self._spent()

    def pids(self) -> list[int]:
        """All that were in the tree at the last table."""
        return [pid for (pid, _), member in self._members.items() if member.is_alive]

    def _update(self, processes: dict[int, ProcessTimes]) -> None:
        for identity, member in self._members.items():
            process = processes.get(identity[0])
            member.is_alive = process is not None and process.identity == identity
            if process is not None and member.is_alive:
                member.own, member.reaped = process.own, process.reaped

    def _admit(self, processes: dict[int, ProcessTimes]) -> None:
        """Take in the processes that have come: the root at first, later the children of members."""
        children: dict[int, list[ProcessTimes]] = defaultdict(list)
        for process in processes.values():
            children[process.parent].append(process)
        if not self._members and self._root in processes:
            self._add(processes[self._root], None)
        parents = self.pids()
        while parents:
            parent = parents.pop()
            for child in children[parent]:
                if child.identity not in self._members:
                    self._add(child, processes[parent].identity)
                    parents.append(child.pid)

    def _add(self, process: ProcessTimes, parent: _Identity | None) -> None:
        self._members[process.identity] = _Member(parent, process.own, process.reaped)

    def _part_orphans(self) -> None:
        """A child that outlives its parent will never be reaped by it, so it counts for itself."""
        for member in self._members.values():
            if member.is_alive and member.parent is not None and not self._members[member.parent].is_alive:
                member.parent = None

    def _spent(self) -> int:
        children: dict[_Identity | None, list[_Identity]] = defaultdict(list)
        for identity, member in self._members.items():
            children[member.parent].append(identity)

        def spent(identity: _Identity) -> int:
            member = self._members[identity]
            alive = sum(spent(child) for child in children[identity] if self._members[child].is_alive)
            gone = sum(spent(child) for child in children[identity] if not self._members[child].is_alive)
            return member.own + alive + max(member.reaped, gone)

        return sum(spent(identity) for identity in children[None])


def pss_bytes(pids: Iterable[int]) -> int:
    """Memory of some processes together: a page that several of them map is counted once (PSS)."""
    return sum(_pss_bytes(pid) for pid in pids)


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"{_PROC}/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just gone
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree used in a span of time. peak_mb: of the readings of its memory; spikes between them are not seen."""

    cpu_s: float
    peak_mb: float


class Meter:
    """Samples a process tree while it runs. Times are seconds of the epoch, as Spark stamps its micro-batches."""

    def __init__(self, root: int) -> None:
        self._account = TreeAccount(root)
        self.cpu_s: list[tuple[float, float]] = []
        self._memory: list[tuple[float, float]] = []

    def sample(self) -> None:
        """Read CPU time, and memory if it is time to."""
        ticks = self._account.observe(process_table())
        now = time.time()
        self.cpu_s.append((now, ticks / TICKS_PER_S))
        if not self._memory or now - self._memory[-1][0] >= MEMORY_EVERY_S:
            self._memory.append((now, pss_bytes(self._account.pids()) / 2**20))

    def usage(self, started: float, ended: float) -> Usage:
        """What was used between two times, between the first sample and the last."""
        at, cpu_s = zip(*self.cpu_s, strict=True)
        before, after = np.interp([started, ended], at, cpu_s)
        return Usage(cpu_s=float(after - before), peak_mb=_peak(self._memory, started, ended))


def _peak(readings: list[tuple[float, float]], started: float, ended: float) -> float:
    """The highest reading of the span, with the last one before it and the first one after it."""
    first = max((at for at, _ in readings if at <= started), default=started)
    last = min((at for at, _ in readings if at >= ended), default=ended)
    return max(memory for at, memory in readings if first <= at <= last)
