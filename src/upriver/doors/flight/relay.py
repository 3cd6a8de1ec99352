"""The listener of the Flight door. gRPC takes any number of callers and messages of any size before it asks who calls.

So gRPC listens on loopback alone, and callers come through here. A thread takes them from the gate and hands their
bytes on, encrypted or not. It cuts a caller that has sent more than ``UNPROVED_BYTES_MAX`` before one of its calls has
shown a token. The door tells the relay of such a call, and names the caller by the port from which gRPC sees it come.
"""

import selectors
import socket
import threading
import time
from contextlib import suppress

from upriver.net.gate import PAUSE_S, GatedCaller, GatedListener
from upriver.net.handshake import Identity

DESCRIPTORS = 3
"""That a caller takes: its connection, and both ends of the relayed one."""
UNPROVED_BYTES_MAX = 1 << 20
"""Bytes of a caller that has not shown a token. gRPC holds a call's message before the door sees the call's token."""
RELAY_BYTES = 256 << 10
"""Bytes that are handed on at a time; each direction of a connection holds so many at most."""


class _Direction:
    """One direction of a relayed connection. held: bytes that the other side has not taken yet."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.held = memoryview(b"")

    def read(self, bytes_max: int) -> int:
        """Take what has come, at most so many bytes; returns how many, and -1 at the end. Raises OSError."""
        try:
            data = self.source.recv(bytes_max)
        except BlockingIOError:
            return 0
        self.held = memoryview(data)
        self.write()
        return len(data) or -1

    def write(self) -> None:
        """Hand on as much as the other side takes. Raises OSError."""
        with suppress(BlockingIOError):
            while self.held:
                self.held = self.held[self.sink.send(self.held) :]


class _RelayedCaller:
    """A caller and its connection to gRPC's server."""

    def __init__(self, place: GatedCaller, server: socket.socket) -> None:
        self.place = place
        self.server = server
        self.number: int = server.getsockname()[1]
        """The port from which gRPC sees it come."""
        self.asked = _Direction(place.socket, server)
        self.answered = _Direction(server, place.socket)
        self._unproved_bytes = 0

    def turn(self, ready: socket.socket, events: int) -> bool:
        """Hand bytes on; returns whether the connection goes on. Raises OSError if it does not."""
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
    """Relays from construction until ``stop``, on a thread of its own. server: where gRPC listens, on loopback."""

    def __init__(self, listener: GatedListener, server: tuple[str, int]) -> None:
        self._listener = listener
        self._server = server
        self._lock = threading.Lock()
        """Guards the callers."""
        self._callers: dict[int, _RelayedCaller] = {}
        """By their number."""
        self._silent: set[GatedCaller] = set()
        """Callers that have said nothing yet: they have no relayed connection. Only the relay's thread uses it."""
        self._accepts_at: float | None = None
        """When to accept again, monotonic, after the process had no descriptor; ``None``: it accepts."""
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._waking, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="upriver-flight-relay", daemon=True)
        self._thread.start()

    def admit(self, peer: str) -> bool:
        """A call has shown a token. peer: where gRPC saw it come from, as ``ipv4:127.0.0.1:50000``. Returns whether its
        caller has a place; a caller that did not come through here has none."""
        number = peer.rpartition(":")[2]
        with self._lock:
            caller = self._callers.get(int(number)) if number.isdecimal() else None
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
                    elif isinstance(key.data, _RelayedCaller) and self._callers.get(key.data.number) is key.data:
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
            self._silent.add(caller)
            self._selector.register(caller.socket, selectors.EVENT_READ, caller)

    def _connect(self, place: GatedCaller) -> None:
        """A caller has said something, or has gone."""
        server: socket.socket | None = None
        try:
            if not place.socket.recv(1, socket.MSG_PEEK):
                self._end_silent(place)
                return
            server = socket.socket()
            server.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            place.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                server.connect(self._server)
            caller = _RelayedCaller(place, server)
        except OSError:
            if server is not None:
                server.close()
            self._end_silent(place)
            return
        self._silent.discard(place)
        self._selector.modify(place.socket, selectors.EVENT_READ, caller)
        self._selector.register(server, selectors.EVENT_READ, caller)
        with self._lock:
            self._callers[caller.number] = caller

    def _turn(self, caller: _RelayedCaller, ready: socket.socket, events: int) -> None:
        try:
            goes_on = caller.turn(ready, events)
        except OSError:
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
        self._silent.discard(place)
        place.close()

    def _end(self, caller: _RelayedCaller) -> None:
        for each in (caller.place.socket, caller.server):
            self._wait_for(each, 0, caller)
        with self._lock:
            del self._callers[caller.number]
        caller.server.close()
        caller.place.close()
