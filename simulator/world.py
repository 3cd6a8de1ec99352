"""A river in one thread: the real coordinator and worker machines, and everything around them played by lots.

Each step does one thing that could happen next: a message arrives, a slice is read, an epoch is published, somebody
looks something up or wants a rescale, keys move, a process dies or another comes. Messages of one channel arrive in
order; nothing else is promised.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

import duckdb

from simulator import checkers
from simulator.bad_rows import BadRows
from simulator.bounds import steps_to_rest
from simulator.checkers import require
from simulator.chores import drawn_chore
from simulator.clients import drawn_rescale
from simulator.drawing import apart_of, drawn_budget, drawn_map, drawn_partial, drawn_plans, drawn_views
from simulator.network import SimulatedLine
from simulator.process import Process
from simulator.repertoire import Repertoire
from simulator.river import SimulatedCluster
from simulator.standbys import standbys_are_right
from simulator.storing import commit, store
from simulator.tables import TABLES
from simulator.telling import read_in_words, short
from simulator.users import Users
from simulator.weather import Weather
from upriver.coordinator.cluster import EPOCHS_AHEAD_MAX
from upriver.ids import Epoch, Incarnation, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    AbortWanted,
    CheckpointWanted,
    LeaversOverdue,
    PlansWanted,
    RescaleWanted,
    StopAsked,
)
from upriver.protocol.messages import OpenEpoch
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
    PeerSaid,
    RowsFetched,
    TimeToMove,
)
from upriver.worker.regions import BuildRegion

Move = tuple[float, Callable[[], None]]
"""A thing that can happen next, and its weight."""
CHANGES_WAITING_MAX = 2  # of the views
RESCALES_WAITING_MAX = 3  # users wish for no more meanwhile
FAIR_STEPS_MAX = 200  # in which rescales can end while epochs are published
FAILING_SHARE = 0.25  # of the rivers: some views fail
PARTIAL_SHARE = 0.5  # of the rivers that may have partial views, and of their views
CHECKPOINTS_SHARE, STANDBYS_SHARE, PILED_UP_SHARE = 0.4, 0.4, 0.15  # of the rivers
ANSWER_ROWS = (1, 5, 1_000)  # rows of an upquery's answer that are taken in with it: one of these
SETTLE = 4.0  # how much faster than it hears a process settles
EVICT_WANTED = 0.5  # how fast keys are evicted that somebody wants forgotten
BURST_MAX = 4  # envelopes that arrive from one peer at a time


class World:
    """Everything that one seed plays out. steps: how many things have happened."""

    def __init__(
        self,
        lots: Random,
        workers: int,
        plans: tuple[DataflowPlan, ...],
        rules: Rules,
        build_region: BuildRegion,
        weather: Weather | None = None,
        partial_share: float = PARTIAL_SHARE,
        faults: Collection[str] | None = None,
        standbys_share: float = STANDBYS_SHARE,
        failing_share: float = FAILING_SHARE,
    ) -> None:
        """weather: drawn too, unless it is given; faults: the kinds that happen, if not drawn. partial_share: how
        likely views that can be partial are. standbys_share: how likely workers follow each other. failing_share: how
        likely some views can fail."""
        self.steps = 0
        self._lots = lots
        vnode_map = drawn_map(lots, workers)
        self._vnodes = len(vnode_map.owners)
        self._weather = weather or Weather.drawn(lots, vnode_map.workers)
        self._plans = drawn_plans(lots, plans)
        self._evict = 0.0
        """How fast keys of partial views are evicted."""
        apart = apart_of(lots)
        if apart.random() < partial_share:
            self._plans, self._evict = drawn_partial(apart, self._plans, partial_share), apart.choice((0.0, 0.1, 0.5))
        if weather is None and apart.random() < CHECKPOINTS_SHARE:
            self._weather = self._weather.with_checkpoints(apart)
        if weather is None and apart.random() < standbys_share:
            self._weather = self._weather.with_standbys(apart)
        if weather is None and apart.random() < PILED_UP_SHARE:
            self._weather = self._weather.with_epochs_that_pile_up(apart)
        fails = apart.random() < failing_share
        bad_rows = BadRows.drawn(apart, self._plans) if fails else BadRows()
        if faults is not None:
            self._weather = self._weather.with_faults(faults)
        kept = drawn_views(lots, self._plans) if self._weather.replan else self._plans
        views, takes_checkpoints = Repertoire(self._plans, kept), self._weather.checkpoint > 0
        membership = self._weather.membership
        budget = drawn_budget(lots, self._plans)
        self.river = SimulatedCluster(
            lots, vnode_map, views, rules, build_region, takes_checkpoints, membership, budget, bad_rows
        )
        self.river.torn = self._weather.torn
        self.river.rotten = self._weather.spoil
        self._reads_ahead = (
            EPOCHS_AHEAD_MAX if rules.upqueries.partial_read_ahead else 0
        )  # partial.read_ahead is a rule for the shell
        self._tickets = count(1)
        self.users = Users(lots, self.river, self._plans, self._tickets, self._happened)
        self._declared: deque[PlansWanted] = deque()
        """Wishes for other views, on their way to the coordinator."""

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
        """Let all accidents end, then everything under way arrive; then everything must be right."""
        self._weather = self._weather.fair()
        self.river.torn = self.river.rotten = 0.0
        fair_steps = 0
        while self.river.wishes.waiting and fair_steps < FAIR_STEPS_MAX:
            self.step()
            fair_steps += 1
        self._weather, self._evict = self._weather.calmed(), 0.0
        self._drain()
        require(checkers.nobody_is_left_waiting, self.river.wishes.waiting)
        for plan in self._plans:
            if plan.full_because is None:
                self.users.look_everything_up(plan)
        self._drain()
        river, kept = self.river, list(self.river.repertoire.kept.values())
        failed = river.coordinator.cluster.failed
        river.watcher.came_to_rest(river.running, river.maps(), failed, database)
        wanted = self._weather.standbys
        standbys_are_right(river.running, kept, failed, river.oracle, river.lake.published, wanted)

    def stop(self) -> None:
        """Stop the app while one more process comes; all must go."""
        self._weather = replace(self._weather, start=0.0)
        places = self.river.wishes.places
        self.river.step_coordinator(StopAsked())
        self._start(places[0])
        running = self.river.running
        self._drain()
        self.river.watcher.retired(running)

    def _drain(self) -> None:
        steps_max = steps_to_rest(self.river, self._plans, self._vnodes, len(self._declared))
        steps = 0
        while self.step():
            steps += 1
            require(checkers.the_river_comes_to_rest, steps, steps_max)

    def _moves(self) -> list[Move]:
        weather, river = self._weather, self.river
        moves: list[Move] = [(weather.publish, self._publish), (weather.scan, self.users.scan)]
        if weather.lookup and river.running:
            moves += [(weather.lookup, self.users.look_up), (weather.give_up, self.users.give_up)]
        if len(self._declared) + len(river.repertoire.waiting) < CHANGES_WAITING_MAX:
            moves.append((weather.replan, self._declare))
        moves.append((self._evict / 5, self.users.evict_at_will))
        moves.append((weather.checkpoint, self._checkpoint))
        if river.checkpoints.waiting:
            moves.append((weather.store, self._commit))
        if river.leases:
            moves.append((weather.lease, self._end_lease))
        if river.wishes.waiting:
            moves.append((weather.overdue, self._lose_patience))
        if self._declared:
            moves.append((weather.hear, self._replan))
        if len(river.wishes.waiting) < RESCALES_WAITING_MAX:
            moves.append((weather.rescale, self._rescale))
        if river.wishes.waiting:
            moves.append((weather.abort, self._abort))
        for worker in river.wishes.places:
            latest = river.latest.get(worker)
            full = latest is not None and latest.runs and river.watcher.is_current(latest)
            moves.append((weather.takeover if full else weather.start, partial(self._start, worker)))
        for process in river.processes.values():
            moves += self._moves_of(process)
        moves += [(weather.cut, self._cut), (weather.driver, self._begin_again)]
        moves += [(weather.dial, partial(self._open, pair)) for pair in river.network.dialling]
        moves += [(weather.carry, partial(self._carry, line)) for line in river.network.busy]
        return moves

    def _moves_of(self, process: Process) -> list[Move]:
        weather = self._weather
        moves: list[Move] = []
        if process.up:
            moves.append((weather.hear, partial(self._hear, process)))
        if not process.runs:
            return [*moves, (weather.notice, partial(self._notice, process))] if not process.noticed_gone else moves
        pace = weather.pace_of(process.worker)
        if process.down:
            moves.append((pace, partial(self._deliver, process)))
        if process.inbox:
            moves.append((pace, partial(self._take, process)))
        if process.unread:
            moves.append((pace * weather.read, partial(self._read, process)))
        if process.opened:
            moves.append((weather.repeat, partial(self._repeat, process)))
        moves += [(pace, partial(self._answer, process))] if process.upqueries else []
        if process.shares:
            evict = max(self._evict, EVICT_WANTED) if process.machine.must_evict else self._evict
            moves.append((evict, partial(self._spend, process, "evictions")))
        if process.machine.unsettled:
            moves.append((SETTLE * pace, partial(self._spend, process, "settlings")))
        if process.machine.unfilled:
            moves.append((pace, partial(self._spend, process, "answers taken in")))
        if process.machine.unread:
            moves.append((pace, partial(self._spend, process, "long answers")))
        if process.machine.can_fill:
            moves.append((pace, partial(self._spend, process, "fills")))
        if process.machine.can_move:
            moves.append((weather.move, partial(self._move, process)))
        if process.machine.can_feed:
            moves.append((weather.feed, partial(self._spend, process, "feeds")))
        if process.machine.can_copy:
            moves.append((weather.copy, partial(self._spend, process, "copies")))
        if process.writing.queue:
            moves.append((weather.store, partial(self._store, process)))
        at_risk = self.river.wishes.is_on and not process.alone
        crash = max(weather.crash, weather.crash_moving) if at_risk else weather.crash
        return [*moves, (crash, partial(self._crash, process))]

    # What can happen

    def _publish(self) -> None:
        table = self._lots.choice(TABLES)
        rows = self._lots.choice(self._weather.sizes)
        self._happened("epochs", f"epoch {self.river.lake.published + 1}: {rows} rows of {table.name}")
        self.river.publish(table, rows)

    def _start(self, worker: WorkerId) -> None:
        latest = self.river.latest.get(worker)
        takes_over = latest is not None and latest.runs
        self._happened("takeovers" if takes_over else "starts", f"another process comes to place {worker}")
        self.river.start(worker)

    def _crash(self, process: Process) -> None:
        self._happened("crashes", f"{process} dies")
        self.river.crash(process)

    def _notice(self, process: Process) -> None:
        self._happened("losses_noticed", f"coordinator misses {process}")
        self.river.miss(process)

    def _end_lease(self) -> None:
        self._happened("leases", f"the lease of #{self.river.leases[0]} has run out")
        self.river.lease_over()

    def _lose_patience(self) -> None:
        ticket = self._lots.choice(list(self.river.wishes.waiting))
        self._happened("overdue", f"who leaves by rescale {ticket} is not waited for any more")
        self.river.step_coordinator(LeaversOverdue(ticket=ticket))

    def _hear(self, process: Process) -> None:
        is_late = not self.river.watcher.is_current(process)
        line = f"coordinator <- {process} {short(process.up[0])}"
        self._happened("late_reports" if is_late else "reports", line)
        self.river.hear(process)

    def _deliver(self, process: Process) -> None:
        message = process.down.popleft()
        self._happened("messages", f"{process} <- {short(message)}")
        if isinstance(message, OpenEpoch):
            self.river.watcher.opened(process, message.epoch)
        self.river.step_worker(process, message)

    def _take(self, process: Process) -> None:
        name = type(event := process.inbox.popleft()).__name__
        self._happened(name, f"{process}: {name}")
        self.river.step_worker(process, event)

    def _repeat(self, process: Process) -> None:
        message = self._lots.choice(process.opened)
        self._happened("repeats", f"{process} <- {short(message)} again")
        self.river.step_worker(process, message)

    def _read(self, process: Process) -> None:
        event = process.unread.popleft()
        self._happened("reads", f"{process} reads {read_in_words(event)}")
        self.river.step_worker(process, event)

    def _open(self, pair: tuple[Incarnation, Incarnation]) -> None:
        self._happened("channels", f"#{pair[0]} reaches #{pair[1]}, or not")
        self.river.network.open(pair)

    def _cut(self) -> None:
        for one, other in self.river.cut():
            self._happened("cuts", f"the channel between {one} and {other} breaks")

    def _begin_again(self) -> None:
        self._happened("drivers", "the driver dies, and another one comes")
        self._declared.clear()
        self.river.begin_again()

    def _carry(self, line: SimulatedLine) -> None:
        """Some of what is on its way over one line arrives."""
        for _ in range(self._lots.randint(1, BURST_MAX)):
            if not (line.said and line.receiver.runs):
                return
            envelope = self.river.network.next_of(line)
            self._happened("peer_messages", f"{line.receiver} <- {line.sender} {short(envelope)}")
            if envelope is not None:
                event = PeerSaid(sender=line.sender.worker, envelope=envelope)
                self.river.step_worker(line.receiver, event)

    def _move(self, process: Process) -> None:
        assert process.meet is not None
        keys_max = process.meet.keys_max or self._lots.randint(1, self._weather.keys_max)
        self._happened("moves", f"{process} has time to move {keys_max} keys")
        self.river.step_worker(process, TimeToMove(keys_max=keys_max))

    def _spend(self, process: Process, chore: str) -> None:
        event = drawn_chore(chore, self._lots)
        self._happened(chore, f"{process} has {event}")
        self.river.step_worker(process, event)

    # Checkpoints

    def _checkpoint(self) -> None:
        wish = CheckpointWanted(ticket=next(self._tickets))
        self._happened("checkpoints_wanted", f"checkpoint {wish.ticket} is wanted")
        self.river.wants(wish)

    def _store(self, process: Process) -> None:
        spoilt = self._lots.random() < self._weather.spoil
        self._happened("stores", f"{process} writes {short(process.writing.queue[0])}, {spoilt=}")
        store(self.river, process, spoilt)

    def _commit(self) -> None:
        spoilt = self._lots.random() < self._weather.spoil
        self._happened("commits", f"checkpoint of {self.river.checkpoints.waiting[0].epoch} is published, {spoilt=}")
        commit(self.river, spoilt)

    # What users want

    def _answer(self, process: Process) -> None:
        event = process.next_answer(self.river.lake, self._reads_ahead, self._lots.choice(ANSWER_ROWS))
        what = event.view if isinstance(event, RowsFetched) else f"upquery {event.number} of {event.region}"
        self._happened("answers", f"{process}: {what} has its rows")
        self.river.step_worker(process, event)

    def _declare(self) -> None:
        """Somebody wants a view more, or one less: Spark makes the indexes, while all goes on."""
        river = self.river
        last = [*river.repertoire.waiting.values(), *self._declared]
        names = {plan.name for plan in (last[-1].plans if last else river.repertoire.kept.values())}
        names ^= {self._lots.choice(self._plans).name}
        plans = tuple(plan for plan in self._plans if plan.name in names)
        river.lake.keep(plans)
        epochs = tuple(river.lake.rows(Epoch(epoch)) for epoch in range(1, river.lake.published + 1))
        wish = PlansWanted(ticket=next(self._tickets), plans=plans, epochs=epochs)
        self._declared.append(wish)
        self._happened("views_declared", f"views {wish.ticket} are wanted: {sorted(names)}")

    def _replan(self) -> None:
        wish = self._declared.popleft()
        self._happened("views_wanted", f"coordinator hears of views {wish.ticket}")
        self.river.repertoire.wanted(wish)
        self.river.step_coordinator(wish)

    def _rescale(self) -> None:
        places, strategies = self.river.watcher.places, self._weather.strategies
        self.want(drawn_rescale(next(self._tickets), places, self._vnodes, strategies, self._lots))

    def want(self, wish: RescaleWanted) -> None:
        """Somebody wants a rescale."""
        what = f"{wish.workers} workers" if wish.moves is None else f"moves {dict(sorted(wish.moves.items()))}"
        self._happened("rescales_asked", f"rescale {wish.ticket} to {what} by {wish.strategy}")
        self.river.wishes.wished(wish)
        self.river.step_coordinator(wish)

    def _abort(self) -> None:
        self.abort(self._lots.choice(list(self.river.wishes.waiting)))

    def abort(self, ticket: int) -> None:
        """Somebody wants a rescale no more."""
        self._happened("aborts_asked", f"abort {ticket}")
        wish = AbortWanted(ticket=ticket)
        self.river.wishes.wished(wish)
        self.river.step_coordinator(wish)

    def _happened(self, what: str, line: str) -> None:
        self.river.watcher.counters[what] += 1
        self.river.trace.append(line)
