"""The lobsters workload: a site's pages, on views that keep only what is read, and on views that keep every key.

Both ways have an app of their own, one after the other, with the same rows and the same requests; every answer is
checked. What is measured, and what is left out: ``docs/benchmarks.md``.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hand_fed import HandFedApp, HandFedView
from benchmarks.lobsters_load import Load, bear
from benchmarks.lobsters_model import TABLES, VIEWS, Site
from benchmarks.lobsters_requests import MIX, Request, draw_requests
from benchmarks.lobsters_truth import wrong_lookups
from benchmarks.vote_figures import latencies
from benchmarks.worker_memory import REST_S, as_mb, memory_of, worker_pids
from upriver.errors import UserError
from upriver.spark.frames import SparkSession
from upriver.spark.session import local_session

LOAD_S_MAX = 1_200.0
"""Seconds until all that is there before the first request is reflected."""
LOAD_ROWS_MAX = 1_000_000
"""Rows of an epoch of that."""
RATIOS = ("state_mb", "rss_mb", "anonymous_mb", "pages_per_s", "page_p50_ms", "page_p95_ms", "page_p99_ms")

Say = Callable[[str], None]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LobstersOptions:
    """What to measure. scale: of the site. requests: pages that count. warm_up: pages before them. clients: that ask at
    once. budget_mb: of each worker that keeps partial views; ``None`` for any."""

    scale: float
    requests: int
    warm_up: int
    clients: int
    workers: int
    budget_mb: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise UserError(f"scale {self.scale:g}: must be above 0")


def measure_lobsters(options: LobstersOptions, say: Say = print) -> Figures:
    """Measure it all; returns what ``--json`` prints. ``say`` is told how it goes."""
    # Python workers that were used again would begin with another app's memory.
    spark = local_session(options.workers, app_name="upriver-bench", **{"spark.python.worker.reuse": False})
    try:
        return measure_both(spark, options, say)
    finally:
        spark.stop()


def measure_both(spark: SparkSession, options: LobstersOptions, say: Say) -> Figures:
    """As ``measure_lobsters``, in a session that keeps no Python workers for later."""
    site = Site.of(options.scale, options.seed)
    requests = draw_requests(site, options.warm_up + options.requests, options.seed)
    ways = {}
    for way in ("full", "partial"):
        say(f"{way}: " + ", ".join(f"{rows.num_rows:,} {table}" for table, rows in site.rows.items()))
        with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
            ways[way] = _measure(spark, options, site, requests, way == "partial", Path(directory))
        say(f"  {json.dumps(ways[way])}")
    return {
        **asdict(options),
        "rows": {table: rows.num_rows for table, rows in site.rows.items()},
        **ways,
        "ratios": {name: ratio(ways["partial"][name], ways["full"][name]) for name in RATIOS},
        "answers_checked": sum(figures["answers_checked"] for figures in ways.values()),
        "wrong_answers": sum(figures["wrong_answers"] for figures in ways.values()),
    }


def _measure(
    spark: SparkSession,
    options: LobstersOptions,
    site: Site,
    requests: Sequence[Request],
    partial: bool,
    directory: Path,
) -> Figures:
    """One way of keeping the views. The memory is that which workers take beyond what they took with no rows."""
    budget = options.budget_mb << 20 if partial and options.budget_mb is not None else None
    with HandFedApp(spark, directory / "lake", options.workers, site_views(partial), budget) as app:
        pids = worker_pids(app)
        empty = memory_of(pids)
        for table, rows in site.rows.items():
            for first in range(0, rows.num_rows, LOAD_ROWS_MAX):
                app.publish(rows.slice(first, LOAD_ROWS_MAX), table)
        began = app.wait(LOAD_S_MAX)
        kept_as = {plan.name: plan.full_because for plan in app.plans}
        forgetful = [view for view, why in kept_as.items() if why is None]
        load = bear(app, requests, options.warm_up, options.clients, forgetful, directory)
        app.wait(LOAD_S_MAX)
        time.sleep(REST_S)
        views, grown = app.status()["views"], memory_of(pids) - empty
    wrong = wrong_lookups(site.rows, began, load.published, load.answers.lookups)
    return {
        "state_mb": as_mb(sum(views[view]["bytes"] for view in VIEWS)),
        "rss_mb": as_mb(grown.resident),
        "anonymous_mb": as_mb(grown.anonymous),
        **page_figures(load, requests, options.warm_up),
        "epochs_written": len(load.published),
        "views": _views(views, kept_as),
        "answers_checked": len(load.answers.lookups),
        "wrong_answers": len(wrong),
        "first_wrong": f"{wrong[0].view}, keys {wrong[0].keys.tolist()[:10]}" if wrong else None,
        "first_error": load.first_error,
    }


def site_views(partial: bool) -> list[HandFedView]:
    """All views of the site. partial: keep what is looked up."""
    tables = tuple(TABLES.values())
    return [
        HandFedView(name=name, sql=sql, key=key, tables=tables, partial=partial) for name, (sql, key) in VIEWS.items()
    ]


def page_figures(load: Load, requests: Sequence[Request], warm_up: int) -> Figures:
    """Of the pages after the warm-up: how many a second, how long they took, and which share of keys was missing."""
    columns = load.answers.pages.to_pydict()
    number, began_at, ended_at = (np.array(columns[name]) for name in ("number", "began_at", "ended_at"))
    counts = number >= warm_up
    ms = (ended_at - began_at) * 1e3
    kind = np.array([requests[one].page for one in number.tolist()])
    asked = sum(len(lookup.keys) for lookup in load.answers.lookups if lookup.page >= warm_up)
    return {
        "pages_per_s": round(float(np.count_nonzero(counts) / (ended_at[counts].max() - began_at[counts].min())), 1),
        **latencies("page", ms[counts].tolist()),
        "pages": {
            page: {"count": int(np.count_nonzero(counts & (kind == page)))}
            | latencies("page", ms[counts & (kind == page)].tolist())
            for page in MIX
        },
        "keys_per_page": round(asked / int(np.count_nonzero(counts)), 1),
        "miss_share": round(sum(load.missed.values()) / asked, 5),
    }


def _views(views: Mapping[str, Mapping[str, int]], kept_as: Mapping[str, str | None]) -> Figures:
    """How each is kept, and what that takes."""
    return {
        view: {"kept": "partial" if why is None else "full", "why_full": why, "state_mb": as_mb(views[view]["bytes"])}
        | {
            name: views[view][name]
            for name in ("rows", "cached_keys", "intermediate_keys", "state_rows")
            if name in views[view]
        }
        for view, why in kept_as.items()
    }


def ratio(partial: float | None, full: float | None) -> float | None:
    """``None`` if there is nothing to compare."""
    return round(partial / full, 4) if partial is not None and full else None
