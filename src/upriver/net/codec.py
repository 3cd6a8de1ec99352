"""The cluster's own messages as wire messages, and back. Nothing is pickled.

Between coordinator and worker: the JSON of a message's fields, under the name of its class.

Between workers: many envelopes in one frame. A frame's JSON has one list for each envelope: its flow and generation,
then the kind and the fields of its content; the tables at the end of this module list them. Rows and state are the
frame's Arrow batches, in the order in which the JSON mentions them. All 64-bit columns of Upriver's own (hash64s,
weights) follow one another in a single column, the frame's first batch: an Arrow stream for each would cost more than
most messages.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, cast, get_args

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, Weights
from upriver.errors import ProtocolError, UpriverError
from upriver.hashing import Hashes
from upriver.ids import FlowId
from upriver.migration.messages import (
    Acquire,
    Bye,
    Done,
    Final,
    Kept,
    Mark,
    Redistribute,
    RelayedMark,
    RowsSent,
    Scaleup,
    Sets,
    Shutdown,
)
from upriver.net.wire import Message, error_from_json, error_to_json
from upriver.protocol.json_forms import record_form
from upriver.protocol.messages import FromWorker, ToWorker
from upriver.protocol.peers import (
    BeginFeed,
    EndFeed,
    Envelope,
    FailedHere,
    Fed,
    FedThrough,
    ForRegion,
    Hot,
    Installed,
    PeerLookup,
    PeerLookupAnswered,
    PeerLookupGivenUp,
    PeerLookupRefused,
    Portion,
    RowsForwardedBack,
)
from upriver.state.failure import ViewFailure

PEER = "peer"
"""The kind of every wire message between workers."""
JSON_BYTES = 64
"""Roughly how many bytes an envelope takes beside its rows."""

_WORDS = pa.schema([pa.field("words", pa.uint64(), nullable=False)])


def encode(envelopes: Iterable[Envelope]) -> Message:
    """One wire message with all of these, in order. Raises ProtocolError for content that has no form."""
    frame = FrameWriter()
    for envelope in envelopes:
        frame.add(envelope)
    return frame.take()


def decode(message: Message) -> tuple[Envelope, ...]:
    """The inverse of :func:`encode`; arrays cannot be written to. Raises ProtocolError for a malformed message."""
    if message.kind != PEER:
        raise ProtocolError(f"a worker said {message.kind!r}, which no worker knows")
    frame = _FrameReader(message)
    envelopes = tuple(_take_envelope(number, item, frame) for number, item in enumerate(frame.said))
    frame.check_is_empty()
    return envelopes


def _take_envelope(number: int, item: Any, frame: "_FrameReader") -> Envelope:
    try:
        flow, generation, content = item
        return Envelope(
            flow=FlowId(_take_number(flow, frame)),
            generation=_take_number(generation, frame),
            content=_CONTENT.take(content, frame),
        )
    except (ProtocolError, LookupError, TypeError, ValueError) as error:
        raise ProtocolError(f"envelope {number} of a frame is malformed: {error}") from error


class FrameWriter:
    """Gathers envelopes into a frame. messages: how many are in it. bytes: roughly how many they take."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._said: list[Any] = []
        self._words: list[Hashes] = []
        self._batches: list[pa.RecordBatch] = []
        self.bytes = 0

    @property
    def messages(self) -> int:
        return len(self._said)

    def add(self, envelope: Envelope) -> None:
        """Raises ProtocolError for content that has no form; the frame is of no more use then."""
        self._said.append((int(envelope.flow), envelope.generation, _CONTENT.put(envelope.content, self)))
        self.bytes += JSON_BYTES

    def take(self) -> Message:
        """The frame; the next one begins empty."""
        fields: dict[str, Any] = {"said": self._said}
        batches = self._batches
        if self._words:
            words = self._words[0] if len(self._words) == 1 else np.concatenate(self._words)
            fields["words"] = len(words)
            batches = [pa.RecordBatch.from_arrays([pa.array(words)], schema=_WORDS), *batches]
        self._begin()
        return Message(PEER, fields, tuple(batches))

    def put_words(self, words: Hashes) -> int:
        """Returns their count, for the JSON."""
        if words.dtype != np.uint64 or words.ndim != 1:
            raise ProtocolError(f"a column of {words.dtype} where hash64s belong")
        if len(words):
            self._words.append(words)
            self.bytes += words.nbytes
        return len(words)

    def put_batch(self, batch: pa.RecordBatch) -> None:
        if not isinstance(batch, pa.RecordBatch):
            raise ProtocolError(f"{type(batch).__name__} where a record batch belongs")
        self._batches.append(batch)
        self.bytes += batch.nbytes


class _FrameReader:
    """Hands out a frame's words and batches in order. said: one item for each envelope."""

    def __init__(self, message: Message) -> None:
        self.said = _listed(message.fields.get("said"))
        self._batches = iter(message.batches)
        self._words = np.empty(0, np.uint64)
        self._words_taken = 0
        if "words" in message.fields:
            column = self.take_batch()
            if column.schema != _WORDS or column.num_rows != message.fields["words"] or column.column(0).null_count:
                raise ProtocolError("a frame's first batch is not its words")
            # Align it, wherever the frame lies in memory: an unaligned column is slow from then on.
            self._words = np.require(column.column(0).to_numpy(), requirements="A")

    def take_words(self, count: int) -> Hashes:
        start, end = self._words_taken, self._words_taken + count
        if not 0 <= start <= end <= len(self._words):
            raise ProtocolError(f"{count} words are announced, and {len(self._words) - start} are left")
        self._words_taken = end
        return self._words[start:end]

    def take_batch(self) -> pa.RecordBatch:
        batch = next(self._batches, None)
        if batch is None:
            raise ProtocolError("more batches are announced than came")
        return batch

    def check_is_empty(self) -> None:
        if next(self._batches, None) is not None or self._words_taken != len(self._words):
            raise ProtocolError("more rows came in a frame than it announces")


# How a field is carried -----------------------------------------------------------------------------------------


class _Form(Protocol):
    """How values of one kind are carried: ``put`` returns their JSON, ``take`` turns it back."""

    def put(self, value: Any, frame: FrameWriter) -> Any: ...

    def take(self, said: Any, frame: _FrameReader) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Plain:
    """A form of two functions."""

    put: Callable[[Any, FrameWriter], Any]
    take: Callable[[Any, _FrameReader], Any]


class _Record:
    """A dataclass: the JSON is the list of its fields. check: returns what is wrong with a value, if anything."""

    def __init__(self, kind: type, check: Callable[[Any], str | None] | None = None, **fields: _Form) -> None:
        self.kind = kind
        self._check = check
        self._fields = tuple((name, form.put, form.take) for name, form in fields.items())

    def put(self, value: Any, frame: FrameWriter) -> list[Any]:
        return [put(getattr(value, name), frame) for name, put, _ in self._fields]

    def take(self, said: Any, frame: _FrameReader) -> Any:
        fields = zip(self._fields, _listed(said), strict=True)
        value = self.kind(**{name: take(item, frame) for (name, _, take), item in fields})
        fault = None if self._check is None else self._check(value)
        if fault is not None:
            raise ProtocolError(f"{self.kind.__name__}: {fault}")
        return value


class _OneOf:
    """One of several dataclasses: the JSON is the class's name and its record."""

    def __init__(self, what: str, *records: _Record) -> None:
        self._what = what
        self._by_kind: Mapping[type, _Record] = MappingProxyType({record.kind: record for record in records})
        self._by_name = MappingProxyType({record.kind.__name__: record for record in records})

    def put(self, value: Any, frame: FrameWriter) -> list[Any]:
        record = self._by_kind.get(type(value))
        if record is None:
            raise ProtocolError(f"{type(value).__name__} is no {self._what} that workers send to each other")
        return [record.kind.__name__, record.put(value, frame)]

    def take(self, said: Any, frame: _FrameReader) -> Any:
        name, fields = _listed(said)
        record = self._by_name.get(name)
        if record is None:
            raise ProtocolError(f"{name!r} is no {self._what} that workers send to each other")
        try:
            return record.take(fields, frame)
        except (ProtocolError, LookupError, TypeError, ValueError) as error:
            raise ProtocolError(f"{name}: {error}") from error


def _listed(said: Any) -> list[Any]:
    if not isinstance(said, list):
        raise ProtocolError(f"{said!r} where a list belongs")
    return said


def _take_number(said: Any, _: _FrameReader) -> int:
    if type(said) is not int:
        raise ProtocolError(f"{said!r} where a whole number belongs")
    return said


def _take_text(said: Any, _: _FrameReader) -> str:
    if not isinstance(said, str):
        raise ProtocolError(f"{said!r} where text belongs")
    return said


def _put_weight(weight: Weights | None, frame: FrameWriter) -> int | None:
    return None if weight is None else frame.put_words(weight.view(np.uint64))


def _take_weight(said: Any, frame: _FrameReader) -> Weights | None:
    return None if said is None else cast(Weights, _take_words(said, frame).view(np.int64))


def _take_words(said: Any, frame: _FrameReader) -> Hashes:
    return frame.take_words(_take_number(said, frame))


def _put_batches(batches: tuple[pa.RecordBatch, ...], frame: FrameWriter) -> int:
    for batch in batches:
        frame.put_batch(batch)
    return len(batches)


def _take_batches(said: Any, frame: _FrameReader) -> tuple[pa.RecordBatch, ...]:
    return tuple(frame.take_batch() for _ in range(_take_number(said, frame)))


def _take_seconds(said: Any, _: _FrameReader) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise ProtocolError(f"{said!r} where seconds belong")
    return float(said)


def _put_nothing(value: object, _: FrameWriter) -> None:
    if value is not None:
        raise ProtocolError(f"{type(value).__name__} where nothing belongs: only the published rules have it there")


def _take_error(said: Any, _: _FrameReader) -> UpriverError:
    if not isinstance(said, dict):
        raise ProtocolError(f"{said!r} where an error belongs")
    return error_from_json(said)


def _take_failure(said: Any, frame: _FrameReader) -> ViewFailure:
    kind, error = (_take_text(text, frame) for text in _listed(said))
    return ViewFailure(kind=kind, error=error)


def _take_flag(said: Any, _: _FrameReader) -> bool:
    if not isinstance(said, bool):
        raise ProtocolError(f"{said!r} where yes or no belongs")
    return said


_FLAG = _Plain(lambda value, _: bool(value), _take_flag)
_NUMBER = _Plain(lambda value, _: int(value), _take_number)
_NUMBERS = _Plain(
    lambda values, _: [int(value) for value in values],
    lambda said, frame: tuple(_take_number(item, frame) for item in _listed(said)),
)
_SECONDS = _Plain(lambda value, _: float(value), _take_seconds)
_TEXT = _Plain(lambda value, _: str(value), _take_text)
_ERROR = _Plain(lambda error, _: error_to_json(error), _take_error)
_FAILURE = _Plain(lambda failure, _: [failure.kind, failure.error], _take_failure)
_HASHES = _Plain(lambda hashes, frame: frame.put_words(hashes), _take_words)
_WEIGHT = _Plain(_put_weight, _take_weight)
_ARROW = _Plain(lambda batch, frame: frame.put_batch(batch), lambda _, frame: frame.take_batch())
_ABSENT = _Plain(_put_nothing, lambda _said, _frame: None)
_STATE = _Plain(_put_batches, _take_batches)


# Messages between workers: one entry for each class --------------------------------------------------------------


def _uneven_batch(batch: Batch) -> str | None:
    weights = len(batch) if batch.weight is None else len(batch.weight)
    if len(batch.hash64) == weights == len(batch):
        return None
    return f"{len(batch)} rows with {len(batch.hash64)} hash64s and {weights} weights"


def _uneven_question(question: PeerLookup) -> str | None:
    if len(question.hash64) == len(question):
        return None
    return f"{len(question)} keys with {len(question.hash64)} hash64s"


_BATCH = _Record(Batch, _uneven_batch, rows=_ARROW, hash64=_HASHES, weight=_WEIGHT)
_ROWS = _OneOf(
    "kind of rows",
    _Record(Portion, epoch=_NUMBER, port=_NUMBER, batch=_BATCH),
    _Record(
        PeerLookup,
        _uneven_question,
        ticket=_NUMBER,
        asker=_NUMBER,
        at_least=_NUMBER,
        keys=_ARROW,
        hash64=_HASHES,
        together=_FLAG,
    ),
)
_MESSAGE = _OneOf(
    "message between distributors",
    _Record(RowsSent, version=_NUMBER, rows=_ROWS),
    _Record(Acquire, version=_NUMBER, keys=_HASHES, state=_STATE),
    _Record(Done, version=_NUMBER, vnode=_NUMBER),
    _Record(Kept, version=_NUMBER, vnodes=_NUMBERS),
    _Record(Mark, version=_NUMBER, vnode=_NUMBER),
    _Record(RelayedMark, version=_NUMBER, vnode=_NUMBER, origin=_NUMBER),
    _Record(Bye, version=_NUMBER),
    _Record(Shutdown, version=_NUMBER),
    _Record(Scaleup, version=_NUMBER),
    _Record(Sets, version=_NUMBER, whitelist=_HASHES, hold=_HASHES),
    _Record(Final, version=_NUMBER, keys=_HASHES),
    _Record(Redistribute, version=_NUMBER, keys=_HASHES, following=_HASHES, added=_HASHES, state=_ABSENT),
)
_CONTENT = _OneOf(
    "content of an envelope",
    _Record(ForRegion, region=_TEXT, message=_MESSAGE, begun=_NUMBER),
    _Record(Hot, region=_TEXT, keys=_HASHES, shown=_NUMBER),
    _Record(Installed, region=_TEXT, seconds=_SECONDS),
    _Record(PeerLookupAnswered, ticket=_NUMBER, keys=_NUMBER, rows=_ARROW, epoch=_NUMBER),
    _Record(PeerLookupRefused, ticket=_NUMBER, error=_ERROR),
    _Record(PeerLookupGivenUp, ticket=_NUMBER),
    _Record(FailedHere, view=_TEXT, failure=_FAILURE),
    _Record(BeginFeed, feed=_NUMBER, vnodes=_NUMBERS),
    _Record(EndFeed, feed=_NUMBER, vnodes=_NUMBERS),
    _Record(Fed, feed=_NUMBER, region=_TEXT, epoch=_NUMBER, keys=_HASHES, state=_STATE),
    _Record(FedThrough, feed=_NUMBER, epoch=_NUMBER),
    _Record(RowsForwardedBack, feed=_NUMBER),
)


def encode_message(message: ToWorker | FromWorker) -> Message:
    """A machine's message for the wire; its class name is the kind."""
    kind: Any = type(message)
    to_json, _ = record_form(kind)
    return Message(type(message).__name__, to_json(message))


def decode_to_worker(message: Message) -> ToWorker:
    """A message of the coordinator. Raises ProtocolError for anything else."""
    said: ToWorker = _decode_kind(message, _TO_WORKER, "the coordinator sent {}, which no worker knows")
    return said


def decode_from_worker(message: Message) -> FromWorker:
    """A message of a worker. Raises ProtocolError for anything else."""
    said: FromWorker = _decode_kind(message, _FROM_WORKER, "a worker sent {}, which the coordinator does not know")
    return said


_TO_WORKER: Mapping[str, type] = {kind.__name__: kind for kind in get_args(ToWorker)}
_FROM_WORKER: Mapping[str, type] = {kind.__name__: kind for kind in get_args(FromWorker)}


def _decode_kind(message: Message, kinds: Mapping[str, type], unknown: str) -> Any:
    kind = kinds.get(message.kind)
    if kind is None:
        raise ProtocolError(unknown.format(repr(message.kind)))
    _, from_json = record_form(kind)
    try:
        return from_json(message.fields)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"a malformed {message.kind}: {error!r}") from error
