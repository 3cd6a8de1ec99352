"""A cluster in one thread: the real coordinator and worker machines, and everything around them drawn at random.

Each step does one thing that could happen next: a message arrives, a slice is read, an epoch is published, a client
looks something up or wants a rescale, keys move, a process dies or another comes. Messages of one channel arrive in
order; nothing else is promised.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from types import MappingProxyType

import duckdb

from simulator import checkers
from simulator.background_work import drawn_work
from simulator.bad_rows import BadRows
from simulator.bounds import STEPS_TO_REST_MAX, steps_to_rest
from simulator.checkers import require
from simulator.checkpoint_store import commit, store
from simulator.clients import drawn_rescale, drawn_workers
from simulator.cluster import SimulatedCluster
from simulator.drawing import (
    apart_of,
    drawn_budget,
    drawn_logged,
    drawn_map,
    drawn_partial,
    drawn_plans,
    drawn_views,
    may_change,
)
from simulator.event_weights import EventWeights
from simulator.network import SimulatedLine
from simulator.process import Process, SharePart
from simulator.scenarios import ClusterScenario
from simulator.standbys import standbys_are_right
from simulator.tables import NO_RETENTION, TABLES
from simulator.trace_text import read_in_words, short
from simulator.users import Users
from simulator.view_observer import ViewObserver
from upriver.coordinator.coordinator import FAULTS_MAX
from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.ids import FlowId, Incarnation, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.plan.retention import Retain
from upriver.protocol.coordinator_events import (
    AbortWanted,
    ChangesPublished,
    ChangesUnpublished,
    CheckpointWanted,
    DrainOverdue,
    LeaversOverdue,
    PlansWanted,
    RescaleWanted,
    StopAsked,
)
from upriver.protocol.messages import ForShare
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
    ChangesNotStored,
    ChangesStored,
    PeerSaid,
    RowsFetched,
    ShareHears,
    TimeToMove,
)
from upriver.worker.regions import BuildRegion

Move = tuple[float, Callable[[], None]]
"""A thing that can happen next, and its weight."""
CHANGES_WAITING_MAX = 2  # of the views
RESCALES_WAITING_MAX = 3  # users wish for no more meanwhile
FAIR_STEPS_MAX = 200  # in which rescales can end while epochs are published
CHECKPOINTS_SHARE, PILED_UP_SHARE = 0.4, 0.15  # of the clusters
COMPACTED_SHARE = 0.4  # of the clusters without bad rows
ANSWER_ROWS = (1, 5, 1_000)  # rows of an upquery's answer that are taken in with it: one of these
OVERTAKE = 0.3  # how often reads take long, as a share of those that end
SETTLE = 4.0  # how much faster than it hears a process settles
EVICT_WANTED = 0.5  # how fast keys are evicted once a user has asked for it
BURST_MAX = 4  # envelopes that arrive from one peer at a time


class World:
    """Everything that one seed plays out. steps: how many things have happened."""

    def __init__(
        self,
        rng: Random,
        scenario: ClusterScenario,
        plans: tuple[DataflowPlan, ...],
        rules: Rules,
        build_region: BuildRegion,
        retains: Mapping[str, Retain] = NO_RETENTION,
        steps_to_rest_max: int = STEPS_TO_REST_MAX,
        later: Mapping[str, DataflowPlan] = MappingProxyType({}),
    ) -> None:
        """plans: of the scenario's views; the world draws some of them. retains: by table, how rows leave; the plans
        must know. steps_to_rest_max: after which a cluster will never rest. later: as of :class:`ViewObserver`."""
        self.steps, self._steps_to_rest_max = 0, steps_to_rest_max
        self._rng = rng
        fixed = scenario.weights is not None
        if scenario.weights is not None:
            drawn = EventWeights.drawn(rng, [WorkerId(worker) for worker in range(scenario.workers)])
            self._weights = replace(drawn.calmed(), **scenario.weights)
        vnode_map = drawn_map(rng, scenario.workers)
        self._vnodes = len(vnode_map.owners)
        if not fixed:
            self._weights = EventWeights.drawn(rng, vnode_map.workers)
        self._plans = drawn_plans(rng, plans)
        self._evict = 0.0
        """How fast keys of partial views are evicted."""
        apart = apart_of(rng)
        share = scenario.partial_share
        if apart.random() < share:
            self._plans, self._evict = drawn_partial(apart, self._plans, share), apart.choice((0.0, 0.1, 0.5))
        if not fixed and apart.random() < CHECKPOINTS_SHARE:
            self._weights = self._weights.with_checkpoints(apart)
        if not fixed and apart.random() < scenario.standbys_share:
            self._weights = self._weights.with_standbys(apart)
        if not fixed and apart.random() < PILED_UP_SHARE:
            self._weights = self._weights.with_epochs_that_pile_up(apart)
        self._plans = drawn_logged(apart, self._plans, scenario.logged_share)
        fails = apart.random() < scenario.failing_share
        bad_rows = BadRows.drawn(apart, self._plans, scenario.deadly_share) if fails else BadRows()
        if scenario.faults is not None:
            self._weights = self._weights.with_faults(scenario.faults)
        kept = drawn_views(rng, self._plans) if self._weights.replan else self._plans
        views, checkpoints = ViewObserver(self._plans, kept, later), self._weights.checkpoint > 0
        membership, outgrown = self._weights.membership, self._weights.outgrown
        budget = drawn_budget(rng, self._plans)
        if not fixed and not fails and (apart.random() < COMPACTED_SHARE or retains):
            self._weights = self._weights.with_compaction(apart)
        self.cluster = SimulatedCluster(
            rng, vnode_map, views, rules, build_region, checkpoints, membership, budget, bad_rows, retains, outgrown
        )
        self.cluster.torn = self._weights.torn
        self.cluster.spoil = self._weights.spoil
        self.cluster.free_slots = self._weights.free_slots
        self._reads_ahead = (
            EPOCHS_AHEAD_MAX if rules.upqueries.partial_read_ahead else 0
        )  # partial.read_ahead is a rule for the shell
        self._tickets = count(1)
        self.users = Users(rng, self.cluster, self._plans, self._tickets, self._happened)
        self.unscheduled: FlowId | None = None
        """The flow whose reads of the lake are never answered."""
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
        self._rng.choices([what for _, what in moves], [weight for weight, _ in moves])[0]()
        require(checkers.files_stay_for_their_readers, self.cluster.lake.missed)
        return True

    def come_to_rest(self, database: duckdb.DuckDBPyConnection) -> None:
        """Let all accidents end, then everything under way arrive; then everything must be right."""
        self._weights = self._weights.fair()
        self.cluster.torn = self.cluster.spoil = 0.0
        fair_steps = 0
        while self.cluster.rescale_observer.waiting and fair_steps < FAIR_STEPS_MAX:
            self.step()
            fair_steps += 1
        self.calm_down()
        require(checkers.nobody_is_left_waiting, self.cluster.rescale_observer.waiting)
        for plan in self._plans:
            if plan.full_because is None:
                self.users.look_everything_up(plan)
        self._drain()
        cluster, kept = self.cluster, list(self.cluster.view_observer.kept.values())
        failed = cluster.coordinator.cluster.failed
        cluster.watcher.came_to_rest(cluster.running, cluster.maps(), failed, database)
        cluster.change_log.came_to_rest([plan for plan in kept if plan.name not in failed], cluster.lake.published)
        wanted = self._weights.standbys
        standbys_are_right(
            cluster.running, cluster.view_observer.flows, failed, cluster.oracle, cluster.lake.published, wanted
        )

    def calm_down(self) -> None:
        """Let nothing new happen, and everything under way arrive."""
        self._weights, self._evict = self._weights.calmed(), 0.0
        self._drain()

    def stop(self) -> None:
        """Stop the app while one more process comes; all must go."""
        self._weights = replace(self._weights, start=0.0)
        places = self.cluster.rescale_observer.places
        self.cluster.step_coordinator(StopAsked())
        self._start(places[0])
        running = self.cluster.running
        self._drain()
        self.cluster.watcher.retired(running)

    def _drain(self) -> None:
        worst = steps_to_rest(self.cluster, self._plans, self._vnodes, len(self._declared))
        steps_max = min(worst, self._steps_to_rest_max)
        steps = 0
        while self.step():
            steps += 1
            require(checkers.the_river_comes_to_rest, steps, steps_max)

    def _moves(self) -> list[Move]:
        weights, cluster = self._weights, self.cluster
        moves: list[Move] = [(weights.publish, self._publish), (weights.scan, self.users.scan)]
        if weights.lookup and cluster.running:
            moves += [(weights.lookup, self.users.look_up), (weights.give_up, self.users.give_up)]
        if len(self._declared) + len(cluster.view_observer.waiting) < CHANGES_WAITING_MAX:
            moves.append((weights.replan, self._declare))
        moves.append((self._evict / 5, self.users.evict_at_will))
        moves.append((weights.checkpoint, self._checkpoint))
        if cluster.checkpoints.waiting:
            moves.append((weights.store, self._commit))
        if cluster.change_log.waiting:
            moves.append((weights.store, self._commit_changes))
        if cluster.control.waiting:
            moves.append((weights.record, self._record))
        if not self._declared:  # the lake's epochs are read for a wish under the lock under which segments are made
            moves += [(weights.compact, self._compact), (weights.compact / 2, self._collect)]
            if cluster.lake.gives_up_rows:
                moves.append((weights.compact / 2, self._rewrite))
        if cluster.segments:
            moves.append((weights.compact / 8, self._hear_of_segment))
        if cluster.leases:
            moves.append((weights.lease, self._end_lease))
        if cluster.rescale_observer.waiting:
            moves.append((weights.overdue, self._lose_patience))
        if cluster.rescale_observer.drains is not None:
            moves.append((weights.overdue, self._drain_no_more))
        if self._declared:
            moves.append((weights.hear, self._replan))
        if len(cluster.rescale_observer.waiting) < RESCALES_WAITING_MAX:
            moves.append((weights.rescale, self._rescale))
        if cluster.rescale_observer.waiting:
            moves.append((weights.abort, self._abort))
        for worker in cluster.rescale_observer.places:
            latest = cluster.latest.get(worker)
            full = latest is not None and latest.runs and cluster.watcher.is_current(latest)
            moves.append((weights.takeover if full else weights.start, partial(self._start, worker)))
        for process in cluster.processes.values():
            moves += self._moves_of(process)
        if cluster.postponed is not None:
            moves.append((weights.dial, self._meet_again))
        if cluster.links_broken is not None:
            moves.append((weights.lease, self._links_overdue))
        if cluster.network.severed:
            moves.append((weights.mend, self._mend))
        if weights.mend or not cluster.network.severed:
            moves.append((weights.sever, self._sever))
        moves += [(weights.cut, self._cut), (weights.driver, self._begin_again)]
        moves += [(weights.dial, partial(self._open, pair)) for pair in cluster.network.dialling]
        moves += [(weights.carry, partial(self._carry, line)) for line in cluster.network.busy]
        return moves

    def _moves_of(self, process: Process) -> list[Move]:
        weights = self._weights
        moves: list[Move] = []
        if process.up:
            moves.append((weights.hear, partial(self._hear, process)))
        if process.heard:
            moves.append((weights.echo, partial(self._hear_again, process)))
        if process.serves and self.cluster.watcher.counters["nonsense"] < FAULTS_MAX:
            moves.append((weights.nonsense, partial(self._hear_nonsense, process)))
        if not process.runs:
            return [*moves, (weights.notice, partial(self._notice, process))] if not process.noticed_gone else moves
        pace = weights.pace_of(process.worker)
        if process.down:
            moves.append((pace, partial(self._deliver, process)))
        if process.inbox:
            moves.append((pace, partial(self._take, process)))
        for part in process.parts.values():
            moves += self._moves_of_part(process, part)
        if process.parts.keys() - process.calls:
            moves.append((weights.call, partial(self._call, process)))
        if process.calls:
            moves.append((weights.call_returns, partial(self._return, process)))
        if process.later:
            moves.append((pace, partial(self._take_held, process)))
        if process.late:
            moves.append((pace, partial(self._hear_late, process)))
        if process.parts:
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
            moves.append((weights.move, partial(self._move, process)))
        if process.machine.can_feed:
            moves.append((weights.feed, partial(self._spend, process, "feeds")))
        if process.machine.can_copy:
            moves.append((weights.copy, partial(self._spend, process, "copies")))
        at_risk = self.cluster.rescale_observer.is_on and not process.alone
        crash = max(weights.crash, weights.crash_moving) if at_risk else weights.crash
        return [*moves, (crash, partial(self._crash, process))]

    def _moves_of_part(self, process: Process, part: SharePart) -> list[Move]:
        """Of one flow's share at a process."""
        weights = self._weights
        moves: list[Move] = []
        pace = weights.pace_of(process.worker)
        if part.unread and part.flow != self.unscheduled and not process.holds(part.flow):
            moves.append((pace * weights.read, partial(self._read, process, part)))
        if part.opened:
            moves.append((weights.repeat / len(process.parts), partial(self._repeat, process, part)))
        if part.upqueries:
            moves.append((pace, partial(self._answer, process, part)))
            moves.append((OVERTAKE * pace, partial(self._overtake, process, part)))
        if part.writing.queue:
            moves.append((weights.store, partial(self._store, process, part)))
        if part.changes:
            moves.append((weights.store, partial(self._store_changes, process, part)))
        return moves

    # What can happen

    def _publish(self) -> None:
        table = self._rng.choice(TABLES)
        rows = self._rng.choice(self._weights.sizes)
        self._happened("epochs", f"epoch {self.cluster.lake.published + 1}: {rows} rows of {table.name}")
        self.cluster.publish(table, rows)

    def _start(self, worker: WorkerId) -> None:
        latest = self.cluster.latest.get(worker)
        takes_over = latest is not None and latest.runs
        self._happened("takeovers" if takes_over else "starts", f"another process comes to place {worker}")
        self.cluster.start(worker)

    def _crash(self, process: Process) -> None:
        self._happened("crashes", f"{process} dies")
        self.cluster.crash(process)

    def _notice(self, process: Process) -> None:
        self._happened("losses_noticed", f"coordinator misses {process}")
        self.cluster.miss(process)

    def _end_lease(self) -> None:
        self._happened("leases", f"the lease of #{self.cluster.leases[0]} has run out")
        self.cluster.lease_over()

    def _lose_patience(self) -> None:
        ticket = self._rng.choice(list(self.cluster.rescale_observer.waiting))
        self._happened("overdue", f"leavers of rescale {ticket} are not waited for any more")
        self.cluster.step_coordinator(LeaversOverdue(ticket=ticket))

    def _drain_no_more(self) -> None:
        ticket, self.cluster.rescale_observer.drains = self.cluster.rescale_observer.drains, None
        assert ticket is not None
        self._happened("drains_overdue", f"open epochs are not waited for any more by rescale {ticket}")
        self.cluster.step_coordinator(DrainOverdue(ticket=ticket))

    def _hear(self, process: Process) -> None:
        is_late = not self.cluster.watcher.is_current(process)
        line = f"coordinator <- {process} {short(process.up[0])}"
        self._happened("late_reports" if is_late else "reports", line)
        self.cluster.hear(process)

    def _hear_again(self, process: Process) -> None:
        message = self.cluster.hear_again(process)
        self._happened("echoes", f"coordinator <- {process} {short(message)} again")

    def _hear_nonsense(self, process: Process) -> None:
        message = self.cluster.hear_nonsense(process)
        self._happened("nonsense", f"coordinator <- {process} {short(message)}, which cannot be")

    def _deliver(self, process: Process) -> None:
        message = process.down.popleft()
        self._happened("messages", f"{process} <- {short(message)}")
        self.cluster.step_worker(process, message)

    def _take(self, process: Process) -> None:
        name = type(event := process.inbox.popleft()).__name__
        self._happened(name, f"{process}: {name}")
        self.cluster.step_worker(process, event)

    def _call(self, process: Process) -> None:
        flow = self._rng.choice(sorted(process.parts.keys() - process.calls))
        self._happened("calls", f"{process}: flow {flow} calls a function")
        process.call(flow)

    def _return(self, process: Process) -> None:
        flow = self._rng.choice(sorted(process.calls))
        self._happened("returns", f"{process}: the function that flow {flow} has called returns")
        process.called(flow)
        for lookup in process.later.lookups():
            self.cluster.step_worker(process, lookup)

    def _take_held(self, process: Process) -> None:
        event = self.cluster.step_held(process)
        self._happened("held" if event is not None else "still_held", f"{process} takes {event} that was held")

    def _repeat(self, process: Process, part: SharePart) -> None:
        message = self._rng.choice(part.opened)
        self._happened("repeats", f"{process} <- {short(message)} of flow {part.flow} again")
        self.cluster.step_worker(process, ForShare(flow=part.flow, message=message))

    def _read(self, process: Process, part: SharePart) -> None:
        event = part.unread.popleft()
        self._happened("reads", f"{process} reads {read_in_words(event)} for flow {part.flow}")
        self.cluster.work(process, ShareHears(flow=part.flow, event=event))

    def _hear_late(self, process: Process) -> None:
        event = self.cluster.hear_late(process)
        self._happened("late_at_workers", f"{process} hears too late: {type(event).__name__}")

    def _open(self, pair: tuple[Incarnation, Incarnation]) -> None:
        self._happened("channels", f"#{pair[0]} reaches #{pair[1]}, or not")
        self.cluster.network.open(pair)

    def _sever(self) -> None:
        one_way = self._rng.random() < 0.5
        for one, other in self.cluster.sever(one_way=one_way):
            self._happened("links_broken", f"the link between {one} and {other} breaks{', one way' * one_way}")

    def _mend(self) -> None:
        self._happened("links_mended", "all links are whole again")
        self.cluster.network.mend()

    def _meet_again(self) -> None:
        self._happened("meetings_due", "workers may meet again")
        self.cluster.meet_again()

    def _links_overdue(self) -> None:
        self._happened("links_overdue", "links have been broken for long")
        self.cluster.links_overdue()

    def _cut(self) -> None:
        for one, other in self.cluster.cut():
            self._happened("cuts", f"the channel between {one} and {other} breaks")

    def _begin_again(self) -> None:
        workers = self._rng.choice((None, None, None, drawn_workers(self._vnodes, self._rng)))
        self._happened("drivers", f"the driver dies, and another one comes: {workers=}")
        self._declared.clear()
        self.cluster.begin_again(workers)

    def _carry(self, line: SimulatedLine) -> None:
        """Some of what is on its way over one line arrives."""
        for _ in range(self._rng.randint(1, BURST_MAX)):
            if not (line.said and line.receiver.runs):
                return
            envelope = self.cluster.network.next_of(line)
            self._happened("peer_messages", f"{line.receiver} <- {line.sender} {short(envelope)}")
            if envelope is not None:
                event = PeerSaid(sender=line.sender.worker, envelope=envelope)
                self.cluster.step_worker(line.receiver, event)

    def _move(self, process: Process) -> None:
        assert process.meet is not None
        keys_max = process.meet.keys_max or self._rng.randint(1, self._weights.keys_max)
        self._happened("moves", f"{process} has time to move {keys_max} keys")
        self.cluster.work(process, TimeToMove(keys_max=keys_max))

    def _spend(self, process: Process, kind: str) -> None:
        event = drawn_work(kind, self._rng)
        self._happened(kind, f"{process} has {event}")
        self.cluster.work(process, event)

    # Segments

    def _compact(self) -> None:
        span = self.cluster.compact(self._rng)
        if span is not None:
            self._happened("segments", f"epochs {span.name} become a segment")

    def _rewrite(self) -> None:
        spans = self.cluster.rewrite(self._rng)
        if spans:
            self._happened("rewrites", f"rewritten: {', '.join(span.name for span in spans)}")

    def _collect(self) -> None:
        self._happened("collections", "what segments have replaced is removed")
        self.cluster.collect()

    def _hear_of_segment(self) -> None:
        self._happened("segments_heard", "coordinator hears of segments")
        self.cluster.hear_of_segments()

    # Checkpoints

    def _checkpoint(self) -> None:
        wish = CheckpointWanted(ticket=next(self._tickets))
        self._happened("checkpoints_wanted", f"checkpoint {wish.ticket} is wanted")
        self.cluster.wants(wish)

    def _store(self, process: Process, part: SharePart) -> None:
        fails = self._rng.random() < self._weights.spoil
        self._happened("stores", f"{process} writes {short(part.writing.queue[0])}, {fails=}")
        store(self.cluster, process, part, fails)

    def _commit(self) -> None:
        fails = self._rng.random() < self._weights.spoil
        self._happened("commits", f"checkpoint of {self.cluster.checkpoints.waiting[0].epoch} is published, {fails=}")
        commit(self.cluster, fails)

    def _store_changes(self, process: Process, part: SharePart) -> None:
        fails = self._rng.random() < self._weights.spoil
        action = part.changes.popleft()
        self._happened("changes_stored", f"{process} writes changes {action.taking} through {action.at}, {fails=}")
        if fails:
            self.cluster.answer(process, part, ChangesNotStored(taking=action.taking, error="the disk is full"))
        else:
            parts = self.cluster.change_log.store(action)
            self.cluster.answer(process, part, ChangesStored(taking=action.taking, parts=parts))

    def _commit_changes(self) -> None:
        log, fails = self.cluster.change_log, self._rng.random() < self._weights.spoil
        self._happened("changes_logged", f"changes through {log.waiting[0].at} are published, {fails=}")
        if fails:
            taking = log.waiting.popleft().taking
            self.cluster.step_coordinator(ChangesUnpublished(taking=taking, error="the disk is full"))
        else:
            self.cluster.step_coordinator(ChangesPublished(taking=log.publish().taking))

    def _record(self) -> None:
        control = self.cluster.control
        count, fails = self._rng.randint(1, len(control.waiting)), self._rng.random() < self._weights.spoil
        self._happened("records", f"control record {control.waiting[count - 1].number} is written, {fails=}")
        if fails:
            self.cluster.refuse_control(count)
        else:
            self.cluster.write_control(count)

    # What users want

    def _answer(self, process: Process, part: SharePart) -> None:
        event = part.next_answer(self.cluster.lake, self._reads_ahead, self._rng.choice(ANSWER_ROWS), self._rng)
        if isinstance(event, RowsFetched):
            what = f"task {event.task} of {event.view}"
        else:
            what = f"upquery {event.number} of {event.region}"
        self._happened("answers", f"{process}: {what} has its rows")
        self.cluster.answer(process, part, event)

    def _overtake(self, process: Process, part: SharePart) -> None:
        event = part.long_read(self._rng)
        self._happened("long_reads", f"{process}: {event.number} of {event.region} takes long")
        self.cluster.answer(process, part, event)

    def _declare(self) -> None:
        """A user declares or drops a view: Spark makes the indexes, while all goes on."""
        cluster = self.cluster
        last = [*cluster.view_observer.waiting.values(), *self._declared]
        by_then = {plan.name: plan for plan in (last[-1].plans if last else cluster.view_observer.kept.values())}
        names = set(by_then)
        later = cluster.view_observer.later
        possible = [plan for plan in self._plans if may_change(plan, self._plans, names, later)]
        if not possible:
            return
        names ^= {self._rng.choice(possible).name}
        known = {**{plan.name: plan for plan in self._plans}, **later, **by_then}
        plans = tuple(known[plan.name] for plan in self._plans if plan.name in names)
        cluster.lake.keep(plans)
        epochs = cluster.lake.events()
        wish = PlansWanted(ticket=next(self._tickets), plans=plans, epochs=epochs)
        self._declared.append(wish)
        self._happened("views_declared", f"views {wish.ticket} are wanted: {sorted(names)}")

    def _replan(self) -> None:
        self.cluster.hear_of_segments()  # they were told before
        wish = self._declared.popleft()
        self._happened("views_wanted", f"coordinator hears of views {wish.ticket}")
        self.cluster.view_observer.wanted(wish)
        self.cluster.step_coordinator(wish)

    def _rescale(self) -> None:
        places, strategies = self.cluster.watcher.places, self._weights.strategies
        self.want(drawn_rescale(next(self._tickets), places, self._vnodes, strategies, self._rng))

    def want(self, wish: RescaleWanted) -> None:
        """A user requests a rescale."""
        what = f"{wish.workers} workers" if wish.moves is None else f"moves {dict(sorted(wish.moves.items()))}"
        self._happened("rescales_asked", f"rescale {wish.ticket} to {what} by {wish.strategy}")
        self.cluster.rescale_observer.wished(wish)
        self.cluster.step_coordinator(wish)

    def _abort(self) -> None:
        self.abort(self._rng.choice(list(self.cluster.rescale_observer.waiting)))

    def abort(self, ticket: int) -> None:
        """A user aborts a rescale."""
        self._happened("aborts_asked", f"abort {ticket}")
        wish = AbortWanted(ticket=ticket)
        self.cluster.rescale_observer.wished(wish)
        self.cluster.step_coordinator(wish)

    def _happened(self, what: str, line: str) -> None:
        self.cluster.watcher.counters[what] += 1
        self.cluster.trace.append(line)
