"""The listener of the Flight door. gRPC takes any number of callers and messages of any size before it asks who calls.

So gRPC listens on a Unix socket in a directory that only this user may enter, and callers come through here. A thread
takes them from the gate, does their TLS, and hands their bytes on. It cuts a caller that has sent more than
``UNPROVED_BYTES_MAX`` before one of its calls has shown a token, and one that sends too large a message
(:mod:`.messages`). gRPC sees each relayed connection come from a path of its own, by which the door tells the relay
whose call has shown a token.
"""

import itertools
import logging
import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

from upriver.doors.flight.messages import MessageRefused, MessageSizes
from upriver.net.gate import PAUSE_S, GatedCaller, GatedListener
from upriver.net.handshake import Identity
from upriver.net.tls import PlainCaller, TlsSocket

_LOG = logging.getLogger("upriver.flight")

DESCRIPTORS = 3
"""That a caller takes: its connection, and both ends of the relayed one."""
UNPROVED_BYTES_MAX = 1 << 20
"""Bytes of a caller that has not shown a token. gRPC holds a call's message before the door sees the call's token."""
RELAY_BYTES = 256 << 10
"""Bytes that are handed on at a time; each direction of a connection holds so many at most."""


class _Direction:
    """One direction of a relayed connection. held: bytes that the other side has not taken yet. sizes: of the messages
    in it; ``None``: they may have any."""

    def __init__(
        self, source: socket.socket | TlsSocket, sink: socket.socket | TlsSocket, sizes: MessageSizes | None = None
    ) -> None:
        self.source = source
        self.sink = sink
        self.held = memoryview(b"")
        self._sizes = sizes

    def read(self, bytes_max: int) -> int:
        """Take what has come, at most so many bytes; returns how many, and -1 at the end. Raises OSError,
        MessageRefused."""
        try:
            data = self.source.recv(bytes_max)
        except BlockingIOError:
            return 0
        if self._sizes is not None:
            self._sizes.hear(data)
        self.held = memoryview(data)
        self.write()
        return len(data) or -1

    def write(self) -> None:
        """Hand on as much as the other side takes. Raises OSError."""
        with suppress(BlockingIOError):
            while self.held:
                self.held = self.held[self.sink.send(self.held) :]


class _RelayedCaller:
    """A caller and its connection to gRPC's server. connection: the caller's, encrypted or not. name: the path from
    which gRPC sees it come."""

    def __init__(
        self, place: GatedCaller, connection: socket.socket | TlsSocket, server: socket.socket, name: str
    ) -> None:
        self.place = place
        self.server = server
        self.name = name
        self.asked = _Direction(connection, server, MessageSizes())
        self.answered = _Direction(server, connection)
        self._unproved_bytes = 0

    def turn(self, ready: socket.socket, events: int) -> bool:
        """Hand bytes on; returns whether the connection goes on. Raises OSError, MessageRefused if it does not."""
        into, out_of = (self.asked, self.answered) if ready is self.place.socket else (self.answered, self.asked)
        if events & selectors.EVENT_WRITE:
            out_of.write()
        if not events & selectors.EVENT_READ or into.held:
            return True
        is_unproved = into is self.asked and self.place.identity is None
        left = UNPROVED_BYTES_MAX - self._unproved_bytes + 1
        count = into.read(min(RELAY_BYTES, left) if is_unproved else RELAY_BYTES)
        if is_unproved:
            self._unproved_bytes += max(0, count)
        return count >= 0 and (not is_unproved or self._unproved_bytes <= UNPROVED_BYTES_MAX)

    def events(self, of: socket.socket) -> int:
        """What to wait for at this socket."""
        into, out_of = (self.asked, self.answered) if of is self.place.socket else (self.answered, self.asked)
        return (0 if into.held else selectors.EVENT_READ) | (selectors.EVENT_WRITE if out_of.held else 0)


class FlightRelay:
    """Relays from construction until ``stop``, on a thread of its own. server: the Unix socket on which gRPC listens;
    the relay gives connections paths beside it. tls: ``None``: callers do not encrypt."""

    def __init__(self, listener: GatedListener, server: Path, tls: ssl.SSLContext | None = None) -> None:
        self._listener = listener
        self._server = server
        self._tls = tls
        self._names = itertools.count()
        self._lock = threading.Lock()
        """Guards the callers."""
        self._callers: dict[str, _RelayedCaller] = {}
        """By their name."""
        self._silent: dict[GatedCaller, TlsSocket | None] = {}
        """Callers that have said nothing yet, or are in their handshake of TLS: they have no relayed connection. Only
        the relay's thread uses it."""
        self._accepts_at: float | None = None
        """When to accept again, monotonic, after the process had no descriptor; ``None``: it accepts."""
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._waking, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="upriver-flight-relay", daemon=True)
        self._thread.start()

    def admit(self, peer: str) -> bool:
        """A call has shown a token. peer: where gRPC saw it come from, as ``unix:/tmp/upriver-x/7``. Returns whether
        its caller has a place; a caller that did not come through here has none."""
        with self._lock:
            caller = self._callers.get(peer.removeprefix("unix:"))
        return caller is not None and caller.place.admit(Identity.CLIENT)

    def stop(self) -> None:
        """Take no more callers, and cut those that there are. A second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with suppress(OSError):
            self._waking.send(b"x")
        self._thread.join()
        self._waking.close()

    # Only the relay's thread calls what follows

    def _run(self) -> None:
        listening = self._listener.socket
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while not self._stopping.is_set():
                for key, events in self._selector.select(self._seconds_left()):
                    if key.fileobj is listening:
                        self._accept()
                    elif isinstance(key.data, GatedCaller):
                        self._connect(key.data)
                    elif isinstance(key.data, _RelayedCaller) and self._callers.get(key.data.name) is key.data:
                        self._turn(key.data, key.fileobj, events)  # type: ignore[arg-type]  # we register sockets alone
                self._listener.drop_late()
                if self._accepts_at is not None and time.monotonic() >= self._accepts_at:
                    self._accepts_at = None
                    self._selector.register(listening, selectors.EVENT_READ)
        finally:
            for silent in list(self._silent):
                self._end_silent(silent)
            for caller in list(self._callers.values()):
                self._end(caller)
            self._selector.close()
            listening.close()
            self._woken.close()

    def _seconds_left(self) -> float | None:
        """Seconds until there is something to do, whatever comes."""
        late_s = self._listener.seconds_left()
        if self._accepts_at is None:
            return late_s
        paused_s = max(0.0, self._accepts_at - time.monotonic())
        return paused_s if late_s is None else min(paused_s, late_s)

    def _accept(self) -> None:
        try:
            caller = self._listener.accept()
        except OSError:  # there are no descriptors left; callers that are relayed do not wait for one
            self._selector.unregister(self._listener.socket)
            self._accepts_at = time.monotonic() + PAUSE_S
            return
        if caller is not None:
            self._silent[caller] = None if self._tls is None else TlsSocket.of_server(caller.socket, self._tls)
            self._selector.register(caller.socket, selectors.EVENT_READ, caller)

    def _connect(self, place: GatedCaller) -> None:
        """A caller has said something, or has gone."""
        encrypted = self._silent[place]
        try:
            if encrypted is None and not place.socket.recv(1, socket.MSG_PEEK):
                self._end_silent(place)
                return
            if encrypted is not None and not encrypted.shake_hands():
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if encrypted.unsent else 0)
                self._selector.modify(place.socket, events, place)
                return
            place.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server, name = self._server_connection()
        except (OSError, PlainCaller):
            self._end_silent(place)
            return
        del self._silent[place]
        caller = _RelayedCaller(place, encrypted or place.socket, server, name)
        self._selector.modify(place.socket, selectors.EVENT_READ, caller)
        self._selector.register(server, selectors.EVENT_READ, caller)
        with self._lock:
            self._callers[name] = caller
        self._turn(caller, place.socket, selectors.EVENT_READ)  # the handshake may have read what came behind it

    def _server_connection(self) -> tuple[socket.socket, str]:
        """A connection to gRPC, and its name. Raises OSError, also if more connections wait for gRPC than can."""
        name = self._server.with_name(str(next(self._names)))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.setblocking(False)
            server.bind(str(name))
            try:
                server.connect(str(self._server))
            finally:
                name.unlink()  # the connection keeps its name
        except OSError:
            server.close()
            raise
        return server, str(name)

    def _turn(self, caller: _RelayedCaller, ready: socket.socket, events: int) -> None:
        try:
            goes_on = caller.turn(ready, events)
        except OSError:
            goes_on = False
        except MessageRefused as refused:
            if caller.place.identity is not None:  # strangers do not fill the log
                _LOG.warning("a caller with a token is cut off: it sends %s", refused)
            goes_on = False
        if not goes_on:
            self._end(caller)
            return
        for each in (caller.place.socket, caller.server):
            self._wait_for(each, caller.events(each), caller)

    def _wait_for(self, one: socket.socket, events: int, caller: _RelayedCaller) -> None:
        is_registered = one in self._selector.get_map()
        if is_registered and not events:
            self._selector.unregister(one)
        elif is_registered:
            self._selector.modify(one, events, caller)
        elif events:
            self._selector.register(one, events, caller)

    def _end_silent(self, place: GatedCaller) -> None:
        self._selector.unregister(place.socket)
        del self._silent[place]
        place.close()

    def _end(self, caller: _RelayedCaller) -> None:
        for each in (caller.place.socket, caller.server):
            self._wait_for(each, 0, caller)
        with self._lock:
            del self._callers[caller.name]
        caller.server.close()
        caller.place.close()
