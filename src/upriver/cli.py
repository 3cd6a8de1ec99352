"""The command line: ``upriver demo|status|lookup|query|explain|views|rescale|lake``.

With ``--json`` a command's last line is one JSON object; with ``status --watch`` each line is one. Exit status: 0 done;
1 failed, or a check found a violation or a difference, or a rescale ended differently than requested; 2 usage error;
130 interrupted; 141 the reader of the output has gone.

The module behind a command is loaded when the command runs: ``--help`` and ``--version`` load neither Arrow nor Spark.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from upriver import __version__
from upriver.errors import UserError
from upriver.shutdown import exit_status

LAKE_ACTIONS = ("compact", "collect")
"""What ``upriver lake`` does to a root."""


class _Command(NamedTuple):
    """about: one line. add_arguments: to the command's parser, when it is used. run: where the command's function
    is."""

    about: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser_of(given).parse_args(given)
    return exit_status("upriver", lambda: _load(options.run)(options))


def parser_of(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of these arguments: it knows only the names of the other commands."""
    parser = argparse.ArgumentParser(prog="upriver", description="Elastic, partially materialized views for PySpark.")
    parser.add_argument("--version", action="version", version=f"upriver {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, command in _COMMANDS.items():
        subparser = commands.add_parser(name, help=command.about, description=command.about)
        if name == named:
            subparser.set_defaults(run=command.run)
            command.add_arguments(subparser)
    return parser


def _load(where: str) -> Any:
    """The object at ``module:name``. Raises UserError if it needs PySpark, and that is not installed."""
    module, _, name = where.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "pyspark":
            raise
        raise UserError("this command needs PySpark: pip install 'upriver[spark,demo]'") from missing


_VALUES = (
    "In JSON, values are as over HTTP: decimals, NaN, Infinity, whole numbers beyond 2^53, times and binary values are "
    "texts. A sum of whole numbers counts as a decimal."
)
"""How the commands that print rows write values."""


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")


def _app(parser: argparse.ArgumentParser) -> None:
    """Arguments of a command that queries a running app."""
    _json(parser)
    parser.add_argument("--address", help="app.address of the running app, host:port; by default UPRIVER_ADDRESS")
    parser.add_argument("--root", help="instead of the address: the app's root, where its address is recorded")
    parser.add_argument(
        "--token", help="app.token; by default UPRIVER_TOKEN, else what the file UPRIVER_TOKEN_FILE has"
    )
    parser.add_argument(
        "--tls",
        metavar="FILE",
        help="if the app has a certificate: the file with the certificates to trust, or true for those of the system; "
        "by default UPRIVER_TLS",
    )


def _timeout(parser: argparse.ArgumentParser, default: float) -> None:
    about = f"seconds to wait for the answer (default {default:g})"
    parser.add_argument("--timeout", type=float, default=default, metavar="S", help=about)


def _demo(demo: argparse.ArgumentParser) -> None:
    _json(demo)
    demo.add_argument("--workers", type=int, default=2, help="workers that keep the views (default 2)")
    demo.add_argument("--http", metavar="HOST:PORT", help="show the page there, such as 127.0.0.1:8080, until Ctrl-C")


def _status(status: argparse.ArgumentParser) -> None:
    _app(status)
    status.add_argument("--watch", action="store_true", help="refresh it until Ctrl-C")
    status.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="with --watch: seconds between two looks (default 1)"
    )


def _lookup(lookup: argparse.ArgumentParser) -> None:
    lookup.epilog = _VALUES
    _app(lookup)
    lookup.add_argument("view", help="its name")
    lookup.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help="a value; or, as JSON, a list of one value per key column: '[\"JFK\",\"LAX\"]', or '[null]'. A time is in "
        "the view's zone unless an offset is behind it",
    )
    lookup.add_argument("--allow-warming", action="store_true", help="answer even while the app still reads older rows")
    _timeout(lookup, 10.0)
    lookup.add_argument("--max-age", type=float, metavar="S", help="fail if the answer may be older than S seconds")


def _query(query: argparse.ArgumentParser) -> None:
    query.epilog = _VALUES
    _app(query)
    query.add_argument(
        "sql", metavar="SELECT", help="Spark SQL over views: \"SELECT * FROM totals WHERE customer IN ('ada', 'bob')\""
    )
    query.add_argument(
        *("-p", "--parameter"),
        type=_parameter,
        action="append",
        metavar="NAME=VALUE",
        help="a value of :NAME, as JSON, or else as a text; repeatable",
    )
    _timeout(query, 60.0)
    query.add_argument("--csv", action="store_true", help='print the rows as CSV: NULL is nothing, an empty text is ""')


def _explain(explain: argparse.ArgumentParser) -> None:
    _app(explain)
    explain.add_argument("view", help="its name")


def _views(views: argparse.ArgumentParser) -> None:
    _app(views)
    views.add_argument("--all", action="store_true", help="also views that were dropped or replaced")


def _rescale(rescale: argparse.ArgumentParser) -> None:
    _app(rescale)
    rescale.add_argument("workers", type=int, nargs="?", metavar="N", help="the new number of workers")
    rescale.add_argument(
        "--move", type=_move, action="append", metavar="V=W", help="instead of N: move vnode V to worker W; repeatable"
    )
    strategies = "icadd (the default), redistribute, lazy, learner, restart"
    rescale.add_argument("--strategy", metavar="S", help=f"how keys move: {strategies}")
    rescale.add_argument(
        "--keys", type=int, metavar="N", help="keys that move at a time; by default as many as the time allows"
    )
    rescale.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds to wait (default 600)")
    rescale.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    rescale.add_argument(
        "--history", action="store_true", help="instead of N: the last rescales, of earlier starts, too"
    )
    rescale.add_argument("--abort", type=int, metavar="TICKET", help="instead of N: abort this rescale")


def _lake(lake: argparse.ArgumentParser) -> None:
    _json(lake)
    lake.add_argument(
        "action",
        nargs="?",
        choices=LAKE_ACTIONS,
        help="compact: merge old epochs into segments; collect: remove files that segments have replaced. A running "
        "app does both by itself. Without either, the files are only counted",
    )
    lake.add_argument("root", metavar="ROOT", help="of the app")
    lake.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="replaced files stay for so many seconds (default 3600); not with compact",
    )
    lake.add_argument(
        "--stopped", action="store_true", help="no app runs on this root: needed in object stores, which have no locks"
    )


def _parameter(text: str) -> tuple[str, Any]:
    """``NAME=VALUE``: a parameter of a query."""
    name, sign, value = text.partition("=")
    if not (sign and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, a parameter and its value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _move(text: str) -> tuple[int, int]:
    """``V=W``: a vnode and its new worker."""
    vnode, sign, worker = text.partition("=")
    if not (sign and vnode.isdecimal() and worker.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form V=W, a vnode and a worker")
    return int(vnode), int(worker)


_COMMANDS = {
    "demo": _Command("a year of real flights through the whole app", _demo, "upriver.demo:demo"),
    "status": _Command("the state of a running app", _status, "upriver.client_commands:status"),
    "lookup": _Command("rows of a view by key", _lookup, "upriver.client_commands:lookup"),
    "query": _Command("a SELECT over views, by key or over all rows", _query, "upriver.client_commands:query"),
    "explain": _Command("how a view is kept", _explain, "upriver.client_commands:explain"),
    "views": _Command("the views of a running app, with their SQL", _views, "upriver.client_commands:views"),
    "rescale": _Command(
        "change the number of workers, or the owners of vnodes, while the app runs",
        _rescale,
        "upriver.client_commands:rescale",
    ),
    "lake": _Command(
        "the files of a root; compacts and collects them while no app runs", _lake, "upriver.lake_commands:lake"
    ),
}


if __name__ == "__main__":
    sys.exit(main())
