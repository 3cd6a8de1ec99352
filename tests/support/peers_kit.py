"""What tests of peers share: workers with servers of their own, in one process, that keep all that they are told."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from server_kit import KEYS, SECONDS_MAX, SECRET

from upriver.errors import UpriverError
from upriver.ids import FlowId, Incarnation, MapVersion, VnodeId, WorkerId
from upriver.migration.messages import Done
from upriver.net.channel import ChannelEnd, ChannelLimits, Channels, Receiver
from upriver.net.handshake import Purpose
from upriver.net.peers import Peers
from upriver.net.remote import Remote
from upriver.net.server import Server
from upriver.net.wire import Message
from upriver.protocol.peers import Envelope, ForRegion

LIMITS = ChannelLimits(ping_s=0.05)


class Node:
    """A worker's peers and server, and all that they have told. gate: what a channel must pass to be accepted."""

    def __init__(
        self,
        worker: int,
        *,
        incarnation: int = 1,
        secret: bytes = SECRET,
        meet_s_max: float = SECONDS_MAX,
        gate: Callable[[], Any] = lambda: None,
        limits: ChannelLimits = LIMITS,
    ) -> None:
        self.worker = WorkerId(worker)
        self.incarnation = Incarnation(incarnation)
        self.gate = gate
        self.heard: queue.Queue[tuple[int, tuple[Envelope, ...]]] = queue.Queue()
        self.lost: queue.Queue[tuple[int, UpriverError | None]] = queue.Queue()
        self.accepted: queue.Queue[WorkerId] = queue.Queue()
        self.met: queue.Queue[int] = queue.Queue()
        self.failed: queue.Queue[tuple[int, UpriverError]] = queue.Queue()
        self.unreached: list[WorkerId] = []
        """Of each meeting that has failed, the peer that was not reached."""
        self.server = Server(KEYS, {Purpose.CHANNEL: Channels(self._accept, limits)})
        self.peers = Peers(
            self.worker,
            Remote(self.server.address, secret),
            lambda worker, envelopes: self.heard.put((worker, envelopes)),
            lambda worker, _, error: self.lost.put((worker, error)),
            limits=limits,
            meet_s_max=meet_s_max,
        )

    def _accept(self, end: ChannelEnd, hello: Message) -> Receiver:
        self.gate()
        receiver = self.peers.accept(end, hello)
        self.accepted.put(WorkerId(hello.fields["worker"]))
        return receiver

    @property
    def place(self) -> tuple[Incarnation, str]:
        return self.incarnation, self.server.address

    def meet(self, meeting: int, *others: "Node") -> None:
        self.meet_at(meeting, {other.worker: other.place for other in others})

    def meet_at(self, meeting: int, places: Mapping[WorkerId, tuple[Incarnation, str]]) -> None:
        self.peers.meet(meeting, places, self.incarnation, self.met.put, self._failed)

    def _failed(self, meeting: int, error: UpriverError, unreached: WorkerId) -> None:
        self.unreached.append(unreached)
        self.failed.put((meeting, error))

    def say(self, to: "Node", *numbers: int) -> None:
        for number in numbers:
            self.peers.send(to.worker, numbered(number))
        self.peers.flush()

    def hear(self, count: int) -> list[tuple[int, int]]:
        """The next numbers that were said, each with its sender."""
        said: list[tuple[int, int]] = []
        while len(said) < count:
            worker, envelopes = self.heard.get(timeout=SECONDS_MAX)
            said += [(worker, number_of(envelope)) for envelope in envelopes]
        return said


def numbered(number: int) -> Envelope:
    done = Done(version=MapVersion(1), vnode=VnodeId(number))
    return Envelope(flow=FlowId(1), generation=1, content=ForRegion(region="planes", message=done))


def number_of(envelope: Envelope) -> int:
    assert isinstance(envelope.content, ForRegion)
    assert isinstance(envelope.content.message, Done)
    return envelope.content.message.vnode


Nodes = Callable[..., Node]


@contextmanager
def several_nodes() -> Iterator[Nodes]:
    """Makes nodes; at the end they say goodbye, and leave no thread behind."""
    made: list[Node] = []

    def make(worker: int, **settings: Any) -> Node:
        made.append(Node(worker, **settings))
        return made[-1]

    yield make
    for each in made:
        each.peers.close()
    for each in made:
        each.server.stop()
    for thread in threading.enumerate():
        if thread.name.startswith("upriver-"):
            thread.join(SECONDS_MAX)
            assert not thread.is_alive(), f"{thread.name} is left over"


def meet_all(meeting: int, *nodes: Node) -> None:
    for each in nodes:
        each.meet(meeting, *nodes)
    for each in nodes:
        assert each.met.get(timeout=SECONDS_MAX) == meeting
