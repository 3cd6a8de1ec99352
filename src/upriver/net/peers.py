"""All channels of one worker to its peers: meetings decide which peers have one, and messages go in frames.

Theory of operation. The coordinator tells every worker of each meeting: which incarnation fills which slot, and where
it serves. Of two workers the one with the lower number dials the other. Meetings reach workers at different times, so
a peer may dial a worker for a meeting that the worker does not know yet. Such a channel is *early*: the worker reads
it, but writes nothing until it is told of a meeting that names the peer. A worker lets go a channel to a peer that the
meeting does not name: the channel ends with a goodbye, behind all messages sent before.

A worker reads another one's messages in order, over all channels that there ever are between the two: it reads a newer
channel when the older one is over.

``Link``: one channel between two workers, how it begins, and the messages that wait to be sent over it.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from upriver.errors import ClusterError, ProtocolError, UpriverError, WaitTimeout, WorkerLost
from upriver.ids import Incarnation, WorkerId
from upriver.net.admission import GOODBYE_S_MAX
from upriver.net.channel import ChannelEnd, ChannelLimits, Receiver, open_channel
from upriver.net.codec import PEER, FrameWriter, decode
from upriver.net.remote import Remote
from upriver.net.wire import Message
from upriver.protocol.peers import Envelope

FRAME_MESSAGES_MAX = 1_000
"""Envelopes to one peer that wait for ``flush``: so many are sent without it."""
FRAME_BYTES_MAX = 1 << 20
"""Bytes to one peer that wait for ``flush``, likewise; a larger envelope is sent at once."""


class Link:
    """A channel to a peer, and the messages that wait to be sent over it. end: set before anything is sent.

    meeting: the one that it was dialled for. is_over: its ``on_close`` has been called. is_displaced: a newer channel
    has replaced it; its messages all arrive only if it ends with both ends' goodbye.
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
        if to != me:  # another worker may have this address by now
            raise WorkerLost(f"worker {me} serves here, and not worker {to}")
        if worker >= me:
            raise ProtocolError(f"worker {worker} has dialled worker {me}, which has the lower number")
        return cls(WorkerId(worker), Incarnation(incarnation), meeting)

    def hello(self, me: WorkerId, mine: Incarnation) -> Message:
        """The hello to the dialled side."""
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

    def close(self) -> None:
        """Close the channel in good order, behind all messages sent before."""
        assert self.end is not None
        self.flush()
        self.end.close()

    def _write(self) -> None:
        assert self.end is not None
        if self._frame.messages:
            with suppress(ClusterError):  # the channel is broken, and its ``on_close`` reports it
                self.end.send(self._frame.take())


MEET_S_MAX = 10.0
"""Seconds in which all channels of a meeting must be open."""
PEER_LIMITS = ChannelLimits()
"""Of both ends of a channel between workers."""

OnEnvelopes = Callable[[WorkerId, tuple[Envelope, ...]], None]
OnLost = Callable[[WorkerId, Incarnation, UpriverError | None], None]
OnMet = Callable[[int], None]
OnFailed = Callable[[int, UpriverError, WorkerId], None]


class Peers:
    """The channels of worker ``me``; usable by any thread. Callbacks come on several threads, or inside its methods.

    remote: any server of the app, with the cluster's secret. hear: takes a peer's messages, in order for each peer;
    returns soon. lost: a channel of the latest meeting has ended, and not because this side closed it; with ``None`` if
    the peer said goodbye. Called once for each channel. meet_s_max: seconds for a meeting.
    """

    def __init__(
        self,
        me: WorkerId,
        remote: Remote,
        hear: OnEnvelopes,
        lost: OnLost,
        *,
        limits: ChannelLimits = PEER_LIMITS,
        meet_s_max: float = MEET_S_MAX,
    ) -> None:
        self._me = me
        self._remote = remote
        self._hear = hear
        self._lost = lost
        self._limits = limits
        self._meet_s_max = meet_s_max
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._meeting = _Meeting.before_all()
        self._joined: dict[WorkerId, Link] = {}
        """The open channels to incarnations that the meeting names."""
        self._early: dict[WorkerId, Link] = {}
        """Channels for meetings that this side does not know yet; the newest for each worker."""
        self._dialling: set[tuple[WorkerId, Incarnation]] = set()
        self._open: dict[WorkerId, list[Link]] = {}
        """By worker, all channels that are not over, those being closed among them; oldest first."""
        self._is_closed = False
        self._news: deque[Callable[[], None]] = deque()
        """Callbacks that are due, in the order of their events."""
        self._telling = threading.RLock()
        """Held while callbacks run; the lock above is not."""

    def meet(
        self,
        meeting: int,
        peers: Mapping[WorkerId, tuple[Incarnation, str]],
        me_incarnation: Incarnation,
        met: OnMet,
        failed: OnFailed,
    ) -> None:
        """Open one channel to each of these incarnations at these addresses, and close all others.

        Returns at once. ``met`` is called once, when all are open; or ``failed``, with the peer that cannot be reached
        or is lost before that; neither, when a later meeting comes first. ``me`` among the peers is ignored. Raises
        ProtocolError unless meetings come in ascending order, ClusterError once closed.
        """
        others = {worker: peer for worker, peer in sorted(peers.items()) if worker != self._me}
        with self._changed:
            self._check_not_closed()
            if meeting <= self._meeting.number:
                raise ProtocolError(f"meeting {meeting} was announced after meeting {self._meeting.number}")
            self._meeting.end()
            self._meeting = _Meeting(meeting, others, me_incarnation, met, failed)
            self._close_unnamed()
            self._join_early()
            for worker in others:
                if worker > self._me and worker not in self._joined:
                    self._dial(worker)
            self._check_complete()
            if not self._meeting.is_over:
                self._meeting.start_timer(self._meet_s_max, self._give_up)
        self._tell()

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        """Put an envelope behind those sent before; it goes with the next ``flush``, or earlier if much waits.

        Raises ClusterError if there is no open channel to that worker by the latest meeting. Messages on their way when
        a channel breaks are lost, and ``lost`` is called.
        """
        with self._changed:
            link = self._joined.get(to)
        if link is None:
            raise ClusterError(f"worker {self._me} has no channel to worker {to}")
        link.say(envelope)

    def flush(self) -> None:
        """Send all waiting envelopes: one frame for each peer."""
        with self._changed:
            links = list(self._joined.values())
        for link in links:
            link.flush()

    def accept(self, end: ChannelEnd, hello: Message) -> Receiver:
        """Take a channel that a peer opens: the ``on_open`` of this worker's ChannelExchange.

        Raises ClusterError for a peer that no meeting names, ProtocolError for a malformed hello.
        """
        link = Link.greeted(hello, self._me)
        link.end = end
        with self._changed:
            self._check_not_closed()
            if not self._place(link):
                raise ClusterError(f"worker {self._me} expects no channel from {link}, or has one already")
            self._check_complete()
        self._tell()
        return self._receiver(link)

    def close(self) -> None:
        """Say goodbye to all peers, behind all that was sent, and wait for theirs. No callback may call this."""
        with self._changed:
            self._is_closed = True
            self._meeting.end()
            self._joined.clear()
            self._early.clear()
            for links in self._open.values():
                for link in links:
                    link.close()
            seconds = GOODBYE_S_MAX + self._limits.ping_s  # by then, a peer that says no goodbye has been cut
            self._changed.wait_for(lambda: not self._open and not self._dialling, seconds)

    # Which peers are here. All of these are called with the lock held

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise ClusterError(f"the channels of worker {self._me} are closed")

    def _close_unnamed(self) -> None:
        """Close the channels that the meeting does not name, unless they come from a later meeting."""
        for worker, link in list(self._joined.items()):
            if not self._meeting.names(link):
                self._joined.pop(worker).close()
        for worker, link in list(self._early.items()):
            if not self._meeting.names(link) and link.meeting <= self._meeting.number:
                self._early.pop(worker).close()

    def _join_early(self) -> None:
        for worker, link in list(self._early.items()):
            if self._meeting.names(link):
                older = self._joined.pop(worker, None)
                if older is not None:  # its peer has closed it, by a meeting unknown to this side, or lost it
                    older.is_displaced = True
                    older.close()
                self._joined[worker] = self._early.pop(worker)

    def _place(self, link: Link) -> bool:
        """Register a channel that has just been opened; returns whether it is wanted."""
        if self._meeting.names(link) and link.worker not in self._joined:
            self._joined[link.worker] = link
        elif link.meeting > self._meeting.number:
            older = self._early.pop(link.worker, None)
            if older is not None:
                older.close()
            self._early[link.worker] = link
        else:
            return False
        self._open.setdefault(link.worker, []).append(link)
        return True

    def _reached(self, link: Link) -> None:
        """A dialled channel is open. If the meeting does not need it any more, this side still reads what comes."""
        if self._is_closed or not self._place(link):
            self._open.setdefault(link.worker, []).append(link)
            link.close()
        self._check_complete()

    def _check_complete(self) -> None:
        if not self._meeting.is_over and not self._meeting.missing(self._joined):
            self._meeting.end()
            self._news.append(partial(self._meeting.met, self._meeting.number))

    def _fail(self, error: UpriverError, peer: WorkerId) -> None:
        if not self._meeting.is_over:
            self._meeting.end()
            self._news.append(partial(self._meeting.failed, self._meeting.number, error, peer))

    def _dial(self, worker: WorkerId) -> None:
        incarnation, address = self._meeting.peers[worker]
        if (worker, incarnation) in self._dialling:
            return
        self._dialling.add((worker, incarnation))
        link = Link(worker, incarnation, self._meeting.number)
        hello = link.hello(self._me, self._meeting.mine)
        dial = partial(self._open_link, link, address, hello)
        threading.Thread(target=dial, name="upriver-peers-dial", daemon=True).start()

    def _try_again_or_fail(self, link: Link, error: UpriverError) -> None:
        """A dialled channel was not opened."""
        if self._is_closed or not self._meeting.names(link) or link.worker in self._joined:
            return
        if link.meeting < self._meeting.number:
            self._dial(link.worker)  # it was refused, or timed out, for an earlier meeting
        else:
            self._fail(error, link.worker)

    def _forget(self, link: Link, error: UpriverError | None) -> None:
        links = self._open.get(link.worker, [])
        if link in links:
            links.remove(link)
        if not links:
            self._open.pop(link.worker, None)
        if self._early.get(link.worker) is link:
            del self._early[link.worker]
        if self._joined.get(link.worker) is link:
            del self._joined[link.worker]
            self._news.append(partial(self._lost, link.worker, link.incarnation, error))
            self._fail(error or WorkerLost(f"{link} has left"), link.worker)
        elif link.is_displaced and error is not None and not self._is_closed:
            # Its peer may have noticed the break first, and met anew: messages in between are lost.
            self._news.append(partial(self._lost, link.worker, link.incarnation, error))

    # On other threads

    def _open_link(self, link: Link, address: str, hello: Message) -> None:
        """Dial one peer."""
        error: UpriverError | None = None
        try:
            remote, receiver = self._remote.at(address), self._receiver(link)
            link.end = open_channel(
                remote, hello, receiver, timeout=self._meet_s_max, limits=self._limits, lost=WorkerLost
            )
        except UpriverError as reason:
            error = reason
        with self._changed:
            self._dialling.discard((link.worker, link.incarnation))
            if error is not None or link.is_over:
                self._try_again_or_fail(link, error or WorkerLost(f"{link} is gone"))
            else:
                self._reached(link)
            self._changed.notify_all()
        self._tell()

    def _give_up(self, meeting: "_Meeting") -> None:
        with self._changed:
            if meeting is self._meeting:
                missing = meeting.missing(self._joined)
                named, late = ", ".join(map(str, missing)), f"after {self._meet_s_max:g} s"
                self._fail(WaitTimeout(f"worker {self._me} has no channel to {named} {late}"), missing[0])
        self._tell()

    def _receiver(self, link: Link) -> Receiver:
        return Receiver(partial(self._on_message, link), partial(self._on_close, link))

    def _on_message(self, link: Link, message: Message) -> None:
        """Hand the message over, once all that came over older channels was; ``silence_s_max`` bounds the wait."""
        envelopes = decode(message)
        with self._changed:
            self._changed.wait_for(lambda: link in self._open.get(link.worker, ())[:1])
        self._hear(link.worker, envelopes)

    def _on_close(self, link: Link, error: UpriverError | None) -> None:
        with self._changed:
            link.is_over = True
            self._forget(link, error)
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        with self._telling:
            while self._news:
                self._news.popleft()()


@dataclass(slots=True)
class _Meeting:
    """peers: the workers to meet, without this one. mine: this worker's incarnation. is_over: no callback is due."""

    number: int
    peers: Mapping[WorkerId, tuple[Incarnation, str]]
    mine: Incarnation
    met: OnMet
    failed: OnFailed
    is_over: bool = False
    _timer: threading.Timer | None = None

    @classmethod
    def before_all(cls) -> "_Meeting":
        """A meeting of no peers, which is over."""
        return cls(-1, {}, Incarnation(0), lambda _: None, lambda *_: None, is_over=True)

    def names(self, link: Link) -> bool:
        named = self.peers.get(link.worker)
        return named is not None and named[0] == link.incarnation

    def missing(self, here: Mapping[WorkerId, Link]) -> list[WorkerId]:
        return [worker for worker in self.peers if worker not in here]

    def start_timer(self, seconds: float, give_up: "Callable[[_Meeting], None]") -> None:
        timer = threading.Timer(seconds, give_up, (self,))
        timer.name, timer.daemon = "upriver-peers-timer", True
        self._timer = timer
        timer.start()

    def end(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
