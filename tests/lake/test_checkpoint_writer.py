"""The thread that writes a worker's part of checkpoints: what it tells, and when; what it leaves; full disks."""

import errno
import queue
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoint_kit import AT_PLACE, PLACE, VNODES, Kept, Model, a_lake, chunk_of, chunks_of, model_of
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.ids import Epoch, VnodeId
from upriver.lake.checkpoint_writer import CheckpointWriter
from upriver.lake.checkpoints import USUAL, Sizes, StateFiles, checkpoint_directory, publish, read_state
from upriver.lake.files import UNFINISHED, Files
from upriver.lake.lake import Lake, OwnedLake
from upriver.state.checkpoint import Checkpoint, CheckpointPlace, StateFile

WAIT_S = 20
AT = Epoch(5)
DIRECTORY = f"{AT_PLACE}/000000000005"
ONE: Model = {7: Kept((1, 2), ("x",))}
MODEL: Model = {key << 58: Kept((key,), ("text",)) for key in range(64)}
EACH_ITS_FILE = Sizes(file_bytes_max=1)


class Heard:
    """What a writer has told, in order."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[tuple[int, tuple[StateFile, ...] | str]] = queue.SimpleQueue()
        self.room = threading.Event()

    def sealed(self, number: int, files: tuple[StateFile, ...]) -> None:
        self.told.put((number, files))

    def failed(self, number: int, error: str) -> None:
        self.told.put((number, error))

    def next_files(self, number: int) -> tuple[StateFile, ...]:
        of, files = self.told.get(timeout=WAIT_S)
        assert of == number
        assert not isinstance(files, str)
        return files

    def next_error(self, number: int) -> str:
        of, error = self.told.get(timeout=WAIT_S)
        assert of == number
        assert isinstance(error, str)
        return error


class Outside:
    """Files of a disk that can be full, or slow: ``hold`` makes it stop at the next file, until ``go``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.is_full = False
        self._may_go = threading.Event()
        self._may_go.set()
        self.stands = threading.Event()
        """The worker waits for the disk."""

    def hold(self) -> None:
        self._may_go.clear()

    def go(self) -> None:
        self._may_go.set()

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if not self._may_go.is_set():
            self.stands.set()
            assert self._may_go.wait(WAIT_S)
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self._files.create(path, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@pytest.fixture
def disk(lake: OwnedLake) -> Iterator[Outside]:
    disk = lake.files = Outside(lake.files)
    yield disk
    disk.go()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def writer(lake: OwnedLake, disk: Outside, heard: Heard) -> Iterator[CheckpointWriter]:
    """Whose every chunk becomes a file, and that has room for one chunk."""
    writer = CheckpointWriter(lake, heard.sealed, heard.failed, heard.room.set, EACH_ITS_FILE, queued_bytes_max=1)
    yield writer
    disk.go()
    writer.close()


def give(writer: CheckpointWriter, number: int, model: Model, epoch: Epoch = AT, keys_max: int = 16) -> None:
    for chunk in chunks_of(model, keys_max):
        writer.write(PLACE, number, epoch, "a", chunk)


def found(lake: OwnedLake, files: Iterable[StateFile]) -> Model:
    """What is read once these files' checkpoint is published."""
    publish(lake, PLACE, Checkpoint(epoch=AT, base=None, regions={"a": ""}, files=tuple(files)))
    return model_of(read_state(lake, PLACE, [AT], "a", list(map(VnodeId, range(VNODES))), VNODES))


def names(lake: Lake) -> set[str]:
    return set(lake.files.names(DIRECTORY))


def test_what_is_sealed_is_told_with_its_files(lake: OwnedLake, writer: CheckpointWriter, heard: Heard) -> None:
    give(writer, 1, MODEL)
    writer.seal(PLACE, 1, AT)
    files = heard.next_files(1)
    assert len(files) == 4
    assert names(lake) == {file.name for file in files}
    assert sum(file.keys for file in files) == len(MODEL)
    assert found(lake, files) == MODEL
    assert lake.files.names(UNFINISHED) == []
    writer.close()
    assert heard.told.empty()


def test_a_worker_without_changes_has_no_files(lake: OwnedLake, writer: CheckpointWriter, heard: Heard) -> None:
    writer.write(PLACE, 1, AT, "a", chunk_of({}))
    writer.seal(PLACE, 1, AT)
    assert heard.next_files(1) == ()
    assert names(lake) == set()


def test_a_task_that_runs_twice_writes_other_files(lake: OwnedLake, writer: CheckpointWriter, heard: Heard) -> None:
    twin = CheckpointWriter(lake, heard.sealed, heard.failed)
    parts = []
    for each in (writer, twin):
        give(each, 1, MODEL)
        each.seal(PLACE, 1, AT)
        parts.append(heard.next_files(1))
    assert len({file.name for files in parts for file in files}) == 5
    assert found(lake, parts[1]) == MODEL
    twin.close()


def test_what_is_given_up_is_removed_and_a_late_seal_tells_nothing(
    lake: OwnedLake, writer: CheckpointWriter, heard: Heard
) -> None:
    give(writer, 1, MODEL)
    writer.give_up(PLACE, 1)
    give(writer, 1, MODEL)
    writer.seal(PLACE, 1, AT)
    writer.write(PLACE, 2, AT, "a", chunk_of(ONE))
    writer.seal(PLACE, 2, AT)
    files = heard.next_files(2)
    assert names(lake) == {file.name for file in files}
    assert found(lake, files) == ONE


@pytest.mark.parametrize("sizes", [EACH_ITS_FILE, USUAL])
def test_what_is_given_up_while_it_is_written_or_sealed_tells_nothing(
    lake: OwnedLake, disk: Outside, heard: Heard, sizes: Sizes
) -> None:
    """With the usual sizes these few chunks are written when they are sealed."""
    writer = CheckpointWriter(lake, heard.sealed, heard.failed, sizes=sizes)
    disk.hold()
    give(writer, 1, MODEL)
    writer.seal(PLACE, 1, AT)
    assert disk.stands.wait(WAIT_S)
    writer.give_up(PLACE, 1)
    disk.go()
    writer.close()
    assert heard.told.empty()
    assert names(lake) == set()


def test_what_was_sealed_is_not_removed(lake: OwnedLake, writer: CheckpointWriter, heard: Heard) -> None:
    """It may be published by now."""
    give(writer, 1, MODEL)
    writer.seal(PLACE, 1, AT)
    files = heard.next_files(1)
    writer.give_up(PLACE, 1)
    writer.close()
    assert found(lake, files) == MODEL


def test_with_the_next_checkpoint_those_before_it_are_given_up(
    lake: OwnedLake, writer: CheckpointWriter, heard: Heard
) -> None:
    give(writer, 3, MODEL)
    writer.write(PLACE, 5, AT, "a", chunk_of(ONE))
    give(writer, 4, MODEL)
    writer.seal(PLACE, 3, AT)
    writer.seal(PLACE, 5, AT)
    files = heard.next_files(5)
    assert names(lake) == {file.name for file in files}
    assert [file.keys for file in files] == [1]


def test_checkpoints_of_several_places_are_written_at_a_time(
    lake: OwnedLake, writer: CheckpointWriter, heard: Heard
) -> None:
    other = CheckpointPlace("1" * 32, ("a",))
    give(writer, 1, ONE)
    writer.write(other, 2, AT, "a", chunk_of(MODEL))
    give(writer, 1, {8: Kept((1,))})
    writer.seal(other, 2, AT)
    writer.seal(PLACE, 1, AT)
    (file,) = heard.next_files(2)
    assert lake.files.names(checkpoint_directory(other, AT)) == [file.name]
    assert {name.name for name in heard.next_files(1)} == names(lake)
    assert len(names(lake)) == 2


def test_a_place_that_is_dropped_is_of_use_to_a_later_flow(
    lake: OwnedLake, writer: CheckpointWriter, heard: Heard
) -> None:
    writer.drop(PLACE)
    give(writer, 1, ONE)
    writer.drop(PLACE)
    writer.drop(PLACE)
    writer.seal(PLACE, 1, AT)
    give(writer, 2, MODEL)
    writer.seal(PLACE, 2, AT)
    files = heard.next_files(2)
    assert names(lake) == {file.name for file in files}
    writer.drop(PLACE)
    writer.seal(PLACE, 3, AT)
    assert heard.next_files(3) == ()


def test_the_files_of_all_places_are_bounded_together(lake: OwnedLake, heard: Heard) -> None:
    other, chunk = CheckpointPlace("1" * 32, ("a",)), chunk_of(MODEL)
    sizes = Sizes(span_bytes_min=10 * chunk.nbytes, file_bytes_max=3 * chunk.nbytes)
    writer = CheckpointWriter(lake, heard.sealed, heard.failed, sizes=sizes)
    for region in "ab":
        writer.write(PLACE, 1, AT, region, chunk)
    writer.write(other, 2, AT, "a", chunk)
    writer.seal(other, 2, AT)
    heard.next_files(2)
    assert len(names(lake)) == 1  # which was completed before the seal
    writer.close()


def test_a_full_disk_spoils_a_checkpoint_and_not_the_writer(
    lake: OwnedLake, disk: Outside, writer: CheckpointWriter, heard: Heard
) -> None:
    give(writer, 1, ONE)
    writer.seal(PLACE, 1, AT)
    heard.next_files(1)
    before = names(lake)
    give(writer, 2, ONE)
    disk.is_full = True
    give(writer, 2, {8: Kept((1,))})
    assert heard.next_error(2).startswith(f"OSError: [Errno 28] No space left on device: '{DIRECTORY}/")
    give(writer, 2, MODEL)
    writer.seal(PLACE, 2, AT)
    writer.seal(PLACE, 3, AT)
    assert heard.next_files(3) == ()
    assert names(lake) == before  # none of the second is left
    assert writer.room
    disk.is_full = False
    give(writer, 4, MODEL)
    writer.seal(PLACE, 4, AT)
    assert found(lake, heard.next_files(4)) == MODEL


def test_a_full_disk_may_be_found_when_sealing(lake: OwnedLake, disk: Outside, heard: Heard) -> None:
    disk.is_full = True
    writer = CheckpointWriter(lake, heard.sealed, heard.failed)
    give(writer, 1, MODEL)
    writer.seal(PLACE, 1, AT)
    assert "No space left on device" in heard.next_error(1)
    writer.close()
    assert heard.told.empty()


def test_a_key_that_is_given_twice_spoils_the_checkpoint(lake: OwnedLake, heard: Heard) -> None:
    writer = CheckpointWriter(lake, heard.sealed, heard.failed)
    for _ in range(2):
        give(writer, 1, ONE)
    writer.seal(PLACE, 1, AT)
    assert heard.next_error(1) == "ProtocolError: a key is in two chunks of one checkpoint"
    writer.close()


def test_state_is_copied_no_faster_than_it_is_written(disk: Outside, writer: CheckpointWriter, heard: Heard) -> None:
    assert writer.room
    disk.hold()
    give(writer, 1, ONE)  # returns, though the disk stands still
    assert disk.stands.wait(WAIT_S)
    assert not writer.room
    assert not heard.room.is_set()
    disk.go()
    assert heard.room.wait(WAIT_S)
    assert writer.room


def test_what_is_given_up_makes_room(disk: Outside, writer: CheckpointWriter, heard: Heard) -> None:
    disk.hold()
    give(writer, 1, MODEL)
    assert disk.stands.wait(WAIT_S)
    writer.give_up(PLACE, 1)
    assert not writer.room
    disk.go()
    assert heard.room.wait(WAIT_S)


def test_closing_gives_up_what_is_under_way(lake: OwnedLake, writer: CheckpointWriter, heard: Heard) -> None:
    give(writer, 1, ONE)
    assert heard.room.wait(WAIT_S)
    assert len(names(lake)) == 1
    writer.close()
    writer.close()
    give(writer, 2, MODEL)
    writer.seal(PLACE, 2, AT)
    writer.give_up(PLACE, 2)
    assert names(lake) == set()
    assert heard.told.empty()


def test_without_checkpoints_there_is_no_thread(lake: OwnedLake, heard: Heard) -> None:
    before = threading.active_count()
    writer = CheckpointWriter(lake, heard.sealed, heard.failed)
    writer.give_up(PLACE, 1)
    assert threading.active_count() == before
    writer.close()
    assert writer.room


# Files ------------------------------------------------------------------------------------------------------------


@MANY
@given(
    sizes=st.builds(Sizes, st.sampled_from([1, 300, 5000]), st.sampled_from([1, 3000, 20_000])),
    given_to=st.lists(st.sampled_from("abc"), min_size=1, max_size=30),
)
def test_files_that_grow_are_bounded_all_together(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sizes, given_to: list[str]
) -> None:
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    writing = StateFiles(lake, PLACE, AT, sizes)
    chunk_bytes = 0
    for number, region in enumerate(given_to):
        before = names(lake)
        chunk = chunk_of({number: Kept((1,), ("a text",))})
        writing.add(region, chunk)
        assert len(names(lake) - before) <= 1
        chunk_bytes = max(chunk_bytes, chunk.nbytes)
    files = writing.complete()
    assert names(lake) == {file.name for file in files}
    most = sizes.file_bytes_max + sizes.span_bytes_min + chunk_bytes + 2000  # the schemas of a span's parts
    assert all(file.nbytes <= most for file in files)
    spans_max = sum(file.nbytes for file in files) / sizes.span_bytes_min + len(files)
    assert sum(len(file.spans) for file in files) <= spans_max
    assert {region: sum(file.keys for file in files if file.region == region) for region in given_to} == {
        region: given_to.count(region) for region in given_to
    }


def test_a_files_spans_and_checksums_cover_it(lake: OwnedLake) -> None:
    writing = StateFiles(lake, PLACE, AT, Sizes(span_bytes_min=1))
    for chunk in chunks_of(MODEL, 8):
        writing.add("a", chunk)
    (file,) = writing.complete()
    assert len(file.spans) == len(file.checksums) == 8
    assert sum(span.length for span in file.spans) == file.nbytes
    assert len(lake.files.read(f"{DIRECTORY}/{file.name}")) == file.nbytes
    writing.drop()
    assert names(lake) == set()
