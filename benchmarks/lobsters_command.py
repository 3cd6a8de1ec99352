"""``python -m benchmarks lobsters``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.lobsters import LobstersOptions
from benchmarks.lobsters_requests import MIX
from upriver.text import render_rows


def add_lobsters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scale", type=float, default=0.05, help="of 40,650 stories, 121,270 comments, 5,797 users (default 0.05)"
    )
    number(parser, "--requests", 5_000, "pages that count")
    number(parser, "--warm-up", 2_000, "pages before them")
    number(parser, "--clients", 4, "that ask at once, each for one page after the other")
    number(parser, "--workers", 2, "workers that keep the views")
    number(parser, "--budget-mb", None, "memory budget of each worker that keeps partial views (default: none)")
    number(parser, "--seed", 1, "of rows and requests")


def lobsters_options(options: argparse.Namespace) -> LobstersOptions:
    """As the command line has it."""
    return LobstersOptions(
        scale=options.scale,
        requests=options.requests,
        warm_up=options.warm_up,
        clients=options.clients,
        workers=options.workers,
        budget_mb=options.budget_mb,
        seed=options.seed,
    )


def render_lobsters(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    full, partial = measured["full"], measured["partial"]
    names = [
        "state_mb",
        "rss_mb",
        "anonymous_mb",
        "pages_per_s",
        "miss_share",
        "page_p50_ms",
        "page_p95_ms",
        "page_p99_ms",
    ]
    ways = [
        [way, *(_shown(figures[name]) for name in names)] for way, figures in (("full", full), ("partial", partial))
    ]
    ways.append(["partial / full", *(_shown(measured["ratios"].get(name)) for name in names)])
    percentiles = [f"page_p{percent}_ms" for percent in (50, 95, 99)]
    pages = [
        [page, f"{full['pages'][page]['count']:,}"]
        + [_shown(way["pages"][page][name]) for name in percentiles for way in (full, partial)]
        for page in MIX
    ]
    heads = [f"{what} p{percent}" for percent in (50, 95, 99) for what in ("full", "partial")]
    views = [
        [
            view,
            of_partial["kept"],
            _shown(of_full["state_mb"]),
            _shown(of_partial["state_mb"]),
            of_partial["why_full"] or "",
        ]
        for (view, of_full), of_partial in zip(full["views"].items(), partial["views"].values(), strict=True)
    ]
    wrong, checked = measured["wrong_answers"], measured["answers_checked"]
    return "\n".join(
        [
            "",
            render_rows(["", *names], ways, [False, *(True for _ in names)]),
            "",
            render_rows(["page, ms", "pages", *heads], pages, [False, *(True for _ in range(7))]),
            "",
            render_rows(["view", "", "full MB", "partial MB", ""], views, [False, False, True, True, False]),
            "",
            f"{checked:,} answers checked, {wrong:,} WRONG." if wrong else f"{checked:,} answers, all right.",
        ]
    )


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,}"
