"""A key moves between two workers whose region splits and unites: every way it can go, with the distributors that ship.

Every operator keeps a log of the rows that it applied, per key. A row goes one way through the region, and two rows of
an origin may go different ways. ``Habits`` are what the appendix of document 000 asks for; broken ones show why.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_rows import Key, ModelRows, TracedRow, frozen
from simulator.published.multipath import (
    MultipathAcquire,
    MultipathCollect,
    MultipathDrop,
    MultipathEdge,
    MultipathInterrogate,
    OperatorId,
    RegionGraph,
    Travelling,
)
from upriver.hashing import Hashes
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration import events as actions
from upriver.migration import messages
from upriver.migration.events import (
    CollectAsked,
    Collected,
    Event,
    Interrogated,
    Received,
    RescaleAnnounced,
    RowsArrived,
)
from upriver.migration.icadd import Distributor
from upriver.vnodes import VnodeMap

OLD, NEW = WorkerId(0), WorkerId(1)
KEY = Key(VnodeId(0), 1).hash64(1)
BEFORE, AFTER = VnodeMap(MapVersion(0), (OLD,)), VnodeMap(MapVersion(1), (NEW,))
RESCALE = RescaleAnnounced(before=BEFORE, after=AFTER, old=(OLD, NEW), new=(OLD, NEW))
PRIOR = TracedRow(KEY, WorkerId(-1), 0)
"""What the operators know of the key at the start."""

Path = tuple[OperatorId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A region. paths: every way through it, from an input on; the n-th row of an origin goes the n-th, in turns.
    stateless: operators that keep nothing.
    """

    name: str
    paths: tuple[Path, ...]
    stateless: tuple[OperatorId, ...] = ()

    @property
    def inputs(self) -> tuple[OperatorId, ...]:
        return tuple(dict.fromkeys(path[0] for path in self.paths))

    @property
    def operators(self) -> tuple[OperatorId, ...]:
        return tuple(dict.fromkeys(name for path in self.paths for name in path))

    @property
    def edges(self) -> dict[OperatorId, tuple[OperatorId, ...]]:
        pairs = dict.fromkeys(pair for path in self.paths for pair in pairwise(path))
        return {name: tuple(to for source, to in pairs if source == name) for name in self.operators}

    def path(self, item: TracedRow) -> Path:
        return self.paths[(item.seq - 1) % len(self.paths)]


def _shape(name: str, *paths: str) -> Shape:
    return Shape(name=name, paths=tuple(tuple(map(OperatorId, path.split())) for path in paths))


DIAMOND = _shape("diamond", "split left union", "split right union")
"""A split, and a union of its branches."""
JOIN = _shape("join", "left join", "right join")
"""Two inputs, as a join or a keyed union has (R14)."""


@dataclass(slots=True)
class LogOperator:
    """Keeps, per key, the rows that it applied, in order."""

    name: OperatorId
    shape: Shape
    logs: dict[int, tuple[TracedRow, ...]] = field(default_factory=dict)

    def apply(self, row: TracedRow) -> Mapping[OperatorId, TracedRow]:
        if self.name not in self.shape.stateless:
            self.logs[row.key] = (*self.logs.get(row.key, ()), row)
        path = self.shape.path(row)
        following = path[path.index(self.name) + 1 :]
        return {following[0]: row} if following else {}

    def keys_of(self, vnodes: tuple[VnodeId, ...]) -> Hashes:
        return np.array(sorted(self.logs), np.uint64)  # the model has one vnode

    def collect(self, keys: Hashes) -> object | None:
        return {key: self.logs[key] for key in keys.tolist() if key in self.logs} or None

    def install(self, state: object) -> None:
        assert isinstance(state, dict)
        self.logs.update(state)

    def drop(self, keys: Hashes) -> None:
        for key in keys.tolist():
            self.logs.pop(key, None)


@dataclass(frozen=True, slots=True)
class Habits:
    """What operators, messages and the distributor do; all of it right, unless a test puts a broken one in."""

    operator: Callable[[OperatorId, Shape], LogOperator] = LogOperator
    graph: Callable[..., RegionGraph[TracedRow]] = RegionGraph
    interrogate: Callable[[tuple[VnodeId, ...]], MultipathInterrogate] = MultipathInterrogate
    collect: Callable[[Hashes], MultipathCollect] = MultipathCollect
    acquire: Callable[[Hashes, Mapping[OperatorId, object]], MultipathAcquire] = MultipathAcquire


class MultipathStep(NamedTuple):
    """kind: hear, row, receive, collect, deliver. edge: in the region of ``worker``."""

    kind: str
    worker: WorkerId
    edge: MultipathEdge | None = None


@dataclass(slots=True)
class Worker:
    """asked: the Interrogate or Collect that is out. rows: to come from upstream. fingerprint: once asked for."""

    machine: Distributor
    graph: RegionGraph[TracedRow]
    rows: tuple[TracedRow, ...]
    heard: bool = False
    asked: Travelling | None = None
    fingerprint: Any = None

    @property
    def operators(self) -> tuple[LogOperator, ...]:
        return tuple(operator for operator in self.graph.operators.values() if isinstance(operator, LogOperator))

    @property
    def gives(self) -> bool:
        """Whether the keys' way out of this worker is not over yet."""
        return not self.heard or self.machine.can_collect or bool(self.graph.busy())

    def copy(self) -> "Worker":
        """A worker to change; copies of one message are still one."""
        copies: dict[int, Any] = {}

        def copied(thing: Any) -> Any:
            if not isinstance(thing, Travelling):
                return thing
            if id(thing) not in copies:
                copies[id(thing)] = other = copy.copy(thing)
                vars(other).update({name: dict(it) for name, it in vars(thing).items() if isinstance(it, dict)})
            return copies[id(thing)]

        graph = copy.copy(self.graph)
        graph.queues = {edge: deque(map(copied, queue)) for edge, queue in self.graph.queues.items()}
        operators = [copy.copy(each) for each in self.operators]
        for operator in operators:
            operator.logs = dict(operator.logs)
        graph.operators = {operator.name: operator for operator in operators}
        return Worker(copy.copy(self.machine), graph, self.rows, self.heard, copied(self.asked))

    def state(self) -> Any:
        """Equal for equal states, and hashable."""
        if self.fingerprint is None:
            queues = tuple(tuple(map(_fingerprint, queue)) for queue in self.graph.queues.values())
            logs = tuple(tuple(operator.logs.items()) for operator in self.operators)
            rest = self.rows, self.heard, _fingerprint(self.asked)
            self.fingerprint = frozen(self.machine.phase), queues, logs, rest
        return self.fingerprint


class MultipathWorld:
    """Two workers, one region, one key that moves from ``OLD`` to ``NEW``. inbox: per worker, what the other sent."""

    def __init__(self, shape: Shape, rows: Mapping[WorkerId, int], known: bool, habits: Habits) -> None:
        """rows: how many each worker has from upstream. known: the key has state at the start."""
        self.shape = shape
        self.habits = habits
        self.workers = {worker: self._worker(worker, rows[worker]) for worker in (OLD, NEW)}
        self.sent = tuple(item for worker in self.workers.values() for item in worker.rows)
        self.inbox: dict[WorkerId, tuple[messages.Message, ...]] = {OLD: (), NEW: ()}
        for operator in self.workers[OLD].operators if known else ():
            if operator.name not in shape.stateless:
                operator.logs[KEY] = (PRIOR,)
        self.known = known

    def _worker(self, worker: WorkerId, rows: int) -> Worker:
        operators = {name: self.habits.operator(name, self.shape) for name in self.shape.operators}
        graph = self.habits.graph(operators, self.shape.edges, self.shape.inputs)
        return Worker(Distributor(worker, BEFORE), graph, tuple(TracedRow(KEY, worker, n + 1) for n in range(rows)))

    def after(self, step: MultipathStep) -> "MultipathWorld":
        """The world after one of the possible steps; this one stays as it is."""
        other = copy.copy(self)
        other.inbox = dict(self.inbox)
        other.workers = {**self.workers, step.worker: self.workers[step.worker].copy()}
        other._take(step)
        return other

    def state(self) -> int:
        """Equal for equal worlds."""
        inboxes = tuple(tuple(map(frozen, inbox)) for inbox in self.inbox.values())
        return hash((tuple(part.state() for part in self.workers.values()), inboxes))

    def possible(self) -> list[MultipathStep]:
        """Every step that can be next. What the new owner's operators do makes no difference to those of the old one:
        so they are given something only when these have nothing to do, and fewer states are all the same all cases."""
        steps = []
        for worker, part in self.workers.items():
            waits = worker == NEW and self.workers[OLD].gives
            kinds = {
                "hear": not part.heard,
                "row": bool(part.rows),
                "receive": bool(self.inbox[worker]) and not waits,
                "collect": part.machine.can_collect and part.asked is None,
            }
            steps += [MultipathStep(kind, worker) for kind, can in kinds.items() if can]
            steps += [MultipathStep("deliver", worker, edge) for edge in part.graph.busy() if not waits]
        return steps

    def _take(self, step: MultipathStep) -> None:
        part = self.workers[step.worker]
        match step.kind:
            case "hear":
                part.heard = True
                self._event(step.worker, RESCALE)
            case "row":
                item, *rest = part.rows
                part.rows = tuple(rest)
                self._event(step.worker, RowsArrived(rows=ModelRows.of(item)))
            case "receive":
                message, *later = self.inbox[step.worker]
                self.inbox[step.worker] = tuple(later)
                self._event(step.worker, Received(sender=_other(step.worker), message=message))
            case "collect":
                self._event(step.worker, CollectAsked(keys_max=1))
            case _:
                assert step.edge is not None
                self._delivered(step.worker, part.graph.deliver(step.edge))

    def _delivered(self, worker: WorkerId, message: Travelling | None) -> None:
        part = self.workers[worker]
        if message is None or not message.over or message is not part.asked:
            return
        part.asked = None
        if isinstance(message, MultipathInterrogate):
            self._event(worker, Interrogated(keys=message.keys))
        elif isinstance(message, MultipathCollect):
            self._event(worker, Collected(keys=message.keys, state=message.state))

    def _event(self, worker: WorkerId, event: Event) -> None:
        part, habits = self.workers[worker], self.habits
        for action in part.machine.step(event):
            match action:
                case actions.PassDown(rows=ModelRows(items=items)):
                    for item in items:
                        part.graph.pass_down(item, self.shape.path(item)[0])
                case actions.Send(message=message):
                    self.inbox[_other(worker)] += (message,)
                case actions.Interrogate(vnodes=vnodes):
                    self._ask(part, habits.interrogate(vnodes))
                case actions.Collect(keys=keys):
                    self._ask(part, habits.collect(keys))
                case actions.TakeState(keys=keys, state=state):
                    assert isinstance(state, dict)
                    part.graph.send(habits.acquire(keys, state))
                case actions.Drop(keys=keys):
                    part.graph.send(MultipathDrop(keys))
                case _:
                    pass

    def _ask(self, part: Worker, message: MultipathInterrogate | MultipathCollect) -> None:
        part.asked = message
        part.graph.send(message)

    def check_end(self) -> None:
        """LOST, DOUBLED, ORDER, MISPLACED, STUCK: nothing more can happen."""
        for worker, part in self.workers.items():
            if part.machine.rows_waiting or part.machine.phase.map.version != AFTER.version:  # type: ignore[union-attr]
                raise ProtocolViolation(NodeKind.STUCK, f"worker {worker} ends as {part.machine.phase}")
        if any(operator.logs for operator in self.workers[OLD].operators):
            raise ProtocolViolation(NodeKind.MISPLACED, "the old owner's operators end with state")
        for operator in self.workers[NEW].operators:
            if operator.name not in self.shape.stateless:
                self._check_log(operator.name, operator.logs.get(KEY, ()))

    def _check_log(self, name: OperatorId, log: tuple[TracedRow, ...]) -> None:
        wanted = [item for item in self.sent if name in self.shape.path(item)] + [PRIOR] * self.known
        for item in wanted:
            if log.count(item) != 1:
                kind = NodeKind.DOUBLED if log.count(item) else NodeKind.LOST
                raise ProtocolViolation(kind, f"{item} is in the state of {name} {log.count(item)} times at the end")
        for origin in (OLD, NEW):
            for path in self.shape.paths:
                numbers = [item.seq for item in log if item.origin == origin and self.shape.path(item) == path]
                if numbers != sorted(numbers):
                    raise ProtocolViolation(
                        NodeKind.ORDER, f"{name} has applied rows {numbers} of {origin}, which came one way"
                    )


def _other(worker: WorkerId) -> WorkerId:
    return NEW if worker == OLD else OLD


def _fingerprint(thing: object) -> Any:
    match thing:
        case Travelling():
            fields = sorted(vars(thing).items())
            return type(thing).__name__, *((name, frozen(value)) for name, value in fields)
        case _:
            return frozen(thing)


def search_multipath(
    shape: Shape, rows: Mapping[WorkerId, int], *, known: bool = True, habits: Habits | None = None
) -> tuple[int, ProtocolViolation | None]:
    """All ways it can go: how many states there are, and what a checker found first, if anything."""
    begin = MultipathWorld(shape, rows, known, habits or Habits())
    seen, frontier = {begin.state()}, deque([begin])
    while frontier:
        world = frontier.popleft()
        steps = world.possible()
        try:
            if not steps:
                world.check_end()
            for step in steps:
                after = world.after(step)
                state = after.state()
                if state not in seen:
                    seen.add(state)
                    frontier.append(after)
        except ProtocolViolation as violation:
            return len(seen), violation
    return len(seen), None
