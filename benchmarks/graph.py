"""A graph of two functions: rows a second through both, beside Spark's two transformWithState one behind the other; and
both regions rescaled under load.

What is measured, and what it leaves out: ``docs/benchmarks.md``.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contest import run_side
from benchmarks.contestant import RUN_S_MAX, ContestOutcome
from benchmarks.events import EventsSpec, write_events
from benchmarks.graph_contestant import SPARK, GraphTask
from benchmarks.graph_model import EVENTS, graph_plan
from benchmarks.hand_fed import HandFedPlan
from benchmarks.rescale import RescaleOptions, differing_keys, loaded_app, rescale_under
from benchmarks.rescale_figures import wrong_answers
from benchmarks.stateful_map_spark import why_not
from benchmarks.throughput import ERROR_LINES_MAX, measure
from upriver.plan.plan import Per
from upriver.spark.session import local_session

FIGURES = (
    "max_unserved_ms",
    "lookup_p99_ms_before",
    "lookup_p99_ms_during",
    "lookup_max_ms_during",
    "update_max_ms_during",
    "seconds",
    "moved_keys",
)
"""Of a rescale, as ``python -m benchmarks rescale`` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What to measure. spark_rows: that Spark gets, which takes far longer for a row. forms: of the functions. cores:
    that each side may use. rescale: as for the benchmark of that name; ``None``: no rescale is measured."""

    events: EventsSpec
    spark_rows: int
    forms: Sequence[str]
    workers: int
    cores: int
    has_spark: bool
    rescale: RescaleOptions | None


def measure_graph(options: GraphOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run each side once, then the rescale; returns what ``--json`` prints. ``say`` is told how it goes.

    ``sides``: by form, and ``spark``: ``rows``, ``rows_per_s``, ``rows_per_cpu_s``, ``peak_mb``, ``equal``; or ``why``
    a side did not run. ``ratio``: of each form's rows a second to Spark's, if Spark ran. ``rescale``: ``there`` and
    ``back``.
    """
    sides: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
        for side in (*options.forms, SPARK):
            rows = min(options.events.rows, options.spark_rows) if side == SPARK else options.events.rows
            events = replace(options.events, rows=rows)
            data = Path(directory) / f"events-{rows}"
            write_events(data, events)
            sides[side] = _side(side, options, events, data, Path(directory) / side)
            say(f"{side:6} {json.dumps(sides[side])}")
    spark = sides[SPARK].get("rows_per_s")
    rescale = None if options.rescale is None else _rescaled(options.rescale, say)
    return {
        "rows": options.events.rows,
        "keys": options.events.keys,
        "cores": options.cores,
        "sides": sides,
        "ratio": None
        if spark is None
        else {form: round(sides[form]["rows_per_s"] / spark, 2) for form in options.forms},
        "rescale": rescale,
        "right": all(side.get("equal", True) for side in sides.values()) and (rescale is None or rescale["right"]),
    }


def _side(side: str, options: GraphOptions, events: EventsSpec, data: Path, work: Path) -> dict[str, Any]:
    why = why_not() if options.has_spark else "not asked for"
    if side == SPARK and why is not None:
        return {"why": why}
    work.mkdir()
    task = GraphTask(
        side=side,
        data=str(data),
        work=str(work),
        result=str(work / "outcome.json"),
        keys=options.events.keys,
        workers=options.workers,
        cores=options.cores,
    )
    (work / "task.json").write_text(json.dumps(asdict(task)))
    began = time.time()
    watched = run_side("benchmarks.graph_contestant", work / "task.json", work / "output", RUN_S_MAX)
    if watched.code:
        return {"why": "\n".join(watched.said[-ERROR_LINES_MAX:])}
    outcome = ContestOutcome(**json.loads((work / "outcome.json").read_text()))
    measured = measure(events.rows, began, outcome, watched.meter)
    return {
        "rows": events.rows,
        "rows_per_s": round(measured.rows_per_s),
        "rows_per_cpu_s": round(measured.rows_per_cpu_s),
        "peak_mb": round(measured.peak_mb),
        "equal": outcome.differing == 0 and outcome.view_rows > 0,
    }


def _rescaled(options: RescaleOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Both regions go from some workers to others and back, under load, by ICADD."""
    view = HandFedPlan(plan=graph_plan(options.keys, Per.BATCH, factor=1), tables=(EVENTS,))
    spark = local_session(max(options.before, options.after), app_name="upriver-bench")
    try:
        with loaded_app(spark, options, options.keys, view) as (app, client, load):
            with load:
                there = rescale_under(load, app, client, options.steady_s, options.after, "icadd")
                back = rescale_under(load, app, client, options.steady_s, options.before, "icadd")
            differing = differing_keys(app, client, load, options.keys)
        ways = [way.figures(load.probes, load.fed) for way in (there, back)]
        wrong = wrong_answers(load.probes, load.fed)
    finally:
        spark.stop()
    found = {
        name: {figure: way[figure] for figure in FIGURES} for name, way in zip(("there", "back"), ways, strict=True)
    }
    verdict = {"lookups": len(load.probes.key), "lookups_wrong": wrong, "keys_differing": differing}
    say(f"rescale {json.dumps({**found, **verdict})}")
    return {**found, **verdict, "right": wrong == differing == 0}
