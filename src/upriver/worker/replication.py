"""Replication between workers: a worker feeds its followers, and follows owners itself; ``docs/internals/standbys.md``.

As an owner, it sends a follower the state of some slices, then, at each epoch's end, what has changed. A copy is as of
any moment, and keys that change afterwards are copied again. So when nothing is left to copy at an epoch's end, the
follower has everything as of that end. Rules replication.epoch_waits_for_followers and
replication.put_back_has_changed.

As a follower, it keeps an owner's state of some slices, as of the end of each epoch. Rules
replication.epoch_waits_for_followers, replication.taken_in_when_over and replication.unfed_says_so.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from upriver.engine.region import FullRegionState
from upriver.errors import ProtocolError
from upriver.ids import BEGINNING, Epoch, FeedId, Incarnation, VnodeId, WorkerId
from upriver.protocol.messages import CaughtUp, FeedEnded, Follow, Meet, TookOver, Unfollow
from upriver.protocol.peers import BeginFeed, EndFeed, Fed, FedThrough, RowsForwardedBack
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import TimeToFeed
from upriver.state.checkpoint import StateChunk
from upriver.state.vectors import key_set
from upriver.worker.peers import KnownPeers, StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions

AT_ONCE = Epoch(0)
"""The epoch of a copy that is as of no epoch's end."""
LOADS_OUT_MAX = 2
"""Copies on their way to one follower at most, before it has taken in the first: it has other work to do."""


@dataclass(slots=True)
class ReplicaFeed:
    """A feed at the owner. to, incarnation: the follower. vnodes: the slices. out: loads sent that are not known to be
    taken in. is_whole: the follower has had everything at the end of some epoch."""

    to: WorkerId
    incarnation: Incarnation | None
    vnodes: set[VnodeId]
    out: int = 0
    is_whole: bool = False


@dataclass(slots=True)
class ReplicaSlices:
    """A feed at the follower: its slices, as of the end of epoch ``through``, once all of them are here.

    regions: those that keep every key, by name. since: the first epoch at whose end everything was here. later: changes
    of epochs that may not be over, in the order of their arrival.
    """

    owner: WorkerId
    vnodes: set[VnodeId]
    regions: dict[str, FullRegionState]
    since: Epoch | None = None
    through: Epoch = BEGINNING
    later: list[tuple[Epoch, str, StateChunk]] = field(default_factory=list)

    def replace(self, region: str, chunk: StateChunk) -> None:
        """Replace the state of these keys. A region whose view has failed keeps nothing."""
        kept = self.regions.get(region)
        if kept is not None:
            kept.drop(chunk.keys)
            kept.install(chunk.parts)

    def keep_for_later(self, epoch: Epoch, region: str, chunk: StateChunk) -> None:
        """Keep changes of an epoch that may not be over."""
        self.later.append((epoch, region, chunk))

    def complete(self, epoch: Epoch) -> None:
        """Everything is here as of the end of this epoch."""
        if self.since is None:
            self.since = epoch
        self.through = epoch

    def forget_regions(self, regions: Collection[str]) -> None:
        """The view of these regions has failed."""
        for name in regions:
            self.regions.pop(name, None)
        self.later = [entry for entry in self.later if entry[1] not in regions]

    def take_in(self, epoch: Epoch) -> None:
        """The epoch is over everywhere: take in its changes."""
        due = [(region, chunk) for of, region, chunk in self.later if of <= epoch]
        self.later = [entry for entry in self.later if entry[0] > epoch]
        for region, chunk in due:
            self.replace(region, chunk)

    def go_back_to(self, epoch: Epoch) -> None:
        """Discard changes of later epochs: they will come again."""
        self.later = [entry for entry in self.later if entry[0] <= epoch]
        if self.since is not None and self.since > epoch:
            self.since = None
        self.through = Epoch(min(self.through, epoch))

    def is_as_of(self, epoch: Epoch) -> bool:
        """Whether everything is here as of the end of this epoch."""
        return self.since is not None and self.since <= epoch <= self.through

    def hand_over(self, vnodes: Collection[VnodeId], count: int) -> dict[str, StateChunk]:
        """Remove and return the whole state of these slices, by region. count: the number of vnodes in the lake."""
        handed = {}
        for name, region in self.regions.items():
            keys = key_set(*(region.keys_of(vnode, count) for vnode in vnodes))
            handed[name] = StateChunk(keys, tuple(region.collect(keys)))
        self.forget(vnodes, count)
        return handed

    def forget(self, vnodes: Collection[VnodeId], count: int) -> None:
        """Keep nothing of these slices."""
        self.vnodes.difference_update(vnodes)
        self.later = [(epoch, region, chunk.among(self.vnodes, count)) for epoch, region, chunk in self.later]
        for region in self.regions.values() if self.vnodes else ():
            for vnode in vnodes:
                region.drop(region.keys_of(vnode, count))


class Replication:
    """The feeds from this worker to its followers, and the slices that it follows."""

    def __init__(
        self, regions: Regions, progress: EpochProgress, peers: KnownPeers, output: StepOutput, rules: Rules
    ) -> None:
        self.feeds: dict[FeedId, ReplicaFeed] = {}
        """The feeds from this worker to its followers."""
        self.followed: dict[FeedId, ReplicaSlices] = {}
        """The slices that this worker follows."""
        self._due: list[tuple[WorkerId, BeginFeed]] = []
        """Feeds that begin when the open epoch is over, with their followers."""
        self._regions = regions
        self._progress = progress
        self._peers = peers
        self._output = output
        self._rules = rules

    def follow(self, event: Follow) -> None:
        self.followed[event.feed] = ReplicaSlices(event.owner, set(event.vnodes), self._regions.empty_full())
        if self._peers.meet is None and self._rules.replication_unfed_says_so:  # the channel is lost already
            self._output.report(FeedEnded(feed=event.feed))
        else:
            self._output.send(event.owner, BeginFeed(feed=event.feed, vnodes=event.vnodes))

    def stop_following(self, owner: WorkerId | None) -> None:
        """The channel to an owner is gone; ``None``: to an unknown one. The owner may never have heard of the feed, and
        then it does not report its end (replication.unfed_says_so)."""
        for feed, slices in self.followed.items():
            if slices.since is None and owner in (None, slices.owner) and self._rules.replication_unfed_says_so:
                self._output.report(FeedEnded(feed=feed))

    def unfollow(self, event: Unfollow) -> None:
        slices = self.followed.get(event.feed)
        if slices is None:
            return
        slices.forget(event.vnodes, self._regions.vnodes)
        if not slices.vnodes:
            del self.followed[event.feed]
        if self._peers.reaches(slices.owner):
            self._output.send(slices.owner, EndFeed(feed=event.feed, vnodes=event.vnodes))

    def fed(self, event: Fed) -> None:
        """State has come. It is ignored if its feed is over."""
        slices = self.followed.get(event.feed)
        if slices is None:
            return
        chunk = StateChunk(event.keys, event.state).among(
            slices.vnodes, self._regions.vnodes
        )  # some slices may be unfollowed
        if event.epoch <= self._progress.reflected or not self._rules.replication_taken_in_when_over:
            slices.replace(event.region, chunk)
        else:
            slices.keep_for_later(event.epoch, event.region, chunk)
        if not event.epoch:
            self._output.send(slices.owner, RowsForwardedBack(feed=event.feed))

    def fed_through(self, event: FedThrough, generation: int) -> None:
        """The follower has everything as of the end of an epoch. generation: of the message; the epoch may have been
        put back since."""
        slices = self.followed.get(event.feed)
        if slices is None or generation < self._output.generation:
            return
        slices.complete(event.epoch)
        self._output.report(CaughtUp(feed=event.feed, epoch=event.epoch))

    def take_in(self, epoch: Epoch) -> None:
        """replication.taken_in_when_over: the epoch is over everywhere."""
        for slices in self.followed.values():
            slices.take_in(epoch)

    def begin_feed(self, sender: WorkerId, request: BeginFeed) -> None:
        """Begin a feed. Rows that are gathered already will be settled without a note for the feed. So with exchange
        edges, it begins at the end of an epoch."""
        self._due.append((sender, request))
        self.feed_between_epochs()

    def _start_feed(self, sender: WorkerId, request: BeginFeed) -> None:
        mine = [vnode for vnode in request.vnodes if self._regions.keeps(vnode)]
        if not mine or not self._peers.reaches(sender):  # another worker owns them by now, or the follower is gone
            self._output.report(FeedEnded(feed=request.feed))
            return
        self.feeds[request.feed] = ReplicaFeed(sender, self._peers.incarnation_of(sender), set(mine))
        for shard in self._regions.full.values():
            shard.follow(request.feed, mine)

    def end_feed(self, request: EndFeed) -> None:
        for place, (sender, waiting) in enumerate(self._due):
            if waiting.feed == request.feed:
                left = tuple(vnode for vnode in waiting.vnodes if vnode not in request.vnodes)
                self._due[place] = sender, replace(waiting, vnodes=left)
        feed = self.feeds.get(request.feed)
        if feed is not None:
            self.restrict_feed(request.feed, feed.vnodes.difference(request.vnodes))

    def restrict_feed(self, number: FeedId, vnodes: set[VnodeId]) -> None:
        """Restrict a feed to these slices."""
        feed = self.feeds[number]
        feed.vnodes = vnodes
        if not vnodes:
            del self.feeds[number]
        for shard in self._regions.shards.values():
            shard.logs.restrict_feed(number, vnodes)

    def copy_taken_in(self, answer: RowsForwardedBack) -> None:
        feed = self.feeds.get(answer.feed)
        if feed is not None:
            feed.out -= 1

    @property
    def can_feed(self) -> bool:
        """Whether ``TimeToFeed`` would copy a key."""
        return any(feed.out < LOADS_OUT_MAX and self._copies(number) for number, feed in self.feeds.items())

    def time_to_feed(self, event: TimeToFeed) -> None:
        """Send the next keys to the follower with the fewest copies on their way."""
        free = [number for number, feed in self.feeds.items() if feed.out < LOADS_OUT_MAX and self._copies(number)]
        if not free:
            return
        number = min(free, key=lambda feed: (self.feeds[feed].out, feed))
        for name, shard in self._regions.full.items():
            chunk = shard.copy_for(number, event.keys_max)
            if chunk is not None:
                self.feeds[number].out += 1
                self._send(number, name, AT_ONCE, chunk)
                break
        self.feed_between_epochs()

    def feed_epoch(self) -> None:
        """This worker has finished its work on an epoch: send the changes to its followers
        (replication.epoch_waits_for_followers)."""
        for number in self.feeds:
            if not self._copies(number):
                self._send_rest(number)

    def feed_between_epochs(self) -> None:
        """Start the feeds that wait for an epoch to end. Between epochs, a feed whose keys are all copied is complete
        as of now."""
        if self._progress.is_between_epochs or not self._regions.is_staged:
            due, self._due = self._due, []
            for sender, request in due:
                self._start_feed(sender, request)
        for number, feed in self.feeds.items():
            if self._progress.is_between_epochs and not feed.is_whole and not self._copies(number):
                self._send_rest(number)

    def repeat_last_epoch(self) -> None:
        """All workers have met. Repeat what was sent as of the last epoch's end: followers may have ignored it, since
        all have resumed."""
        whole = [number for number, feed in self.feeds.items() if feed.is_whole]
        self.feed_between_epochs()
        for number in whole if self._progress.is_between_epochs else ():
            self._send_rest(number)

    def stop_feeding(self, peer: WorkerId | None, incarnation: Incarnation | None) -> None:
        """End the feeds to a peer whose channel is gone. ``None``: to all peers, or to any incarnation."""
        for sender, request in [waiting for waiting in self._due if peer in (None, waiting[0])]:
            self._due.remove((sender, request))
            self._output.report(FeedEnded(feed=request.feed))
        for number, feed in list(self.feeds.items()):
            if peer in (None, feed.to) and incarnation in (None, feed.incarnation):
                self.restrict_feed(number, set())
                self._output.report(FeedEnded(feed=number))

    def _send_rest(self, number: FeedId) -> None:
        self.feeds[number].is_whole = True
        for name, shard in self._regions.full.items():
            chunk = shard.rest_for(number)
            if len(chunk.keys):
                self._send(number, name, self._progress.applied, chunk)
        self._output.send(self.feeds[number].to, FedThrough(feed=number, epoch=self._progress.applied))

    def _send(self, number: FeedId, region: str, epoch: Epoch, chunk: StateChunk) -> None:
        fed = Fed(feed=number, region=region, epoch=epoch, keys=chunk.keys, state=chunk.parts)
        self._output.send(self.feeds[number].to, fed)

    def _copies(self, number: FeedId) -> bool:
        """Whether keys are left to copy before an epoch's end."""
        whole = self.feeds[number].is_whole
        return not whole and any(shard.is_to_feed(number) for shard in self._regions.full.values())

    def stop_feeding_replaced(self, meet: Meet) -> None:
        """End the feeds to followers that are not in this meeting, or as another incarnation."""
        for feed in list(self.feeds.values()):
            if meet.peers.get(feed.to, (None,))[0] != feed.incarnation:
                self.stop_feeding(feed.to, feed.incarnation)

    def forget_regions(self, regions: Collection[str]) -> None:
        """The view of these regions has failed."""
        for slices in self.followed.values():
            slices.forget_regions(regions)

    # Takeover

    def succeed(self, old: "Replication") -> None:
        """Go on after all have resumed."""
        self.feeds, self.followed, self._due = old.feeds, old.followed, old._due

    def take_over(self, owners: Mapping[VnodeId, WorkerId], gained: set[VnodeId]) -> None:
        """Take over these slices, which this worker has followed. owners: their owners until now. Raises ProtocolError
        if a slice was not followed, or not up to the end of the last epoch (replication.caught_up)."""
        wanted = set(gained)
        for slices in self.followed.values():
            mine = sorted(vnode for vnode in slices.vnodes & wanted if slices.owner == owners[vnode])
            if not mine or not (slices.is_as_of(self._progress.applied) or not self._rules.replication_caught_up):
                continue
            slices.go_back_to(self._progress.applied)
            slices.take_in(self._progress.applied)
            handed = slices.hand_over(mine, self._regions.vnodes)
            for name, chunk in handed.items():
                self._regions.shards[name].take_over(chunk)
            keys = sum(len(chunk.keys) for chunk in handed.values())
            nbytes = sum(chunk.nbytes for chunk in handed.values())
            self._output.report(TookOver(vnodes=len(mine), keys=keys, bytes=nbytes))
            wanted.difference_update(mine)
        if wanted:
            raise ProtocolError(
                f"worker {self._regions.me} is to take slices {sorted(wanted)} over, and has not followed them"
            )

    def end_moved(self, moved: set[VnodeId]) -> None:
        """End the feeds of slices that have changed hands: followers begin another feed with the new owner."""
        for number, feed in list(self.feeds.items()):
            self.restrict_feed(number, feed.vnodes - moved)
        for number, slices in list(self.followed.items()):
            slices.forget(slices.vnodes & moved, self._regions.vnodes)
            if not slices.vnodes:
                del self.followed[number]

    def go_back_to(self, epoch: Epoch) -> None:
        """Discard changes of later epochs: they will come again."""
        for number, slices in self.followed.items():
            slices.go_back_to(epoch)
            if slices.since is not None:
                self._output.report(CaughtUp(feed=number, epoch=slices.through))
