"""The command line of ``python -m benchmarks tpch``, and its result for a person."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.shop_queries import QUERIES
from benchmarks.shop_rows import ShopSpec
from benchmarks.tpch import TpchOptions
from upriver.text import render_rows

FIGURES = (
    *(
        "shape",
        "start_s",
        "load_s",
        "spark_batch_s",
        "load_over_batch",
        "epoch_s",
        "batch_over_epoch",
        "spark_stream_load_s",
    ),
    *("spark_stream_epoch_s", "stream_over_epoch", "lookup_ms", "equal", "spark_stream_why"),
)


def add_tpch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=0.1, help="1 for about 6,000,000 lines (default 0.1)")
    names = tuple(QUERIES)
    parser.add_argument(
        "--queries",
        type=lambda text: tuple(name.strip() for name in text.split(",")),
        default=names,
        metavar="NAME,...",
        help=f"those to run (default: all): {', '.join(names)}",
    )
    number(parser, "--workers", 2, "workers that keep the view")
    number(parser, "--epochs", 5, "of new orders and their lines")
    number(parser, "--orders", 100, "new orders of an epoch")
    number(parser, "--seed", 1, "of the rows")
    parser.add_argument("--no-stream", action="store_true", help="without Spark's streaming")


def tpch_options(options: argparse.Namespace) -> TpchOptions:
    return TpchOptions(
        spec=ShopSpec(options.scale, options.seed),
        queries=options.queries,
        workers=options.workers,
        cores=min(options.workers, os.cpu_count() or 1),
        epochs=options.epochs,
        orders=options.orders,
        has_stream=not options.no_stream,
    )


def render_tpch(measured: Mapping[str, Any]) -> str:
    rows = []
    for name, figures in measured["queries"].items():
        rows.append([name, *(str(figures[one]) if figures.get(one) is not None else "" for one in FIGURES)])
    return "\n" + render_rows(["", *FIGURES], rows, [False, *(True for _ in FIGURES)])
