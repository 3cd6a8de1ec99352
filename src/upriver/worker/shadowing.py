"""A worker follows others: it keeps what they keep of some slices, as of the end of each epoch; rules S1, S2 and S8.

``docs/design/standbys.md``.
"""

from upriver.engine.keeping import Region
from upriver.ids import Epoch, WorkerId
from upriver.protocol.peers import Fed, FedThrough, FeedMe, FeedNoMore, Swallowed
from upriver.protocol.standby_messages import CaughtUp, FeedEnded, Follow, Here, Probe, Unfollow
from upriver.state.checkpoint import StateChunk
from upriver.worker.followed import Shadow
from upriver.worker.following import Following


def follow(phase: Following, event: Follow) -> None:
    phase.shadows[event.feed] = Shadow(event.owner, set(event.vnodes), _regions(phase))
    if phase.meet is None and phase.rules.s8_unfed_says_so:  # S8: the channel is lost already
        phase.say(FeedEnded(feed=event.feed))
    else:
        phase.tell(event.owner, FeedMe(feed=event.feed, vnodes=event.vnodes))


def stop_following(phase: Following, owner: WorkerId | None) -> None:
    """There is no channel any more to an owner, or to one who is not known. It may never have heard that it is
    followed, and then it says nothing (S8)."""
    for feed, shadow in phase.shadows.items():
        if shadow.since is None and owner in (None, shadow.owner) and phase.rules.s8_unfed_says_so:  # S8
            phase.say(FeedEnded(feed=feed))


def _regions(phase: Following) -> dict[str, Region]:
    return {
        region.name: phase.build_region(plan, region)
        for plan in phase.assignment.plans
        for region in plan.spread
        if phase.shares[region.name].keeps_every_key
    }


def unfollow(phase: Following, event: Unfollow) -> None:
    shadow = phase.shadows.get(event.feed)
    if shadow is None:
        return
    shadow.forget(event.vnodes, phase.vnodes)
    if not shadow.vnodes:
        del phase.shadows[event.feed]
    if phase.reaches(shadow.owner):
        phase.tell(shadow.owner, FeedNoMore(feed=event.feed, vnodes=event.vnodes))


def fed(phase: Following, event: Fed) -> None:
    """State has come. Of a feed that is over, it is of no use."""
    shadow = phase.shadows.get(event.feed)
    if shadow is None:
        return
    chunk = StateChunk(event.keys, event.state).among(shadow.vnodes, phase.vnodes)  # some may be followed no more
    if event.epoch <= phase.reflected or not phase.rules.s2_taken_in_when_over:  # S2
        shadow.replace(event.region, chunk)
    else:
        shadow.later.append((event.epoch, event.region, chunk))
    if not event.epoch:
        phase.tell(shadow.owner, Swallowed(feed=event.feed))


def fed_through(phase: Following, event: FedThrough, generation: int) -> None:
    """All is here as of the end of an epoch. generation: in which that was said; the epoch may have been put back
    since."""
    shadow = phase.shadows.get(event.feed)
    if shadow is None or generation < phase.assignment.generation:
        return
    if shadow.since is None:
        shadow.since = event.epoch
    shadow.through = event.epoch
    phase.say(CaughtUp(feed=event.feed, epoch=event.epoch))


def take_in(phase: Following, epoch: Epoch) -> None:
    """S2: the epoch is over everywhere."""
    for shadow in phase.shadows.values():
        shadow.take_in(epoch)


def probed(phase: Following, event: Probe) -> None:
    phase.say(Here(probe=event.probe))
