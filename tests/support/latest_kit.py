"""What Latest gives, by a loop over the versions."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from fleet_kit import plain_row
from state_kit import Row, order_of

from upriver.plan import plan as ops


def _order(row: Row, places: Sequence[int]) -> list[Any]:
    """Sorts as Spark does: nulls first."""
    in_bytes = [row[place].encode() if isinstance(row[place], str) else row[place] for place in places]
    return [(value is not None, order_of(value)) if value is not None else (False,) for value in in_bytes]


def current(op: ops.LatestOp, schema: pa.Schema, versions: Sequence[Row]) -> Counter[Row]:
    """The current rows, from all versions as they came."""
    key, order = ([schema.get_field_index(name) for name in names] for names in (op.key, op.order_by))
    highest: dict[Row, Row] = {}
    for row in versions:
        of_key = plain_row([row[place] for place in key])
        if of_key not in highest or _order(row, order) >= _order(highest[of_key], order):
            highest[of_key] = row
    return Counter(plain_row(row) for row in highest.values() if op.deleted is None or row[-1] != "D")
