"""``python -m benchmarks latency``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.latency import LatencyOptions
from upriver.text import render_rows


def add_latency(parser: argparse.ArgumentParser) -> None:
    number(parser, "--workers", 2, "workers that keep the view")
    number(parser, "--keys", 1_000_000, "keys that the view holds")
    number(parser, "--epochs", 300, "epochs of each size that are timed")
    number(parser, "--spark-epochs", 50, "epochs that come through Spark's streaming")
    number(parser, "--lookups", 2_000, "lookups of each size that are timed")
    number(parser, "--busy-rows", 500_000, "rows of the epochs that come while single keys of joins are looked up")
    number(parser, "--busy-epochs", 8, "so many of them")


def latency_options(options: argparse.Namespace) -> LatencyOptions:
    """As the command line has it."""
    return LatencyOptions(
        workers=options.workers,
        keys=options.keys,
        epochs=options.epochs,
        spark_epochs=options.spark_epochs,
        lookups=options.lookups,
        busy_rows=options.busy_rows,
        busy_epochs=options.busy_epochs,
    )


def render_latency(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    spans = {
        "1-row epoch, from commit": measured["rows_1"],
        "10,000-row epoch, from commit": measured["rows_10000"],
        "1 row through Spark, from trigger": measured["through_spark"]["from_trigger"],
        "1 row through Spark, from file": measured["through_spark"]["from_file"],
    }
    names = ["p50_ms", "p99_ms", "epochs"]
    rows = [[what, *(f"{figures[name]:,}" for name in names)] for what, figures in spans.items()]
    lookups = [[name, f"{figure:,}"] for name, figure in measured["lookups"].items() if name != "without_spark"]
    whiles = ["p50_ms", "p95_ms", "p99_ms", "max_ms"]
    busy = [
        [f"{view}, {when}", *(f"{figures[when][name]:,}" for name in whiles)]
        for view, figures in measured["busy"].items()
        for when in ("idle", "busy")
    ]
    wrong = [view for view, figures in measured["busy"].items() if not figures["right"]]
    return "\n".join(
        [
            "",
            render_rows(["until a lookup shows it", *names], rows, [False, True, True, True]),
            "",
            render_rows(["lookups without Spark", ""], lookups, [False, True]),
            "",
            render_rows(["single keys of joins", *whiles], busy, [False, *(True for _ in whiles)]),
            *(f"{view}: WRONG" for view in wrong),
        ]
    )
