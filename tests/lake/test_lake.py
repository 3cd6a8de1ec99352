"""The lake: its record, its manifests, its owner. What is damaged or foreign is named and never read."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.engine.retention import Retention
from upriver.errors import CorruptFile, DeclarationError, LakeInUse, NotWritten
from upriver.ids import Channel, Epoch, Term, VnodeId
from upriver.lake.collection import remove_litter
from upriver.lake.files import UNFINISHED
from upriver.lake.lake import (
    FORMAT,
    SLICE_ROWS_MAX,
    TERMS_KEPT_MAX,
    Lake,
    LakeRecord,
    OwnedLake,
    epoch_path,
    sealed,
    supplement_path,
)
from upriver.lake.manifests import Manifest
from upriver.lake.spans import single
from upriver.plan.plan import TableSpec
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema
from upriver.state.span import TimeSpan

VNODES = 16
FLIGHTS = TableSpec(
    "flights", pa.schema([("tail", pa.string()), ("miles", pa.int64()), ("ts", pa.int64())]), ("tail",), ("ts",)
)
PLANES = TableSpec("planes", pa.schema([("tail", pa.string())]), ("tail",))
SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.orderByOrdinal": "true"}
RECORD = LakeRecord(VNODES, (FLIGHTS, PLANES), {"flights": (("tail",), ("miles",)), "planes": (("tail",),)}, SETTINGS)
CHANNEL = Channel("flights/tail")
Own = Callable[..., OwnedLake]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def own() -> Iterator[Own]:
    """Takes roots, and gives them up in the end."""
    owned: list[OwnedLake] = []

    def own(root: str, declared: LakeRecord = RECORD) -> OwnedLake:
        owned.append(OwnedLake(root, declared, {"host": "here"}))
        return owned[-1]

    yield own
    for lake in owned:
        lake.release()


@pytest.fixture
def lake(own: Own, root: str) -> OwnedLake:
    return own(root)


def write_run(lake: Lake, name: str, hashes: list[int]) -> RunInfo:
    """A run of flights whose miles count its rows."""
    hash64, rows = np.array(sorted(hashes), np.uint64), range(len(hashes))
    arrays = [pa.array(hash64), pa.array([str(r) for r in rows]), pa.array(rows, pa.int64()), pa.nulls(len(rows))]
    table = pa.Table.from_arrays(arrays, names=["hash64", *FLIGHTS.schema.names]).cast(run_schema(FLIGHTS.schema))
    encoded = encode_run(table)
    path = f"tables/{CHANNEL}/{name}"
    lake.files.create(path, encoded)
    return describe_run(path, encoded, hash64, VNODES)


def manifest(lake: OwnedLake, epoch: int, *runs: RunInfo) -> Manifest:
    return Manifest(
        epoch=Epoch(epoch), term=lake.term, table="flights", query="q", batch=epoch - 1, runs={CHANNEL: runs}
    )


def test_a_new_root_holds_what_was_declared(own: Own, root: str) -> None:
    assert Lake(root).record() is None
    assert Lake(root).last_epoch() == 0
    lake = own(root)
    assert lake.term == 1
    assert Lake(root).record() == RECORD
    assert Lake(root).last_epoch() == 0


def test_a_manifest_comes_back_as_it_was(lake: OwnedLake) -> None:
    spanned = replace(write_run(lake, "b", [2**62]), span=TimeSpan(0, 7, 1))
    first = manifest(lake, 1, write_run(lake, "a", [0, 1, 2**63]), spanned)
    retained = {"flights": Retention("miles", 7, None, 2)}
    second = replace(manifest(lake, 2), committed_at=1_700_000_000.25, retained=retained)
    lake.publish(first)
    lake.publish(second)
    assert lake.last_epoch() == 2
    assert [lake.manifest(Epoch(1)), lake.manifest(Epoch(2))] == [first, second]
    assert first.rows() == {CHANNEL: 4}
    assert first.rows_of(CHANNEL, [VnodeId(0), VnodeId(4)]) == 3
    assert first.rows_of(Channel("planes/tail"), [VnodeId(0)]) == 0


def test_a_manifest_from_before_commit_times_were_kept_is_read(lake: OwnedLake) -> None:
    record = replace(manifest(lake, 1), committed_at=1.0).to_json()
    del record["committed_at"]
    lake.write_record("epochs/000000000001.json", record)
    assert lake.manifest(Epoch(1)) == manifest(lake, 1)
    assert manifest(lake, 1).committed_at is None


@settings(derandomize=True, deadline=None, max_examples=examples(20))
@given(hashes=st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=9), max_size=3), owned=st.sets(st.integers(0, 15)))
def test_a_worker_reads_the_rows_of_its_vnodes(
    tmp_path_factory: pytest.TempPathFactory, hashes: list[list[int]], owned: set[int]
) -> None:
    lake = OwnedLake(str(tmp_path_factory.mktemp("lake")), RECORD, {})
    published = manifest(lake, 1, *(write_run(lake, str(number), run) for number, run in enumerate(hashes)))
    vnodes = frozenset(map(VnodeId, owned))
    batches = list(lake.read(published, CHANNEL, vnodes, FLIGHTS))
    expected = [h for run in hashes for h in sorted(run) if h >> 60 in owned]
    assert [h for batch in batches for h in batch.column("hash64").to_pylist()] == expected
    assert published.rows_of(CHANNEL, vnodes) == len(expected)
    lake.release()


def test_slices_of_a_long_run_are_bounded(lake: OwnedLake) -> None:
    published = manifest(lake, 1, write_run(lake, "a", list(range(2 * SLICE_ROWS_MAX + 1))))
    batches = list(lake.read(published, CHANNEL, frozenset([VnodeId(0)]), FLIGHTS))
    assert [batch.num_rows for batch in batches] == [SLICE_ROWS_MAX, SLICE_ROWS_MAX, 1]
    assert [batch.column("miles")[0].as_py() for batch in batches] == [0, SLICE_ROWS_MAX, 2 * SLICE_ROWS_MAX]


def test_few_rows_of_many_slices_are_one_batch(lake: OwnedLake) -> None:
    hashes = [vnode << 60 for vnode in range(VNODES) for _ in range(3)]
    published = manifest(lake, 1, write_run(lake, "a", hashes))
    (batch,) = lake.read(published, CHANNEL, frozenset(map(VnodeId, range(0, VNODES, 2))), FLIGHTS)
    assert [h >> 60 for h in batch.column("hash64").to_pylist()] == [v for v in range(0, VNODES, 2) for _ in range(3)]


def test_a_large_key_that_goes_on_in_the_next_run_stays_whole(lake: OwnedLake) -> None:
    runs = write_run(lake, "a", [7] * SLICE_ROWS_MAX), write_run(lake, "b", [7, 7, 9])
    batches = list(lake.read(manifest(lake, 1, *runs), CHANNEL, frozenset([VnodeId(0)]), FLIGHTS))
    assert [batch.num_rows for batch in batches] == [SLICE_ROWS_MAX + 2, 1]


def test_a_run_without_own_rows_is_not_opened(lake: OwnedLake) -> None:
    run = write_run(lake, "a", [0])
    lake.files.remove(run.path)
    assert list(lake.read(manifest(lake, 1, run), CHANNEL, frozenset([VnodeId(1)]), FLIGHTS)) == []


# Damage ---------------------------------------------------------------------------------------------------------


def cut_short(content: bytes) -> list[bytes]:
    return [content[:length] for length in range(len(content))]


def one_bit_flipped(content: bytes) -> list[bytes]:
    return [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in range(len(content))]


def foreign(content: bytes) -> list[bytes]:
    other_numbers = content.replace(b'"epoch":1,', b'"epoch":2,').replace(b'"vnodes":16', b'"vnodes":32')
    assert other_numbers != content
    return [b"", b"null", b"[]", b"{}", b"7", b'{"record":{}}', b"\xff\xfe", b"ARROW1\0\0", content * 2, other_numbers]


def overwrite(lake: Lake, path: str, content: bytes) -> None:
    """As a fault of the disk does it: nothing in Upriver changes a file."""
    Path(lake.root, path).write_bytes(content)


@pytest.mark.parametrize("damage", [cut_short, one_bit_flipped, foreign])
@pytest.mark.parametrize(
    ("path", "read"),
    [("epochs/000000000001.json", lambda lake: lake.manifest(Epoch(1))), ("app.json", lambda lake: lake.record())],
)
def test_a_damaged_record_is_refused(
    lake: OwnedLake, path: str, read: Callable[[Lake], object], damage: Callable[[bytes], list[bytes]]
) -> None:
    lake.publish(manifest(lake, 1, write_run(lake, "a", [1])))
    for content in damage(Path(lake.root, path).read_bytes()):
        overwrite(lake, path, content)
        with pytest.raises(CorruptFile) as raised:
            read(lake)
        assert str(raised.value).startswith(f"{lake.root}/{path}: "), content


@pytest.mark.parametrize("damage", [cut_short, one_bit_flipped])
def test_a_damaged_run_is_refused(lake: OwnedLake, damage: Callable[[bytes], list[bytes]]) -> None:
    run = write_run(lake, "a", [0, 1])
    published = manifest(lake, 1, run)
    for content in damage(Path(lake.root, run.path).read_bytes()):
        overwrite(lake, run.path, content)
        with pytest.raises(CorruptFile, match=f"^{run.path}: .* where the (manifest|run) says"):
            list(lake.read(published, CHANNEL, frozenset([VnodeId(0)]), FLIGHTS))


def test_what_is_gone_is_named(lake: OwnedLake) -> None:
    run = write_run(lake, "a", [0])
    lake.files.remove(run.path)
    with pytest.raises(CorruptFile, match=f"^{lake.root}/{run.path}: the file is gone"):
        lake.open_run(run, run_schema(FLIGHTS.schema))
    with pytest.raises(CorruptFile, match=r"epochs/000000000001\.json: the file is gone"):
        lake.manifest(Epoch(1))
    lake.files.remove("app.json")
    with pytest.raises(CorruptFile, match=f"^{lake.root}/app.json: the file is gone"):
        lake.kept_record()


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_root_whose_record_is_gone_is_not_a_new_one(own: Own, lake: OwnedLake, epochs: int) -> None:
    """It would be taken by whatever is declared, be it with other vnodes."""
    if epochs:
        lake.publish(manifest(lake, 1, write_run(lake, "a", [0])))
        lake.files.remove("control/00000001.json")
    lake.release()
    lake.files.remove("app.json")
    with pytest.raises(CorruptFile, match=r"app\.json: the file is gone\. Restore the file as it was, or"):
        own(lake.root, replace(RECORD, vnodes=32))


@pytest.mark.parametrize("path", ["notes.txt", "tables/mine.arrow", "ingest/t/a", "unfinished.txt"])
def test_a_directory_with_files_of_others_is_refused_and_left_alone(own: Own, tmp_path: Path, path: str) -> None:
    mine = tmp_path / "mine" / path
    mine.parent.mkdir(parents=True)
    mine.write_text("do not lose me")
    with pytest.raises(
        DeclarationError, match=rf"there are files already, and none of an app: {path.partition('/')[0]}"
    ):
        own(str(tmp_path / "mine"))
    assert [str(found) for found in (tmp_path / "mine").rglob("*") if found.is_file()] == [str(mine)]


@pytest.mark.parametrize("left", ["lost+found/x", "unfinished/x", ".hidden"])
def test_leftovers_and_hidden_files_do_not_make_a_directory_foreign(own: Own, tmp_path: Path, left: str) -> None:
    path = tmp_path / "root" / left
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert own(str(tmp_path / "root")).record() == RECORD


def test_a_directory_in_place_of_a_run_is_named(lake: OwnedLake) -> None:
    run = write_run(lake, "a", [0])
    lake.files.remove(run.path)
    Path(lake.root, run.path).mkdir()
    with pytest.raises(CorruptFile, match=f"^{lake.root}/{run.path}: cannot be read"):
        lake.open_run(run, run_schema(FLIGHTS.schema))


def test_a_manifest_under_another_epochs_name_is_refused(lake: OwnedLake) -> None:
    lake.publish(manifest(lake, 1))
    lake.files.create("epochs/000000000002.json", lake.files.read("epochs/000000000001.json"))
    with pytest.raises(CorruptFile, match=r"000000000002\.json: its content names epoch 1\. Restore the file"):
        lake.manifest(Epoch(2))


def test_a_record_in_place_of_another_is_refused(lake: OwnedLake) -> None:
    record = lake.files.read("app.json")
    lake.files.create("epochs/000000000001.json", record)
    with pytest.raises(CorruptFile, match=r"000000000001\.json: its content names epoch None"):
        lake.manifest(Epoch(1))
    overwrite(lake, "app.json", lake.files.read("control/00000001.json").to_pybytes())
    with pytest.raises(CorruptFile, match=r"app\.json: format None, and not one of 1 to"):
        lake.record()


def test_a_lake_of_a_later_version_is_refused_and_left_alone(own: Own, lake: OwnedLake) -> None:
    record = lake.read_record("app.json")
    lake.release()
    overwrite(lake, "app.json", sealed({"format": FORMAT + 1, "what": "nothing that this version knows"}))
    before = sorted(path for path in Path(lake.root).rglob("*"))
    message = f"^{lake.root} was made by a later version of Upriver: its app.json has format {FORMAT + 1},.* root$"
    with pytest.raises(DeclarationError, match=message):
        own(lake.root)
    assert sorted(path for path in Path(lake.root).rglob("*")) == before
    for known in range(1, FORMAT + 1):
        overwrite(lake, "app.json", sealed({**record, "format": known}))
        assert lake.record() == replace(RECORD, format=known)


@pytest.mark.parametrize("format", [4, FORMAT])
def test_an_old_root_gets_entries_of_runs_that_its_version_reads(own: Own, lake: OwnedLake, format: int) -> None:
    record = lake.read_record("app.json")
    lake.release()
    overwrite(lake, "app.json", sealed({**record, "format": format}))
    again = own(lake.root)
    spread = write_run(again, "a", [vnode << 60 for vnode in range(VNODES)])
    again.publish(manifest(again, 1, spread))
    again.supplement(CHANNEL, single(Epoch(1)), [spread])
    (entry,) = again.read_record(epoch_path(Epoch(1)))["runs"][CHANNEL]
    assert [entry] == again.read_record(supplement_path(CHANNEL, single(Epoch(1))))["runs"]
    assert (entry == spread.to_json()) == (format == 4)
    assert again.manifest(Epoch(1)).runs_of(CHANNEL) == again.supplement_runs(CHANNEL, single(Epoch(1))) == (spread,)


@pytest.mark.parametrize("directory", ["epochs", "control"])
def test_a_foreign_file_among_the_numbered_ones_is_named(own: Own, root: str, directory: str) -> None:
    Path(root, directory).mkdir(parents=True)
    Path(root, directory, "notes.txt").touch()
    with pytest.raises(CorruptFile, match=rf"{directory}/notes\.txt: not a file of this lake"):
        own(root).last_epoch()


# Declarations ---------------------------------------------------------------------------------------------------


def with_flights(**changed: Any) -> LakeRecord:
    return replace(RECORD, tables=(replace(FLIGHTS, **changed), PLANES))


NARROW = pa.schema([("tail", pa.string()), ("miles", pa.int32()), ("ts", pa.int64())])
DIFFERENCES = [
    (
        replace(RECORD, settings={**SETTINGS, "spark.sql.session.timeZone": "+05:30"}),
        r"made in a Spark session with spark.sql.session.timeZone = UTC, and this one has \+05:30.*"
        r"spark.conf.set\('spark.sql.session.timeZone', 'UTC'\), or start on another root",
    ),
    (replace(RECORD, vnodes=32), "has 16 vnodes and 32 were requested.* leave vnodes=16"),
    (with_flights(key=("ts",)), r"table 'flights' is kept in .* with key \('tail',\), not \('ts',\)"),
    (with_flights(order_by=()), r"table 'flights' is kept in .* with order_by \('ts',\), not \(\)"),
    (with_flights(schema=NARROW), "table 'flights': column 'miles' is BIGINT in .* and INT in the DataFrame"),
    (
        with_flights(schema=FLIGHTS.schema.remove(2), order_by=("ts",)),
        "table 'flights': the DataFrame lacks column 'ts', which is BIGINT in .*or start on another root$",
    ),
    (with_flights(primary_key=("tail",)), r"table 'flights' is kept in .* with primary_key \(\), not \('tail',\)"),
    (with_flights(deletes="miles < 0"), "table 'flights' is kept in .* with deletes None, not miles < 0"),
]


@pytest.mark.parametrize(("declared", "said"), DIFFERENCES)
def test_another_declaration_is_refused(own: Own, root: str, declared: LakeRecord, said: str) -> None:
    own(root).release()
    with pytest.raises(DeclarationError, match=said) as raised:
        own(root, declared)
    assert root in str(raised.value)
    again = own(root)  # the refusal has left nothing locked, and no term
    assert again.term == 2


def test_less_may_be_declared_than_is_kept(own: Own, root: str) -> None:
    own(root).release()
    lake = own(root, replace(RECORD, tables=(FLIGHTS,), indexes={"flights": (("miles",),)}))
    assert lake.record() == RECORD


def with_columns(**columns: pa.DataType) -> LakeRecord:
    return with_flights(schema=pa.schema([*FLIGHTS.schema, *columns.items()]))


def test_more_columns_are_kept_from_the_next_start_on(own: Own, root: str) -> None:
    own(root).release()
    lake = own(root, with_columns(note=pa.string()))
    assert lake.files.names("schemas/flights") == ["1.json"]
    assert lake.record() == with_columns(note=pa.string())
    assert lake.run_schemas("flights") == tuple(
        run_schema(table.schema) for table in (FLIGHTS, with_columns(note=pa.string()).tables[0])
    )
    lake.release()
    own(root, with_columns(note=pa.string())).release()
    again = own(root)  # the column is not given any more, and stays
    assert again.files.names("schemas/flights") == ["1.json"]
    assert again.record() == with_columns(note=pa.string())
    again.release()
    assert own(root, with_columns(cost=pa.int8())).record() == with_columns(note=pa.string(), cost=pa.int8())


def test_a_table_is_added(own: Own, root: str) -> None:
    own(root).release()
    crews = replace(PLANES, name="crews")
    declared = replace(RECORD, tables=(crews,), indexes={"crews": (("tail",),)})
    lake = own(root, declared)
    assert lake.record() == replace(
        RECORD, tables=(FLIGHTS, PLANES, crews), indexes={**RECORD.indexes, "crews": (("tail",),)}
    )
    assert lake.run_schemas("crews") == (run_schema(PLANES.schema),)
    lake.release()
    assert own(root, declared).files.names("schemas/crews") == ["1.json"]


def test_a_refused_start_changes_no_table(own: Own, root: str) -> None:
    own(root).release()
    crews = replace(PLANES, name="crews")
    with pytest.raises(DeclarationError, match="'flights'"):
        own(root, replace(RECORD, tables=(crews, with_flights(schema=NARROW).tables[0])))
    assert Lake(root).record() == RECORD


def test_the_record_of_another_table_is_refused(own: Own, root: str) -> None:
    own(root).release()
    lake = own(root, with_columns(note=pa.string()))
    lake.files.create("schemas/planes/1.json", lake.files.read("schemas/flights/1.json"))
    with pytest.raises(CorruptFile, match=r"schemas/planes/1\.json: its content names table 'flights'"):
        lake.record()


def test_old_runs_are_read_with_the_newest_columns(own: Own, root: str) -> None:
    lake = own(root)
    run = write_run(lake, "old", [0, 1])
    lake.publish(manifest(lake, 1, run))
    lake.release()
    newest = with_columns(note=pa.string()).tables[0]
    lake = own(root, with_columns(note=pa.string()))
    (batch,) = lake.read(lake.manifest(Epoch(1)), CHANNEL, frozenset(map(VnodeId, range(VNODES))), newest)
    assert batch.schema.equals(run_schema(newest.schema))
    assert batch.to_pylist() == [
        {"hash64": row, "tail": str(row), "miles": row, "ts": None, "note": None} for row in range(2)
    ]


def test_a_run_with_columns_that_its_table_never_had_is_refused(lake: OwnedLake) -> None:
    run = write_run(lake, "a", [0])
    wanted = with_columns(note=pa.string()).tables[0]
    lake.publish(manifest(lake, 1, run))
    foreign = pa.table({"hash64": pa.array([0], pa.uint64()), "tail": ["0"]}).cast(run_schema(PLANES.schema))
    encoded = encode_run(foreign)
    lake.files.create(f"tables/{CHANNEL}/foreign", encoded)
    other = describe_run(f"tables/{CHANNEL}/foreign", encoded, np.zeros(1, np.uint64), VNODES)
    with pytest.raises(CorruptFile, match="tables/flights/tail/foreign: its columns are hash64 uint64 not null, tail"):
        lake.open_run(other, run_schema(wanted.schema))
    with pytest.raises(CorruptFile, match="its columns are"):  # a narrower type than the run's
        lake.open_run(run, run_schema(NARROW))


# Owners ---------------------------------------------------------------------------------------------------------


def test_a_second_driver_is_refused(own: Own, lake: OwnedLake) -> None:
    with pytest.raises(LakeInUse, match=f"in use by process {os.getpid()} on "):
        own(lake.root)
    lake.release()
    lake.release()
    assert own(lake.root).term == 2


DRIVER = """
import sys
import pyarrow as pa
from upriver.plan.plan import TableSpec
from upriver.lake.collection import remove_litter
from upriver.lake.lake import LakeRecord
from upriver.lake.collection import remove_litter
from upriver.lake.lake import OwnedLake
table = TableSpec("t", pa.schema([("k", pa.int64())]), ("k",))
lake = OwnedLake(sys.argv[1], LakeRecord(4, (table,), {"t": (("k",),)}), {})
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_root_is_free_once_its_driver_is_killed(own: Own, root: str) -> None:
    command = [sys.executable, "-c", DRIVER, root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        record = Lake(root).record()
        assert record is not None
        with pytest.raises(LakeInUse, match=f"{root} is in use by process {driver.pid} on .*: .* stop it, or choose"):
            own(root, record)
        driver.kill()
    assert own(root, record).term == 2


def test_a_driver_that_was_taken_over_cannot_publish(own: Own, lake: OwnedLake) -> None:
    """As where there are no locks: on an object store."""
    lake.release()
    successor = own(lake.root)
    with pytest.raises(LakeInUse, match="another driver has taken it over; this one must stop"):
        lake.publish(manifest(lake, 1))
    assert successor.last_epoch() == 0
    successor.publish(manifest(successor, 1))
    assert successor.manifest(Epoch(1)).term == 2


def test_of_two_drivers_that_open_one_term_the_later_one_owns_it(own: Own, lake: OwnedLake, tmp_path: Path) -> None:
    """A create that looks and then writes lets both of them through: what is in the file counts."""
    other = own(str(tmp_path / "other"))
    overwrite(lake, "control/00000001.json", other.files.read("control/00000001.json").to_pybytes())
    assert lake.term == other.term
    with pytest.raises(LakeInUse, match="another driver has taken it over"):
        lake.publish(manifest(lake, 1))


def test_an_epoch_is_published_once(lake: OwnedLake) -> None:
    """Rule lake.own_epoch_is_found: this driver's own epoch is no reason to stop."""
    lake.publish(manifest(lake, 1))
    with pytest.raises(NotWritten, match="epoch 1 is there, by an attempt that seemed to fail"):
        lake.publish(replace(manifest(lake, 1), query="other"))
    assert lake.manifest(Epoch(1)).query == "q"
    lake.write_record("epochs/000000000002.json", replace(manifest(lake, 2), term=Term(lake.term + 1)).to_json())
    with pytest.raises(LakeInUse, match="epoch 2 was published by another driver"):
        lake.publish(manifest(lake, 2))


def test_what_is_remembered_of_a_driver_is_in_its_term(lake: OwnedLake) -> None:
    record = lake.read_record("control/00000001.json")
    assert (record["host"], record["term"]) == ("here", 1)
    assert json.loads(lake.files.read("control/00000001.json").to_pybytes())["record"] == record


def test_the_records_of_the_last_drivers_stay(own: Own, root: str) -> None:
    for term in range(1, TERMS_KEPT_MAX + 4):
        lake = own(root)
        assert lake.term == term
        lake.sweep()
        lake.release()
    assert sorted(lake.numbers("control")) == list(range(4, TERMS_KEPT_MAX + 4))


def test_the_sweep_takes_what_no_manifest_names(lake: OwnedLake) -> None:
    kept = write_run(lake, "kept", [0])
    for path in ["tables/flights/tail/lost", "tables/flights/miles/lost", "tables/planes/tail/lost"]:
        lake.files.create(path, b"half a batch")
    lake.files.create(f"{UNFINISHED}/half-a-file", b"ha")
    lake.publish(manifest(lake, 1, kept))
    lake.sweep()
    assert remove_litter(lake, lake.run_paths()).runs == 3
    assert lake.files.names("tables/flights/tail") == ["kept"]
    assert lake.files.names("tables/flights/miles") == lake.files.names("tables/planes/tail") == []
    assert lake.files.names(UNFINISHED) == []
    assert lake.manifest(Epoch(1)).runs[CHANNEL] == (kept,)
    assert remove_litter(lake, lake.run_paths()).runs == 0
