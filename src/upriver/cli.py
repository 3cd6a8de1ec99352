"""The command line: ``upriver demo|status|lookup|explain|rescale|simulate|bench``.

With ``--json`` a command's last line is one JSON object; with ``status --watch`` each line is one. Exit status: 0 done;
1 failed, or found what it looked for (a violation, a difference), or a rescale ended otherwise than was asked for;
2 asked wrongly; 130 interrupted.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from upriver.bench.commands import add_benchmarks
from upriver.client import Client, connect
from upriver.dataflow.explain import render
from upriver.dataflow.row_text import readable
from upriver.demo import run_demo
from upriver.errors import UpriverError, UserError, WaitTimeout
from upriver.rescale import STRATEGIES, Rescale
from upriver.shell.key_texts import keys_of_texts
from upriver.sim.commands import add_simulation, simulate
from upriver.text import (
    Screen,
    render_progress,
    render_progress_line,
    render_report,
    render_status,
    render_table,
)

TOKEN_VARIABLE = "UPRIVER_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except UpriverError as error:
        print(f"upriver: {type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="upriver", description="Elastic, partially materialized views for PySpark.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = _command(commands, "demo", _demo, "a year of real flights through the whole river")
    demo.add_argument("--workers", type=int, default=2, help="workers that keep the views (default 2)")

    status = _command(commands, "status", _status, "what a running app stands at")
    _address(status)
    status.add_argument("--watch", action="store_true", help="show it again and again, until Ctrl-C")
    status.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="with --watch: seconds between two looks (default 1)"
    )

    lookup = _command(commands, "lookup", _lookup, "rows of a view by key")
    _address(lookup)
    lookup.add_argument("view")
    lookup.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help="a value; or, as JSON, a list of one value per key column: '[\"JFK\",\"LAX\"]', or '[null]'. A time is in "
        "the view's zone unless an offset is behind it",
    )

    lookup.add_argument("--allow-warming", action="store_true", help="answer although the app has only just started")
    lookup.add_argument("--max-age", type=float, metavar="S", help="fail if the answer may be older than S seconds")

    explain = _command(commands, "explain", _explain, "how a view is kept")
    _address(explain)
    explain.add_argument("view")

    _add_rescale(commands)

    simulator = _command(commands, "simulate", simulate, "run the machines under a seeded scheduler, and check them")
    add_simulation(simulator)

    bench = commands.add_parser("bench", help="measure, side by side with Spark")
    add_benchmarks(bench.add_subparsers(required=True, metavar="BENCHMARK"))
    return parser


def _add_rescale(commands: Any) -> None:
    rescale = _command(commands, "rescale", _rescale, "change the workers, or which vnodes they own, while all goes on")
    _address(rescale)
    rescale.add_argument("workers", type=int, nargs="?", metavar="N", help="how many workers there shall be")
    rescale.add_argument(
        "--move", type=_move, action="append", metavar="V=W", help="instead of N: vnode V goes to worker W; repeatable"
    )
    rescale.add_argument("--strategy", metavar="S", help=f"{', '.join(STRATEGIES)} (default {STRATEGIES[0]})")
    rescale.add_argument("--keys", type=int, metavar="N", help="keys on the move at once, by default as time allows")
    rescale.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds to wait (default 600)")
    rescale.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    rescale.add_argument("--abort", type=int, metavar="TICKET", help="instead of N: abort this rescale")


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    parser.set_defaults(run=run)
    return parser


def _address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", required=True, help="app.address of the running app, host:port")
    parser.add_argument("--token", default=None, help=f"app.token; by default the environment's {TOKEN_VARIABLE}")


def _client(options: argparse.Namespace) -> Client:
    token = options.token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise UserError(f"no token: give --token, or set {TOKEN_VARIABLE}")
    return connect(options.address, token)


def _print_json(result: Any) -> None:
    print(json.dumps(result, default=str))


def _demo(options: argparse.Namespace) -> int:
    result = run_demo(workers=options.workers)
    if options.json:
        _print_json(result)
    return 0 if result["matches_spark"] and not result["lookups_wrong"] else 1


def _status(options: argparse.Namespace) -> int:
    with _client(options) as client:
        if options.watch:
            return _watch(client, options)
        status = client.status()
    if options.json:
        _print_json(status)
        return 0
    print(render_status(status))
    return 0


def _watch(client: Client, options: argparse.Namespace) -> int:
    """Show the status until Ctrl-C, which is the way to end this."""
    if not (math.isfinite(options.interval) and options.interval > 0):
        raise UserError(f"--interval {options.interval:g}: give seconds, more than 0")
    screen = Screen(sys.stdout)
    try:
        while True:
            status = client.status()
            if options.json:
                print(json.dumps(status), flush=True)
            else:
                screen.show(render_status(status))
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return 0


def _lookup(options: argparse.Namespace) -> int:
    with _client(options) as client:
        key_schema = client.key_schema(options.view)
        keys = keys_of_texts(options.view, key_schema, options.keys)
        found = client.lookup(options.view, keys, max_age=options.max_age, allow_warming=options.allow_warming)
    if options.json:
        columns = [readable(column) for column in found.columns]
        rows = [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
        told = {name.decode(): value.decode() for name, value in found.schema.metadata.items()}
        _print_json({"view": options.view, "rows": rows, "metadata": told})
    else:
        print(render_table(found))
    return 0


def _explain(options: argparse.Namespace) -> int:
    with _client(options) as client:
        explained = client.explain(options.view)
    if options.json:
        _print_json(explained)
    else:
        print(render(explained))
    return 0


def _move(text: str) -> tuple[int, int]:
    """``V=W``: a vnode and the worker that it shall go to."""
    vnode, sign, worker = text.partition("=")
    if not (sign and vnode.isdecimal() and worker.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form V=W, a vnode and a worker")
    return int(vnode), int(worker)


def _rescale(options: argparse.Namespace) -> int:
    with _client(options) as client:
        rescale = _asked_rescale(client, options)
        if options.no_wait:
            if options.json:
                _print_json({"ticket": rescale.ticket})
            else:
                print(_how_to_go_on(rescale, options))
            return 0
        try:
            _follow(rescale, options.timeout)
        except (KeyboardInterrupt, WaitTimeout):
            print(f"\nIt goes on all the same. {_how_to_go_on(rescale, options)}", file=sys.stderr)
            raise
        report = rescale.outcome()
    if options.json:
        _print_json(report)
    else:
        print(render_report(report))
    return 0 if (report["outcome"] == "aborted") == (options.abort is not None) else 1


def _asked_rescale(client: Client, options: argparse.Namespace) -> Rescale:
    """The rescale that is begun, or the one that is to be aborted."""
    if options.abort is not None:
        if (options.workers, options.move, options.strategy, options.keys) != (None, None, None, None):
            raise UserError("--abort TICKET goes without N, --move, --strategy and --keys")
        rescale = client.rescale_of(options.abort)
        rescale.abort()
        return rescale
    moves = dict(options.move) if options.move else None
    if moves and len(moves) < len(options.move):
        raise UserError("--move names a vnode twice")
    return client.rescale(
        options.workers, moves=moves, strategy=options.strategy or STRATEGIES[0], keys_max=options.keys
    )


def _follow(rescale: Rescale, timeout: float) -> None:
    """Show the progress until the end: all of it on a terminal, elsewhere a line now and then."""
    screen = Screen(sys.stdout)
    said: tuple[str, int] | None = None
    for progress in rescale.follow(timeout):
        if screen.is_terminal:
            screen.show(render_progress(progress))
        elif said != (now := (progress["state"], int(progress["seconds"]))):  # each state, and then each second
            screen.show(render_progress_line(progress))
            said = now


def _how_to_go_on(rescale: Rescale, options: argparse.Namespace) -> str:
    return (
        f"Follow rescale {rescale.ticket}: upriver status --watch --address {options.address}; "
        f"abort it: upriver rescale --abort {rescale.ticket} --address {options.address}"
    )


if __name__ == "__main__":
    sys.exit(main())
