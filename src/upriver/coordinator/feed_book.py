"""The coordinator's account of feeds: who follows whom, and how far everybody is; rule S1."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.membership.group import Assignment, TaskId
from upriver.ids import BEGINNING, Epoch, FeedId, VnodeId, WorkerId
from upriver.protocol.standby_messages import CaughtUp, Follow, Unfollow


@dataclass(slots=True)
class FeedLine:
    """since: the first epoch at whose end the follower had everything. through: the last."""

    owner: WorkerId
    follower: WorkerId
    vnodes: set[VnodeId]
    since: Epoch | None = None
    through: Epoch = BEGINNING

    def is_as_of(self, epoch: Epoch) -> bool:
        return self.since is not None and self.since <= epoch <= self.through


class FeedBook:
    """Of one app."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lines: dict[FeedId, FeedLine] = {}
        self._last = 0
        self._agreed: Assignment | None = None
        """What all follow by now."""

    def caught_up(self, message: CaughtUp) -> None:
        line = self._lines.get(message.feed)
        if line is not None:
            line.since = message.epoch if line.since is None else line.since
            line.through = Epoch(max(line.through, message.epoch))

    def have(self, epoch: Epoch) -> bool:
        """Whether all followers that had everything once have all as of the end of this epoch."""
        return all(line.since is None or line.through >= epoch for line in self._lines.values())

    def follows(self, worker: WorkerId, vnode: VnodeId, through: Epoch | None) -> bool:
        """Whether the worker has this slice as of the end of that epoch; ``None``: of any."""
        return any(
            line.follower == worker and vnode in line.vnodes and (through is None or line.is_as_of(through))
            for line in self._lines.values()
        )

    def is_followed(self, vnode: VnodeId, gone: Collection[WorkerId], through: Epoch | None) -> bool:
        """Whether anybody has it who is not gone."""
        followers = {line.follower for line in self._lines.values() if vnode in line.vnodes} - set(gone)
        return any(self.follows(worker, vnode, through) for worker in followers)

    def ended(self, feed: FeedId) -> None:
        """The owner feeds this no more."""
        line = self._lines.pop(feed, None)
        self._agreed = None
        if line is not None:
            self._tell(line.follower, Unfollow(feed=feed, vnodes=tuple(sorted(line.vnodes))))

    def lost(self, worker: WorkerId, *, is_owner_too: bool) -> None:
        """Nobody is fed any more who was in this place; or by who was, if nobody takes over from it."""
        self._agreed = None
        for feed, line in list(self._lines.items()):
            if line.follower == worker:
                del self._lines[feed]
            elif line.owner == worker and is_owner_too:
                self.ended(feed)

    def stop(self) -> None:
        """Nobody follows anybody."""
        for feed in list(self._lines):
            self.ended(feed)

    def forget(self) -> None:
        """All workers have begun anew, and know of no feed."""
        self._lines.clear()
        self._agreed = None

    def resume(self, moved: Collection[VnodeId]) -> None:
        """All resume as of the end of the last epoch, and these slices change hands: who follows them is to follow
        another."""
        through, self._agreed = self._cluster.ledger.through, None
        for feed, line in list(self._lines.items()):
            line.vnodes.difference_update(moved)
            if not line.vnodes:
                del self._lines[feed]
            if line.since is not None and line.since > through:
                line.since = None
            line.through = Epoch(min(line.through, through))

    def follow(self, wanted: Assignment) -> None:
        """Have everybody follow what it is to follow, and nothing else. There is a channel between any two workers."""
        if wanted is self._agreed:
            return
        self._agreed, wishes = wanted, _wishes(wanted)
        for feed, line in list(self._lines.items()):
            surplus = {vnode for vnode in line.vnodes if (vnode, line.follower) not in wishes}
            if surplus:
                self._tell(line.follower, Unfollow(feed=feed, vnodes=tuple(sorted(surplus))))
            line.vnodes -= surplus
            if not line.vnodes:
                del self._lines[feed]
        there = {(vnode, line.follower) for line in self._lines.values() for vnode in line.vnodes}
        self._begin(wishes - there)

    def _begin(self, wishes: Iterable[tuple[VnodeId, WorkerId]]) -> None:
        pairs: defaultdict[tuple[WorkerId, WorkerId], list[VnodeId]] = defaultdict(list)
        for vnode, follower in sorted(wishes):
            pairs[self._cluster.reading.owners[vnode], follower].append(vnode)
        for (owner, follower), vnodes in sorted(pairs.items()):
            self._last += 1
            feed = FeedId(self._last)
            self._lines[feed] = FeedLine(owner, follower, set(vnodes))
            self._tell(follower, Follow(feed=feed, owner=owner, vnodes=tuple(vnodes)))

    def held(self, last: Assignment) -> Assignment:
        """What of the last round's assignment there is: tasks are where the map says, and copies where feeds are."""
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
        """How many epochs each copy is behind: none, of those that have everything as of the last epoch's end. No other
        one can take over."""
        lags: defaultdict[TaskId, dict[WorkerId, int]] = defaultdict(dict)
        for line in self._lines.values():
            if line.is_as_of(self._cluster.ledger.through):
                for vnode in line.vnodes:
                    lags[TaskId(vnode)][line.follower] = 0
        return lags

    def followed(self, copies: int) -> int:
        """Of how many vnodes so many workers have all as of the last epoch's end. May be asked while all this changes:
        it looks at copies."""
        counts = Counter[VnodeId]()
        for line in tuple(self._lines.values()):
            if line.is_as_of(self._cluster.ledger.through):
                counts.update(tuple(line.vnodes))
        return sum(count >= copies for count in counts.values())

    def _tell(self, worker: WorkerId, message: Follow | Unfollow) -> None:
        member = self._cluster.members.get(worker)
        if member is not None:
            self._cluster.tell(member, message)


def _wishes(wanted: Assignment) -> set[tuple[VnodeId, WorkerId]]:
    copies = {(VnodeId(task), worker) for task, holders in wanted.standby.items() for worker in holders}
    return copies | {(VnodeId(task), worker) for task, worker in wanted.learner.items()}
