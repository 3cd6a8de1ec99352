"""The benchmarks: how they count, what they generate, and that both sides of the comparison keep the same view."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.busy import BusyOptions, in_ms, measure_busy
from benchmarks.commands import render_stages, render_throughput
from benchmarks.events import EventsSpec, write_events
from benchmarks.figures import median, milliseconds, percentile
from benchmarks.hotkey import HotKeyOptions, measure_views
from benchmarks.hotkey_command import render_hotkey
from benchmarks.latency import spread
from benchmarks.latency_command import render_latency
from benchmarks.process_tree import Meter, ProcessTimes, TreeAccount, parse_stat, process_table, pss_bytes
from benchmarks.reads import LOOKUPS, ReadsOptions, measure_reads, render_reads
from benchmarks.stages import rates
from benchmarks.throughput import ThroughputMeasured, ThroughputOptions, measure_throughput, medians
from upriver.errors import UserError
from upriver.hashing import hash64

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Figures ---------------------------------------------------------------------------------------------------------


@given(NUMBERS)
def test_the_median_is_numpys(values: list[float]) -> None:
    assert median(values) == pytest.approx(float(np.median(values)))


@given(NUMBERS, st.floats(0.1, 100))
def test_a_percentile_is_a_value_with_so_many_at_or_below(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(v <= found for v in values) >= len(values) * percent / 100 - 1e-9
    assert sum(v < found for v in values) < len(values) * percent / 100


def test_percentiles_of_nothing_or_out_of_range_are_refused() -> None:
    for values, percent in (([], 50), ([1.0], 0), ([1.0], 101)):
        with pytest.raises(ValueError, match="percentile"):
            percentile(values, percent)
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_latencies_are_reported_in_milliseconds() -> None:
    seconds = [number / 1000 for number in range(1, 201)]
    assert milliseconds(seconds) == {"p50_ms": 100.0, "p99_ms": 198.0, "epochs": 200}


def test_the_figures_of_several_runs_are_medians_each() -> None:
    runs = [
        ThroughputMeasured(
            rows_per_s=rate,
            cpu_s=10 / rate,
            rows_per_cpu_s=rate / 2,
            peak_mb=rate * 3,
            seconds=1 / rate,
            ingest_s=0.5,
            start_s=7.0,
        )
        for rate in (100.0, 400.0, 200.0)
    ]
    found = medians(runs)
    assert (found["rows_per_s"], found["cpu_s"], found["rows_per_cpu_s"], found["peak_mb"]) == (200, 0.05, 100, 600)
    assert found["rows_per_s_of_each_run"] == [100, 400, 200]


# CPU time of a process tree --------------------------------------------------------------------------------------


def process(pid: int, parent: int, own: int, reaped: int = 0, started: int = 0) -> ProcessTimes:
    return ProcessTimes(pid=pid, parent=parent, started=started, own=own, reaped=reaped)


TREES = {
    "descendants count, others do not": [
        ([process(1, 0, 99), process(10, 1, 5), process(11, 10, 7), process(12, 11, 2), process(20, 1, 50)], 14)
    ],
    "a reaped child counts once, to its very end": [
        ([process(10, 1, 5), process(11, 10, 7)], 12),
        ([process(10, 1, 6, reaped=9)], 15),
    ],
    "a reaped child that was never seen counts": [
        ([process(10, 1, 5)], 5),
        ([process(10, 1, 5, reaped=4)], 9),
    ],
    "a child that was never reaped counts as last seen": [
        ([process(10, 1, 5), process(11, 10, 7)], 12),
        ([process(10, 1, 5)], 12),
    ],
    "what a child that was reaped had reaped itself counts once": [
        ([process(10, 1, 5), process(11, 10, 7, reaped=3), process(12, 11, 2)], 17),
        ([process(10, 1, 5, reaped=12)], 17),
    ],
    "an orphan goes on to count, and counts when it has gone": [
        ([process(10, 1, 5), process(11, 10, 7), process(12, 11, 2)], 14),
        ([process(10, 1, 5, reaped=7), process(12, 1, 8)], 20),
        ([process(10, 1, 6, reaped=7), process(13, 12, 1), process(12, 1, 9)], 23),
        ([process(10, 1, 6, reaped=7)], 23),
    ],
    "a pid that is given again is another process": [
        ([process(10, 1, 5), process(11, 10, 7, started=1)], 12),
        ([process(10, 1, 5), process(11, 1, 90, started=2)], 12),
    ],
    "all is counted when the root has gone": [
        ([process(10, 1, 5), process(11, 10, 7)], 12),
        ([], 12),
    ],
}


@pytest.mark.parametrize("tables", TREES.values(), ids=TREES)
def test_cpu_time_never_leaves_the_account(tables: list[tuple[list[ProcessTimes], int]]) -> None:
    account = TreeAccount(10)
    assert [account.observe(table) for table, _ in tables] == [spent for _, spent in tables]


def test_a_process_may_have_any_name() -> None:
    stat = b"42 (a) R 1 (b c) S 40 7 7 0 -1 4 1 2 3 4 11 12 13 14 20 0 1 0 555 0 0"
    assert parse_stat(stat) == ProcessTimes(pid=42, parent=40, started=555, own=23, reaped=27)


BURN = """
import os, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
child = os.fork()
if child == 0:
    burn(0.2)
    os._exit(0)
burn(0.1)
os.waitpid(child, 0)
print(sum(os.times()[:4]), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_real_tree_is_charged_with_what_it_burnt() -> None:
    command = [sys.executable, "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as burner:
        meter = Meter(burner.pid)
        meter.sample()
        assert burner.stdout is not None
        burnt = float(burner.stdout.readline())  # from here on it waits for its stdin to end
        account = TreeAccount(burner.pid)
        seconds = account.observe(process_table()) / TICKS_PER_S
        meter.sample()
        memory = pss_bytes(account.pids())
        burner.communicate()
    assert burnt > 0.25
    assert burnt - 0.1 <= seconds <= burnt + 0.1  # both are counted in ticks
    (first, before), (last, after) = meter.cpu_s
    assert meter.usage(first, last).cpu_s == pytest.approx(after - before, rel=1e-3)
    assert meter.usage(first, first + (last - first) / 2).cpu_s == pytest.approx((after - before) / 2, rel=1e-3)
    assert 0 < meter.usage(first, last).peak_mb < 1024
    assert 2**20 < memory < 2**30
    assert pss_bytes([burner.pid]) == 0


# Events ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(1, 50), st.integers(1, 10), st.integers(0, 3))
def test_events_have_their_rows_and_keys_and_come_again(rows: int, keys: int, files: int, seed: int) -> None:
    spec = EventsSpec(rows=max(rows, files), keys=keys, files=files, seed=seed)
    tables = [spec.events(file) for file in range(files)]
    assert sum(table.num_rows for table in tables) == spec.rows
    assert max(t.num_rows for t in tables) - min(t.num_rows for t in tables) <= 1
    assert all(table.equals(spec.events(file)) for file, table in enumerate(tables))
    values = pa.concat_tables(tables)["k"].to_numpy()
    assert values.min() >= 0
    assert values.max() < keys


def test_files_and_seeds_differ() -> None:
    one, other = EventsSpec(rows=100, keys=1000, files=2), EventsSpec(rows=100, keys=1000, files=2, seed=2)
    assert not one.events(0).equals(one.events(1))
    assert not one.events(0).equals(other.events(0))


def test_events_are_written_once_and_other_ones_are_refused(tmp_path: Path) -> None:
    spec = EventsSpec(rows=100, keys=10, files=3)
    write_events(tmp_path / "a", spec)
    paths = sorted((tmp_path / "a").glob("*.parquet"))
    assert pa.concat_tables([pq.read_table(path) for path in paths]).equals(
        pa.concat_tables([spec.events(file) for file in range(3)])
    )
    written = [path.stat().st_mtime_ns for path in paths]
    write_events(tmp_path / "a", spec)
    assert [path.stat().st_mtime_ns for path in paths] == written
    with pytest.raises(UserError, match="holds something else"):
        write_events(tmp_path / "a", EventsSpec(rows=100, keys=11, files=3))


@pytest.mark.parametrize("asked", [{"rows": 2, "files": 3}, {"rows": 0, "files": 0}, {"rows": 5, "keys": 0}])
def test_impossible_events_are_refused(asked: dict[str, int]) -> None:
    with pytest.raises(UserError):
        EventsSpec(**({"keys": 1} | asked))


# Latency ---------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=300), st.integers(1, 8))
def test_watched_keys_are_spread_over_the_order_of_hashes(keys: list[int], count: int) -> None:
    watched = spread(np.array(keys), count).tolist()
    in_order = sorted(set(keys), key=lambda key: int(hash64([pa.array([key])])[0]))
    assert len(watched) == len(set(watched)) == min(count, len(in_order))
    places = [in_order.index(key) for key in watched]
    assert places == sorted(places)
    assert places[0] == 0
    if len(places) > 1:
        assert places[-1] == len(in_order) - 1
        gaps = np.diff(places)
        assert gaps.max() - gaps.min() <= 1


# Figures for a person ------------------------------------------------------------------------------------------


def test_latencies_are_shown_in_tables() -> None:
    figures = {"p50_ms": 3.25, "p99_ms": 9.5, "epochs": 200}
    shown = render_latency(
        {
            "rows_1": figures,
            "rows_10000": figures,
            "through_spark": {"from_trigger": figures, "from_file": figures},
            "lookups": {"one_p50_us": 400, "without_spark": True},
            "busy": {"joined": {"idle": in_ms([0.001]), "busy": in_ms([0.02, 0.03125]), "right": False}},
        }
    )
    assert "31.25" in shown
    assert shown.endswith("joined: WRONG")
    assert "1-row epoch, from commit" in shown
    assert "3.25" in shown
    assert "one_p50_us" in shown


def test_the_first_micro_batch_has_a_rate_of_its_own() -> None:
    assert rates([100, 200, 100], [2.0, 1.0, 0.5]) == {"first_rows_per_s": 50, "rows_per_s": 200}
    assert rates([100], [2.0]) == {"first_rows_per_s": 50, "rows_per_s": 50}
    shown = render_stages({"stages": {"ingest": rates([1_000, 4_000_000], [1.0, 2.0])}})
    assert shown.splitlines()[-1].split() == ["ingest", "1,000", "2,000,000"]


@pytest.mark.long
@pytest.mark.spark
def test_both_sides_keep_the_same_view(tmp_path: Path) -> None:
    options = ThroughputOptions(
        events=EventsSpec(rows=20_000, keys=1_000),
        workers=2,
        cores=min(2, len(os.sched_getaffinity(0))),
        files_per_trigger=4,
        warm_up_files=1,
        repeat=1,
        data=str(tmp_path / "events"),
    )
    said: list[str] = []
    measured = json.loads(json.dumps(measure_throughput(options, said.append)))
    assert measured["views_equal"] is True
    assert (measured["rows"], measured["keys"], measured["workers"]) == (20_000, 1_000, 2)
    assert measured["micro_batches"] == 3
    for side in ("upriver", "spark"):
        assert all(measured[side][name] > 0 for name in ("rows_per_s", "cpu_s", "rows_per_cpu_s", "peak_mb", "start_s"))
        assert any(line.startswith(side) for line in said)
    assert measured["ratio"] > 0
    assert "equal, row by row" in render_throughput(measured)
    assert len(list((tmp_path / "events").glob("*.parquet"))) == 10


@pytest.mark.long
@pytest.mark.spark
def test_joins_are_looked_up_while_rows_come_and_are_right_then(spark: Any, tmp_path: Path) -> None:
    options = BusyOptions(workers=2, rows=5_000, epochs=2, auctions=3_000, idle_s=0.1)
    measured = json.loads(json.dumps(measure_busy(spark, tmp_path, options)))
    assert list(measured) == ["joined", "exchanged"]
    for figures in measured.values():
        assert figures["right"] is True
        assert figures["rows"] == 10_000
        for when in ("idle", "busy"):
            assert 0 < figures[when]["p50_ms"] <= figures[when]["max_ms"]


@pytest.mark.long
@pytest.mark.spark
def test_other_keys_and_epochs_are_timed_beside_a_hot_key(spark: Any, tmp_path: Path) -> None:
    options = HotKeyOptions(
        rows=40_000, keys=5_000, epoch_rows=2_000, lookups=2, steady_s=0.5, epochs_per_s=20, views=("staged", "cone")
    )
    measured = json.loads(json.dumps(measure_views(spark, tmp_path, options, lambda _: None)))
    assert list(measured["views"]) == ["staged", "cone"]
    for figures in measured["views"].values():
        assert figures["right"] is True
        windows = [figures[when] for when in ("before", "fill", "warm", "epoch")]
        for kind in ("warm", "cold", "visible"):  # a short window may have none
            of_kind = [window[kind] for window in windows if window[kind]["count"]]
            assert of_kind
            assert all(0 < each["p50_ms"] <= each["max_ms"] for each in of_kind)
        assert all(figures[when]["seconds"] > 0 for when in ("fill", "warm", "epoch"))
        assert figures["before"]["others_longest_ms"] >= figures["before"]["warm"]["max_ms"] > 0
    shown = render_hotkey(measured)
    assert "cone, fill, warm keys" in shown
    assert "WRONG" not in shown


# Reads -----------------------------------------------------------------------------------------------------------


def test_reads_of_a_lake_are_timed_with_and_without_a_check() -> None:
    measured = measure_reads(ReadsOptions(runs=2, rows=30_000, repeat=1, seed=1), say=lambda _: None)
    assert measured["right"]
    assert measured["rows"] == 60_000
    assert measured["bytes"] > 60_000 * 24
    assert [*measured["cold_lookup_of_keys"]] == [str(keys) for keys in LOOKUPS]
    assert measured["scan"]["checked_rows_per_s"] > 0
    shown = render_reads(measured)
    assert "2,000 keys, ms" in shown
    assert shown.endswith("Every answer was right.")
