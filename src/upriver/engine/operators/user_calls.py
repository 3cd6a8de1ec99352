"""How a user's function is called: once for each row, for each key of a batch, or for each batch.

What it takes and gives is told to the user in docs/stateful_map.md. Whatever comes back is held against what was
declared, value by value, so that a state is the same to the function whether it was stored in between or not: where a
batch ends must not matter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.engine.operators.plain_rows import Fields, Output, PlainRows, RowReader, python_columns
from upriver.engine.operators.plain_values import Misfit, shown
from upriver.engine.row_text import error_text, row_text
from upriver.errors import RowError
from upriver.plan.ops import Per
from upriver.state.columns import validity
from upriver.state.vectors import Mask, Positions

Function = Callable[..., Any]

ROW_CHARS_MAX = 500
"""Of a row in a message."""

_ROWS_AND_STATE = ("rows", "state")
_KEYS_ROWS_AND_STATES = ("keys", "rows", "states")


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of a batch by key; there is at least one.

    rows: those of one key together and in order. bounds: where each key's rows begin, and where the last one's end.
    keys, states: a row for each key. known: which keys have a state; those of the others are nulls.
    """

    rows: pa.RecordBatch
    bounds: Positions
    keys: pa.RecordBatch
    states: pa.RecordBatch
    known: Mask


@dataclass(frozen=True, slots=True)
class Made:
    """What a function makes of it. rows: without their key, whose place is in ``owners``. states: a row for each key.
    kept: which keys have a state from now on; what is in the rows of the others does not count."""

    rows: pa.RecordBatch
    owners: Positions
    states: pa.RecordBatch
    kept: Mask


@dataclass(frozen=True, slots=True)
class Shapes:
    """How all that goes to and fro looks in Python. output: without the key's columns."""

    key: RowReader
    row: RowReader
    state: PlainRows
    output: PlainRows

    def keys(self, keys: pa.RecordBatch) -> list[Any]:
        """A key of one column is its value; one of several is a named tuple."""
        return list(self.key.read(keys)) if len(self.key.schema) > 1 else python_columns(keys)[0]

    def states(self, given: Given) -> list[Any]:
        """``None`` for a key without one."""
        states = self.state.read(given.states)
        return [state if known else None for state, known in zip(states, given.known.tolist(), strict=True)]

    def kept(self, states: Sequence[Fields | None]) -> tuple[pa.RecordBatch, Mask]:
        """The states as they are stored, and which there are."""
        none = (None,) * len(self.state.schema)
        kept = np.array([state is not None for state in states], np.bool_)
        return self.state.written([none if state is None else state for state in states]), kept


Call = Callable[[Given], Made]
"""Calls the function for all of a batch. Raises RowError if it fails, or gives what was not declared."""


class RowCalls:
    """``f(key, row, state) -> (rows, state)``."""

    def __init__(self, function: Function, shapes: Shapes) -> None:
        self._function = function
        self._shapes = shapes

    def __call__(self, given: Given) -> Made:
        rows = self._shapes.row.read(given.rows)
        of_each = (islice(rows, count) for count in np.diff(given.bounds).tolist())
        return _key_by_key(self._shapes, given, of_each, self._fold)

    def _fold(self, key: Any, rows: Iterable[Any], state: Any, output: Output) -> Any:
        for row in rows:
            try:
                state = _state(self._shapes, self._function(key, row, state), output)
            except Misfit as misfit:
                raise _unfit(misfit, _of_row(key, row)) from misfit
            except (Exception, SystemExit, GeneratorExit) as error:  # of any class: it is the user's code
                raise _raised(error, _of_row(key, row)) from error
        return state


class KeyCalls:
    """``f(key, rows, state) -> (rows, state)``, the rows of a key as an Arrow batch."""

    def __init__(self, function: Function, shapes: Shapes) -> None:
        self._function = function
        self._shapes = shapes

    def __call__(self, given: Given) -> Made:
        of_each = (given.rows.slice(start, stop - start) for start, stop in pairwise(given.bounds.tolist()))
        return _key_by_key(self._shapes, given, of_each, self._fold)

    def _fold(self, key: Any, rows: pa.RecordBatch, state: Any, output: Output) -> Any:
        try:
            return _state(self._shapes, self._function(key, rows, state), output)
        except Misfit as misfit:
            raise _unfit(misfit, _of_key(key)) from misfit
        except (Exception, SystemExit, GeneratorExit) as error:  # of any class: it is the user's code
            raise _raised(error, _of_key(key)) from error


Fold = Callable[[Any, Any, Any, Output], Any]
"""Takes a key, its rows and its state; adds to the output and returns the state."""


def _key_by_key(shapes: Shapes, given: Given, rows: Iterable[Any], fold: Fold) -> Made:
    keys, states, output = shapes.keys(given.keys), shapes.states(given), Output(shapes.output)
    ends = []
    for place, (key, of_key) in enumerate(zip(keys, rows, strict=True)):
        states[place] = fold(key, of_key, states[place], output)
        ends.append(output.rows)
    owners = np.repeat(np.arange(len(keys)), np.diff(ends, prepend=0))
    try:
        made = output.written()
    except Misfit as misfit:
        raise _unfit(misfit, _of_key(keys[owners[misfit.row]])) from misfit
    return Made(made, owners, *shapes.kept(states))


def _state(shapes: Shapes, answer: Any, output: Output) -> Any:
    """Take the rows of an answer; returns the state in it."""
    rows, state = _answer(answer, _ROWS_AND_STATE)
    output.add(rows)
    return None if state is None else shapes.state.settled(state)


class BatchCalls:
    """``f(keys, rows, states) -> (keys, rows, states)``: a row's key is the place of its state."""

    def __init__(self, function: Function, shapes: Shapes) -> None:
        self._function = function
        self._shapes = shapes

    def __call__(self, given: Given) -> Made:
        owners = np.repeat(np.arange(given.keys.num_rows), np.diff(given.bounds))
        try:
            return self._made(self._function(owners, given.rows, given.states), given.keys.num_rows)
        except Misfit as misfit:
            raise _unfit(misfit, self._of_batch(given)) from misfit
        except (Exception, SystemExit, GeneratorExit) as error:  # of any class: it is the user's code
            raise _raised(error, self._of_batch(given)) from error

    def _made(self, answer: Any, keys: int) -> Made:
        owners, rows, states = _answer(answer, _KEYS_ROWS_AND_STATES)
        states = self._shapes.state.fitted(states)
        if states.num_rows != keys:
            raise Misfit(f"{states.num_rows} states for {keys} keys")
        kept = np.logical_or.reduce([validity(column) for column in states.columns])
        if rows is None:
            return Made(self._shapes.output.written([]), np.empty(0, np.int64), states, kept)
        rows, owners = self._shapes.output.fitted(rows), np.asarray(owners)
        if owners.shape != (rows.num_rows,) or (owners.size and owners.dtype.kind not in "iu"):
            raise Misfit(f"{rows.num_rows} rows with the keys {shown(owners)}: one integer for each row is needed")
        if owners.size and not 0 <= owners.min() <= owners.max() < keys:
            raise Misfit(f"keys from {owners.min()} to {owners.max()}, of {keys}")
        return Made(rows, owners.astype(np.int64), states, kept)

    def _of_batch(self, given: Given) -> str:
        first = row_text(given.keys, 0)
        return f"a batch of {given.rows.num_rows} rows of {given.keys.num_rows} keys, the first of which is ({first})"


CALLS: Mapping[Per, Callable[[Function, Shapes], Call]] = {
    Per.ROW: RowCalls,
    Per.KEY: KeyCalls,
    Per.BATCH: BatchCalls,
}


def _answer(answer: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(answer, tuple) or len(answer) != len(wanted):
        raise Misfit(f"{shown(answer)} is not ({', '.join(wanted)})")
    return answer


def _raised(error: BaseException, where: str) -> RowError:
    what = f"{error_text(error)}{_line_of(error)}"
    return RowError(f"the function raised {what} for {where}. Mend it, or have it pass over such rows")


def _unfit(misfit: Misfit, where: str) -> RowError:
    return RowError(f"for {where} the function gave what is not declared: {misfit}. Mend it, or declare what it gives")


def _of_key(key: Any) -> str:
    return f"the key {shown(key)}"


def _of_row(key: Any, row: Any) -> str:
    return f"the key {shown(key)} and the row {repr(row)[:ROW_CHARS_MAX]}"


def _line_of(error: BaseException) -> str:
    """The line of the user's code that it came from, or went through first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("upriver.engine."):
        trace = trace.tb_next
    return "" if trace is None else f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename})"
