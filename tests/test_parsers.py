"""No message of another process ends this one, whatever parser reads it (tests/support/fuzzed_parsers.py).

Faults that were found so are kept here as single messages.
"""

import json
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from channel_kit import Recorder
from checkpoint_kit import FIRST, PLACE, a_lake, take
from coordinator_kit import PLAN, TABLE, vnode_map
from fuzz_kit import DEEP, MEMORY_BYTES_MAX, Parser, campaign, check
from segments_kit import BY_K, EVENTS, owned, publish
from server_kit import KEYS, SECONDS_MAX, client_of, peer_of
from soak import drawn_seed, examples

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import CorruptFile, ProtocolError, UpriverError
from upriver.hashing import HASH64_MAX
from upriver.ids import Epoch, Hash64, Term, VnodeId
from upriver.lake.checkpoints import checkpoint_path, load
from upriver.lake.lake import Lake, OwnedLake, _with_seal, address_path, epoch_path
from upriver.lake.runs import UNASKED_BYTES_MAX, VerifiedFile
from upriver.net.channel import PING, HeartbeatMonitor, open_channel
from upriver.net.remote import Connection
from upriver.net.server import Listen
from upriver.net.wire import Message
from upriver.records import typed
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import REGISTER, CoordinatorService
from upriver.state.changes import ChangePosition
from upriver.state.runs import RunInfo
from upriver.vnodes import VNODES_MAX

MESSAGES = 150
"""Of each parser, in a campaign."""
RUN = RunInfo("tables/t/k/x.arrow", 3, 500, "0" * 16, ((VnodeId(1), 2), (VnodeId(3), 1)), 4096)


@pytest.mark.verify
def test_malformed_messages_are_parsed_or_refused(tmp_path: Path) -> None:
    campaign(tmp_path, drawn_seed("malformed messages"), MESSAGES)


@pytest.mark.verify
@pytest.mark.long
def test_very_many_malformed_messages_are_parsed_or_refused(tmp_path: Path) -> None:
    for seed in range(first := drawn_seed("malformed messages"), first + examples(1)):
        campaign(tmp_path, seed, 20 * MESSAGES)


# The harness itself -------------------------------------------------------------------------------------------------


def test_a_parser_that_refuses_by_another_error_or_without_a_word_is_found() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        check(Parser(parse=int), b"x")

    def silent(_: bytes) -> None:
        raise UpriverError

    with pytest.raises(AssertionError, match="says nothing"):
        check(Parser(parse=silent), b"")
    assert check(Parser(parse=len), b"")


def test_a_case_is_the_same_in_each_run() -> None:
    parser = Parser(parse=len, valid=[b"a message", b"another"], json=[{"a": [1, {"b": "c"}]}])
    made = [[parser.message(Random(f"1/x/{number}")) for number in range(200)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 100


# Records of a lake --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Several:
    whole: int
    share: float
    name: str | None
    ends: tuple[tuple[int, str], ...]
    of: dict[str, int]
    hash: Hash64


GOOD = Several(1, 0.5, None, ((1, "a"),), {"v": 2}, Hash64(HASH64_MAX))


@pytest.mark.parametrize(
    "wrong",
    [
        *(("whole", value) for value in (True, 1.0, "1", None, 1 << 63, -(1 << 63) - 1)),
        *(("share", value) for value in (float("nan"), float("inf"), "1", 10**400, False)),
        *(("name", value) for value in (1, b"x")),
        *(("ends", value) for value in ("a", ((1,),), ((1, 2),), (("a", "a"),))),
        *(("of", value) for value in ("a", {"v": "2"}, {"v": None})),
        *(("hash", value) for value in (-1, 1 << 64, "1", None)),
    ],
    ids=repr,
)
def test_a_field_of_another_type_is_refused(wrong: tuple[str, Any]) -> None:
    assert typed(GOOD) is GOOD
    with pytest.raises(ValueError, match=f"{wrong[0]}="):
        typed(replace(GOOD, **dict([wrong])))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    with owned(tmp_path / "lake") as lake:
        publish(lake, EVENTS, [(1, 2), (3, 4)])
        lake.announce("127.0.0.1:1")
        yield lake


def write(lake: OwnedLake, path: str, record: bytes) -> None:
    """A file with this text as its record, and the right checksum."""
    (Path(lake.root) / path).write_bytes(_with_seal(record))


NO_RECORDS = [b"[1]", b"1", b"{", b"\xff", b"null", b"[" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"{}"]


@pytest.mark.parametrize("text", NO_RECORDS, ids=lambda text: repr(text[:6]))
def test_a_file_without_a_record_of_its_kind_is_damaged_and_named(lake: OwnedLake, text: bytes) -> None:
    for path, read in (
        (epoch_path(Epoch(1)), partial(Lake.manifest, epoch=Epoch(1))),
        (address_path(Term(1)), Lake.announced),
        ("app.json", Lake.record),
    ):
        write(lake, path, text)
        with pytest.raises(CorruptFile, match=path):
            read(Lake(lake.root))


@pytest.mark.parametrize(
    "field", ["epoch", "term", "table", "query", "batch", "runs", "committed_at", "path", "rows", "bytes", "vnode_rows"]
)
def test_a_manifest_with_a_value_of_another_kind_is_damaged(lake: OwnedLake, field: str) -> None:
    path = epoch_path(Epoch(1))
    record = lake.read_record(path)
    (record if field in record else record["runs"][BY_K][0])[field] = []
    write(lake, path, json.dumps(record).encode())
    with pytest.raises(CorruptFile, match=path):
        Lake(lake.root).manifest(Epoch(1))


@pytest.mark.parametrize(
    "wrong", [{"rows": 4}, {"rows": -3}, {"bytes": -1}, {"vnode_rows": [[1, -1], [3, 4]]}], ids=repr
)
def test_a_run_whose_rows_do_not_add_up_is_refused(wrong: dict[str, Any]) -> None:
    assert RunInfo.from_json(RUN.to_json()) == RUN
    with pytest.raises(ValueError, match="rows in vnodes"):
        RunInfo.from_json({**RUN.to_json(), **wrong})


def test_packed_rows_unfold_to_no_more_than_all_vnodes_have() -> None:
    bomb = b64encode(zlib.compress(bytes(MEMORY_BYTES_MAX // 4))).decode()
    assert len(bomb) < MEMORY_BYTES_MAX // 1000
    tracemalloc.start()
    with pytest.raises(ValueError, match="rows in vnodes"):
        RunInfo.from_json({**RUN.to_json(), "vnode_rows": bomb})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * 8 * VNODES_MAX


def test_a_length_that_a_file_does_not_have_takes_no_memory() -> None:
    for claimed in (UNASKED_BYTES_MAX + 1, 1 << 50):
        for block_bytes in (0, 4096):
            with pytest.raises(CorruptFile, match=r"500 bytes where the manifest says"):
                VerifiedFile(replace(RUN, bytes=claimed, block_bytes=block_bytes), lambda _: 500)


@pytest.mark.parametrize(
    "span", [[0, 1 << 50, 1, 2, "x"], [-1, 5, 1, 2, "x"], [0, 0, 1, 2, "x"], [0, 5, 1, None, "x"], [0, 5, 1, -2, "x"]]
)
def test_a_checkpoint_s_spans_lie_in_its_file_and_among_the_hashes(tmp_path: Path, span: list[Any]) -> None:
    for lake in a_lake(tmp_path):
        take(lake, 5, None, FIRST)
        path = checkpoint_path(PLACE, Epoch(5))
        record = lake.read_record(path)
        record["files"][0]["spans"] = [span]
        write(lake, path, json.dumps(record).encode())
        with pytest.raises(CorruptFile, match=r"manifest\.json: not the manifest of a checkpoint"):
            load(lake, PLACE, Epoch(5))


POSITION = {"after": 3, "skip": 1, "first": None}

# Messages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"beat": 1}, {"beat": "1", "heard": 1}, {"beat": 1, "heard": [None]}])
def test_a_malformed_heartbeat_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=PING):
        HeartbeatMonitor().pinged(fields)


@pytest.mark.parametrize(
    "wrong", [{}, [], None, *({name: value} for name in POSITION for value in ("1", True, -1, 1 << 63))], ids=repr
)
def test_a_malformed_position_is_refused(wrong: Any) -> None:
    assert ChangePosition.from_json(POSITION).to_json() == POSITION
    with pytest.raises(ProtocolError, match="no position"):
        ChangePosition.from_json({**POSITION, **wrong} if wrong else wrong)


@pytest.fixture
def coordinator() -> Iterator[CoordinatorService]:
    loop = CoordinatorLoop(CoordinatorMachine(vnode_map(), (PLAN,)))
    loop.start()
    service = CoordinatorService(loop, (PLAN,), (TABLE,), Listen(), KEYS)
    yield service
    service.stop()
    loop.stop(SECONDS_MAX)


HELLO = {"worker": 0, "life": 1, "attempt": 0, "address": "127.0.0.1:1", "instance": "x", "died_in": None}


@pytest.mark.parametrize(
    "wrong", [*({name: None} for name in HELLO if name != "died_in"), {"worker": [1]}, {"life": -1}], ids=repr
)
def test_a_malformed_registration_is_refused(coordinator: CoordinatorService, wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="a worker has registered with"):
        open_channel(peer_of(coordinator.address), Message(REGISTER, {**HELLO, **wrong}), Recorder().receiver)


def test_a_call_without_one_of_its_fields_is_told_which(coordinator: CoordinatorService) -> None:
    with Connection(client_of(coordinator.address)) as connection:
        for action, lacks in (("explain", "view"), ("source", "name"), ("evict", "view"), ("rescale_report", "ticket")):
            with pytest.raises(ProtocolError, match=f"lacks the field '{lacks}'"):
                connection.act(action, {}, timeout=SECONDS_MAX)
        wrong: tuple[Any, ...] = ([], "x", {"x": 1}, {"1": None})
        for moves in wrong:
            asked = {"workers": None, "moves": moves, "strategy": "icadd", "keys_max": None}
            with pytest.raises(UpriverError, match="moves"):
                connection.act("rescale", asked, timeout=SECONDS_MAX)
