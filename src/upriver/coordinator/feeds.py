"""The coordinator's account of a flow's feeds: which worker follows which, and how far each follower is; rule
replication.epoch_waits_for_followers. ``docs/internals/standbys.md``."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from upriver.coordinator.flow import Flow
from upriver.coordinator.group import Assignment
from upriver.ids import BEGINNING, Epoch, FeedId, VnodeId, WorkerId
from upriver.protocol.messages import CaughtUp, Follow, Unfollow


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
    """All feeds of one flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
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
        through, self._agreed = self._flow.ledger.through, None
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
        self._begin(wanted_followers - self.fed())

    def _begin(self, wanted_followers: Iterable[tuple[VnodeId, WorkerId]]) -> None:
        pairs: defaultdict[tuple[WorkerId, WorkerId], list[VnodeId]] = defaultdict(list)
        for vnode, follower in sorted(wanted_followers):
            pairs[self._flow.reading.owners[vnode], follower].append(vnode)
        for (owner, follower), vnodes in sorted(pairs.items()):
            self._last += 1
            feed = FeedId(self._last)
            self._lines[feed] = FeedLine(owner, follower, set(vnodes))
            self._tell(follower, Follow(feed=feed, owner=owner, vnodes=tuple(vnodes)))

    def fed(self) -> frozenset[tuple[VnodeId, WorkerId]]:
        """The slices and the workers that follow them."""
        return frozenset((vnode, line.follower) for line in self._lines.values() for vnode in line.vnodes)

    def complete(self) -> frozenset[tuple[VnodeId, WorkerId]]:
        """The slices and the workers that have all of them as of the last epoch's end: no other copy can take over.
        Another thread may call it while feeds change: it reads copies."""
        return frozenset(
            (vnode, line.follower)
            for line in tuple(self._lines.values())
            if line.is_as_of(self._flow.ledger.through)
            for vnode in tuple(line.vnodes)
        )

    def _tell(self, worker: WorkerId, message: Follow | Unfollow) -> None:
        member = self._flow.members.get(worker)
        if member is not None:
            self._flow.tell(member, message)


def _followers_of(wanted: Assignment) -> set[tuple[VnodeId, WorkerId]]:
    copies = {(VnodeId(task), worker) for task, holders in wanted.standby.items() for worker in holders}
    return copies | {(VnodeId(task), worker) for task, worker in wanted.learner.items()}
