"""Arguments of the benchmarks' command lines."""

import argparse


def number(parser: argparse.ArgumentParser, name: str, default: int | None, about: str) -> None:
    """Add an argument that is a number above 0."""
    shown = "" if default is None else f" (default {default:,})"
    parser.add_argument(name, type=_positive, default=default, metavar="N", help=about + shown)


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value
