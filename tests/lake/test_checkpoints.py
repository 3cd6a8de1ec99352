"""Checkpoints in the lake: what is read is what was written, or a CorruptFile that names the file. Rules
checkpoints.all_parts and checkpoints.manifest_removed_first.

Which checkpoints the sweep removes, in which order, and what it leaves alone. Rule
checkpoints.manifest_removed_first.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import (
    AT_PLACE,
    CHANGES,
    FIRST,
    PLACE,
    PLANS,
    RECORD,
    SECOND,
    VNODES,
    Kept,
    Model,
    a_lake,
    add_epochs,
    chunk_of,
    chunks_of,
    everything,
    kept_of,
    other,
    read,
    take,
    written,
)
from hypothesis import given
from hypothesis import strategies as st
from s3_kit import S3Server
from state_kit import MANY

from upriver.errors import CorruptFile, LakeInUse, NotWritten, ProtocolError
from upriver.ids import Epoch
from upriver.lake.checkpoints import (
    Sizes,
    chain,
    checkpoint_path,
    load,
    newest_usable,
    places,
    publish,
    sweep,
    sweep_places,
)
from upriver.lake.collection import collect, superseded
from upriver.lake.files import Files
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, sealed
from upriver.lake.upkeep import compact
from upriver.state.checkpoint import Checkpoint, CheckpointPlace


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@MANY
@given(
    history=st.lists(CHANGES, min_size=1, max_size=4),
    span_bytes=st.sampled_from([1, 500, 10_000]),
    file_bytes=st.sampled_from([1, 2000, 100_000]),
    chosen=st.sets(st.integers(0, VNODES - 1)),
)
def test_any_vnodes_are_read_as_a_dict_has_them(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[int, tuple[Kept, int]]],
    span_bytes: int,
    file_bytes: int,
    chosen: set[int],
) -> None:
    lake = OwnedLake(str(tmp_path_factory.mktemp("lake")), RECORD, {})
    add_epochs(lake, len(history))
    models: dict[str, Model] = {"a": {}, "b": {}}
    for number, changes in enumerate(history, 1):
        now = {key: kept for key, (kept, _) in changes.items()}
        by_worker = [{key: now[key] for key in now if changes[key][1] == worker} for worker in range(3)]
        parts = {"a": by_worker, "b": [other(part) for part in by_worker]}
        chunks = {region: [chunks_of(part, 2) for part in workers] for region, workers in parts.items()}
        checkpoint = written(lake, number, number - 1 or None, chunks, Sizes(span_bytes, file_bytes))
        publish(lake, PLACE, checkpoint)
        assert load(lake, PLACE, Epoch(number)) == checkpoint
        assert checkpoint.keys == 2 * len(changes)
        models["a"] |= now
        models["b"] |= other(now)
    epochs = [checkpoint.epoch for checkpoint in chain(lake, PLACE, PLANS)]
    assert epochs == list(range(len(history), 0, -1))
    for region, model in models.items():
        assert read(lake, region, epochs, chosen) == kept_of(model, chosen)
    lake.release()


def test_no_checkpoint_is_no_chain(lake: OwnedLake) -> None:
    assert chain(lake, PLACE, {}) == ()
    with pytest.raises(CorruptFile, match=r"/000000000003/manifest\.json: the file is gone"):
        load(lake, PLACE, Epoch(3))


def test_files_without_chunks_of_these_vnodes_are_not_opened(lake: OwnedLake) -> None:
    low, high = chunk_of({1: Kept((1,))}), chunk_of({2**63: Kept((2,))})
    checkpoint = written(lake, 1, None, {"a": [[low], [high]]})
    publish(lake, PLACE, checkpoint)
    for file in checkpoint.files:
        if file.spans[0].least == 1:
            lake.files.remove(f"{AT_PLACE}/000000000001/{file.name}")
    assert read(lake, "a", [1], range(8, VNODES)) == {2**63: Kept((2,))}
    assert read(lake, "a", [1], []) == {}
    with pytest.raises(CorruptFile, match="the file is gone"):
        read(lake, "a", [1], [0])


# Which chain ------------------------------------------------------------------------------------------------------


def test_a_chain_goes_back_to_a_checkpoint_of_everything(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    whole = take(lake, 4, None, FIRST)
    second = take(lake, 6, 4, SECOND)
    third = take(lake, 7, 6, {})
    assert chain(lake, PLACE, PLANS) == (third, second, whole)
    assert everything(lake)[0] == kept_of(FIRST | SECOND)


@pytest.mark.parametrize(
    ("regions", "is_of_use"),
    [({"a": "plan of a"}, True), ({}, True), ({"a": "another plan"}, False), (PLANS | {"c": "plan of c"}, False)],
)
def test_a_chain_serves_regions_with_the_very_plans(lake: OwnedLake, regions: dict[str, str], is_of_use: bool) -> None:
    take(lake, 1, None, FIRST)
    assert bool(chain(lake, PLACE, regions)) == is_of_use


def test_all_of_a_chain_must_have_the_regions(lake: OwnedLake) -> None:
    """What the first has of region b is to be understood by another plan."""
    publish(lake, PLACE, Checkpoint(epoch=Epoch(1), base=None, regions={"a": "plan of a", "b": "before"}, files=()))
    take(lake, 2, 1, SECOND)
    assert chain(lake, PLACE, PLANS) == ()
    assert len(chain(lake, PLACE, {"a": "plan of a"})) == 2


def test_state_is_read_from_a_whole_chain_that_has_the_region(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    for epochs in ([2], [1, 2], [2, 1, 1], []):
        with pytest.raises(ProtocolError, match="build on those of"):
            read(lake, "a", epochs)
    with pytest.raises(ProtocolError, match=r"no state of region 'c' in the checkpoints of epochs \[2, 1\]"):
        read(lake, "c", [2, 1])


def test_checkpoints_not_within_a_segment_no_chain_begins_within_one(lake: OwnedLake) -> None:
    """The epoch of the newest may be there no more, if it was found damaged and left out."""
    whole = take(lake, 2, None, FIRST)
    take(lake, 5, 2, SECOND)
    add_epochs(lake, 17)
    assert len(list(compact(lake, Epoch(16)))) == 1
    assert collect(lake, superseded(lake, Epoch(16), math.inf)).epochs == 16
    assert chain(lake, PLACE, PLANS) == ()
    third = take(lake, 17, 5, {})
    assert [checkpoint.epoch for checkpoint in chain(lake, PLACE, PLANS)] == [17, 5, 2]
    assert chain(lake, PLACE, PLANS)[::2] == (third, whole)
    spoilt = Path(lake.root) / checkpoint_path(PLACE, Epoch(17))
    spoilt.unlink()
    spoilt.write_bytes(b"torn")
    found, damaged = newest_usable(lake, PLACE, PLANS)
    assert (found, damaged is not None) == ((), True)


# Publishing -------------------------------------------------------------------------------------------------------


def test_checkpoints_all_parts_a_checkpoint_without_a_manifest_is_none(lake: OwnedLake) -> None:
    first = take(lake, 1, None, FIRST)
    second = written(lake, 2, 1, {"a": [chunks_of(SECOND, 1)]})
    assert chain(lake, PLACE, PLANS) == (first,)
    publish(lake, PLACE, second)
    assert chain(lake, PLACE, PLANS) == (second, first)


def test_checkpoints_all_parts_its_files_are_there_when_its_manifest_is(lake: OwnedLake) -> None:
    checkpoint = written(lake, 2, None, {"a": [chunks_of(FIRST, 1)]})
    (file,) = checkpoint.files
    with pytest.raises(ProtocolError, match=r"checkpoint of epoch 2: nowhere\.arrows were not written"):
        publish(lake, PLACE, replace(checkpoint, files=(file, replace(file, name="nowhere.arrows"))))
    for base in (1, 2, 3):
        with pytest.raises(ProtocolError, match=f"checkpoint of epoch 2: there is none of epoch {base} to build on"):
            publish(lake, PLACE, replace(checkpoint, base=Epoch(base)))
    assert chain(lake, PLACE, {}) == ()


def test_a_checkpoint_is_published_once(lake: OwnedLake) -> None:
    first = take(lake, 1, None, FIRST)
    with pytest.raises(NotWritten, match="the checkpoint of epoch 1 is there, by an attempt that seemed to fail"):
        publish(lake, PLACE, replace(first, files=()))
    assert load(lake, PLACE, Epoch(1)) == first


def test_lake_one_owner_a_driver_that_was_taken_over_neither_publishes_nor_sweeps(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    second = written(lake, 2, 1, {})
    lake.release()
    successor = OwnedLake(lake.root, RECORD, {})
    with pytest.raises(LakeInUse, match="another driver has taken it over; this one must stop"):
        publish(lake, PLACE, second)
    with pytest.raises(LakeInUse, match="another driver has taken it over; this one must stop"):
        sweep(lake, PLACE, [], Epoch(9))
    publish(successor, PLACE, second)
    assert len(chain(lake, PLACE, PLANS)) == 2
    successor.release()


# Damage -----------------------------------------------------------------------------------------------------------


def cut_short(content: bytes) -> list[bytes]:
    return [content[:length] for length in (*range(0, len(content), 41), len(content) - 1)]


def one_bit_flipped(content: bytes) -> list[bytes]:
    """Of every eleventh byte: there are thousands."""
    return [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in range(0, len(content), 11)]


def foreign(content: bytes) -> list[bytes]:
    records: list[Any] = [None, [], {}, 7, {"epoch": 1}, {"format": 1}, {"format": 2, "epoch": 1, "base": None}]
    wrong: list[Any] = [3, [3], [{}]]
    records += [{"format": 2, "epoch": 1, "base": None, "regions": {}, "files": files} for files in wrong]
    return [*map(sealed, records), b"", b"null", b"[]", b"\xff\xfe", b"ARROW1\0\0", b"\x80\x04K\x07.", content * 2]


def read_damaged(lake: Lake, path: Path) -> None:
    """Reads everything, which must fail and name the file, with what can be done about it."""
    with pytest.raises(CorruptFile) as raised:
        everything(lake)
    assert str(raised.value).startswith(f"{path}: "), raised.value
    assert f"stop the app, remove the directory {lake.root}/{AT_PLACE}, and start it again" in str(raised.value)


def all_paths(lake: Lake) -> list[Path]:
    return sorted(Path(lake.root, AT_PLACE).glob("*/*"))


@pytest.mark.parametrize("damage", [cut_short, one_bit_flipped, foreign])
def test_every_damage_to_every_file_is_found(lake: OwnedLake, damage: Callable[[bytes], list[bytes]]) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    before = everything(lake)
    assert len(all_paths(lake)) == 6
    for path in all_paths(lake):
        content = path.read_bytes()
        for damaged in damage(content):
            path.write_bytes(damaged)
            read_damaged(lake, path)
        path.write_bytes(content)
    assert everything(lake) == before


def test_a_file_in_anothers_place_is_found(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, {**FIRST, 1: Kept((1, 3))})  # as many bytes
    contents = {path: path.read_bytes() for path in all_paths(lake)}
    for path, content in contents.items():
        for theirs in set(contents.values()) - {content}:
            path.write_bytes(theirs)
            read_damaged(lake, path)
        path.write_bytes(content)
    assert kept_of(FIRST | {1: Kept((1, 3))}) == everything(lake)[0]


def test_what_is_gone_or_no_file_is_named(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    for path in all_paths(lake):
        content = path.read_bytes()
        path.unlink()
        if path.match("000000000002/manifest.json"):  # then it is none
            assert everything(lake)[0] == FIRST
        else:
            read_damaged(lake, path)
        path.mkdir()
        read_damaged(lake, path)
        path.rmdir()
        path.write_bytes(content)


def test_a_checkpoint_of_an_epoch_that_the_lake_does_not_have_is_refused(lake: OwnedLake) -> None:
    publish(lake, PLACE, written(lake, 12, None, {}))
    with pytest.raises(
        CorruptFile, match=r"epochs/000000000012\.json: the file is gone, though there is a checkpoint\. Restore"
    ):
        chain(lake, PLACE, {})


def test_a_checkpoint_that_builds_on_itself_is_refused(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    path = Path(lake.root, checkpoint_path(PLACE, Epoch(1)))
    record = json.loads(path.read_bytes())["record"]
    path.write_bytes(sealed({**record, "base": 1}))
    with pytest.raises(CorruptFile, match="it builds on one of epoch 1, which is not before it"):
        chain(lake, PLACE, {})


@pytest.mark.parametrize("name", ["notes.txt", "12", "0000000000001", "-00000000001"])
def test_a_foreign_place_is_named(lake: OwnedLake, name: str) -> None:
    Path(lake.root, "checkpoints", name).mkdir(parents=True)
    with pytest.raises(CorruptFile, match=f"checkpoints/{name}: not a directory of this lake"):
        places(lake)
    with pytest.raises(CorruptFile, match=f"checkpoints/{name}: not a directory of this lake"):
        sweep_places(lake, [])


@pytest.mark.parametrize("name", ["notes.txt", "12", "0000000000001", "-00000000001"])
def test_a_foreign_directory_is_named(lake: OwnedLake, name: str) -> None:
    Path(lake.root, AT_PLACE, name).mkdir(parents=True)
    with pytest.raises(CorruptFile, match=f"{AT_PLACE}/{name}: not a directory of this lake"):
        chain(lake, PLACE, {})


def swept(lake: OwnedLake, keep: Collection[int], before: int) -> int:
    return sweep(lake, PLACE, [Epoch(epoch) for epoch in keep], Epoch(before))


def epochs_there(lake: Lake) -> list[int]:
    return [int(name) for name in lake.files.names(AT_PLACE)]


def test_the_sweep_keeps_what_the_kept_ones_build_on(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    take(lake, 3, None, FIRST)
    take(lake, 4, 3, SECOND)
    take(lake, 5, 4, {})
    before = everything(lake)
    assert swept(lake, [5], before=6) == 6
    assert epochs_there(lake) == [3, 4, 5]
    assert everything(lake) == before
    assert swept(lake, [5], before=6) == 0
    assert swept(lake, [4], before=6) == 1
    assert everything(lake) == before  # the last one had no changes
    assert swept(lake, [], before=6) == 6
    assert lake.files.names(AT_PLACE) == []
    assert chain(lake, PLACE, PLANS) == ()


def test_places_are_swept_but_those_of_use(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    other = CheckpointPlace("1" * 32, ("c", "a", "b"))
    publish(lake, other, written(lake, 1, None, {"a": [chunks_of(SECOND, 1)]}, place=other))
    publish(lake, other, written(lake, 2, 1, {"a": [chunks_of(SECOND, 1)]}, place=other))
    written(lake, 3, 2, {"a": [chunks_of(SECOND, 1)]}, place=CheckpointPlace("1" * 32 + "-2", ("a",)))
    assert places(lake) == [PLACE.name, other.name, f"{other.name}-2"]
    assert sweep_places(lake, [PLACE.name, other.name]) == 1
    before = everything(lake)
    assert sweep_places(lake, [PLACE.name]) == 4
    assert places(lake) == [PLACE.name]
    assert everything(lake) == before


def test_a_checkpoint_of_another_flows_views_is_refused(lake: OwnedLake) -> None:
    place = replace(PLACE, views=("a",))
    with pytest.raises(ProtocolError, match="'b' is of no view whose checkpoints are in 0000"):
        publish(lake, place, written(lake, 1, None, {"a": [chunks_of(FIRST, 1)]}))
    take(lake, 2, None, FIRST)
    with pytest.raises(CorruptFile, match="not the manifest of a checkpoint"):
        load(lake, place, Epoch(2))


@pytest.mark.verify
def test_an_object_store_will_do(s3: S3Server) -> None:
    lake = OwnedLake(s3.new_root(), LakeRecord(8, (), {}), {})
    add_epochs(lake, 3)
    take(lake, 1, None, SECOND)
    take(lake, 2, None, FIRST)
    take(lake, 3, 2, SECOND)
    assert swept(lake, [3], before=4) == 3
    assert epochs_there(lake) == [2, 3]
    assert everything(lake)[0] == kept_of(FIRST | SECOND)


def test_the_sweep_removes_what_was_given_up_and_leaves_what_is_being_written(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    written(lake, 1, None, {"a": [chunks_of(FIRST, 1)]})  # an earlier attempt at the same epoch
    written(lake, 2, 1, {"a": [chunks_of(SECOND, 1)]})
    under_way = written(lake, 4, 1, {"a": [chunks_of(SECOND, 1)]})
    assert swept(lake, [1], before=4) == 2
    assert epochs_there(lake) == [1, 4]
    publish(lake, PLACE, under_way)
    assert everything(lake)[0] == kept_of(FIRST | SECOND)


def test_the_sweep_leaves_what_later_ones_build_on(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, 1, SECOND)
    take(lake, 3, None, FIRST)
    assert swept(lake, [], before=2) == 0
    assert epochs_there(lake) == [1, 2, 3]
    assert swept(lake, [], before=3) == 6
    assert epochs_there(lake) == [3]


def test_a_damaged_checkpoint_that_is_not_kept_can_be_removed(lake: OwnedLake) -> None:
    take(lake, 1, None, FIRST)
    take(lake, 2, None, FIRST)
    for epoch in (1, 2):
        Path(lake.root, checkpoint_path(PLACE, Epoch(epoch))).write_bytes(b"damaged")
    with pytest.raises(CorruptFile, match="000000000002/manifest"):
        swept(lake, [2], before=3)
    assert epochs_there(lake) == [1, 2]
    assert swept(lake, [], before=3) == 6
    assert epochs_there(lake) == []


class Dying:
    """Files whose process dies when it removes one more than ``removes`` files."""

    def __init__(self, files: Files, removes: int) -> None:
        self._files = files
        self._removes = removes

    def remove(self, path: str) -> None:
        if not self._removes:
            raise SystemError("the driver dies here")
        self._removes -= 1
        self._files.remove(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.mark.parametrize("removes", range(9))
def test_checkpoints_manifest_removed_first_a_sweep_may_die_between_any_two_removals(
    lake: OwnedLake, removes: int
) -> None:
    """Whatever has a manifest then has its files, and what it builds on."""
    for epoch, base in ((1, None), (2, 1), (3, 2), (4, None)):
        take(lake, epoch, base, FIRST)
    kept, lake.files = lake.files, Dying(lake.files, removes)
    with pytest.raises(SystemError, match="the driver dies here"):
        swept(lake, [4], before=5)
    lake.files = kept
    whole = [epoch for epoch in (1, 2, 3) if "manifest.json" in lake.files.names(f"{AT_PLACE}/{epoch:012d}")]
    assert whole == list(range(1, 4 - math.ceil(removes / 3)))  # newest first; three files each, the manifest first
    for epoch in whole:
        assert read(lake, "a", range(epoch, 0, -1)) == FIRST
        assert read(lake, "b", range(epoch, 0, -1)) == kept_of(other(FIRST))
    assert swept(lake, [4], before=5) == 9 - removes
    assert epochs_there(lake) == [4]
