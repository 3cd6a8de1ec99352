"""What an app is told when it is made: a root and names that would harm later are refused at once."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from upriver.errors import DeclarationError, UpriverWarning
from upriver.settings import NAME_CHARS_MAX, absolute, check_name, check_sizes, unused_lag
from upriver.spark.session import cancel_jobs, check_session, unless_stopped


@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("~no-such-user/lake", r"root='~no-such-user/lake': there is no user of that name; a directory .* with \./"),
        ("dbfs:/lake", "root='dbfs:/lake': dbfs: is known to Databricks only; give the address of the store behind it"),
        ("dbfs://lake", "known to Databricks only"),
        ("file://host/lake", "root='file://host/lake': give file:///directory, or the directory itself"),
        ("file:lake", "give file:///directory"),
        ("s3:/bucket/lake", r"a URI begins with s3://; a directory of that name with \./"),
        ("hdfs://host/lake", "a root is a directory, or begins with s3://"),
        ("a\0b", r"root='a\\x00b': give a directory whose name has no control characters"),
        ("s3://bucket/a\nb", "no control characters"),
    ],
)
def test_what_is_no_root(root: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        absolute(root)


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeclarationError, match=r"/file is a file; give a directory, which may be new"):
        absolute(tmp_path / "file")
    with pytest.raises(DeclarationError, match=r"/file is a file; give a directory"):
        absolute(tmp_path / "file" / "lake" / "of_mine")
    assert absolute(tmp_path) == str(tmp_path)
    assert absolute(f"{tmp_path}/new/") == f"{tmp_path}/new"
    assert absolute("s3://bucket/lake/") == "s3://bucket/lake"
    assert absolute("./dbfs:/lake").endswith("/dbfs:/lake")


def test_forms_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute("~/a lake") == absolute(Path("~/a lake")) == f"{tmp_path}/a lake"
    for uri in (f"file:{tmp_path}/a%20lake", f"file://{tmp_path}/a%20lake", f"file://localhost{tmp_path}/a%20lake/"):
        assert absolute(uri) == f"{tmp_path}/a lake"


def test_a_name_has_so_many_characters() -> None:
    check_name("table", "x" * NAME_CHARS_MAX, ())
    with pytest.raises(DeclarationError, match=f"a name has at most {NAME_CHARS_MAX} characters, not 300"):
        check_name("table", "x" * 300, ())


def test_a_session_that_was_stopped_is_said_to_be() -> None:
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(DeclarationError, match="the Spark session has been stopped: make another one, and the app an"):
        check_session(stopped)
    cancel_jobs(stopped, "of the app")


def test_an_error_of_a_session_that_runs_is_raised() -> None:
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    running: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))
    with pytest.raises(RuntimeError, match="the query"), unless_stopped(running):
        raise RuntimeError("the query does not stop")


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((None, True, None), "vnodes=True: give a whole number"),
        ((None, 64.0, None), "vnodes=64.0: give a whole number"),
        ((None, "64", None), "vnodes='64': give a whole number"),
        ((None, np.float64(64), None), "vnodes=.*: give a whole number"),
        ((None, np.bool_(True), None), "vnodes=.*: give a whole number"),
        ((None, 2**40, None), "a power of two"),
        ((True, 64, None), "workers=True: give a whole number"),
        ((math.nan, 64, None), "workers=nan: give a whole number"),
        ((-1, 64, None), "workers=-1: there must be at least 1"),
        ((1, 64, True), "ingest_tasks=True: give a whole number"),
    ],
)
def test_a_size_of_another_kind_is_refused_in_one_line(sizes: Any, said: str) -> None:
    workers, vnodes, tasks = sizes
    with pytest.raises(DeclarationError, match=said) as refusal:
        check_sizes(workers, vnodes, tasks, 5.0, None)
    assert "\n" not in str(refusal.value)


def test_sizes_of_numpy_become_pythons_own() -> None:
    sizes = check_sizes(np.int32(2), np.int64(64), np.uint8(3), 5.0, None)  # type: ignore[arg-type]
    assert (sizes, set(map(type, sizes))) == ((2, 64, 3), {int})


def test_a_lag_that_has_no_effect_is_warned_of() -> None:
    for lag in (0, 2):
        with pytest.warns(UpriverWarning, match="acceptable_lag_epochs has no effect yet"):
            assert unused_lag(lag) == lag
    assert [unused_lag(lag) for lag in (1, -1)] == [1, -1]  # the warning would be an error
