"""A share among its peers: the meeting before each rescale, the peers' messages, and the loss of a peer; rule
worker.own_generation_only.

The meeting is of the worker, which opens the channels and tells the coordinator of them. Each share of the worker knows
by itself which peers it can ask.
"""

from upriver.errors import WrongOwner
from upriver.migration.events import InputClosed
from upriver.protocol.messages import (
    CloseInput,
    Meet,
    MigrationOrder,
    ReadVnodes,
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
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import PeerLost, PeerSaid, PeersMet
from upriver.worker.distributors import Distributors
from upriver.worker.failed_views import FailedViews
from upriver.worker.lookups import Lookups
from upriver.worker.peers import KnownPeers, StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions
from upriver.worker.replication import Replication
from upriver.worker.upqueries import Upqueries


class Membership:
    """Meets the peers of each rescale, and hands their messages to the component that they are for."""

    def __init__(
        self,
        born: int,
        regions: Regions,
        progress: EpochProgress,
        peers: KnownPeers,
        upqueries: Upqueries,
        lookups: Lookups,
        replication: Replication,
        distributors: Distributors,
        failed_views: FailedViews,
        output: StepOutput,
        rules: Rules,
    ) -> None:
        """born: the generation in which this worker last began anew."""
        self._born = born
        self._regions = regions
        self._progress = progress
        self._peers = peers
        self._upqueries = upqueries
        self._lookups = lookups
        self._replication = replication
        self._distributors = distributors
        self._failed_views = failed_views
        self._output = output
        self._rules = rules

    def begin_meeting(self, event: Meet) -> None:
        """Before each rescale: learn its members and its strategy. Nothing moves at this time."""
        if self._peers.are_replaced(event):
            self._forget_peers("another is in its place")
        self._replication.stop_feeding_replaced(event)
        self._peers.begin_meeting(event)
        self._distributors.begin_meeting(event)

    def peers_met(self, event: PeersMet) -> None:
        if self._peers.end_meeting(event.meeting):
            self._replication.repeat_last_epoch()

    def peer_lost(self, event: PeerLost) -> None:
        """Stop asking any peer, unless the lost one has taken leave. If keys were moving, the coordinator will make all
        workers begin anew."""
        self._replication.stop_feeding(event.peer, event.incarnation)
        self._replication.stop_following(event.peer)
        if not self._peers.loses_meeting(event):
            return
        self._lookups.forget_asker(event.peer)  # the peer refuses its own lookups now
        self._peers.lose_meeting()
        self._forget_peers(event.why)

    def _forget_peers(self, why: str) -> None:
        self._peers.forget()
        self._lookups.refuse_all(WrongOwner(f"a peer cannot be asked any more ({why}); ask again"))

    def migration_ordered(self, event: MigrationOrder) -> None:
        """The rescale begins here, or is aborted. All workers have met: every peer listens, and has a channel to
        answer."""
        self._peers.ask_all_met()
        self._distributors.route(event.region, event.order)
        self._distributors.report_progress(event.region)

    def peer_said(self, event: PeerSaid) -> None:
        """worker.own_generation_only: messages of an earlier generation are ignored. Feeds and failures of views count
        as long as the state of their generation lives on."""
        if isinstance(event.envelope.content, (*FEED_MESSAGES, FailedHere)):
            if event.envelope.generation >= self._born:
                self._feed_said(event)
            return
        if event.envelope.generation != self._output.generation and self._rules.worker_own_generation_only:
            return
        match event.envelope.content:
            case ForRegion() as content:
                self._distributors.receive(event.sender, content)
            case Hot() as hot:
                self._upqueries.want_hot(hot)
            case Installed():
                self._distributors.load_installed()
            case PeerLookupAnswered() as answer:
                self._lookups.answered_by_peer(answer)
            case PeerLookupRefused() as refusal:
                self._lookups.refused(refusal)
            case PeerLookupGivenUp(ticket=ticket):
                self._lookups.drop(event.sender, ticket)

    def _feed_said(self, event: PeerSaid) -> None:
        match event.envelope.content:
            case BeginFeed() as request:
                self._replication.begin_feed(event.sender, request)
            case EndFeed() as request:
                self._replication.end_feed(request)
            case Fed() as state:
                self._replication.fed(state)
            case FedThrough() as mark:
                self._replication.fed_through(mark, event.envelope.generation)
            case RowsForwardedBack() as answer:
                self._replication.copy_taken_in(answer)
            case FailedHere() as failure:
                self._failed_views.failed_at_peer(failure)

    def read_vnodes(self, event: ReadVnodes) -> None:
        self._progress.read_vnodes(event.vnodes)

    def close_input(self, event: CloseInput) -> None:
        """This worker keeps nothing any more: send its waiting lookups to the new owners of their keys."""
        for asked in self._lookups.take_all():
            self._distributors.ask(asked.view, asked.question)
        for region in self._regions.shards:
            self._distributors.route(region, InputClosed(peers=event.peers))
