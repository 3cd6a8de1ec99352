"""Files in an object store: creates that race or whose answers are lost, Hadoop's marks, errors, drivers that race."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from s3_kit import BUCKET, KEY, OVERWRITES, SECRET, S3Server

from upriver.errors import DeclarationError, LakeInUse, NotRead, NotWritten
from upriver.ids import Epoch
from upriver.lake.address import Root
from upriver.lake.files import Files, open_files
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.object_store import CREATE_TRIES_MAX, ObjectStoreFiles, open_object_store
from upriver.plan.plan import TableSpec

RACES = 20
TAKEOVERS = 8
EPOCHS = 30
WAIT_S = 60.0
TABLE = TableSpec("events", pa.schema([("k", pa.int64())]), ("k",))
RECORD = LakeRecord(8, (TABLE,), {"events": (("k",),)})


@pytest.fixture
def root(s3: S3Server) -> Root:
    return s3.new_root()


# Creates --------------------------------------------------------------------------------------------------------


def test_one_of_two_threads_creates_a_file(root: Root) -> None:
    files, start = open_files(root), threading.Barrier(2)

    def race(content: bytes) -> list[bool]:
        won = []
        for number in range(RACES):
            start.wait()
            try:
                files.create(f"e/{number}", content)
                won.append(True)
            except FileExistsError:
                won.append(False)
        return won

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(race, (b"first", b"second"))
    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * RACES
    found = [files.read(f"e/{number}").to_pybytes() for number in range(RACES)]
    assert found == [b"first" if won else b"second" for won in first]


def test_a_create_whose_answer_is_lost_is_known_as_ones_own(s3: S3Server, root: Root) -> None:
    """Rule lake.own_create_is_recognised."""
    pauses: list[float] = []
    files = open_object_store(root, pauses.append)
    s3.lose_answer("e/1")
    files.create("e/1", b"content")
    assert len(pauses) == 1
    assert files.read("e/1").to_pybytes() == b"content"
    with pytest.raises(FileExistsError, match="e/1"):
        files.create("e/1", b"content")


def test_what_another_has_created_meanwhile_is_not_ones_own(s3: S3Server, root: Root) -> None:
    """The answer is lost, and before the next attempt the file is another's."""
    other = open_files(root)

    def replace(_: float) -> None:
        other.remove("e/1")
        other.create("e/1", b"another's")

    files = open_object_store(root, replace)
    s3.lose_answer("e/1")
    with pytest.raises(FileExistsError):
        files.create("e/1", b"mine")
    assert other.read("e/1").to_pybytes() == b"another's"


# Errors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nothing listens."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_store_that_does_not_answer_is_given_up(s3: S3Server, closed_port: int) -> None:
    root = Root("s3://lakes/x", {**s3.options, "endpoint": f"http://127.0.0.1:{closed_port}"})
    pauses: list[float] = []
    files = open_object_store(root, pauses.append)
    with pytest.raises(NotWritten, match=r"^s3://lakes/x/e/1: cannot be written \(.+\)\. Check the store") as write:
        files.create("e/1", b"a")
    assert len(pauses) == CREATE_TRIES_MAX - 1
    with pytest.raises(NotRead, match=r"^s3://lakes/x/e/1: cannot be read now \(") as read:
        files.read("e/1")
    assert not any(key in str(error.value) for error in (write, read) for key in (KEY, SECRET))


def test_a_bucket_that_is_missing_is_named(s3: S3Server) -> None:
    pauses: list[float] = []
    files = open_object_store(s3.root("s3://nowhere/lake"), pauses.append)
    with pytest.raises(NotRead, match=r"s3://nowhere/lake/e: cannot be read now \(.*bucket does not exist"):
        files.names("e")
    with pytest.raises(NotWritten, match=r"bucket does not exist.*\. Make the bucket, or choose another root"):
        files.create("e/1", b"a")
    assert pauses == []  # another attempt would not help


def test_settings_are_in_no_repr(root: Root) -> None:
    assert SECRET in root.options.values()
    assert SECRET not in repr(root) + repr(open_files(root)) + repr(Lake(root))


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("abfss://lakes@account.dfs.core.windows.net/x", {"account_key": "no base64!"}),
        ("gs://lakes/x", {"service_account": "/no/such/file"}),
    ],
)
def test_a_setting_that_no_store_takes_is_refused(address: str, options: dict[str, str]) -> None:
    with pytest.raises(DeclarationError, match="the store cannot be opened"):
        open_files(Root(address, options))


@pytest.mark.parametrize(
    "address", ["abfss://lakes@account.dfs.core.windows.net/x", "az://lakes/x", "abfs://lakes/x", "gs://lakes/x"]
)
def test_other_stores_are_opened(address: str) -> None:
    options = {} if address.startswith("gs") else {"account_name": "account", "account_key": "a2V5"}
    assert isinstance(open_files(Root(address, options)), ObjectStoreFiles)


def test_without_obstore_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["obstore"] = None  # as if it were not installed
from upriver.errors import DeclarationError
from upriver.lake.files import open_files

try:
    open_files("s3://lakes/x")
except DeclarationError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "root='s3://lakes/x'" in said
    assert "pip install 'upriver[object-stores]'" in said


# Hadoop's marks of directories ----------------------------------------------------------------------------------


def test_hadoops_marks_are_no_files(s3: S3Server, root: Root) -> None:
    files = open_files(root)
    prefix = root.removeprefix(f"s3://{BUCKET}/")
    for mark in ["", "ingest/", "ingest/t/", "ingest/t/commits/", "ingest/t/offsets/"]:
        url = f"{s3.endpoint}/{BUCKET}/{prefix}/{mark}"
        assert urlopen(Request(url, method="PUT", data=b"")).status == 200
    files.create("ingest/t/offsets/0", b"v1")
    files.create("ingest/t/empty", b"")
    assert files.tree("ingest/t") == ["ingest/t/empty", "ingest/t/offsets/0"]
    assert files.tree("") == ["ingest/t/empty", "ingest/t/offsets/0"]
    assert files.names("ingest/t") == ["commits", "empty", "offsets"]
    assert files.names("ingest/t/commits") == []
    assert files.names("") == ["ingest"]


# Drivers --------------------------------------------------------------------------------------------------------


def publish(lake: OwnedLake, epoch: int) -> bool:
    """Whether the lake has taken it."""
    try:
        lake.publish(Manifest(epoch=Epoch(epoch), term=lake.term, table="events", query="q", batch=epoch, runs={}))
    except LakeInUse:
        return False
    return True


def test_both_schemes_are_one_root(s3: S3Server, root: Root) -> None:
    OwnedLake(root, RECORD, {})
    other = OwnedLake(s3.root(root.replace("s3://", "s3a://")), RECORD, {})
    assert other.term == 2
    assert other.record() == RECORD


class Meeting:
    """Files whose epochs are created when two drivers are about to."""

    def __init__(self, files: Files, both: threading.Barrier) -> None:
        self._files = files
        self._both = both
        self.is_about_to = threading.Event()

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if path.startswith("epochs/"):
            self.is_about_to.set()
            self._both.wait(WAIT_S)
        self._files.create(path, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_one_of_two_drivers_commits_an_epoch(s3: S3Server) -> None:
    """The first has found that the root is its own, and is about to commit, when the second takes the root."""
    for _ in range(TAKEOVERS):
        root, both = s3.new_root(), threading.Barrier(2)
        first = OwnedLake(root, RECORD, {})
        meeting = first.files = Meeting(first.files, both)
        with ThreadPoolExecutor(1) as pool:
            committed = pool.submit(publish, first, 1)
            assert meeting.is_about_to.wait(WAIT_S)
            second = OwnedLake(root, RECORD, {})
            second.files = Meeting(second.files, both)
            assert publish(second, 1) != committed.result()
        winner = first if committed.result() else second
        assert Lake(root).manifest(Epoch(1)).term == winner.term
        assert not publish(first, 2)


def test_drivers_that_go_on_never_commit_one_epoch_twice(root: Root) -> None:
    """Several drivers take the root from each other while they publish."""
    starting = threading.Barrier(3)

    def drive(_: int) -> list[tuple[int, int]]:
        """(term, epoch) of all that it has committed."""
        starting.wait()
        done: list[tuple[int, int]] = []
        while (last := Lake(root).last_epoch()) < EPOCHS:
            try:
                lake = OwnedLake(root, RECORD, {})
            except LakeInUse:
                continue
            for epoch in range(lake.last_epoch() + 1, last + 5):
                if not publish(lake, epoch):
                    break
                done.append((lake.term, epoch))
        return done

    with ThreadPoolExecutor(3) as pool:
        committed = [pair for done in pool.map(drive, range(3)) for pair in done]
    lake = Lake(root)
    found = [(lake.manifest(Epoch(epoch)).term, epoch) for epoch in range(1, lake.last_epoch() + 1)]
    assert sorted(committed, key=lambda pair: pair[1]) == found
    assert len(found) >= EPOCHS


def test_a_store_that_overwrites_is_refused(s3: S3Server) -> None:
    """Rule lake.create_is_exclusive."""
    with pytest.raises(DeclarationError, match="its store overwrites a file that is to be new"):
        OwnedLake(s3.root(f"{s3.new_root()}/{OVERWRITES}"), RECORD, {})
