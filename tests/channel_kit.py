"""What tests of channels share: an ear that keeps what it was told, and a server that takes every channel."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from upriver.errors import UpriverError, UserError
from upriver.shell.channel import CHANNEL, ChannelEnd, ChannelLimits, Channels, Receiver
from upriver.shell.flight import FlightBase
from upriver.shell.remote import Connection, Remote
from upriver.shell.wire import Message

TOKEN = "s3cret-t0ken"
SECONDS_MAX = 10.0
"""Seconds that a test waits for what must come at once."""
QUICK = ChannelLimits(ping_s=0.05, silence_s_max=0.5)
HELLO = Message("hello", {"worker": 3})


@dataclass(frozen=True)
class Ear:
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
    """A server that takes every channel; ``ends`` gives each with its ear and hello."""

    limits: ChannelLimits = QUICK
    ends: "queue.Queue[tuple[ChannelEnd, Ear, Message]]" = field(default_factory=queue.Queue)

    def on_open(self, end: ChannelEnd, hello: Message) -> Receiver:
        if hello.kind == "refuse me":
            raise UserError("worker 3 is here already")
        ear = Ear()
        self.ends.put((end, ear, hello))
        return ear.receiver

    def accepted(self) -> tuple[ChannelEnd, Ear]:
        end, ear, _ = self.ends.get(timeout=SECONDS_MAX * 3)
        return end, ear

    def server(self) -> FlightBase:
        return FlightBase(TOKEN, doors={CHANNEL: Channels(self.on_open, self.limits)})


def channel_port(server: FlightBase) -> int:
    """Where its channels come in."""
    with Connection(Remote(server.address, TOKEN)) as connection:
        return int(connection.act(CHANNEL, timeout=SECONDS_MAX)["port"])


@contextmanager
def detour(server: FlightBase, port: int) -> Iterator[str]:
    """The address of a server that lets callers in to the other one's channels, but sends them to that port."""
    with Connection(Remote(server.address, TOKEN)) as connection:
        actions = {CHANNEL: lambda _: {**connection.act(CHANNEL, timeout=SECONDS_MAX), "port": port}}
        with FlightBase(TOKEN, actions=actions) as flight:
            yield flight.address
