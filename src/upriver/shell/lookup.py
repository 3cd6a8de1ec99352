"""The worker's side of lookups over the wire: one line for each client thread, one round trip for each lookup.

A client asks the worker's Flight server, with the app's token, to be let in: ``{"port": number, "ticket": hex}``. It
connects to that port, says the ticket, and has a :class:`upriver.shell.line.Line`. A question is a batch of keys under
``{"view": name, "at_least": epoch or null, "together": bool, "timeout": seconds}``, best with the hash64 of each, which
whoever asks has for finding the keys' owner; its answer a batch of rows under
``{"view": name, "epoch": epoch, "map_version": version, "relayed": bool, "held_up": bool}``, or an error in JSON and no
rows. The line goes on, either way.

Why not a Flight stream: see docs/design/lookups.md.
"""

import math
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa

from upriver.dataflow.batch import Hashes
from upriver.errors import ClusterError, ProtocolError, UpriverError
from upriver.given import seconds, whole
from upriver.hashing import hash64
from upriver.shell.line import Frame, Line
from upriver.shell.wire import error_to_json

LET_IN = "lookups"
"""The action that gives a port and a ticket."""
TICKET_BYTES = 16
TICKET_S_MAX = 10.0
"""Seconds in which a ticket must be shown."""
LINES_MAX = 4096
"""Lines that have shown a ticket, and tickets that were not shown; at most one for every two files that a worker may
open."""
STRANGERS_MAX = 256
"""Lines that have shown no ticket yet; one more is closed at once."""
PAUSE_S = 0.1
"""Seconds until a socket is accepted again when the system had none."""
GOODBYE_S_MAX = 2.0
"""Seconds that a server that stops waits for its threads."""


@dataclass(frozen=True, slots=True)
class KeysAsked:
    """What is asked of a worker. hash64: one for each row of ``keys``. at_least: epoch that the rows must reflect.
    together: all are to be as of the end of one epoch. timeout: seconds, for the worker to keep."""

    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    at_least: int | None
    together: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The rows of some keys, as of ``epoch`` at least; if they were to be together, as of its end. version: of the map
    by which the keys are kept. relayed: whether another worker keeps some of them. held_up: whether some were not
    present at first, or about to move."""

    rows: pa.RecordBatch
    epoch: int
    version: int
    relayed: bool
    held_up: bool


class Lookup(Protocol):
    """Answers a lookup; called by many threads at once."""

    def __call__(self, wanted: KeysAsked) -> Answered:
        """The rows of the keys, if ``together`` all as of the end of the epoch that is told. Blocks.

        Raises WrongOwner if some key is not this worker's, WaitTimeout if ``at_least`` is not reached in ``timeout``
        seconds.
        """


class LookupServer:
    """Listens from construction until ``stop``, on threads of its own. ``let_in`` is an action of the worker's Flight
    server, which sees to the token. Also a context manager.

    host: name or address of the interface. lines_max: at most ``LINES_MAX``. clock: seconds, by which tickets run out.
    Raises ClusterError if it cannot listen.
    """

    def __init__(
        self,
        lookup: Lookup,
        host: str = "127.0.0.1",
        *,
        lines_max: int = LINES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise ClusterError(f"cannot listen on {host} for lookups: {error}") from None
        self._port: int = self._listener.getsockname()[1]
        self._lines_max = min(lines_max, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._tickets: dict[bytes, float] = {}
        """Until when each is good, in the order in which they were given out."""
        self._lines: dict[Line, threading.Thread] = {}
        """Each with the thread that serves it."""
        self._guests: set[Line] = set()
        """Those of them that have shown a ticket."""
        self._stopping = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name="upriver-lookups", daemon=True)
        self._accepting.start()

    def let_in(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        """A port, and a ticket for one line."""
        ticket, now = secrets.token_bytes(TICKET_BYTES), self._clock()
        with self._lock:
            for old in [old for old, good_until in self._tickets.items() if good_until < now]:
                del self._tickets[old]
            if len(self._tickets) + len(self._guests) >= self._lines_max:
                raise ClusterError(
                    f"{self._lines_max} threads of clients look something up here already: close some clients, or "
                    f"let workers open more files (ulimit -n), for up to {LINES_MAX}"
                )
            self._tickets[ticket] = now + TICKET_S_MAX
        return {"port": self._port, "ticket": ticket.hex()}

    def stop(self) -> None:
        """Cut all lines. Lookups that are running must return: nothing can stop those. A second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._listener_wakes()
        self._accepting.join()
        self._listener.close()
        with self._lock:
            lines = dict(self._lines)
        give_up_at = time.monotonic() + GOODBYE_S_MAX
        for line in lines:
            line.cut()
        for thread in lines.values():
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
                if len(self._lines) - len(self._guests) >= STRANGERS_MAX or self._stopping.is_set():
                    caller.close()
                    continue
                line = Line(caller)
                thread = threading.Thread(target=self._serve, args=(line,), name="upriver-lookup", daemon=True)
                self._lines[line] = thread
            thread.start()

    def _serve(self, line: Line) -> None:
        """One line, from ticket to end. Whoever is no client of ours learns nothing but that the line is closed."""
        try:
            with suppress(OSError, UpriverError):
                if self._is_good(line.read(TICKET_BYTES, time.monotonic() + TICKET_S_MAX), line):
                    self._answer_all(line)
        finally:
            with self._lock:
                del self._lines[line]
                self._guests.discard(line)
            line.close()

    def _is_good(self, ticket: bytes, line: Line) -> bool:
        """Whether that is a ticket; it is of no more use."""
        with self._lock:
            is_good = self._clock() < self._tickets.pop(ticket, -math.inf)
            if is_good:
                self._guests.add(line)
            return is_good

    def _answer_all(self, line: Line) -> None:
        while (question := line.receive()) is not None:
            try:
                answered = self._lookup(_wanted(question))
            except Exception as error:
                line.send(error_to_json(error))
                continue
            line.send(_beside(question.head["view"], answered), answered.rows)


def _beside(view: str, answered: Answered) -> dict[str, Any]:
    return {
        "view": view,
        "epoch": answered.epoch,
        "map_version": answered.version,
        "relayed": answered.relayed,
        "held_up": answered.held_up,
    }


def _wanted(question: Frame) -> KeysAsked:
    """A wrong hash finds nothing: keys themselves are compared. So the asker's is as good as one of our own."""
    head, keys, hashes = question
    given: tuple[Any, ...] = tuple(map(head.get, ("view", "at_least", "together", "timeout")))
    view, at_least, together, timeout = given
    if keys is None:
        raise ProtocolError(f"view {view!r}: a lookup without keys")
    if not isinstance(view, str) or not isinstance(together, bool):  # not all clients are ours
        raise ProtocolError(f"view {view!r}, together {together!r}: a lookup is of a view by name, together or not")
    at_least, timeout = None if at_least is None else whole("at_least", at_least), seconds("timeout", timeout)
    keys.validate(full=True)
    if len(hashes) != keys.num_rows:
        hashes = hash64(keys.columns, keys.num_rows)
    return KeysAsked(view, keys, hashes, at_least, together, timeout)
