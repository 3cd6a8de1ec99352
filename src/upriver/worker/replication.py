"""Replication between workers: a worker feeds its followers, and follows owners itself; ``docs/internals/standbys.md``.

As an owner, it sends a follower the state of some slices, then, at each epoch's end, what has changed. A copy is as of
any moment, and keys that change afterwards are copied again. So when nothing is left to copy at an epoch's end, the
follower has everything as of that end. Rules replication.epoch_waits_for_followers and
replication.put_back_has_changed.

As a follower, it keeps an owner's state of some slices, as of the end of each epoch. Rules
replication.epoch_waits_for_followers, replication.taken_in_when_over and replication.unfed_says_so.
"""

from dataclasses import replace

from upriver.engine.keeping import FullRegionState
from upriver.ids import Epoch, FeedId, Incarnation, VnodeId, WorkerId
from upriver.protocol.messages import CaughtUp, FeedEnded, Follow, Here, Probe, Unfollow
from upriver.protocol.peers import BeginFeed, EndFeed, Fed, FedThrough, RowsForwardedBack
from upriver.protocol.worker_events import TimeToFeed
from upriver.state.checkpoint import StateChunk
from upriver.worker.serving import ReplicaFeed, ReplicaSlices, Serving
from upriver.worker.shard import Shard


def follow(phase: Serving, event: Follow) -> None:
    phase.shadows[event.feed] = ReplicaSlices(event.owner, set(event.vnodes), _regions(phase))
    if (
        phase.meet is None and phase.rules.replication_unfed_says_so
    ):  # replication.unfed_says_so: the channel is lost already
        phase.say(FeedEnded(feed=event.feed))
    else:
        phase.tell(event.owner, BeginFeed(feed=event.feed, vnodes=event.vnodes))


def stop_following(phase: Serving, owner: WorkerId | None) -> None:
    """The channel to an owner is gone; ``None``: to an unknown one. The owner may never have heard of the feed, and
    then it does not report its end (replication.unfed_says_so)."""
    for feed, shadow in phase.shadows.items():
        if shadow.since is None and owner in (None, shadow.owner) and phase.rules.replication_unfed_says_so:
            phase.say(FeedEnded(feed=feed))


def _regions(phase: Serving) -> dict[str, FullRegionState]:
    return {
        region.name: phase.build_region(plan, region)
        for plan in phase.assignment.plans
        for region in plan.spread
        if phase.shares[region.name].keeps_every_key
    }


def unfollow(phase: Serving, event: Unfollow) -> None:
    shadow = phase.shadows.get(event.feed)
    if shadow is None:
        return
    shadow.forget(event.vnodes, phase.vnodes)
    if not shadow.vnodes:
        del phase.shadows[event.feed]
    if phase.reaches(shadow.owner):
        phase.tell(shadow.owner, EndFeed(feed=event.feed, vnodes=event.vnodes))


def fed(phase: Serving, event: Fed) -> None:
    """State has come. It is ignored if its feed is over."""
    shadow = phase.shadows.get(event.feed)
    if shadow is None:
        return
    chunk = StateChunk(event.keys, event.state).among(shadow.vnodes, phase.vnodes)  # some slices may be unfollowed
    if event.epoch <= phase.reflected or not phase.rules.replication_taken_in_when_over:
        shadow.replace(event.region, chunk)
    else:
        shadow.later.append((event.epoch, event.region, chunk))
    if not event.epoch:
        phase.tell(shadow.owner, RowsForwardedBack(feed=event.feed))


def fed_through(phase: Serving, event: FedThrough, generation: int) -> None:
    """The follower has everything as of the end of an epoch. generation: of the message; the epoch may have been put
    back since."""
    shadow = phase.shadows.get(event.feed)
    if shadow is None or generation < phase.assignment.generation:
        return
    if shadow.since is None:
        shadow.since = event.epoch
    shadow.through = event.epoch
    phase.say(CaughtUp(feed=event.feed, epoch=event.epoch))


def take_in(phase: Serving, epoch: Epoch) -> None:
    """replication.taken_in_when_over: the epoch is over everywhere."""
    for shadow in phase.shadows.values():
        shadow.take_in(epoch)


def probed(phase: Serving, event: Probe) -> None:
    phase.say(Here(probe=event.probe))


AT_ONCE = Epoch(0)
"""The epoch of a copy that is as of no epoch's end."""
LOADS_OUT_MAX = 2
"""Copies on their way to one follower at most, before it has taken in the first: it has other work to do."""


def feed_me(phase: Serving, sender: WorkerId, wish: BeginFeed) -> None:
    """Begin a feed. Rows that are gathered already will be settled without a note for the feed. So with exchange edges,
    it begins at the end of an epoch."""
    phase.hungry.append((sender, wish))
    feed_between_epochs(phase)


def _begin(phase: Serving, sender: WorkerId, wish: BeginFeed) -> None:
    mine = [vnode for vnode in wish.vnodes if _keeps(phase, vnode)]
    if not mine or not phase.reaches(sender):  # another worker owns them by now, or the follower is gone
        phase.say(FeedEnded(feed=wish.feed))
        return
    who = None if phase.met is None else phase.met.peers.get(sender)
    phase.feeds[wish.feed] = ReplicaFeed(sender, None if who is None else who[0], set(mine))
    for share in _full_shares(phase).values():
        share.follow(wish.feed, mine)


def feed_no_more(phase: Serving, wish: EndFeed) -> None:
    for place, (sender, waiting) in enumerate(phase.hungry):
        if waiting.feed == wish.feed:
            left = tuple(vnode for vnode in waiting.vnodes if vnode not in wish.vnodes)
            phase.hungry[place] = sender, replace(waiting, vnodes=left)
    feed = phase.feeds.get(wish.feed)
    if feed is not None:
        keep_feeding(phase, wish.feed, feed.vnodes.difference(wish.vnodes))


def keep_feeding(phase: Serving, number: FeedId, vnodes: set[VnodeId]) -> None:
    """Restrict a feed to these slices."""
    feed = phase.feeds[number]
    feed.vnodes = vnodes
    if not vnodes:
        del phase.feeds[number]
    for share in phase.shares.values():
        if number in share.logs and vnodes:
            share.logs[number].keep_only(vnodes)
        else:
            share.logs.pop(number, None)


def swallowed(phase: Serving, answer: RowsForwardedBack) -> None:
    feed = phase.feeds.get(answer.feed)
    if feed is not None:
        feed.out -= 1


def can_feed(phase: Serving) -> bool:
    """Whether ``TimeToFeed`` would copy a key."""
    return any(feed.out < LOADS_OUT_MAX and _copies(phase, number) for number, feed in phase.feeds.items())


def time_to_feed(phase: Serving, event: TimeToFeed) -> None:
    """Send the next keys to the follower with the fewest copies on their way."""
    free = [number for number, feed in phase.feeds.items() if feed.out < LOADS_OUT_MAX and _copies(phase, number)]
    if not free:
        return
    number = min(free, key=lambda feed: (phase.feeds[feed].out, feed))
    for name, share in _full_shares(phase).items():
        chunk = share.copy_for(number, event.keys_max)
        if chunk is not None:
            phase.feeds[number].out += 1
            _send(phase, number, name, AT_ONCE, chunk)
            break
    feed_between_epochs(phase)


def feed_epoch(phase: Serving) -> None:
    """This worker has finished its work on an epoch: send the changes to its followers
    (replication.epoch_waits_for_followers)."""
    for number in phase.feeds:
        if not _copies(phase, number):
            _send_rest(phase, number)


def feed_between_epochs(phase: Serving) -> None:
    """Start the feeds that wait for an epoch to end. Between epochs, a feed whose keys are all copied is complete as of
    now."""
    if phase.is_between_epochs or not phase.is_staged:
        hungry, phase.hungry = phase.hungry, []
        for sender, wish in hungry:
            _begin(phase, sender, wish)
    for number, feed in phase.feeds.items():
        if phase.is_between_epochs and not feed.is_whole and not _copies(phase, number):
            _send_rest(phase, number)


def tell_again(phase: Serving) -> None:
    """All workers have met. Repeat what was sent as of the last epoch's end: followers may have ignored it, since all
    have resumed."""
    whole = [number for number, feed in phase.feeds.items() if feed.is_whole]
    feed_between_epochs(phase)
    for number in whole if phase.is_between_epochs else ():
        _send_rest(phase, number)


def stop_feeding(phase: Serving, peer: WorkerId | None, incarnation: Incarnation | None) -> None:
    """End the feeds to a peer whose channel is gone. ``None``: to all peers, or to any incarnation."""
    for sender, wish in [waiting for waiting in phase.hungry if peer in (None, waiting[0])]:
        phase.hungry.remove((sender, wish))
        phase.say(FeedEnded(feed=wish.feed))
    for number, feed in list(phase.feeds.items()):
        if peer in (None, feed.to) and incarnation in (None, feed.incarnation):
            keep_feeding(phase, number, set())
            phase.say(FeedEnded(feed=number))


def _send_rest(phase: Serving, number: FeedId) -> None:
    phase.feeds[number].is_whole = True
    for name, share in _full_shares(phase).items():
        chunk = share.rest_for(number)
        if len(chunk.keys):
            _send(phase, number, name, phase.applied, chunk)
    phase.tell(phase.feeds[number].to, FedThrough(feed=number, epoch=phase.applied))


def _send(phase: Serving, number: FeedId, region: str, epoch: Epoch, chunk: StateChunk) -> None:
    fed = Fed(feed=number, region=region, epoch=epoch, keys=chunk.keys, state=chunk.parts)
    phase.tell(phase.feeds[number].to, fed)


def _copies(phase: Serving, number: FeedId) -> bool:
    """Whether keys are left to copy before an epoch's end."""
    whole = phase.feeds[number].is_whole
    return not whole and any(share.logs[number].left for share in _full_shares(phase).values())


def _full_shares(phase: Serving) -> dict[str, Shard]:
    return {name: share for name, share in phase.shares.items() if share.keeps_every_key}


def _keeps(phase: Serving, vnode: VnodeId) -> bool:
    """Whether this worker keeps the slice. All regions use one map, except while keys move."""
    return all(
        (vnode_map := phase.map_of(name)) is not None and vnode_map.owners[vnode] == phase.me for name in phase.shares
    )
