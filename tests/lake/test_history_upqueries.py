"""Upqueries read out of a lake: rows of their keys alone, and how far ahead (partial.read_ahead)."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.errors import CorruptFile
from upriver.ids import Epoch, FlowId
from upriver.lake.history import LONG_READ_ROWS, Heard, UpqueryReader
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.partial.partial_region import Upquery
from upriver.plan.plan import TableSpec, lake_channel
from upriver.protocol.worker_events import KeysRead, KeysUnread, ReadKeys, ReadTakesLong
from upriver.state.runs import describe_run, encode_run, run_schema

VNODES = 16
HEARD_S_MAX = 10.0
"""Seconds for an answer that must come at once."""
TRIPS = TableSpec("trips", pa.schema([("k", pa.int64()), ("epoch", pa.int64())]), ("k",))
CHANNEL = lake_channel("trips", ("k",))
ASKED, OTHER = 5, 2**63
FLOW = FlowId(1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(VNODES, (TRIPS,), {"trips": (("k",),)}), {})
    yield lake
    lake.release()


def publish(lake: OwnedLake, rows: int = 1) -> str:
    """The next epoch, with so many rows of the key that is asked for, and one of the other key; returns the path of its
    run."""
    epoch = Epoch(lake.last_epoch() + 1)
    hash64 = np.array([ASKED] * rows + [OTHER], np.uint64)
    columns = [pa.array(hash64), pa.array([1] * rows + [2]), pa.array([epoch] * (rows + 1))]
    encoded = encode_run(pa.table(columns, schema=run_schema(TRIPS.schema)))
    path = f"tables/{CHANNEL}/{epoch}.arrow"
    lake.files.create(path, encoded)
    runs = {CHANNEL: (describe_run(path, encoded, hash64, VNODES),)}
    lake.publish(Manifest(epoch=epoch, term=lake.term, table="trips", query="q", batch=epoch, runs=runs))
    return path


def heard_of(lake: OwnedLake, through: int) -> Heard | BaseException:
    """What becomes of an upquery for the one key."""
    heard: queue.SimpleQueue[Heard | BaseException] = queue.SimpleQueue()
    reader = UpqueryReader(lake, heard.put)
    upquery = Upquery(1, np.array([ASKED], np.uint64), Epoch(through))
    reader.ask(
        FLOW,
        ReadKeys(generation=3, region="totals", upquery=upquery, ports=((0, CHANNEL),)),
        {CHANNEL: TRIPS},
        heard.put,
    )
    answer = heard.get(timeout=HEARD_S_MAX)
    reader.close()
    return answer


@pytest.mark.parametrize("published_ahead", range(EPOCHS_AHEAD_MAX + 2))
def test_partial_read_ahead_epochs_that_others_may_have_open_are_read(lake: OwnedLake, published_ahead: int) -> None:
    for _ in range(2 + published_ahead):
        publish(lake)
    answer = heard_of(lake, through=2)
    assert isinstance(answer, KeysRead)
    last = 2 + min(published_ahead, EPOCHS_AHEAD_MAX)
    assert (answer.generation, answer.region, answer.number, answer.through) == (3, "totals", 1, last)
    ((port, rows),) = answer.rows
    assert (port, rows.hash64.tolist()) == (0, [ASKED] * last)
    assert rows.rows.column("epoch").to_pylist() == [*range(1, last + 1)]


def test_keys_whose_file_is_damaged_have_no_answer_and_are_read_again_when_it_is_back(lake: OwnedLake) -> None:
    path = Path(lake.root) / publish(lake)
    whole = path.read_bytes()
    heard: queue.SimpleQueue[Heard | BaseException] = queue.SimpleQueue()
    reader = UpqueryReader(lake, heard.put)
    upquery = Upquery(1, np.array([ASKED], np.uint64), Epoch(1))
    wish = ReadKeys(generation=3, region="totals", upquery=upquery, ports=((0, CHANNEL),))
    path.write_bytes(whole[:-8])
    reader.ask(FLOW, wish, {CHANNEL: TRIPS}, heard.put)
    unread = heard.get(timeout=HEARD_S_MAX)
    assert isinstance(unread, KeysUnread)
    assert (unread.generation, unread.region, unread.number) == (3, "totals", 1)
    assert isinstance(unread.error, CorruptFile)
    assert "tables/trips/k/1.arrow" in str(unread.error)
    path.write_bytes(whole)
    reader.ask(FLOW, wish, {CHANNEL: TRIPS}, heard.put)
    assert isinstance(heard.get(timeout=HEARD_S_MAX), KeysRead)
    reader.close()


def asked_for(number: int, key: int) -> ReadKeys:
    upquery = Upquery(number, np.array([key], np.uint64), Epoch(1))
    return ReadKeys(generation=3, region="totals", upquery=upquery, ports=((0, CHANNEL),))


def test_a_read_of_many_rows_says_that_it_takes_long(lake: OwnedLake) -> None:
    publish(lake, rows=LONG_READ_ROWS + 1)
    heard: queue.SimpleQueue[Heard | BaseException] = queue.SimpleQueue()
    reader = UpqueryReader(lake, heard.put)
    reader.ask(FLOW, asked_for(1, ASKED), {CHANNEL: TRIPS}, heard.put)
    assert heard.get(timeout=HEARD_S_MAX) == ReadTakesLong(generation=3, region="totals", number=1)
    answer = heard.get(timeout=HEARD_S_MAX)
    assert isinstance(answer, KeysRead)
    assert len(answer.rows[0][1]) == LONG_READ_ROWS + 1
    reader.close()


def test_a_short_read_overtakes_a_long_one(lake: OwnedLake) -> None:
    """The long one goes on only after the short one has its answer."""
    publish(lake, rows=LONG_READ_ROWS + 1)
    heard: queue.SimpleQueue[Heard | BaseException] = queue.SimpleQueue()
    has_answer = threading.Event()

    def hear(event: Heard) -> None:
        heard.put(event)
        if isinstance(event, ReadTakesLong):
            assert has_answer.wait(HEARD_S_MAX)

    reader = UpqueryReader(lake, heard.put)
    reader.ask(FLOW, asked_for(1, ASKED), {CHANNEL: TRIPS}, hear)
    assert isinstance(heard.get(timeout=HEARD_S_MAX), ReadTakesLong)
    reader.ask(FLOW, asked_for(2, OTHER), {CHANNEL: TRIPS}, hear)
    answers = [heard.get(timeout=HEARD_S_MAX)]
    has_answer.set()
    answers.append(heard.get(timeout=HEARD_S_MAX))
    numbers = [(answer.number, len(answer.rows[0][1])) for answer in answers if isinstance(answer, KeysRead)]
    assert numbers == [(2, 1), (1, LONG_READ_ROWS + 1)]
    reader.close()
