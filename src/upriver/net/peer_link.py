"""One channel between two workers: how it begins, and what waits to be said in it."""

import threading
from contextlib import suppress
from typing import Any

from upriver.errors import ClusterError, ProtocolError, WorkerLost
from upriver.ids import Incarnation, WorkerId
from upriver.net.channel import ChannelEnd
from upriver.net.peer_codec import PEER, FrameWriter
from upriver.net.wire import Message
from upriver.protocol.peers import Envelope

FRAME_MESSAGES_MAX = 1_000
"""Envelopes to one peer that wait for ``flush``: so many go by themselves."""
FRAME_BYTES_MAX = 1 << 20
"""Bytes to one peer that wait for ``flush``, likewise; an envelope that is larger goes at once."""


class Link:
    """A channel to a peer, and what waits to be said in it. end: set before anything is said.

    meeting: the one that it was dialled for. is_over: its ``on_close`` has been called. is_displaced: another has taken
    its place, and all that was said in it is heard only if it ends with both ends' goodbye.
    """

    def __init__(self, worker: WorkerId, incarnation: Incarnation, meeting: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.meeting = meeting
        self.end: ChannelEnd | None = None
        self.is_over = self.is_displaced = False
        self._speaking = threading.Lock()
        """Guards the frame, and keeps frames in order. May be taken while the lock of Peers is held, not vice versa."""
        self._frame = FrameWriter()

    @classmethod
    def greeted(cls, hello: Message, me: WorkerId) -> "Link":
        """The channel that begins with this hello."""
        numbers: list[Any] = [hello.fields.get(name) for name in ("worker", "incarnation", "meeting", "to")]
        if hello.kind != PEER or not all(type(number) is int for number in numbers):
            raise ProtocolError(f"a channel between workers began with {hello.kind!r} {dict(hello.fields)}")
        worker, incarnation, meeting, to = numbers
        if to != me:  # an address may come to be another's
            raise WorkerLost(f"worker {me} serves here, and not worker {to}")
        if worker >= me:
            raise ProtocolError(f"worker {worker} has dialled worker {me}, which has the lower number")
        return cls(WorkerId(worker), Incarnation(incarnation), meeting)

    def hello(self, me: WorkerId, mine: Incarnation) -> Message:
        """What the dialled side must know."""
        return Message(PEER, {"worker": me, "incarnation": mine, "meeting": self.meeting, "to": self.worker})

    def __str__(self) -> str:
        return f"worker {self.worker} (incarnation {self.incarnation})"

    def say(self, envelope: Envelope) -> None:
        with self._speaking:
            self._frame.add(envelope)
            if self._frame.messages >= FRAME_MESSAGES_MAX or self._frame.bytes >= FRAME_BYTES_MAX:
                self._write()

    def flush(self) -> None:
        with self._speaking:
            self._write()

    def let_go(self) -> None:
        """End it in good order, behind all that was said."""
        assert self.end is not None
        self.flush()
        self.end.close()

    def _write(self) -> None:
        assert self.end is not None
        if self._frame.messages:
            with suppress(ClusterError):  # it is broken, and its ``on_close`` says so
                self.end.send(self._frame.take())
