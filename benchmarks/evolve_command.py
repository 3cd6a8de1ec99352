"""``python -m benchmarks evolve``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.evolve import EvolveOptions
from upriver.text import render_rows

CHANGES = ("add", "drop", "table", "endless")
FIGURES = ("p99_ms_before", "p99_ms_during", "p99_ms_after", "longest_ms")


def add_evolve(parser: argparse.ArgumentParser) -> None:
    number(parser, "--rows", 10_000_000, "rows of the table")
    number(parser, "--workers", 2, "workers before")
    number(parser, "--steady-s", 5, "seconds of lookups before and after each change")
    parser.add_argument("--rescale", action="store_true", help="with one worker more while the view is added")
    parser.add_argument("--slow-function", action="store_true", help="the view that is added calls one that sleeps")
    parser.add_argument("--endless-function", action="store_true", help="at last, a view that calls one without an end")
    number(parser, "--endless-s", 20, "seconds that it may take")
    number(parser, "--idle-views", None, "views more, of a table without new rows")
    number(parser, "--cpu-rows", 1_000_000, "rows of the comparison of 20 views with 1")
    parser.add_argument("--no-cpu", action="store_true", help="without that comparison")


def evolve_options(options: argparse.Namespace) -> EvolveOptions:
    """As the command line has it."""
    return EvolveOptions(
        rows=options.rows,
        workers=options.workers,
        steady_s=options.steady_s,
        rescale=options.rescale,
        slow_function=options.slow_function,
        endless_function=options.endless_function,
        endless_s=options.endless_s,
        idle_views=options.idle_views or 0,
        cpu_rows=None if options.no_cpu else options.cpu_rows,
    )


def render_evolve(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    changes = {name: measured[name] for name in CHANGES if name in measured}
    rows = [
        [f"{name}, {view}", *("" if figures[figure] is None else f"{figures[figure]:,}" for figure in FIGURES)]
        for name, change in changes.items()
        for view, figures in change.get("others", {}).items()
    ]
    said = [
        f"{name}: "
        + ", ".join(f"{what} {told}" for what, told in change.items() if what != "others" and told is not None)
        for name, change in changes.items()
    ]
    cpu = [
        f"CPU s per million rows, {size} epochs: "
        + ", ".join(f"{views} views {seconds:,}" for views, seconds in by_views.items())
        for size, by_views in measured.get("cpu_20_views", {}).items()
    ]
    table = render_rows(["", *FIGURES], rows, [False, *(True for _ in FIGURES)])
    return "\n".join(["", table, "", *said, *cpu])
