"""Tables and bars for a terminal."""

from collections.abc import Sequence

import pyarrow as pa

ROWS_SHOWN_MAX = 40
"""Rows of a table that are printed."""
BAR_WIDTH = 30
"""Characters of a progress bar."""


def render_table(table: pa.Table) -> str:
    """An Arrow table in columns, numbers to the right; at most ``ROWS_SHOWN_MAX`` rows."""
    shown = table.slice(0, ROWS_SHOWN_MAX)
    rows = [[_cell(value) for value in row.values()] for row in shown.to_pylist()]
    numeric = [pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in table.schema.types]
    lines = render_rows(table.column_names, rows, numeric)
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
    if value is None:
        return "null"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def progress_bar(done: int, total: int) -> str:
    """``[#####.....] 12/25``."""
    filled = BAR_WIDTH * done // total if total else BAR_WIDTH
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{total}"
