"""The rows of single keys, out of all runs: those that reading everything and leaving out the rest gives."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from store_kit import HangingStore

from upriver.engine.batch import Batch
from upriver.errors import CorruptFile, ProtocolError
from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.files import Files
from upriver.lake.history import MERGED_TOGETHER, TIDIED_RUNS_MAX, KeyHistory, Merging
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.runs import FEW_KEYS_MAX
from upriver.lake.spans import single
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema

FLIGHTS = TableSpec(
    "flights", pa.schema([("tail", pa.string()), ("number", pa.int64()), ("via", pa.list_(pa.string()))]), ("tail",)
)
PLANES = TableSpec("planes", pa.schema([("number", pa.int32())]), ("number",))
TABLES = {table.name: table for table in (FLIGHTS, PLANES)}
CHANNELS = {"flights": lake_channel("flights", ("tail",)), "planes": lake_channel("planes", ("number",))}
FLIGHTS_IN, ADDED = CHANNELS["flights"], lake_channel("flights", ("number",))
Rows = list[tuple[int, dict[str, object]]]
Published = tuple[str, list[list[int]]]
"""An epoch: its table, and the hashes of each run."""
READ_S_MAX = 30.0
"""Seconds for a read that no other one holds up."""
Ask = tuple[str, set[int], float]
"""Of a table some keys, through an epoch in so large a part of all."""


def own(root: str, vnodes: int = 16, files: Files | None = None) -> OwnedLake:
    record = LakeRecord(vnodes, (FLIGHTS, PLANES), {"flights": (("tail",),), "planes": (("number",),)})
    return OwnedLake(root, record, {}, files)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    lake = own(str(tmp_path / "lake"))
    yield lake
    lake.release()


def write_run(lake: OwnedLake, channel: Channel, name: str, hashes: list[int], vnodes: int = 16) -> RunInfo:
    """A run whose rows say which they are: no two rows of the lake are equal."""
    table = TABLES[channel.partition("/")[0]]
    hash64 = np.array(sorted(hashes), np.uint64)
    first = len(list(Path(lake.root).rglob("*.arrow"))) * 1000
    rows = [
        {"tail": None if number % 3 == 0 else f"{name}-{number}", "number": number, "via": [name] * (number % 2)}
        for number in range(first, first + len(hashes))
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in table.schema]
    encoded = encode_run(pa.table([pa.array(hash64), *columns], schema=run_schema(table.schema)))
    path = f"tables/{channel}/{name}.arrow"
    lake.files.create(path, encoded)
    return describe_run(path, encoded, hash64, vnodes)


def publish(lake: OwnedLake, table: str, *runs: list[int], vnodes: int = 16) -> tuple[RunInfo, ...]:
    """The next epoch, of runs with these hashes."""
    epoch = Epoch(lake.last_epoch() + 1)
    channel = CHANNELS[table]
    infos = tuple(write_run(lake, channel, f"{epoch}-{part}", run, vnodes) for part, run in enumerate(runs))
    manifest = Manifest(epoch=epoch, term=lake.term, table=table, query="q", batch=epoch, runs={channel: infos})
    lake.publish(manifest)
    return infos


def by_reading(lake: Lake, table: str, keys: set[int], through: int, vnodes: int) -> Rows:
    """The same from all rows that the lake has."""
    everywhere = frozenset(map(VnodeId, range(vnodes)))
    found: Rows = []
    for epoch in range(1, through + 1):
        for rows in lake.read(lake.manifest(Epoch(epoch)), CHANNELS[table], everywhere, TABLES[table]):
            user = rows.drop_columns(["hash64"]).to_pylist()
            found += [row for row in zip(rows.column(0).to_pylist(), user, strict=True) if row[0] in keys]
    return sorted(found, key=lambda row: row[0])


def rows_of(history: KeyHistory, table: str, keys: set[int], through: int) -> Rows:
    found = batch_of(history, table, keys, through)
    assert found.rows.schema.equals(TABLES[table].schema)
    assert found.hash64.dtype == np.uint64
    assert found.weight is None
    return list(zip(found.hash64.tolist(), found.rows.to_pylist(), strict=True))


def batch_of(history: KeyHistory, table: str, keys: set[int], through: int) -> Batch:
    return history.rows_of(CHANNELS[table], TABLES[table], np.array(sorted(keys), np.uint64), Epoch(through))


EDGES = [0, 1, 2**60 - 1, 2**60, 2**63, 2**64 - 2, 2**64 - 1]
HASHES = st.sampled_from([*EDGES, *(number * 0x9E3779B97F4A7C15 % 2**64 for number in range(20))])
EPOCHS = st.lists(
    st.tuples(st.sampled_from(["flights", "planes"]), st.lists(st.lists(HASHES, max_size=12), max_size=3))
)
ASKS = st.tuples(
    st.sampled_from(["flights", "planes"]), st.sets(HASHES | st.integers(0, 2**64 - 1), max_size=24), st.floats(0, 1)
)


@settings(derandomize=True, deadline=None, max_examples=examples(20))
@given(
    vnodes=st.sampled_from([1, 16, 1024]),
    runs_max=st.integers(1, 9),
    bytes_max=st.sampled_from([0, 2_000, 1 << 20]),
    merging=st.builds(
        Merging,
        together=st.integers(2, 3),
        small_bytes=st.sampled_from([0, 1_300, 1 << 20]),
        bytes_max=st.sampled_from([0, 200, 1 << 20]),
        tidied_max=st.integers(1, 9),
    ),
    turns=st.lists(st.tuples(EPOCHS.map(lambda epochs: epochs[:4]), st.lists(ASKS, max_size=4)), max_size=3),
)
def test_rows_of_keys_are_those_that_reading_everything_finds(
    vnodes: int, runs_max: int, bytes_max: int, merging: Merging, turns: list[tuple[list[Published], list[Ask]]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        lake = own(root, vnodes)
        history = KeyHistory(Lake(root), runs_max, bytes_max, merging)
        for epochs, asks in turns:
            for table, runs in epochs:
                publish(lake, table, *runs, vnodes=vnodes)
            for table, keys, part in asks:
                through = round(part * lake.last_epoch())
                assert rows_of(history, table, keys, through) == by_reading(lake, table, keys, through, vnodes)
                assert len(history.opened) <= runs_max
                assert history.opened.bytes <= bytes_max
        lake.release()


@pytest.mark.parametrize("keys", [1, FEW_KEYS_MAX, FEW_KEYS_MAX + 1, 900, 3000])
def test_a_long_run_is_searched_as_well_as_a_short_one(lake: OwnedLake, keys: int) -> None:
    spacing = 2**64 // 1000
    publish(lake, "flights", [number * spacing for number in range(1000) for _ in range(number % 3)])
    publish(lake, "flights", [7 * spacing])
    wanted = {(7 + number) * spacing // 2 % 2**64 for number in range(7, 7 + keys)}  # every other one is absent
    assert rows_of(KeyHistory(lake), "flights", wanted, 2) == by_reading(lake, "flights", wanted, 2, 16)


def test_through_cuts_epochs(lake: OwnedLake) -> None:
    for hashes in ([5, 5], [6], [5, 6]):
        publish(lake, "flights", hashes)
    history = KeyHistory(lake)
    rows = {
        through: [row["number"] for _, row in rows_of(history, "flights", {5}, through)] for through in (3, 0, 1, 2)
    }
    assert rows == {3: [0, 1, 2000], 0: [], 1: [0, 1], 2: [0, 1]}


def test_a_manifest_is_read_once(lake: OwnedLake) -> None:
    publish(lake, "flights", [5])
    publish(lake, "planes", [5])
    history = KeyHistory(lake)
    before = rows_of(history, "flights", {5}, 1)
    lake.files.remove("epochs/000000000001.json")
    assert rows_of(history, "flights", {5}, 2) == before != []
    with pytest.raises(CorruptFile, match=r"epochs/000000000001\.json: the file is gone"):
        rows_of(KeyHistory(lake), "flights", {5}, 2)


def test_an_index_that_was_added_is_read_once_it_is_complete(lake: OwnedLake) -> None:
    publish(lake, "flights", [5])
    keys, history = np.array([7], np.uint64), KeyHistory(lake)
    with pytest.raises(ProtocolError, match=f"{ADDED} was asked for before the index was complete"):
        history.rows_of(ADDED, FLIGHTS, keys, Epoch(1))
    lake.supplement(ADDED, single(1), [write_run(lake, ADDED, "added", [7, 8])])
    lake.complete("flights", ("number",))
    assert history.rows_of(ADDED, FLIGHTS, keys, Epoch(1)).rows["number"].to_pylist() == [1000]
    assert len(rows_of(history, "flights", {5}, 1)) == 1


def test_nothing_is_asked_of_a_root_without_a_lake(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=r"no app\.json"):
        rows_of(KeyHistory(Lake(str(tmp_path))), "flights", {5}, 0)


# Files ----------------------------------------------------------------------------------------------------------


def flip(lake: Lake, run: RunInfo, place: int) -> None:
    """As a fault of the disk does it, in the file itself: also under a mapping."""
    with Path(lake.root, run.path).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("place", [0, 300, 700])
def test_a_damaged_run_is_named(lake: OwnedLake, place: int) -> None:
    publish(lake, "flights", [5])
    (damaged,) = publish(lake, "flights", [5, 6])
    flip(lake, damaged, place)
    history = KeyHistory(lake)
    for _ in range(2):
        with pytest.raises(CorruptFile, match=f"^{damaged.path}: bytes 0 to .* where the run says"):
            rows_of(history, "flights", {5}, 2)
    assert len(rows_of(history, "flights", {5}, 1)) == 1


def test_a_run_that_cannot_hold_the_keys_is_not_opened(lake: OwnedLake) -> None:
    low, high = publish(lake, "flights", [5], [2**63])
    lake.files.remove(high.path)
    history = KeyHistory(lake)
    assert len(rows_of(history, "flights", {5, 2**62}, 1)) == 1
    assert low in history.opened
    with pytest.raises(CorruptFile, match=f"{high.path}: the file is gone"):
        rows_of(history, "flights", {5, 2**63 + 1}, 1)


def test_a_run_that_is_opened_again_has_kept_its_length(lake: OwnedLake) -> None:
    (run,) = publish(lake, "flights", [5])
    history = KeyHistory(lake, bytes_max=0)
    before = rows_of(history, "flights", {5}, 1)
    assert rows_of(history, "flights", {5}, 1) == before
    path = Path(lake.root, run.path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match=f"^{run.path}: {run.bytes - 1} bytes where the manifest says {run.bytes}"):
        rows_of(history, "flights", {5}, 1)


@pytest.mark.parametrize("keys", [{5}, set(range(FEW_KEYS_MAX + 1))])
def test_the_rows_are_copies(lake: OwnedLake, keys: set[int]) -> None:
    (run,) = publish(lake, "flights", [5, 5, 6])
    history = KeyHistory(lake)
    rows_of(history, "flights", keys, 1)
    assert run in history.opened
    found = batch_of(history, "flights", keys, 1)
    before = found.rows.to_pylist(), found.hash64.tolist()
    for place in range(run.bytes):
        flip(lake, run, place)
    assert (found.rows.to_pylist(), found.hash64.tolist()) == before


def test_what_was_read_least_recently_is_let_go(lake: OwnedLake) -> None:
    runs = publish(lake, "flights", [5], [2**62], [2**63])
    history = KeyHistory(lake, runs_max=2)
    for key in (5, 2**62, 5, 2**63):
        assert len(rows_of(history, "flights", {key}, 1)) == 1
    assert [run in history.opened for run in runs] == [True, False, True]
    assert history.opened.bytes == runs[0].bytes + runs[2].bytes


@pytest.mark.parametrize("vnodes", [1, 64, 256, 4096])
def test_a_run_is_opened_for_keys_of_any_vnode_that_it_has(tmp_path: Path, vnodes: int) -> None:
    other = own(str(tmp_path / "other"), vnodes)
    hashes = [number << 54 for number in range(1024)]
    publish(other, "flights", *([value] for value in hashes[::97]), vnodes=vnodes)
    for key in hashes[::97]:
        assert [value for value, _ in rows_of(KeyHistory(other), "flights", {key}, 1)] == [key]
    other.release()


def test_a_run_too_large_to_stay_open_sends_no_other_away(lake: OwnedLake) -> None:
    small, large = publish(lake, "flights", [5], [5] * 100)
    history = KeyHistory(lake, bytes_max=large.bytes - 1)
    assert len(rows_of(history, "flights", {5}, 1)) == 101
    assert (small in history.opened, large in history.opened) == (True, False)


def test_the_runs_that_are_open_are_read_before_others_are_opened(lake: OwnedLake) -> None:
    runs = publish(lake, "flights", [5], [5], [5])
    history = KeyHistory(lake, runs_max=2)
    before = rows_of(history, "flights", {5}, 1)
    for run in runs[1:]:
        assert run in history.opened
        lake.files.remove(run.path)
    assert rows_of(history, "flights", {5}, 1) == before


# Small runs -----------------------------------------------------------------------------------------------------


def test_many_small_runs_are_few_to_look_into(lake: OwnedLake) -> None:
    epochs = MERGED_TOGETHER**2 + MERGED_TOGETHER + 1
    runs = [publish(lake, "flights", [number % 7, 2**62 + number])[0] for number in range(epochs)]
    history = KeyHistory(lake)
    for _ in range(0, epochs, TIDIED_RUNS_MAX):
        assert rows_of(history, "flights", {3}, epochs) == by_reading(lake, "flights", {3}, epochs, 16)
    assert [run in history.opened for run in runs] == [False] * (epochs - 1) + [True]
    for through in (1, MERGED_TOGETHER, epochs // 2, epochs - 1):
        assert rows_of(history, "flights", {3}, through) == by_reading(lake, "flights", {3}, through, 16)


def test_a_damaged_run_that_is_not_asked_for_does_no_harm(lake: OwnedLake) -> None:
    runs = [publish(lake, "flights", [5] if number else [2**63])[0] for number in range(MERGED_TOGETHER)]
    flip(lake, runs[0], 700)
    history = KeyHistory(lake)
    assert rows_of(history, "flights", {5}, MERGED_TOGETHER) != []
    with pytest.raises(CorruptFile, match=f"^{runs[0].path}: bytes"):
        rows_of(history, "flights", {2**63}, MERGED_TOGETHER)
    assert len(rows_of(history, "flights", {5}, MERGED_TOGETHER)) == MERGED_TOGETHER - 1


def test_an_edge_whose_manifests_do_not_come_holds_up_no_other() -> None:
    store = HangingStore()
    lake = own("memory://lake", files=store)
    publish(lake, "flights", [5], [5, 6])
    publish(lake, "planes", [5, 7])
    history, store.slow = KeyHistory(lake), "epochs/"
    with ThreadPoolExecutor(1) as threads:
        flights = threads.submit(rows_of, history, "flights", {5}, 2)
        assert store.hangs.wait(READ_S_MAX)
        assert rows_of(history, "planes", {5}, 2) == by_reading(lake, "planes", {5}, 2, 16) != []
        assert not flights.done()
        store.goes_on.set()
        assert flights.result(READ_S_MAX) == by_reading(lake, "flights", {5}, 2, 16) != []


def test_threads_find_the_rows_of_their_keys_beside_each_other(lake: OwnedLake) -> None:
    epochs = 24
    for epoch in range(epochs):
        publish(lake, ("flights", "planes")[epoch % 2], [5, 6, epoch])
    history = KeyHistory(lake, runs_max=2, merging=Merging(together=2, small_bytes=1 << 20, bytes_max=1 << 20))
    asks = [(table, {5, 6 + through}, through) for through in range(epochs + 1) for table in TABLES]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda ask: rows_of(history, *ask), asks, timeout=READ_S_MAX))
    assert found == [by_reading(lake, *ask, 16) for ask in asks]
