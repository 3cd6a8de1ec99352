"""What all flows of an app share: workers' places, the processes in them, which vnodes each reads, and the actions of
the coordinator's current step."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from upriver.coordinator.spread import staying_workers
from upriver.ids import Incarnation, SnapshotId, WorkerId
from upriver.protocol.coordinator_events import CoordinatorAction, Tell
from upriver.protocol.messages import ToWorker
from upriver.protocol.rules import Rules
from upriver.vnodes import VnodeMap


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """The current incarnation in one worker's place.

    assigned: it was told what it keeps of each flow that there is. instance: the executor that it is lost with.
    """

    worker: WorkerId
    incarnation: Incarnation
    address: str
    instance: str = ""
    assigned: bool = False
    held_up: str | None = None
    """Why it cannot read the lake: it tries again."""


@dataclass(slots=True, kw_only=True)
class WorkerPlaces:
    """workers: every place that takes part in epochs. reading: which worker reads each vnode's slices."""

    rules: Rules
    workers: tuple[WorkerId, ...]
    reading: VnodeMap
    is_followed: bool = False
    """Workers follow each other, or may."""
    is_reversible: bool = False
    """Standbys may take over from a lost worker, as of the last epoch's end."""
    processes: dict[WorkerId, WorkerProcess] = field(default_factory=dict)
    actions: list[CoordinatorAction] = field(default_factory=list)
    """The actions of the current step."""
    _last_snapshot: int = 0
    _last_checkpoint: int = 0

    def begin_step(self) -> None:
        """No action is decided on yet."""
        self.actions = []

    def act(self, *actions: CoordinatorAction) -> None:
        """Add to the actions of the current step."""
        self.actions += actions

    def tell(self, process: WorkerProcess, message: ToWorker) -> None:
        self.act(Tell(incarnation=process.incarnation, message=message))

    def tell_all(self, message: ToWorker) -> None:
        for process in self.by_worker():
            self.tell(process, message)

    def by_worker(self) -> list[WorkerProcess]:
        """All processes that were assigned, in order of place."""
        return [self.processes[worker] for worker in sorted(self.processes) if self.processes[worker].assigned]

    def of_incarnation(self, incarnation: Incarnation) -> WorkerProcess | None:
        return next((p for _, p in sorted(self.processes.items()) if p.incarnation == incarnation), None)

    def is_filled(self) -> bool:
        """Whether there is a process in every place, assigned or not."""
        return self.processes.keys() >= set(self.workers)

    def enter(self, process: WorkerProcess) -> None:
        """This incarnation is in its place from now on."""
        self.processes[process.worker] = process

    def leave(self, worker: WorkerId) -> WorkerProcess:
        """The place is empty from now on. Returns the process that was there."""
        return self.processes.pop(worker)

    def take_part(self, workers: Collection[WorkerId]) -> None:
        """These places, and no others, take part in epochs from now on."""
        self.workers = tuple(sorted(workers))

    def read_by(self, vnode_map: VnodeMap) -> None:
        """Slices are read by this map from now on."""
        self.reading = vnode_map

    def follow(self, *, is_followed: bool, is_reversible: bool) -> None:
        """Whether workers follow each other, and whether standbys may take over."""
        self.is_followed, self.is_reversible = is_followed, is_reversible

    def staying(self, size: int | None) -> tuple[WorkerId, ...]:
        """The workers that stay if a rescale leaves only so many; ``None``: all."""
        instances = {worker: process.instance for worker, process in tuple(self.processes.items())}
        return self.workers if size is None else staying_workers(self.workers, size, instances)

    def next_snapshot(self) -> SnapshotId:
        """The name of one more snapshot: no flow has another one of this name."""
        self._last_snapshot += 1
        return SnapshotId(self._last_snapshot)

    def next_checkpoint(self) -> int:
        """The number of one more checkpoint: no flow has another one of this number."""
        self._last_checkpoint += 1
        return self._last_checkpoint


def listed(workers: Iterable[WorkerId]) -> str:
    """``worker 2``, ``workers 2, 3``."""
    found = sorted(workers)
    return f"worker{'' if len(found) == 1 else 's'} {', '.join(map(str, found))}"
