"""``python -m simulator``: plays the machines by seeds, or searches a protocol's published rules for their faults."""

import argparse
import sys
from collections.abc import Sequence

from simulator.commands import add_simulation, simulate
from upriver.shutdown import exit_status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = make_parser().parse_args(arguments)
    return exit_status("simulator", lambda: simulate(options))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    about = "Run the machines under a seeded scheduler, and check them."
    parser = argparse.ArgumentParser(prog="python -m simulator", description=about)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    add_simulation(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
