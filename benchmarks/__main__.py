"""``python -m benchmarks NAME``: measures one thing, side by side with Spark or another store."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.commands import add_benchmarks
from upriver.shutdown import exit_status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = make_parser().parse_args(arguments)
    return exit_status("benchmarks", lambda: options.run(options))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, side by side with Spark.")
    add_benchmarks(parser.add_subparsers(required=True, metavar="BENCHMARK"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
