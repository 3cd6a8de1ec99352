"""The socket loop of the PostgreSQL door: a thread for each caller, each around one session."""

import secrets
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from upriver.doors.cancellation import Cancellation
from upriver.doors.doors import cannot_listen
from upriver.doors.execution import QueryRows
from upriver.doors.gateway import Gateway
from upriver.doors.postgres.scram import TokenVerifiers
from upriver.doors.postgres.session import PostgresSession
from upriver.doors.shares import QueryCaller
from upriver.net.gate import NO_PLACE, PAUSE_S, UNPROVED_S_MAX, CallerGate, GatedCaller, GatedListener
from upriver.net.handshake import Identity
from upriver.net.server import Listen, listening_socket
from upriver.options import Tls

CONNECTIONS_MAX = 100
"""Callers at a time that have proved that they know a token."""
IDLE_S_MAX = 3600.0
"""Seconds after which an idle caller's connection is closed."""
SEND_S_MAX = 60.0
"""Seconds without progress after which a caller that does not read is dropped."""
FAREWELL_S_MAX = 1.0
"""Seconds in which a caller must answer the end of TLS."""
RECEIVE_BYTES = 65_536
"""Bytes that are received at a time."""
LOOK_S = 1.0
"""Seconds after which the door looks whether it was closed, where the system does not say so."""
CLOSE_S_MAX = 5.0
"""Seconds that callers' threads have to end when the door closes."""
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR if hasattr(select, "poll") else 0
"""What the operating system says of a connection that its caller has closed; 0 where it cannot be asked."""


class PostgresServer:
    """Listens from construction until ``close``. address: ``host:port``."""

    def __init__(
        self,
        rows: QueryRows,
        tokens: Mapping[str, str],
        listen: Listen,
        tls: Tls | None = None,
        gate: CallerGate | None = None,
    ) -> None:
        """tokens: any name of each. tls: ``None``: it does not encrypt. gate: ``None``: the process's. Raises OSError
        if it cannot listen."""
        self._rows = rows
        self._tls = None if tls is None else tls.context()
        self._verifiers = TokenVerifiers(tokens)
        listening = listening_socket(listen.host, listen.port)
        listening.setblocking(False)
        self._listener = GatedListener(listening, gate, callers_max=CONNECTIONS_MAX)
        self.address = listen.address(listening.getsockname()[1])
        self._lock = threading.Lock()
        """Guards the callers."""
        self._callers: dict[int, _Caller] = {}
        self._is_closed = False
        self._accepting = threading.Thread(target=self._accept, name="upriver-postgres", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Take no more callers, and end those that there are. A second call does nothing."""
        with self._lock:
            self._is_closed = True
            callers = list(self._callers.values())
        with suppress(OSError):
            self._listener.socket.shutdown(socket.SHUT_RDWR)
        for caller in callers:
            caller.end()
        give_up_at = time.monotonic() + CLOSE_S_MAX
        for thread in (self._accepting, *(caller.thread for caller in callers)):
            if thread is not threading.current_thread():
                thread.join(max(0.0, give_up_at - time.monotonic()))

    def cancel(self, process: int, secret: int) -> None:
        """Cancel a caller's query, if the secret is that of its session."""
        with self._lock:
            caller = self._callers.get(process)
        if caller is not None and secrets.compare_digest(str(caller.secret), str(secret)):
            caller.session.cancellation.request()

    def _accept(self) -> None:
        with self._listener.socket as listening, selectors.DefaultSelector() as waiting:
            waiting.register(listening, selectors.EVENT_READ)
            while not self._is_closed:
                if not waiting.select(LOOK_S):
                    continue
                try:
                    caller = self._listener.accept()
                except OSError:
                    caller = None
                if caller is not None:
                    self._begin(caller)
                elif not self._is_closed:
                    time.sleep(PAUSE_S)  # too many files are open: callers that wait stay in the backlog

    def _begin(self, place: GatedCaller) -> None:
        with self._lock:
            caller = None if self._is_closed else self._new_caller(place)
            if caller is not None:
                self._callers[caller.process] = caller
        if caller is None:
            place.close()
            return
        try:
            caller.thread.start()
        except RuntimeError:  # the system has no thread for it
            place.close()
            self.forget(caller)

    def _new_caller(self, place: GatedCaller) -> "_Caller":
        process = next(number for number in iter(lambda: secrets.randbits(31), -1) if number not in self._callers)
        return _Caller(self, place, self._rows, self._verifiers, process, self._tls)

    def forget(self, caller: "_Caller") -> None:
        """A caller has gone."""
        with self._lock:
            self._callers.pop(caller.process, None)


class _Caller:
    """A connection and its session, on a thread of its own."""

    def __init__(
        self,
        server: PostgresServer,
        place: GatedCaller,
        rows: QueryRows,
        verifiers: TokenVerifiers,
        process: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.process, self.secret = process, secrets.randbits(32)
        cancellation = Cancellation(self._has_gone, QueryCaller(_host_of(place.socket)))
        self.session = PostgresSession(rows, verifiers, process, self.secret, cancellation, needs_tls=tls is not None)
        self.thread = threading.Thread(target=self._serve, name=f"upriver-postgres-{process}", daemon=True)
        self._server = server
        self._place = place
        """It has the connection."""
        self._tls = tls

    def end(self) -> None:
        """Cancel the query and cut the connection, from another thread."""
        self.session.cancellation.request()
        self._place.cut()

    def _has_gone(self) -> bool:
        """Whether the caller has closed the connection."""
        if not _GONE:
            return False
        looks = select.poll()
        looks.register(self._place.socket, _GONE)
        return bool(looks.poll(0))

    def _serve(self) -> None:
        try:
            with suppress(OSError):
                self._place.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._converse(time.monotonic() + UNPROVED_S_MAX)
            if self.session.cancels is not None:
                self._server.cancel(*self.session.cancels)
        finally:
            self._hang_up()
            self._server.forget(self)

    def _hang_up(self) -> None:
        with suppress(OSError):
            if isinstance(self._place.socket, ssl.SSLSocket):  # callers take an end without a word for an attack
                self._place.socket.settimeout(FAREWELL_S_MAX)
                self._place.socket.unwrap()
        self._place.close()

    def _converse(self, prove_by: float) -> None:
        """Serve the caller until either side ends it. prove_by: when the caller must have proved itself, monotonic."""
        while not self.session.is_over:
            wait_s = IDLE_S_MAX if self.session.is_trusted else max(0.001, prove_by - time.monotonic())
            self._place.socket.settimeout(wait_s)
            try:
                data = self._place.socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                why = "the connection was idle for too long" if self.session.is_trusted else "no password came in time"
                data = b""
                self._send(self.session.refuse("57P05", why))
            if not data:
                return
            for piece in self.session.receive(data):
                if self.session.is_trusted and not self._place.admit(Identity.CLIENT, self.session.token):
                    self._send(self.session.refuse("53300", NO_PLACE))
                    return
                self._send(piece)
            if self.session.awaits_tls:
                self._encrypt(prove_by)

    def _encrypt(self, prove_by: float) -> None:
        """Do the handshake of TLS, on the caller's own time."""
        assert self._tls is not None
        self._place.socket.settimeout(max(0.001, prove_by - time.monotonic()))
        encrypted = self._tls.wrap_socket(self._place.socket, server_side=True, do_handshake_on_connect=False)
        self._place.wrap(encrypted)  # before the handshake, so that the gate can cut it
        encrypted.do_handshake()
        self.session.tls_began()

    def _send(self, piece: bytes) -> None:
        self._place.socket.settimeout(SEND_S_MAX)
        self._place.socket.sendall(piece)


def _host_of(connection: socket.socket) -> str:
    """The address that a caller comes from; empty if it has gone."""
    with suppress(OSError):
        return str(connection.getpeername()[0])
    return ""


def serve(gateway: Gateway, listen: Listen, tls: Tls | None) -> PostgresServer:
    """Open the door. Raises ClusterError if it cannot listen."""
    try:
        return PostgresServer(gateway.rows(), gateway.tokens, listen, tls)
    except OSError as error:
        raise cannot_listen("postgres", listen, error) from None
