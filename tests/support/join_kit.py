"""What tests of joins share: inputs, and an oracle in plain Python."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from fleet_kit import Changes, Fleet, changes_batch, changes_of, plain_row
from hypothesis import strategies as st
from state_kit import EAGER, Row

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.join import SORTING_ROWS, Join
from upriver.plan import plan as ops
from upriver.plan.plan import JoinKind

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

    def batch(self, port: int, changes: Changes) -> Batch:
        return changes_batch(self.inputs[port], self.routing[port], changes)

    def fleet(self, evaluator: Evaluator, sorting_rows: int = SORTING_ROWS, collide: bool = False) -> Fleet:
        """collide: all keys have one hash64."""
        left, right = ((), ()) if collide else self.routing
        return Fleet(self.inputs[0], left, partial(self.build, evaluator, sorting_rows), (self.inputs[1], right))

    def check(self, fleet: Fleet) -> None:
        """What came out is the join of the rows that are there."""
        fleet.check(self._expected(*(Counter({row: n for row, n in rows.items() if n}) for rows in fleet.inputs)))

    def _expected(self, left: Counter[Row], right: Counter[Row]) -> Counter[Row]:
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


def weighed(batch: Batch) -> Counter[Row]:
    """The changes of a batch, equal rows added up."""
    total: Counter[Row] = Counter()
    for row, weight in changes_of(batch):
        total[plain_row(row)] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def drawn(data: st.DataObject, there: dict[Row, int], rows: Sequence[Row]) -> Changes:
    """These rows come, some copies of those that are there go, in any order; ``there`` is kept up to date."""
    changes = [(row, 1) for row in rows]
    for row in sorted((row for row, count in there.items() if count), key=repr):
        if data.draw(st.integers(0, 2)) == 0:
            changes.append((row, -data.draw(st.integers(1, there[row]))))
    for row, weight in changes:
        there[row] = there.get(row, 0) + weight
    return data.draw(st.permutations(changes))


def run(data: st.DataObject, case: Case, fleet: Fleet, changes: Callable[[int, dict[Row, int]], Changes]) -> None:
    """Rows come and go at both sides, and keys move; in the end all rows go. changes: of a port, by what is there."""
    there: tuple[dict[Row, int], dict[Row, int]] = ({}, {})
    for port in data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=8)):
        fleet.apply(changes(port, there[port]), port)
        case.check(fleet)
        if data.draw(st.booleans()):
            fleet.move_some(data)
    for port in (0, 1):
        fleet.apply([(row, -count) for row, count in there[port].items() if count], port)
        case.check(fleet)
    assert [join.held for join in fleet.operators] == [0, 0, 0]
