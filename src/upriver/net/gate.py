"""The gate of a process's server: it authenticates callers before they cost more than a descriptor.

One thread accepts connections and reads their hellos (:mod:`.handshake`), which have a fixed size. A caller
that is not authenticated yet costs one descriptor and at most ``HELLO`` bytes for ``HANDSHAKE_S_MAX`` seconds. If there
are too many such callers, the gate drops the oldest, so idle ones never keep a rightful caller out. It admits a caller
that has proved its identity (net.little_before_the_proof).

Descriptors are shared out in advance: part for unauthenticated callers, part for clients, part for the cluster's own
channels. The rest stays for the lake (net.descriptors_are_shared_out).
"""

import resource
import selectors
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

from upriver.net.byte_stream import ByteStream
from upriver.net.handshake import (
    ANSWER,
    HELLO,
    PROOF_BYTES,
    HandshakeKeys,
    Identity,
    Purpose,
    Role,
    Session,
    Verdict,
    greeting,
    nonce,
    read_hello,
)

HANDSHAKE_S_MAX = 5.0
"""Seconds in which a caller must prove its identity."""
UNAUTHENTICATED_MAX = 256
"""ServedConnections of callers that have not yet; at most one for every eight files that the process may open."""
CLIENTS_MAX = 4096
"""ServedConnections of clients; at most three for every eight files."""
CHANNELS_MAX = 4096
"""ServedConnections of the cluster's own; at most one for every four files. So a quarter of the files is left for the
lake."""
PAUSE_S = 0.1
"""Seconds until the gate accepts again when the process had no descriptor for a connection."""
GOODBYE_S_MAX = 2.0
"""Seconds that a stopping server waits for its threads."""

_NO_PROOF = bytes(PROOF_BYTES)


@dataclass(frozen=True, slots=True)
class Places:
    """How many connections a server takes: of unauthenticated callers, of clients, of the cluster."""

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


class ServedConnections:
    """The connections that are served, each with its thread, and the places that they take. Called by any thread."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._lock = threading.Lock()
        """Guards the two that follow."""
        self._threads: dict[ByteStream, threading.Thread] = {}
        self._taken: Counter[Identity] = Counter()

    def has_place(self, identity: Identity) -> bool:
        """Whether there is a place for one more caller of this kind."""
        with self._lock:
            return self._taken[identity] < self.places.of(identity)

    def begin(self, stream: ByteStream, identity: Identity, thread: threading.Thread) -> None:
        """Start the thread that serves this connection, and at its end calls ``end``."""
        with self._lock:
            self._threads[stream] = thread
            self._taken[identity] += 1
        thread.start()

    def end(self, stream: ByteStream, identity: Identity) -> None:
        with self._lock:
            del self._threads[stream]
            self._taken[identity] -= 1

    def cut(self) -> None:
        """Cut all connections, and wait for their threads, at most ``GOODBYE_S_MAX`` seconds."""
        with self._lock:
            threads = dict(self._threads)
        for stream in threads:
            stream.cut()
        give_up_at = time.monotonic() + GOODBYE_S_MAX
        for thread in threads.values():
            thread.join(max(0.0, give_up_at - time.monotonic()))


@dataclass(slots=True)
class _PendingCaller:
    """A caller before it is authenticated. due_at: when it must have proved its identity."""

    caller: socket.socket
    nonce: bytes
    due_at: float
    hello: bytes = b""


class CallerGate:
    """Accepts callers from ``start`` until ``stop``, on a thread of its own, which closes the listener at its end.

    offered: the purposes that callers may have. admit: takes the connection of a caller that has proved its identity,
    and its role; returns soon. clock: in seconds, for the time limit of the handshake.
    """

    def __init__(
        self,
        listener: socket.socket,
        keys: HandshakeKeys,
        offered: Collection[Purpose],
        connections: ServedConnections,
        admit: Callable[[ByteStream, Session, Purpose, Role | None], None],
        clock: Callable[[], float],
    ) -> None:
        self._listener = listener
        self._keys = keys
        self._offered = offered
        self._connections = connections
        self._admit = admit
        self._clock = clock
        self._pending: OrderedDict[socket.socket, _PendingCaller] = OrderedDict()
        """In the order in which they came. Only the gate's thread uses it."""
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._waking, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="upriver-gate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more callers, and drop those that are not authenticated."""
        self._stopping.set()
        with suppress(OSError):
            self._waking.send(b"x")
        self._thread.join()
        self._waking.close()

    # Only the gate's thread calls what follows

    def _run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(self._seconds_left()):
                    key.data()
                while self._pending and self._seconds_left() == 0:
                    self._drop(next(iter(self._pending)))
        finally:
            for caller in list(self._pending):
                self._drop(caller)
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _seconds_left(self) -> float | None:
        """Seconds until the oldest pending caller is late."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else max(0.0, oldest.due_at - self._clock())

    def _accept(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except BlockingIOError:  # the caller has gone
            return
        except OSError:  # there are no descriptors left
            if self._pending:
                self._drop(next(iter(self._pending)))
            else:
                self._stopping.wait(PAUSE_S)
            return
        if len(self._pending) >= self._connections.places.unauthenticated:
            self._drop(next(iter(self._pending)))
        caller.setblocking(False)
        pending = _PendingCaller(caller, nonce(), self._clock() + HANDSHAKE_S_MAX)
        self._pending[caller] = pending
        self._selector.register(caller, selectors.EVENT_READ, partial(self._hear, pending))
        try:
            caller.send(greeting(pending.nonce))
        except OSError:
            self._drop(caller)

    def _hear(self, pending: _PendingCaller) -> None:
        """Read from a pending caller; once its hello is complete, decide."""
        if pending.caller not in self._pending:
            return  # it was dropped in this turn
        try:
            more = pending.caller.recv(HELLO.size - len(pending.hello))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        pending.hello += more
        if not more:
            self._drop(pending.caller)
        elif len(pending.hello) == HELLO.size:
            self._decide(pending)

    def _decide(self, pending: _PendingCaller) -> None:
        said = read_hello(pending.hello, pending.nonce)
        if said is None:
            self._drop(pending.caller)
            return
        exchange, proof = said
        identity = exchange.purpose.needs
        proved = self._keys.proved(exchange, proof)
        if proved is None:
            self._refuse(pending, Verdict.WRONG_KEY)
        elif exchange.purpose not in self._offered:
            self._refuse(pending, Verdict.NOT_SERVED)
        elif not self._connections.has_place(identity):
            self._refuse(pending, Verdict.FULL, self._connections.places.of(identity))
        else:
            answer = ANSWER.pack(Verdict.WELCOME, 0, exchange.proof_of_server(proved.key))
            if (stream := self._welcome(pending, answer)) is not None:
                self._admit(stream, exchange.session_of_server(proved.key), exchange.purpose, proved.role)

    def _refuse(self, pending: _PendingCaller, verdict: Verdict, number: int = 0) -> None:
        with suppress(OSError):
            pending.caller.send(ANSWER.pack(verdict, number, _NO_PROOF))
        self._drop(pending.caller)

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._pending[caller]

    def _welcome(self, pending: _PendingCaller, answer: bytes) -> ByteStream | None:
        """The caller's connection; ``None`` if the caller has gone already."""
        self._forget(pending.caller)
        try:
            pending.caller.send(answer)
            return ByteStream(pending.caller)
        except OSError:
            pending.caller.close()
            return None
