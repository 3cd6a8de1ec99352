"""The observer of a simulated river: sees what goes in and comes out, and calls a checker on each thing it sees."""

from collections import Counter
from collections.abc import Iterable, Sequence

import duckdb

from upriver.dataflow.plan import ViewPlan
from upriver.ids import Epoch, SnapshotId, WorkerId
from upriver.machines.coordinator import SnapshotFailed, SnapshotReady
from upriver.machines.messages import DropSnapshot, EpochFinished, TakeSnapshot
from upriver.machines.worker import Answer, HoldSnapshot, LookupAsked, Refuse
from upriver.sim import checkers
from upriver.sim.checkers import require
from upriver.sim.lake import FakeLake
from upriver.sim.oracle import Oracle, Row, Rows, by_key, sql_answer
from upriver.sim.process import Process
from upriver.sim.tables import ORDERED, Key

FULL_LOOK_EPOCHS = 8


class Watcher:
    """Raises Violated at the first thing that is wrong. ``counters``: how often what happened."""

    def __init__(self, plans: Sequence[ViewPlan], workers: Sequence[WorkerId], lake: FakeLake, oracle: Oracle) -> None:
        self.counters: Counter[str] = Counter()
        self._plans = {plan.name: plan for plan in plans}
        self._workers = workers
        self._lake = lake
        self._oracle = oracle
        self._ended = Epoch(0)
        self._members: dict[WorkerId, Process] = {}
        """By place: the last process to register, unless the coordinator has been told that it is gone."""
        self._keys: dict[Process, dict[str, frozenset[Key]]] = {}
        """By process and view: the keys that it held when last looked at."""
        self._seen: dict[tuple[str, Key], Epoch] = {}
        """By view and key: the latest epoch that a lookup has shown."""
        self._cuts: dict[SnapshotId, TakeSnapshot] = {}
        self._dropped: set[SnapshotId] = set()
        self._scans: set[int] = set()
        """Tickets of all and only the snapshots that are neither ready nor failed."""

    # Processes

    def joined(self, process: Process) -> None:
        self._members[process.worker] = process

    def lost(self, process: Process) -> None:
        if self._members.get(process.worker) is process:
            del self._members[process.worker]

    def is_current(self, process: Process) -> bool:
        """Whether clients are sent to this process."""
        return self._members.get(process.worker) is process

    # Epochs

    def opened(self, process: Process, epoch: Epoch) -> None:
        require(checkers.workers_are_not_sent_too_far_ahead, process.applied, epoch)

    def reads(self, process: Process, epoch: Epoch) -> None:
        require(checkers.epochs_are_applied_in_order_and_once, process.applied, epoch)

    def finished(self, process: Process, message: EpochFinished) -> None:
        """A process says that it has applied an epoch: look at the views that this can have changed, and sometimes at
        the others."""
        require(checkers.epochs_are_applied_in_order_and_once, process.applied, message.epoch)
        promised = self._lake.promised(message.epoch, process.vnodes)
        require(checkers.no_row_is_lost_or_doubled, promised, message.received)
        process.applied = message.epoch
        for plan in self._plans.values():
            if promised[plan.channel] or message.epoch % FULL_LOOK_EPOCHS == 0:
                self._look_at(process, plan)

    def _look_at(self, process: Process, plan: ViewPlan) -> None:
        """Scan one view of a process that stands between epochs."""
        found = by_key(process.views[plan.name].scan(), plan)
        vnode_of = self._oracle.vnode_of[plan.name]
        require(checkers.a_worker_holds_only_keys_of_its_vnodes, found, vnode_of, process.vnodes)
        self._keys.setdefault(process, {})[plan.name] = frozenset(found)
        keys_of = {worker: self._keys.get(p, {}).get(plan.name, ()) for worker, p in self._members.items()}
        require(checkers.a_key_lives_in_one_place, keys_of)
        self._check_order(plan, found)
        expected = self._oracle.share(plan.name, process.applied, process.vnodes)
        require(checkers.views_equal_the_oracle, expected, found)

    def _check_order(self, plan: ViewPlan, rows: Rows) -> None:
        if plan.name in ORDERED:
            place = plan.output.schema.get_field_index(ORDERED[plan.name])
            require(checkers.a_keys_rows_are_in_order, rows, place)

    def ended(self, epoch: Epoch) -> None:
        require(checkers.epochs_end_in_order, self._ended, epoch)
        applied = {worker: process.applied for worker, process in self._members.items()}
        require(checkers.an_epoch_ends_when_every_worker_has_applied_it, epoch, self._workers, applied)
        self._ended = epoch
        self.counters["epochs_ended"] += 1

    # Lookups

    def answered(self, process: Process, answer: Answer) -> None:
        require(checkers.everybody_is_answered_once, answer.ticket, process.waiting)
        asked = process.waiting.pop(answer.ticket)
        if process.torn:  # between the fault of the shell and the end of the epoch, the machine cannot know
            return
        joining = process.published_at_joining
        require(checkers.lookups_tell_the_epoch_applied, process.applied, answer.epoch)
        require(checkers.lookups_wait_for_the_replay, answer.epoch, asked.at_least, joining)
        plan = self._plans[asked.view]
        found = by_key(answer.rows, plan)
        keys = list(zip(*(column.to_pylist() for column in asked.keys.columns), strict=True))
        require(checkers.lookups_are_answered_by_the_owner, keys, self._oracle.vnode_of[plan.name], process.vnodes)
        require(checkers.lookups_give_only_what_was_asked_for, keys, found)
        self._check_order(plan, found)
        for key in keys:
            self._check_key(process, plan.name, key, found.get(key, []), answer.epoch)
        self.counters["lookups"] += 1
        self.counters["lookups_in_mid_epoch"] += bool(process.unread)

    def _check_key(self, process: Process, view: str, key: Key, found: Sequence[Row], epoch: Epoch) -> None:
        latest = Epoch(epoch + 1) if process.unread else epoch
        before, after = (self._oracle.at(view, at).get(key, []) for at in (epoch, latest))
        require(checkers.lookups_equal_the_oracle, key, found, before, after)
        if self.is_current(process):
            as_of_at_most = latest if found == after else epoch
            require(checkers.lookups_never_go_back, key, self._seen.get((view, key), Epoch(0)), as_of_at_most)
            self._seen[view, key] = epoch if found == before else latest

    def refused(self, process: Process, refusal: Refuse) -> None:
        require(checkers.everybody_is_answered_once, refusal.ticket, process.waiting)
        asked = process.waiting.pop(refusal.ticket)
        owned = self._is_owned(process, asked)
        known = asked.view in self._plans
        require(checkers.lookups_are_refused_for_a_reason, refusal.error, process.serves, known, owned)
        self.counters["lookups_refused"] += 1

    def _is_owned(self, process: Process, asked: LookupAsked) -> bool:
        vnode_of = self._oracle.vnode_of.get(asked.view, {})
        keys = zip(*(column.to_pylist() for column in asked.keys.columns), strict=True)
        return all(vnode_of.get(key) in process.vnodes for key in keys)

    # Snapshots

    def scan_asked(self, ticket: int) -> None:
        self._scans.add(ticket)

    def told(self, message: TakeSnapshot | DropSnapshot) -> None:
        match message:
            case TakeSnapshot():
                self._cuts[message.snapshot] = message
            case DropSnapshot():
                self._dropped.add(message.snapshot)

    def holds(self, process: Process, part: HoldSnapshot) -> None:
        cut = self._cuts[part.snapshot]
        expected = self._oracle.share(cut.view, cut.at, process.vnodes)
        require(checkers.snapshots_are_consistent_cuts, expected, by_key(part.rows, self._plans[cut.view]))

    def snapshot_ready(self, ready: SnapshotReady) -> None:
        self._settle_scan(ready.ticket)
        processes = [self._members[worker] for worker in self._workers]
        if not all(process.runs for process in processes):
            return  # one has died and nobody knows yet: the reader will
        missing = [process.incarnation for process in processes if ready.snapshot not in process.held]
        require(checkers.a_snapshot_that_is_ready_is_held, missing)
        plan = self._plans[self._cuts[ready.snapshot].view]
        parts = [by_key(process.held[ready.snapshot], plan) for process in processes]
        require(checkers.a_key_lives_in_one_place, dict(zip(self._workers, parts, strict=True)))
        whole = {key: rows for part in parts for key, rows in part.items()}
        self._check_order(plan, whole)
        require(checkers.snapshots_are_consistent_cuts, self._oracle.at(plan.name, ready.epoch), whole)
        self.counters["snapshots"] += 1

    def snapshot_failed(self, failed: SnapshotFailed) -> None:
        self._settle_scan(failed.ticket)
        self.counters["snapshots_failed"] += 1

    def _settle_scan(self, ticket: int) -> None:
        require(checkers.everybody_is_answered_once, ticket, self._scans)
        self._scans.remove(ticket)

    # At the end

    def came_to_rest(self, processes: Iterable[Process], database: duckdb.DuckDBPyConnection) -> None:
        """Nothing is under way: everything is done, and every view is right."""
        processes = list(processes)
        require(checkers.every_epoch_ends, self._lake.published, self._ended)
        require(checkers.nobody_is_left_waiting, self._scans)
        for process in processes:
            overdue = [t for t, asked in process.waiting.items() if asked.at_least <= self._lake.published]
            require(checkers.nobody_is_left_waiting, overdue)
            require(checkers.snapshots_that_are_dropped_are_forgotten, process.held, self._dropped)
        for plan in self._plans.values():
            self._check_whole(plan, processes, database)

    def _check_whole(self, plan: ViewPlan, processes: Sequence[Process], database: duckdb.DuckDBPyConnection) -> None:
        whole: dict[Key, Sequence[Row]] = {}
        for process in processes:
            self._look_at(process, plan)
            whole.update(by_key(process.views[plan.name].scan(), plan))
        require(checkers.views_equal_the_oracle, self._oracle.at(plan.name, self._lake.published), whole)
        require(checkers.views_equal_sql, sql_answer(plan, self._lake.all_rows(), database), whole)

    def retired(self, processes: Iterable[Process]) -> None:
        """The app was stopped: everybody has gone, and nobody still waits for an answer."""
        for process in processes:
            require(checkers.everybody_retires, [process.incarnation] if process.runs else [])
            require(checkers.nobody_is_left_waiting, process.waiting)
