"""What the coordinator and workers say to each other of followers comes out as it went in.

What workers say to each other comes out as it went in, and malformed frames are refused by name.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from coordinator_kit import vnode_map
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.batch import Batch
from upriver.errors import ProtocolError, UnknownView, WaitTimeout, WrongOwner
from upriver.ids import Epoch, FeedId, FlowId, MapVersion, VnodeId, WorkerId
from upriver.migration.messages import (
    Acquire,
    Bye,
    Done,
    Final,
    Kept,
    Mark,
    Redistribute,
    RedistributeMessage,
    RelayedMark,
    RowsSent,
    Scaleup,
    Sets,
    Shutdown,
    WorkerDone,
)
from upriver.migration.messages import Message as BetweenDistributors
from upriver.net import wire
from upriver.net.codec import FrameWriter, decode, decode_from_worker, decode_to_worker, encode, encode_message
from upriver.protocol.messages import (
    CaughtUp,
    DropFlow,
    FeedEnded,
    Follow,
    ForShare,
    FromShare,
    FromWorker,
    Here,
    OfShare,
    Probe,
    Resume,
    TookOver,
    ToShare,
    ToWorker,
    Unfollow,
)
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
    PeerMessage,
    Portion,
    RowsForwardedBack,
)
from upriver.state.failure import ViewFailure

MAPS = {"rows": vnode_map(version=3), "rows/0": vnode_map((1, 1, 0, 0), version=3)}
SLICES = (VnodeId(2), VnodeId(0))
ORDERS: list[ToShare | ToWorker] = [
    Resume(maps=MAPS, reads=SLICES, at=Epoch(7), serve_from=Epoch(8), generation=4),
    Resume(maps={}, reads=(), at=Epoch(0), serve_from=Epoch(0), generation=1),
    Follow(feed=FeedId(5), owner=WorkerId(1), vnodes=SLICES),
    Unfollow(feed=FeedId(5), vnodes=SLICES),
    Probe(probe=9),
    DropFlow(flow=FlowId(3)),
]
REPORTS: list[FromShare | FromWorker] = [
    CaughtUp(feed=FeedId(5), epoch=Epoch(7)),
    FeedEnded(feed=FeedId(5)),
    Here(probe=9),
    TookOver(vnodes=2, keys=1_000, bytes=2**40),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_survives(order: ToShare | ToWorker) -> None:
    order = ForShare(flow=FlowId(3), message=order) if isinstance(order, ToShare) else order
    assert decode_to_worker(wire.decode(wire.encode(encode_message(order)))) == order


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_survives(report: FromShare | FromWorker) -> None:
    report = OfShare(flow=FlowId(3), message=report) if isinstance(report, FromShare) else report
    assert decode_from_worker(wire.decode(wire.encode(encode_message(report)))) == report


NUMBERS = st.integers(0, 2**63 - 1)
REGIONS = st.text()
VERSIONS, VNODES, EPOCHS = NUMBERS.map(MapVersion), NUMBERS.map(VnodeId), NUMBERS.map(Epoch)
WORKERS, FEEDS = NUMBERS.map(WorkerId), NUMBERS.map(FeedId)


def hashes(rows: int) -> st.SearchStrategy[Any]:
    values = st.lists(st.integers(0, 2**64 - 1), min_size=rows, max_size=rows)
    return values.map(lambda given: np.array(given, np.uint64))


def weights(rows: int) -> st.SearchStrategy[Any]:
    values = st.lists(st.sampled_from([1, -1, 3, -(2**62)]), min_size=rows, max_size=rows)
    return st.none() | values.map(lambda given: np.array(given, np.int64))


@st.composite
def tables(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of one of several schemas, sometimes a part of a larger batch; a column may be called ``hash64``."""
    rows = draw(st.integers(0, 4))
    texts = pa.array(draw(st.lists(st.none() | st.text(), min_size=rows, max_size=rows)), pa.string())
    numbers = pa.array(range(rows), draw(st.sampled_from([pa.int64(), pa.int16(), pa.float64(), pa.timestamp("us")])))
    schema = pa.schema([pa.field("hash64", texts.type), pa.field("n", numbers.type)], metadata={"of": "the view"})
    whole = pa.RecordBatch.from_arrays([texts, numbers], schema=schema)
    return whole.slice(draw(st.integers(0, rows)))


BATCHES = tables().flatmap(lambda rows: st.builds(Batch, st.just(rows), hashes(len(rows)), weights(len(rows))))
QUESTIONS = tables().flatmap(
    lambda keys: st.builds(PeerLookup, NUMBERS, WORKERS, EPOCHS, st.just(keys), hashes(len(keys)), st.booleans())
)
KEYS = st.integers(0, 5).flatmap(hashes)
MESSAGES: dict[type, st.SearchStrategy[BetweenDistributors]] = {
    RowsSent: st.builds(RowsSent, version=VERSIONS, rows=st.builds(Portion, EPOCHS, NUMBERS, BATCHES) | QUESTIONS),
    Acquire: st.builds(
        Acquire,
        version=VERSIONS,
        keys=KEYS,
        state=st.lists(tables(), max_size=3).map(tuple),
    ),
    Done: st.builds(Done, version=VERSIONS, vnode=VNODES),
    Kept: st.builds(Kept, version=VERSIONS, vnodes=st.lists(VNODES, max_size=4).map(tuple)),
    Mark: st.builds(Mark, version=VERSIONS, vnode=VNODES),
    RelayedMark: st.builds(RelayedMark, version=VERSIONS, vnode=VNODES, origin=WORKERS),
    Bye: st.builds(Bye, version=VERSIONS),
    Shutdown: st.builds(Shutdown, version=VERSIONS),
    Scaleup: st.builds(Scaleup, version=VERSIONS),
    Sets: st.builds(Sets, version=VERSIONS, whitelist=KEYS, hold=KEYS),
    Final: st.builds(Final, version=VERSIONS, keys=KEYS),
    Redistribute: st.builds(Redistribute, version=VERSIONS, keys=KEYS, following=KEYS, added=KEYS, state=st.none()),
}
ERRORS = st.builds(lambda kind, text: kind(text), st.sampled_from([WrongOwner, UnknownView, WaitTimeout]), st.text())
CONTENTS: dict[type, st.SearchStrategy[PeerMessage]] = {
    ForRegion: st.builds(ForRegion, region=REGIONS, message=st.one_of(*MESSAGES.values()), begun=EPOCHS),
    Hot: st.builds(Hot, region=REGIONS, keys=KEYS, shown=EPOCHS),
    Installed: st.builds(Installed, region=REGIONS, seconds=st.floats(0, 100)),
    PeerLookupAnswered: st.builds(PeerLookupAnswered, ticket=NUMBERS, keys=NUMBERS, rows=tables(), epoch=EPOCHS),
    PeerLookupRefused: st.builds(PeerLookupRefused, ticket=NUMBERS, error=ERRORS),
    PeerLookupGivenUp: st.builds(PeerLookupGivenUp, ticket=NUMBERS),
    BeginFeed: st.builds(BeginFeed, feed=FEEDS, vnodes=st.lists(VNODES, max_size=4).map(tuple)),
    EndFeed: st.builds(EndFeed, feed=FEEDS, vnodes=st.lists(VNODES, max_size=4).map(tuple)),
    Fed: st.builds(
        Fed, feed=FEEDS, region=REGIONS, epoch=EPOCHS, keys=KEYS, state=st.lists(tables(), max_size=3).map(tuple)
    ),
    FailedHere: st.builds(
        FailedHere, view=REGIONS, failure=st.builds(ViewFailure, kind=st.text(max_size=9), error=st.text(max_size=9))
    ),
    FedThrough: st.builds(FedThrough, feed=FEEDS, epoch=EPOCHS),
    RowsForwardedBack: st.builds(RowsForwardedBack, feed=FEEDS),
}
ENVELOPES = st.builds(Envelope, generation=NUMBERS, content=st.one_of(*CONTENTS.values()))


def plain(value: Any) -> Any:
    """The value as something that can be compared: arrays and batches with their types, errors with their texts."""
    if is_dataclass(value):
        return [type(value), *(plain(getattr(value, field.name)) for field in fields(value))]
    match value:
        case np.ndarray():
            return [value.dtype, value.tolist()]
        case pa.RecordBatch():
            return [value.schema, value.schema.metadata, value.to_pylist()]
        case Exception():
            return [type(value), str(value)]
        case tuple():
            return [plain(item) for item in value]
    return value


def over_the_wire(*envelopes: Envelope) -> tuple[Envelope, ...]:
    return decode(wire.decode(wire.encode(encode(envelopes))))


def said_in_region(message: BetweenDistributors) -> Envelope:
    return Envelope(flow=FlowId(1), generation=2, content=ForRegion(region="planes", message=message))


def test_there_is_a_case_here_for_all_that_workers_say() -> None:
    assert set(CONTENTS) == set(get_args(PeerMessage))
    said = {*get_args(BetweenDistributors), *get_args(RedistributeMessage)}
    assert set(MESSAGES) == said - {WorkerDone}  # which only the published rules have


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(st.data())
def test_a_message_between_distributors_survives(kind: type, data: st.DataObject) -> None:
    envelope = said_in_region(data.draw(MESSAGES[kind]))
    assert plain(over_the_wire(envelope)) == plain((envelope,))


@pytest.mark.parametrize("kind", CONTENTS, ids=lambda kind: kind.__name__)
@given(st.data())
def test_an_envelope_survives(kind: type, data: st.DataObject) -> None:
    envelope = Envelope(
        flow=FlowId(data.draw(NUMBERS)), generation=data.draw(NUMBERS), content=data.draw(CONTENTS[kind])
    )
    assert plain(over_the_wire(envelope)) == plain((envelope,))


@given(st.lists(ENVELOPES, max_size=6))
def test_a_frame_keeps_all_envelopes_in_order(envelopes: list[Envelope]) -> None:
    assert plain(over_the_wire(*envelopes)) == plain(tuple(envelopes))


def test_small_messages_bring_no_arrow_with_them() -> None:
    small = [said_in_region(Done(version=MapVersion(7), vnode=VnodeId(vnode))) for vnode in range(500)]
    message = encode(small)
    assert message.batches == ()
    assert wire.encode(message).size < 60 * len(small)
    assert over_the_wire(*small) == tuple(small)


def test_all_hashes_of_a_frame_share_one_batch() -> None:
    keys = [np.arange(start, start + 3, dtype=np.uint64) for start in range(10)]
    message = encode(said_in_region(Acquire(version=MapVersion(7), keys=those, state=())) for those in keys)
    assert [batch.num_rows for batch in message.batches] == [30]


def test_arrays_are_aligned_wherever_a_frame_lies() -> None:
    envelope = said_in_region(Acquire(version=MapVersion(7), keys=np.arange(9, dtype=np.uint64), state=()))
    frame = wire.encode(encode([envelope])).to_pybytes()
    for shift in range(8):
        (arrived,) = decode(wire.decode(pa.py_buffer(b"\0" * shift + frame).slice(shift)))
        assert isinstance(arrived.content, ForRegion)
        assert isinstance(arrived.content.message, Acquire)
        assert arrived.content.message.keys.flags.aligned
        assert plain(arrived) == plain(envelope)


def test_a_frame_s_size_is_known_before_it_is_taken() -> None:
    frame = FrameWriter()
    rows = pa.RecordBatch.from_pydict({"n": np.arange(1000)})
    batch = Batch(rows, np.arange(1000, dtype=np.uint64), np.ones(1000, np.int64))
    frame.add(said_in_region(RowsSent(version=MapVersion(7), rows=Portion(Epoch(1), 0, batch))))
    assert frame.messages == 1
    assert 3 * 8000 < frame.bytes < 3 * 8000 + 200
    assert len(frame.take().batches) == 2
    assert (frame.messages, frame.bytes, frame.take().batches) == (0, 0, ())


# What has no form ------------------------------------------------------------------------------------------------

NO_KEYS = np.empty(0, np.uint64)
NO_ROWS = pa.RecordBatch.from_pydict({"n": []})


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (WorkerDone(version=MapVersion(7)), "WorkerDone is no message between distributors"),
        (RowsSent(version=MapVersion(7), rows=Batch(NO_ROWS, np.empty(0, np.uint64))), "Batch is no kind of rows"),
        (
            Acquire(version=MapVersion(7), keys=np.arange(2), state=()),  # type: ignore[arg-type]
            "int64 where hash64s belong",
        ),
        (Acquire(version=MapVersion(7), keys=NO_KEYS, state=({},)), "dict where a record batch"),
        (
            Redistribute(version=MapVersion(7), keys=NO_KEYS, following=NO_KEYS, added=NO_KEYS, state=()),
            "tuple where nothing belongs",
        ),
    ],
    ids=["WorkerDone", "rows", "keys", "state", "state where none belongs"],
)
def test_what_has_no_form_is_refused_where_it_is_said(message: BetweenDistributors, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        encode([said_in_region(message)])


def done(version: Any = 7, vnode: Any = 3) -> list[Any]:
    return [1, 2, ["ForRegion", ["planes", ["Done", [version, vnode]], 0]]]


MALFORMED = {
    "another kind": (wire.Message("ping"), "'ping', which no worker knows"),
    "nothing said": (wire.Message("peer"), "None where a list belongs"),
    "no envelope": (wire.Message("peer", {"said": [7]}), "envelope 0 of a frame is malformed"),
    "the second": (wire.Message("peer", {"said": [done(), [1, 2]]}), "envelope 1 of a frame is malformed"),
    "no generation": (
        wire.Message("peer", {"said": [[1, True, ["Installed", ["v", 0.1]]]]}),
        "True where a whole number",
    ),
    "no flow": (wire.Message("peer", {"said": [["1", 2, ["Installed", ["v", 0.1]]]]}), "'1' where a whole number"),
    "text": (wire.Message("peer", {"said": [done(vnode="3")]}), "ForRegion: Done: '3' where a whole number belongs"),
    "a field short": (wire.Message("peer", {"said": [[1, 2, ["Installed", []]]]}), "Installed: zip"),
    "unknown content": (wire.Message("peer", {"said": [[1, 2, ["os.system", ["ls"]]]]}), "'os.system' is no content"),
    "kind of another": (wire.Message("peer", {"said": [[1, 2, ["Done", [7, 3]]]]}), "'Done' is no content"),
    "a list as kind": (wire.Message("peer", {"said": [[1, 2, [[], []]]]}), "unhashable"),
    "no error": (
        wire.Message("peer", {"said": [[1, 2, ["PeerLookupRefused", [1, "x"]]]]}),
        "'x' where an error belongs",
    ),
    "no text": (wire.Message("peer", {"said": [[1, 2, ["Installed", [5, 0.1]]]]}), "Installed: 5 where text belongs"),
    "no seconds": (wire.Message("peer", {"said": [[1, 2, ["Installed", ["v", "1"]]]]}), "'1' where seconds belong"),
    "no rows": (
        wire.Message("peer", {"said": [[1, 2, ["PeerLookupAnswered", [1, 1, None, 4]]]]}),
        "more batches are announced",
    ),
    "rows left": (wire.Message("peer", {"said": []}, (NO_ROWS,)), "more rows came in a frame than it announces"),
    "no words": (wire.Message("peer", {"said": [], "words": 1}, (NO_ROWS,)), "first batch is not its words"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_frame_is_refused_by_name(case: str) -> None:
    message, match = MALFORMED[case]
    with pytest.raises(ProtocolError, match=match):
        decode(message)


def altered(envelope: Envelope, alter: Callable[[dict[str, Any]], None]) -> wire.Message:
    message = wire.decode(wire.encode(encode([envelope])))
    said = dict(message.fields)
    alter(said)
    return wire.Message(message.kind, said, message.batches)


def portion(rows: int) -> Envelope:
    batch = Batch(pa.RecordBatch.from_pydict({"n": range(rows)}), np.arange(rows, dtype=np.uint64))
    return said_in_region(RowsSent(version=MapVersion(7), rows=Portion(Epoch(1), 0, batch)))


def rows_of(said: dict[str, Any]) -> list[Any]:
    """The fields of the Portion: epoch, port, and the batch's rows, hash64 and weight."""
    fields: list[Any] = said["said"][0][2][1][1][1][1][1]
    return fields


@pytest.mark.parametrize(
    ("count", "match"), [(4, "4 words are announced, and 3 are left"), (2, "3 rows with 2 hash64s"), (-1, "-1 words")]
)
def test_hashes_that_do_not_fit_the_rows_are_refused(count: int, match: str) -> None:
    def alter(said: dict[str, Any]) -> None:
        rows_of(said)[2][1] = count

    with pytest.raises(ProtocolError, match=match):
        decode(altered(portion(3), alter))


def test_keys_without_a_hash_are_refused() -> None:
    keys = pa.RecordBatch.from_pydict({"k": ["a", "b"]})
    question = PeerLookup(1, WorkerId(0), Epoch(0), keys, np.arange(1, dtype=np.uint64), False)
    message = encode([said_in_region(RowsSent(version=MapVersion(7), rows=question))])
    with pytest.raises(ProtocolError, match="PeerLookup: 2 keys with 1 hash64s"):
        decode(message)


@given(st.lists(ENVELOPES, min_size=1, max_size=3), st.data())
def test_a_damaged_frame_is_read_or_refused_and_nothing_else(envelopes: list[Envelope], data: st.DataObject) -> None:
    frame = bytearray(wire.encode(encode(envelopes)).to_pybytes())
    head_bytes = 4 + int.from_bytes(frame[:4], "little")
    frame[data.draw(st.integers(4, head_bytes - 1))] = data.draw(st.integers(0, 127))
    try:
        arrived = decode(wire.decode(pa.py_buffer(bytes(frame))))
    except ProtocolError:
        return
    assert all(isinstance(envelope, Envelope) for envelope in arrived)
