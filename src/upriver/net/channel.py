"""Channels: two processes exchange messages, in order, until one says goodbye or is lost.

One end opens a channel to a server (:func:`open_channel`); the server's end (:class:`Channels`) is handed to its
``on_open``. From then on both ends are alike. A channel is a plain socket. Each message is a frame on it, sealed with a
key that only the two ends have, so an end never decodes, let alone unpickles, a frame of a third process.

Theory of operation. Each end has three threads. The reader hands over what comes. The heartbeat thread sends
heartbeats, and notices when the other end has sent none for a while (:class:`HeartbeatMonitor`). The writer writes
what waits in a bounded outbox; that is little, since a sending thread writes by itself while nothing waits
(:class:`Outbox`). A killed process is noticed at once, since its socket closes.

An end that is closed says goodbye after its last message; the other end answers with its own goodbye. A channel that
ends without both has been lost. An end cuts the connection of a lost, silent or overwhelmed peer, which ends the
reading thread, and that thread alone calls ``on_close``.

``HeartbeatMonitor``: the heartbeats of one end, and what it knows of the other's. Each heartbeat has its number, and
the number of the last heartbeat heard from the other end. The other end is *silent* when nothing has come from it for
some heartbeats of ours. When it names one of our heartbeats, we know that it heard us when that heartbeat was sent or
later, however long the message took: leases rest on that (docs/internals/failures.md).

An end counts silence in its own heartbeats, not in seconds. An end that could not run (a process that was stopped, a
call that kept the interpreter's lock) has not listened in that time, and must not blame its peer. Nor is a peer silent
while its last message is being handled.

``Outbox``: the frames that wait to be written. Many threads put, one iterates, and the outbox is bounded. While nothing
waits, the thread that puts a small frame writes it, as far as that goes without waiting. Otherwise it would have to
wake another thread, which would then compete with it for the interpreter's lock.
"""

import atexit
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from upriver.errors import ClusterError, ProtocolError, UpriverError, WaitTimeout, WorkerLost
from upriver.net.admission import GOODBYE_S_MAX
from upriver.net.byte_stream import ByteStream
from upriver.net.frames import (
    MESSAGE_BYTES_MAX,
    PIECE,
    Chunk,
    Joiner,
    Seals,
    chunks,
    joined,
    read_first_frame,
    read_frame,
    write_frame,
)
from upriver.net.handshake import Purpose, Session
from upriver.net.remote import Remote, dial
from upriver.net.server import Caller
from upriver.net.wire import Message, decode, encode, error_from_json, error_to_json

PING = "channel.ping"
"""A heartbeat: ``{"beat": number, "heard": number of the last one that has come}``."""
SEVERAL = "channel.several"
"""Several messages without batches in one frame: ``{"messages": [[kind, fields], ...]}``."""
UNHEARD_BEATS_MAX = 1000
"""How many of its heartbeats an end keeps the times of while no answer has come."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds by a clock that goes on while this process is stopped, and on Linux also while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class HeartbeatMonitor:
    """One end's heartbeats. One thread calls ``beat`` and ``silent_beats``, the reader calls ``hearing`` and
    ``pinged``, any thread calls everything else."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._number = 0
        """Of our last heartbeat."""
        self._times: deque[tuple[int, float]] = deque(maxlen=UNHEARD_BEATS_MAX)
        """Number and time of each of our heartbeats that the other end has not confirmed."""
        self._theirs = 0
        """Number of the last heartbeat that has come from the other end."""
        self._silent_beats = 0
        self._is_hearing = False
        self._heard_at = self._clock()
        self._changed = threading.Condition()
        """Guards and announces what follows."""
        self._confirmed_at = -math.inf
        self._is_over = False

    @property
    def heard_at(self) -> float:
        """When something last came from the other end, by :func:`now`; before that, when this end began."""
        return self._heard_at

    def beat(self) -> Message:
        """Beat once; returns the heartbeat to send."""
        self._number += 1
        self._times.append((self._number, self._clock()))
        if not self._is_hearing:
            self._silent_beats += 1
        return Message(PING, {"beat": self._number, "heard": self._theirs})

    @property
    def silent_beats(self) -> int:
        """Our heartbeats since something last came."""
        return self._silent_beats

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """A message has come, and this block handles it."""
        self._heard_at, self._is_hearing = self._clock(), True
        self._silent_beats = 0
        try:
            yield
        finally:
            self._heard_at, self._is_hearing = self._clock(), False
            self._silent_beats = 0

    def pinged(self, fields: Mapping[str, Any]) -> None:
        """A heartbeat of the other end has come, with the last of ours that it has heard. Raises ProtocolError."""
        beat, heard, at = fields.get("beat"), fields.get("heard"), None
        if type(beat) is not int or type(heard) is not int:
            raise ProtocolError(f"a malformed {PING}: {dict(fields)!r:.100}")
        self._theirs = beat
        while self._times and self._times[0][0] <= heard:
            _, at = self._times.popleft()
        if at is not None:
            self._confirmed(at)

    # What a lease rests on

    def met(self, said_at: float) -> None:
        """The other end has heard what we said at that time, by our clock, before the first heartbeat."""
        self._confirmed(said_at)

    def _confirmed(self, at: float) -> None:
        with self._changed:
            self._confirmed_at = at
            self._changed.notify_all()

    def is_confirmed(self, within_s: float) -> bool:
        """Whether the other end has certainly heard something that we said at most ``within_s`` seconds ago."""
        return not self._is_over and self._clock() < self._confirmed_at + within_s

    def wait_confirmed(self, within_s: float, seconds: float | None) -> bool:
        """Block until that is so, at most ``seconds`` if given, or until the channel is over; returns whether it is
        so."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self.is_confirmed(within_s), seconds)
            return self.is_confirmed(within_s)

    def end(self) -> None:
        """The channel is over: nothing more will come."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


AT_ONCE_BYTES_MAX = 1 << 16
"""At most how many bytes a frame has that its sender writes itself; a larger one would hold the sender up."""


class Full(Exception):
    """An outbox has no room."""


class Shut(Exception):
    """An outbox takes no more frames."""


class Outbox:
    """Frames that wait to be written. Many threads put; one thread iterates over the chunks to write, until the last.

    messages_max, bytes_max: while as much waits, no more is taken; so a frame of any size fits behind small ones.
    seals: of this direction; a frame is sealed when it is written, so seals are in the order of the wire.
    """

    def __init__(self, messages_max: int, bytes_max: int, seals: Seals) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._seals = seals
        self._write_at_once: Callable[[bytes], int] | None = None
        self._waiting: deque[tuple[int, Iterator[Chunk]]] = deque()
        """The bytes of each frame that remain to be written: how many, and their chunks."""
        self._bytes = 0
        self._is_shut = self._is_writing = False
        self._changed = threading.Condition()

    def open(self, write_at_once: Callable[[bytes], int]) -> None:
        """From now on, threads that put may write. write_at_once: writes without waiting, and returns how many bytes;
        raises OSError if the other end is gone, which the reader notices by itself."""
        with self._changed:
            self._write_at_once = write_at_once

    def put(self, frame: pa.Buffer) -> None:
        """Put or write a frame. Raises Full if there is no room, Shut after ``shut`` or ``drop``."""
        with self._changed:
            if self._is_shut:
                raise Shut
            if self._bytes >= self._bytes_max:
                raise Full(f"{self._bytes} bytes")
            if len(self._waiting) >= self._messages_max:
                raise Full(f"{len(self._waiting)} messages")
            goes_now = self._write_at_once is not None and not (self._waiting or self._is_writing)
            if goes_now and frame.size <= AT_ONCE_BYTES_MAX:
                self._write(joined(frame, self._seals))
            else:
                self._push(frame.size, chunks(frame, self._seals))

    def shut(self, last: pa.Buffer) -> None:
        """Take one last frame, and nothing after it. Only the first call counts."""
        with self._changed:
            if not self._is_shut:
                self._is_shut = True
                self._push(last.size, chunks(last, self._seals))

    def drop(self) -> None:
        """Forget the waiting frames, and take no more."""
        with self._changed:
            self._is_shut = True
            self._waiting.clear()
            self._bytes = 0
            self._changed.notify()

    def _write(self, data: bytes) -> None:
        assert self._write_at_once is not None
        try:
            written = self._write_at_once(data)
        except OSError:
            self.drop()
            return
        if written < len(data):
            self._push(len(data) - written, iter((data[written:],)))

    def _push(self, size: int, waiting: Iterator[Chunk]) -> None:
        self._waiting.append((size, waiting))
        self._bytes += size
        self._changed.notify()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.wait_for(lambda: self._waiting or self._is_shut)
                if not self._waiting:
                    return
                size, waiting = self._waiting.popleft()
                self._bytes -= size
                self._is_writing = True
            yield from waiting


HELLO_S_MAX = 5.0
"""Seconds in which an authenticated caller must send its hello."""

_WELCOME, _BYE = Message("channel.welcome"), Message("channel.bye")
_REFUSED = "channel.refused"
"""The answer instead of a welcome: an error in JSON."""


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """Bounds of one end. outbox_*: what may wait to be written; one message of any size always fits.

    ping_s: seconds between heartbeats. silence_s_max: seconds of silence after which the peer counts as lost; this end
    notices within ``ping_s`` more. The module's docstring says what silence is.
    """

    outbox_messages_max: int = 10_000
    outbox_bytes_max: int = 256 << 20
    ping_s: float = 1.0
    silence_s_max: float = 15.0

    @property
    def silent_beats_max(self) -> int:
        """For how many of our heartbeats the other end may be silent."""
        return math.ceil(self.silence_s_max / self.ping_s)


@dataclass(frozen=True, slots=True)
class Receiver:
    """The callbacks of an end. One thread calls both, in order; they must return soon.

    on_close: called once, last; with ``None`` if both ends have said goodbye, otherwise with the error.
    """

    on_message: Callable[[Message], None]
    on_close: Callable[[UpriverError | None], None]


class ChannelEnd:
    """One end of a channel; usable by any thread. peer: the other end's address, for messages.

    lost: class of the error when the peer is gone. cut: drops the connection. heartbeats: those heartbeats of both
    ends. session: the keys of both directions.
    """

    def __init__(
        self, peer: str, lost: type[ClusterError], cut: Callable[[], object], limits: ChannelLimits, session: Session
    ) -> None:
        self.peer = peer
        self._lost = lost
        self._cut_connection = cut
        self.limits = limits
        self.heartbeats = HeartbeatMonitor()
        self.receive_seals, self.send_seals = Seals(session.hears), Seals(session.sends)
        self._outbox = Outbox(limits.outbox_messages_max, limits.outbox_bytes_max, self.send_seals)
        self._fault: UpriverError | None = None
        """Why this end has cut the connection; the first reason counts."""
        self.was_left = False
        """The other end has ended the connection without a goodbye, as a process that dies does."""
        self._goodbye_by: float | None = None
        """When to stop waiting for the peer's goodbye."""
        self._over = threading.Event()
        """Nothing more will be read or written."""
        self._closed = threading.Event()
        """``on_close`` has returned."""

    def send(self, message: Message) -> None:
        """Put a message behind those sent before; it is written at once, or soon by another thread.

        Raises ClusterError if the channel is closed or lost, and if more waits to be written than the limits allow. In
        that case the peer does not keep up, and the channel is cut, since a channel never skips a message. Raises
        ProtocolError for a message of more than ``MESSAGE_BYTES_MAX``.
        """
        frame = encode(message)
        if frame.size > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"a message of {frame.size:,} bytes: at most {MESSAGE_BYTES_MAX:,} can be sent")
        try:
            self._outbox.put(frame)
        except Full as full:
            fault = ClusterError(f"{self.peer} does not keep up: {full} wait to be sent; the channel is cut")
            self._cut(fault)
            raise fault from None
        except Shut:
            raise ClusterError(f"the channel to {self.peer} is closed") from None

    def send_together(self, messages: Sequence[Message]) -> None:
        """As ``send``, of several messages, in order. Those without batches go in one frame."""
        together: list[Message] = []
        for message in messages:
            if message.batches:
                self._send_several(together)
                together = []
                self.send(message)
            else:
                together.append(message)
        self._send_several(together)

    def _send_several(self, messages: Sequence[Message]) -> None:
        if len(messages) > 1:
            self.send(Message(SEVERAL, {"messages": [[each.kind, each.fields] for each in messages]}))
        elif messages:
            self.send(messages[0])

    def close(self) -> None:
        """Say goodbye after all that was sent. Returns at once; ``on_close`` follows, soon or when the peer is cut."""
        if self._goodbye_by is None:
            self._goodbye_by = time.monotonic() + GOODBYE_S_MAX
        self._outbox.shut(encode(_BYE))

    def wait_closed(self, seconds: float) -> bool:
        """Block until ``on_close`` has returned; returns whether it has. A Receiver must not call this."""
        return self._closed.wait(seconds)

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for longer than the limits allow."""
        return self.heartbeats.silent_beats > self.limits.silent_beats_max

    def give_up(self, fault: UpriverError) -> None:
        """Cut the channel without a goodbye; ``on_close`` gets this fault, unless there is one already."""
        self._cut(fault)

    # For the two sides below

    def welcome(self) -> None:
        """Send the welcome, before any other message."""
        self._outbox.put(encode(_WELCOME))

    def run(self, stream: ByteStream, receiver: Receiver) -> None:
        """Run this end until the channel is over, on the calling thread as reader. The caller closes the stream."""
        writing, beating = _start(self._write, "writer", stream), _start(self._beat, "heartbeats")
        self._outbox.open(stream.write_at_once)
        self._read(stream, receiver)
        self.close()
        writing.join()
        self._over.set()
        self.heartbeats.end()
        beating.join()
        try:
            receiver.on_close(self._fault)
        finally:
            self._closed.set()

    def _read(self, stream: ByteStream, receiver: Receiver) -> None:
        """Hand over messages until the peer says goodbye; if the stream ends without one, cut the channel."""
        joiner = Joiner()
        try:
            while (frame := read_frame(stream, self.receive_seals)) is not None:
                with self.heartbeats.hearing():
                    message = _whole(joiner, frame)
                    if message is None:
                        continue
                    if message.kind == _BYE.kind:
                        return
                    if message.kind == PING:
                        self.heartbeats.pinged(message.fields)
                    elif message.kind == SEVERAL:
                        for each in _several(message):
                            receiver.on_message(each)
                    else:
                        receiver.on_message(message)
            self._leave()
        except OSError as error:
            self._leave(f" ({error})")
        except UpriverError as error:
            self._cut(error)
        except Exception as error:
            self._cut(ProtocolError(f"a message of {self.peer} was not handled: {type(error).__name__}: {error}"))

    def _write(self, stream: ByteStream) -> None:
        try:
            for chunk in self._outbox:
                stream.write(chunk)
        except OSError:
            self._outbox.drop()  # the connection is gone, which the reader notices by itself

    def _beat(self) -> None:
        """Send heartbeats, and watch those of the other end."""
        while True:
            ping = self.heartbeats.beat()
            if self.is_silent:
                self._cut(self._lost(f"{self.peer} has been silent for {self.limits.silence_s_max:g} s"))
            elif self._goodbye_by is not None and time.monotonic() > self._goodbye_by:
                self._cut(self._lost(f"{self.peer} does not close its end"))
            else:
                with suppress(Full, Shut):
                    self._outbox.put(encode(ping))
            if self._over.wait(self.limits.ping_s):
                return

    def _leave(self, how: str = "") -> None:
        """Nothing more comes, and the other end has not said goodbye."""
        self.was_left = self._fault is None
        self._cut(self._lost(f"{self.peer} is gone: the channel ended without a closing message{how}"))

    def _cut(self, fault: UpriverError) -> None:
        self._fault = self._fault or fault
        self._outbox.drop()
        self._cut_connection()


def _whole(joiner: Joiner, frame: pa.Buffer) -> Message | None:
    """The message of a frame, or of the frame that a last piece completes."""
    message = decode(frame)
    if message.kind != PIECE:
        return message
    joined = joiner.join(message, frame)
    return None if joined is None else decode(joined)


def _several(message: Message) -> list[Message]:
    """The messages of a frame. Raises ProtocolError for a malformed one."""
    several = message.fields.get("messages")
    try:
        messages = [Message(kind, fields) for kind, fields in several or ()]
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"a malformed {SEVERAL}: {error!r}") from error
    if any(not isinstance(each.kind, str) or not isinstance(each.fields, dict) for each in messages):
        raise ProtocolError(f"a malformed {SEVERAL}: {several!r:.100}")
    return messages


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

    hello: the message for the server's ``on_open``. lost: the error's class when the server cannot be reached.
    ``receiver`` may be called before this returns; if this raises, it is not called at all. Raises the error of
    ``on_open``, AccessDenied, ``lost``, or WaitTimeout after ``timeout`` seconds.
    """
    give_up_at = time.monotonic() + timeout
    stream, session = dial(remote, Purpose.CHANNEL, timeout, lost)
    end = ChannelEnd(remote.address, lost, stream.cut, limits, session)
    said_at = now()
    try:
        _be_welcomed(stream, end, hello, give_up_at)
    except TimeoutError:
        stream.close()
        raise WaitTimeout(f"{remote.address} has not accepted the channel in {timeout:g} s") from None
    except OSError as error:
        stream.close()
        raise lost(f"{remote.address} cannot be reached: {error}") from None
    except UpriverError:
        stream.close()
        raise
    end.heartbeats.met(said_at)
    _start(_ClientSide(end, stream).run, "reader", receiver)
    return end


def _be_welcomed(stream: ByteStream, end: ChannelEnd, hello: Message, give_up_at: float) -> None:
    write_frame(stream, encode(hello), end.send_seals)
    frame = read_first_frame(stream, end.receive_seals, give_up_at)
    if frame is None:
        raise ConnectionError("the channel ended before it was accepted")
    first = decode(frame)
    if first.kind == _REFUSED:
        raise error_from_json(first.fields)
    if first != _WELCOME:
        raise ProtocolError(f"{stream.peer} did not accept the channel")


class _ClientSide:
    """The end that has opened the channel, and its stream."""

    def __init__(self, end: ChannelEnd, stream: ByteStream) -> None:
        self._end = end
        self._stream = stream
        atexit.register(self._leave)

    def run(self, receiver: Receiver) -> None:
        try:
            self._end.run(self._stream, receiver)
        finally:
            atexit.unregister(self._leave)
            self._stream.close()

    def _leave(self) -> None:
        """Say goodbye before the interpreter ends."""
        self._end.close()
        self._end.wait_closed(GOODBYE_S_MAX + self._end.limits.ping_s)


OnOpen = Callable[[ChannelEnd, Message], Receiver]
"""Takes a new channel and its hello, and returns its receiver. An UpriverError refuses the channel, and goes to the end
that opened it. ``send`` works already."""


class Channels:
    """The server's side: the service of channels, for callers with the cluster's secret."""

    def __init__(self, on_open: OnOpen, limits: ChannelLimits = ChannelLimits()) -> None:
        self._on_open = on_open
        self._limits = limits
        self._ends: set[ChannelEnd] = set()
        self._changed = threading.Condition()
        """Guards and announces ``_ends``: all and only the open ones."""

    def stop(self) -> None:
        """Close all channels; wait a little for the goodbyes. A second call does nothing."""
        with self._changed:
            for end in self._ends:
                end.close()
            self._changed.wait_for(lambda: not self._ends, GOODBYE_S_MAX)

    def serve(self, caller: Caller) -> None:
        """Run the server's end of one channel until it is over."""
        stream = caller.stream
        end = ChannelEnd(stream.peer, WorkerLost, stream.cut, self._limits, caller.session)
        frame = read_first_frame(stream, end.receive_seals, time.monotonic() + HELLO_S_MAX)
        if frame is None:
            return  # the caller has given up
        end.welcome()
        with self._listed(end):
            try:
                receiver = self._on_open(end, decode(frame))
            except Exception as error:
                write_frame(stream, encode(Message(_REFUSED, error_to_json(error))), end.send_seals)
                return
            end.run(stream, receiver)

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
