"""NEXMark, queries 0 to 8: Upriver's views and Spark's streaming queries side by side on the same events.

Each side answers each query in a fresh process tree of its own, confined to the same processors, and this process only
watches. Both are given the same streaming DataFrames: the columns and the rows that the query reads, of the tables
that it reads, one Parquet file of each to a micro-batch. Queries that read no bids are given more events, so that all
read about as many rows, and q3, whose filters leave few of them, twice as many files of these. First both sides take a
few of the files the whole way, then all of them. What is measured begins with the first micro-batch, by Spark's own
report, and ends when the view reflects all rows (``App.wait``), or when Spark has processed all there is
(``processAllAvailable``).

Upriver keeps every answer where it can be looked up; Spark's goes to the ``noop`` sink. Of windows Spark gives only
those that are over, Upriver all that have begun. ``equal``: the view holds what Spark's batch query gives for the same
rows. ``spark_equal``: so does what Spark's streaming query put out in the warm-up, as far as windows were over.

``stateful_map`` is beside the queries: what no query of NEXMark asks for, a user's Python function with state.
"""

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contest import WatchedRun, run_side
from benchmarks.nexmark_contestant import RUN_S_MAX, SIDES, NexmarkTask, Ran, read_outcome
from benchmarks.nexmark_events import NexmarkSpec, write_nexmark
from benchmarks.nexmark_queries import QUERIES, Refused
from benchmarks.process_tree import Meter, available_cores
from benchmarks.stateful_map import CASES
from benchmarks.stateful_map_contestant import RUN_S_MAX as MAP_RUN_S_MAX
from benchmarks.stateful_map_contestant import StatefulMapTask
from upriver.errors import UserError

NOT_ASKED = Refused("not asked for")
OUTPUT_LINES_MAX = 30
"""Of a side that failed, the last ones that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NexmarkOptions:
    """What to measure. queries: names out of QUERIES. files: of each table, one to a micro-batch. cores: processors
    that each side may use. warm_up_files: files of each table that are taken the whole way once, before the run that
    counts. state_store: of Spark's side. map_keys: which cases of stateful maps, by their number of keys; none of them
    if it is empty. data: directory to keep the events in; ``None`` for a temporary one."""

    spec: NexmarkSpec
    queries: tuple[str, ...]
    workers: int
    cores: int
    files: int
    warm_up_files: int
    has_spark: bool
    state_store: str
    map_keys: tuple[int, ...]
    data: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NexmarkMeasured:
    """One side's run of one query. events: rows of the tables that the query reads. cpu_us_per_event: CPU time, user
    and system, of the whole process tree in the measured span, in microseconds."""

    events: int
    events_per_s: float
    cpu_us_per_event: float
    is_equal: bool


Result = NexmarkMeasured | Refused


def measure_nexmark(options: NexmarkOptions, say: Any = print) -> dict[str, Any]:
    """Run the queries on both sides; returns what ``--json`` prints. ``say`` is told how it goes.

    Raises UserError for queries that there are not, or more cores than there are.
    """
    _check(options)
    queries = {}
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
        for name in options.queries:
            data = _write_events(name, options, Path(options.data or f"{directory}/events"), say)
            results = {side: _run(side, name, options, data, Path(directory), say) for side in SIDES}
            for side, result in results.items():
                say(f"{name} {side:8} {_told(result)}")
            queries[name] = report(name, results["upriver"], results["spark"])
        stateful_map = _run_stateful_map(options, Path(directory) / "stateful-map", say)
        for case in stateful_map["cases"]:
            say(
                f"stateful map, {case['keys']:,} keys: {case['upriver_rows_per_s']} rows/s, {case['ratio']} times Spark"
            )
    return {
        "events": options.spec.events,
        "events_per_s_of_event_time": options.spec.events_per_s,
        "workers": options.workers,
        "cores": options.cores,
        "files": options.files,
        "warm_up_files": options.warm_up_files,
        "spark_state_store": options.state_store,
        "queries": queries,
        "stateful_map": stateful_map,
        "equal": all(figures["equal"] is True for figures in (*queries.values(), stateful_map)),
    }


def _check(options: NexmarkOptions) -> None:
    if unknown := [name for name in options.queries if name not in QUERIES]:
        raise UserError(f"no query {', '.join(unknown)}; there are: {', '.join(QUERIES)}")
    if options.cores > (there_are := len(available_cores())):
        raise UserError(f"cores={options.cores}: there are {there_are} for this process")
    if unknown_keys := set(options.map_keys) - {case.keys for case in CASES}:
        raise UserError(f"no stateful map over {sorted(unknown_keys)} keys; there are: {[case.keys for case in CASES]}")


def _write_events(query: str, options: NexmarkOptions, root: Path, say: Any) -> Path:
    """Where the events of a query are. Queries of the same tables and as many events share them."""
    asked = QUERIES[query]
    spec = replace(options.spec, events=asked.times * asked.longer * options.spec.events)
    tables, files = sorted(asked.sources), asked.longer * options.files
    data = root / f"{'-'.join(tables)}-{asked.times}x{asked.longer}"
    if not data.exists():
        say(f"{spec.events:,} events in {files} files, of which {' and '.join(tables)}: {data}")
    write_nexmark(data, spec, files, tables)
    return data


def _run(side: str, query: str, options: NexmarkOptions, data: Path, directory: Path, say: Any) -> Result:
    """One side's run, in a process tree that ends with it."""
    work = directory / f"{side}-{query}"
    if side == "spark" and (refused := _why_not(query, options)) is not None:
        return refused
    work.mkdir()
    task = NexmarkTask(
        side=side,
        query=query,
        data=str(data),
        work=str(work),
        result=str(work / "outcome.json"),
        workers=options.workers,
        cores=options.cores,
        warm_up_files=QUERIES[query].longer * options.warm_up_files,
        state_store=options.state_store,
    )
    (work / "task.json").write_text(json.dumps(asdict(task)))
    watched = run_side("benchmarks.nexmark_contestant", work / "task.json", work / "output", RUN_S_MAX)
    if watched.code != 0:
        return _failed(watched, say)
    outcome = read_outcome(Path(task.result))
    shutil.rmtree(work)
    return outcome if isinstance(outcome, Refused) else _measured(outcome, watched.meter)


def _run_stateful_map(options: NexmarkOptions, work: Path, say: Any) -> dict[str, Any]:
    """``cases`` of :func:`measure_stateful_map`, whether all of them are ``equal``, and ``why`` if it failed."""
    if not options.map_keys:
        return {"cases": [], "equal": True, "why": NOT_ASKED.why}
    work.mkdir()
    task = StatefulMapTask(
        result=str(work / "outcome.json"),
        cores=options.cores,
        has_spark=options.has_spark,
        seed=options.spec.seed,
        keys=options.map_keys,
    )
    (work / "task.json").write_text(json.dumps(asdict(task)))
    module = "benchmarks.stateful_map_contestant"
    watched = run_side(module, work / "task.json", work / "output", MAP_RUN_S_MAX)
    if watched.code != 0:
        return {"cases": [], "equal": False, "why": _failed(watched, say).why}
    measured = json.loads(Path(task.result).read_text())
    return {**measured, "equal": all(case["equal"] for case in measured["cases"]), "why": None}


def _failed(watched: WatchedRun, say: Any) -> Refused:
    """The last line says what failed; why, may be in those before it."""
    for line in watched.said[-OUTPUT_LINES_MAX:]:
        say(f"  {line}")
    return Refused(f"failed ({watched.code}): {watched.said[-1] if watched.said else 'it said nothing'}")


def _why_not(query: str, options: NexmarkOptions) -> Refused | None:
    how = QUERIES[query].streaming
    return how if isinstance(how, Refused) else None if options.has_spark else NOT_ASKED


def _measured(ran: Ran, meter: Meter) -> NexmarkMeasured:
    return NexmarkMeasured(
        events=ran.events,
        events_per_s=ran.events / (ran.reflected_at - ran.started_at),
        cpu_us_per_event=meter.usage(ran.started_at, ran.reflected_at).cpu_s * 1e6 / ran.events,
        is_equal=ran.differing == 0,
    )


def report(query: str, ours: Result, sparks: Result) -> dict[str, Any]:
    """A query's figures, as ``--json`` has them: ``None`` where there is nothing to measure, and ``why``."""
    refused = {"Upriver": ours, "Spark": sparks}
    whys = [f"{side}: {result.why}" for side, result in refused.items() if isinstance(result, Refused)]
    ratio = None
    if isinstance(ours, NexmarkMeasured) and isinstance(sparks, NexmarkMeasured):
        ratio = round(ours.events_per_s / sparks.events_per_s, 2)
    return {
        "about": QUERIES[query].about,
        "equal": ours.is_equal if isinstance(ours, NexmarkMeasured) else None,
        "stateful": QUERIES[query].is_stateful,
        "events": next((result.events for result in (ours, sparks) if isinstance(result, NexmarkMeasured)), None),
        **_figures("", ours),
        **_figures("spark_", sparks),
        "ratio": ratio,
        "spark_equal": sparks.is_equal if isinstance(sparks, NexmarkMeasured) else None,
        "why": "; ".join(whys) or None,
    }


def _figures(prefix: str, result: Result) -> dict[str, float | None]:
    if isinstance(result, Refused):
        return {f"{prefix}events_per_s": None, f"{prefix}cpu_us_per_event": None}
    return {
        f"{prefix}events_per_s": round(result.events_per_s),
        f"{prefix}cpu_us_per_event": round(result.cpu_us_per_event, 3),
    }


def _told(result: Result) -> str:
    if isinstance(result, Refused):
        return result.why
    verdict = "equal" if result.is_equal else "NOT EQUAL"
    return f"{result.events_per_s:12,.0f} events/s, {result.cpu_us_per_event:.2f} us of CPU each; {verdict}"
