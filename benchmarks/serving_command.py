"""``python -m benchmarks serving``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.serving import ServingOptions
from upriver.text import render_rows

FIGURES = ("lookups_per_s", "p50_ms", "p99_ms", "client_cpu_us", "server_cpu_us")


def add_serving(parser: argparse.ArgumentParser) -> None:
    number(parser, "--workers", 2, "workers that keep the view")
    number(parser, "--keys", 300_000, "keys that the view holds")
    number(parser, "--lookups", 20_000, "lookups of each way of asking that are timed")
    number(parser, "--rows", 50_000, "rows a second that come in the second run")


def serving_options(options: argparse.Namespace) -> ServingOptions:
    """As the command line has it."""
    return ServingOptions(workers=options.workers, keys=options.keys, lookups=options.lookups, rows=options.rows)


def render_serving(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    redis = measured["redis"]
    runs = {
        "at rest": measured["at_rest"],
        f"while {measured['rows_per_s']:,} rows/s come": measured["while_rows_come"],
        "Redis": redis.get("at_rest", {}),
    }
    rows = [
        [f"{way}, {run}", *("" if found[name] is None else f"{found[name]:,}" for name in FIGURES)]
        for run, found_by_way in runs.items()
        for way, found in found_by_way.items()
    ]
    skipped = [f"Redis was skipped: {redis['skipped']}"] if redis["skipped"] else []
    return "\n".join(["", render_rows(["lookups", *FIGURES], rows, [False, *(True for _ in FIGURES)]), *skipped])
