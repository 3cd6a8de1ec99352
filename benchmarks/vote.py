"""The vote workload, on a view that keeps every key and on partial ones with little memory; every answer is checked.

Each way of keeping the view has an app of its own, one after the other, with the same articles and the same load. What
is measured, and what is left out: ``docs/benchmarks.md``.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hand_fed import HandFedApp, HandFedView
from benchmarks.rescale_figures import Window
from benchmarks.vote_figures import load_figures, wrong_answers
from benchmarks.vote_load import Polls, VoteLoad, VoteRates
from benchmarks.vote_lookups import VoteLookupTask
from benchmarks.vote_model import ARTICLE, KEY, SQL, VIEW, VOTE
from benchmarks.vote_new_view import measure_new_view
from benchmarks.vote_redis import measure_redis
from benchmarks.worker_memory import Gauge, MemoryReading, as_mb, worker_pids
from upriver.client.client import connect
from upriver.errors import ClusterError
from upriver.spark.frames import SparkSession
from upriver.spark.session import local_session

STATE_SHARE_MAX = 0.05
"""Of the full view's state, what the partial view that is reported first may take."""
SAMPLE_S = 0.25
"""Seconds between two looks at the state's bytes."""
LOOKUPS_S_MAX = 600.0
"""Seconds for the lookups one after the other."""
FIRST_KEYS = 100
"""Keys that are looked up before growth is measured: some for every worker, and of next to no size."""
REFLECT_S_MAX = 120.0
"""Seconds until all votes show, once nothing more comes."""

Say = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteOptions:
    """What to measure. articles: that can be read and voted for. votes: that are there before. budgets_mb: of each
    worker, one after the other. settle_s, steady_s: of a load, before it counts and while it does. singles, batches:
    lookups one after the other. prime_reads: before each load. fill_keys: of one lookup. new_view_rows: 0 for no new
    view."""

    articles: int
    votes: int
    workers: int
    budgets_mb: tuple[int, ...]
    distributions: tuple[str, ...]
    skew: float
    prime_reads: int
    rates: VoteRates
    settle_s: float
    steady_s: float
    singles: int
    batches: int
    fill_keys: int
    new_view_rows: int
    seed: int = 1

    @property
    def unread(self) -> int:
        """Articles beside the popular ones: enough for each miss of a load to be of another."""
        return round(self.rates.misses_per_s * (self.settle_s + self.steady_s) * 2) + self.rates.misses_per_s


@dataclass(frozen=True, slots=True)
class VoteWay:
    """How the view is kept. budget_mb: of each worker; ``None`` for any."""

    partial: bool
    budget_mb: int | None = None

    def __str__(self) -> str:
        budget = "any" if self.budget_mb is None else f"{self.budget_mb:,} MB"
        return f"partial, {budget} for each worker" if self.partial else "full"


@dataclass(frozen=True, slots=True)
class VoteMeasured:
    """Of one way: the figures of each load. alone: those of lookups one after the other, which a budget would only
    disturb, with the memory that the view takes after them and did not take after the first epoch."""

    runs: Sequence[Figures]
    alone: Figures | None


def measure_vote(options: VoteOptions, say: Say = print) -> Figures:
    """Measure it all; returns what ``--json`` prints. ``say`` is told how it goes."""
    # Python workers that were used again would begin with another app's memory.
    spark = local_session(options.workers, app_name="upriver-bench", **{"spark.python.worker.reuse": False})
    ways: list[VoteMeasured] = []
    try:
        for way in [VoteWay(False), VoteWay(True), *(VoteWay(True, budget) for budget in options.budgets_mb)]:
            say(f"{way}: {options.articles:,} articles, {options.votes:,} votes")
            with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
                ways.append(_measure_way(spark, options, way, Path(directory), say))
        new_view = None
        if options.new_view_rows:
            say(f"a view that is added beside {options.new_view_rows:,} rows")
            new_view = measure_new_view(spark, options.new_view_rows, options.workers)
    finally:
        spark.stop()
    redis = measure_redis(options.batches)
    return report(options, ways, {"new_view": new_view, "redis": redis})


def _measure_way(spark: SparkSession, options: VoteOptions, way: VoteWay, directory: Path, say: Say) -> VoteMeasured:
    budget = None if way.budget_mb is None else way.budget_mb << 20
    view = HandFedView(name=VIEW, sql=SQL, key=KEY, tables=(ARTICLE, VOTE), partial=way.partial)
    with HandFedApp(spark, directory / "lake", options.workers, [view], budget) as app:
        gauge = Gauge(app, VIEW, worker_pids(app))
        empty = gauge.read()
        polls = Polls(app, options.articles + options.unread, options.seed)
        polls.begin()
        begun = gauge.read_at_rest()
        polls.fill(options.votes)
        alone = None
        if way.budget_mb is None:
            first = begun
            if way.partial:
                _fill_a_few(app)
                first = gauge.read_at_rest()
            alone = _measure_alone(app, options, way, polls, directory)
            alone["grown"] = (gauge.read_at_rest() - first).figures()
            alone["first_fill_mb"] = as_mb((first - begun).memory.anonymous)
            say(f"  one by one: {json.dumps(alone)}")
        runs: list[Figures] = []
        for distribution in options.distributions:
            runs.append(_measure_load(app, options, way, distribution, polls, directory, (gauge, empty)))
            say(f"  {distribution}: {json.dumps(runs[-1])}")
    return VoteMeasured(runs, alone)


def _fill_a_few(app: HandFedApp) -> None:
    """A worker that fills any key takes memory for it once and for all, which is no state: code, and where the runs
    are."""
    with connect(app.address, app.token) as client:
        client.lookup(VIEW, range(FIRST_KEYS))


def _measure_alone(app: HandFedApp, options: VoteOptions, way: VoteWay, polls: Polls, directory: Path) -> Figures:
    counts = directory / "counts.npy"
    np.save(counts, polls.counts)
    task = VoteLookupTask(
        address=app.address,
        counts=str(counts),
        singles=options.singles,
        batches=options.batches,
        fill_keys=options.fill_keys,
        is_partial=way.partial,
        seed=options.seed,
    )
    path = directory / "lookups.json"
    path.write_text(json.dumps(asdict(task)))
    command = [sys.executable, "-m", "benchmarks.vote_lookups", str(path)]
    # The token goes through a pipe: every user of the machine can read a command line.
    asked = subprocess.run(command, input=app.token, capture_output=True, text=True, timeout=LOOKUPS_S_MAX)
    if asked.returncode != 0:
        raise ClusterError(f"the process that looks up failed:\n{asked.stderr}")
    result: Figures = json.loads(asked.stdout.splitlines()[-1])
    return {"partial": way.partial, **result}


def _measure_load(
    app: HandFedApp,
    options: VoteOptions,
    way: VoteWay,
    distribution: str,
    polls: Polls,
    directory: Path,
    memory: tuple[Gauge, MemoryReading],
) -> Figures:
    """One load. memory: to be read, and as it was before there was anything to keep."""
    gauge, empty = memory
    if way.partial:
        with connect(app.address, app.token) as client:
            client.evict(VIEW)
    load = VoteLoad(
        app,
        polls,
        directory,
        options.rates,
        popular=options.articles,
        unread=options.unread,
        distribution=distribution,
        skew=options.skew,
        prime_reads=options.prime_reads,
        seed=options.seed,
    )
    with load:
        time.sleep(options.settle_s)
        before, began = _counters(app), time.perf_counter()
        state = _most_bytes(app, began + options.steady_s)
        window = Window(began, time.perf_counter())
        load.check()
        after, grown = _counters(app), (gauge.read() - empty).memory
    app.wait(REFLECT_S_MAX)
    missed = after.get("missed", 0) - before.get("missed", 0)
    figures = load_figures(load.answers, load.fed, window)
    wrong = wrong_answers(load.answers, load.before, load.fed)
    return {
        "kept": "partial" if way.partial else "full",
        "budget_mb": way.budget_mb,
        "distribution": distribution,
        "state_mb": as_mb(state),
        "rss_mb": as_mb(grown.resident),
        "anonymous_mb": as_mb(grown.anonymous),
        "present_keys": after.get("cached_keys", after["keys"]),
        "missed_keys_per_s": round(missed / window.seconds),
        "evicted_keys_per_s": round((after.get("evicted", 0) - before.get("evicted", 0)) / window.seconds),
        **figures,
        "answers_checked": len(load.answers.key),
        "wrong_answers": wrong,
        "first_error": load.first_error() if wrong else None,
    }


def _counters(app: HandFedApp) -> Mapping[str, int]:
    """Of the view, at all workers, as they last said."""
    counters: Mapping[str, int] = app.status()["views"][VIEW]
    return counters


def _most_bytes(app: HandFedApp, until: float) -> int:
    """Of the view's state, until some time of ``time.perf_counter``: the highest of some readings."""
    most = _counters(app)["bytes"]
    while time.perf_counter() < until:
        time.sleep(SAMPLE_S)
        most = max(most, _counters(app)["bytes"])
    return most


def report(options: VoteOptions, ways: Sequence[VoteMeasured], beside: Figures) -> Figures:
    """What ``--json`` prints. ways: the full one, then the partial one without a budget, then those with one."""
    first = options.distributions[0]
    runs = [run for way in ways for run in way.runs]
    alone = [way.alone for way in ways if way.alone is not None]
    full_alone, partial_alone = alone
    full = next(run for run in runs if run["kept"] == "full" and run["distribution"] == first)
    partial = headline([run for run in runs if run["kept"] == "partial" and run["distribution"] == first], full)
    redis, batches = beside["redis"], partial_alone["batches"]
    right = beside["new_view"] is None or beside["new_view"]["answer_is_right"]
    return {
        "articles": options.articles,
        "votes": options.votes,
        "workers": options.workers,
        "skew": options.skew,
        "offered": asdict(options.rates),
        "answers_checked": sum(figures["answers_checked"] for figures in [*runs, *alone]),
        "wrong_answers": sum(figures["wrong_answers"] for figures in [*runs, *alone]) + (not right),
        "full": full | _idle(full_alone),
        "partial": partial | _idle(partial_alone) | {"state_share": round(partial["state_mb"] / full["state_mb"], 4)},
        "accounting": {
            "full": full_alone["grown"],
            "partial": {**partial_alone["grown"], "first_fill_mb": partial_alone["first_fill_mb"]},
        },
        "fills": partial_alone["fills"],
        "batches": {"full": full_alone["batches"], "partial": batches, "redis": redis},
        "ratio_to_redis": round(batches["keys_per_s"] / redis["keys_per_s"], 2) if redis["keys_per_s"] else None,
        "larger_ratios_to_redis": _ratios(batches["larger"], redis["larger"]),
        "threads_ratios_to_redis": _ratios(batches["threads"], redis["threads"]),
        "new_view": beside["new_view"],
        "runs": runs,
    }


def _ratios(ours: Figures, of_redis: Figures) -> dict[str, float]:
    return {case: round(ours[case] / rate, 2) for case, rate in of_redis.items() if case in ours}


def _idle(alone: Figures) -> Figures:
    """Of lookups one after the other: latencies of hits and misses."""
    return {name: ms for name, ms in alone.items() if name.startswith(("hit_", "miss_"))}


def headline(runs: Sequence[Figures], full: Figures) -> Figures:
    """The partial run to be reported first: the largest state that is small beside the full one; else the smallest."""
    small = [run for run in runs if run["state_mb"] <= STATE_SHARE_MAX * full["state_mb"]]
    return max(small, key=_state) if small else min(runs, key=_state)


def _state(run: Figures) -> float:
    state: float = run["state_mb"]
    return state
