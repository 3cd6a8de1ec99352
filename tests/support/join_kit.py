"""What tests of joins share: inputs, an oracle in plain Python, and joins that run on several instances."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from state_kit import EAGER, Row, plain_rows, plainly, through_the_wire

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.join import SORTING_ROWS, Join
from upriver.hashing import hash64
from upriver.plan import plan as ops
from upriver.plan.plan import JoinKind

Changes = Sequence[tuple[Row, int]]
"""Rows, each with a weight."""

Truth = Callable[[Row, Row], bool]
"""A condition on a left and a right row."""


@dataclass(frozen=True)
class Case:
    """A join, and the routing key of each input. truth: its condition, for the oracle."""

    op: ops.JoinOp
    inputs: tuple[pa.Schema, pa.Schema]
    routing: tuple[Sequence[str], Sequence[str]]
    truth: Truth = lambda left, right: True

    def build(self, evaluator: Evaluator, sorting_rows: int = SORTING_ROWS) -> Join:
        """A join that gives memory back as soon as it can, so that it does so in a test of a few rows."""
        return Join(self.op, *self.inputs, *self.routing, evaluator, EAGER, sorting_rows)

    def batch(self, port: int, changes: Changes, collide: bool = False) -> Batch:
        """Changes of one input, in order, as a slice of a larger batch. collide: all keys have one hash64."""
        schema = self.inputs[port]
        columns = [
            pa.array([None, *(row[place] for row, _ in changes)], type) for place, type in enumerate(schema.types)
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema).slice(1)
        hashes = hash64([] if collide else [rows.column(name) for name in self.routing[port]], len(changes))
        weights = np.array([weight for _, weight in changes], np.int64)
        return Batch(rows, hashes, None if (weights == 1).all() else weights)

    def expected(self, left: Counter[Row], right: Counter[Row]) -> Counter[Row]:
        """The rows of the join of these rows."""
        pairs = {(a, b): left[a] * right[b] for a in left for b in right if self._agree(a, b) and self.truth(a, b)}
        matched = ({a for a, _ in pairs}, {b for _, b in pairs})
        nulls = tuple((None,) * len(schema) for schema in self.inputs)
        kind = self.op.kind
        if kind in (JoinKind.SEMI, JoinKind.ANTI):
            return Counter({a: left[a] for a in left if (a in matched[0]) == (kind is JoinKind.SEMI)})
        rows = Counter({a + b: 0 for a, b in pairs})
        for (a, b), count in pairs.items():
            rows[a + b] += count
        if kind in (JoinKind.LEFT, JoinKind.FULL):
            rows.update({a + nulls[1]: left[a] for a in left if a not in matched[0]})
        if kind in (JoinKind.RIGHT, JoinKind.FULL):
            rows.update({nulls[0] + b: right[b] for b in right if b not in matched[1]})
        return rows

    def _agree(self, left: Row, right: Row) -> bool:
        keys = (self.op.left_key, self.op.right_key)
        (a, b) = (
            [row[schema.get_field_index(name)] for name in key]
            for row, schema, key in zip((left, right), self.inputs, keys, strict=True)
        )
        return all(
            x == y and (x is not None or null_safe) for x, y, null_safe in zip(a, b, self.op.null_safe, strict=True)
        )


def join_of(
    kind: JoinKind,
    left: Sequence[tuple[str, pa.DataType]],
    right: Sequence[tuple[str, pa.DataType]],
    condition: str | None = None,
    truth: Truth = lambda left, right: True,
    null_safe: bool = False,
) -> Case:
    """A join on the first column of each, which is the routing key."""
    key = (left[0][0],), (right[0][0],)
    return Case(ops.JoinOp(kind, *key, (null_safe,), condition), (pa.schema(left), pa.schema(right)), key, truth)


def plain_row(row: Row) -> Row:
    return tuple(map(plainly, row))


def weighed(batch: Batch) -> Counter[Row]:
    """The changes of a batch, equal rows added up."""
    weights = np.ones(len(batch), np.int64) if batch.weight is None else batch.weight
    total: Counter[Row] = Counter()
    for row, weight in zip(plain_rows(batch.rows), weights.tolist(), strict=True):
        total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


@dataclass
class Fleet:
    """Instances of one join, each with the keys that it owns, and what went in and came out of all together."""

    case: Case
    joins: list[Join]
    collide: bool = False
    owner: dict[int, int] = field(default_factory=dict)
    """By hash64, the number of the instance; 0 if it is not here."""
    inputs: tuple[Counter[Row], Counter[Row]] = field(default_factory=lambda: (Counter(), Counter()))
    output: Counter[Row] = field(default_factory=Counter)

    def apply(self, port: int, changes: Changes) -> None:
        """Have each instance take in the changes of its keys."""
        batch = self.case.batch(port, changes, self.collide)
        owners = np.array([self.owner.get(hash, 0) for hash in batch.hash64.tolist()], np.int64)
        for number, join in enumerate(self.joins):
            output = join.apply(port, batch.filtered(owners == number))
            assert output.rows.schema == join.schema
            assert set(output.hash64.tolist()) <= set(batch.hash64[owners == number].tolist())
            self.output.update(weighed(output))
        for row, weight in changes:
            self.inputs[port][plain_row(row)] += weight

    def move(self, hashes: Sequence[int], to: int) -> None:
        """Move the state of some keys to one instance."""
        for number, join in enumerate(self.joins):
            keys = np.array(sorted({hash for hash in hashes if self.owner.get(hash, 0) == number}), np.uint64)
            if number == to or not len(keys):
                continue
            state = join.collect(keys)
            assert len(state) == join.parts
            self.joins[to].install(through_the_wire(state))
            join.drop(keys)
            assert [part.num_rows for part in join.collect(keys)] == [0] * join.parts
            arrived = self.joins[to].collect(keys)
            assert repr([part.to_pydict() for part in arrived]) == repr([part.to_pydict() for part in state])
            self.owner.update(dict.fromkeys(keys.tolist(), to))

    def check(self) -> None:
        """What came out is the join of what went in; and what is kept is found by its key."""
        there = [Counter({row: n for row, n in rows.items() if n}) for rows in self.inputs]
        assert {row: n for row, n in self.output.items() if n} == self.case.expected(*there)
        for number, join in enumerate(self.joins):
            kept = np.unique(join.hashes_between(0, 2**64 - 1))
            assert all(self.owner.get(hash, 0) == number for hash in kept.tolist())
            parts = join.collect(kept)
            assert {hash for part in parts for hash in part.column(0).to_pylist()} == set(kept.tolist())
            assert sum(part.num_rows for part in parts) == join.held


def known_hashes(fleet: Fleet) -> list[int]:
    """The hash64 of all keys of which anything is kept anywhere, ascending."""
    return sorted({hash for join in fleet.joins for hash in join.hashes_between(0, 2**64 - 1).tolist()})
