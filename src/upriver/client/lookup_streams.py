"""The client's side of lookups over the wire: lines to workers, lent to one thread at a time; see :mod:`.lookup`."""

import threading
import time
from collections.abc import Collection
from itertools import chain

from upriver.errors import ClusterError, UpriverError, WorkerLost
from upriver.net.handshake import Purpose
from upriver.net.line import ANSWER_TERMS, Line
from upriver.net.lookup import Answered, KeysAsked
from upriver.net.remote import IDLE_S_MAX, Connection, Remote, dial
from upriver.net.wire import error_from_json

IDLE_STREAMS_MAX = 16
"""Open streams that a client keeps for one worker while no thread uses them."""

FRESH_S = 1.0
"""Seconds for which a stream that was just used is taken to be open, without a look at its socket."""


class LookupStream:
    """A stream of lookups: one thread at a time asks, then takes the answer. Raises WorkerLost.

    A stream is in step while every question has its answer, be that an error; one that is not is of no more use.
    """

    def __init__(self, remote: Remote, timeout: float) -> None:
        """timeout: seconds for reaching the worker. Raises AccessDenied besides."""
        self.address = remote.address
        stream, _ = dial(remote, Purpose.LOOKUPS, timeout, WorkerLost)
        self._line = Line(stream, ANSWER_TERMS)
        self.is_in_step = True
        self._why_ended = "has ended the stream"

    def may_be_used(self, idle_s: float) -> bool:
        """Whether the worker has not closed it, nor is about to, after it was idle for so many seconds."""
        return idle_s < FRESH_S or (idle_s < IDLE_S_MAX and self._line.is_quiet)

    def ask(self, wanted: KeysAsked) -> None:
        """Put a question."""
        self.is_in_step = False
        head = {
            "view": wanted.view,
            "at_least": wanted.at_least,
            "together": wanted.together,
            "timeout": wanted.timeout,
        }
        try:
            self._line.send(head, wanted.keys, wanted.hash64)
        except OSError as error:
            raise self._lost(error) from None

    def answer(self) -> Answered:
        """Wait for the answer to the last question. Raises what the worker raised."""
        try:
            answer = self._line.receive()
        except OSError as error:
            raise self._lost(error) from None
        if answer is None:
            raise WorkerLost(f"{self.address} {self._why_ended}")
        self.is_in_step = True
        beside, rows, _ = answer
        if rows is None:
            raise error_from_json(beside)
        told = ("epoch", "map_version", "relayed", "held_up", "committed_at")
        return Answered(rows, *(beside[name] for name in told))

    def cancel(self, why: str) -> None:
        """Make an ``answer`` that another thread waits for raise WorkerLost. why: said behind the worker's address."""
        self._why_ended = why
        self._line.cut()

    def close(self) -> None:
        """End the stream at once."""
        self._line.close()

    def _lost(self, error: OSError) -> UpriverError:
        return WorkerLost(f"{self.address} cannot be reached: {error}")


class LookupStreams:
    """A client's open streams, lent to one thread at a time, and one connection to each worker, for calls."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._connections: dict[str, Connection] = {}
        self._idle: dict[str, list[tuple[LookupStream, float]]] = {}
        """Each with when it was last used, by the monotonic clock."""
        self._lent: set[LookupStream] = set()
        self._is_closed = False

    def borrow(self, address: str, timeout: float) -> LookupStream:
        """A stream that is in step; give it back, whatever happens. timeout: seconds for reaching the worker.

        Raises WorkerLost, AccessDenied, ClusterError once closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClusterError("the client is closed")
            idle = self._idle.get(address, [])
            while idle:
                stream, used_at = idle.pop()
                if stream.may_be_used(time.monotonic() - used_at):
                    self._lent.add(stream)
                    return stream
                stream.close()
            remote = self._connection(address).remote
        stream = LookupStream(remote, timeout)
        with self._lock:
            if not self._is_closed:
                self._lent.add(stream)
                return stream
        stream.close()
        raise ClusterError("the client is closed")

    def connection(self, address: str) -> Connection:
        """For calls to a worker. Raises ClusterError once closed."""
        with self._lock:
            if self._is_closed:
                raise ClusterError("the client is closed")
            return self._connection(address)

    def _connection(self, address: str) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(self._remote.at(address), WorkerLost)
        return self._connections[address]

    def give_back(self, stream: LookupStream) -> None:
        """Keep the stream for the next lookup, or end it if it is of no more use."""
        with self._lock:
            self._lent.discard(stream)
            if stream.is_in_step and stream.address in self._connections:
                idle = self._idle.setdefault(stream.address, [])
                if len(idle) < IDLE_STREAMS_MAX:
                    idle.append((stream, time.monotonic()))
                    return
        stream.close()

    def keep_only(self, addresses: Collection[str]) -> None:
        """Drop the connections to all other workers; who waits for an answer of theirs is told that they are lost."""
        with self._lock:
            for stream in self._lent:
                if stream.address not in addresses:
                    stream.cancel("is no worker of the app any more")
            gone = [self._connections.pop(address) for address in set(self._connections) - set(addresses)]
            idle = [self._idle.pop(address) for address in list(self._idle) if address not in self._connections]
        for stream, _ in chain.from_iterable(idle):
            stream.close()
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """End all streams; a lookup that waits for an answer raises."""
        with self._lock:
            self._is_closed = True
            for stream in self._lent:
                stream.cancel("is asked no more: the client is closed")
        self.keep_only(())
