"""``python -m benchmarks hotkey``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.hotkey import VIEWS, HotKeyOptions
from upriver.text import render_rows


def add_hotkey(parser: argparse.ArgumentParser) -> None:
    number(parser, "--rows", 4_000_000, "rows of the hot key")
    number(parser, "--keys", 100_000, "small keys beside it")
    number(parser, "--epoch-rows", 1_000_000, "rows of the hot key that one epoch brings at the end")
    number(parser, "--lookups", 10, "lookups of the hot key when it is warm")
    number(parser, "--steady-s", 8, "seconds of load before its first lookup")
    number(parser, "--epochs-per-s", 10, "epochs of one row")
    parser.add_argument(
        "--views", nargs="+", choices=tuple(VIEWS), default=tuple(VIEWS), help="how rows are kept (default: all)"
    )


def hotkey_options(options: argparse.Namespace) -> HotKeyOptions:
    """As the command line has it."""
    return HotKeyOptions(
        rows=options.rows,
        keys=options.keys,
        epoch_rows=options.epoch_rows,
        lookups=options.lookups,
        steady_s=options.steady_s,
        epochs_per_s=options.epochs_per_s,
        views=tuple(options.views),
    )


def render_hotkey(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    kinds = {"warm": "warm keys", "cold": "cold keys", "visible": "epochs"}
    names = ["p50_ms", "p99_ms", "max_ms", "count"]
    rows = [
        [f"{view}, {when}, {what}", *(_shown(figures[when][kind][name]) for name in names), _ratio(figures[when], kind)]
        for view, figures in measured["views"].items()
        for when in ("before", "fill", "warm", "epoch")
        for kind, what in kinds.items()
    ]
    wrong = [f"{view}: WRONG" for view, figures in measured["views"].items() if not figures["right"]]
    table = render_rows(["", *names, "p99 / before"], rows, [False, *(True for _ in names), True])
    return "\n".join(["", table, *wrong])


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,}"


def _ratio(figures: Mapping[str, Any], kind: str) -> str:
    return _shown(figures.get("p99_ratios", {}).get(kind))
