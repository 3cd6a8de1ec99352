"""The observer of a simulated cluster: sees what goes in and comes out, and calls a checker on each thing it sees."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import duckdb

from simulator import checkers
from simulator.bad_rows import BadRows
from simulator.checkers import require
from simulator.lake import FakeLake
from simulator.network import Network
from simulator.oracle import Oracle, Row, Rows, bad_rows_of, by_key, rows_in, sql_answer
from simulator.process import Process
from simulator.tables import BAD_ROWS, ORDERED, Key
from simulator.view_observer import ViewObserver
from upriver.engine.region import FullRegionState
from upriver.ids import BEGINNING, Epoch, Incarnation, SnapshotId, WorkerId, preceding
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
    DropSnapshot,
    EpochFinished,
    FailView,
    OpenEpoch,
    Resume,
    Retire,
    TakeSnapshot,
    ToWorker,
)
from upriver.protocol.peers import ForRegion
from upriver.protocol.worker_events import HoldSnapshot, ReadEpoch, SetRowsAside
from upriver.vnodes import VnodeMap

FULL_LOOK_EPOCHS = 8


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
        self._ended = Epoch(0)
        self._members: dict[WorkerId, Process] = {}
        """By place: the last process to register, unless the coordinator has been told that it is gone, or retires
        it."""
        self._applied: dict[WorkerId, Epoch] = {}
        """The epoch that each member has finished since it was last told to begin."""
        self.awaited: set[WorkerId] = set()
        self.vacant: set[WorkerId] = set()
        """Places from which others have taken over."""
        self._resumed = 0
        """The last generation in which all have gone on with what they keep."""
        self._reading: dict[Incarnation, Epoch] = {}
        """The epoch before the one that a process reads."""
        self._sent: dict[WorkerId, Epoch] = {}
        """The last epoch that was opened for each place's member since it was last told to begin."""
        self._begun: dict[Incarnation, int] = {}
        """The generation in which each process was last told to begin."""
        self._mixed: set[Epoch] = set()
        """Epochs that were opened while keys move, since all began anew."""
        self._cuts: dict[SnapshotId, TakeSnapshot] = {}
        self._dropped: set[SnapshotId] = set()
        self._as_of = BEGINNING
        """Workers that repeat epochs up to this one miss rows that have left by then (coordinator.rewritten_for_all);
        no lookup and no scan sees that."""
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
            del self._members[process.worker]
            self._applied.pop(process.worker, None)
            self._forget_joiner(process.worker)

    def _forget_joiner(self, worker: WorkerId) -> None:
        """No worker waits for one that was lost before it had anything to keep."""
        if worker in self.awaited:
            self.places.discard(worker)

    def is_current(self, process: Process) -> bool:
        """Whether clients are sent to this process."""
        return self._members.get(process.worker) is process

    def is_to_begin(self, process: Process) -> bool:
        """Whether it was told to begin anew, and has not heard."""
        return self._begun.get(process.incarnation, process.generation) != process.generation

    def told(self, process: Process | None, message: ToWorker) -> None:
        """The coordinator speaks to a process, or to one that cannot be heard any more."""
        match message:
            case TakeSnapshot():
                self._cuts[message.snapshot] = message
            case DropSnapshot():
                self._dropped.add(message.snapshot)
            case FailView():
                self.counters["views_failed"] += 1
            case OpenEpoch(epoch=epoch, mixed=mixed, as_of=as_of) if process is not None:
                self._sent[process.worker] = epoch
                self._as_of = max(self._as_of, as_of)
                self._mixed |= {epoch} if mixed else set()
            case Assign() if process is not None:
                if self.all_begin_anew(message):
                    self._mixed.clear()
                self._begun[process.incarnation] = message.generation
                self._applied[message.worker] = self._sent[message.worker] = message.start_at
                self.places.add(message.worker)
                self.vacant.discard(message.worker)
            case Resume() if process is not None:
                self._resumes(process, message)
            case CloseInput() if process is not None:
                self.places.discard(process.worker)
            case Retire() if process is not None and self.is_current(process):
                self.places.discard(process.worker)
                del self._members[process.worker]
                self._applied.pop(process.worker, None)

    def _resumes(self, process: Process, message: Resume) -> None:
        """The coordinator tells all members, and no other process: standbys have taken over every other place."""
        if message.generation > self._resumed:
            self._resumed = message.generation
            self.counters["taken_over"] += any(worker not in self._members for worker in self.places)
            self.vacant |= self.places
            self.places.clear()
            self.counters["handed_over"] += 1
        self.places.add(process.worker)
        self.vacant.discard(process.worker)
        self._begun[process.incarnation] = message.generation
        self._applied[process.worker] = self._sent[process.worker] = message.at

    def all_begin_anew(self, assign: Assign) -> bool:
        """Whether this is the first to be told so of many."""
        return assign.generation > max(self._begun.values(), default=0)

    def behind(self) -> list[WorkerId]:
        """The places whose process has not finished the epochs opened for it, and empty places."""
        return [worker for worker in sorted(self.places) if self._applied.get(worker) != self._sent.get(worker)]

    # Epochs

    def opened(self, process: Process, opened: OpenEpoch) -> None:
        """One more epoch, or segment, is open at a process."""
        ahead = len({message.epoch for message in process.opened if message.epoch > process.applied} | {opened.epoch})
        require(checkers.workers_are_not_sent_too_far_ahead, process.applied, opened.epoch, ahead)

    def reads(self, process: Process, action: ReadEpoch) -> None:
        after = preceding(action.epoch, action.after)
        require(checkers.epochs_are_applied_in_order_and_once, process.applied, after, action.epoch)
        self._reading[process.incarnation] = after

    def finished(self, process: Process, message: EpochFinished) -> None:
        """A process says that it has read an epoch: if that has gone nowhere else, look at the views that this can
        have changed, and sometimes at the others."""
        after = self._reading.get(process.incarnation, BEGINNING)
        require(checkers.epochs_are_applied_in_order_and_once, process.applied, after, message.epoch)
        process.applied = message.epoch
        if self.is_current(process) and not self.is_to_begin(process):
            self._applied[process.worker] = message.epoch
        if process.reads_mixed:
            return
        for plan in process.plans:
            concerns = plan.is_cone or any(message.read[channel] for channel in plan.channels)
            if (concerns or message.epoch % FULL_LOOK_EPOCHS == 0) and not process.shares[plan.name].is_behind:
                self._look_at(process, plan)

    def _look_at(self, process: Process, plan: DataflowPlan) -> None:
        """Scan one view of a process that stands between epochs, while no keys move."""
        if process.shares[plan.name].failure is not None or process.applied < self._as_of:
            return
        found = self._shown(process, plan)
        vnode_map = process.map_of(plan.name)
        require(checkers.no_keys_move_while_epochs_flow, vnode_map is not None)
        assert vnode_map is not None
        vnodes = vnode_map.vnodes_of_worker(process.worker)
        vnode_of = {key: self._oracle.vnode_of(plan.name, key) for key in found}
        require(checkers.a_worker_holds_only_keys_of_its_vnodes, found, vnode_of, vnodes)
        self._check_order(plan, found)
        expected = self._oracle.share(plan.name, process.applied, vnodes)
        require(checkers.views_equal_the_oracle, self._kept(process, plan, expected, process.applied), found)

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

    def ended(self, epoch: Epoch) -> None:
        require(checkers.epochs_end_in_order, self._ended, epoch)
        require(checkers.an_epoch_ends_when_every_worker_has_applied_it, epoch, sorted(self.places), self._applied)
        self._ended = epoch
        self._look_aside(epoch)
        self.counters["epochs_ended"] += 1
        self.counters["mixed_epochs_ended"] += epoch in self._mixed
        if epoch == max(self._mixed, default=None):  # with those before it, all that were opened have ended
            for plan in self._view_observer.kept.values():
                self._look_everywhere(plan, epoch)

    def set_aside(self, action: SetRowsAside) -> None:
        """A process writes rows to the lake."""
        span = span_after(action.epoch, action.after)
        self._aside[action.aside.view, span].update(rows_in(action.aside.rows))
        self.counters["set_aside"] += 1

    def _look_aside(self, epoch: Epoch) -> None:
        for view in (self._view_observer.kept.keys() & BAD_ROWS) - self._bad_rows.doomed:  # these set none aside
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

    def keys_moved(self, process: Process, region: str) -> None:
        """State has just left a process, or come there."""
        require(checkers.a_key_lives_in_one_place, self._keys_of(region, process.generation))
        self.counters["loads"] += 1

    def _keys_of(self, region: str, generation: int) -> dict[str, list[int]]:
        """hash64 of what has state, by the process or the channel where it is."""
        found = {
            str(process): process.shares[region].region.keys_of(0, 1).tolist()
            for process in self._members.values()
            if process.runs and process.shares and process.generation == generation
        }
        wanted = region, generation
        for line, envelope in self._network.on_its_way():
            match envelope.content:
                case ForRegion(region=of, message=Acquire(keys=keys)) if (of, envelope.generation) == wanted:
                    found.setdefault(f"{line.sender} -> {line.receiver}", []).extend(keys.tolist())
        return found

    def _look_everywhere(self, plan: DataflowPlan, epoch: Epoch) -> None:
        """While keys move, but between two epochs: all are somewhere, and have all their rows."""
        members = [process for process in self._members.values() if process.shares]
        if not all(process.runs for process in members) or epoch < self._as_of:
            return  # what has died with one is lost, and will be read again
        if any(process.shares[plan.name].failure is not None for process in members):
            return
        keys_of = self._keys_of(plan.name, max(process.generation for process in members))
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
                self._scans[wish.ticket] = self._ended
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
        plan = self._view_observer.kept[self._cuts[ready.snapshot].view]
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
        require(checkers.every_epoch_ends, self._lake.published, self._ended)
        require(checkers.nobody_is_left_waiting, self._scans)
        require(checkers.nobody_is_left_waiting, self._evictions)
        require(checkers.nobody_is_left_waiting, self._checkpoints)
        require(checkers.nobody_is_left_waiting, self._view_observer.waiting)
        kept = self._view_observer.kept
        members = [self._members[worker] for worker in sorted(self.places)]
        wanted = [process.incarnation for process in members]
        require(checkers.who_is_not_wanted_has_gone, [process.incarnation for process in running], wanted)
        by_now: dict[str, VnodeMap | None] = dict(maps)
        for process in members:
            overdue = [t for t, a in process.waiting.items() if a.lookup.at_least <= self._lake.published]
            require(checkers.nobody_is_left_waiting, overdue)
            require(checkers.snapshots_that_are_dropped_are_forgotten, process.held, self._dropped)
            require(checkers.workers_keep_the_views_that_are_wanted, [plan.name for plan in process.plans], kept)
            for region in process.shares:
                by_now[f"{process}, {region}"] = process.map_of(region)
        require(checkers.all_go_by_one_map, by_now)
        for epoch in range(1, self._lake.published + 1):
            self._look_aside(Epoch(epoch))
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
            self._look_at(process, plan)
            whole.update(by_key(process.shares[plan.name].region.scan(), plan))
        require(checkers.views_equal_the_oracle, self._oracle.at(plan.name, self._lake.published), whole)
        require(
            checkers.views_equal_sql,
            sql_answer(plan, self._lake.all_rows(), database, self._lake.clock(self._lake.published)),
            whole,
        )

    def retired(self, processes: Iterable[Process]) -> None:
        """The app was stopped: all workers have gone, and no client still waits for an answer."""
        for process in processes:
            require(checkers.everybody_retires, [process.incarnation] if process.runs else [])
            require(checkers.nobody_is_left_waiting, process.waiting)
