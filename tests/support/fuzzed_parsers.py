"""Every parser of the product that reads what another process wrote, with real messages for it.

``python fuzzed_parsers.py [NAME ...] [--seed N] [--first N] [--count N]`` gives each so many malformed messages, and
says which of them it did not parse or refuse as it should (:mod:`fuzz_kit`). What is taken is used, so a batch that is
malformed and not refused would read memory that is not its own.
"""

import argparse
import atexit
import json
import logging
import os
import re
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from checkpoint_kit import FIRST, PLACE, SECOND, take
from checkpoint_kit import PLANS as REGIONS
from coordinator_kit import PLAN, TABLE, vnode_map
from doors_kit import KeptRows
from fuzz_kit import COLUMNS, ROWS, Campaign, Parser, check, limit_memory, prepare, use
from http_kit import HttpApp
from lookup_kit import Answering, Given, KeysAsked, RawLine
from postgres_kit import first_proof, framed, last_proof, messages_in, new_session, startup, trusted_session
from segments_kit import ALL, EVENTS, INDEXES, USERS, owned, publish
from server_kit import KEYS, SECONDS_MAX, TOKEN, client_of, peer_of

from upriver.client.key_texts import keys_of_texts
from upriver.client.queries import answer_as_batch, answer_of, parameters_from_json, query_fields
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.freshness import ReadThrough
from upriver.doors.cancellation import Cancellation
from upriver.doors.flight.errors import UnsupportedCommand
from upriver.doors.flight.messages import MessageRefused, MessageSizes
from upriver.doors.flight.protobuf import encoded, wrapped
from upriver.doors.flight.sql import CREATE, PACKAGE, PREPARED_QUERY, QUERY, TICKET, FlightSql
from upriver.doors.flight.sql_statements import FlightStatement
from upriver.doors.flight.tickets import RowsTicket
from upriver.engine.batch import Batch
from upriver.errors import CorruptFile, UpriverError
from upriver.hashing import hash64
from upriver.ids import Epoch, FeedId, FlowId, Incarnation, MapVersion, VnodeId, WorkerId
from upriver.lake.change_log import ChangeLog, LogRecord, commit_changes, commit_fold
from upriver.lake.change_parts import write_parts
from upriver.lake.checkpoints import newest_usable, read_state
from upriver.lake.control import ControlRecord, find_control, write_control
from upriver.lake.ingest_history import IngestHistory, check_taken
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, _with_seal
from upriver.lake.scan import TableScan, ViewScan, scan_from_json, scan_key
from upriver.lake.source_records import SourceRecord, current_source, source_path
from upriver.lake.upkeep import compact
from upriver.migration.messages import Acquire, Done, Final, Kept, Redistribute, RelayedMark, RowsSent, Sets
from upriver.net import codec
from upriver.net.byte_stream import ByteStream
from upriver.net.channel import PING, SEVERAL, HeartbeatMonitor, _several
from upriver.net.frames import MESSAGE_BYTES_MAX as FRAME_BYTES_MAX
from upriver.net.frames import PIECE, Joiner, Seals, read_frame, write_frame
from upriver.net.handshake import ANSWER, GREETING, HELLO, NONCE_BYTES, Exchange, Purpose, greeting, hello, read_hello
from upriver.net.lookups import LookupService
from upriver.net.peers import Link
from upriver.net.remote import dial
from upriver.net.server import Listen, Server
from upriver.net.wire import Message, decode, decode_json, encode, encode_json, read_batch, refusing_malformed
from upriver.plan.plan import lake_channel
from upriver.plan.schemas import schema_to_json
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import Routing, ViewRoute
from upriver.protocol.messages import FromWorker, ToWorker
from upriver.protocol.peers import (
    BeginFeed,
    Envelope,
    FailedHere,
    Fed,
    ForRegion,
    Hot,
    Installed,
    PeerLookup,
    PeerLookupAnswered,
    PeerLookupRefused,
    Portion,
)
from upriver.runtime.change_pieces import ChangePieces
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import MEASURED, REGISTER, CoordinatorService
from upriver.runtime.measures import LookupTotals
from upriver.spark.changes import ChangesOffset
from upriver.spark.scan import ScanSource
from upriver.state.changes import ChangeCommit, ChangePosition, part_schema
from upriver.state.failure import ViewFailure
from upriver.vnodes import Placement, VnodeGroup, VnodeMap

BATCHES = [pa.RecordBatch.from_arrays([column], [name]) for name, column in COLUMNS.items()]
WHOLE = pa.RecordBatch.from_arrays([COLUMNS[name] for name in ("text", "number", "list")], ["a", "b", "c"])
FOREIGN = re.compile(r"(?:ProtocolError: )?[A-Z]\w*(?:Error|Exception|Interrupt)\b")
"""How the text of an error begins that was made of an exception of another library."""


def check_told(kind: object, text: object) -> None:
    """An error that goes to the other end is one of ours, and says what is wrong."""
    if kind == "ProtocolError" and FOREIGN.match(str(text)):
        raise AssertionError(f"a foreign error is sent: {text}")


# Frames and Arrow, at both ends ---------------------------------------------------------------------------------------


def frames() -> Parser:
    """A sealed channel's frames, and the frame of a journal of functions: their heads and batches."""

    def parse(frame: bytes) -> None:
        message = decode(pa.py_buffer(frame))
        for batch in message.batches:
            use(batch)

    valid = [encode(Message("rows", {"n": 1}, (batch,))).to_pybytes() for batch in [*BATCHES, WHOLE]]
    return Parser(parse=parse, valid=valid)


def bare_batches() -> Parser:
    """A line's batches, which come without their schema; the last byte of a message here says of which it is."""
    plain = [batch for batch in [*BATCHES, WHOLE] if "dictionary" not in str(batch.schema)]

    def parse(message: bytes) -> None:
        schema = plain[message[-1] % len(plain)].schema if message else WHOLE.schema
        use(read_batch(pa.py_buffer(message[:-1]), schema, 1 << 20))

    valid = [batch.serialize().to_pybytes() + bytes([place]) for place, batch in enumerate(plain)]
    return Parser(parse=parse, valid=valid)


@contextmanager
def pair() -> Iterator[tuple[ByteStream, ByteStream]]:
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = ByteStream(socket.create_connection(listener.getsockname()))
        theirs = ByteStream(listener.accept()[0])
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


REFUSED_OR_CUT = (UpriverError, OSError)
"""How a conversation over a connection ends: with a refusal, or cut by either end."""


def sealed_frames() -> Parser:
    """The bytes of a channel, behind its handshake: a third process may change any of them."""
    key = bytes(32)

    def parse(data: bytes) -> None:
        with pair() as (ours, theirs):
            theirs.write(data)
            theirs.cut()
            seals = Seals(key)
            while (frame := read_frame(ours, seals)) is not None:
                decode(frame)

    def written(*messages: Message) -> bytes:
        with pair() as (ours, theirs):
            seals = Seals(key)
            for message in messages:
                write_frame(ours, encode(message), seals)
            size = sum(encode(message).size + 20 for message in messages)
            return bytes(theirs.take(size))

    ping, rows = Message(PING, {"beat": 1, "heard": 0}), Message("rows", {}, (WHOLE,))
    return Parser(parse=parse, valid=[written(ping, rows), written(ping)], refusals=REFUSED_OR_CUT)


def pieces() -> Parser:
    """The pieces of a large frame, as a peer that knows the key may send them."""

    def parse(text: bytes) -> None:
        joiner = Joiner()
        for said in decode_json(text)["left"]:
            head = Message(PIECE, {"left": said})
            frame = encode(head).to_pybytes() + b"x" * 10
            joiner.join(head, pa.py_buffer(frame))

    refusals = (UpriverError, LookupError, TypeError)  # the latter two of this message here, which is none of a channel
    return Parser(
        parse=parse, json=[{"left": left} for left in ([20, 10, 0], [0], [FRAME_BYTES_MAX])], refusals=refusals
    )


# The handshake --------------------------------------------------------------------------------------------------------


def hellos() -> Parser:
    """The server's side."""
    server_nonce = bytes(32)

    def parse(data: bytes) -> None:
        found = read_hello(data[: HELLO.size].ljust(HELLO.size, b"\0"), server_nonce)
        if found is not None:
            exchange, proof = found
            KEYS.proved(exchange, proof)

    valid = [hello(Exchange(purpose, server_nonce, bytes(range(32))), TOKEN.encode()) for purpose in Purpose]
    return Parser(parse=parse, valid=valid)


def greetings() -> Parser:
    """The caller's side: a server's greeting and answer, as any process that listens there may send them."""
    listener = socket.create_server(("127.0.0.1", 0))
    answering = ThreadPoolExecutor(1)

    def answer(data: bytes) -> None:
        """With the right proof, as far as the message has zeros there."""
        with listener.accept()[0] as caller, suppress(OSError):
            caller.sendall(data[: GREETING.size])
            if len(data) < GREETING.size:
                return  # the caller waits for the rest
            server_nonce, hello = data[: GREETING.size][-NONCE_BYTES:], caller.recv(HELLO.size, socket.MSG_WAITALL)
            if len(data) == GREETING.size + ANSWER.size and len(hello) == HELLO.size:
                found = read_hello(hello, server_nonce)
                assert found is not None
                proof = int.from_bytes(found[0].proof_of_server(TOKEN.encode()))
                whole = int.from_bytes(data) ^ proof
                data = whole.to_bytes(len(data))
            caller.sendall(data[GREETING.size :])

    def parse(data: bytes) -> None:
        answered = answering.submit(answer, data)
        try:
            stream, _ = dial(client_of(f"127.0.0.1:{listener.getsockname()[1]}"), Purpose.CALLS, SECONDS_MAX)
            stream.close()
        finally:
            answered.result()

    valid = [greeting(bytes(range(32))) + ANSWER.pack(verdict, 4, bytes(32)) for verdict in range(5)]
    return Parser(parse=parse, valid=valid, refusals=REFUSED_OR_CUT)


# Messages of the cluster ----------------------------------------------------------------------------------------------


def samples(kind: Any) -> list[Any]:
    """Values of a type, by the types of its fields; of a union, one of each kind at least."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SAMPLES:
        return [_SAMPLES[kind]]
    if isinstance(kind, NewType):
        return samples(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return [*kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        each = {field.name: samples(hints[field.name]) for field in fields(kind)}
        most = max(map(len, each.values()), default=1)
        return [
            kind(**{name: values[place % len(values)] for name, values in each.items()})  # type: ignore[operator]
            for place in range(most)
        ]
    if origin in (Union, UnionType):
        return [sample for each in arguments for sample in samples(each)]
    if origin is tuple and arguments[-1] is Ellipsis:
        return [tuple(samples(arguments[0]))]
    if origin is tuple:
        return [tuple(samples(each)[0] for each in arguments)]
    return [{samples(arguments[0])[0]: samples(arguments[1])[0]}]


_SAMPLES: dict[Any, Any] = {
    int: 3,
    str: "v",
    bool: True,
    float: 0.5,
    bytes: b"x",
    type(None): None,
    pa.Schema: WHOLE.schema,
    pa.DataType: pa.decimal128(20, 3),
    VnodeMap: vnode_map(),
}


def orders() -> Parser:
    """What the coordinator says to a worker."""
    return _machine_messages(ToWorker, codec.decode_to_worker)


def reports() -> Parser:
    """What a worker says to the coordinator."""
    return _machine_messages(FromWorker, codec.decode_from_worker)


def _machine_messages(kinds: Any, read: Callable[[Message], Any]) -> Parser:
    said = [codec.encode_message(message) for kind in get_args(kinds) for message in samples(kind)]

    def parse(text: bytes) -> None:
        message = _message_of(text)
        codec.encode_message(read(message))

    return Parser(parse=parse, json=[{"kind": each.kind, "fields": each.fields} for each in said])


def _message_of(text: bytes) -> Message:
    """A frame's message without batches, from the JSON of its kind and its fields."""
    head = encode_json({**decode_json(text), "sizes": []})
    return decode(pa.py_buffer(struct.pack("<I", len(head)) + head))


def envelopes() -> Parser:
    """What workers say to each other: heads of all kinds, each with the same words and batches."""
    hashes = hash64(WHOLE.columns[:1], ROWS)
    version, region, rows = MapVersion(3), "v/0", Batch(WHOLE, hashes, np.ones(ROWS, np.int64))
    lookup = PeerLookup(1, WorkerId(1), Epoch(2), WHOLE, hashes, True)
    between: list[Any] = [
        RowsSent(version=version, rows=Portion(Epoch(1), 0, rows)),
        RowsSent(version=version, rows=lookup),
        Acquire(version=version, keys=hashes, state=(WHOLE, WHOLE)),
        Done(version=version, vnode=VnodeId(1)),
        Kept(version=version, vnodes=(VnodeId(1), VnodeId(2))),
        RelayedMark(version=version, vnode=VnodeId(1), origin=WorkerId(2)),
        Sets(version=version, whitelist=hashes, hold=hashes[:2]),
        Final(version=version, keys=hashes),
        Redistribute(version=version, keys=hashes, following=hashes, added=hashes),
    ]
    contents: list[Any] = [
        *(ForRegion(region=region, message=each, begun=Epoch(4)) for each in between),
        Hot(region=region, keys=hashes, shown=Epoch(4)),
        Installed(region=region, seconds=0.5),
        PeerLookupAnswered(ticket=1, keys=5, rows=WHOLE, epoch=Epoch(5)),
        PeerLookupRefused(ticket=1, error=UpriverError("no")),
        FailedHere(view="v", failure=ViewFailure(kind="RowError", error="why")),
        BeginFeed(feed=FeedId(1), vnodes=(VnodeId(1),)),
        Fed(feed=FeedId(1), region=region, epoch=Epoch(6), keys=hashes, state=(WHOLE,)),
    ]
    made = [[Envelope(flow=FlowId(1), generation=2, content=each)] for each in contents]
    encoded_frames = [codec.encode(each) for each in [*made, [each[0] for each in made]]]

    def parse(data: bytes) -> None:
        for envelope in codec.decode(decode(pa.py_buffer(data))):
            codec.encode([envelope])

    heads = [{"of": place, "head": each.fields} for place, each in enumerate(encoded_frames)]

    def written(text: bytes) -> bytes:
        """With the batches of the frame whose head this was."""
        try:
            said = json.loads(text)
            frame = encoded_frames[said["of"]]
            return bytes(encode(Message(frame.kind, said["head"], frame.batches)).to_pybytes())
        except (ValueError, LookupError, TypeError, RecursionError, UpriverError):
            head = b'{"kind":"peer","sizes":[],"fields":' + text + b"}"
            return struct.pack("<I", len(head)) + head

    valid = [encode(each).to_pybytes() for each in encoded_frames]
    return Parser(parse=parse, valid=valid, json=heads, written=written)


def other_messages() -> Parser:
    """What else goes over a channel: its beginnings, heartbeats, measures, and several messages as one."""
    said = [
        Message(codec.PEER, {"worker": 0, "incarnation": 1, "meeting": 2, "to": 3}),
        Message(PING, {"beat": 4, "heard": 3}),
        Message(MEASURED, {"views": {}, "upqueries": {"v": 3}}),
        Message(SEVERAL, {"messages": [[PING, {"beat": 1, "heard": 1}]]}),
    ]

    def parse(text: bytes) -> None:
        message = _message_of(text)
        for each in _several(message) if message.kind == SEVERAL else [message]:
            match each.kind:
                case codec.PEER:
                    Link.greeted(each, WorkerId(3))
                case "measured":
                    LookupTotals().hear(WorkerId(0), Incarnation(1), each.fields)
                case _:
                    HeartbeatMonitor().pinged(each.fields)

    return Parser(parse=parse, json=[{"kind": each.kind, "fields": each.fields} for each in said])


# Servers of the native port, each asked over a connection of its own --------------------------------------------------


@dataclass(frozen=True)
class App:
    """A coordinator without workers, whose tables can be read, and a worker's lookups."""

    coordinator: CoordinatorService
    lookups: Server


@cache
def app() -> App:
    """The one of this process."""
    loop = CoordinatorLoop(CoordinatorMachine(vnode_map(), (PLAN,)))
    loop.start()
    root, _ = a_lake()
    service = CoordinatorService(loop, (PLAN,), (TABLE,), Listen(), KEYS, root=root)
    return App(service, Server(KEYS, {Purpose.LOOKUPS: LookupService(Answering(_echo))}))


def _echo(asked: KeysAsked) -> Given:
    return Given.of(asked.keys)


def _conversation(address: str, purpose: Purpose, data: bytes) -> None:
    """Say something sealed to a server, and hear all its answers: each is well formed, and an error is one of ours."""
    line = RawLine(client_of(address), purpose)
    try:
        line.wait_at_most(SECONDS_MAX)
        line.write(data)
        line.stream.end_writing()
        while (frame := line.receive()) is not None:
            check_told(frame.head.get("error"), frame.head.get("message"))
            for _, kind, text in frame.head.get("refused", ()):
                check_told(kind, text)
            if frame.batch is not None:
                use(frame.batch)
    finally:
        line.close()


def _on_line(head: bytes, batch: pa.RecordBatch | None = None) -> bytes:
    """A question's frame."""
    if batch is None:
        return struct.pack("<IIQ", len(head), 0, 0) + head
    hashes, body = hash64(batch.columns).tobytes(), bytes(batch.serialize().to_pybytes())
    return struct.pack("<IIQ", len(head), len(hashes), len(body)) + head + hashes + body


def lookups() -> Parser:
    """What a worker is asked by clients: batches of keys."""
    keys = WHOLE.select(["a", "b"])
    head = {
        "view": "v",
        "lookups": [[1, 2, None, False, 1.0], [2, 3, 7, True, 0.5]],
        "schema": schema_to_json(keys.schema),
    }
    parse = partial(_conversation, app().lookups.address, Purpose.LOOKUPS)
    return Parser(parse=parse, json=[head], written=partial(_on_line, batch=keys), refusals=REFUSED_OR_CUT)


def calls() -> Parser:
    """What a coordinator is asked by clients, subscriptions to changes among it."""
    position = ChangePosition(Epoch(3)).to_json()
    changes = {"view": "rows", "position": position, "keys": [1, 2], "wait_s": 0}
    asked: list[dict[str, Any]] = [
        *({"act": name, "fields": {}} for name in ("routing", "status", "metrics", "rescales", "views", "ping")),
        {"act": "freshness", "fields": {"epoch": 1}},
        {"act": "explain", "fields": {"view": "rows"}},
        {"act": "source", "fields": {"name": "t"}},
        {"act": "scan", "fields": {"view": "t", "scan": "s"}},
        {"act": "change_log", "fields": {"view": "rows"}},
        {"act": "change_last", "fields": {"view": "rows"}},
        {"act": "evict", "fields": {"view": "rows", "keys": [1]}},
        {"act": "rescale", "fields": {"workers": 2, "moves": None, "strategy": "icadd", "keys_max": 5}},
        {"act": "rescale", "fields": {"workers": None, "moves": {"1": 1}, "strategy": "icadd", "keys_max": None}},
        *({"act": f"rescale_{name}", "fields": {"ticket": 0}} for name in ("progress", "report", "abort")),
        {"piece": "changes", "fields": changes},
        {"get": "snapshot", "fields": {}, "from": 0},
    ]
    parse = partial(_conversation, app().coordinator.address, Purpose.CALLS)
    return Parser(parse=parse, json=asked, written=_on_line, refusals=REFUSED_OR_CUT)


def registrations() -> Parser:
    """How a worker's channel to the coordinator begins."""
    said = {"worker": 0, "life": 1, "attempt": 0, "address": "127.0.0.1:1", "instance": "x", "died_in": [1, 2]}

    def parse(text: bytes) -> None:
        message = _message_of(text)
        stream, session = dial(peer_of(app().coordinator.address), Purpose.CHANNEL, SECONDS_MAX)
        try:
            sends, hears = Seals(session.sends), Seals(session.hears)
            for each in (message, Message("channel.bye")):  # without a goodbye, the slot's lease would have to expire
                write_frame(stream, encode(each), sends)
            while (frame := read_frame(stream, hears)) is not None:
                answer = decode(frame)
                check_told(answer.fields.get("error"), answer.fields.get("message"))
        finally:
            stream.close()

    return Parser(parse=parse, json=[{"kind": REGISTER, "fields": said}], refusals=REFUSED_OR_CUT)


# What clients read ----------------------------------------------------------------------------------------------------


def _json_answers(read: Callable[[Any], object], *valid: Any) -> Parser:
    def parse(text: bytes) -> None:
        told = decode_json(text)
        with refusing_malformed("server"):
            read(told)

    return Parser(parse=parse, json=valid)


def routings() -> Parser:
    """What a client is told of views, workers and freshness."""
    freshness = FreshnessReport(Epoch(1), {"t": TableFreshness("running", 0.5, "none", None)})
    routes = {"v": ViewRoute(("a",), WHOLE.schema, ("t",))}
    whole = Routing(VnodeMap.initial(4, [WorkerId(0)]), {WorkerId(0): "127.0.0.1:1"}, routes, Epoch(1), freshness)

    def read(told: Mapping[str, Any]) -> None:
        routing = Routing.from_json(told)
        routing.freshness.age_s(["t"])
        routing.vnode_map.owners_of(np.zeros(1, np.int64))
        for route in routing.views.values():
            assert route.key_schema.names == list(route.key) or not route.key

    return _json_answers(read, whole.to_json())


def scan_sources() -> Parser:
    """What a scan is told of a view or a table, and the tickets of Spark's tasks."""
    schema = schema_to_json(WHOLE.schema)
    scans = [TableScan("/lake", TABLE, scan_key(TABLE)).to_json(), ViewScan("/lake", PLAN, (TABLE,)).to_json()]

    def read(told: Mapping[str, Any]) -> None:
        source = ScanSource.from_json(told)
        assert source.key_schema.names == list(source.key)
        VnodeGroup.all(source.vnodes, min(source.vnodes, source.workers))
        if source.lake is not None:
            scan = scan_from_json(source.lake)
            assert isinstance(scan.key, tuple)
            assert scan.schema is not None

    told = [{"key": ["a"], "schema": schema, "vnodes": 4, "workers": 1, "lake": lake} for lake in (None, *scans)]
    return _json_answers(read, *told)


def offsets() -> Parser:
    """Offsets of a stream of changes, as Spark's checkpoint has them."""
    start = {"version": 3, "base": True}

    def read(told: Mapping[str, Any]) -> None:
        offset = ChangesOffset.from_json(told)
        assert ChangesOffset.from_json(offset.to_json()) == offset

    return _json_answers(read, {"version": None, "start": start}, {"version": 5, "start": start})


def positions() -> Parser:
    """The positions of subscriptions."""

    def read(told: Mapping[str, Any]) -> None:
        position = ChangePosition.from_json(told)
        assert ChangePosition.from_json(position.to_json()) == position

    return _json_answers(read, {"after": None, "skip": 0, "first": None}, {"after": 3, "skip": 4, "first": 2})


def query_parameters() -> Parser:
    """The parameters of a query."""

    def parse(text: bytes) -> None:
        use(parameters_from_json(decode_json(text).get("parameters")))

    fields = query_fields("SELECT ?", [1, "x", None, [1.5]])
    return Parser(parse=parse, json=[fields])


def query_answers() -> Parser:
    """The answer of a query, which is a stream within a batch."""

    def parse(data: bytes) -> None:
        batch = pa.RecordBatch.from_arrays([pa.array([data], pa.large_binary())], ["stream"])
        for each in answer_of(batch).to_batches():
            use(each)

    whole = answer_as_batch(pa.Table.from_batches([WHOLE])).column(0)[0].as_py()
    return Parser(parse=parse, valid=[whole])


def key_texts() -> Parser:
    """Keys as users and programs of other languages write them."""
    key = pa.schema(
        [
            ("t", pa.string()),
            ("n", pa.int64()),
            ("d", pa.decimal128(20, 3)),
            ("at", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.int32())),
            ("s", pa.struct([("x", pa.date32())])),
        ]
    )
    whole = ["a", 5, 1.5, "2026-01-01T00:00:00Z", [1, None], {"x": "2026-01-01"}]

    def parse(data: bytes) -> None:
        keys_of_texts("v", key, [data.decode("utf-8", "replace")])

    return Parser(parse=parse, json=[whole])


# The doors ------------------------------------------------------------------------------------------------------------


class Complaints(logging.Handler):
    """Notes what a door's logger says of faults of ours."""

    def __init__(self, *names: str) -> None:
        super().__init__(logging.ERROR)
        self._said: list[logging.LogRecord] = []
        for name in names:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record)

    def check(self) -> None:
        """Raise the fault that a door has told its log since the last look."""
        said, self._said = self._said, []
        for record in said:
            error = record.exc_info[1] if record.exc_info else None
            raise AssertionError(f"a door's log has a fault: {record.getMessage()}") from error


@cache
def http_door() -> tuple[HttpApp, Complaints]:
    """The one of this process."""
    return HttpApp(), Complaints("upriver.http", "asyncio", "upriver.doors")


STATUS = re.compile(rb"HTTP/1\.1 ([1-5]\d\d)")
SECRET_HEADERS = f"host: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n"


def _http(data: bytes) -> None:
    """Send a request's bytes, and read all that comes: answers, none of which is a fault of ours."""
    app, complaints = http_door()
    host, _, port = app.server.address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as caller:
        caller.sendall(data)
        caller.shutdown(socket.SHUT_WR)
        told = b"".join(iter(partial(caller.recv, 1 << 16), b""))
    complaints.check()
    statuses = STATUS.findall(told)
    if told and not told.startswith(b"HTTP/1.1 "):
        raise AssertionError(f"no answer of HTTP: {told[:100]!r}")
    if b"500" in statuses:
        raise AssertionError(f"a fault: {told[-300:]!r}")
    if any(status >= b"400" for status in statuses):
        raise UpriverError(f"refused with {statuses!r}")


def http_heads() -> Parser:
    """Requests without a body: their paths, queries and headers."""
    paths = [
        *(
            "/",
            "/healthz",
            "/readyz",
            "/login",
            "/metrics",
            "/v1/status",
            "/v1/views",
            "/v1/openapi.json",
            "/v1/session",
        ),
        *(
            "/v1/views/days",
            "/v1/views/days/explain",
            "/v1/views/days/lookup?key=%5B1%2C%222026-01-01%22%5D&at_least=3",
        ),
        *("/v1/views/days/rows?limit=2", "/v1/rescales", "/v1/rescales/0?unless=moving&wait_s=0", "/v1/history"),
    ]
    valid = [f"GET {path} HTTP/1.1\r\n{SECRET_HEADERS}\r\n".encode() for path in paths]
    cookie = f"GET /v1/status HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: a=b; {'c' * 20}=d\r\nsec-fetch-site: none\r\n\r\n"
    return Parser(parse=_http, valid=[*valid, cookie.encode()], refusals=REFUSED_OR_CUT)


def http_bodies() -> Parser:
    """Requests with JSON; ``path`` of a message here is where it goes."""
    asked = [
        {"path": "/v1/views/days/lookup", "body": {"keys": [[1, "2026-01-01"], [2, None]], "at_least": 3}},
        {"path": "/v1/query", "body": {"sql": "SELECT 1", "parameters": [1, "x"]}},
        {"path": "/v1/rescales", "body": {"workers": 2, "strategy": "icadd"}},
        {"path": "/v1/rescales/0/abort", "body": {}},
        {"path": "/v1/views/days/evict", "body": {"keys": [[1, "2026-01-01"]]}},
    ]

    def parse(text: bytes) -> None:
        path, body = "/v1/query", text
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            told = json.loads(text)
            path, body = str(told["path"]), json.dumps(told["body"]).encode()
        path = path if re.fullmatch(r"[!-~]{1,500}", path) else "/v1/query"
        head = f"POST {path} HTTP/1.1\r\n{SECRET_HEADERS}content-type: application/json\r\n"
        _http(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)

    return Parser(parse=parse, json=asked, refusals=REFUSED_OR_CUT)


def _told_by(session: Any, data: bytes) -> None:
    """What a session of PostgreSQL's wire answers is whole messages, and none tells of a fault of ours."""
    is_refused = False
    answered = b"".join(session.receive(data)).lstrip(b"N")  # a request to encrypt is answered by one letter
    for kind, body in messages_in(answered):
        if kind == b"E":
            told = {field[:1]: field[1:] for field in body.split(b"\0") if field}
            if told[b"C"] == b"XX000":
                raise AssertionError(f"a fault: {told[b'M'][:300]!r}")
            is_refused = True
    if is_refused:
        raise UpriverError("refused")


def postgres_starts() -> Parser:
    """The bytes of a caller that has not proved itself."""
    cancel = framed(b"", struct.pack("!iii", 80877102, 7, 11))
    tls = framed(b"", struct.pack("!i", 80877103))
    challenge = "r=abcdefghXYZ,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096"
    proofs = first_proof() + last_proof(challenge)
    valid = [startup(), startup(database="d", replication="no"), startup() + proofs, tls + startup(), cancel]
    return Parser(parse=lambda data: _told_by(new_session(), data), valid=valid)


def postgres_queries() -> Parser:
    """The bytes of a caller after its proof: simple and extended protocol, with parameters as texts and in binary."""

    def parse_message(text: str, *oids: int) -> bytes:
        return framed(b"P", f"s\0{text}\0".encode() + struct.pack(f"!h{len(oids)}i", len(oids), *oids))

    def bind(format: int, *values: bytes | None) -> bytes:
        parts = b"".join(
            b"\xff\xff\xff\xff" if each is None else struct.pack("!i", len(each)) + each for each in values
        )
        return framed(
            b"B", b"p\0s\0" + struct.pack("!hhh", 1, format, len(values)) + parts + struct.pack("!hh", 1, format)
        )

    rest = (
        framed(b"D", b"Pp\0") + framed(b"E", b"p\0" + struct.pack("!i", 0)) + framed(b"C", b"Ss\0") + framed(b"S", b"")
    )
    numeric = struct.pack("!HhHHHH", 2, 0, 0, 2, 17, 5000)
    array = struct.pack("!iiIiiii", 1, 0, 23, 2, 1, 4, 5) + struct.pack("!ii", 4, 6)
    binary = {
        20: struct.pack("!q", 5),
        701: struct.pack("!d", 1.5),
        1700: numeric,
        1007: array,
        1082: struct.pack("!i", 9000),
        1114: struct.pack("!q", 10**15),
        1184: struct.pack("!q", 10**15),
        1186: struct.pack("!qii", 5, 6, 7),
        2950: bytes(16),
        3802: b'\1{"a": 1}',
        16: b"\1",
        17: b"abc",
        1083: struct.pack("!q", 10**9),
    }
    shown = {
        25: b"ada",
        20: b"5",
        1700: b"1.50",
        1007: b"{1,NULL,3}",
        1009: b'{a,"b c"}',
        17: b"\\x00ff",
        1184: b"2026-01-01",
    }
    one = "SELECT $1"
    valid = [
        *(framed(b"Q", f"{text}\0".encode()) for text in _STATEMENTS),
        *(parse_message(one, oid) + bind(1, value) + rest for oid, value in binary.items()),
        *(parse_message(one, oid) + bind(0, value) + rest for oid, value in shown.items()),
        parse_message("SELECT n FROM totals WHERE customer = $1") + bind(0, b"ada") + rest,
    ]
    return Parser(parse=lambda data: _told_by(trusted_session(), data), valid=valid)


_STATEMENTS = (
    *("SELECT 1", "SELECT n FROM totals WHERE customer = 'ada'", "BEGIN; COMMIT", "SHOW ALL", "SHOW TimeZone"),
    *("SET DateStyle = 'ISO'", "SET TIME ZONE 'Europe/Berlin'", "DISCARD ALL", "EXPLAIN SELECT n FROM totals"),
    *("BEGIN; DECLARE c CURSOR FOR SELECT * FROM totals; FETCH 2 FROM c; MOVE 1 IN c; CLOSE c; END", "DEALLOCATE ALL"),
    *("COPY (SELECT 1) TO STDOUT (FORMAT csv)", "SAVEPOINT a; ROLLBACK TO a", "SELECT '{1}'::int[]"),
)


def flight_frames() -> Parser:
    """What a caller of Flight sends: frames of HTTP/2, some with parts of messages, which come in any pieces."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content

    def parse(data: bytes) -> None:
        def refused(pieces: list[bytes]) -> str | None:
            sizes = MessageSizes()
            try:
                for piece in pieces:
                    sizes.hear(piece)
            except MessageRefused as refusal:
                return str(refusal)
            return None

        whole = refused([data])
        assert whole == refused([data[at : at + 1] for at in range(len(data))])
        if whole is not None:
            raise MessageRefused(whole)

    message, padded = b"\0" + (40).to_bytes(4) + bytes(40), bytes([7]) + b"\0" + (3).to_bytes(4) + bytes(3 + 7)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, bytes(12))
    valid = [
        preface + frame(1, 4, 1, bytes(30)) + frame(0, 1, 1, message),
        preface + frame(0, 0, 1, message[:20]) + frame(0, 8, 3, padded) + frame(0, 1, 1, message[20:]),
    ]
    return Parser(parse=parse, valid=valid, refusals=(MessageRefused,))


def flight_tickets() -> Parser:
    """Tickets of plain Flight, and descriptors: a command, or a path of one part."""

    def parse(data: bytes) -> None:
        for made in (flight.FlightDescriptor.for_command(data), flight.FlightDescriptor.for_path(data)):
            ticket = RowsTicket.of_descriptor(made)
            assert RowsTicket.of(ticket.to_json()) == ticket
        RowsTicket.of(data)

    return Parser(
        parse=parse, json=[{"view": "totals"}, {"view": "totals", "keys": [["ada"], [5, None]]}, {"query": "SELECT 1"}]
    )


def flight_sql() -> Parser:
    """Commands, tickets and actions of Flight SQL."""
    sql = FlightSql(KeptRows())
    handle = FlightStatement("SELECT n FROM totals WHERE n = ?", pa.record_batch({"1": [2]})).to_handle()

    def command(name: str, *parts: tuple[int, int | bytes]) -> bytes:
        return wrapped(PACKAGE + name, encoded(parts))

    def parse(data: bytes) -> None:
        first, body = data[:1], data[1:]
        cancellation = Cancellation(lambda: False)
        match first:
            case b"t":
                _, rows = sql.stream(body, cancellation)
                for batch in rows:
                    use(batch)
            case b"a":
                sql.act(CREATE, body, cancellation)
            case _:
                sql.ticketed(body, cancellation)

    valid = [
        b"c" + command(QUERY, (1, b"SELECT n FROM totals")),
        b"c" + command(PREPARED_QUERY, (1, handle)),
        b"t" + command(TICKET, (1, handle)),
        b"a" + command("ActionCreatePreparedStatementRequest", (1, b"SELECT n FROM totals WHERE n = ?")),
        b"c" + command("CommandGetTables", (1, b""), (3, b"tot%"), (4, b"TABLE"), (5, 1)),
        b"t" + command("CommandGetSqlInfo", (1, 0), (1, 8)),
        b"t" + command("CommandGetDbSchemas", (2, b"p%")),
        b"t" + command("CommandGetPrimaryKeys", (3, b"totals")),
    ]
    return Parser(parse=parse, valid=valid, refusals=(UpriverError, UnsupportedCommand))


# The lake -------------------------------------------------------------------------------------------------------------

LAKE_COST = 10
CHANGES_VIEW = pa.schema([("k", pa.int64()), ("n", pa.int64())])
BEGINS = Epoch(3)


def _fill(root: str) -> None:
    """A lake with a file of every kind."""
    with owned(root) as lake:
        for number in range(16):
            publish(lake, EVENTS, [(number % 3, number), (7, number)])
        publish(lake, USERS, [(1, 1, "Ulm"), (2, 1, None)])
        list(compact(lake, Epoch(16)))
        lake.set_bad_rows_aside(["events"])
        lake.announce("127.0.0.1:1")
        for number in (1, 2):
            record = ControlRecord(placement=Placement.initial(8, 2), marks={"events": ReadThrough(1.0, Epoch(3))})
            write_control(lake, record.with_views((PLAN,), 1.0), number, 5.0)
        lake.commit(source_path("events", 1), SourceRecord("s", 1, "q").to_json(), "a source")
        take(lake, 5, None, FIRST)
        take(lake, 17, None, FIRST)
        publish(lake, EVENTS, [(1, 1)])
        take(lake, 18, 17, SECOND)
        _log_changes(lake)


def _log_changes(lake: OwnedLake) -> None:
    """The log of one view: two commits, of which a fold takes the place."""
    record = LogRecord(view="v", begins=BEGINS, key=("k",), schema=CHANGES_VIEW, fingerprint="of v")
    commits = []
    for number in (1, 2):
        keys = pa.array([1, 2], pa.int64())
        kinds = pa.array(["insert", "insert"])
        versions, stamps = pa.array([2 + number] * 2, pa.int64()), pa.array([5, 5], pa.timestamp("us", "UTC"))
        columns = [pa.array(hash64([keys], 2)), keys, keys, kinds, versions, stamps]
        rows = pa.Table.from_arrays(columns, schema=part_schema(CHANGES_VIEW))
        made = ChangeCommit(
            number=number,
            through=Epoch(2 + number),
            term=lake.term,
            made_at=1.0,
            begins={"v": BEGINS},
            parts=write_parts(lake, "v", "test", rows.take(pa.array(np.argsort(columns[0].to_numpy())))),
            first=number,
        )
        commit_changes(lake, made, [record])
        commits.append(made)
    fold = replace(commits[1], first=1, parts=(*commits[0].parts, *commits[1].parts), folded_at=2.0)
    later = replace(commits[1], number=3, first=3, through=Epoch(5), parts=())
    commit_changes(lake, later, [record])
    commit_fold(lake, replace(fold, earliest={"v": BEGINS}, earliest_at={"v": 1.0}))


@contextmanager
def _always_the_same() -> Iterator[None]:
    """Random names and the time are the same in each process, and so are the files that a block writes."""
    before = os.urandom, time.time
    os.urandom, time.time = Random(1).randbytes, lambda: 1e9
    try:
        yield
    finally:
        os.urandom, time.time = before


@cache
def a_lake() -> tuple[str, Mapping[str, bytes]]:
    """The root of this process's lake, and the bytes of its files by path."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with _always_the_same():
        _fill(str(root))
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return str(root), {str(path.relative_to(root)): path.read_bytes() for path in paths}


def _lake_reads(root: str) -> Iterator[Callable[[], object]]:
    """All that drivers, workers and readers read of a lake."""
    yield Lake(root).record
    yield lambda: _read_epochs(Lake(root))
    yield lambda: (Lake(root).announced(), Lake(root).sets_aside(), find_control(Lake(root)).record)
    yield lambda: current_source(Lake(root), "events")
    yield lambda: _read_checkpoints(Lake(root))
    yield lambda: _read_changes(Lake(root))
    yield lambda: ChangePieces(Lake(root)).piece(
        {"view": "v", "position": ChangePosition().to_json(), "keys": None, "wait_s": 0}
    )
    yield lambda: _take_over(root)


def _read_epochs(lake: Lake) -> None:
    lake.look_for_seal()
    history = IngestHistory()
    for span in lake.spans(lake.last_epoch()):
        epochs = lake.epochs(span)
        history.add(epochs)
        for channel in INDEXES_OF:
            for batch in lake.read(epochs, channel, ALL, INDEXES_OF[channel]):
                use(batch)
    check_taken(lake, history)
    lake.retained(lake.last_epoch())
    lake.clock(lake.last_epoch())


INDEXES_OF = {lake_channel(table.name, index): table for table in (EVENTS, USERS) for index in INDEXES[table.name]}


def _read_checkpoints(lake: Lake) -> None:
    found, damage = newest_usable(lake, PLACE, REGIONS)
    epochs = [each.epoch for each in found]
    for region in REGIONS if found else ():
        for chunk in read_state(lake, PLACE, epochs, region, ALL, 8):
            for part in chunk.parts:
                use(part)
    if damage is not None:
        raise CorruptFile(damage)


def _read_changes(lake: Lake) -> None:
    log = ChangeLog(lake)
    log.end()
    for view in log.views():
        log.folded(view)
        for batch in log.changes(view, None, log.last(view)):
            use(batch)


def _take_over(root: str) -> None:
    """The next driver of a lake begins."""
    lake = OwnedLake(root, LakeRecord(8, (EVENTS, USERS), INDEXES), {})
    try:
        lake.sweep()
    finally:
        lake.release()


def _read_lake_with(path: str, content: bytes) -> None:
    """Read all of the lake while one of its files is another. Raises the first refusal, once all was read."""
    root, files = a_lake()
    _put(root, path, content)
    refused: UpriverError | None = None
    try:
        for read in _lake_reads(root):
            try:
                read()
            except UpriverError as error:
                refused = refused or error
    finally:
        there = {str(each.relative_to(root)) for each in Path(root).rglob("*") if each.is_file()}
        for name in there - files.keys():
            (Path(root) / name).unlink()
        for name in {path, *(files.keys() - there)}:
            _put(root, name, files[name])
    if refused is not None:
        raise refused


def _put(root: str, path: str, content: bytes) -> None:
    file = Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def lake_files() -> Mapping[str, Callable[[], Parser]]:
    """A parser for each kind of file of a lake: damaged as it lies there, and, of JSON, written anew with other content
    and its own checksum."""
    made: dict[str, Callable[[], Parser]] = {}
    _, files = a_lake()
    for path, content in files.items():
        if path == ".lock":
            continue  # is never read
        parts = path.split("/")
        kind = "_".join(parts[:-1][: 2 if parts[0] == "changes" else 1]) or Path(path).stem
        made[f"lake_{kind}{Path(path).suffix}"] = partial(_lake_file, path, content)
    return made


def _lake_file(path: str, content: bytes) -> Parser:
    parse = partial(_read_lake_with, path)
    if not path.endswith(".json"):
        return Parser(parse=parse, valid=[content], cost=LAKE_COST)
    record = json.loads(content)["record"]
    return Parser(parse=parse, valid=[content], json=[record], written=_with_seal, cost=LAKE_COST)


PARSERS: Mapping[str, Callable[[], Parser]] = {
    make.__name__: make
    for make in (
        *(frames, bare_batches, sealed_frames, pieces, hellos, greetings, orders, reports, envelopes, other_messages),
        *(lookups, calls, registrations, routings, scan_sources, offsets, positions, query_parameters, query_answers),
        *(key_texts, http_heads, http_bodies, postgres_starts, postgres_queries, flight_frames),
        *(flight_tickets, flight_sql),
    )
}


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("names", nargs="*")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--count", type=int, default=1)
    asked.add_argument("--progress", type=Path, default=Path(os.devnull))
    told = asked.parse_args()
    prepare()
    has_lake = not told.names or any(name.startswith("lake_") for name in told.names)
    made = {**PARSERS, **(lake_files() if has_lake else {})}
    parsers = {name: make() for name, make in made.items() if not told.names or name in told.names}
    for name, parser in parsers.items():
        told.progress.write_text(f"{name}: valid messages")
        if not [*filter(partial(check, parser), parser.examples())]:
            raise AssertionError(f"{name}: no valid message is taken")
    limit_memory()
    faults = 0
    for name, parser in parsers.items():
        campaign, began = Campaign(name, parser, told.seed, told.progress), time.monotonic()
        campaign.run(told.first, told.count)
        faults += len(campaign.faults)
        for fault in campaign.faults.values():
            print(fault)
        print(
            f"{name}: {campaign.taken} taken, {campaign.refused} refused, {time.monotonic() - began:.1f} s", flush=True
        )
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
