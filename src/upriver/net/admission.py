"""Admission at a process's native port: it authenticates callers before they cost more than a descriptor.

One thread accepts connections and reads their hellos (:mod:`.handshake`), which have a fixed size. A caller that is not
authenticated yet costs one descriptor and at most ``HELLO`` bytes, for as long as the gate (:mod:`.gate`) allows. A
handshake of TLS goes before that, in the same time, on the same thread. Encrypted, both together have at most
``HANDSHAKE_BYTES_MAX`` bytes.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from upriver.net.byte_stream import ByteStream
from upriver.net.gate import PAUSE_S, GatedCaller, GatedListener
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
    greeting_of_tls,
    nonce,
    read_hello,
)
from upriver.net.tls import HANDSHAKE_BYTES_MAX, PlainCaller, TlsSocket

GOODBYE_S_MAX = 2.0
"""Seconds that a stopping server waits for its threads."""

_NO_PROOF = bytes(PROOF_BYTES)


class ServedConnections:
    """The connections that are served, each with its thread. Called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the threads."""
        self._threads: dict[ByteStream, threading.Thread] = {}

    def begin(self, stream: ByteStream, thread: threading.Thread) -> None:
        """Start the thread that serves this connection, and at its end calls ``end``. Raises RuntimeError if the system
        has no thread for it."""
        with self._lock:
            self._threads[stream] = thread
        try:
            thread.start()
        except RuntimeError:
            self.end(stream)
            raise

    def end(self, stream: ByteStream) -> None:
        with self._lock:
            del self._threads[stream]

    def cut(self) -> None:
        """Cut all connections, and wait for their threads, at most ``GOODBYE_S_MAX`` seconds."""
        with self._lock:
            threads = dict(self._threads)
        for stream in threads:
            stream.cut()
        give_up_at = time.monotonic() + GOODBYE_S_MAX
        for thread in threads.values():
            thread.join(max(0.0, give_up_at - time.monotonic()))


@dataclass(slots=True, eq=False)
class _PendingCaller:
    """A caller before it is authenticated. connection: its socket, encrypted or not."""

    caller: GatedCaller
    connection: socket.socket | TlsSocket
    nonce: bytes
    is_greeted: bool = False
    hello: bytes = b""

    @property
    def events(self) -> int:
        """What to wait for."""
        is_held_up = isinstance(self.connection, TlsSocket) and self.connection.unsent
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if is_held_up else 0)

    @property
    def has_said_too_much(self) -> bool:
        """Whether its bytes, encrypted, are more than a handshake and a hello can have: records may have no content."""
        return isinstance(self.connection, TlsSocket) and self.connection.heard_bytes > HANDSHAKE_BYTES_MAX

    @property
    def lacks_certificate(self) -> bool:
        """Whether it has encrypted without showing one."""
        return isinstance(self.connection, TlsSocket) and self.connection.other_certificate() is None


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """A caller that has proved its identity. place: the owner leaves it once the stream is closed. role: a client's;
    ``None`` for the cluster."""

    stream: ByteStream
    place: GatedCaller
    session: Session
    purpose: Purpose
    role: Role | None


class CallerAdmission:
    """Accepts callers from ``start`` until ``stop``, on a thread of its own, which closes the listener at its end.

    offered: the purposes that callers may have. admit: takes a caller that has proved its identity; returns soon.
    """

    def __init__(
        self,
        listener: GatedListener,
        keys: HandshakeKeys,
        offered: Collection[Purpose],
        admit: Callable[[AdmittedCaller], None],
    ) -> None:
        self._listener = listener
        self._keys = keys
        self._tls = None if keys.tls is None else keys.tls.server_context()
        self._certificate = b"" if keys.tls is None else keys.tls.certificate
        self._offered = offered
        self._admit = admit
        self._pending: set[_PendingCaller] = set()
        """Only the admission's thread uses it."""
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

    # Only the admission's thread calls what follows

    def _run(self) -> None:
        listening = self._listener.socket
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(self._listener.seconds_left()):
                    key.data()
                self._listener.drop_late()
        finally:
            for pending in list(self._pending):
                self._drop(pending)
            self._selector.close()
            listening.close()
            self._woken.close()

    def _accept(self) -> None:
        try:
            caller = self._listener.accept()
        except OSError:  # there are no descriptors left
            self._stopping.wait(PAUSE_S)
            return
        if caller is None:
            return
        connection = caller.socket if self._tls is None else TlsSocket.of_server(caller.socket, self._tls)
        pending = _PendingCaller(caller, connection, nonce())
        self._pending.add(pending)
        self._selector.register(caller.socket, selectors.EVENT_READ, partial(self._hear, pending))
        if self._tls is None:
            self._greet(pending)

    def _greet(self, pending: _PendingCaller) -> None:
        pending.is_greeted = True
        try:
            _send_whole(pending, greeting(pending.nonce))
        except OSError:
            self._drop(pending)

    def _hear(self, pending: _PendingCaller) -> None:
        """Read from a pending caller; once its hello is complete, decide."""
        if pending not in self._pending:
            return  # it was dropped in this turn
        if not pending.is_greeted:
            self._encrypt(pending)
            if not pending.is_greeted or pending not in self._pending:
                return
        try:
            more = pending.connection.recv(HELLO.size - len(pending.hello))
        except BlockingIOError:
            if pending.has_said_too_much:
                self._drop(pending)
            return
        except OSError:
            more = b""
        pending.hello += more
        if not more or pending.has_said_too_much:
            self._drop(pending)
        elif len(pending.hello) == HELLO.size:
            self._decide(pending)

    def _encrypt(self, pending: _PendingCaller) -> None:
        """Go on with the handshake of TLS; once it is over, greet."""
        assert isinstance(pending.connection, TlsSocket)
        try:
            is_over = pending.connection.shake_hands()
        except PlainCaller:
            with suppress(OSError):
                pending.caller.socket.send(greeting_of_tls())
            self._drop(pending)
        except OSError:
            self._drop(pending)
        else:
            self._selector.modify(pending.caller.socket, pending.events, partial(self._hear, pending))
            if is_over:
                self._greet(pending)

    def _decide(self, pending: _PendingCaller) -> None:
        said = read_hello(pending.hello, pending.nonce, self._certificate)
        if said is None:
            self._drop(pending)
            return
        exchange, proof = said
        identity = exchange.purpose.needs
        proved = self._keys.proved(exchange, proof)
        if proved is None:
            self._refuse(pending, Verdict.WRONG_KEY)
        elif identity is Identity.CLUSTER and pending.lacks_certificate:
            self._refuse(pending, Verdict.NO_CERTIFICATE)
        elif exchange.purpose not in self._offered:
            self._refuse(pending, Verdict.NOT_SERVED)
        elif not pending.caller.admit(identity, "" if proved.role is None else proved.role.name.lower()):
            self._refuse(pending, Verdict.FULL, self._listener.gate.places.of(identity))
        else:
            answer = ANSWER.pack(Verdict.WELCOME, 0, exchange.proof_of_server(proved.key))
            if (stream := self._welcome(pending, answer)) is not None:
                session = exchange.session_of_server(proved.key)
                self._admit(AdmittedCaller(stream, pending.caller, session, exchange.purpose, proved.role))

    def _refuse(self, pending: _PendingCaller, verdict: Verdict, number: int = 0) -> None:
        with suppress(OSError):
            pending.connection.send(ANSWER.pack(verdict, number, _NO_PROOF))
        self._drop(pending)

    def _drop(self, pending: _PendingCaller) -> None:
        self._forget(pending)
        pending.caller.close()

    def _forget(self, pending: _PendingCaller) -> None:
        self._selector.unregister(pending.caller.socket)
        self._pending.discard(pending)

    def _welcome(self, pending: _PendingCaller, answer: bytes) -> ByteStream | None:
        """The caller's connection; ``None`` if the caller has gone already."""
        self._forget(pending)
        try:
            _send_whole(pending, answer)
            return ByteStream(pending.connection)
        except OSError:
            pending.caller.close()
            return None


def _send_whole(pending: _PendingCaller, message: bytes) -> None:
    """Raises OSError for a caller whose connection does not take a small message at once."""
    if pending.connection.send(message) < len(message):
        raise BlockingIOError("it does not take the handshake")
