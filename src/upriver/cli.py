"""The command line: ``upriver demo|status|lookup|explain|simulate|bench``.

With ``--json`` a command's last line is one JSON object. Exit status: 0 done; 1 failed or found what it looked for
(a violation, a difference); 2 asked wrongly.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from upriver.bench.commands import add_benchmarks
from upriver.client import Client, connect
from upriver.dataflow.explain import render
from upriver.demo import run_demo
from upriver.errors import KeyTypeError, UpriverError, UserError
from upriver.sim.campaign import campaign
from upriver.text import render_rows, render_table

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

    lookup = _command(commands, "lookup", _lookup, "rows of a view by key")
    _address(lookup)
    lookup.add_argument("view")
    lookup.add_argument(
        "keys",
        nargs="+",
        metavar="KEY",
        help='a value; or, as JSON, a list of one value per key column: \'["JFK","LAX"]\'',
    )

    explain = _command(commands, "explain", _explain, "how a view is kept")
    _address(explain)
    explain.add_argument("view")

    simulate = _command(commands, "simulate", _simulate, "run the machines under a seeded scheduler, and check them")
    simulate.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    simulate.add_argument("--runs", type=int, default=1, help="how many seeds, from --seed on (default 1)")
    simulate.add_argument("--steps", type=int, default=200, help="steps of each run (default 200)")
    simulate.add_argument("--workers", type=int, default=3, help="workers (default 3)")

    bench = commands.add_parser("bench", help="measure, side by side with Spark")
    add_benchmarks(bench.add_subparsers(required=True, metavar="BENCHMARK"))
    return parser


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
    return 0 if result["matches_spark"] else 1


def _status(options: argparse.Namespace) -> int:
    with _client(options) as client:
        status = client.status()
    if options.json:
        _print_json(status)
        return 0
    print(f"epoch {status['epoch']} of {status['published']} published, map version {status['map_version']}")
    workers = [[str(w[name]) for name in ("worker", "address", "epoch", "vnodes")] for w in status["workers"]]
    print(render_rows(["worker", "address", "epoch", "vnodes"], workers, [True, False, True, True]))
    views = [[name, *(f"{n[what]:,}" for what in ("rows", "keys", "bytes"))] for name, n in status["views"].items()]
    print(render_rows(["view", "rows", "keys", "bytes"], views, [False, True, True, True]))
    return 0


def _lookup(options: argparse.Namespace) -> int:
    with _client(options) as client:
        key_schema = client.key_schema(options.view)
        found = client.lookup(options.view, _parse_keys(options.keys, key_schema))
    if options.json:
        _print_json({"view": options.view, "rows": found.to_pylist()})
    else:
        print(render_table(found))
    return 0


def _parse_keys(texts: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Keys as typed on a command line, in the types of the view's key columns."""
    several = len(schema) > 1
    rows = [_parse_json(text) if several or text.startswith("[") else [text] for text in texts]
    if any(not isinstance(row, list) or len(row) != len(schema) for row in rows):
        raise KeyTypeError(f"each key is a JSON list of {len(schema)} values: {', '.join(schema.names)}")
    columns = [_parse_column([row[place] for row in rows], field) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise KeyTypeError(f"{text!r} is not JSON: {error}") from error


def _parse_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    texts = [None if value is None else str(value) for value in values]
    try:
        return pa.array(texts, pa.string()).cast(field.type)
    except pa.ArrowException as error:
        raise KeyTypeError(f"key column {field.name!r} is {field.type}: {error}") from error


def _explain(options: argparse.Namespace) -> int:
    with _client(options) as client:
        explained = client.explain(options.view)
    if options.json:
        _print_json(explained)
    else:
        print(render(explained))
    return 0


def _simulate(options: argparse.Namespace) -> int:
    result = campaign(options.seed, options.runs, options.steps, options.workers)
    if options.json:
        _print_json(result)
    elif not result["violations"]:
        print(f"{result['runs']} runs from seed {options.seed}, {options.steps} steps each: no violation")
    else:
        print("\n".join(result["trace"]))
        print(f"{result['violations']} of {result['runs']} runs violate a rule; the first, at step {result['step']}:")
        print(f"{result['checker']}: {result['message']}")
        print(f"upriver simulate --seed {result['seed']} --steps {options.steps} --workers {options.workers}")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
