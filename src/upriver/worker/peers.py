"""What a share sends in one step, and the peers that it can send to.

``StepOutput``: the actions of the current step. ``KnownPeers``: the workers of the last meeting, and which of them can
be asked; ``docs/internals/rescale.md``.
"""

from collections.abc import Sequence

from upriver.ids import FlowId, Incarnation, WorkerId
from upriver.protocol.messages import FromShare, Meet
from upriver.protocol.peers import Envelope, PeerMessage
from upriver.protocol.worker_events import PeerLost, Report, SendPeer, ShareAction


class StepOutput:
    """The actions of the current step, in their order. flow, generation: of the assignment; every envelope to a peer
    names them."""

    def __init__(self, flow: FlowId, generation: int) -> None:
        self.flow = flow
        self.generation = generation
        self.actions: list[ShareAction] = []

    def begin(self) -> None:
        """Begin another step."""
        self.actions = []

    def take(self) -> list[ShareAction]:
        """The actions of the step, which is over."""
        actions, self.actions = self.actions, []
        return actions

    def add(self, action: ShareAction) -> None:
        self.actions.append(action)

    def put_first(self, actions: Sequence[ShareAction]) -> None:
        """Put these actions before all others of the step."""
        self.actions[:0] = actions

    def report(self, message: FromShare) -> None:
        """Send to the coordinator."""
        self.actions.append(Report(message=message))

    def send(self, peer: WorkerId, content: PeerMessage) -> None:
        self.actions.append(self.to_peer(peer, content))

    def to_peer(self, peer: WorkerId, content: PeerMessage) -> SendPeer:
        return SendPeer(to=peer, envelope=Envelope(flow=self.flow, generation=self.generation, content=content))


class KnownPeers:
    """The workers that met at the last rescale, and the channels to them."""

    def __init__(self, me: WorkerId) -> None:
        self.me = me
        self.meet: Meet | None = None
        """The last meeting that this worker was told of, unless a peer was lost since."""
        self.met: Meet | None = None
        """The last meeting whose channels are all open, or were."""
        self.has_left = False
        """No rows come here any more, and no lookup can be sent on."""
        self._known: dict[WorkerId, Incarnation] = {}
        """The workers that can be asked: all that met at the last rescale, this worker too, except those that have
        left. Empty if one was lost since."""
        self._left: set[WorkerId] = set()
        """Peers that have taken leave, and have no successor yet. There is no channel to them."""

    @property
    def can_ask(self) -> bool:
        """Whether there are peers that can be asked."""
        return bool(self._known)

    @property
    def others(self) -> list[WorkerId]:
        """The peers that can be asked, in ascending order."""
        return sorted(self._known.keys() - {self.me})

    @property
    def reached(self) -> list[WorkerId]:
        """The peers that there is a channel to, in ascending order."""
        met = () if self.met is None else sorted(self.met.peers.keys() - {self.me})
        return [peer for peer in met if self.reaches(peer)]

    def reaches(self, asker: WorkerId) -> bool:
        """Whether there is, or was, a channel to the worker that asked. That incarnation may be long gone, with another
        one in its place."""
        if self.met is None or asker not in self.met.peers or asker in self._left:
            return False
        return self.meet is None or self.meet.peers.get(asker) == self.met.peers[asker]

    def incarnation_of(self, peer: WorkerId) -> Incarnation | None:
        """The incarnation that there is a channel to."""
        found = None if self.met is None else self.met.peers.get(peer)
        return None if found is None else found[0]

    def are_replaced(self, meet: Meet) -> bool:
        """Whether a peer that can be asked is not in this meeting, or as another incarnation."""
        return any(meet.peers.get(peer, (None,))[0] != incarnation for peer, incarnation in self._known.items())

    @property
    def parted(self) -> frozenset[WorkerId]:
        """The peers that have taken leave, and have no successor yet."""
        return frozenset(self._left)

    def begin_meeting(self, meet: Meet) -> None:
        self.meet = meet
        self._left -= meet.peers.keys()

    def end_meeting(self, meeting: int) -> bool:
        """All channels are open. Returns whether this is about the last meeting."""
        if self.meet is None or self.meet.meeting != meeting:
            return False
        self.met = self.meet
        return True

    def loses_meeting(self, event: PeerLost) -> bool:
        """Whether the lost peer breaks the last meeting: it is in that, and has not taken leave."""
        return self.meet is not None and event.peer not in self._left and is_member(event, self.meet)

    def lose_meeting(self) -> None:
        """A peer of the meeting was lost."""
        self.meet = None

    def forget(self) -> None:
        """No peer can be asked any more."""
        self._known.clear()

    def ask_all_met(self) -> None:
        """All workers have met: every peer listens, and has a channel to answer."""
        if self.meet is not None:
            there = self.meet.peers.items()
            self._known = {peer: incarnation for peer, (incarnation, _) in there if peer not in self._left}

    def part_from(self, peer: WorkerId) -> None:
        """The peer has taken leave."""
        self._known.pop(peer, None)
        self._left.add(peer)

    def leave(self) -> None:
        """This worker has taken leave of all peers."""
        self.has_left = True


def is_member(lost: PeerLost, meet: Meet) -> bool:
    """Whether the lost peer may be in this meeting. If not, its place has another incarnation there, or none."""
    if lost.peer is None or lost.incarnation is None:
        return True
    incarnation, _ = meet.peers.get(lost.peer, (None, ""))
    return incarnation == lost.incarnation
