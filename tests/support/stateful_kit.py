"""What tests of stateful maps share: functions of each form that do the same, and that in plain Python."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rows_kit import rows_of
from state_kit import Row, plainly

from upriver.plan.plan import Per
from upriver.plan.plan import StatefulMapOp as Op

FORGETS_AFTER = 4
"""Rows of a key after which the functions drop its state."""

Numbers = npt.NDArray[np.int64]


def recall(key: Any, row: Any, state: Any) -> tuple[list[Row], Row | None]:
    """Gives ``n`` times modulo 3 the row before, of which the state is kept; forgets all with every fourth row."""
    last: Row = (0, *(None for _ in row)) if state is None else state
    n, *before = last
    kept = None if n + 1 == FORGETS_AFTER else (n + 1, *row)
    return [(n, *before)] * (n % 3), kept


def recall_by_key(key: Any, rows: pa.RecordBatch, state: Any) -> tuple[pa.RecordBatch | None, Row | None]:
    output = []
    for row in rows_of(rows):
        more, state = recall(key, row, state)
        output += more
    return (batch_like(rows.schema, output) if output else None), state


def recall_by_batch(
    keys: Numbers, rows: pa.RecordBatch, states: pa.RecordBatch
) -> tuple[Numbers, pa.RecordBatch, pa.RecordBatch]:
    kept: list[Row | None] = [state if state[0] is not None else None for state in rows_of(states)]
    output: list[Row] = []
    owners: list[int] = []
    for key, row in zip(keys.tolist(), rows_of(rows), strict=True):
        more, kept[key] = recall(None, row, kept[key])
        output += more
        owners += [key] * len(more)
    none = (None,) * states.num_columns
    return (
        np.array(owners, np.int64),
        batch_like(rows.schema, output),
        batch_like(rows.schema, [s or none for s in kept]),
    )


RECALL = {Per.ROW: recall, Per.KEY: recall_by_key, Per.BATCH: recall_by_batch}


def recall_columns(source: pa.Schema) -> pa.Schema:
    """Of the state of the three, and of their rows."""
    return pa.schema([("n", pa.int32()), *((f"was_{name}", source.field(name).type) for name in source.names)])


def batch_like(source: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    schema = recall_columns(source)
    columns = [pa.array([row[place] for row in rows], column.type) for place, column in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def map_op(
    function: Callable[..., Any],
    source: pa.Schema,
    key: Sequence[str],
    state: pa.Schema,
    output: pa.Schema,
    per: Per = Per.ROW,
) -> Op:
    keys = [source.field(name) for name in key]
    return Op(tuple(key), pickle.dumps(function), per, state, pa.schema([*keys, *output]))


def recall_op(source: pa.Schema, key: Sequence[str], per: Per) -> Op:
    columns = recall_columns(source)
    return map_op(RECALL[per], source, key, columns, columns, per)


def folded(rows: Iterable[Row], key: Sequence[int]) -> tuple[dict[Row, list[Row]], set[Row]]:
    """What :func:`recall` gives for each key, in plain Python, and the keys that have a state. key: its columns."""
    states: dict[Row, Any] = {}
    given: dict[Row, list[Row]] = {}
    for row in rows:
        of = tuple(plainly(row[place]) for place in key)
        more, states[of] = recall(None, row, states.get(of))
        given.setdefault(of, []).extend(tuple(map(plainly, output)) for output in more)
    held = {of for of, state in states.items() if state is not None}
    return {of: output for of, output in given.items() if output}, held
