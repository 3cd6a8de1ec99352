"""Lookups over the wire: one Flight exchange per client thread and view, kept open, one round trip per lookup.

A question is a batch of keys with ``{"at_least": epoch or null, "together": bool, "timeout": seconds}`` beside it; its
answer a batch of rows with ``{"epoch": epoch, "map_version": version, "relayed": bool}``, or an error in JSON and no
rows. The stream goes on, either way.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from upriver.errors import ClusterError, ProtocolError, WorkerLost
from upriver.shell.flight import ExchangeCall
from upriver.shell.remote import Connection, Remote, end_exchange
from upriver.shell.wire import decode_json, encode_json, error_from_json, error_to_json

LOOKUP = "lookup"
"""The name of the exchange; its argument is the view."""
IDLE_STREAMS_MAX = 16
"""Open streams that a client keeps for one worker and view while no thread uses them."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The rows of some keys, as of ``epoch`` at least. version: of the map by which the keys are kept. relayed: whether
    another worker keeps some of them."""

    rows: pa.RecordBatch
    epoch: int
    version: int
    relayed: bool


class Lookup(Protocol):
    """Answers a lookup; called by many threads at once."""

    def __call__(
        self, view: str, keys: pa.RecordBatch, at_least: int | None, together: bool, timeout: float
    ) -> Answered:
        """The rows of ``keys``, if ``together`` all as of the end of the epoch that is told. Blocks.

        Raises WrongOwner if some key is not this worker's, WaitTimeout if ``at_least`` is not reached in ``timeout``
        seconds.
        """


class LookupExchange:
    """The worker's side: an :class:`upriver.shell.flight.Exchange`."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    def serve(self, call: ExchangeCall) -> None:
        (view,) = call.arguments
        began: pa.Schema | None = None
        for question in call.reader:
            try:
                answered = self._answer(view, question)
                rows = answered.rows
                if began is None:
                    call.writer.begin(rows.schema)
                    began = rows.schema
                if not rows.schema.equals(began):
                    raise ProtocolError(f"view {view!r}: rows of another schema than before")
            except Exception as error:
                call.writer.write_metadata(encode_json(error_to_json(error)))
            else:
                beside = {"epoch": answered.epoch, "map_version": answered.version, "relayed": answered.relayed}
                call.writer.write_with_metadata(rows, encode_json(beside))

    def _answer(self, view: str, question: Any) -> Answered:
        if question.data is None or question.app_metadata is None:
            raise ProtocolError(f"view {view!r}: a lookup without keys")
        asked = decode_json(question.app_metadata)
        question.data.validate(full=True)  # not all clients are ours
        return self._lookup(view, question.data, asked["at_least"], asked["together"], asked["timeout"])

    def close(self, seconds: float) -> None:
        """Nothing to say: a client that is cut off asks for the routing again."""


class LookupStream:
    """The client's side of one stream: one thread at a time asks, then takes the answer. Raises WorkerLost.

    A stream is in step while every question has its answer, be that an error; one that is not is of no more use.
    """

    def __init__(self, connection: Connection, view: str, key_schema: pa.Schema, timeout: float) -> None:
        self.address = connection.address
        self.view = view
        self.is_in_step = False
        self._connection = connection
        self._writer, self._reader = connection.exchange(LOOKUP, view, timeout=timeout)
        try:
            self._writer.begin(key_schema)
        except pa.ArrowException as error:
            self.close()
            raise connection.error(error) from None
        self.is_in_step = True

    def ask(self, keys: pa.RecordBatch, at_least: int | None, together: bool, timeout: float) -> None:
        """Put a question; ``timeout``, in seconds, is for the worker to keep."""
        self.is_in_step = False
        try:
            beside = {"at_least": at_least, "together": together, "timeout": timeout}
            self._writer.write_with_metadata(keys, encode_json(beside))
        except pa.ArrowException as error:
            raise self._connection.error(error) from None

    def answer(self) -> Answered:
        """Wait for the answer to the last question. Raises what the worker raised."""
        try:
            answer = self._reader.read_chunk()
        except StopIteration:
            raise WorkerLost(f"{self.address} has ended the stream") from None
        except pa.ArrowException as error:
            raise self._connection.error(error) from None
        self.is_in_step = True
        beside = decode_json(answer.app_metadata)
        if answer.data is None:
            raise error_from_json(beside)
        return Answered(answer.data, beside["epoch"], beside["map_version"], beside["relayed"])

    def cancel(self) -> None:
        """Make an ``answer`` that another thread waits for raise WorkerLost."""
        self._reader.cancel()

    def close(self) -> None:
        """End the stream at once."""
        end_exchange(self._writer, self._reader)


class LookupStreams:
    """A client's open streams, lent to one thread at a time, over one connection for each worker."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._connections: dict[str, Connection] = {}
        self._idle: dict[tuple[str, str], list[LookupStream]] = {}
        self._lent: set[LookupStream] = set()
        self._is_closed = False

    def borrow(self, address: str, view: str, key_schema: pa.Schema, timeout: float) -> LookupStream:
        """A stream that is in step; give it back, whatever happens. timeout: seconds for reaching the worker.

        Raises WorkerLost, AccessDenied, ClusterError once closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClusterError("the client is closed")
            idle = self._idle.get((address, view))
            stream = idle.pop() if idle else None
            connection = self._connection(address)
        stream = stream or LookupStream(connection, view, key_schema, timeout)
        with self._lock:
            if not self._is_closed:
                self._lent.add(stream)
                return stream
        stream.close()
        raise ClusterError("the client is closed")

    def _connection(self, address: str) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(self._remote.at(address), WorkerLost)
        return self._connections[address]

    def give_back(self, stream: LookupStream) -> None:
        """Keep the stream for the next lookup, or end it if it is of no more use."""
        with self._lock:
            self._lent.discard(stream)
            if stream.is_in_step and stream.address in self._connections:
                idle = self._idle.setdefault((stream.address, stream.view), [])
                if len(idle) < IDLE_STREAMS_MAX:
                    idle.append(stream)
                    return
        stream.close()

    def keep_only(self, addresses: Collection[str]) -> None:
        """Drop the connections to all other workers; who waits for an answer of theirs is told that they are lost."""
        with self._lock:
            for stream in self._lent:
                if stream.address not in addresses:
                    stream.cancel()
            gone = [self._connections.pop(address) for address in set(self._connections) - set(addresses)]
            idle = [self._idle.pop(at) for at in list(self._idle) if at[0] not in self._connections]
        for stream in chain.from_iterable(idle):
            stream.close()
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """End all streams; a lookup that waits for an answer raises."""
        with self._lock:
            self._is_closed = True
            for stream in self._lent:
                stream.cancel()
        self.keep_only(())
