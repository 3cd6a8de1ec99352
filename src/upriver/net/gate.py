"""The gate of a process: the places that callers take at all its listeners together.

A caller is unauthenticated until it has shown a token, or a proof of one. Such a caller holds its place for at most
``UNPROVED_S_MAX`` seconds. If all places are taken, the gate drops the oldest unauthenticated caller of the listener
that has most of them: idle callers keep no rightful caller out, and a flood at one listener leaves the others alone
(net.little_before_the_proof).

Descriptors are shared out in advance: part for unauthenticated callers, part for clients, part for the cluster's own
channels. The rest stays for the lake (net.descriptors_are_shared_out). All listeners of a process draw on these shares.
Clients of one host with one token have at most three quarters of the clients' part, and of what a listener takes.
"""

import errno
import resource
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Self

from upriver.net.byte_stream import keep_alive
from upriver.net.handshake import Identity

UNPROVED_S_MAX = 10.0
"""Seconds in which a caller must prove its identity, at any listener."""
UNAUTHENTICATED_MAX = 256
"""Descriptors of callers that have not yet; at most one for every eight files that the process may open."""
CLIENTS_MAX = 4096
"""Descriptors of clients; at most three for every eight files."""
CHANNELS_MAX = 4096
"""Descriptors of the cluster's own; at most one for every four files. A quarter of the files is left for the lake."""
PAUSE_S = 0.1
"""Seconds until a listener accepts again when the process had no descriptor for a connection."""

NO_PLACE = "all places of callers, or those of this host with this token, are taken: close some, or try again"
"""What a listener tells a client that it does not admit."""

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class Places:
    """How many descriptors a process gives to unauthenticated callers, to clients, to the cluster."""

    unauthenticated: int = UNAUTHENTICATED_MAX
    clients: int = CLIENTS_MAX
    channels: int = CHANNELS_MAX

    @classmethod
    def of_process(cls) -> Self:
        """As many places as leave files for the lake."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls() if files == resource.RLIM_INFINITY else cls.within(files)

    @classmethod
    def within(cls, files: int) -> Self:
        """The places of a process that may open so many files."""
        return cls(
            max(1, min(UNAUTHENTICATED_MAX, files // 8)),
            max(1, min(CLIENTS_MAX, 3 * files // 8)),
            max(1, min(CHANNELS_MAX, files // 4)),
        )

    def of(self, identity: Identity) -> int:
        return self.channels if identity is Identity.CLUSTER else self.clients


def share_of_one(places: int) -> int:
    """How many of these places clients of one host with one token may have."""
    return places - places // 4


class CallerGate:
    """The places of all listeners. Called by any thread. clock: in seconds, for the time limit of a proof."""

    def __init__(self, places: Places | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """places: ``None``: those that the process's limit of files allows."""
        self.places = places or Places.of_process()
        self.clock = clock
        self._lock = threading.Lock()
        """Guards what follows, and the state of the callers."""
        self._unproved: dict[GatedListener, OrderedDict[GatedCaller, None]] = {}
        """By listener, oldest first."""
        self._taken: Counter[Identity] = Counter()
        """Descriptors."""
        self._admitted: Counter[GatedListener] = Counter()
        """Callers."""
        self._of_one: Counter[tuple[str, str] | tuple[GatedListener, str, str]] = Counter()
        """Clients' descriptors by host and token, and clients by listener, host and token."""
        self._makes_room: GatedCaller | None = None
        """The last caller that was dropped for its descriptor, until that is closed."""

    @staticmethod
    @cache
    def of_process() -> "CallerGate":
        """The one of this process."""
        return CallerGate()

    def enter(self, caller: "GatedCaller") -> None:
        """Give a new caller a place, if need be that of the oldest of the listener with most callers."""
        dropped: list[GatedCaller] = []
        with self._lock:
            taken = sum(len(waiting) * listener.cost for listener, waiting in self._unproved.items())
            while self._unproved and taken + caller.listener.cost > self.places.unauthenticated:
                dropped.append(self._forget_oldest())
                taken -= dropped[-1].listener.cost
            self._unproved.setdefault(caller.listener, OrderedDict())[caller] = None
        for one in dropped:
            one.cut()

    def drop_oldest(self) -> bool:
        """Drop an unauthenticated caller, for the process has no descriptors left; returns whether there was one. There
        is none until the last one that was dropped here has closed."""
        with self._lock:
            before = self._makes_room
            if not self._unproved or (before is not None and before.due_at > self.clock()):
                return False
            dropped = self._makes_room = self._forget_oldest()
        dropped.cut()
        return True

    def _forget_oldest(self) -> "GatedCaller":
        fullest = max(self._unproved, key=lambda listener: len(self._unproved[listener]) * listener.cost)
        oldest = next(iter(self._unproved[fullest]))
        self._forget(oldest)
        return oldest

    def _forget(self, caller: "GatedCaller") -> bool:
        """An unauthenticated caller has no place any more; returns whether it had one."""
        waiting = self._unproved.get(caller.listener, OrderedDict())
        if caller not in waiting:
            return False
        del waiting[caller]
        if not waiting:
            del self._unproved[caller.listener]
        return True

    def admit(self, caller: "GatedCaller", identity: Identity, token: str = "") -> bool:
        """The caller has proved this identity. token: the name of what it has shown, as "reader"; empty: any. Returns
        whether it has a place; it has none if the gate has dropped it before. A further call does nothing."""
        listener = caller.listener
        with self._lock:
            if caller.identity is not None:
                return True
            if self._taken[identity] + listener.cost > self.places.of(identity):
                return False
            if listener.callers_max is not None and self._admitted[listener] >= listener.callers_max:
                return False
            if identity is Identity.CLIENT and self._is_over_its_share(caller, token):
                return False
            if not self._forget(caller):
                return False
            caller.identity, caller.token = identity, token
            self._count_of_one(caller, 1)
            self._taken[identity] += listener.cost
            self._admitted[listener] += 1
            return True

    def _is_over_its_share(self, caller: "GatedCaller", token: str) -> bool:
        """Whether the client would have more than clients of its host with its token may have together."""
        listener, host = caller.listener, caller.host
        if self._of_one[host, token] + listener.cost > share_of_one(self.places.clients):
            return True
        return listener.callers_max is not None and (
            self._of_one[listener, host, token] >= share_of_one(listener.callers_max)
        )

    def _count_of_one(self, caller: "GatedCaller", sign: int) -> None:
        if caller.identity is Identity.CLIENT:
            one = (caller.host, caller.token)
            for whose, count in ((one, caller.listener.cost), ((caller.listener, *one), 1)):
                self._of_one[whose] += sign * count
                if not self._of_one[whose]:
                    del self._of_one[whose]

    def leave(self, caller: "GatedCaller") -> None:
        """The caller has gone. A further call does nothing."""
        with self._lock:
            if caller is self._makes_room:
                self._makes_room = None
            if not self._forget(caller) and caller.identity is not None:
                self._count_of_one(caller, -1)
                self._taken[caller.identity] -= caller.listener.cost
                self._admitted[caller.listener] -= 1
                if not self._admitted[caller.listener]:
                    del self._admitted[caller.listener]
                caller.identity = None

    def oldest_of(self, listener: "GatedListener") -> "GatedCaller | None":
        """The oldest unauthenticated caller of a listener."""
        with self._lock:
            return next(iter(self._unproved.get(listener, ())), None)


class GatedListener:
    """A listening socket behind the gate. Its owner's thread accepts, and drops callers that are late."""

    def __init__(
        self, listening: socket.socket, gate: CallerGate | None = None, *, cost: int = 1, callers_max: int | None = None
    ) -> None:
        """gate: ``None``: the process's. cost: descriptors that a caller takes. callers_max: callers that have proved
        their identity, of this listener alone; ``None``: as many as there are places."""
        self.socket = listening
        self.gate = gate or CallerGate.of_process()
        self.cost = cost
        self.callers_max = callers_max

    def accept(self) -> "GatedCaller | None":
        """The next caller, whose socket does not block, and ends if its host goes; ``None`` if there is none now, or if
        the process had no descriptor for it: an unauthenticated caller is dropped then. Call it only when a connection
        waits: without descriptors the system does not look whether one does.

        Raises OSError if there is none to drop, or if the listener is closed: try again after ``PAUSE_S``.
        """
        try:
            connected, address = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the caller has gone
            return None
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS and self.gate.drop_oldest():
                return None
            raise
        try:
            connected.setblocking(False)
            keep_alive(connected)
        except OSError:  # the caller has gone
            connected.close()
            return None
        caller = GatedCaller(connected, self, self.gate.clock() + UNPROVED_S_MAX, address[0])
        self.gate.enter(caller)
        return caller

    def seconds_left(self) -> float | None:
        """Seconds until the oldest unauthenticated caller is late; ``None`` if there is none."""
        oldest = self.gate.oldest_of(self)
        return None if oldest is None else max(0.0, oldest.due_at - self.gate.clock())

    def drop_late(self) -> None:
        """Drop all that have not proved their identity in time."""
        while (oldest := self.gate.oldest_of(self)) is not None and oldest.due_at <= self.gate.clock():
            self.gate.leave(oldest)
            oldest.cut()


class GatedCaller:
    """A caller and its place. due_at: when it must have proved its identity, on the gate's clock. host: that it comes
    from. identity, token: what it has proved; the gate alone changes them. Its owner closes the socket, and then calls
    ``leave``."""

    __slots__ = ("due_at", "host", "identity", "listener", "socket", "token")

    def __init__(self, connected: socket.socket, listener: GatedListener, due_at: float, host: str) -> None:
        self.socket = connected
        self.listener = listener
        self.due_at = due_at
        self.host = host
        self.identity: Identity | None = None
        self.token = ""

    def admit(self, identity: Identity, token: str = "") -> bool:
        """As ``CallerGate.admit``."""
        return self.listener.gate.admit(self, identity, token)

    def leave(self) -> None:
        """As ``CallerGate.leave``."""
        self.listener.gate.leave(self)

    def wrap(self, connected: socket.socket) -> None:
        """The connection is encrypted from now on, and ``connected`` has taken its descriptor over."""
        self.socket = connected

    def cut(self) -> None:
        """End the connection; any thread may call this. The owner finds the end of what it reads, and closes."""
        with suppress(OSError):
            # Not the method of an encrypted connection, which the owner's thread may be using.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, and leave."""
        with suppress(OSError):
            self.socket.close()
        self.leave()
