"""``python -m benchmarks recovery``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.recovery import SPARK
from benchmarks.recovery_ways import WAYS, RecoveryOptions
from upriver.text import render_rows

FIGURES = (
    "noticed_s",
    "served_again_s",
    "served_after_noticed_s",
    "caught_up_s",
    "views_equal",
    "answers",
    "wrong_answers",
    "failed",
)


def add_recovery(parser: argparse.ArgumentParser) -> None:
    number(parser, "--keys", 1_000_000, "keys that the view holds")
    number(parser, "--workers", 3, "workers, of which one is killed")
    number(parser, "--epoch-rows", 1_000, "rows of each epoch behind the first ones")
    number(parser, "--epochs-since", 10, "epochs between the checkpoint and the load")
    number(parser, "--epochs-per-s", 1, "epochs a second of the load")
    number(parser, "--steady-s", 5, "seconds of load before the kill, and when all has caught up")
    number(parser, "--seed", 1, "of the rows")
    parser.add_argument("--no-spark", action="store_true", help="without Spark's streaming")


def recovery_options(options: argparse.Namespace) -> RecoveryOptions:
    """As the command line has it."""
    return RecoveryOptions(
        keys=options.keys,
        workers=options.workers,
        epoch_rows=options.epoch_rows,
        epochs_since=options.epochs_since,
        epochs_per_s=options.epochs_per_s,
        steady_s=options.steady_s,
        has_spark=not options.no_spark,
        seed=options.seed,
    )


def render_recovery(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    ways = [*WAYS, SPARK]
    rows = [[way, *(_shown(measured[way], name) for name in FIGURES), measured[f"{way}_why"] or ""] for way in ways]
    table = render_rows(["", *FIGURES, ""], rows, [False, *(True for _ in FIGURES), False])
    verdict = "All answers were right, and the views are equal." if measured["right"] else "NOT ALL IS RIGHT."
    return f"\n{table}\n\n{verdict}"


def _shown(figures: Mapping[str, Any] | None, name: str) -> str:
    figure = None if figures is None else figures.get(name)
    return "" if figure is None else f"{figure:,}" if type(figure) in (int, float) else str(figure)
