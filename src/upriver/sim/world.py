"""A river in one thread: the real coordinator and worker machines, and everything around them played by lots.

Each step does one thing that could happen next: a message arrives, a slice is read, an epoch is published, somebody
looks something up, a process dies or another comes. Messages of one channel arrive in order; nothing else is promised.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import assert_never

import duckdb

from upriver.dataflow.plan import ViewPlan
from upriver.errors import DeclarationError, ProtocolError
from upriver.ids import Incarnation, MapVersion, WorkerId
from upriver.machines.coordinator import (
    AppFailed,
    CoordinatorEvent,
    CoordinatorMachine,
    EpochEnded,
    EpochPublished,
    SnapshotAsked,
    SnapshotFailed,
    SnapshotReady,
    StopAsked,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
)
from upriver.machines.messages import (
    DropSnapshot,
    EpochFinished,
    FromWorker,
    OpenEpoch,
    SnapshotTaken,
    TakeSnapshot,
    ToWorker,
)
from upriver.machines.rules import Rules
from upriver.machines.worker import (
    Answer,
    EpochRead,
    ForgetSnapshot,
    HoldSnapshot,
    ReadEpoch,
    Refuse,
    Report,
    RowsRead,
    Stop,
    WorkerAction,
    WorkerEvent,
    WorkerMachine,
)
from upriver.sim import checkers
from upriver.sim.checkers import require
from upriver.sim.clients import drawn_lookup, drawn_view
from upriver.sim.lake import CUTS_MAX, FakeLake
from upriver.sim.oracle import BuildView, Oracle
from upriver.sim.process import Process
from upriver.sim.tables import TABLES, Crowd
from upriver.sim.watcher import Watcher
from upriver.sim.weather import Weather
from upriver.vnodes import VnodeMap

Move = tuple[float, Callable[[], None]]
"""A thing that can happen next, and its weight."""

VNODES = (1, 4, 16, 64, 256)


class World:
    """Everything that one seed plays out.

    steps: how many things have happened. trace: a line for each, and for each epoch that ended with one.
    """

    def __init__(
        self, lots: Random, workers: int, plans: tuple[ViewPlan, ...], rules: Rules, build_view: BuildView
    ) -> None:
        self.steps = 0
        self.trace: list[str] = []
        self._lots = lots
        self._rules = rules
        self._build_view = build_view
        self._map = drawn_map(lots, workers)
        self._weather = Weather.drawn(lots, self._map.workers)
        self._plans = tuple(sorted(lots.sample(plans, lots.randint(1, len(plans))), key=plans.index))
        self._crowd = Crowd(lots)
        vnodes = len(self._map.owners)
        self._lake = FakeLake(self._plans, vnodes)
        self._oracle = Oracle(self._plans, vnodes, build_view)
        self._coordinator = CoordinatorMachine(self._map, self._plans, rules)
        self.watcher = Watcher(self._plans, self._map.workers, self._lake, self._oracle)
        self._incarnations = count(1)
        self._tickets = count(1)
        self._processes: dict[Incarnation, Process] = {}
        """All that run, or may still be heard of."""
        self._latest: dict[WorkerId, Process] = {}
        """By place: the last process to come, running or not."""

    # Time

    def run(self, steps: int) -> None:
        """Let so many things happen."""
        for _ in range(steps):
            self.step()

    def step(self) -> bool:
        """Let one thing happen; whether there was any that could."""
        moves = [move for move in self._moves() if move[0]]
        if not moves:
            return False
        self.steps += 1
        self._lots.choices([what for _, what in moves], [weight for weight, _ in moves])[0]()
        return True

    def come_to_rest(self, database: duckdb.DuckDBPyConnection) -> None:
        """Let all accidents end and everything under way arrive; then everything must be right."""
        self._weather = self._weather.calmed()
        self._drain()
        self.watcher.came_to_rest([self._latest[worker] for worker in self._map.workers], database)

    def stop(self) -> None:
        """Stop the app while one more process comes; all must go."""
        self._weather = replace(self._weather, start=0.0)
        self._step_coordinator(StopAsked())
        self._start(self._map.workers[0])
        running = list(self._processes.values())
        self._drain()
        self.watcher.retired(running)

    def _drain(self) -> None:
        """Bounded by twice what it takes each process to apply everything in the smallest slices that there can be."""
        slices_max = len(self._lake.edges) * (len(self._map.owners) + CUTS_MAX)
        under_way = sum(len(process.down) + len(process.up) + 1 for process in self._processes.values())
        steps_max = 2 * (under_way + len(self._map.workers) * (self._lake.published + 1) * (slices_max + 3))
        steps = 0
        while self.step():
            steps += 1
            require(checkers.the_river_comes_to_rest, steps, steps_max)

    def _moves(self) -> list[Move]:
        weather = self._weather
        moves: list[Move] = [(weather.publish, self._publish), (weather.scan, self._scan)]
        if any(process.runs for process in self._processes.values()):
            moves.append((weather.lookup, self._look_up))
        for worker in self._map.workers:
            full = worker in self._latest and self._latest[worker].runs
            moves.append((weather.takeover if full else weather.start, partial(self._start, worker)))
        for process in self._processes.values():
            moves += self._moves_of(process)
        return moves

    def _moves_of(self, process: Process) -> list[Move]:
        weather = self._weather
        moves: list[Move] = []
        if process.up:
            moves.append((weather.hear, partial(self._hear, process)))
        if not process.runs:
            return [*moves, (weather.notice, partial(self._notice, process))] if not process.noticed_gone else moves
        pace = weather.pace[self._map.workers.index(process.worker)]
        if process.down:
            moves.append((pace, partial(self._deliver, process)))
        if process.unread:
            moves.append((pace, partial(self._read, process)))
        if process.opened:
            moves.append((weather.repeat, partial(self._repeat, process)))
        return [*moves, (weather.crash, partial(self._crash, process))]

    # What can happen

    def _publish(self) -> None:
        table = self._lots.choice(TABLES)
        rows = self._crowd.rows(table, self._lots.choice(self._weather.sizes))
        epoch = self._lake.publish(table.name, rows)
        self._oracle.publish(epoch, self._lake)
        self._happened("epochs", f"epoch {epoch}: {rows.num_rows} rows of {table.name}")
        self.watcher.counters["rows"] += rows.num_rows
        self._step_coordinator(EpochPublished(epoch=epoch, rows=self._lake.rows(epoch)))

    def _start(self, worker: WorkerId) -> None:
        process = Process(
            worker=worker,
            incarnation=Incarnation(next(self._incarnations)),
            vnodes=self._map.vnodes_of_worker(worker),
            machine=WorkerMachine(self._build_view, self._rules),
            published_at_joining=self._lake.published,
        )
        takes_over = worker in self._latest and self._latest[worker].runs
        self._happened("takeovers" if takes_over else "starts", f"{process} comes")
        self._processes[process.incarnation] = self._latest[worker] = process
        self.watcher.joined(process)
        self._step_coordinator(WorkerRegistered(worker=worker, incarnation=process.incarnation))

    def _crash(self, process: Process) -> None:
        """The process dies; of what it has sent, only a part has left it."""
        self._happened("crashes", f"{process} dies")
        lost = self._lots.randint(0, len(process.up))
        for _ in range(lost):
            process.up.pop()
        process.waiting.clear()
        process.end()

    def _notice(self, process: Process) -> None:
        self._happened("losses_noticed", f"coordinator misses {process}")
        process.noticed_gone = True
        self.watcher.lost(process)
        self._step_coordinator(WorkerGone(incarnation=process.incarnation))
        self._forget(process)

    def _hear(self, process: Process) -> None:
        message = process.up.popleft()
        is_late = not self.watcher.is_current(process)
        self._happened("late_reports" if is_late else "reports", f"coordinator <- {process} {_short(message)}")
        self._step_coordinator(WorkerSaid(incarnation=process.incarnation, message=message))
        self._forget(process)

    def _forget(self, process: Process) -> None:
        if process.noticed_gone and not process.up:
            self._processes.pop(process.incarnation, None)

    def _deliver(self, process: Process) -> None:
        message = process.down.popleft()
        self._happened("messages", f"{process} <- {_short(message)}")
        if isinstance(message, OpenEpoch):
            self.watcher.opened(process, message.epoch)
            process.opened.append(message)
        self._step_worker(process, message)

    def _repeat(self, process: Process) -> None:
        message = self._lots.choice(process.opened)
        self._happened("repeats", f"{process} <- {_short(message)} again")
        self._step_worker(process, message)

    def _read(self, process: Process) -> None:
        event = process.unread.popleft()
        what = f"{len(event.batch)} rows of {event.channel}" if isinstance(event, RowsRead) else "the end"
        self._happened("reads", f"{process} reads {what}, epoch {event.epoch}")
        self._step_worker(process, event)

    def _look_up(self) -> None:
        process = self._lots.choice([process for process in self._processes.values() if process.runs])
        plan = self._lots.choice(self._plans)
        vnode_of = self._oracle.vnode_of[plan.name]
        lookup = drawn_lookup(next(self._tickets), process, plan, vnode_of, self._lake.published, self._lots)
        keys = [tuple(row.values()) for row in lookup.keys.to_pylist()]
        at_least = f" at least {lookup.at_least}" if lookup.at_least else ""
        self._happened("lookups_asked", f"{process} is asked for {lookup.view} {keys}{at_least}")
        self._step_worker(process, lookup)

    def _scan(self) -> None:
        view, ticket = drawn_view(self._plans, self._lots), next(self._tickets)
        self._happened("scans_asked", f"scan {ticket} of {view}")
        self.watcher.scan_asked(ticket)
        self._step_coordinator(SnapshotAsked(ticket=ticket, view=view))

    def _happened(self, what: str, line: str) -> None:
        self.watcher.counters[what] += 1
        self.trace.append(line)

    # The machines

    def _step_worker(self, process: Process, event: WorkerEvent) -> None:
        process.note(event)
        try:
            actions = process.machine.step(event)
        except Exception as error:
            if not (process.torn and isinstance(event, EpochRead) and isinstance(error, ProtocolError)):
                raise checkers.machines_do_not_fail(error) from error
            self._happened("torn_reads_noticed", f"{process} notices: {error}")
            self._crash(process)
            return
        for action in actions:
            self._carry_out(process, action)

    def _carry_out(self, process: Process, action: WorkerAction) -> None:
        match action:
            case ReadEpoch():
                self.watcher.reads(process, action.epoch)
                tear = self._lots.random() < self._weather.torn
                process.start_reading(action, self._lake, tear, self._lots)
            case Report():
                if isinstance(action.message, EpochFinished):
                    self.watcher.finished(process, action.message)
                process.up.append(action.message)
            case Answer():
                self.watcher.answered(process, action)
            case Refuse():
                self.watcher.refused(process, action)
            case HoldSnapshot():
                process.held[action.snapshot] = action.rows
                self.watcher.holds(process, action)
            case ForgetSnapshot():
                process.held.pop(action.snapshot, None)
            case Stop():
                require(checkers.nobody_is_left_waiting, process.waiting)
                process.end()
            case _:
                assert_never(action)

    def _step_coordinator(self, event: CoordinatorEvent) -> None:
        try:
            actions = self._coordinator.step(event)
        except Exception as error:
            raise checkers.machines_do_not_fail(error) from error
        for action in actions:
            match action:
                case Tell():
                    self._tell(action)
                case EpochEnded():
                    self.trace.append(f"  epoch {action.epoch} ends")
                    self.watcher.ended(action.epoch)
                case SnapshotReady():
                    self.watcher.snapshot_ready(action)
                case SnapshotFailed():
                    self.watcher.snapshot_failed(action)
                case AppFailed():
                    require(checkers.the_app_does_not_fail, action.kind, action.error)
                case _:
                    assert_never(action)

    def _tell(self, action: Tell) -> None:
        """A message to a process that is gone is lost."""
        process = self._processes.get(action.incarnation)
        if isinstance(action.message, TakeSnapshot | DropSnapshot):
            self.watcher.told(action.message)
        if process is not None and process.runs:
            process.down.append(action.message)


def drawn_map(lots: Random, workers: int) -> VnodeMap:
    """Ranges of vnodes as at the start of an app, or any vnodes as after rescales.

    Raises DeclarationError for no workers, and for more than there can be vnodes.
    """
    if not 1 <= workers <= VNODES[-1]:
        raise DeclarationError(f"a simulated river has 1 to {VNODES[-1]} workers, not {workers}")
    vnodes = lots.choice([vnodes for vnodes in VNODES if vnodes >= workers])
    everyone = [WorkerId(worker) for worker in range(workers)]
    if lots.random() < 0.5:
        return VnodeMap.initial(vnodes, everyone)
    owners = everyone + lots.choices(everyone, k=vnodes - workers)
    lots.shuffle(owners)
    return VnodeMap(MapVersion(0), tuple(owners))


def _short(message: ToWorker | FromWorker) -> str:
    """A message in a few words."""
    name = type(message).__name__
    match message:
        case OpenEpoch() | EpochFinished():
            return f"{name} {message.epoch}"
        case TakeSnapshot():
            return f"{name} {message.snapshot} of {message.view} at {message.at}"
        case SnapshotTaken() | DropSnapshot():
            return f"{name} {message.snapshot}"
    return name
