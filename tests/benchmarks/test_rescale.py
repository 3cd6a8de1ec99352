"""``python -m benchmarks rescale``: how it counts and looks up, what it draws, and Spark's own way."""

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from client_kit import Cluster, View
from hypothesis import given
from hypothesis import strategies as st
from server_kit import SECONDS_MAX

from benchmarks.commands import default_picture, render_rescale
from benchmarks.events import VIEW
from benchmarks.rescale import ratio
from benchmarks.rescale_figures import (
    FedRows,
    LoadTrace,
    Probes,
    Spans,
    Window,
    batching_figures,
    moving,
    rows_per_s,
    trace,
    way_figures,
    wrong_answers,
)
from benchmarks.rescale_picture import draw_batching, draw_rescale
from benchmarks.rescale_prober import FAILED, PROBES, RescaleProber, RescaleProbeTask
from benchmarks.rescale_spark import PARTS, StatefulQuery
from upriver.errors import ClusterError
from upriver.hashing import hash64
from upriver.ids import VnodeId
from upriver.protocol.lookups import ViewRoute
from upriver.protocol.strategies import Strategy
from upriver.vnodes import vnodes_of

Probe = tuple[float, float, int, int, int]


def probes(*found: Probe) -> Probes:
    """Of due_at, answered_at, key, n, at_least."""
    table = pa.table([list(column) for column in zip(*found, strict=True)] or [[]] * 5, schema=PROBES)
    return Probes(*(column.to_numpy() for column in table.columns))


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


# Counting --------------------------------------------------------------------------------------------------------

BEFORE, DURING = Window(0.0, 10.0), Window(10.0, 20.0)
SPANS = Spans(BEFORE, DURING, 12.0)
REPORT = {"max_hold_ms": 7.0, "max_stall_ms": 3.0, "moved_bytes": 640, "moved_keys": 40, "seconds": 9.9}


def steady(due_at: float, ms: float, key: int = 1) -> Probe:
    return due_at, due_at + ms / 1e3, key, 1, 0


def test_a_lookup_belongs_to_every_window_that_it_was_under_way_in() -> None:
    found = probes(*(steady(due_at, ms) for due_at, ms in [(1, 1), (9.9995, 1), (12, 1), (19.999, 2), (21, 1)]))
    assert found.inside(BEFORE).due_at.tolist() == [1]
    assert found.touching(DURING).due_at.tolist() == [9.9995, 12, 19.999]


def test_lookups_before_and_during_are_told_apart_and_moving_keys_from_others() -> None:
    found = probes(
        *(steady(number / 100, 1 + number / 100) for number in range(100)),  # 1 to 2 ms
        *(steady(11 + number / 100, 3, key=1) for number in range(50)),
        *(steady(11.995 + number / 100, 30, key=2) for number in range(50)),
        steady(20.5, 77),  # the tasks of retired workers end in that second
        *(steady(21 + number / 100, 4) for number in range(50)),
        steady(40, 88),
    )
    figures = way_figures(found, FedRows.of(1, []), SPANS, found.key == 2, REPORT)
    assert figures["lookup_p99_ms_before"] == figures["lookup_p99_ms_before_all_keys"] == pytest.approx(1.98)
    assert figures["lookup_p50_ms_before"] == pytest.approx(1.49)
    assert figures["lookup_p99_ms_during"] == pytest.approx(3)
    assert figures["lookup_p99_ms_after"] == pytest.approx(4)
    assert figures["lookup_p99_ms_during_all_keys"] == figures["lookup_max_ms_during"] == pytest.approx(30)
    assert figures["lookups_during"] == 100
    assert (figures["starting_s"], figures["lookup_max_ms_starting"]) == (2.0, pytest.approx(30))
    assert figures["lookup_max_ms_moving"] == pytest.approx(30)
    assert figures["lookup_p99_ms_moving"] is None
    assert (figures["bytes"], figures["moved_keys"], figures["seconds"]) == (640, 40, 9.9)
    assert (figures["max_hold_ms"], figures["max_stall_ms"]) == (7.0, 3.0)
    json.dumps(figures)


@pytest.mark.parametrize(
    ("lookup_ms", "update_ms", "hold_ms", "longest"),
    [(90.0, 20.0, 10.0, 90.0), (9.0, 80.0, 10.0, 80.0), (9.0, 8.0, 70.0, 70.0), (9.0, 8.0, None, 9.0)],
)
def test_unserved_is_the_longest_of_lookups_updates_and_holds(
    lookup_ms: float, update_ms: float, hold_ms: float | None, longest: float
) -> None:
    found = probes(steady(12, lookup_ms), (13.0, 13.0 + update_ms / 1e3, 1, 2, 1), steady(5, 500), steady(20.1, 99))
    figures = way_figures(
        found, FedRows.of(1, [(13.0, keys(1))]), SPANS, found.key < 0, REPORT | {"max_hold_ms": hold_ms}
    )
    assert figures["max_unserved_ms"] == pytest.approx(longest)
    assert figures["update_max_ms_during"] == pytest.approx(update_ms)
    assert figures["lookup_max_ms_after"] == pytest.approx(99)


def test_a_rescale_during_which_nothing_was_asked_has_no_latencies() -> None:
    figures = way_figures(probes(steady(1, 1)), FedRows.of(1, []), SPANS, np.array([False]), REPORT)
    assert figures["lookup_p99_ms_during"] is None
    assert figures["max_unserved_ms"] == 7.0
    assert batching_figures(10, probes(), DURING, REPORT)["lookup_max_ms_during"] is None


def test_rows_count_when_all_probed_keys_of_their_epoch_show() -> None:
    fed = FedRows.of(5, [(9.0, keys(1, 1, 2)), (11.0, keys(3, 4)), (12.0, keys(5))])
    found = probes((9.0, 9.1, 1, 3, 5), (9.0, 10.5, 2, 2, 5), (11.0, 11.1, 3, 2, 6), (12.0, 21.0, 5, 2, 7))
    assert rows_per_s(found, fed, BEFORE) == 0
    assert rows_per_s(found, fed, Window(10.0, 12.0)) == round(5 / 2)


@given(st.data())
def test_a_count_is_wrong_if_it_could_not_have_been(data: st.DataObject) -> None:
    epochs = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=5))
    fed = FedRows.of(3, [(float(place), keys(*rows)) for place, rows in enumerate(epochs)])  # epoch 3 + i at second i
    key, n = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 12))
    answered_at = data.draw(st.integers(0, 5)) + 0.5
    published = [number for number in range(len(epochs)) if number < answered_at]
    at_least = data.draw(st.sampled_from([0, *(3 + number for number in published)]))
    least = 1 + sum(rows.count(key) for rows in epochs[: max(0, at_least - 2)])
    most = 1 + sum(epochs[number].count(key) for number in published)
    found = probes((answered_at, answered_at, key, n, at_least))
    assert wrong_answers(found, fed) == (0 if least <= n <= most else 1)
    assert fed.counts(4).tolist() == [sum(rows.count(k) for rows in epochs) for k in range(4)]


def test_a_failed_lookup_is_a_wrong_answer() -> None:
    assert wrong_answers(probes((1.0, 2.0, 7, FAILED, 0), (1.0, 2.0, 7, 1, 0)), FedRows.of(1, [])) == 1


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=50), st.sets(st.integers(0, 15)))
def test_a_key_moves_with_its_vnode(numbers: list[int], moved: set[int]) -> None:
    found = moving(keys(*numbers), 16, [VnodeId(vnode) for vnode in sorted(moved)])
    assert found.tolist() == [int(vnodes_of(hash64([pa.array([n])]), 16)[0]) in moved for n in numbers]


def test_a_line_shows_the_longest_lookup_of_each_tenth_of_a_second() -> None:
    found = probes(steady(9.95, 2), steady(10.01, 3), steady(10.09, 5), steady(10.51, 4), (10.2, 10.9, 1, 1, 2))
    line = trace(found, Window(9.9, 11.0), Window(10.0, 10.4))
    assert line == LoadTrace((-0.05, 0.05, 0.55), (2.0, 5.0, 4.0), 0.4)


# Looking up ------------------------------------------------------------------------------------------------------

EPOCHS = [json.dumps({"epoch": 2, "at": 0.5, "keys": [3, 4]}), json.dumps({"epoch": 99, "at": 1.5, "keys": [5]})]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two workers that keep ten keys; nothing ever changes."""
    cluster = Cluster(2)
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    cluster.views[VIEW] = View(ViewRoute(("k",), schema), [(key, key + 100) for key in range(10)])
    yield cluster
    cluster.stop()


def probe(cluster: Cluster, published: Iterator[str]) -> list[Probe]:
    task = RescaleProbeTask(address=cluster.coordinator.address, view=VIEW, keys=10, per_s=1000.0, result="")
    with cluster.connect() as client:
        table = RescaleProber(client, task).probe(published)
    return [tuple(row.values()) for row in table.to_pylist()]


def counter(enough: int) -> tuple[Callable[[int], None], threading.Event]:
    """Told of lookups; the event is set when there were enough."""
    numbers, reached = itertools.count(1), threading.Event()

    def count(_: int) -> None:
        if next(numbers) == enough:
            reached.set()

    return count, reached


def test_published_keys_are_looked_up_as_of_their_epoch_and_random_ones_all_the_time(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    count, reached = counter(enough=30)
    for worker in cluster.workers.values():
        worker.before = count

    def published() -> Iterator[str]:
        yield from EPOCHS
        assert reached.wait(SECONDS_MAX)

    found = probe(cluster, published())
    fresh = sorted((due_at, key, n, epoch) for due_at, _, key, n, epoch in found if epoch)
    assert fresh == [(0.5, 3, 103, 2), (0.5, 4, 104, 2), (1.5, 5, FAILED, 99)]
    assert "key 5, epoch 99 at least: " in capfd.readouterr().err
    steady_rows = sorted(row for row in found if not row[4])
    assert len(steady_rows) >= 30 - len(fresh)
    assert all(n == key + 100 and due_at < answered_at for due_at, answered_at, key, n, _ in steady_rows)
    assert np.diff([row[0] for row in steady_rows]) == pytest.approx(0.001)


def test_a_lookup_that_waits_keeps_no_other_from_being_asked(cluster: Cluster) -> None:
    count, reached = counter(enough=20)
    first = threading.Lock()

    def wait_for_others(asked: int) -> None:
        if first.acquire(blocking=False):
            assert reached.wait(SECONDS_MAX)
        else:
            count(asked)

    for worker in cluster.workers.values():
        worker.before = wait_for_others

    def published() -> Iterator[str]:
        assert reached.wait(SECONDS_MAX)
        yield from ()

    found = probe(cluster, published())
    assert len(found) > 20
    assert FAILED not in {row[3] for row in found}


def test_what_the_prober_writes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "probes.arrow"
    table = pa.table([[1.0, 2.0], [1.5, 2.5], [3, 4], [5, 6], [0, 7]], schema=PROBES)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, PROBES) as stream:
        stream.write_table(table)
    found = Probes.read(str(path))
    assert (found.steady.key.tolist(), found.fresh.key.tolist()) == ([3], [4])
    assert found.ms.tolist() == [500.0, 500.0]


# Result and pictures ---------------------------------------------------------------------------------------------


def way(unserved_ms: float) -> dict[str, Any]:
    found = probes(steady(1, 1), steady(12, unserved_ms))
    return way_figures(found, FedRows.of(1, []), SPANS, found.key < 0, REPORT | {"max_hold_ms": None})


RESULT: dict[str, Any] = {
    "keys": 1000,
    "from": 2,
    "to": 4,
    "strategies": {"icadd": way(20.0) | {"back": way(15.0)}, "restart": way(1500.0) | {"back": way(1400.0)}},
    "spark": {"pause_ms": 4321.5, "back": {"pause_ms": 1234.0}},
    "ratio_spark_to_icadd": 216.1,
    "right": True,
}
LINES = {
    "icadd": (LoadTrace((-0.05, 0.05), (1.0, 20.0), 0.1),) * 2,
    "restart": (LoadTrace((0.05, 0.15), (1500.0, 9.0), 1.5),) * 2,
}


def test_the_result_is_shown_in_one_table_for_both_ways() -> None:
    lines = render_rescale(json.loads(json.dumps(RESULT))).splitlines()
    rows = {line[: line.index("  ")]: line.split() for line in lines if "->" in line}
    assert list(rows) == [f"{name}, {way}" for name in ("icadd", "restart", "spark") for way in ("2 -> 4", "4 -> 2")]
    assert "20.0" in rows["icadd, 2 -> 4"]
    assert "1,400.0" in rows["restart, 4 -> 2"]
    assert "4,321.5" in rows["spark, 2 -> 4"]
    assert "216.1 times as long" in lines[-3]
    assert lines[-1] == "Every answer was right."


def test_a_wrong_answer_is_not_hidden() -> None:
    shown = render_rescale(RESULT | {"right": False, "ratio_spark_to_icadd": None})
    assert "WRONG" in shown
    assert "times" not in shown


def test_pauses_are_compared_if_both_were_measured() -> None:
    assert ratio(RESULT) == 216.1
    assert ratio(RESULT | {"strategies": {}}) is None
    assert ratio({name: RESULT[name] for name in RESULT if name != "spark"}) is None


@pytest.mark.parametrize("pauses", [(4321.5, 1234.0), None])
def test_the_picture_has_a_line_for_each_and_comes_out_the_same_again(
    tmp_path: Path, pauses: tuple[float, float] | None
) -> None:
    written = []
    for name in ("a.svg", "b.svg"):
        draw_rescale(tmp_path / "new" / name, ("2 to 4 workers", "4 to 2 workers"), LINES, pauses, 1000)
        written.append((tmp_path / "new" / name).read_text())
    assert written[0] == written[1]
    assert all(f">{text}<" in written[0] for text in ("icadd", "restart", "4 to 2 workers"))
    assert ("repartition" in written[0]) == (pauses is not None)
    assert "dc:date" not in written[0]


def test_every_strategy_has_a_line(tmp_path: Path) -> None:
    draw_rescale(tmp_path / "all.svg", ("up", "down"), dict.fromkeys(Strategy, LINES["icadd"]), None, 1000)
    assert all(f">{strategy}<" in (tmp_path / "all.svg").read_text() for strategy in Strategy)


def test_the_trade_off_is_drawn(tmp_path: Path) -> None:
    points = [batching_figures(n, probes(steady(12, 5), steady(13, 9)), DURING, REPORT) for n in (1, 100, None)]
    assert [point["keys_max"] for point in points] == [1, 100, None]
    draw_batching(tmp_path / "batching.svg", points, 1000)
    drawn = (tmp_path / "batching.svg").read_text()
    assert all(text in drawn for text in ("seconds of the rescale (1,000 keys)", ">longest<"))


def test_the_picture_goes_into_the_checkout_that_is_worked_in(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert default_picture(root) == root / "docs" / "rescale.svg"
    assert default_picture(tmp_path) is None


# Spark -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.spark
def test_sparks_own_way_is_timed_in_parts_that_add_up(spark: Any, tmp_path: Path) -> None:
    query = StatefulQuery(spark, tmp_path, 2)
    query.put(np.arange(500))
    query.run()
    figures = query.rescale(3, np.arange(20))  # which sees to it that there are 3 partitions
    assert figures["pause_ms"] == pytest.approx(sum(figures[part] for part in PARTS), abs=1)
    assert all(figures[part] > 0 for part in PARTS)
    query.check(500)
    with pytest.raises(ClusterError, match="after 520 rows of 501 keys"):
        query.check(501)
    query.stop()
    assert not spark.streams.active


@pytest.mark.long
@pytest.mark.spark
def test_a_river_is_rescaled_there_and_back_under_load(tmp_path: Path) -> None:
    """In a process of its own: the benchmark ends its Spark session, which all tests here share."""
    picture = tmp_path / "rescale.svg"
    command = [sys.executable, "-m", "benchmarks", "rescale", "--json", "--picture", str(picture)]
    load = [
        "--keys",
        "3000",
        "--from",
        "1",
        "--to",
        "2",
        "--steady-s",
        "1",
        "--epoch-rows",
        "50",
        "--epochs-per-s",
        "10",
    ]
    run = subprocess.run([*command, *load, "--strategies", "icadd", "--no-spark"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout.splitlines()[-1])
    figures = measured["strategies"]["icadd"]
    assert measured["right"] is True
    assert (figures["lookups_wrong"], figures["keys_differing"]) == (0, 0)
    assert 1000 < figures["moved_keys"] < 2000
    assert figures["back"]["moved_keys"] == figures["moved_keys"]
    assert figures["max_unserved_ms"] >= figures["max_hold_ms"]
    assert measured["ratio_spark_to_icadd"] is None
    assert picture.exists()
