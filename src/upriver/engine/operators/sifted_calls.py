"""Calls of a user's function that leave out the rows on which it fails.

A call that fails is made again for each half of its keys, then, where the function is called row by row, for each half
of a key's rows, one after the other; until it is known of which row, or of which key's rows, it fails. Each time the
states are read anew from what was before: nothing remains of a call that has failed, even if the function has changed a
state in place. So all is as if those rows had never come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from upriver.engine.operators.user_calls import Call, Given, Made
from upriver.errors import RowError
from upriver.plan.ops import Per
from upriver.state.vectors import Positions


@dataclass(frozen=True, slots=True)
class Sifted:
    """What was made of the good rows. bad: places of the others, ascending. errors: what is wrong with each."""

    made: Made
    bad: Positions
    errors: tuple[str, ...]


class SiftedCalls:
    """Calls a function in one of its forms."""

    __slots__ = ("_call", "_is_by_row", "_nothing")

    def __init__(self, call: Call, per: Per, output: pa.Schema) -> None:
        """output: of the rows that the function gives, without their key."""
        self._call = call
        self._is_by_row = per is Per.ROW
        self._nothing = pa.RecordBatch.from_pylist([], output)

    def __call__(self, given: Given) -> Sifted:
        """k bad rows or keys of n take O(k log n) calls."""
        try:
            return Sifted(self._call(given), np.empty(0, np.int64), ())
        except RowError as error:
            if given.keys.num_rows > 1:
                return self._by_keys(given)
            if self._is_by_row and given.rows.num_rows > 1:
                return self._by_rows(given)
            return self._without(given, str(error))

    def _without(self, given: Given, error: str) -> Sifted:
        rows = given.rows.num_rows
        made = Made(self._nothing, np.empty(0, np.int64), given.states, given.known)
        return Sifted(made, np.arange(rows), (error,) * rows)

    def _by_keys(self, given: Given) -> Sifted:
        middle = given.keys.num_rows // 2
        row = int(given.bounds[middle])
        first = Given(
            given.rows.slice(0, row),
            given.bounds[: middle + 1],
            given.keys.slice(0, middle),
            given.states.slice(0, middle),
            given.known[:middle],
        )
        rest = Given(
            given.rows.slice(row),
            given.bounds[middle:] - row,
            given.keys.slice(middle),
            given.states.slice(middle),
            given.known[middle:],
        )
        one, other = self(first), self(rest)
        made = Made(
            pa.concat_batches([one.made.rows, other.made.rows]),
            np.concatenate([one.made.owners, other.made.owners + middle]),
            pa.concat_batches([one.made.states, other.made.states]),
            np.concatenate([one.made.kept, other.made.kept]),
        )
        return _together(made, (one, other), row)

    def _by_rows(self, given: Given) -> Sifted:
        """Of one key: the second half of its rows meets the state that the first has left."""
        row = given.rows.num_rows // 2
        one = self(replace(given, rows=given.rows.slice(0, row), bounds=np.array([0, row])))
        rest = np.array([0, given.rows.num_rows - row])
        left = one.made
        other = self(replace(given, rows=given.rows.slice(row), bounds=rest, states=left.states, known=left.kept))
        made = replace(
            other.made,
            rows=pa.concat_batches([left.rows, other.made.rows]),
            owners=np.concatenate([left.owners, other.made.owners]),
        )
        return _together(made, (one, other), row)


def _together(made: Made, parts: Sequence[Sifted], row: int) -> Sifted:
    """row: at which the second part begins."""
    one, other = parts
    return Sifted(made, np.concatenate([one.bad, other.bad + row]), one.errors + other.errors)
