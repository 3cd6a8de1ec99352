"""Parts of a run are what all of it says they are, whatever happens to its file: right, or an error that names it."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from runs_kit import PATH, before_there_were_blocks, run_table, run_tables
from soak import examples
from store_kit import files_in_store_at

from upriver.errors import CorruptFile
from upriver.ids import Epoch, VnodeId
from upriver.lake.files import Files, LocalFiles
from upriver.lake.history import KeyHistory
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.runs import FEW_KEYS_MAX, STRETCH_BYTES_MAX, WHOLE_BYTES_MAX, RunReader, VerifiedFile
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.runs import BLOCK_BYTES, RunInfo, cut, describe_run, encode_run, ends_in, run_schema

MANY = settings(derandomize=True, deadline=None, max_examples=examples(30))
BLOCKS = st.sampled_from([8, 64, 200 * 8])
SEED = 33


class Bytes:
    """A file in memory. ``read``: how many bytes were asked for."""

    def __init__(self, content: pa.Buffer) -> None:
        self.content = bytearray(content)
        self.read = 0

    def read_into(self, parts: Iterable[tuple[int, memoryview]]) -> int:
        for first, target in parts:
            there = self.content[first : first + len(target)]
            target[: len(there)] = there
            self.read += len(target)
        return len(self.content)


def opened(
    table: pa.Table, block_bytes: int, request_bytes_min: int = 1, wanted: pa.Schema | None = None
) -> tuple[RunReader, Bytes]:
    """A run of which only what is used is read, however short it is. wanted: the schema to give its rows in."""
    encoded = encode_run(table, block_bytes)
    info = describe_run(PATH, encoded, table.column(0).to_numpy(), 256, block_bytes)
    file = Bytes(encoded)
    verified = VerifiedFile(info, file.read_into, request_bytes_min, whole_bytes_max=0)
    return RunReader(info, wanted or table.schema, verified, table.schema.equals), file


def shown(batches: Iterable[pa.RecordBatch]) -> str:
    return repr([row for batch in batches for row in batch.to_pylist()])  # in which a NaN is like another


@MANY
@given(run_tables(), BLOCKS, st.sampled_from([1, 100, 10_000]), st.integers(1, 40), st.data())
def test_parts_of_a_run_are_those_of_the_whole(
    table: pa.Table, block_bytes: int, request_bytes_min: int, rows_max: int, data: st.DataObject
) -> None:
    assume(table.num_columns > 1)
    (rows,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    reader, _ = opened(table, block_bytes, request_bytes_min)
    hashes = table.column(0).to_numpy()

    keys = data.draw(st.sets(st.sampled_from(hashes.tolist() or [7]) | st.integers(0, 2**64 - 1), max_size=20))
    wanted = np.array(sorted(keys), np.uint64)
    of_keys = rows.filter(pa.array(np.isin(hashes, wanted)))
    found = [reader.rows_of(wanted), reader.slices_of(wanted.tolist()), reader.rows_of_few(wanted.tolist())]
    for batches in found:
        assert shown(batch.rows for batch in batches) == shown([of_keys.drop_columns(["hash64"])])
        assert [h for batch in batches for h in batch.hash64.tolist()] == of_keys.column(0).to_pylist()

    cuts = sorted(data.draw(st.sets(st.integers(0, len(rows)), max_size=8)))
    slices = [(first, last - first) for first, last in zip(cuts[::2], cuts[1::2], strict=False)]
    scanned = list(reader.scan(slices, rows_max)) if slices else []
    assert shown(scanned) == shown(rows.slice(*each) for each in slices)
    assert all(len(batch) <= rows_max or batch.column(0)[rows_max - 1] == batch.column(0)[-1] for batch in scanned)

    assert shown(reader.batches(rows_max)) == shown([rows])
    assert shown([reader.all_rows()]) == shown([rows])


def test_maps_are_cut_where_their_entries_begin() -> None:
    maps = [[(f"{row}-{entry}", entry) for entry in range(row % 4)] for row in range(300)]
    table = run_table(list(range(300)), {"m": pa.array(maps, pa.map_(pa.string(), pa.int64()))})
    reader, _ = opened(table, 64)
    for first, count in ((0, 300), (1, 1), (7, 100), (65, 200)):
        scanned = pa.Table.from_batches(reader.scan([(first, count)], 10_000))
        assert scanned.column("m").to_pylist() == maps[first : first + count]


@pytest.mark.parametrize("keys", [1, FEW_KEYS_MAX, FEW_KEYS_MAX + 1, 150, 30_000])
def test_a_long_run_is_read_where_its_keys_are(keys: int) -> None:
    """One key has half of the rows."""
    hashes = sorted([number * (2**64 // 20_000) for number in range(20_000)] + [2**60] * 20_000)
    table = run_table(hashes, {"n": pa.array(range(40_000), pa.int64()), "t": pa.array([str(h) for h in hashes])})
    reader, file = opened(table, 256)
    wanted = np.unique(np.random.default_rng(SEED).choice(np.array([*hashes, 5, 2**64 - 1], np.uint64), keys))
    expected = np.flatnonzero(np.isin(np.array(hashes, np.uint64), wanted))
    found_rows = reader.rows_of_few(wanted.tolist()) if keys <= FEW_KEYS_MAX else reader.rows_of(wanted)
    assert [row for found in found_rows for row in found.rows["n"].to_pylist()] == expected.tolist()
    if keys <= FEW_KEYS_MAX and len(expected) < 100:
        assert file.read < len(file.content) / 10


def test_a_scan_holds_no_more_than_a_stretch() -> None:
    rows = 3 * STRETCH_BYTES_MAX // 16
    table = run_table(list(range(rows)), {"n": pa.array(np.arange(rows))})
    reader, file = opened(table, BLOCK_BYTES)
    assert sum(len(batch) for batch in reader.scan([(0, rows)], 10_000)) == rows
    assert reader.filled_bytes < STRETCH_BYTES_MAX / 10
    assert file.read < 1.1 * len(file.content)


def test_a_run_of_an_older_schema_gives_its_rows_in_the_newest() -> None:
    hashes = sorted([number * (2**64 // 3_000) for number in range(3_000)] + [2**60] * 1_000)
    numbers, texts = np.arange(4_000, dtype=np.int32), pa.array([f"{row:08d}" * 40 for row in range(4_000)])
    table = run_table(hashes, {"n": pa.array(numbers), "gone": texts, "t": pa.array([str(row) for row in numbers])})
    wanted = run_schema(pa.schema([("t", pa.string()), ("note", pa.list_(pa.string())), ("n", pa.int64())]))
    reader, _ = opened(table, 256, wanted=wanted)
    columns = [table.column("hash64"), table.column("t"), pa.nulls(4_000, wanted.field("note").type), pa.array(numbers)]
    expected = pa.table(columns, schema=wanted).combine_chunks()

    assert pa.Table.from_batches(reader.scan([(0, 500), (600, 3_400)], 1_000)).equals(
        pa.concat_tables([expected.slice(0, 500), expected.slice(600)])
    )
    assert pa.Table.from_batches(reader.batches(300)).equals(expected)
    assert pa.Table.from_batches([reader.all_rows()]).equals(expected)
    keys = np.array([hashes[0], 2**60, hashes[-1]], np.uint64)
    of_keys = expected.filter(pa.array(np.isin(np.array(hashes, np.uint64), keys))).drop_columns(["hash64"])
    for found in (reader.rows_of(keys), reader.slices_of(keys.tolist()), reader.rows_of_few(keys.tolist())):
        assert pa.Table.from_batches([batch.rows for batch in found]).equals(of_keys)
    assert reader.filled_bytes < texts.nbytes / 10  # nothing of the column that is not wanted


# Damage ---------------------------------------------------------------------------------------------------------

FLIGHTS = TableSpec("flights", pa.schema([("tail", pa.string()), ("via", pa.list_(pa.int64()))]), ("tail",))
CHANNEL = lake_channel("flights", ("tail",))
VNODES = 16
SPACING = 2**64 // 1000
ROWS = 12_000


@pytest.fixture(params=["local", "remote"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnedLake]:
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(VNODES, (FLIGHTS,), {"flights": (("tail",),)}), {})
    if request.param == "remote":
        lake.files = files_in_store_at(Path(lake.root))
    yield lake
    lake.release()


def publish(lake: OwnedLake, epoch: int, *, has_blocks: bool = True) -> RunInfo:
    """A run that is too long to be read at once, of 1,000 keys."""
    hashes = np.sort(np.arange(ROWS, dtype=np.uint64) % 1000 * SPACING)
    columns = [[f"{epoch}-{row}-{'x' * 30}" for row in range(ROWS)], [[row] * (row % 3) for row in range(ROWS)]]
    table = pa.table([pa.array(hashes), *columns], schema=run_schema(FLIGHTS.schema))
    path = f"tables/{CHANNEL}/{epoch}.arrow"
    if has_blocks:
        encoded = encode_run(table)
        run = describe_run(path, encoded, hashes, VNODES)
    else:
        whole, encoded = before_there_were_blocks(table)
        run = RunInfo(
            path, whole.rows, whole.bytes, whole.checksum, describe_run(path, encoded, hashes, VNODES).vnode_rows
        )
    assert run.bytes > WHOLE_BYTES_MAX
    lake.files.create(path, encoded)
    lake.publish(
        Manifest(epoch=Epoch(epoch), term=lake.term, table="flights", query="q", batch=epoch, runs={CHANNEL: (run,)})
    )
    return run


def damage(chance: random.Random, path: Path, whole: bytes) -> None:
    """What a disk, or a person, does to a file, in the file itself: readers that have it open or mapped see it, too."""
    with path.open("r+b") as file:
        kind = chance.randrange(3)
        if kind == 0:
            file.truncate(chance.randrange(len(whole)))
        elif kind == 1:
            file.write(bytes(len(whole)))
        else:
            for _ in range(chance.choice([1, 30])):
                place = chance.randrange(len(whole))
                file.seek(place)
                file.write(bytes([whole[place] ^ 1 << chance.randrange(8)]))


def names(error: CorruptFile, runs: list[RunInfo]) -> bool:
    """Whether the error says which file is damaged."""
    return any(run.path in str(error) for run in runs)


@pytest.mark.parametrize("has_blocks", [True, False])
@pytest.mark.parametrize("bytes_max", [0, 100_000, 1 << 30])
def test_lookups_under_damage_are_right_or_refused(lake: OwnedLake, has_blocks: bool, bytes_max: int) -> None:
    """A history that has its runs open while their files change under it, and are mended again."""
    chance = random.Random(SEED)
    runs = [publish(lake, epoch, has_blocks=has_blocks) for epoch in (1, 2)]
    whole = {run.path: Path(lake.root, run.path).read_bytes() for run in runs}
    history, undamaged = KeyHistory(lake, bytes_max=bytes_max), KeyHistory(Lake(lake.root))
    keys = [np.unique([chance.randrange(1001) * SPACING for _ in range(chance.choice([1, 3, 40]))]) for _ in range(60)]
    keys = [np.array(each, np.uint64) for each in keys]
    rows = [undamaged.rows_of(CHANNEL, FLIGHTS, each, Epoch(2)).rows.to_pylist() for each in keys]
    right = refused = 0
    for turn, (each, expected) in enumerate(zip(keys, rows, strict=True)):
        damaged = Path(lake.root, chance.choice(runs).path)
        if turn % 3:
            damage(chance, damaged, whole[str(damaged.relative_to(lake.root))])
        try:
            assert history.rows_of(CHANNEL, FLIGHTS, each, Epoch(2)).rows.to_pylist() == expected
            right += 1
        except CorruptFile as error:
            refused += names(error, runs)
        for path, content in whole.items():
            Path(lake.root, path).write_bytes(content)
    assert right + refused == len(keys)
    assert right >= 20  # those of undamaged files are among them
    assert refused or bytes_max >= 100_000  # what was read before needs its file no more


@pytest.mark.parametrize("has_blocks", [True, False])
def test_epochs_under_damage_are_right_or_refused(lake: OwnedLake, has_blocks: bool) -> None:
    """A worker reads its slices of a run that changes while it does so."""
    chance = random.Random(SEED)
    run = publish(lake, 1, has_blocks=has_blocks)
    path = Path(lake.root, run.path)
    whole, manifest = path.read_bytes(), lake.manifest(Epoch(1))
    finished = refused = 0
    for turn in range(40):
        vnodes = frozenset(map(VnodeId, chance.sample(range(VNODES), chance.choice([1, 5, VNODES]))))
        expected = list(lake.read(manifest, CHANNEL, vnodes, FLIGHTS))
        pieces = lake.open_run(run, run_schema(FLIGHTS.schema)).scan(run.slices_of(vnodes), 100)
        try:
            begun = [next(pieces)]
            if turn:
                damage(chance, path, whole)
            rows = pa.Table.from_batches([*begun, *pieces])
            assert rows.equals(pa.Table.from_batches(expected))
            damage(chance, path, whole)
            assert rows.equals(pa.Table.from_batches(expected))
            list(lake.read(manifest, CHANNEL, vnodes, FLIGHTS))
            finished += 1
        except CorruptFile as error:
            refused += names(error, [run])
        path.write_bytes(whole)
    assert finished + refused == 40
    assert refused > 20


def test_rows_that_were_read_stay_as_they_were(tmp_path: Path) -> None:
    files: Files = LocalFiles(str(tmp_path))
    files.create("a", bytes(1 << 20))
    before = files.read("a")
    (tmp_path / "a").write_bytes(b"")
    assert before.to_pybytes() == bytes(1 << 20)
    target = bytearray(b"xyz")
    (tmp_path / "a").write_bytes(b"abc")
    assert files.read_into("a", [(1, memoryview(target))]) == 3
    assert target == b"bcz"


def test_slices_are_cut_by_the_same_ends_whatever_was_read() -> None:
    hashes = sorted([5] * 50 + list(range(100, 150)) + [200] * 7)
    reader, _ = opened(run_table(hashes, {}), 64)
    ascending = np.array(hashes, np.uint64)
    for rows_max in (1, 3, 50, 200):
        scanned = [len(batch) for batch in reader.scan([(0, 60), (70, 37)], rows_max)]
        pieces = list(cut([(0, 60), (70, 37)], rows_max, ends_in(ascending)))
        assert sum(scanned) == sum(count for _, count in pieces) == 97
