"""The observer of a simulated cluster: sees what goes in and comes out, and calls a checker on each thing it sees."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from simulator import checkers
from simulator.bad_rows import BadRows
from simulator.checkers import require
from simulator.lake import FakeLake
from simulator.network import Network
from simulator.oracle import Oracle, Row, Rows, bad_rows_of, by_key, has_maps, rows_in, sql_answer
from simulator.process import Process, SharePart
from simulator.tables import BAD_ROWS, ORDERED, Key
from simulator.view_observer import ViewObserver
from upriver.engine.region import FullRegionState
from upriver.errors import ViewCrashed
from upriver.ids import BEGINNING, Epoch, FlowId, Incarnation, SnapshotId, WorkerId, preceding
from upriver.lake.spans import EpochSpan, span_after
from upriver.migration.messages import Acquire
from upriver.partial.partial_region import PartialRegion
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    CheckpointWanted,
    EvictWanted,
    SnapshotAsked,
    SnapshotFailed,
    SnapshotReady,
)
from upriver.protocol.messages import (
    Assign,
    CloseInput,
    DropFlow,
    DropSnapshot,
    EpochFinished,
    FailView,
    ForShare,
    OpenEpoch,
    Resume,
    Retire,
    TakeSnapshot,
    ToShare,
    ToWorker,
)
from upriver.protocol.peers import ForRegion
from upriver.protocol.worker_events import HoldSnapshot, ReadEpoch, SetRowsAside
from upriver.vnodes import VnodeMap

FULL_LOOK_EPOCHS = 8


@dataclass(frozen=True, slots=True)
class FlowCut:
    """What a snapshot is of."""

    flow: FlowId
    view: str
    at: Epoch


class FlowWatch:
    """What the observer knows of one flow.

    ended: the last epoch that has ended. begun: the generation in which each process was last told to begin. resumed:
    the last generation in which all have gone on with what they keep.
    """

    def __init__(self) -> None:
        self.ended = BEGINNING
        self.begun: dict[Incarnation, int] = {}
        self.resumed = 0
        self.applied: dict[WorkerId, Epoch] = {}
        """The epoch that the share in each place has finished since it was last told to begin."""
        self.reading: dict[Incarnation, Epoch] = {}
        """The epoch before the one that a share reads."""
        self.mixed: set[Epoch] = set()
        """Epochs that were opened while keys move, since all began anew."""
        self.as_of = BEGINNING
        """Workers that repeat epochs up to this one miss rows that have left by then (coordinator.rewritten_for_all);
        no lookup and no scan sees that."""

    @property
    def generation(self) -> int:
        """The last one that any share was told of."""
        return max(self.begun.values(), default=0)

    def told(self, process: Process, message: ToShare) -> None:
        """The flow speaks to its share at a process."""
        match message:
            case OpenEpoch(epoch=epoch, mixed=mixed, as_of=as_of):
                self.as_of = max(self.as_of, as_of)
                self.mixed |= {epoch} if mixed else set()
            case Assign(start_at=at, generation=generation):
                if generation > self.generation:  # all begin anew
                    self.mixed.clear()
                self.begun[process.incarnation] = generation
                self.applied[process.worker] = at
            case Resume(at=at, generation=generation):
                self.resumed = self.begun[process.incarnation] = generation
                self.applied[process.worker] = at


class Watcher:
    """Raises Violated at the first thing that is wrong. ``counters``: how often what happened.

    places: whose epochs count, as the coordinator has told them. awaited: the places of workers that are to join.
    losses: how many processes have died.
    """

    def __init__(
        self,
        view_observer: ViewObserver,
        workers: Sequence[WorkerId],
        lake: FakeLake,
        oracle: Oracle,
        network: Network,
        bad_rows: BadRows,
    ) -> None:
        self._bad_rows = bad_rows
        self.counters: Counter[str] = Counter()
        self.places = set(workers)
        self.losses = 0
        self._view_observer = view_observer
        self._lake = lake
        self._oracle = oracle
        self._network = network
        self._flows: defaultdict[FlowId, FlowWatch] = defaultdict(FlowWatch)
        self._members: dict[WorkerId, Process] = {}
        """By place: the last process to register, unless the coordinator has been told that it is gone, or retires
        it."""
        self.awaited: set[WorkerId] = set()
        self.vacant: set[WorkerId] = set()
        """Places from which others have taken over."""
        self._cuts: dict[SnapshotId, FlowCut] = {}
        self._dropped: set[SnapshotId] = set()
        self._aside: defaultdict[tuple[str, EpochSpan], set[Row]] = defaultdict(set)
        """The rows that were set aside, by view and epoch. No two rows of a table are equal."""
        self._scans: dict[int, Epoch] = {}
        """What had ended when it was asked for, of all and only the snapshots that are neither ready nor failed."""
        self._evictions: set[int] = set()
        """Tickets of all and only the evictions that are not over."""
        self._checkpoints: set[int] = set()
        """Tickets of all and only the requests for a checkpoint that wait."""

    def of_another_driver(
        self, view_observer: ViewObserver, workers: Sequence[WorkerId], network: Network
    ) -> "Watcher":
        """One that knows what is in the lake, and nothing of what was under way."""
        other = Watcher(view_observer, workers, self._lake, self._oracle, network, self._bad_rows)
        other.counters, other._aside = self.counters, self._aside
        return other

    # Processes

    def joined(self, process: Process) -> None:
        self.losses += process.worker in self._members  # which is replaced
        self._forget_joiner(process.worker)
        self._members[process.worker] = process

    def lost(self, process: Process) -> None:
        if self.is_current(process):
            self._remove(process)
            self._forget_joiner(process.worker)

    def _remove(self, process: Process) -> None:
        del self._members[process.worker]
        for watch in self._flows.values():
            watch.applied.pop(process.worker, None)

    def _forget_joiner(self, worker: WorkerId) -> None:
        """No worker waits for one that was lost before it had anything to keep."""
        if worker in self.awaited:
            self.places.discard(worker)

    def is_current(self, process: Process) -> bool:
        """Whether clients are sent to this process."""
        return self._members.get(process.worker) is process

    def is_to_begin(self, process: Process, flow: FlowId) -> bool:
        """Whether its share of a flow was told to begin anew, and has not heard."""
        generation = process.generation(flow)
        return self._flows[flow].begun.get(process.incarnation, generation) != generation

    def told(self, process: Process | None, message: ToWorker) -> None:
        """The coordinator speaks to a process, or to one that cannot be heard any more."""
        match message:
            case ForShare(flow=flow, message=of_flow):
                self._told_share(process, flow, of_flow)
            case DropFlow(flow=flow):
                self._dropped |= {snapshot for snapshot, cut in self._cuts.items() if cut.flow == flow}
            case CloseInput() if process is not None:
                self.places.discard(process.worker)
            case Retire() if process is not None and self.is_current(process):
                self.places.discard(process.worker)
                self._remove(process)

    def _told_share(self, process: Process | None, flow: FlowId, message: ToShare) -> None:
        match message:
            case TakeSnapshot():
                self._cuts[message.snapshot] = FlowCut(flow, message.view, message.at)
            case DropSnapshot():
                self._dropped.add(message.snapshot)
            case FailView():
                self.counters["views_failed"] += 1
                self.counters["views_crashed"] += message.failure.kind == ViewCrashed.__name__
            case Assign() if process is not None:
                self.places.add(message.worker)
                self.vacant.discard(message.worker)
            case Resume() if process is not None:
                self._resumes(process, message.generation > self._flows[flow].resumed)
        if process is not None:
            self._flows[flow].told(process, message)

    def _resumes(self, process: Process, is_first: bool) -> None:
        """The coordinator tells all members, and no other process: standbys have taken over every other place."""
        if is_first:
            self.counters["taken_over"] += any(worker not in self._members for worker in self.places)
            self.vacant |= self.places
            self.places.clear()
            self.counters["handed_over"] += 1
        self.places.add(process.worker)
        self.vacant.discard(process.worker)

    # Epochs

    def opened(self, part: SharePart, opened: OpenEpoch) -> None:
        """One more epoch, or segment, is open at a share."""
        ahead = len({message.epoch for message in part.opened if message.epoch > part.applied} | {opened.epoch})
        require(checkers.workers_are_not_sent_too_far_ahead, part.applied, opened.epoch, ahead)

    def reads(self, process: Process, part: SharePart, action: ReadEpoch) -> None:
        after = preceding(action.epoch, action.after)
        require(checkers.epochs_are_applied_in_order_and_once, part.applied, after, action.epoch)
        self._flows[part.flow].reading[process.incarnation] = after

    def finished(self, process: Process, part: SharePart, message: EpochFinished) -> None:
        """A share says that it has read an epoch: if that has gone nowhere else, look at the views that this can
        have changed, and sometimes at the others."""
        watch = self._flows[part.flow]
        after = watch.reading.get(process.incarnation, BEGINNING)
        require(checkers.epochs_are_applied_in_order_and_once, part.applied, after, message.epoch)
        part.applied = message.epoch
        if self.is_current(process) and not self.is_to_begin(process, part.flow):
            watch.applied[process.worker] = message.epoch
        if part.reads_mixed:
            return
        served = process.served(part)
        for plan in (plan for plan in part.plans if plan.name in served):
            concerns = plan.is_cone or any(message.read[channel] for channel in plan.channels)
            if (concerns or message.epoch % FULL_LOOK_EPOCHS == 0) and not process.shares[plan.name].is_behind:
                self._look_at(process, part, plan)

    def _look_at(self, process: Process, part: SharePart, plan: DataflowPlan) -> None:
        """Scan one view of a process that stands between epochs, while no keys move."""
        if process.shares[plan.name].failure is not None or part.applied < self._flows[part.flow].as_of:
            return
        if not self._oracle.knows(plan.name, part.applied):
            return
        found = self._shown(process, plan)
        vnode_map = process.map_of(plan.name)
        require(checkers.no_keys_move_while_epochs_flow, vnode_map is not None)
        assert vnode_map is not None
        vnodes = vnode_map.vnodes_of_worker(process.worker)
        vnode_of = {key: self._oracle.vnode_of(plan.name, key) for key in found}
        require(checkers.a_worker_holds_only_keys_of_its_vnodes, found, vnode_of, vnodes)
        self._check_order(plan, found)
        expected = self._oracle.share(plan.name, part.applied, vnodes)
        require(checkers.views_equal_the_oracle, self._kept(process, plan, expected, part.applied), found)

    def _shown(self, process: Process, plan: DataflowPlan) -> Rows:
        """All rows that the process keeps, but for keys that an upquery is filling, which lookups find missing."""
        partial = process.shares[plan.name].partial
        rows = by_key(process.shares[plan.name].region.scan(), plan)
        if not isinstance(partial, PartialRegion):
            return rows
        half_filled = set(partial.half_filled.tolist())
        hashes = self._oracle.hashes[plan.name]
        return {key: of_key for key, of_key in rows.items() if hashes[key] not in half_filled}

    def _kept(self, process: Process, plan: DataflowPlan, rows: Rows, epoch: Epoch) -> Rows:
        """Of rows as of an epoch, those of the keys that the process keeps, if it does not keep all that are its own;
        and some of them as of a later epoch, through which they were filled."""
        partial = process.shares[plan.name].partial
        if partial is None:
            return rows
        present = partial.keys_of(0, 1)
        through = dict(zip(present.tolist(), partial.through(present).tolist(), strict=True))
        kept: dict[Key, Sequence[Row]] = {}
        for key, hash64 in self._oracle.hashes[plan.name].items():
            of_key = rows.get(key, [])
            if through.get(hash64, 0) > epoch:
                of_key = self._oracle.at(plan.name, Epoch(through[hash64])).get(key, [])
            if hash64 in through and of_key:
                kept[key] = of_key
        return kept

    def _check_order(self, plan: DataflowPlan, rows: Rows) -> None:
        if plan.name in ORDERED:
            place = plan.schema.get_field_index(ORDERED[plan.name])
            require(checkers.a_keys_rows_are_in_order, rows, place)

    def ended(self, flow: FlowId, epoch: Epoch) -> None:
        """An epoch has ended in a flow."""
        watch = self._flows[flow]
        require(checkers.epochs_end_in_order, watch.ended, epoch)
        require(checkers.an_epoch_ends_when_every_worker_has_applied_it, epoch, sorted(self.places), watch.applied)
        watch.ended = epoch
        plans = self._view_observer.flows[flow]
        self._look_aside([plan.name for plan in plans], epoch)
        self.counters["epochs_ended"] += 1
        self.counters["mixed_epochs_ended"] += epoch in watch.mixed
        if epoch == max(watch.mixed, default=None):  # with those before it, all that were opened have ended
            for plan in plans:
                self._look_everywhere(flow, plan, epoch)

    def ended_in(self, flow: FlowId) -> Epoch:
        """The last epoch that has ended in a flow."""
        return self._flows[flow].ended

    def set_aside(self, action: SetRowsAside) -> None:
        """A process writes rows to the lake."""
        span = span_after(action.epoch, action.after)
        self._aside[action.aside.view, span].update(rows_in(action.aside.rows))
        self.counters["set_aside"] += 1

    def _look_aside(self, views: Collection[str], epoch: Epoch) -> None:
        for view in (set(views) & BAD_ROWS.keys()) - self._bad_rows.doomed:  # these set none aside
            spans = [span for of_view, span in self._aside if of_view == view and epoch in span]
            found = {row for span in spans for row in self._aside[view, span]}
            near = {Epoch(other) for span in spans for other in range(span.first, span.last + 1)}
            may_be = {row for other in near for row in self._bad_rows_in(view, other)}
            require(checkers.just_bad_rows_are_set_aside, self._bad_rows_in(view, epoch) | (found & may_be), found)

    def _bad_rows_in(self, view: str, epoch: Epoch) -> set[Row]:
        """The rows of an epoch from which the view cannot be computed."""
        rows = self._lake.rows_of(BAD_ROWS[view][0], epoch)
        return set() if rows is None else set(rows_in(rows.filter(bad_rows_of(view, BAD_ROWS[view][0], rows))))

    # Where keys are

    def keys_moved(self, process: Process, flow: FlowId, region: str) -> None:
        """State has just left a process, or come there."""
        require(checkers.a_key_lives_in_one_place, self._keys_of(flow, region, process.generation(flow)))
        self.counters["loads"] += 1

    def _keys_of(self, flow: FlowId, region: str, generation: int) -> dict[str, list[int]]:
        """hash64 of what has state, by the process or the channel where it is."""
        found = {
            str(process): process.shares[region].region.keys_of(0, 1).tolist()
            for process in self._members.values()
            if process.runs and flow in process.parts and process.generation(flow) == generation
        }
        wanted = region, flow, generation
        moving = [(f"{line.sender} -> {line.receiver}", envelope) for line, envelope in self._network.on_its_way()]
        moving += [(f"-> {process}", envelope) for process in self._members.values() for envelope in process.unheard()]
        for where, envelope in moving:
            match envelope.content:
                case ForRegion(region=of, message=Acquire(keys=keys)):
                    if (of, envelope.flow, envelope.generation) == wanted:
                        found.setdefault(where, []).extend(keys.tolist())
        return found

    def _look_everywhere(self, flow: FlowId, plan: DataflowPlan, epoch: Epoch) -> None:
        """While keys move, but between two epochs: all are somewhere, and have all their rows."""
        members = [process for process in self._members.values() if flow in process.parts]
        if not all(process.runs for process in members) or epoch < self._flows[flow].as_of:
            return  # what has died with one is lost, and will be read again
        if any(process.shares[plan.name].failure is not None for process in members):
            return
        keys_of = self._keys_of(flow, plan.name, max(process.generation(flow) for process in members))
        require(checkers.a_key_lives_in_one_place, keys_of)
        everything = self._oracle.at(plan.name, epoch)
        kept = [hash64 for process in members for hash64 in keys_of.pop(str(process))]
        travelling = [hash64 for keys in keys_of.values() for hash64 in keys]
        if plan.full_because is not None:
            unlogged = {key for process in members for key in process.unlogged(plan.name)}
            needed = self._oracle.keys_kept(plan.name, epoch)
            with_rows = [key for key in kept if key in needed or key not in unlogged]
            require(checkers.no_key_is_lost, needed, with_rows, travelling)
        for process in members:
            here = self._shown(process, plan)
            self._check_order(plan, here)
            held = {key: everything.get(key, []) for key in here}
            expected = held if plan.full_because is not None else self._kept(process, plan, everything, epoch)
            require(checkers.views_equal_the_oracle, expected, here)

    # Requests that clients wait for

    def wanted(self, wish: SnapshotAsked | EvictWanted | CheckpointWanted) -> None:
        match wish:
            case SnapshotAsked():
                flow = self._view_observer.flow_of(wish.view)
                self._scans[wish.ticket] = BEGINNING if flow is None else self.ended_in(flow)
            case EvictWanted():
                self._evictions.add(wish.ticket)
            case CheckpointWanted():
                self._checkpoints.add(wish.ticket)

    def eviction_over(self, ticket: int) -> None:
        require(checkers.everybody_is_answered_once, ticket, self._evictions)
        self._evictions.remove(ticket)

    # Checkpoints

    def checkpoint_over(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            require(checkers.everybody_is_answered_once, ticket, self._checkpoints)
            self._checkpoints.remove(ticket)

    def checkpoint_holds(self, plan: DataflowPlan, name: str, epoch: Epoch, restored: FullRegionState) -> None:
        """A checkpoint is published, and this is what it has of a region of a view. name: the region's."""
        require(checkers.checkpoints_have_no_rows_on_their_way, restored.gathered)
        if name != plan.name:
            return
        self.counters["checkpoints"] += 1
        found = by_key(restored.scan(), plan)
        self._check_order(plan, found)
        require(checkers.checkpoints_equal_the_oracle, self._oracle.at(plan.name, epoch), found)

    # Snapshots

    def holds(self, part: HoldSnapshot) -> None:
        cut = self._cuts[part.snapshot]
        if not self._oracle.knows(cut.view, cut.at):
            return
        found = by_key(part.rows, self._view_observer.possible[cut.view])
        everything = self._oracle.at(cut.view, cut.at)
        require(checkers.snapshots_are_consistent_cuts, {key: everything.get(key, []) for key in found}, found)

    def snapshot_ready(self, ready: SnapshotReady) -> None:
        require(checkers.snapshots_have_what_had_ended, self._settle_scan(ready.ticket), ready.epoch)
        processes = [self._members[worker] for worker in ready.workers]
        if not all(process.runs for process in processes):
            return  # one has died, unnoticed so far: the reader will notice
        missing = [process.incarnation for process in processes if ready.snapshot not in process.held]
        require(checkers.a_snapshot_that_is_ready_is_held, missing)
        plan = self._view_observer.possible[self._cuts[ready.snapshot].view]
        parts = {str(process): by_key(process.held[ready.snapshot], plan) for process in processes}
        hashes = self._oracle.hashes[plan.name]
        require(checkers.a_key_lives_in_one_place, {who: [hashes[key] for key in part] for who, part in parts.items()})
        whole = {key: rows for part in parts.values() for key, rows in part.items()}
        self._check_order(plan, whole)
        require(checkers.snapshots_are_consistent_cuts, self._oracle.at(plan.name, ready.epoch), whole)
        self.counters["snapshots"] += 1

    def snapshot_failed(self, failed: SnapshotFailed) -> None:
        self._settle_scan(failed.ticket)
        self.counters["snapshots_failed"] += 1

    def _settle_scan(self, ticket: int) -> Epoch:
        require(checkers.everybody_is_answered_once, ticket, self._scans)
        return self._scans.pop(ticket)

    # At the end

    def came_to_rest(
        self,
        running: Sequence[Process],
        maps: Mapping[str, VnodeMap],
        failed: Collection[str],
        database: duckdb.DuckDBPyConnection,
    ) -> None:
        """Nothing is under way: everything is done, and every view is right, or has failed for a reason. maps, failed:
        the coordinator's, of regions, and views."""
        require(checkers.nobody_is_left_waiting, self._scans)
        require(checkers.nobody_is_left_waiting, self._evictions)
        require(checkers.nobody_is_left_waiting, self._checkpoints)
        require(checkers.nobody_is_left_waiting, self._view_observer.waiting)
        kept = self._view_observer.kept
        flows = self._view_observer.flows
        for view in kept:
            flow = self._view_observer.flow_of(view)
            require(checkers.every_epoch_ends, self._lake.published, BEGINNING if flow is None else self.ended_in(flow))
        members = [self._members[worker] for worker in sorted(self.places)]
        wanted = [process.incarnation for process in members]
        require(checkers.who_is_not_wanted_has_gone, [process.incarnation for process in running], wanted)
        by_now: dict[str, VnodeMap | None] = dict(maps)
        for process in members:
            overdue = [t for t, a in process.waiting.items() if a.lookup.at_least <= self._lake.published]
            require(checkers.nobody_is_left_waiting, overdue)
            require(checkers.snapshots_that_are_dropped_are_forgotten, process.held, self._dropped)
            require(checkers.workers_keep_the_views_that_are_wanted, process.views, kept)
            require(checkers.no_share_of_a_gone_flow, process.machine.shares.keys() - flows.keys())
            for region in process.shares:
                by_now[f"{process}, {region}"] = process.map_of(region)
        require(checkers.all_go_by_one_map, by_now)
        for epoch in range(1, self._lake.published + 1):
            self._look_aside(kept, Epoch(epoch))
        for plan in kept.values():
            has_bad_rows = self._bad_rows.are_in(plan, self._lake)
            must_fail = has_bad_rows and plan.full_because is not None
            here = [process.shares[plan.name].failure is not None for process in members]
            require(checkers.views_fail_everywhere_or_nowhere, plan.name in failed, here)
            may_fail = self._bad_rows.may_fail(plan, self._lake)
            require(checkers.views_fail_for_a_reason, plan.name in failed, must_fail, may_fail)
            if plan.name not in failed and not has_bad_rows:
                self._check_whole(plan, members, database)

    def _check_whole(
        self, plan: DataflowPlan, processes: Sequence[Process], database: duckdb.DuckDBPyConnection
    ) -> None:
        whole: dict[Key, Sequence[tuple[object, ...]]] = {}
        for process in processes:
            part = process.part_of(plan.name)
            assert part is not None
            self._look_at(process, part, plan)
            whole.update(by_key(process.shares[plan.name].region.scan(), plan))
        require(checkers.views_equal_the_oracle, self._oracle.at(plan.name, self._lake.published), whole)
        if not has_maps(plan):
            answer = sql_answer(plan, self._lake.all_rows(), database, self._lake.clock(self._lake.published))
            require(checkers.views_equal_sql, answer, whole)

    def retired(self, processes: Iterable[Process]) -> None:
        """The app was stopped: all workers have gone, and no client still waits for an answer."""
        for process in processes:
            require(checkers.everybody_retires, [process.incarnation] if process.runs else [])
            require(checkers.nobody_is_left_waiting, process.waiting)
