"""What tests of stateful maps share: functions of each form that do the same, that in plain Python, and a fleet."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rows_kit import rows_of
from state_kit import EAGER, Row, pieces, plain_rows, plainly, table_batch, through_the_wire

from upriver.engine.batch import Batch
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.hashing import Hashes
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


@dataclass
class Fleet:
    """Two operators that share the keys of one op; all that they give, by key."""

    op: Op
    source: pa.Schema
    routing: Sequence[str]
    hasher: Callable[[Sequence[pa.Array]], Hashes]
    maps: list[StatefulMap] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)
    given: dict[Row, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Their memory is turned over with the first state that is forgotten, one key at a time.
        build = (StatefulMap(self.op, self.source, self.routing, pace=EAGER) for _ in range(2))
        self.maps.extend(build)

    def batch(self, rows: Sequence[Row], by_hash: bool) -> Batch:
        """by_hash: in the order of a lake edge; or just as they are."""
        batch = table_batch(self.source, rows, self.routing, self.hasher if by_hash else _no_hashes)
        return Batch(batch.rows, self.hasher([batch.rows.column(name) for name in self.routing]))

    def apply(self, batch: Batch, cuts: Iterable[int] = ()) -> None:
        for piece in pieces(batch, cuts):
            owner = np.array([self.owners.setdefault(key, 0) for key in piece.hash64.tolist()], np.int64)
            for place, operator in enumerate(self.maps):
                self._note(operator.apply(0, piece.filtered(owner == place)))

    def _note(self, output: Batch) -> None:
        assert output.rows.schema.equals(self.op.output)
        assert output.weight is None
        width = len(self.op.key)
        routed = [output.rows.column(name) for name in self.routing]
        assert output.hash64.tolist() == self.hasher(routed).tolist()
        for row in plain_rows(output.rows):
            self.given.setdefault(row[:width], []).append(row[width:])

    def move(self, key: int, to: int) -> None:
        """Move the key with this hash64, over the wire; what it leaves behind is nothing."""
        source, target = self.maps[self.owners[key]], self.maps[to]
        if source is target:
            return
        keys = np.array([key], np.uint64)
        state = through_the_wire(source.collect(keys))
        assert len(state) == StatefulMap.parts
        target.install(state)
        assert_same_state(target.collect(keys), state)
        source.drop(keys)
        assert source.collect(keys)[0].num_rows == 0
        self.owners[key] = to

    def check_held(self, keys: set[Row]) -> None:
        """These keys have a state, each at the one operator that owns it, and no others have."""
        found: set[Row] = set()
        for place, operator in enumerate(self.maps):
            hashes = operator.hashes_between(0, 2**64 - 1)
            assert {self.owners[key] for key in hashes.tolist()} <= {place}
            (state,) = operator.collect(np.unique(hashes))
            assert operator.held == state.num_rows
            assert set(state.column(0).to_pylist()) == set(hashes.tolist())
            found |= {row[1 : 1 + len(self.op.key)] for row in plain_rows(state)}
        assert found == keys


def _no_hashes(columns: Sequence[pa.Array]) -> Hashes:
    return np.zeros(len(columns[0]), np.uint64)


def assert_same_state(left: Sequence[pa.RecordBatch], right: Sequence[pa.RecordBatch]) -> None:
    assert [batch.schema for batch in left] == [batch.schema for batch in right]
    for a, b in zip(left, right, strict=True):
        assert sorted(map(repr, rows_of(a))) == sorted(map(repr, rows_of(b)))
