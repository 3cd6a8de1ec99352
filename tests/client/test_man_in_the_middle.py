"""A man in the middle of a client's connections changes no answer, makes nothing happen, and ends nothing.

He is a real one, between real servers and clients, without a key. What he does to a frame costs at most the call whose
frame it is, and that call says so.
"""

import asyncio
import random
import re
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from channel_kit import HELLO, Hub, Recorder
from client_kit import Cluster, View
from middle_kit import (
    KINDS,
    NOTICED_AT_ONCE,
    End,
    Middle,
    NowAndThen,
    Once,
    OutOfOrder,
    Tamper,
    Toward,
    flipped,
    untouched,
)
from server_kit import KEYS, SECONDS_MAX, TOKEN, calls_server, client_of, peer_of

from upriver.client.asyncio_client import connect_async
from upriver.client.client import Client
from upriver.errors import (
    AccessDenied,
    ClusterError,
    ProtocolError,
    SealBroken,
    WaitTimeout,
    WorkerLost,
)
from upriver.ids import WorkerId
from upriver.net.channel import open_channel
from upriver.net.frames import SEAL_BYTES
from upriver.net.handshake import ANSWER, GREETING, Purpose
from upriver.net.handshake import HELLO as HELLO_FORM
from upriver.net.line import ANSWER_TERMS, SMALL_FRAME_BYTES_MAX, Line
from upriver.net.lookups import PIECE_BYTES
from upriver.net.remote import Connection, dial
from upriver.net.server import Calls, Server
from upriver.net.wire import Message
from upriver.protocol.lookups import ViewRoute

N42 = {"tailnum": "N42", "flights": 42}
HERE = WorkerId(0)
SHORT_S = 0.2
"""Seconds for a call of which a frame may be missing."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster(1)
    yield running
    running.stop()


@contextmanager
def between(cluster: Cluster) -> Iterator[tuple[Middle, Client]]:
    """A man between a client and the only worker."""
    with Middle(cluster.workers[HERE].server.address) as middle:
        cluster.addresses[HERE] = middle.address
        with cluster.connect() as client:
            yield middle, client


def refusal(client: Client, keys: list[str]) -> str:
    """What a lookup says that he lets get no answer. On a busy machine the time of one may be over in its last try."""
    for _ in range(10):
        with pytest.raises((SealBroken, WorkerLost)) as raised:
            client.lookup("planes", keys, timeout=0.5)
        if raised.type is SealBroken:
            break
    return str(raised.value)


# What he must not do --------------------------------------------------------------------------------------


def other_number(toward: Toward, frame: bytes) -> Sequence[bytes]:
    """42 becomes 999,999, wherever it is."""
    numbers = struct.pack("<q", 42), struct.pack("<q", 999_999)
    return [frame.replace(*numbers) if toward is Toward.CALLER else frame]


@pytest.mark.parametrize("keys", [["N42"], ["N42", "N7"]], ids=["short", "long"])
def test_an_answer_that_was_changed_is_no_answer(cluster: Cluster, keys: list[str]) -> None:
    with between(cluster) as (middle, client):
        middle.tamper = other_number
        assert re.search(rf"no answer from worker 0 .* {middle.address}: a frame lacks the seal", refusal(client, keys))
        middle.tamper = untouched
        assert client.lookup_one("planes", "N42") == N42


def test_an_answer_that_was_changed_once_is_asked_for_again(cluster: Cluster) -> None:
    with between(cluster) as (middle, client):
        middle.tamper = Once("end changed", Toward.CALLER)
        assert client.lookup_one("planes", "N42") == N42


RESCALE = b'{"act":"rescale","fields":{"workers":9}}'


def no_seal(frame: bytes) -> bytes:
    return bytes(SEAL_BYTES)


def seal_of_another(frame: bytes) -> bytes:
    return frame[-SEAL_BYTES:]


@pytest.mark.parametrize("seal", [no_seal, seal_of_another])
def test_a_call_that_the_operator_did_not_make_is_not_made(seal: Callable[[bytes], bytes]) -> None:
    """He adds one to the operator's connection, and sends the operator's own once more."""
    made: list[Mapping[str, Any]] = []

    def rescale(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        made.append(fields)
        return {}

    def adding(toward: Toward, frame: bytes) -> Sequence[bytes]:
        forged = struct.pack("<IIQ", len(RESCALE), 0, 0) + RESCALE + seal(frame)
        return [forged, frame] if toward is Toward.SERVER else [frame]

    def replaying(toward: Toward, frame: bytes) -> Sequence[bytes]:
        return [frame, frame] if toward is Toward.SERVER else [frame]

    with (
        Server(KEYS, {Purpose.CALLS: Calls(operations={"rescale": rescale})}) as server,
        Middle(server.address) as middle,
        Connection(client_of(middle.address)) as operator,
    ):
        assert operator.act("ping", timeout=SECONDS_MAX) == {}
        middle.tamper = adding
        with pytest.raises(ClusterError):  # the server's, or that it has ended the line
            operator.act("ping", timeout=SECONDS_MAX)
        assert made == []
        middle.tamper = replaying
        assert operator.act("rescale", {"workers": 2}, timeout=SECONDS_MAX) == {}
        middle.tamper = untouched
        with suppress(ClusterError):  # the server has ended the line
            operator.act("ping", timeout=SECONDS_MAX)
        assert operator.act("ping", timeout=SECONDS_MAX) == {}
        assert made == [{"workers": 2}]


@pytest.mark.parametrize("large", [False, True])
def test_a_frame_that_he_makes_up_takes_nothing_from_a_client(cluster: Cluster, large: bool) -> None:
    """It is not decoded, and no memory is kept for what it announces."""
    announced = 1 << 30 if large else 1 << 10

    def made_up(toward: Toward, frame: bytes) -> Sequence[bytes]:
        sizes = struct.pack("<IIQ", 10, 0, announced)
        return [sizes + bytes(SMALL_FRAME_BYTES_MAX)] if toward is Toward.CALLER else [frame]

    with between(cluster) as (middle, client):
        middle.tamper = made_up
        tracemalloc.start()
        assert "lacks the seal" in refusal(client, ["N42"])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 << 20
        middle.tamper = untouched
        assert client.lookup_one("planes", "N42") == N42


# Everything that he can do to a frame ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "toward"),
    [
        *product(NOTICED_AT_ONCE, Toward),
        ("dropped", Toward.SERVER),
        ("a part dropped", Toward.CALLER),
    ],
)
def test_a_lookup_has_its_answer_or_an_error(cluster: Cluster, kind: str, toward: Toward) -> None:
    with between(cluster) as (middle, client):
        assert client.lookup_one("planes", "N7") == {"tailnum": "N7", "flights": 7}
        middle.tamper = once = Once(kind, toward)
        with suppress(SealBroken, WorkerLost, WaitTimeout):
            assert client.lookup_one("planes", "N42", timeout=SHORT_S) == N42
        assert once.is_done
        assert client.lookup_one("planes", "N42") == N42


@pytest.mark.parametrize("kind", NOTICED_AT_ONCE)
def test_so_has_one_of_an_event_loop(cluster: Cluster, kind: str) -> None:
    async def look_up(middle: Middle) -> None:
        async with await connect_async(cluster.coordinator.address, TOKEN) as client:
            assert await client.lookup_one("planes", "N7") == {"tailnum": "N7", "flights": 7}
            middle.tamper = Once(kind, Toward.CALLER)
            found = await asyncio.gather(
                *(client.lookup_one("planes", "N42", timeout=SHORT_S) for _ in range(3)), return_exceptions=True
            )
            assert all(each == N42 or isinstance(each, SealBroken | WorkerLost | WaitTimeout) for each in found)
            assert await client.lookup_one("planes", "N42") == N42

    with Middle(cluster.workers[HERE].server.address) as middle:
        cluster.addresses[HERE] = middle.address
        asyncio.run(look_up(middle))


@dataclass
class Counted:
    """A server's action that counts, and says which call it has answered."""

    numbers: list[int] = field(default_factory=list)

    def __call__(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        self.numbers.append(fields["number"])
        return {"number": fields["number"]}


@pytest.mark.parametrize("toward", Toward)
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_made_once_or_not_at_all(kind: str, toward: Toward) -> None:
    counted = Counted()
    with (
        calls_server({"count": counted}) as server,
        Middle(server.address) as middle,
        Connection(client_of(middle.address)) as connection,
    ):
        for number in range(4):
            middle.tamper = Once(kind, toward) if number == 1 else untouched
            told = None
            try:
                told = connection.act("count", {"number": number}, timeout=SHORT_S if number == 1 else SECONDS_MAX)
            except ClusterError:
                assert number == 1 or (number == 2 and kind in ("forged", "repeated"))
            assert told in (None, {"number": number})
        assert sorted(set(counted.numbers)) == sorted(counted.numbers)
        assert {0, 3} <= set(counted.numbers) <= {0, 1, 2, 3}


ROWS = pa.table({"n": range(200_000)})
"""Several frames, each of them large."""


@pytest.mark.parametrize(
    ("kind", "toward"),
    [*product(NOTICED_AT_ONCE, Toward), ("dropped", Toward.CALLER), ("a part dropped", Toward.CALLER)],
)
def test_rows_are_all_there_or_an_error_is(kind: str, toward: Toward) -> None:
    with (
        calls_server(gets={"rows": lambda *_: ROWS}) as server,
        Middle(server.address) as middle,
        Connection(client_of(middle.address)) as connection,
    ):
        batches: list[pa.RecordBatch] = []
        try:
            for batch in connection.get("rows", {}, ROWS.schema, timeout=3 * SHORT_S):
                if not batches:
                    middle.tamper = Once(kind, toward)
                batches.append(batch)
        except ClusterError:
            assert pa.Table.from_batches(batches, ROWS.schema).equals(ROWS.slice(0, sum(map(len, batches))))
        else:
            assert pa.Table.from_batches(batches).equals(ROWS)


class Again:
    """He passes a frame of an earlier connection on, in place of one that goes the same way, and so often."""

    def __init__(self, toward: Toward) -> None:
        self._toward = toward
        self.kept: list[bytes] = []
        self.is_next = self.replaces = False

    def __call__(self, toward: Toward, frame: bytes) -> Sequence[bytes]:
        if self.is_next:
            self.is_next = False
            raise End
        if toward is not self._toward:
            return [frame]
        self.kept.append(frame)
        return [self.kept[0] if self.replaces else frame]


@pytest.mark.parametrize("toward", Toward)
def test_frames_of_an_earlier_connection_are_none_of_this_one(toward: Toward) -> None:
    counted = Counted()
    with (
        calls_server({"count": counted}) as server,
        Middle(server.address) as middle,
        Connection(client_of(middle.address)) as connection,
    ):
        middle.tamper = again = Again(toward)
        assert connection.act("count", {"number": 0}, timeout=SECONDS_MAX) == {"number": 0}
        again.is_next = True
        with pytest.raises(ClusterError):
            connection.act("count", {"number": 1}, timeout=SECONDS_MAX)
        again.replaces = True
        with pytest.raises(ClusterError):
            connection.act("count", {"number": 2}, timeout=SECONDS_MAX)
        middle.tamper = untouched
        assert connection.act("count", {"number": 3}, timeout=SECONDS_MAX) == {"number": 3}
        assert counted.numbers == ([0, 3] if toward is Toward.SERVER else [0, 2, 3])


WIDE = View(
    ViewRoute(("k",), pa.schema([("k", pa.string()), ("v", pa.string())])),
    [("key", letter * (1 << 20)) for letter in "abcdefghij"],
)
"""A key whose answer goes in several pieces."""


class Pieces:
    """He treats the second piece of an answer as ``kind`` says."""

    def __init__(self, kind: str) -> None:
        self._tamper: Tamper = OutOfOrder(Toward.CALLER) if kind == "out of order" else Once(kind, Toward.CALLER)
        self._is_first = True

    def __call__(self, toward: Toward, frame: bytes) -> Sequence[bytes]:
        if toward is Toward.CALLER and len(frame) > PIECE_BYTES // 2:
            if not self._is_first:
                return self._tamper(toward, frame)
            self._is_first = False
        return [frame]


@pytest.mark.parametrize("kind", ["dropped", "repeated", "out of order", "cut"])
def test_a_long_answer_is_whole_or_asked_for_again(cluster: Cluster, kind: str) -> None:
    cluster.views["wide"] = WIDE
    with between(cluster) as (middle, client):
        middle.tamper = Pieces(kind)
        assert [*map(tuple, map(dict.values, client.lookup("wide", ["key"]).to_pylist()))] == WIDE.rows


SEEDS = random.Random(71).sample(range(1 << 30), 3)


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.verify) for seed in SEEDS[1:])])
def test_whatever_he_does_all_threads_have_right_answers_or_errors(cluster: Cluster, seed: int) -> None:
    """Frames of many lookups, one in six of which he treats badly."""
    found: list[object] = []

    def look_up(client: Client, rng: random.Random) -> None:
        for _ in range(10):
            number = rng.randrange(100)
            try:
                row = client.lookup_one("planes", f"N{number}", timeout=SHORT_S)
                found.append(None if row == {"tailnum": f"N{number}", "flights": number} else row)
            except (SealBroken, WorkerLost, WaitTimeout):
                found.append(None)

    with between(cluster) as (middle, client):
        middle.tamper = harm = NowAndThen(random.Random(seed), 6)
        threads = [threading.Thread(target=look_up, args=(client, random.Random(seed + n))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [None] * 40
        assert harm.done
        middle.tamper = untouched
        assert client.lookup_one("planes", "N42") == N42


# Channels, and the handshake ------------------------------------------------------------------------------------


@pytest.mark.parametrize("toward", Toward)
@pytest.mark.parametrize("kind", [*KINDS, "out of order"])
def test_what_comes_over_a_channel_is_what_was_sent_and_its_end_is_told(kind: str, toward: Toward) -> None:
    hub, ours = Hub(), Recorder()
    said = [Message("said", {"number": number}) for number in range(3)]
    with hub.server() as server, Middle(server.address) as middle:
        end = open_channel(peer_of(middle.address), HELLO, ours.receiver, limits=hub.limits)
        theirs, their_ear = hub.accepted()
        end.send(said[0])
        assert their_ear.hear() == said[0]
        theirs.send(said[0])
        assert ours.hear() == said[0]
        middle.tamper = OutOfOrder(toward) if kind == "out of order" else Once(kind, toward)
        for message in said[1:]:
            for each in (end, theirs):
                try:
                    each.send(message)
                except ClusterError:
                    continue
        closings = [ours.closing(), their_ear.closing()]
        assert all(isinstance(error, ClusterError | ProtocolError) for error in closings)
        for ear in (ours, their_ear):
            heard = list(ear.messages.queue)
            assert heard == said[1 : 1 + len(heard)]


NOT_COVERED = {(2, at) for at in range(1, 5)}
"""The number in an answer, which says nothing in a welcome."""


@pytest.mark.parametrize("message", range(3), ids=["greeting", "hello", "answer"])
def test_a_handshake_that_was_changed_opens_nothing(message: int) -> None:
    """Each byte, one after another. What no proof covers changes nothing."""
    with calls_server() as server, Middle(server.address) as middle:
        at, passed = 0, 0

        def change(_: Toward, said: bytes) -> bytes:
            nonlocal passed
            passed += 1
            return flipped(said, at) if passed == message + 1 and at < len(said) else said

        middle.handshake = change
        for at in range(HELLO_FORM.size):
            passed = 0
            try:
                stream, session = dial(client_of(middle.address), Purpose.CALLS, SECONDS_MAX)
            except (AccessDenied, ClusterError, ProtocolError):
                continue
            assert at >= (GREETING.size, HELLO_FORM.size, ANSWER.size)[message] or (message, at) in NOT_COVERED
            line = Line(stream, ANSWER_TERMS, session)
            line.send({"act": "ping", "fields": {}})
            answered = line.receive()
            assert answered is not None
            assert answered.head == {"answer": {}}
            line.close()
