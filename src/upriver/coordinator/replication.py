"""The leader of the group (document 002): it assigns learners and standbys, and decides when slices change hands.

``docs/internals/standbys.md`` and ``docs/internals/membership.md``. The leader holds a round of assignment between two
epochs of each flow, when a worker comes or goes or a learner has caught up. A learner, or a standby, follows its slices
in every flow, and is ready when it has them of every flow. Slices that a round gives to another worker are handed over
at once: all workers resume by the new map. When a worker is lost, the standbys of its slices take over.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from upriver.coordinator.assignor import assign
from upriver.coordinator.cluster import Cluster, ServedFlow
from upriver.coordinator.group import (
    Assignment,
    Group,
    InstanceId,
    LeaderMemory,
    MembershipConfig,
    Task,
    TaskId,
    asking_for_a_round,
)
from upriver.coordinator.places import WorkerProcess, listed
from upriver.coordinator.spread import host_of
from upriver.ids import BEGINNING, Epoch, FlowId, Incarnation, VnodeId, WorkerId
from upriver.protocol.messages import CaughtUp, FeedEnded, Here, Probe
from upriver.vnodes import VnodeMap

EPOCHS_BETWEEN_MAX = 8
"""replication.published_epochs_first: how many epochs go before the next round at most. Slices change hands even where
epochs are published faster than they end."""

NO_STANDBYS = MembershipConfig()
"""The default: no standbys."""


@dataclass(frozen=True, slots=True)
class LearningSlices:
    """A rescale by learners. leaving: the workers that give everything up. overdue: the rescale no longer waits for
    them. is_over: every slice is at its new owner."""

    leaving: frozenset[WorkerId]
    overdue: bool = False
    is_over: bool = False


class OpenProbes:
    """Workers that a peer could not reach and that have not answered a probe yet."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[int, WorkerId] = {}
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    def send(self, process: WorkerProcess) -> None:
        """Ask the worker whether it is there."""
        self._last += 1
        self._open[self._last] = process.worker
        self._cluster.places.tell(process, Probe(probe=self._last))

    def answered(self, probe: int) -> bool:
        """A worker has answered. Returns whether the probe was still open."""
        return self._open.pop(probe, None) is not None

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone, and answers nothing."""
        self._open = {probe: probed for probe, probed in self._open.items() if probed != worker}

    def forget_all(self) -> None:
        self._open.clear()


class Leader:
    """The coordinator calls ``advance`` after every step, the other methods when their event happens."""

    def __init__(self, cluster: Cluster, config: MembershipConfig) -> None:
        self._cluster = cluster
        self._learns = config
        self._stands_by = replace(config, eventual_balance=False)  # a map that users have made uneven stays so
        self._assignment = Assignment()
        """The last round's result."""
        self._memory: LeaderMemory | None = LeaderMemory()
        self._is_due = True
        """Something has changed that needs a round."""
        self._has_news = False
        """A follower has caught up since the leader last checked which followers request a round. It has caught up as
        of an epoch that may not be over."""
        self._learning: LearningSlices | None = None
        self._first: dict[FlowId, Epoch] = {}
        """replication.published_epochs_first: the next round waits for each flow's epochs up to this one. They were
        published when slices last changed hands. Without this, epochs would pile up while a worker learns, where a
        round takes longer than an epoch."""
        self._lost: dict[WorkerId, Incarnation] = {}
        """Lost workers. Their standbys take over when the leases of these incarnations have run out."""
        self._silent: set[Incarnation] = set()
        """Incarnations whose lease has run out."""
        self._vacant: set[WorkerId] = set()
        """Places whose slices standbys have taken over. No new worker is there, or it does not take part yet."""
        self._probes = OpenProbes(cluster)
        self._follow()

    @property
    def _config(self) -> MembershipConfig:
        return self._stands_by if self._learning is None else self._learns

    def _follow(self) -> None:
        """Decide whether workers follow each other. If so, epochs are opened one at a time, and all have channels. If
        not, the leader holds no round, and forgets who learns."""
        stands_by = self._config.num_standby_replicas > 0 and not self._cluster.keeps_only_what_is_read
        is_followed = bool(self._cluster.plans) and (stands_by or self._learning is not None)
        self._cluster.places.follow(is_followed=is_followed, is_reversible=stands_by)
        if not is_followed:
            self._assignment = Assignment()

    # What the coordinator asks

    @property
    def is_settled(self) -> bool:
        """Whether no takeover, vacant place, learner or probe is pending."""
        return not (self._lost or self._vacant or self._assignment.learner or self._probes)

    @property
    def vacant(self) -> frozenset[WorkerId]:
        """Places that standbys have taken over from and that wait for a new worker."""
        return frozenset(self._vacant)

    def standing(self) -> dict[str, Any]:
        """wanted: standbys of each vnode. ready: vnodes that have that many. learners: vnodes being learned. why: why
        not every vnode has as many standbys as the user wants; ``None`` if each has."""
        wanted = self._config.num_standby_replicas if self._cluster.places.is_reversible else 0
        ready = self._followed(wanted) if wanted else 0
        why, vnodes = self.why_unplaced, len(self._cluster.reading.owners)
        if why is None and wanted and ready < vnodes:
            why = f"{ready} of {vnodes} vnodes are copied so far; nothing is copied while keys move in a rescale"
        return {"wanted": wanted, "ready": ready, "learners": len(self._assignment.learner), "why": why}

    @property
    def why_unplaced(self) -> str | None:
        """Why standbys that the user wants have no place, whatever is copied; ``None`` if they have one, or none are
        wanted. Another thread may call it."""
        cluster, wanted = self._cluster, self._stands_by.num_standby_replicas
        if not wanted or not cluster.plans:
            return None
        if cluster.keeps_only_what_is_read:
            return "every view is partial: only views that keep every key have standbys"
        processes = dict(cluster.processes)
        if missing := [worker for worker in cluster.workers if worker not in processes]:
            return f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} not up"
        places: dict[str, list[WorkerId]] = {}
        for worker in cluster.workers:
            places.setdefault(processes[worker].instance, []).append(worker)
        if len(places) > wanted:
            return None
        where = "; ".join(
            f"{listed(workers)} in {'one executor' if len(workers) > 1 else 'an executor'} on {host_of(instance)}"
            for instance, workers in sorted(places.items())
        )
        return (
            f"{where}. A standby is never in the executor of its active or of another standby: {wanted + 1} executors "
            f"must run workers. Give the app more workers, or Spark more executors"
        )

    @property
    def _followed_flows(self) -> list[ServedFlow]:
        """The flows that workers follow: those that are served, and have a view that keeps every key."""
        return [flow for flow in self._cluster if not (flow.keeps_only_what_is_read or flow.is_to_begin)]

    def _complete(self) -> frozenset[tuple[VnodeId, WorkerId]]:
        """The slices and the workers that have all of them, of every flow, as of its last epoch's end."""
        complete = [flow.feeds.complete() for flow in self._followed_flows]
        return complete[0].intersection(*complete[1:]) if complete else frozenset()

    def _followed(self, copies: int) -> int:
        """How many vnodes have this many complete copies. Another thread may call it."""
        counts = Counter(vnode for vnode, _ in self._complete())
        return sum(count >= copies for count in counts.values())

    def awaits(self, worker: WorkerId) -> bool:
        """Whether the place waits for a new worker, which is told what it keeps when the cluster is quiet."""
        return worker in self._lost or worker in self._vacant

    @property
    def takes_over(self) -> bool:
        """Whether standbys are about to take over from a lost worker."""
        return bool(self._lost)

    # Rescales by learners

    def learn(self, leaving: Collection[WorkerId]) -> None:
        """Move every slice off these workers, and even out the rest, by learners."""
        self._learning = LearningSlices(frozenset(leaving))
        self._is_due = True
        self._follow()

    @property
    def has_learned(self) -> bool:
        is_over = self._learning is not None and self._learning.is_over
        return is_over and not (self._is_due or self._lost or self._vacant)

    def is_overdue(self) -> None:
        """The rescale no longer waits for leavers."""
        if self._learning is not None and self._learning.leaving:
            self._learning = replace(self._learning, overdue=True)
            self._is_due = True

    @property
    def leaving(self) -> frozenset[WorkerId]:
        """The workers that give everything up."""
        return frozenset() if self._learning is None else self._learning.leaving

    def stop_learning(self) -> None:
        self._learning = None
        self._is_due = True
        self._follow()
        if not self._cluster.places.is_followed:
            self._stop_feeds()  # no later round will

    # Events

    def heard(self, flow: ServedFlow, message: CaughtUp | FeedEnded) -> None:
        """A follower has caught up with the owner, or its feed has ended."""
        match message:
            case CaughtUp():
                flow.feeds.caught_up(message)
                self._has_news = True
            case FeedEnded(feed=feed):
                flow.feeds.ended(feed)
                self._is_due = True

    def flows_changed(self) -> None:
        """A flow was added or dropped."""
        self._is_due = True
        self._follow()

    def keys_move(self) -> None:
        """Keys move by another strategy: no worker follows another meanwhile."""
        self._stop_feeds()
        self._is_due = True

    def _stop_feeds(self) -> None:
        for flow in self._cluster:
            flow.feeds.stop()

    def came(self, worker: WorkerId) -> None:
        """A new worker is in a place."""
        self._forget_member(worker)
        self._is_due = True

    def can_replace(self, worker: WorkerId) -> bool:
        """Whether staying workers have all slices of this worker and of lost ones, of each flow, as of its last epoch's
        end."""
        cluster = self._cluster
        gone = {*self._lost, worker}
        staying = [worker for worker in cluster.workers if worker not in gone]
        if not (cluster.places.is_reversible and cluster.has_begun and staying):
            return False
        served = [flow for flow in cluster if not flow.is_to_begin]
        return all(self._stand(flow, staying) and self._follow_all(flow, gone) for flow in served)

    def _stand(self, flow: ServedFlow, workers: Collection[WorkerId]) -> bool:
        """Whether these workers have all of the flow as of its last epoch's end."""
        members = flow.members
        return all(
            worker in members and members[worker].is_restored and members[worker].finished >= flow.ledger.through
            for worker in workers
        )

    def _follow_all(self, flow: ServedFlow, gone: Collection[WorkerId]) -> bool:
        """Whether others follow all slices of lost workers. Of a flow that keeps what is read nothing is followed."""
        if flow.keeps_only_what_is_read:
            return True
        through = flow.ledger.through if flow.rules.replication_caught_up else None
        return all(flow.feeds.is_followed(vnode, gone, through) for vnode in self._kept_by(gone))

    def _kept_by(self, workers: Collection[WorkerId]) -> list[VnodeId]:
        return [vnode for worker in sorted(workers) for vnode in self._cluster.reading.vnodes_of_worker(worker)]

    def lost(self, process: WorkerProcess) -> None:
        """Standbys will take over from this worker. Other workers will follow the owners that it followed."""
        self._lost[process.worker] = process.incarnation
        self._gone(process.worker)

    def given_up(self, process: WorkerProcess) -> None:
        """The worker is gone, and no standby can take over: a new worker in its place restores the state."""
        self.take_over_no_more()
        self._end_feeds(process.worker, is_owner_too=True)
        self._gone(process.worker)

    def take_over_no_more(self) -> None:
        """No standby takes over from a lost worker: a new one in its place restores the state."""
        for worker in self._lost:
            self._end_feeds(worker, is_owner_too=True)
        self._lost.clear()

    def _end_feeds(self, worker: WorkerId, *, is_owner_too: bool) -> None:
        for flow in self._cluster:
            flow.feeds.lost(worker, is_owner_too=is_owner_too)

    def _gone(self, worker: WorkerId) -> None:
        self._end_feeds(worker, is_owner_too=False)
        self._forget_member(worker)
        self._probes.forget(worker)
        self._is_due = True
        if self._learning is not None:
            self._learning = replace(self._learning, is_over=False)

    def _forget_member(self, worker: WorkerId) -> None:
        if self._memory is not None:
            self._memory = replace(
                self._memory,
                members=self._memory.members - {worker},
                newcomers=self._memory.newcomers - {worker},
            )

    def lease_over(self, incarnation: Incarnation) -> None:
        """This incarnation can no longer answer lookups: its lease has run out (leases.takeover_after_lease)."""
        self._silent.add(incarnation)

    def doubts(self, peer: WorkerId | None) -> bool:
        """A peer could not be reached. Whether it is lost already or is probed now: then nothing is torn meanwhile."""
        process = None if peer is None else self._cluster.processes.get(peer)
        if peer in self._lost:
            return True
        if process is None or process.worker not in self._cluster.workers or not self.can_replace(process.worker):
            return False
        self._probes.send(process)
        return True

    def here(self, message: Here) -> bool:
        """Whether this answers a probe that was still open."""
        return self._probes.answered(message.probe)

    # Between two epochs

    def wants_quiet(self) -> bool:
        """Whether it waits for the end of each flow's open epoch: until then none opens another one."""
        if self._lost:
            return False
        if self._vacant & self._cluster.processes.keys():
            return True
        due = (self._is_due and not self._waits) or (self._has_news and bool(self._assignment.learner))
        return due and self._cluster.places.is_followed

    def advance(self, *, channels: bool, may_change_hands: bool) -> bool:
        """Do what has become possible. Returns whether all workers must meet again.

        channels: there is one between any two workers. may_change_hands: nothing is under way that forbids slices to
        move."""
        cluster = self._cluster
        if self._lost:
            return self._try_take_over()
        if not may_change_hands or (cluster.rules.replication_between_epochs and not cluster.is_quiet()):
            return False
        if self._take_in():
            return True
        if not cluster.places.is_followed:
            return False
        if self._has_news and self._assignment.learner:
            self._is_due |= bool(asking_for_a_round(self._group(), self._config))
        self._has_news = False
        if not channels or (self._is_due and self._waits):  # the last round's result is outdated
            return False
        if self._is_due and self._hold_round():
            self._first = {
                flow.id: Epoch(min(flow.ledger.published, flow.ledger.through + EPOCHS_BETWEEN_MAX)) for flow in cluster
            }
            return True
        for flow in self._followed_flows:
            flow.feeds.follow(self._assignment)
        return False

    @property
    def _waits(self) -> bool:
        """replication.published_epochs_first. Flows that begin anew by the new map are not waited for: one that stands
        aside opens no epoch."""
        flows = [flow for flow in self._cluster if not flow.is_to_begin]
        return any(flow.ledger.through < self._first.get(flow.id, BEGINNING) for flow in flows)

    def flow_began_anew(self, flow: ServedFlow) -> None:
        """All shares of a flow begin from a checkpoint, or with nothing."""
        self._first.pop(flow.id, None)
        flow.feeds.forget()
        self._is_due = True

    def all_began_anew(self) -> None:
        """All shares of all flows begin from a checkpoint, or with nothing."""
        for flow in self._cluster:
            self.flow_began_anew(flow)
        self._assignment = Assignment()
        self._lost.clear()
        self._probes.forget_all()
        self._vacant.difference_update(self._cluster.workers)
        self._is_due = True
        self._follow()

    def _take_in(self) -> bool:
        """A worker that has come to a vacant place takes part from now on, though it keeps nothing yet."""
        cluster = self._cluster
        come = sorted(self._vacant & cluster.processes.keys())
        for worker in come:
            self._vacant.discard(worker)
            cluster.join(cluster.processes[worker])
        cluster.admit(come)
        self._is_due |= bool(come)
        return bool(come)

    def _try_take_over(self) -> bool:
        """Let standbys take over once no lost worker can still answer lookups."""
        if not self._silent.issuperset(self._lost.values()):
            return False
        cluster = self._cluster
        cluster.leave_out(self._lost)
        self._vacant |= self._lost.keys()
        cluster.lose_changes()
        self._lost.clear()
        self._probes.forget_all()  # messages on their way no longer matter, and an answer may not be heard any more
        plan = assign(self._group(), self._config)
        self._assignment, self._memory, self._is_due = plan.assignment, plan.memory, True
        self._hand_over(plan.assignment.active)
        return True

    def _hold_round(self) -> bool:
        """Hold a round of assignment. Returns whether slices change hands."""
        self._is_due = False
        plan = assign(self._group(), self._config)
        self._assignment, self._memory = plan.assignment, plan.memory
        learning = self._learning
        if learning is not None:
            is_over = not plan.another_round and plan.may_stop >= learning.leaving
            self._learning = replace(learning, is_over=is_over)
        is_new = self._owners(plan.assignment.active) != self._cluster.reading.owners
        if is_new:
            self._hand_over(plan.assignment.active)
        return is_new

    def _owners(self, active: Mapping[TaskId, WorkerId]) -> tuple[WorkerId, ...]:
        return tuple(active[TaskId(vnode)] for vnode in range(len(self._cluster.reading.owners)))

    def _hand_over(self, active: Mapping[TaskId, WorkerId]) -> None:
        """All shares resume by another map. Where a new owner has not followed its slices of a flow, the flow begins
        anew by it."""
        cluster, before = self._cluster, self._cluster.reading
        after = VnodeMap(type(before.version)(before.version + 1), self._owners(active))
        moved = before.diff(after)
        anew = [flow for flow in cluster if not self._has_followed(flow, moved)]
        cluster.go_by_one(after)
        for flow in cluster:
            if flow in anew:
                flow.start_anew()
                flow.scans.start_anew()
                self.flow_began_anew(flow)
            else:
                flow.feeds.resume(moved)
                flow.resume(after)

    def _has_followed(self, flow: ServedFlow, moved: Mapping[VnodeId, tuple[WorkerId, WorkerId]]) -> bool:
        """Whether each new owner has its slices of a flow, or the flow keeps only what is read."""
        if flow.is_to_begin:
            return False
        through = flow.ledger.through if flow.rules.replication_caught_up else None
        follows = all(flow.feeds.follows(now, vnode, through) for vnode, (_, now) in moved.items())
        return follows or flow.keeps_only_what_is_read

    def _group(self) -> Group:
        cluster = self._cluster
        processes = {w: cluster.processes[w] for w in cluster.workers if w in cluster.processes}
        instances: dict[InstanceId, list[WorkerId]] = {}
        for worker, process in sorted(processes.items()):
            instances.setdefault(InstanceId(process.instance), []).append(worker)
        stateful = not cluster.keeps_only_what_is_read
        if self._learning is not None:
            stateful = bool(self._followed_flows)  # all others begin anew: there is nothing to learn of them
        learning = self._learning or LearningSlices(frozenset())
        since_ms = self._config.scale_down_timeout_ms if learning.overdue else 0
        lags: defaultdict[TaskId, dict[WorkerId, int]] = defaultdict(dict)
        for vnode, worker in self._complete():  # no other copy can take over
            lags[TaskId(vnode)][worker] = 0
        return Group(
            tasks=[Task(TaskId(vnode), stateful) for vnode in range(len(cluster.reading.owners))],
            instances=instances,
            held=self._held(),
            lag_epochs=lags,
            leaving=dict.fromkeys(learning.leaving & processes.keys(), since_ms or 0),
            memory=self._memory,
        )

    def _held(self) -> Assignment:
        """The part of the last round's assignment that is real: tasks by the map, copies by the feeds of all flows."""
        active = {TaskId(vnode): owner for vnode, owner in enumerate(self._cluster.reading.owners)}
        fed = [flow.feeds.fed() for flow in self._followed_flows]
        there = fed[0].intersection(*fed[1:]) if fed else frozenset()
        last = self._assignment
        standby = {
            task: frozenset(worker for worker in holders if (VnodeId(task), worker) in there)
            for task, holders in last.standby.items()
        }
        return Assignment(
            active=active,
            standby={task: holders for task, holders in standby.items() if holders},
            learner={task: worker for task, worker in last.learner.items() if (VnodeId(task), worker) in there},
        )
