"""The leader of the group (document 002): it assigns learners and standbys, and decides when slices change hands.

``docs/internals/standbys.md`` and ``docs/internals/membership.md``. The leader holds a round of assignment between two
epochs, when a worker comes or goes or a learner has caught up. Slices that a round gives to another worker are handed
over at once: all workers resume by the new map. When a worker is lost, the standbys of its slices take over.

The coordinator's account of feeds, ``FeedBook``: which worker follows which, and how far each follower is; rule
replication.epoch_waits_for_followers.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from upriver.coordinator.assignor import assign
from upriver.coordinator.cluster import Cluster, Member
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
from upriver.coordinator.spread import host_of
from upriver.ids import BEGINNING, Epoch, FeedId, Incarnation, VnodeId, WorkerId
from upriver.protocol.messages import CaughtUp, FeedEnded, Follow, Here, Probe, Unfollow
from upriver.vnodes import VnodeMap


@dataclass(slots=True)
class FeedLine:
    """One feed. since: the first epoch at whose end the follower had everything. through: the last."""

    owner: WorkerId
    follower: WorkerId
    vnodes: set[VnodeId]
    since: Epoch | None = None
    through: Epoch = BEGINNING

    def is_as_of(self, epoch: Epoch) -> bool:
        return self.since is not None and self.since <= epoch <= self.through


class FeedBook:
    """All feeds of one app."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lines: dict[FeedId, FeedLine] = {}
        self._last = 0
        self._agreed: Assignment | None = None
        """The assignment that all feeds match by now."""

    def caught_up(self, message: CaughtUp) -> None:
        line = self._lines.get(message.feed)
        if line is not None:
            line.since = message.epoch if line.since is None else line.since
            line.through = Epoch(max(line.through, message.epoch))

    def have(self, epoch: Epoch) -> bool:
        """Whether every follower that has ever caught up has everything as of the end of this epoch."""
        return all(line.since is None or line.through >= epoch for line in self._lines.values())

    def follows(self, worker: WorkerId, vnode: VnodeId, through: Epoch | None) -> bool:
        """Whether the worker has this slice as of the end of epoch ``through``; ``None``: of any epoch."""
        return any(
            line.follower == worker and vnode in line.vnodes and (through is None or line.is_as_of(through))
            for line in self._lines.values()
        )

    def is_followed(self, vnode: VnodeId, gone: Collection[WorkerId], through: Epoch | None) -> bool:
        """Whether a worker that is not gone has this slice."""
        followers = {line.follower for line in self._lines.values() if vnode in line.vnodes} - set(gone)
        return any(self.follows(worker, vnode, through) for worker in followers)

    def ended(self, feed: FeedId) -> None:
        """The owner has ended this feed."""
        line = self._lines.pop(feed, None)
        self._agreed = None
        if line is not None:
            self._tell(line.follower, Unfollow(feed=feed, vnodes=tuple(sorted(line.vnodes))))

    def lost(self, worker: WorkerId, *, is_owner_too: bool) -> None:
        """End the feeds to this worker. is_owner_too: also those from it, because no worker takes over from it."""
        self._agreed = None
        for feed, line in list(self._lines.items()):
            if line.follower == worker:
                del self._lines[feed]
            elif line.owner == worker and is_owner_too:
                self.ended(feed)

    def stop(self) -> None:
        """End all feeds."""
        for feed in list(self._lines):
            self.ended(feed)

    def forget(self) -> None:
        """All workers have begun anew, and know of no feed."""
        self._lines.clear()
        self._agreed = None

    def resume(self, moved: Collection[VnodeId]) -> None:
        """All workers resume as of the last epoch's end, and these slices change hands. Their feeds end: followers have
        to follow the new owner."""
        through, self._agreed = self._cluster.ledger.through, None
        for feed, line in list(self._lines.items()):
            line.vnodes.difference_update(moved)
            if not line.vnodes:
                del self._lines[feed]
            if line.since is not None and line.since > through:
                line.since = None
            line.through = Epoch(min(line.through, through))

    def follow(self, wanted: Assignment) -> None:
        """Make the feeds match this assignment. There is a channel between any two workers."""
        if wanted is self._agreed:
            return
        self._agreed, wanted_followers = wanted, _followers_of(wanted)
        for feed, line in list(self._lines.items()):
            surplus = {vnode for vnode in line.vnodes if (vnode, line.follower) not in wanted_followers}
            if surplus:
                self._tell(line.follower, Unfollow(feed=feed, vnodes=tuple(sorted(surplus))))
            line.vnodes -= surplus
            if not line.vnodes:
                del self._lines[feed]
        there = {(vnode, line.follower) for line in self._lines.values() for vnode in line.vnodes}
        self._begin(wanted_followers - there)

    def _begin(self, wanted_followers: Iterable[tuple[VnodeId, WorkerId]]) -> None:
        pairs: defaultdict[tuple[WorkerId, WorkerId], list[VnodeId]] = defaultdict(list)
        for vnode, follower in sorted(wanted_followers):
            pairs[self._cluster.reading.owners[vnode], follower].append(vnode)
        for (owner, follower), vnodes in sorted(pairs.items()):
            self._last += 1
            feed = FeedId(self._last)
            self._lines[feed] = FeedLine(owner, follower, set(vnodes))
            self._tell(follower, Follow(feed=feed, owner=owner, vnodes=tuple(vnodes)))

    def held(self, last: Assignment) -> Assignment:
        """The part of the last round's assignment that is real: tasks by the map, copies by the feeds."""
        there = {(vnode, line.follower) for line in self._lines.values() for vnode in line.vnodes}
        standby = {
            task: frozenset(worker for worker in holders if (VnodeId(task), worker) in there)
            for task, holders in last.standby.items()
        }
        return Assignment(
            active={TaskId(vnode): owner for vnode, owner in enumerate(self._cluster.reading.owners)},
            standby={task: holders for task, holders in standby.items() if holders},
            learner={task: worker for task, worker in last.learner.items() if (VnodeId(task), worker) in there},
        )

    def lags(self) -> dict[TaskId, dict[WorkerId, int]]:
        """How many epochs each copy is behind. Only copies that are complete as of the last epoch's end are in it, with
        0: no other copy can take over."""
        lags: defaultdict[TaskId, dict[WorkerId, int]] = defaultdict(dict)
        for line in self._lines.values():
            if line.is_as_of(self._cluster.ledger.through):
                for vnode in line.vnodes:
                    lags[TaskId(vnode)][line.follower] = 0
        return lags

    def followed(self, copies: int) -> int:
        """How many vnodes have this many complete copies as of the last epoch's end. Another thread may call it while
        feeds change: it reads copies."""
        counts = Counter[VnodeId]()
        for line in tuple(self._lines.values()):
            if line.is_as_of(self._cluster.ledger.through):
                counts.update(tuple(line.vnodes))
        return sum(count >= copies for count in counts.values())

    def _tell(self, worker: WorkerId, message: Follow | Unfollow) -> None:
        member = self._cluster.members.get(worker)
        if member is not None:
            self._cluster.tell(member, message)


def _followers_of(wanted: Assignment) -> set[tuple[VnodeId, WorkerId]]:
    copies = {(VnodeId(task), worker) for task, holders in wanted.standby.items() for worker in holders}
    return copies | {(VnodeId(task), worker) for task, worker in wanted.learner.items()}


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

    def send(self, member: Member) -> None:
        """Ask the worker whether it is there."""
        self._last += 1
        self._open[self._last] = member.worker
        self._cluster.tell(member, Probe(probe=self._last))

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
        self._feeds = FeedBook(cluster)
        self._born = cluster.generation.born
        self._assignment = Assignment()
        """The last round's result."""
        self._memory: LeaderMemory | None = LeaderMemory()
        self._is_due = True
        """Something has changed that needs a round."""
        self._has_news = False
        """A follower has caught up since the leader last checked which followers request a round. It has caught up as
        of an epoch that may not be over."""
        self._learning: LearningSlices | None = None
        self._first = BEGINNING
        """replication.published_epochs_first: the next round waits for the epochs up to this one. They were published
        when slices last changed hands. Without this, epochs would pile up while a worker learns, where a round takes
        longer than an epoch."""
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
        """Decide whether workers follow each other. If so, epochs are opened one at a time, and all have channels."""
        stands_by = self._config.num_standby_replicas > 0 and not self._cluster.keeps_only_what_is_read
        is_followed = bool(self._cluster.plans) and (stands_by or self._learning is not None)
        self._cluster.follow(is_followed=is_followed, is_reversible=stands_by)

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
        wanted = self._config.num_standby_replicas if self._cluster.is_reversible else 0
        ready = self._feeds.followed(wanted) if wanted else 0
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
        members = dict(cluster.members)
        if missing := [worker for worker in cluster.workers if worker not in members]:
            return f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} not up"
        places: dict[str, list[WorkerId]] = {}
        for worker in cluster.workers:
            places.setdefault(members[worker].instance, []).append(worker)
        if len(places) > wanted:
            return None
        where = "; ".join(
            f"{_listed(workers)} in {'one executor' if len(workers) > 1 else 'an executor'} on {host_of(instance)}"
            for instance, workers in sorted(places.items())
        )
        return (
            f"{where}. A standby is never in the executor of its active or of another standby: {wanted + 1} executors "
            f"must run workers. Give the app more workers, or Spark more executors"
        )

    def has(self, epoch: Epoch) -> bool:
        """replication.epoch_waits_for_followers: whether every follower that has caught up has what changed in this
        epoch."""
        return self._feeds.have(epoch)

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
        if not self._cluster.is_followed:
            self._feeds.stop()  # no later round will

    # Events

    def heard(self, message: CaughtUp | FeedEnded) -> None:
        """A follower has caught up with the owner, or its feed has ended."""
        match message:
            case CaughtUp():
                self._feeds.caught_up(message)
                self._has_news = True
            case FeedEnded(feed=feed):
                self._feeds.ended(feed)
                self._is_due = True

    def replanned(self) -> None:
        """The set of views has changed."""
        self._follow()

    def keys_move(self) -> None:
        """Keys move by another strategy: no worker follows another meanwhile."""
        self._feeds.stop()
        self._is_due = True

    def came(self, worker: WorkerId) -> None:
        """A new worker is in a place."""
        self._forget_member(worker)
        self._is_due = True

    def can_replace(self, member: Member) -> bool:
        """Whether staying workers have all slices of this worker and of lost ones, as of the last epoch's end."""
        cluster = self._cluster
        gone = {*self._lost, member.worker}
        staying = [worker for worker in cluster.workers if worker not in gone]
        if not (cluster.is_reversible and cluster.has_begun and staying and self._are_there(staying)):
            return False
        through = cluster.ledger.through if cluster.rules.replication_caught_up else None
        return all(self._feeds.is_followed(vnode, gone, through) for vnode in self._kept_by(gone))

    def _are_there(self, workers: Collection[WorkerId]) -> bool:
        members = self._cluster.members
        return all(
            worker in members
            and members[worker].is_restored
            and members[worker].finished >= self._cluster.ledger.through
            for worker in workers
        )

    def _kept_by(self, workers: Collection[WorkerId]) -> list[VnodeId]:
        return [vnode for worker in sorted(workers) for vnode in self._cluster.reading.vnodes_of_worker(worker)]

    def lost(self, member: Member) -> None:
        """Standbys will take over from this worker. Other workers will follow the owners that it followed."""
        self._lost[member.worker] = member.incarnation
        self._gone(member.worker)

    def given_up(self, member: Member) -> None:
        """The worker is gone, and no standby can take over: a new worker in its place restores the state."""
        for worker in (*self._lost, member.worker):
            self._feeds.lost(worker, is_owner_too=True)
        self._lost.clear()
        self._gone(member.worker)

    def _gone(self, worker: WorkerId) -> None:
        self._feeds.lost(worker, is_owner_too=False)
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
        member = None if peer is None else self._cluster.members.get(peer)
        if peer in self._lost:
            return True
        if member is None or peer not in self._cluster.workers or not self.can_replace(member):
            return False
        self._probes.send(member)
        return True

    def here(self, message: Here) -> bool:
        """Whether this answers a probe that was still open."""
        return self._probes.answered(message.probe)

    # Between two epochs

    def advance(self, *, channels: bool, may_change_hands: bool) -> bool:
        """Do what has become possible. Returns whether all workers must meet again.

        channels: there is one between any two workers. may_change_hands: nothing is under way that forbids slices to
        move."""
        cluster = self._cluster
        if self._born != cluster.generation.born:
            self._begin_anew()
        if self._lost:
            return self._try_take_over()
        quiet = cluster.is_quiet() or not cluster.rules.replication_between_epochs
        if not cluster.is_followed or not (quiet and may_change_hands):
            return False
        if self._take_in():
            return True
        if self._has_news and self._assignment.learner:
            self._is_due |= bool(asking_for_a_round(self._group(), self._config))
        self._has_news = False
        waits = (
            self._is_due and cluster.ledger.through < self._first
        )  # replication.published_epochs_first; the last round's result is outdated
        if not channels or waits:
            return False
        if self._is_due and self._hold_round():
            self._first = Epoch(min(cluster.ledger.published, cluster.ledger.through + EPOCHS_BETWEEN_MAX))
            return True
        self._feeds.follow(self._assignment)
        return False

    def _begin_anew(self) -> None:
        """All workers begin from a checkpoint, or with nothing."""
        self._born = self._cluster.generation.born
        self._first = BEGINNING
        self._feeds.forget()
        self._assignment = Assignment()
        self._lost.clear()
        self._probes.forget_all()
        self._vacant.difference_update(self._cluster.workers)
        self._is_due = True
        self._follow()

    def _take_in(self) -> bool:
        """A worker that has come to a vacant place takes part from now on, though it keeps nothing yet."""
        cluster = self._cluster
        come = sorted(self._vacant & cluster.members.keys())
        for worker in come:
            self._vacant.discard(worker)
            cluster.assign(
                cluster.members[worker], start_at=cluster.ledger.through, serve_from=cluster.generation.serve_from
            )
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
        """All workers resume by another map. If a new owner has not followed its slices, they begin anew by it."""
        cluster, before = self._cluster, self._cluster.reading
        after = VnodeMap(type(before.version)(before.version + 1), self._owners(active))
        moved = before.diff(after)
        through = cluster.ledger.through if cluster.rules.replication_caught_up else None
        follows = all(self._feeds.follows(now, vnode, through) for vnode, (_, now) in moved.items())
        if follows or cluster.keeps_only_what_is_read:
            self._feeds.resume(moved)
            cluster.resume(after)
        else:
            cluster.go_by(dict.fromkeys(cluster.maps, after))
            cluster.start_anew()

    def _group(self) -> Group:
        cluster = self._cluster
        members = {worker: cluster.members[worker] for worker in cluster.workers if worker in cluster.members}
        instances: dict[InstanceId, list[WorkerId]] = {}
        for worker, member in sorted(members.items()):
            instances.setdefault(InstanceId(member.instance), []).append(worker)
        stateful = not cluster.keeps_only_what_is_read
        learning = self._learning or LearningSlices(frozenset())
        since_ms = self._config.scale_down_timeout_ms if learning.overdue else 0
        return Group(
            tasks=[Task(TaskId(vnode), stateful) for vnode in range(len(cluster.reading.owners))],
            instances=instances,
            held=self._feeds.held(self._assignment),
            lag_epochs=self._feeds.lags(),
            leaving=dict.fromkeys(learning.leaving & members.keys(), since_ms or 0),
            memory=self._memory,
        )


def _listed(workers: Sequence[WorkerId]) -> str:
    """``worker 2``, ``workers 2, 3``."""
    return f"worker{'' if len(workers) == 1 else 's'} {', '.join(map(str, sorted(workers)))}"
