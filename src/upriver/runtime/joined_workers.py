"""The worker processes that have registered at the coordinator: their addresses, and our ends of their channels."""

import itertools
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from upriver.errors import ClusterError, UpriverError, WorkerLost
from upriver.ids import Incarnation, WorkerId
from upriver.protocol.messages import ToWorker


class WorkerEnd(Protocol):
    """Our end of the channel to one incarnation."""

    def tell(self, *messages: ToWorker) -> None:
        """Send, in order and together, without blocking. Raises ClusterError if the channel is gone."""

    def close(self) -> None: ...

    def give_up(self, error: UpriverError) -> None:
        """Cut the channel: the worker is lost, because of this error."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """A registered process: its end of the channel, and where it serves."""

    worker: WorkerId
    address: str
    end: WorkerEnd


class JoinedWorkers:
    """By incarnation, the processes whose channels are open. Called by any thread. changed: announces each change."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._incarnations = itertools.count(1)
        self._joined: dict[Incarnation, _Joined] = {}

    def join(self, worker: WorkerId, address: str, end: WorkerEnd) -> Incarnation:
        """A worker's process has registered; it serves at ``address``."""
        incarnation = Incarnation(next(self._incarnations))
        with self._changed:
            self._joined[incarnation] = _Joined(worker, address, end)
            self._changed.notify_all()
        return incarnation

    def leave(self, incarnation: Incarnation) -> None:
        """The process's channel has closed."""
        with self._changed:
            self._joined.pop(incarnation, None)
            self._changed.notify_all()

    def worker_of(self, incarnation: Incarnation) -> WorkerId | None:
        """The worker slot of the process; ``None`` if its channel has closed."""
        joined = self._of(incarnation)
        return None if joined is None else joined.worker

    @property
    def incarnations(self) -> tuple[Incarnation, ...]:
        """In the order in which they joined."""
        with self._changed:
            return tuple(self._joined)

    def missing(self, workers: Iterable[WorkerId]) -> set[WorkerId]:
        """Which of these worker slots have no process."""
        with self._changed:
            return set(workers) - {joined.worker for joined in self._joined.values()}

    def addresses(self) -> dict[WorkerId, str]:
        """The address of each worker that is up; of two incarnations, the later one's."""
        with self._changed:
            joined = [self._joined[incarnation] for incarnation in sorted(self._joined)]
        return {member.worker: member.address for member in joined}

    def tell(self, incarnation: Incarnation, *messages: ToWorker) -> None:
        """Send messages to a process, together, if its channel is open."""
        joined = self._of(incarnation)
        if joined is None:
            return
        try:
            joined.end.tell(*messages)
        except ClusterError:
            joined.end.close()  # its closing comes back as ``leave``

    def give_up(self, incarnation: Incarnation, why: str) -> None:
        """Cut the process's channel. Does nothing if it has closed: then the worker slot is about to be filled."""
        joined = self._of(incarnation)
        if joined is not None:
            joined.end.give_up(WorkerLost(f"worker {joined.worker} failed: {why}"))

    def close(self, but: Collection[Incarnation] = ()) -> None:
        """Close all channels, except for those of these processes."""
        with self._changed:
            closing = [joined for incarnation, joined in self._joined.items() if incarnation not in but]
        for joined in closing:
            joined.end.close()

    def wait_gone(self, seconds: float) -> bool:
        """Wait until all channels have closed, at most so many seconds; returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._joined, seconds)

    def _of(self, incarnation: Incarnation) -> _Joined | None:
        with self._changed:
            return self._joined.get(incarnation)
