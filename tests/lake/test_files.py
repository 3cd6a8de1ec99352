"""Files under a root: one suite for every filesystem, then what only a local directory can do."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from store_kit import files_in_memory

from upriver.errors import CorruptFile, DeclarationError, LakeInUse, NotWritten
from upriver.lake.files import UNFINISHED, Files, LocalFiles, open_files

RACERS = 4
RACES = 25
CONTENT_BYTES = 300_000


def local(directory: Path, _: pytest.FixtureRequest) -> Files:
    return LocalFiles(str(directory / "not made yet" / "lake"))


def in_memory(_: Path, __: pytest.FixtureRequest) -> Files:
    return files_in_memory()


def in_s3(_: Path, request: pytest.FixtureRequest) -> Files:
    return open_files(request.getfixturevalue("s3").new_root())


@pytest.fixture(params=[local, in_memory, in_s3])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    make: Callable[[Path, pytest.FixtureRequest], Files] = request.param
    return make(tmp_path, request)


class TestEveryFilesystem:
    @pytest.mark.parametrize("content", [b"rows", b"", b"\x00\xff" * 70_000])
    @pytest.mark.parametrize("path", ["app.json", "tables/flights/tail%20num,é.x/000-a.arrow"])
    def test_what_is_created_is_read(self, files: Files, path: str, content: bytes) -> None:
        files.create(path, content)
        assert files.read(path).to_pybytes() == content

    def test_a_buffer_is_written_like_bytes(self, files: Files) -> None:
        files.create("a", pa.py_buffer(b"abcdef").slice(2, 3))
        assert files.read("a").to_pybytes() == b"cde"

    def test_a_file_is_created_once(self, files: Files) -> None:
        files.create("epochs/1.json", b"first")
        with pytest.raises(FileExistsError, match=r"epochs/1\.json"):
            files.create("epochs/1.json", b"second")
        assert files.read("epochs/1.json").to_pybytes() == b"first"

    def test_a_missing_file_is_said_to_be_missing(self, files: Files) -> None:
        with pytest.raises(FileNotFoundError):
            files.read("app.json")
        files.create("tables/a", b"")
        with pytest.raises(FileNotFoundError):
            files.read("tables/b")

    def test_names_are_sorted_and_of_one_directory(self, files: Files) -> None:
        for path in ["e/2", "e/10", "e/1", "e/deep/3", "f/9", "e/.hidden"]:
            files.create(path, b"")
        assert files.names("e") == ["1", "10", "2", "deep"]
        assert files.names("e/deep") == ["3"]
        assert files.names("nowhere") == []

    def test_creating_leaves_nothing_unfinished(self, files: Files) -> None:
        files.create("e/1", b"a")
        with pytest.raises(FileExistsError):
            files.create("e/1", b"b")
        assert files.names("e") == ["1"]
        assert files.names(UNFINISHED) == []

    def test_a_removed_file_is_gone_and_its_name_free(self, files: Files) -> None:
        files.create("e/1", b"a")
        files.remove("e/1")
        files.remove("e/1")
        files.remove("nowhere/1")
        assert files.names("e") == []
        files.create("e/1", b"b")
        assert files.read("e/1").to_pybytes() == b"b"

    def test_a_directory_is_removed_once_it_is_empty(self, files: Files) -> None:
        files.create("e/1/a", b"a")
        files.remove_directory("e/1")
        files.remove_directory("nowhere")
        assert files.read("e/1/a").to_pybytes() == b"a"
        files.remove("e/1/a")
        files.remove_directory("e/1")
        files.remove_directory("e/1")
        assert files.names("e") == []
        files.create("e/1/a", b"b")
        assert files.read("e/1/a").to_pybytes() == b"b"

    def test_a_tree_has_all_files_below(self, files: Files) -> None:
        for path in ["e/2", "e/deep/down/3", "e/.hidden", "f/9"]:
            files.create(path, b"a")
        files.create("e/empty", b"")
        assert files.tree("e") == ["e/.hidden", "e/2", "e/deep/down/3", "e/empty"]
        assert files.tree("nowhere") == []

    def test_many_files_are_removed(self, files: Files) -> None:
        for path in ["e/1", "e/2", "e/3", "f/1"]:
            files.create(path, b"a")
        files.remove_all([])
        files.remove_all(["e/1", "nowhere/1", "e/3", "f/1"])
        assert (files.names("e"), files.names("f")) == (["2"], [])

    @pytest.mark.parametrize("parts", [[], [(0, 6)], [(2, 3)], [(1, 2), (0, 1), (4, 9)], [(7, 2), (3, 2)], [(6, 1)]])
    def test_parts_are_read_as_far_as_the_file_goes(self, files: Files, parts: list[tuple[int, int]]) -> None:
        content = b"abcdef"
        files.create("a", content)
        targets = [bytearray(b"." * length) for _, length in parts]
        length = files.read_into("a", [(first, memoryview(t)) for (first, _), t in zip(parts, targets, strict=True)])
        assert length == len(content)
        expected = [content[first : first + length].ljust(length, b".") for first, length in parts]
        assert [bytes(target) for target in targets] == expected
        with pytest.raises(FileNotFoundError):
            files.read_into("b", [(0, memoryview(bytearray(1)))])

    def test_what_was_read_outlives_the_file(self, files: Files) -> None:
        files.create("a", b"still here")
        content = files.read("a")
        files.remove("a")
        assert content.to_pybytes() == b"still here"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file stands where its directory should be; the file itself is not there."""
    files = LocalFiles(str(tmp_path / "lake"))
    files.create("e", b"in the way")
    with pytest.raises(
        NotWritten, match=r"lake/e/1: cannot be written \(.+\)\. (Let this process write there|Free space)"
    ):
        files.create("e/1", b"a")
    assert files.names(UNFINISHED) == []


def test_a_directory_in_the_place_of_a_file_or_a_file_in_that_of_a_directory_is_damage(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").touch()
    for read in (lambda: files.read("a/b"), lambda: files.read("c/b"), lambda: files.names("c")):
        with pytest.raises(CorruptFile, match=f"^{tmp_path}/"):
            read()


def test_local_files_are_the_users_own(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = LocalFiles(str(tmp_path / "new" / "lake"))
        held = files.lock()
        files.create("tables/t/run", b"rows")
        files.make_directory("ingest")
        files.make_directory("ingest")
    finally:
        os.umask(before)
    assert held is not None
    held.close()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    own = {"new": 0o700, "lake": 0o700, "tables": 0o700, "t": 0o700, "ingest": 0o700, "unfinished": 0o700}
    assert modes == own | {"run": 0o600, ".lock": 0o600}


def test_a_relative_root_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = open_files("lake")
    monkeypatch.chdir("/")
    files.create("a", b"b")
    assert (tmp_path / "lake" / "a").read_bytes() == b"b"


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"root='gopher://a/b': a root is a directory, or begins with s3://, "):
        open_files("gopher://a/b")


def test_one_thread_wins_and_no_reader_sees_half_a_file(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    contents = [bytes([racer]) * CONTENT_BYTES for racer in range(RACERS)]
    start = threading.Barrier(RACERS + 1)

    def race(racer: int) -> list[bool]:
        won = []
        for number in range(RACES):
            start.wait()
            try:
                files.create(f"e/{number}", contents[racer])
                won.append(True)
            except FileExistsError:
                won.append(False)
        return won

    def watch() -> list[bytes]:
        """What a reader sees of each file first."""
        seen = []
        for number in range(RACES):
            start.wait()
            while str(number) not in files.names("e"):
                pass
            seen.append(files.read(f"e/{number}").to_pybytes())
        return seen

    with ThreadPoolExecutor(RACERS + 1) as pool:
        watching = pool.submit(watch)
        won = list(pool.map(race, range(RACERS)))
    winners = [[racer for racer in range(RACERS) if won[racer][number]] for number in range(RACES)]
    assert [len(each) for each in winners] == [1] * RACES
    assert watching.result() == [contents[winner] for (winner,) in winners]
    assert files.names(UNFINISHED) == []


RACING_PROCESS = f"""
import sys
from upriver.lake.files import LocalFiles
files, racer = LocalFiles(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range({RACES}):
    try:
        files.create(f"e/{{number}}", bytes([racer]) * {CONTENT_BYTES})
        print(number, flush=True)
    except FileExistsError:
        pass
"""


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that has said its first line."""
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert output(process).readline().strip() == "ready"
    return process


def output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_one_process_wins(tmp_path: Path) -> None:
    racers = [started(RACING_PROCESS, str(tmp_path), str(racer)) for racer in range(RACERS)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [[int(number) for number in racer.communicate()[0].split()] for racer in racers]
    assert sorted(number for numbers in won for number in numbers) == list(range(RACES))
    files = LocalFiles(str(tmp_path))
    for winner, numbers in enumerate(won):
        assert all(files.read(f"e/{n}").to_pybytes() == bytes([winner]) * CONTENT_BYTES for n in numbers)


def test_a_writer_that_dies_leaves_no_file(tmp_path: Path) -> None:
    """The file is there under a name that no reader opens, and under its own once it is whole."""
    code = f"""
import os, signal
from upriver.lake.files import LocalFiles
os.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # dies with all bytes written
LocalFiles({str(tmp_path)!r}).create("e/1", b"whole")
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    files = LocalFiles(str(tmp_path))
    assert files.names("e") == []
    assert len(files.names(UNFINISHED)) == 1
    files.create("e/1", b"again")
    assert files.read("e/1").to_pybytes() == b"again"


def test_a_locked_root_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "lake"))
    held = files.lock()
    assert held is not None
    for _ in range(2):  # a refusal leaves the holder's name as it is
        with pytest.raises(LakeInUse, match=rf"lake is in use by process {os.getpid()} on .+: .* stop it, or choose"):
            LocalFiles(str(tmp_path / "lake")).lock()
    held.close()
    again = files.lock()
    assert again is not None
    again.close()
    assert files.names("") == []


HOLDING_PROCESS = """
import sys
from upriver.lake.files import LocalFiles
held = LocalFiles(sys.argv[1]).lock()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_root_is_free_once_its_holder_is_killed(tmp_path: Path) -> None:
    holder = started(HOLDING_PROCESS, str(tmp_path))
    files = LocalFiles(str(tmp_path))
    with pytest.raises(LakeInUse, match=f"in use by process {holder.pid} on "):
        files.lock()
    holder.kill()
    holder.communicate()
    held = files.lock()
    assert held is not None
    held.close()


def test_a_root_on_a_full_disk_can_be_held(tmp_path: Path) -> None:
    """It is not known which process holds it then."""
    code = """
import resource, sys
from upriver.lake.files import LocalFiles
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
held = LocalFiles(sys.argv[1]).lock()
print("ready", flush=True)
sys.stdin.readline()
held.close()
"""
    holder = started(code, str(tmp_path))
    with pytest.raises(LakeInUse, match="is in use by an unknown process"):
        LocalFiles(str(tmp_path)).lock()
    holder.communicate("go on\n")
    assert holder.returncode == 0


def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_it_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync, link = os.fsync, os.link

    def noted_sync(descriptor: int) -> None:
        synced.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def noted_link(source: str, target: str) -> None:
        synced.append("link")
        link(source, target)

    files = LocalFiles(str(tmp_path))
    files.create("first", b"x")  # makes the directories
    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "link", noted_link)
    files.create("second", b"content")
    assert synced == ["file", "link", "directory"]
