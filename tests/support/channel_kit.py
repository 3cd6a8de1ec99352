"""What tests of channels share: a recorder that keeps what it was told, and a server that takes every channel."""

import queue
from dataclasses import dataclass, field

from server_kit import SECONDS_MAX, keys_of, peer_of

from upriver.errors import UpriverError, UserError
from upriver.net.channel import ChannelEnd, ChannelLimits, Channels, Receiver
from upriver.net.handshake import Purpose
from upriver.net.remote import Remote
from upriver.net.server import Server
from upriver.net.tls import TlsIdentity
from upriver.net.wire import Message

QUICK = ChannelLimits(ping_s=0.05, silence_s_max=0.5)
HELLO = Message("hello", {"worker": 3})


@dataclass(frozen=True)
class Recorder:
    """Keeps what a receiver was told."""

    messages: "queue.Queue[Message]" = field(default_factory=queue.Queue)
    closings: "queue.Queue[UpriverError | None]" = field(default_factory=queue.Queue)

    @property
    def receiver(self) -> Receiver:
        return Receiver(self.messages.put, self.closings.put)

    def hear(self) -> Message:
        return self.messages.get(timeout=SECONDS_MAX)

    def closing(self) -> UpriverError | None:
        """What ``on_close`` was told, after all the messages."""
        return self.closings.get(timeout=SECONDS_MAX)


@dataclass(frozen=True)
class Hub:
    """A server that takes every channel; ``ends`` gives each with its recorder and hello. tls: what both sides show."""

    limits: ChannelLimits = QUICK
    tls: TlsIdentity | None = None
    ends: "queue.Queue[tuple[ChannelEnd, Recorder, Message]]" = field(default_factory=queue.Queue)

    def on_open(self, end: ChannelEnd, hello: Message) -> Receiver:
        if hello.kind == "refuse me":
            raise UserError("worker 3 is here already")
        recorder = Recorder()
        self.ends.put((end, recorder, hello))
        return recorder.receiver

    def accepted(self) -> tuple[ChannelEnd, Recorder]:
        end, recorder, _ = self.ends.get(timeout=SECONDS_MAX * 3)
        return end, recorder

    def server(self) -> Server:
        return Server(keys_of(self.tls), {Purpose.CHANNEL: Channels(self.on_open, self.limits)})

    def peer(self, server: Server) -> Remote:
        """The server, for a process of the same cluster."""
        return peer_of(server.address, self.tls)
