"""A worker's part in a rescale: its peers, the coordinator's orders, the keys it gives and takes; rules
worker.bounded_loads_out and worker.own_generation_only."""

from upriver.errors import ProtocolError, WrongOwner
from upriver.ids import Epoch
from upriver.migration.events import InputClosed, Received
from upriver.migration.messages import Acquire
from upriver.protocol.messages import (
    CloseInput,
    ContinueEpochs,
    Meet,
    MetPeers,
    MigrationOrder,
    PauseEpochs,
    PeersLost,
    ReadVnodes,
    Still,
)
from upriver.protocol.peers import (
    FEED_MESSAGES,
    BeginFeed,
    EndFeed,
    FailedHere,
    Fed,
    FedThrough,
    ForRegion,
    Hot,
    Installed,
    PeerLookupAnswered,
    PeerLookupGivenUp,
    PeerLookupRefused,
    RowsForwardedBack,
)
from upriver.protocol.worker_events import MeetPeers, PeerLost, PeerSaid, PeersMet, TimeToMove
from upriver.worker.epochs import ask, carry_out, route, tell_progress
from upriver.worker.failed_views import failed_at_peer
from upriver.worker.lookups import answered_by_peer, forget_questions_of, let_go, refuse_all, refused, want_hot
from upriver.worker.replication import (
    fed,
    fed_through,
    feed_me,
    feed_no_more,
    stop_feeding,
    stop_following,
    swallowed,
    tell_again,
)
from upriver.worker.serving import Serving, WaitingLookup

LOADS_OUT_MAX = 1
"""worker.bounded_loads_out: loads of state that one worker has on their way at a time. A key is out of service for no
longer than this many loads take."""


def next_to_move(phase: Serving) -> str | None:
    """The region that ``TimeToMove`` would move keys of: the first that has keys to give; ``None`` if there is none."""
    if phase.pause is not None or phase.loads_out >= LOADS_OUT_MAX:
        return None
    return next((name for name, share in phase.shares.items() if share.can_give), None)


def time_to_move(phase: Serving, event: TimeToMove) -> None:
    region = next_to_move(phase)
    if region is not None:
        carry_out(phase, region, phase.shares[region].give(event.keys_max))
        tell_progress(phase, region)


def meet(phase: Serving, event: Meet) -> None:
    """Before each rescale: learn its members and its strategy. Nothing moves at this time."""
    if any(event.peers.get(peer, (None,))[0] != incarnation for peer, incarnation in phase.peers.items()):
        _speak_to_nobody(phase, "another is in its place")
    for feed in list(phase.feeds.values()):
        if event.peers.get(feed.to, (None,))[0] != feed.incarnation:
            stop_feeding(phase, feed.to, feed.incarnation)
    phase.meet = event
    phase.left -= event.peers.keys()
    phase.given = phase.taken = 0
    for share in phase.shares.values():
        share.begin(event.strategy, phase.me, event.keys_max)
    phase.told.clear()
    phase.actions.append(MeetPeers(meet=event))


def peers_met(phase: Serving, event: PeersMet) -> None:
    if phase.meet is not None and event.meeting == phase.meet.meeting:
        phase.met = phase.meet
        phase.say(MetPeers(meeting=event.meeting))
        tell_again(phase)


def peer_lost(phase: Serving, event: PeerLost) -> None:
    """Stop asking any peer, unless the lost one has taken leave. If keys were moving, the coordinator will make all
    workers begin anew."""
    stop_feeding(phase, event.peer, event.incarnation)
    stop_following(phase, event.peer)
    if phase.meet is None or event.peer in phase.left or _is_of_the_past(phase.meet, event):
        return
    phase.say(PeersLost(meeting=phase.meet.meeting, why=event.why, peer=event.peer))
    forget_questions_of(phase, event.peer)  # the peer refuses its own lookups now
    phase.meet = None
    _speak_to_nobody(phase, event.why)


def _is_of_the_past(meet: Meet, event: PeerLost) -> bool:
    """Whether the lost peer is not in the last meeting: its place has another incarnation, or none."""
    if event.peer is None or event.incarnation is None:
        return False
    incarnation, _ = meet.peers.get(event.peer, (None, ""))
    return incarnation != event.incarnation


def _speak_to_nobody(phase: Serving, why: str) -> None:
    phase.peers.clear()
    refuse_all(phase, WrongOwner(f"a peer cannot be asked any more ({why}); ask again"))


def ordered(phase: Serving, event: MigrationOrder) -> None:
    """The rescale begins here, or is aborted. All workers have met: every peer listens, and has a channel to answer."""
    if phase.meet is not None:
        there = phase.meet.peers.items()
        phase.peers = {peer: incarnation for peer, (incarnation, _) in there if peer not in phase.left}
    route(phase, event.region, event.order)
    tell_progress(phase, event.region)


def peer_said(phase: Serving, event: PeerSaid) -> None:
    """worker.own_generation_only: messages of an earlier generation are ignored. Feeds and failures of views count as
    long as the state of their generation lives on."""
    if isinstance(event.envelope.content, (*FEED_MESSAGES, FailedHere)):
        if event.envelope.generation >= phase.born:
            feed_said(phase, event)
        return
    if event.envelope.generation != phase.assignment.generation and phase.rules.worker_own_generation_only:
        return
    match event.envelope.content:
        case ForRegion(region=region, message=message, begun=begun):
            if region not in phase.shares:
                raise ProtocolError(f"worker {event.sender} speaks of region {region!r}, which is not kept here")
            route(phase, region, Received(sender=event.sender, message=message))
            if isinstance(message, Acquire):
                phase.arrived = Epoch(max(phase.arrived, begun))
                phase.tell(event.sender, Installed(region=region))
            tell_progress(phase, region)
        case Hot() as hot:
            want_hot(phase, hot)
        case Installed():
            phase.loads_out -= 1
        case PeerLookupAnswered() as answer:
            answered_by_peer(phase, answer)
        case PeerLookupRefused() as refusal:
            refused(phase, refusal)
        case PeerLookupGivenUp(ticket=ticket):
            let_go(phase, event.sender, ticket)


def feed_said(phase: Serving, event: PeerSaid) -> None:
    match event.envelope.content:
        case BeginFeed() as wish:
            feed_me(phase, event.sender, wish)
        case EndFeed() as wish:
            feed_no_more(phase, wish)
        case Fed() as state:
            fed(phase, state)
        case FedThrough() as mark:
            fed_through(phase, mark, event.envelope.generation)
        case RowsForwardedBack() as answer:
            swallowed(phase, answer)
        case FailedHere() as failure:
            failed_at_peer(phase, failure)


def read_vnodes(phase: Serving, event: ReadVnodes) -> None:
    phase.reads = event.vnodes


def close_input(phase: Serving, event: CloseInput) -> None:
    """This worker keeps nothing any more: send its waiting lookups to the new owners of their keys."""
    waiting = phase.waiting + [WaitingLookup(answer.view, answer.question) for answer in phase.long_answers]
    phase.waiting, phase.long_answers = [], []
    for asked in waiting:
        ask(phase, asked.view, asked.question)
    for region in phase.shares:
        route(phase, region, InputClosed(peers=event.peers))


def hold_still(phase: Serving, event: PauseEpochs) -> None:
    phase.pause = event.pause
    say_still(phase)


def go_on(phase: Serving, event: ContinueEpochs) -> None:
    phase.pause = None


def say_still(phase: Serving) -> None:
    """Report how many keys were given and taken: the coordinator sees from it whether state is still on its way."""
    if phase.pause is not None:
        phase.say(Still(pause=phase.pause, given=phase.given, taken=phase.taken))
