"""Channels: two processes saying messages to each other, in order, until one says goodbye or is lost.

One end opens a channel to a server (:func:`open_channel`); the server's end is handed to its ``on_open``. From then on
both ends are alike. A channel is one Flight exchange, and each message one frame of it.

Theory of operation. Each end has a thread that reads and hands over, one that writes what ``send`` has put into a
bounded outbox, and one that says that it is alive and notices when the other has not been for a while
(``upriver.shell.heart``); a killed process is noticed at once, since its socket closes. gRPC's own keepalive will not
do: pyarrow can switch it on in clients only, and a server that is not told otherwise cuts off clients that ping while
nothing else is said.

An end that is closed says ``BYE`` after all it had to say; the other end answers with its own ``BYE``. A channel that
ends without both has been lost. A lost, silent or overwhelmed peer's connection is cut, which ends the reading thread,
and that thread alone calls ``on_close``.
"""

import atexit
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from upriver.errors import ClusterError, ProtocolError, UpriverError, WaitTimeout, WorkerLost
from upriver.shell.flight import GOODBYE_S_MAX, ExchangeCall
from upriver.shell.heart import PING, Heart, now
from upriver.shell.outbox import Full, Outbox, Shut
from upriver.shell.pieces import PIECE, Joiner, in_pieces
from upriver.shell.remote import Connection, Remote, brief, end_exchange
from upriver.shell.wire import Message, decode, encode

CHANNEL = "channel"
"""The name of the exchange."""

_WELCOME, _BYE = Message("channel.welcome"), Message("channel.bye")


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Bounds of one end. outbox_*: what may wait to be written; one message of any size always fits.

    ping_s: time between signs of life. silence_s_max: time without any after which the peer counts as lost, which is
    noticed within ``ping_s`` more; :mod:`upriver.shell.heart` says what counts.
    """

    outbox_messages_max: int = 10_000
    outbox_bytes_max: int = 256 << 20
    ping_s: float = 1.0
    silence_s_max: float = 15.0

    @property
    def silent_beats_max(self) -> int:
        """Beats of our own that the other may be silent for."""
        return math.ceil(self.silence_s_max / self.ping_s)


@dataclass(frozen=True, slots=True)
class Receiver:
    """What an end does with what comes. Both are called by one thread, in order, and must return soon.

    on_close: called once, last; with ``None`` if both ends have said goodbye, else with what went wrong.
    """

    on_message: Callable[[Message], None]
    on_close: Callable[[UpriverError | None], None]


class ChannelEnd:
    """One end of a channel; usable by any thread. peer: the other end's address, for messages.

    lost: class of the error when the peer is gone. cut: drops the connection. heart: what is known of the peer's life.
    """

    def __init__(self, peer: str, lost: type[ClusterError], cut: Callable[[], object], limits: ChannelLimits) -> None:
        self.peer = peer
        self._lost = lost
        self._cut_connection = cut
        self.limits = limits
        self.heart = Heart()
        self._outbox = Outbox(limits.outbox_messages_max, limits.outbox_bytes_max)
        self._fault: UpriverError | None = None
        """Why this end has cut the connection; the first reason counts."""
        self._goodbye_by: float | None = None
        """When to stop waiting for the peer's goodbye."""
        self._over = threading.Event()
        """Nothing more will be read or written."""
        self._closed = threading.Event()
        """``on_close`` has returned."""

    def send(self, message: Message) -> None:
        """Put a message behind those sent before; it is written soon, by another thread.

        Raises ClusterError if the channel is closed or lost, and when more waits to be written than the limits allow:
        then the peer does not keep up, and the channel is cut, since a channel never skips a message.
        """
        try:
            self._outbox.put(encode(message))
        except Full as full:
            fault = ClusterError(f"{self.peer} does not keep up: {full} wait to be sent; the channel is cut")
            self._cut(fault)
            raise fault from None
        except Shut:
            raise ClusterError(f"the channel to {self.peer} is closed") from None

    def close(self) -> None:
        """Say goodbye after all that was sent. Returns at once; ``on_close`` follows, soon or when the peer is cut."""
        if self._goodbye_by is None:
            self._goodbye_by = time.monotonic() + GOODBYE_S_MAX
        self._outbox.shut(encode(_BYE))

    def wait_closed(self, seconds: float) -> bool:
        """Block until ``on_close`` has returned; whether it has. Not to be called from a Receiver."""
        return self._closed.wait(seconds)

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for longer than the limits allow."""
        return self.heart.silent_beats > self.limits.silent_beats_max

    def give_up(self, fault: UpriverError) -> None:
        """Cut the channel without a goodbye; ``on_close`` is told of this fault, unless there is one already."""
        self._cut(fault)

    # For the two sides below

    def welcome(self) -> None:
        """Let the first thing said be a welcome."""
        self._outbox.put(encode(_WELCOME))

    def run(self, wire: "_Wire", receiver: Receiver) -> None:
        """Be this end until the channel is over; the calling thread reads."""
        writing = _start(self._write, "writer", wire)
        beating = _start(self._beat, "heart")

        def say_no_more() -> None:
            self.close()
            writing.join()
            with suppress(pa.ArrowException):  # the connection is gone, and the next read finds out
                wire.written()

        self._read(wire.chunks, receiver, say_no_more)
        writing.join()
        self._over.set()
        self.heart.end()
        beating.join()
        wire.finish()
        try:
            receiver.on_close(self._fault)
        finally:
            self._closed.set()

    def _read(self, chunks: Iterator[Any], receiver: Receiver, say_no_more: Callable[[], None]) -> None:
        """Hand over what comes until the stream ends.

        say_no_more: to be called at the peer's goodbye. It is for this thread to end what is written: a stream that
        ends while it is read ends its other half itself, and gRPC aborts the process if another thread does so too.
        """
        said_bye, joiner = False, Joiner()
        try:
            for chunk in chunks:
                with self.heart.hearing():
                    message = _whole(joiner, chunk.app_metadata)
                    if message is None:
                        continue
                    if message.kind == _BYE.kind:
                        said_bye = True
                        say_no_more()
                    elif message.kind == PING:
                        self.heart.pinged(message.fields)
                    else:
                        receiver.on_message(message)
        except UpriverError as error:
            if not said_bye:  # after it, a peer may be gone before the stream has ended in form
                self._cut(error)
        except Exception as error:
            self._cut(ProtocolError(f"what {self.peer} said was not taken: {type(error).__name__}: {error}"))
        if not said_bye:
            self._cut(self._lost(f"{self.peer} is gone: the channel ended without a goodbye"))

    def _write(self, wire: "_Wire") -> None:
        try:
            for frame in self._outbox:
                for piece in in_pieces(frame):
                    wire.write(piece)
        except pa.ArrowException:
            self._outbox.drop()  # the connection is gone, and the reader finds out by itself

    def _beat(self) -> None:
        """Say that we live, and watch that the other does."""
        while True:
            ping = self.heart.beat()
            if self.is_silent:
                self._cut(self._lost(f"{self.peer} has been silent for {self.limits.silence_s_max:g} s"))
            elif self._goodbye_by is not None and time.monotonic() > self._goodbye_by:
                self._cut(self._lost(f"{self.peer} does not say goodbye"))
            else:
                with suppress(Full, Shut):
                    self._outbox.put(encode(ping))
            if self._over.wait(self.limits.ping_s):
                return

    def _cut(self, fault: UpriverError) -> None:
        self._fault = self._fault or fault
        self._outbox.drop()
        self._cut_connection()


@dataclass(frozen=True, slots=True)
class _Wire:
    """What an end needs of its Flight stream. chunks: what comes; its errors are UpriverErrors.

    write: sends one frame, blocking. written: called after the last frame, by who reads. finish: called when all is
    over.
    """

    chunks: Iterator[Any]
    write: Callable[[pa.Buffer], None]
    written: Callable[[], None]
    finish: Callable[[], None]


def _whole(joiner: Joiner, frame: pa.Buffer) -> Message | None:
    """The message of a frame, or of the frame that a last piece completes."""
    message = decode(frame)
    if message.kind != PIECE:
        return message
    joined = joiner.join(message, frame)
    return None if joined is None else decode(joined)


def _start(target: Callable[..., None], role: str, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name=f"upriver-channel-{role}", daemon=True)
    thread.start()
    return thread


def open_channel(
    remote: Remote,
    hello: Message,
    receiver: Receiver,
    *,
    timeout: float = 10.0,
    limits: ChannelLimits = ChannelLimits(),
    lost: type[ClusterError] = ClusterError,
) -> ChannelEnd:
    """Open a channel to a server and return this end of it, welcomed.

    hello: what the server's ``on_open`` is told. lost: the error's class when the server cannot be reached.
    ``receiver`` may be called before this returns; if this raises, it is not called at all. Raises what ``on_open``
    raised, AccessDenied, ``lost``, or WaitTimeout after ``timeout`` seconds.
    """
    give_up_at = time.monotonic() + timeout
    connection = Connection(remote, lost)
    try:
        writer, reader = connection.exchange(CHANNEL, timeout=timeout)
    except UpriverError:
        connection.close()
        raise
    side = _ClientSide(connection, writer, reader, ChannelEnd(remote.address, lost, reader.cancel, limits))
    welcomed: Future[ChannelEnd] = Future()
    _start(side.run, "reader", hello, receiver, welcomed)
    try:
        return welcomed.result(give_up_at - time.monotonic())
    except FutureTimeout:
        if not welcomed.cancel():
            return welcomed.result()  # it came just now
        reader.cancel()
        raise WaitTimeout(f"{remote.address} has not welcomed the channel in {timeout:g} s") from None


@dataclass(frozen=True, slots=True)
class _ClientSide:
    """The end that has opened the channel, and what it stands on."""

    connection: Connection
    writer: Any
    reader: Any
    end: ChannelEnd

    def run(self, hello: Message, receiver: Receiver, welcomed: "Future[ChannelEnd]") -> None:
        said_at = now()
        try:
            self._be_welcomed(hello)
        except UpriverError as error:
            self._finish()
            if welcomed.set_running_or_notify_cancel():
                welcomed.set_exception(error)
            return
        if not welcomed.set_running_or_notify_cancel():
            self._finish()
            return
        atexit.register(self._leave)
        self.end.heart.met(said_at)
        welcomed.set_result(self.end)
        chunks = self._chunks()
        self.end.run(_Wire(chunks, self.writer.write_metadata, self.writer.done_writing, self._finish), receiver)

    def _be_welcomed(self, hello: Message) -> None:
        with suppress(pa.ArrowException):  # the first read says why
            self.writer.write_metadata(encode(hello))
        first = next(self._chunks(), None)
        if first is None or decode(first.app_metadata) != _WELCOME:
            raise ProtocolError(f"{self.end.peer} did not welcome the channel")

    def _chunks(self) -> Iterator[Any]:
        try:
            yield from self.reader
        except pa.ArrowException as error:
            raise self.connection.error(error) from None

    def _finish(self) -> None:
        atexit.unregister(self._leave)
        end_exchange(self.writer, self.reader)
        self.connection.close()

    def _leave(self) -> None:
        """Take leave before the interpreter ends: threads that outlive it crash it."""
        self.end.close()
        self.end.wait_closed(GOODBYE_S_MAX + self.end.limits.ping_s)


OnOpen = Callable[[ChannelEnd, Message], Receiver]
"""Told of a new channel and its hello; what it returns receives. An UpriverError refuses the channel, and goes to
whoever opened it. ``send`` works already."""


class ChannelExchange:
    """The server's side: an :class:`upriver.shell.flight.Exchange`."""

    def __init__(self, on_open: OnOpen, limits: ChannelLimits = ChannelLimits()) -> None:
        self._on_open = on_open
        self._limits = limits
        self._ends: set[ChannelEnd] = set()
        self._changed = threading.Condition()
        """Guards and announces ``_ends``: all and only the open ones."""

    def serve(self, call: ExchangeCall) -> None:
        chunks = _server_chunks(call)
        hello = next(chunks, None)
        if hello is None:
            return  # the caller has given up
        end = ChannelEnd(call.peer, WorkerLost, call.cut, self._limits)
        end.welcome()
        with self._listed(end):
            receiver = self._on_open(end, decode(hello.app_metadata))
            end.run(_Wire(chunks, call.writer.write_metadata, _do_nothing, _do_nothing), receiver)

    def close(self, seconds: float) -> None:
        """Close all channels; wait for the goodbyes."""
        with self._changed:
            for end in self._ends:
                end.close()
            self._changed.wait_for(lambda: not self._ends, seconds)

    @contextmanager
    def _listed(self, end: ChannelEnd) -> Iterator[None]:
        with self._changed:
            self._ends.add(end)
        try:
            yield
        finally:
            with self._changed:
                self._ends.discard(end)
                self._changed.notify_all()


def _server_chunks(call: ExchangeCall) -> Iterator[Any]:
    try:
        yield from call.reader
    except pa.ArrowException as error:
        raise WorkerLost(f"{call.peer} is gone: {brief(error)}") from None


def _do_nothing() -> None:
    """A server's stream ends by itself when its handler returns."""
