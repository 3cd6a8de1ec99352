"""Indexes that a lake gets after its first start: seen whole or not at all, whatever was damaged or left half-done."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from upriver.errors import CorruptFile, DeclarationError, LakeInUse, NotWritten, ProtocolError
from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.collection import remove_litter
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, sealed
from upriver.lake.manifests import Manifest
from upriver.lake.spans import single
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema

VNODES = 4
TABLE = TableSpec("flights", pa.schema([("tail", pa.string()), ("from", pa.string())]), ("tail",))
OTHER = TableSpec("planes", pa.schema([("tail", pa.string())]), ("tail",))
RECORD = LakeRecord(VNODES, (TABLE, OTHER), {"flights": (("tail",),), "planes": (("tail",),)})
INDEX = ("from", "tail")
OWN, ADDED = lake_channel("flights", ("tail",)), lake_channel("flights", INDEX)
ALL = frozenset(VnodeId(vnode) for vnode in range(VNODES))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    """Two epochs of flights, which have one index, and between them one of planes."""
    lake = OwnedLake(str(tmp_path), RECORD, {})
    lake.publish(manifest(lake, 1, write_run(lake, OWN, "0", [1, 2])))
    planes = {lake_channel("planes", ("tail",)): ()}
    lake.publish(Manifest(epoch=Epoch(2), term=lake.term, table="planes", query="q", batch=0, runs=planes))
    lake.publish(manifest(lake, 3, write_run(lake, OWN, "1", [3])))
    yield lake
    lake.release()


def write_run(lake: Lake, channel: str, name: str, hashes: list[int]) -> RunInfo:
    texts = [str(number) for number in hashes]
    rows = pa.table([pa.array(hashes, pa.uint64()), texts, texts], schema=run_schema(TABLE.schema))
    encoded, path = encode_run(rows), f"tables/{channel}/{name}"
    lake.files.create(path, encoded)
    return describe_run(path, encoded, np.array(hashes, np.uint64), VNODES)


def manifest(lake: OwnedLake, epoch: int, *runs: RunInfo) -> Manifest:
    return Manifest(epoch=Epoch(epoch), term=lake.term, table="flights", query="q", batch=epoch, runs={OWN: runs})


def supplement(lake: OwnedLake, epoch: int, *hashes: int) -> RunInfo:
    run = write_run(lake, ADDED, str(epoch), sorted(hashes))
    lake.supplement(ADDED, single(epoch), [run])
    return run


def add_index(lake: OwnedLake) -> None:
    supplement(lake, 1, 8, 9)
    supplement(lake, 3, 7)
    lake.complete("flights", INDEX)


def hashes_of(lake: Lake, epoch: int, channel: Channel) -> list[int]:
    batches = lake.read(lake.manifest(Epoch(epoch)), channel, ALL, TABLE)
    return [value for batch in batches for value in batch.column("hash64").to_pylist()]


def test_lake_supplement_for_each_epoch_an_index_is_seen_when_it_is_complete(lake: OwnedLake) -> None:
    before = [lake.manifest(Epoch(epoch)) for epoch in (1, 2, 3)]
    supplement(lake, 1, 8, 9)
    supplement(lake, 3, 7)
    assert lake.supplemented(ADDED) == {single(1), single(3)}
    assert [lake.manifest(Epoch(epoch)) for epoch in (1, 2, 3)] == before
    assert lake.record() == RECORD
    lake.complete("flights", INDEX)
    reader = Lake(lake.root)
    assert reader.record() == replace(RECORD, indexes={**RECORD.indexes, "flights": (("tail",), INDEX)})
    assert [hashes_of(reader, epoch, ADDED) for epoch in (1, 3)] == [[8, 9], [7]]
    assert [hashes_of(reader, epoch, OWN) for epoch in (1, 3)] == [[1, 2], [3]]
    assert reader.manifest(Epoch(1)).rows() == {OWN: 2, ADDED: 2}
    assert reader.manifest(Epoch(2)) == before[1]


def test_lake_index_needs_its_record_an_index_that_is_not_complete_is_never_read_as_empty(lake: OwnedLake) -> None:
    supplement(lake, 1, 8, 9)
    read = lake.manifest(Epoch(1))
    with pytest.raises(ProtocolError, match=f"epoch 1: {ADDED} was asked for before the index was complete"):
        read.rows_of(ADDED, ALL)
    with pytest.raises(ProtocolError, match=f"epoch 1: {ADDED} was asked for"):
        list(lake.read(read, ADDED, ALL, TABLE))
    assert lake.manifest(Epoch(2)).rows_of(ADDED, ALL) == 0


def test_an_epoch_that_has_the_index_itself_needs_no_supplement(lake: OwnedLake) -> None:
    add_index(lake)
    own = manifest(lake, 4, write_run(lake, OWN, "2", [5]))
    lake.publish(replace(own, runs={**own.runs, ADDED: (write_run(lake, ADDED, "4", [6]),)}))
    assert hashes_of(lake, 4, ADDED) == [6]


def test_the_sweep_takes_what_is_left_of_an_index_that_is_not_complete(lake: OwnedLake) -> None:
    supplement(lake, 1, 8)
    write_run(lake, ADDED, "lost", [7])
    lake.sweep()
    assert remove_litter(lake, lake.run_paths()).runs == 2
    assert lake.supplemented(ADDED) == set()
    assert lake.files.names(f"tables/{ADDED}") == []
    add_index(lake)
    assert [hashes_of(lake, epoch, ADDED) for epoch in (1, 3)] == [[8, 9], [7]]


def test_the_sweep_leaves_a_complete_index_alone(lake: OwnedLake) -> None:
    add_index(lake)
    manifests = [lake.manifest(Epoch(epoch)) for epoch in (1, 2, 3)]
    lake.sweep()
    assert remove_litter(lake, lake.run_paths()).runs == 0
    assert [lake.manifest(Epoch(epoch)) for epoch in (1, 2, 3)] == manifests
    assert hashes_of(lake, 1, ADDED) == [8, 9]


def test_lake_one_owner_a_driver_that_was_taken_over_adds_no_index(lake: OwnedLake) -> None:
    lake.release()
    successor = OwnedLake(lake.root, RECORD, {})
    writes: list[Callable[[], None]] = [
        lambda: lake.supplement(ADDED, single(1), []),
        lambda: lake.complete("flights", INDEX),
    ]
    for write in writes:
        with pytest.raises(LakeInUse, match="another driver has taken it over"):
            write()
    assert successor.supplemented(ADDED) == set()
    assert successor.record() == RECORD
    successor.release()


def test_nothing_is_written_twice(lake: OwnedLake) -> None:
    add_index(lake)
    with pytest.raises(NotWritten, match=f"epoch 1 of {ADDED} is there, by an attempt that seemed to fail"):
        lake.supplement(ADDED, single(1), [])
    with pytest.raises(NotWritten, match=f"index {ADDED} is there, by an attempt that seemed to fail"):
        lake.complete("flights", INDEX)
    assert hashes_of(lake, 1, ADDED) == [8, 9]


# Damage ---------------------------------------------------------------------------------------------------------

SUPPLEMENT, RECORD_OF_INDEX = f"supplements/{ADDED}/000000000001.json", f"indexes/{ADDED}.json"


@pytest.mark.parametrize(
    ("path", "read"),
    [(SUPPLEMENT, lambda lake: lake.manifest(Epoch(1))), (RECORD_OF_INDEX, lambda lake: lake.record())],
)
def test_damage_is_named(lake: OwnedLake, path: str, read: Callable[[Lake], object]) -> None:
    add_index(lake)
    content = Path(lake.root, path).read_bytes()
    cut_short = [content[:length] for length in range(len(content))]
    flipped = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in range(len(content))]
    foreign = [b"", b"{}", sealed({}), sealed({"epoch": 1}), sealed({"epoch": 3, "channel": ADDED, "runs": []})]
    for damaged in [*cut_short, *flipped, *foreign]:
        Path(lake.root, path).write_bytes(damaged)
        with pytest.raises(CorruptFile) as raised:
            read(lake)
        assert str(raised.value).startswith(f"{lake.root}/{path}: "), damaged


def test_a_supplement_that_is_gone_is_named(lake: OwnedLake) -> None:
    add_index(lake)
    lake.files.remove(SUPPLEMENT)
    with pytest.raises(CorruptFile, match=f"{SUPPLEMENT}: the file is gone"):
        lake.manifest(Epoch(1))


def test_a_lake_from_before_there_were_upsert_tables_is_read(lake: OwnedLake) -> None:
    path = Path(lake.root, "app.json")
    record = json.loads(path.read_bytes())["record"]
    tables = [{k: v for k, v in table.items() if k not in ("primary_key", "deletes")} for table in record["tables"]]
    path.write_bytes(sealed({**record, "format": 1, "tables": tables}))
    assert Lake(lake.root).record() == replace(RECORD, format=1)


# Declarations ---------------------------------------------------------------------------------------------------


def test_what_is_declared_and_not_kept_is_lacking() -> None:
    indexes = {"flights": (("from",), ("tail",), INDEX), "planes": (("tail",),)}
    assert RECORD.lacking(replace(RECORD, indexes=indexes)) == [("flights", ("from",)), ("flights", INDEX)]
    only_planes = LakeRecord(VNODES, (OTHER,), {"planes": (("tail",),)})
    assert RECORD.lacking(only_planes) == []


def test_the_last_driver_says_which_tables_set_rows_aside(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert Lake(root).sets_aside() == frozenset()
    controls: list[dict[str, list[str]]] = [{}, {"set_aside": ["flights"]}, {"set_aside": []}]
    for told in controls:
        OwnedLake(root, RECORD, told).release()
        assert Lake(root).sets_aside() == frozenset(told.get("set_aside", ()))


# Tables that come and go ----------------------------------------------------------------------------------------

LATE = TableSpec("late", pa.schema([("k", pa.int64())]), ("k",))
ONLY_LATE = LakeRecord(VNODES, (LATE,), {"late": (("k",),)})


def test_a_table_is_added_and_stays(lake: OwnedLake) -> None:
    assert lake.add_table(ONLY_LATE)
    assert not lake.add_table(ONLY_LATE)
    wider = replace(LATE, schema=LATE.schema.append(pa.field("v", pa.string())))
    assert lake.add_table(replace(ONLY_LATE, tables=(wider,)))
    assert not lake.add_table(ONLY_LATE)
    with pytest.raises(DeclarationError, match=r"kept in .* with key"):
        lake.add_table(replace(ONLY_LATE, tables=(replace(wider, key=("v",)),)))
    expected = replace(RECORD, tables=(TABLE, OTHER, wider), indexes={**RECORD.indexes, **ONLY_LATE.indexes})
    assert Lake(lake.root).record() == expected
    lake.release()
    OwnedLake(lake.root, RECORD, {}).release()
    assert Lake(lake.root).record() == expected


def test_a_table_that_is_retracted_was_never_there(lake: OwnedLake) -> None:
    for key in ("k", "v"):
        schema = pa.schema([(key, pa.int64())])
        table = TableSpec("late", schema, (key,))
        lake.add_table(LakeRecord(VNODES, (table,), {"late": ((key,),)}))
        lake.retract_table("late")
        assert (Lake(lake.root).record(), lake.run_schemas("late")) == (RECORD, ())
    lake.add_table(ONLY_LATE)
    found = Lake(lake.root).record()
    assert found is not None
    assert found.tables == (TABLE, OTHER, LATE)


def test_which_tables_set_rows_aside_changes_during_a_term(lake: OwnedLake) -> None:
    for tables in (["flights"], ["planes", "flights"], ["planes", "flights"], []):
        lake.set_bad_rows_aside(tables)
        assert Lake(lake.root).sets_aside() == frozenset(tables)
    assert len(lake.files.names("bad_rows")) == 3
    lake.release()
    successor = OwnedLake(lake.root, RECORD, {"set_aside": ["flights"]})
    assert successor.sets_aside() == frozenset({"flights"})
    successor.sweep()
    assert successor.files.names("bad_rows") == []
    successor.set_bad_rows_aside([])
    assert Lake(lake.root).sets_aside() == frozenset()
    successor.release()
