"""Tables and bars for a terminal, and the display of a rescale and of a running app."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, TextIO

import pyarrow as pa

from upriver.client.json_values import json_bytes
from upriver.engine.row_text import escaped, readable

ROWS_SHOWN_MAX = 40
"""Rows of a table that are printed."""
BAR_WIDTH = 30
"""Characters of a progress bar."""


def print_json(value: Any) -> None:
    """A line with the value, as :func:`json_bytes` writes it."""
    print_bytes(json_bytes(value) + b"\n")


def print_bytes(content: bytes) -> None:
    """Write UTF-8 to stdout, whatever encoding the terminal has."""
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def render_table(table: pa.Table) -> str:
    """An Arrow table in columns, numbers to the right; at most ``ROWS_SHOWN_MAX`` rows.

    Numbers are as Python prints them. Control characters that a terminal would obey, and newlines, are escaped.
    """
    shown = table.slice(0, ROWS_SHOWN_MAX)
    rows = [list(map(_cell, row)) for row in zip(*map(readable, shown.columns), strict=True)]
    numeric = [pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in table.schema.types]
    lines = render_rows(list(map(escaped, table.column_names)), rows, numeric)
    left_out = table.num_rows - shown.num_rows
    return lines + (f"\n({left_out} more rows)" if left_out else "")


def render_rows(names: Sequence[str], rows: Sequence[Sequence[str]], to_the_right: Sequence[bool]) -> str:
    """Cells in columns under their names."""
    widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        placed = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, to_the_right, strict=True)
        )
        return "  ".join(placed).rstrip()

    return "\n".join([line(names), line(["-" * width for width in widths]), *(line(row) for row in rows)])


def _cell(value: object) -> str:
    return "null" if value is None else escaped(str(value))


def progress_bar(done: int, total: int) -> str:
    """``[#####.....] 1,200/2,500``."""
    filled = BAR_WIDTH * done // total if total else BAR_WIDTH
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done:,}/{total:,}"


def render_bytes(count: int) -> str:
    """``640 B``, ``1.2 MB``: in powers of ten."""
    if count < 1000:
        return f"{count} B"
    amount, units = count / 1000, ["kB", "MB", "GB", "TB"]
    while amount >= 999.95 and len(units) > 1:  # 999.96 would be printed as 1000.0
        amount, units = amount / 1000, units[1:]
    return f"{amount:.1f} {units[0]}"


# A rescale. Its progress and its report are plain dicts, as ``upriver.Rescale`` gives them.


def render_progress(progress: Mapping[str, Any]) -> str:
    """A rescale's progress as a few lines: how far it is, and each worker's phase and share in each view."""
    workers = [
        [
            str(share["worker"]),
            share["view"],
            share["phase"],
            f"{share['keys_moved']:,}",
            f"{share['keys_left']:,}",
            render_bytes(share["bytes_moved"]),
        ]
        for share in progress["workers"]
    ]
    lines = [_headline(progress)]
    if progress["state"] != "queued":  # nothing is known before
        lines += [_bar(progress), _amounts(progress)]
    if workers:
        names = ["worker", "view", "phase", "keys moved", "keys left", "moved"]
        lines.append(render_rows(names, workers, [True, False, False, True, True, True]))
    return "\n".join(lines)


def render_progress_line(progress: Mapping[str, Any]) -> str:
    """A rescale's progress in one line, for a log."""
    headline = _headline(progress)
    return headline if progress["state"] == "queued" else f"{headline}, {_bar(progress)}, {_amounts(progress)}"


def _headline(progress: Mapping[str, Any]) -> str:
    waits = "" if progress["waits_for"] is None else f", waits for {progress['waits_for']}"
    return f"{_rescale_name(progress)}: {progress['state']}{waits}"


def _rescale_name(rescale: Mapping[str, Any]) -> str:
    return f"rescale {rescale['ticket']} ({_rescale_kind(rescale)})"


def _rescale_kind(rescale: Mapping[str, Any]) -> str:
    """``icadd, 2 -> 4 workers``. Before the rescale begins, these numbers may be unknown."""
    before, after = ("?" if rescale[name] is None else str(rescale[name]) for name in ("from", "to"))
    return f"{rescale['strategy']}, {before} -> {after} workers"


def _bar(progress: Mapping[str, Any]) -> str:
    """How many keys have moved; or vnodes, while no key is known."""
    moved, left = progress["keys_moved"], progress["keys_left"]
    if moved + left:
        return f"{progress_bar(moved, moved + left)} keys"
    return f"{progress_bar(progress['vnodes_moved'], progress['vnodes_moving'])} vnodes"


def _amounts(progress: Mapping[str, Any]) -> str:
    moved, left = progress["bytes_moved"], progress["bytes_left"]
    amounts = f"{render_bytes(moved)} of {render_bytes(moved + left)}, {progress['seconds']:.1f} s"
    seconds_left = progress["seconds_left"]
    return amounts if seconds_left is None else f"{amounts}, about {seconds_left:.1f} s left"


def render_report(report: Mapping[str, Any]) -> str:
    """A rescale's report as a table."""
    keys, vnodes = report["moved_keys"], report["moved_vnodes"]
    rows = [
        ["outcome", report["outcome"]],
        ["moved", f"{keys:,} keys in {vnodes:,} vnodes, {render_bytes(report['moved_bytes'])}"],
        ["took", f"{report['seconds']:.3f} s"],
        ["longest wait of a key", f"{report['max_hold_ms']:.1f} ms"],
        ["longest stall of a worker", f"{report['max_stall_ms']:.1f} ms"],
        ["rows forwarded, bounced", f"{report['rows_forwarded']:,}, {report['rows_bounced']:,}"],
    ]
    if report["error"] is not None:
        rows.append(["error", report["error"]])
    return render_rows([f"rescale {report['ticket']}", _rescale_kind(report)], rows, [False, False])


def render_rescales(rescales: Sequence[Mapping[str, Any]]) -> str:
    """The last rescales, one a line."""
    lines = []
    for entry in rescales:
        took = "-" if entry["seconds"] is None else f"{entry['seconds']:.1f} s"
        amounts = [f"{entry['moved_keys']:,}", render_bytes(entry["moved_bytes"])]
        why = entry["error"] or ""
        lines.append([_moment(entry["began_at"]), _rescale_kind(entry), entry["outcome"] or "-", took, *amounts, why])
    names = ["began", "rescale", "outcome", "took", "keys", "moved", "why"]
    return render_rows(names, lines, [False, False, False, True, True, True, False])


def render_views(views: Sequence[Mapping[str, Any]]) -> str:
    """Views, each with its SQL as it was declared."""
    told = []
    for view in views:
        what = f"{'partial' if view['is_partial'] else 'full'} view of key {', '.join(view['key'])}"
        ended = "" if view["ended"] is None else f", {view['ended']} {_moment(view['until'])}"
        sql = indent(view["sql"].strip(), "    ")
        told.append(f"{view['name']}: {what}, since {_moment(view['since'])}{ended}\n{sql}")
    return "\n".join(told)


def _moment(at: float) -> str:
    """A time in seconds since 1970, as text in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def render_status(status: Mapping[str, Any]) -> str:
    """The result of ``App.status``: workers, views, workers that were lost, and the current rescale."""
    lines = [f"epoch {status['epoch']} of {status['published']} published, map version {status['map_version']}"]
    if status["tables"]:
        lines += [_tables(status["tables"]), *_source_errors(status["tables"])]
    lines += [_workers(status["workers"]), _views(status["views"]), *_view_errors(status["views"])]
    if (standbys := status.get("standbys") or {}).get("why") is not None:
        lines.append(f"standbys: wanted {standbys['wanted']}, vnodes with them {standbys['ready']}: {standbys['why']}")
    for one, other in status.get("broken_links") or ():
        lines.append(
            f"workers {one} and {other} do not reach each other: views that exchange rows show their last epoch"
        )
    if status["failure"] is not None:
        lines.append(f"FAILED: {status['failure']}")
    if status["unrecorded"] is not None:
        lines.append(f"not recorded: {status['unrecorded']}")
    if status["recoveries"]:
        lines.append(_recoveries(status["recoveries"]))
    if status["rescale"] is not None:
        lines.append(render_progress(status["rescale"]))
    if status["rescales_waiting"]:
        lines.append(f"rescales that wait: {status['rescales_waiting']}")
    return "\n".join(lines)


def _tables(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The state of each table's source, and its rows so far."""
    rows = [
        [
            name,
            "failing" if table["retry_in_s"] is not None else table["state"],
            _amount(table["epoch"]),
            "" if table["epoch_age_s"] is None else f"{table['epoch_age_s']:.1f} s ago",
            _amount(table["rows"]),
            f"{table['rows_per_s']:,.1f}",
            _attempt(table),
        ]
        for name, table in tables.items()
    ]
    names = ["table", "source", "last epoch", "committed", "rows", "rows/s", "tried again"]
    return render_rows(names, rows, [False, False, True, True, True, True, True])


def _attempt(table: Mapping[str, Any]) -> str:
    """When a source that has failed is tried again; for how long it has been."""
    if table["retry_in_s"] is not None:
        return f"in {table['retry_in_s']:.0f} s"
    if table["last_error"] is None:
        return ""
    return "no" if table["attempt_for_s"] is None else f"for {table['attempt_for_s']:.0f} s"


def _source_errors(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each source that is stalled: why. Those that have failed are in the app's failure."""
    return [
        f"source of {name}: {table['error']}"
        for name, table in tables.items()
        if table["state"] == "stalled" and table["last_error"] is None
    ]


def _workers(workers: Sequence[Mapping[str, Any]]) -> str:
    """Each place, and the state of all views that its worker keeps."""
    names = ["worker", "address", "epoch", "vnodes", "bytes"]
    rows = [[_amount(worker[name]) for name in names] for worker in workers]
    return render_rows(names, rows, [name != "address" for name in names])


def _view_errors(views: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each view that has failed, or that has keys that cannot be filled."""
    lines: list[str] = []
    for view, told in views.items():
        if told["state"] == "failed":
            lines.append(f"view {view} has failed: {told['error']}")
        elif told.get("unfillable"):
            lines.append(f"view {view}: {told['unfillable']:,} keys cannot be filled, the last one: {told['error']}")
    return lines


def _views(views: Mapping[str, Mapping[str, Any]]) -> str:
    """The size of each view; for views that keep only read keys, also their cache statistics."""
    names = ["rows", "keys", "bytes"]
    if any("missed" in numbers for numbers in views.values()):
        names += ["looked_up", "missed", "evicted"]
    rows = [
        [view, *("-" if numbers["state"] == "failed" else _amount(numbers.get(name)) for name in names)]
        for view, numbers in views.items()
    ]
    return render_rows(["view", *(name.replace("_", " ") for name in names)], rows, [False, *(True for _ in names)])


def _amount(value: str | int | None) -> str:
    """Empty for a missing value."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _recoveries(recoveries: Sequence[Mapping[str, Any]]) -> str:
    """The workers that were lost recently."""
    rows = [
        [
            str(recovery["worker"]),
            f"{recovery['noticed_ago_s']:.0f} s ago",
            "not yet" if recovery["served_again_s"] is None else f"after {recovery['served_again_s']:.3f} s",
        ]
        for recovery in recoveries
    ]
    return render_rows(["lost worker", "noticed", "served again"], rows, [True, True, True])


# Text that changes


class Screen:
    """Text that is shown repeatedly: in the same place on a terminal, below itself anywhere else."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.is_terminal = out.isatty()
        self._lines_shown = 0

    def show(self, text: str) -> None:
        """Show ``text`` in place of the last text. On a terminal it is cut to the window."""
        if self.is_terminal:
            columns, height = shutil.get_terminal_size()
            lines = [line[: columns - 1] for line in text.splitlines()[: height - 1]]
            text = "\n".join(lines)
            if self._lines_shown:
                self._out.write(f"\x1b[{self._lines_shown}F\x1b[J")  # up to the first line, clear from there on
            self._lines_shown = len(lines)
        self._out.write(text + "\n")
        self._out.flush()
