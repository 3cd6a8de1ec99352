"""Doors: how others get a plain socket of this process's, with a ticket that they were given for the app's token.

A caller asks the process's Flight server, which sees to the token, to be let in: ``{"port": number, "ticket": hex}``.
It connects to that port and says the ticket; from then on the stream is for whatever the door leads to. So there is one
place that sees to the token, and the token does not go over the stream. Whoever has no ticket is told nothing.
"""

import math
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from upriver.errors import ClusterError, UpriverError, WaitTimeout
from upriver.shell.byte_stream import ByteStream
from upriver.shell.remote import Connection

TICKET_BYTES = 16
TICKET_S_MAX = 10.0
"""Seconds in which a ticket must be shown."""
GUESTS_MAX = 4096
"""Streams that have shown a ticket, and tickets that were not shown; at most one for every two files that a process may
open."""
STRANGERS_MAX = 256
"""Streams that have shown no ticket yet; one more is closed at once."""
PAUSE_S = 0.1
"""Seconds until a socket is accepted again when the system had none."""
GOODBYE_S_MAX = 2.0
"""Seconds that a door that is shut waits for its threads."""


class Door:
    """Listens from construction until ``stop``, on threads of its own. ``let_in`` is an action of a Flight server.

    serve: what a stream is for; called on a thread of its own, which may raise OSError or UpriverError when the stream
    is of no more use. It is closed afterwards. host: name or address of the interface. role: in threads' names. full:
    what to say to one guest too many, with ``{}`` for how many there may be. clock: seconds, by which tickets run out.
    Raises ClusterError if it cannot listen.
    """

    def __init__(
        self,
        serve: Callable[[ByteStream], None],
        host: str,
        role: str,
        full: str,
        *,
        guests_max: int = GUESTS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serve_guest = serve
        self._clock = clock
        self._role = role
        self._full = full
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise ClusterError(f"cannot listen on {host} for {role}s: {error}") from None
        self._port: int = self._listener.getsockname()[1]
        self._guests_max = min(guests_max, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._tickets: dict[bytes, float] = {}
        """Until when each is good, in the order in which they were given out."""
        self._streams: dict[ByteStream, threading.Thread] = {}
        """Each with the thread that serves it."""
        self._guests: set[ByteStream] = set()
        """Those of them that have shown a ticket."""
        self._stopping = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name=f"upriver-{role}s", daemon=True)
        self._accepting.start()

    def let_in(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        """A port, and a ticket for one stream."""
        ticket, now = secrets.token_bytes(TICKET_BYTES), self._clock()
        with self._lock:
            for old in [old for old, good_until in self._tickets.items() if good_until < now]:
                del self._tickets[old]
            if len(self._tickets) + len(self._guests) >= self._guests_max:
                raise ClusterError(self._full.format(self._guests_max))
            self._tickets[ticket] = now + TICKET_S_MAX
        return {"port": self._port, "ticket": ticket.hex()}

    def stop(self) -> None:
        """Cut all streams. What is running must return: nothing can stop that. A second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._listener_wakes()
        self._accepting.join()
        self._listener.close()
        with self._lock:
            streams = dict(self._streams)
        give_up_at = time.monotonic() + GOODBYE_S_MAX
        for stream in streams:
            stream.cut()
        for thread in streams.values():
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _listener_wakes(self) -> None:
        """Closing it would not end an ``accept`` on every system; a caller does."""
        with suppress(OSError):
            socket.create_connection(self._listener.getsockname()[:2], GOODBYE_S_MAX).close()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                caller, _ = self._listener.accept()
            except OSError:  # there are no descriptors left, or the caller has gone
                self._stopping.wait(PAUSE_S)
                continue
            with self._lock:
                if len(self._streams) - len(self._guests) >= STRANGERS_MAX or self._stopping.is_set():
                    caller.close()
                    continue
            self._begin(caller)

    def _begin(self, caller: socket.socket) -> None:
        try:
            stream = ByteStream(caller)
        except OSError:  # it has gone already
            caller.close()
            return
        thread = threading.Thread(target=self._serve, args=(stream,), name=f"upriver-{self._role}", daemon=True)
        with self._lock:
            self._streams[stream] = thread
        thread.start()

    def _serve(self, stream: ByteStream) -> None:
        """One stream, from ticket to end. Whoever is no guest of ours learns nothing but that it is closed."""
        try:
            with suppress(OSError, UpriverError):
                if self._is_good(stream.read(TICKET_BYTES, time.monotonic() + TICKET_S_MAX), stream):
                    self._serve_guest(stream)
        finally:
            with self._lock:
                del self._streams[stream]
                self._guests.discard(stream)
            stream.close()

    def _is_good(self, ticket: bytes, stream: ByteStream) -> bool:
        """Whether that is a ticket; it is of no more use."""
        with self._lock:
            is_good = self._clock() < self._tickets.pop(ticket, -math.inf)
            if is_good:
                self._guests.add(stream)
            return is_good


def enter(connection: Connection, action: str, timeout: float, lost: type[ClusterError]) -> ByteStream:
    """A stream through the door of that name, from the caller's side. timeout: seconds for reaching it.

    Raises ``lost`` if it cannot be reached, AccessDenied, what the door says, and ClusterError where TLS is asked for.
    """
    if connection.is_over_tls:
        raise ClusterError(f"{connection.address}: nothing goes over TLS here but calls: workers have none")
    try:
        told = connection.act(action, timeout=timeout)
        host = connection.address.rpartition(":")[0].strip("[]")
        connected = socket.create_connection((host, told["port"]), timeout)
    except WaitTimeout:
        raise lost(f"{connection.address} cannot be reached in {timeout:g} s") from None
    except OSError as error:
        raise lost(f"{connection.address} cannot be reached: {error}") from None
    try:
        stream = ByteStream(connected)
        stream.write(bytes.fromhex(told["ticket"]))
    except OSError as error:
        connected.close()
        raise lost(f"{connection.address} cannot be reached: {error}") from None
    return stream
