"""``upriver status|lookup|query|explain|views|rescale``: the commands that query a running app."""

import argparse
import math
import shlex
import sys
import time

from upriver.arguments import seconds
from upriver.client.client import Client, connect
from upriver.client.json_values import csv_bytes, rows_of
from upriver.client.key_texts import keys_of_texts
from upriver.client.rescale import STRATEGIES, Rescale
from upriver.errors import UserError, WaitTimeout
from upriver.plan.explain import render
from upriver.text import (
    Screen,
    print_bytes,
    print_json,
    render_progress,
    render_progress_line,
    render_report,
    render_rescales,
    render_status,
    render_table,
    render_views,
)


def _client(options: argparse.Namespace) -> Client:
    return connect(options.address, options.token, root=options.root, tls=options.tls)


def status(options: argparse.Namespace) -> int:
    """Print the status of the app."""
    if options.watch and not (math.isfinite(options.interval) and options.interval > 0):
        raise UserError(f"--interval {options.interval:g}: give seconds, more than 0")
    with _client(options) as client:
        if options.watch:
            return _watch(client, options)
        told = client.status()
    if options.json:
        print_json(told)
    else:
        print(render_status(told))
    return 0


def _watch(client: Client, options: argparse.Namespace) -> int:
    """Show the status until Ctrl-C ends it."""
    screen = Screen(sys.stdout)
    try:
        while True:
            told = client.status()
            if options.json:
                print_json(told)
            else:
                screen.show(render_status(told))
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return 0


def lookup(options: argparse.Namespace) -> int:
    """Print the rows of some keys."""
    if options.max_age is not None:
        seconds("--max-age", options.max_age)
    with _client(options) as client:
        key_schema = client.key_schema(options.view)
        keys = keys_of_texts(options.view, key_schema, options.keys)
        limits = {name: getattr(options, name) for name in ("max_age", "allow_warming", "timeout")}
        found = client.lookup(options.view, keys, **limits)
    if options.json:
        told = {name.decode(): value.decode() for name, value in found.schema.metadata.items()}
        print_json({"view": options.view, "rows": rows_of(found), "metadata": told})
    else:
        print(render_table(found))
    return 0


def query(options: argparse.Namespace) -> int:
    """Print the rows of a SELECT."""
    if options.json and options.csv:
        raise UserError("give --json or --csv, not both")
    given = dict(options.parameter or ())
    if len(given) < len(options.parameter or ()):
        raise UserError("--parameter gives a name twice")
    with _client(options) as client:
        found = client.query(options.sql, given, timeout=options.timeout)
    if options.json:
        print_json({"rows": rows_of(found)})
    elif options.csv:
        print_bytes(csv_bytes(found))
    else:
        print(render_table(found))
    return 0


def explain(options: argparse.Namespace) -> int:
    """Print how a view is kept."""
    with _client(options) as client:
        explained = client.explain(options.view)
    if options.json:
        print_json(explained)
    else:
        print(render(explained))
    return 0


def views(options: argparse.Namespace) -> int:
    """Print the views that are declared, or were."""
    with _client(options) as client:
        told = [view for view in client.views() if options.all or view["ended"] is None]
    if options.json:
        print_json({"views": told})
    else:
        print(render_views(told))
    return 0


def rescale(options: argparse.Namespace) -> int:
    """Begin a rescale, or abort one, and follow it."""
    seconds("--timeout", options.timeout)
    if options.history:
        return _history(options)
    with _client(options) as client:
        asked = _asked_rescale(client, options)
        if options.no_wait:
            if options.json:
                print_json({"ticket": asked.ticket})
            else:
                print(_how_to_go_on(asked, options))
            return 0
        try:
            _follow(asked, options.timeout)
        except (KeyboardInterrupt, WaitTimeout):
            print(f"\nIt goes on all the same. {_how_to_go_on(asked, options)}", file=sys.stderr)
            raise
        report = asked.outcome()
    if options.json:
        print_json(report)
    else:
        print(render_report(report))
    return 0 if (report["outcome"] == "aborted") == (options.abort is not None) else 1


def _history(options: argparse.Namespace) -> int:
    """Print the last rescales."""
    if (options.workers, options.move, options.strategy, options.keys, options.abort) != (None,) * 5:
        raise UserError("--history goes without N, --move, --strategy, --keys and --abort")
    with _client(options) as client:
        told = client.rescales()
    if options.json:
        print_json({"rescales": told})
    else:
        print(render_rescales(told))
    return 0


def _asked_rescale(client: Client, options: argparse.Namespace) -> Rescale:
    """The rescale to follow: the one that this command begins, or the one that it aborts."""
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
    """Commands for the same app. The token is secret, and is left out."""
    given = {"--address": options.address, "--root": options.root, "--tls": options.tls}
    of_app = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    return (
        f"Follow rescale {rescale.ticket}: upriver status --watch{of_app}; "
        f"abort it: upriver rescale --abort {rescale.ticket}{of_app}"
    )
