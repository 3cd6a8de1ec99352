"""What an app is told when it is made: a root and names that would harm later are refused at once."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tls_kit import OWN, OWN_KEY

from upriver.errors import DeclarationError, UpriverWarning
from upriver.options import Checkpoints, Compaction, Doors, Standbys, Tls, Tokens
from upriver.settings import (
    NAME_CHARS_MAX,
    TASK_MEMORY_MIN,
    absolute,
    check_name,
    check_sizes,
    check_task_memory,
    groups_of,
)
from upriver.spark.session import SessionSetting, cancel_jobs, check_session, unless_stopped


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


@pytest.mark.parametrize("memory", [None, True, 1.5, "1g", 1 << 20])
def test_a_task_has_enough_memory(memory: Any) -> None:
    with pytest.raises(DeclarationError, match=r"ingest_task_memory=.*at least 536,870,912"):
        check_task_memory(memory)
    check_task_memory(TASK_MEMORY_MIN)


def test_sizes_of_numpy_become_pythons_own() -> None:
    sizes = check_sizes(np.int32(2), np.int64(64), np.uint8(3), 5.0, None)  # type: ignore[arg-type]
    assert (sizes, set(map(type, sizes))) == ((2, 64, 3), {int})


@pytest.mark.parametrize(
    ("earlier", "said", "group", "now"),
    [
        ({"bind": "0.0.0.0"}, 'bind= is listen="host:port" now', "listen", "0.0.0.0:0"),
        ({"token": "one"}, r"token= is tokens=Tokens\(operator=...\) now", "tokens", Tokens(operator="one")),
        (
            {"token": "one", "reader_token": "two"},
            r"reader_token= is tokens=Tokens\(reader=...\) now",
            "tokens",
            Tokens(operator="one", reader="two"),
        ),
        ({"num_standby_replicas": 1}, "Standbys", "standbys", Standbys(replicas=1)),
        ({"checkpoint_interval_s": None}, "Checkpoints", "checkpoints", Checkpoints(interval_s=None)),
        ({"compaction_grace_s": 5}, "Compaction", "compaction", Compaction(grace_s=5)),
        ({"compaction": False}, "enabled", "compaction", Compaction(enabled=False)),
        ({"http": "127.0.0.1:0", "flight": None}, "Doors", "doors", Doors(http="127.0.0.1:0")),
        (
            {"tls_certificate": OWN, "tls_key": OWN_KEY},
            r"tls_key= is tls=Tls\(certificate=..., key=...\) now, and is for everything that the app listens on",
            "tls",
            Tls(certificate=OWN, key=OWN_KEY),
        ),
        ({"acceptable_lag_epochs": 2}, "acceptable_lag_epochs= has no effect: leave it out", "standbys", Standbys()),
    ],
)
def test_earlier_spellings_work_with_a_warning(earlier: dict[str, Any], said: str, group: str, now: object) -> None:
    with pytest.warns(UpriverWarning, match=said):
        options = groups_of({}, earlier)
    assert getattr(options, group) == now


def test_a_warning_never_has_a_token() -> None:
    with pytest.warns(UpriverWarning) as warned:
        groups_of({}, {"token": "s3cret-of-mine", "reader_token": "another-one"})
    assert not any(word in str(warned[0].message) for word in ("s3cret", "another-one"))
    assert "s3cret" not in repr(Tokens(operator="s3cret"))


def test_compaction_as_a_flag_is_the_earlier_spelling() -> None:
    with pytest.warns(UpriverWarning, match="compaction= is compaction="):
        assert groups_of({"compaction": False}, {}).compaction == Compaction(enabled=False)


@pytest.mark.parametrize(
    ("given", "earlier", "said"),
    [
        ({}, {"htpp": "h:1"}, r"htpp=: App has no such option; http= is doors=Doors\(http=...\) now"),
        ({}, {"worker": 2}, r"worker=: App has no such option; did you mean workers="),
        ({"doors": Doors()}, {"http": "h:1"}, r"http= and doors= are given: http= is doors=Doors\(http=...\) now"),
        ({"tls": Tls(certificate=OWN, key=OWN_KEY)}, {"tls_key": "key.pem"}, r"tls_key= and tls= are given"),
        ({"tls": "cert.pem"}, {}, r"tls: give upriver.Tls\(...\), not a str"),
        ({"standbys": 2}, {}, r"standbys: give upriver.Standbys\(...\), not a int"),
        ({}, {"tls_key": "key.pem"}, "tls_certificate= is missing"),
        ({}, {"bind": 5}, "bind=5: give a text"),
    ],
)
@pytest.mark.filterwarnings("ignore::upriver.errors.UpriverWarning")
def test_options_that_there_are_not(given: dict[str, Any], earlier: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        groups_of(given, earlier)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Standbys(replicas=-1), r"Standbys: replicas=-1: at least 0 is needed"),
        (lambda: Standbys(partial_rebalance="no"), "give True or False, not a str"),  # type: ignore[arg-type]
        (lambda: Checkpoints(interval_s=0), r"Checkpoints: interval_s=0: give seconds, or None, more than 0"),
        (lambda: Checkpoints(interval_epochs=0.5), "give a whole number, not a float"),  # type: ignore[arg-type]
        (lambda: Compaction(grace_s=-1), "give a number of seconds, 0 or more"),
        (lambda: Tokens(operator="a", reader="a"), "give two tokens"),
        (lambda: Tokens.of_environment("UPRIVER_NO_SUCH"), "the environment has no UPRIVER_NO_SUCH"),
        (lambda: Tokens.of_files("/no/such"), "'/no/such' cannot be read: No such file"),
    ],
)
def test_options_of_a_group_are_checked(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        make()


def test_tokens_come_from_files_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, reader = tmp_path / "operator", tmp_path / "reader"
    operator.write_text("one\n")
    reader.write_text(" two")
    assert Tokens.of_files(operator, str(reader)) == Tokens(operator="one", reader="two")
    monkeypatch.setenv("UPRIVER_TOKEN", "three")
    assert Tokens.of_environment() == Tokens(operator="three")
    monkeypatch.setenv("UPRIVER_READER_TOKEN", "four")
    assert Tokens.of_environment() == Tokens(operator="three", reader="four")
    operator.write_bytes(b"\xff")
    with pytest.raises(DeclarationError, match="is to have one token of ASCII characters, and nothing else"):
        Tokens.of_files(operator)


def test_a_setting_lasts_as_long_as_the_blocks_that_want_it() -> None:
    conf = {"mine": "1"}
    made = SimpleNamespace(get=conf.get, set=conf.__setitem__, unset=conf.__delitem__)

    class Session:
        def __init__(self) -> None:
            self.conf = made

    spark: Any = Session()
    for name, before in (("mine", "1"), ("new", None)):
        setting = SessionSetting(name, "2")
        first, second = setting.of(spark), setting.of(spark)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert conf[name] == "2"
        second.__exit__(None, None, None)
        assert conf.get(name) == before
