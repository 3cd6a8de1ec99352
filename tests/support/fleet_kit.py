"""What tests of stateful operators share: instances among which keys move while changes go in."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from state_kit import Row, plainly, through_the_wire

from upriver.engine.batch import Batch
from upriver.hashing import Hashes, hash64

Changes = Sequence[tuple[Row, int]]
"""Rows, each with a weight."""


def colliding(columns: Sequence[pa.Array], count: int) -> Hashes:
    """A hash that few rows have for themselves."""
    return hash64(columns, count) & np.uint64(1)


def changes_batch(schema: pa.Schema, routing: Sequence[str], changes: Changes) -> Batch:
    """Changes in the order given, as a slice of a larger batch. No routing columns: all keys have one hash64."""
    columns = [pa.array([None, *(row[place] for row, _ in changes)], type) for place, type in enumerate(schema.types)]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema).slice(1)
    hashes = hash64([rows.column(name) for name in routing], len(changes))
    return Batch(rows, hashes, np.array([weight for _, weight in changes], np.int64))


def plain_row(row: Sequence[Any]) -> Row:
    """The row in a form that can be counted: equal to another where SQL has them equal."""
    return tuple(tuple(value) if isinstance(value, list) else plainly(value) for value in row)


def changes_of(batch: Batch) -> list[tuple[Row, int]]:
    """The rows that an operator puts out, each with its weight."""
    weights = np.ones(len(batch), np.int64) if batch.weight is None else batch.weight
    rows = zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
    return list(zip(rows, weights.tolist(), strict=True))


@dataclass
class Fleet:
    """Instances of one operator, each with the keys that it owns, and what went in and came out of all together."""

    schema: pa.Schema
    routing: Sequence[str]
    build: Callable[[], Any]
    right: tuple[pa.Schema, Sequence[str]] | None = None
    """The second input, if it is of another kind; rows then come out under the hash64 of either."""
    in_order: bool = True
    """Whether state that has moved is in the order in which it was."""
    operators: list[Any] = field(init=False)
    owner: dict[int, int] = field(default_factory=dict)
    """By hash64, the number of the instance; 0 if it is not here."""
    inputs: list[Counter[Row]] = field(default_factory=lambda: [Counter(), Counter()])
    output: Counter[Row] = field(default_factory=Counter)
    _exactly: Counter[str] = field(default_factory=Counter)
    """The output to the last bit."""

    def __post_init__(self) -> None:
        self.operators = [self.build() for _ in range(3)]

    def apply(self, changes: Changes, port: int = 0) -> None:
        """Have each instance take in the changes of its keys."""
        schema, routing = (self.schema, self.routing) if self.right is None or not port else self.right
        batch = changes_batch(schema, routing, changes)
        owners = np.array([self.owner.get(hash, 0) for hash in batch.hash64.tolist()], np.int64)
        for number, operator in enumerate(self.operators):
            output = operator.apply(port, batch.filtered(owners == number))
            assert output.rows.schema == operator.schema
            assert set(output.hash64.tolist()) <= set(batch.hash64[owners == number].tolist())
            self._take_in(output)
        for row, weight in changes:
            self.inputs[port][plain_row(row)] += weight

    def move(self, hashes: Sequence[int], to: int) -> None:
        """Move the state of some keys to one instance."""
        for number, operator in enumerate(self.operators):
            keys = np.array(sorted({hash for hash in hashes if self.owner.get(hash, 0) == number}), np.uint64)
            if number == to or not len(keys):
                continue
            state = operator.collect(keys)
            assert len(state) == operator.parts
            self.operators[to].install(through_the_wire(state))
            operator.drop(keys)
            assert [part.num_rows for part in operator.collect(keys)] == [0] * operator.parts
            arrived = self.operators[to].collect(keys)
            assert [self._lines(part) for part in arrived] == [self._lines(part) for part in state]
            self.owner.update(dict.fromkeys(keys.tolist(), to))

    def move_some(self, data: st.DataObject) -> None:
        """Move random keys of those that are kept to a random instance."""
        known = sorted({hash for each in self.operators for hash in each.hashes_between(0, 2**64 - 1).tolist()})
        if known:
            hashes = data.draw(st.lists(st.sampled_from(known), unique=True))
            self.move(hashes, data.draw(st.integers(0, len(self.operators) - 1)))

    def rows(self, port: int = 0) -> list[Row]:
        """The input's rows, each as often as it is there."""
        return list(self.inputs[port].elements())

    def check(self, expected: Counter[Row]) -> None:
        """What came out is this; and what is kept is found by its key."""
        assert self.there() == dict(expected)
        for number, operator in enumerate(self.operators):
            kept = np.unique(operator.hashes_between(0, 2**64 - 1))
            assert all(self.owner.get(hash, 0) == number for hash in kept.tolist())
            state = operator.collect(kept)
            assert sum(part.num_rows for part in state) == operator.held
            assert {hash for part in state for hash in part.column(0).to_pylist()} == set(kept.tolist())

    def there(self) -> dict[Row, int]:
        """The rows that came out and were not taken back, each with how often it is there."""
        assert all(count >= 0 for count in self._exactly.values()), "a row is taken back that was not put out so"
        return {row: count for row, count in self.output.items() if count}

    def _lines(self, part: pa.RecordBatch) -> list[str]:
        lines = list(map(repr, part.to_pylist()))
        return lines if self.in_order else sorted(lines)

    def _take_in(self, output: Batch) -> None:
        if self.right is None:
            names = [name for name in self.routing if name in output.rows.schema.names]
            assert output.hash64.tolist() == hash64([output.rows.column(name) for name in names], len(output)).tolist()
        for row, weight in changes_of(output):
            assert weight != 0
            self.output[plain_row(row)] += weight
            self._exactly[repr(row)] += weight


def drawn_changes(data: st.DataObject, there: Sequence[Row], rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Changes of one batch in a random order: these rows come, and some of them and of those that are there go."""
    candidates = [*there, *rows]
    going = data.draw(st.lists(st.sampled_from(range(len(candidates))), unique=True)) if candidates else []
    changes = [(row, 1) for row in rows] + [(candidates[place], -1) for place in going]
    return data.draw(st.permutations(changes))
