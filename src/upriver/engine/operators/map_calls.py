"""Calls of a stateful map's function: once for each row, for each key of a batch, or for each batch.

docs/guide/stateful-maps.md tells the user what the function takes and gives. Each returned value is checked against its
declaration. So the function sees the same state whether it was stored in between or not: where a batch ends must not
matter.

BisectedCalls repeats a call that fails for each half of its keys. If the function is called row by row, it then repeats
it for each half of a key's rows, one after the other. This ends when the failing rows, or the keys with failing rows,
are known. Each call reads the states anew as they were before: a failed call leaves nothing behind, even if the
function has changed a state in place. So the result is as if those rows had never come.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.engine.operators.plain_rows import Fields, Misfit, OutputRows, PlainRows, RowReader, python_columns, shown
from upriver.engine.row_text import error_text, row_text
from upriver.errors import DeclarationError, RowError
from upriver.plan.plan import Per, StatefulMapOp
from upriver.state.columns import validity
from upriver.state.vectors import Mask, Positions

Function = Callable[..., Any]
Passes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class CallingProcess:
    """What users' functions are called in. begins: called before each call. passes: exceptions that may be of the
    process itself, and so are no fault of the function that they interrupt."""

    begins: Callable[[], object] | None = None
    passes: Passes = (KeyboardInterrupt,)


THIS_PROCESS = CallingProcess()
"""One that SIGINT interrupts."""


def about_map(op: StatefulMapOp) -> str:
    """What messages call the function."""
    return f"the function of stateful map {op.name!r}" if op.name else "the function of a stateful map"


ROW_CHARS_MAX = 500
"""Characters of a row in a message."""

_ROWS_AND_STATE = ("rows", "state")
_KEYS_ROWS_AND_STATES = ("keys", "rows", "states")


@dataclass(frozen=True, slots=True)
class Given:
    """The rows of a batch by key; there is at least one.

    rows: those of one key together and in order. bounds: where each key's rows begin, and where the last key's rows
    end. keys, states: a row for each key. known: which keys have a state; the states of the others are nulls.
    """

    rows: pa.RecordBatch
    bounds: Positions
    keys: pa.RecordBatch
    states: pa.RecordBatch
    known: Mask


@dataclass(frozen=True, slots=True)
class Made:
    """What a function returns for a batch. rows: without their key, whose place is in ``owners``. states: a row for
    each key. kept: which keys have a state from now on; the states of the others mean nothing."""

    rows: pa.RecordBatch
    owners: Positions
    states: pa.RecordBatch
    kept: Mask


@dataclass(frozen=True, slots=True)
class Shapes:
    """Converts what the function takes and gives to Python and back. output: without the key's columns."""

    key: RowReader
    row: RowReader
    state: PlainRows
    output: PlainRows

    def keys(self, keys: pa.RecordBatch) -> list[Any]:
        """The value of a one-column key, or a named tuple of a longer key's values."""
        return list(self.key.read(keys)) if len(self.key.schema) > 1 else python_columns(keys)[0]

    def states(self, given: Given) -> list[Any]:
        """``None`` for a key without a state."""
        states = self.state.read(given.states)
        return [state if known else None for state, known in zip(states, given.known.tolist(), strict=True)]

    def kept(self, states: Sequence[Fields | None]) -> tuple[pa.RecordBatch, Mask]:
        """The states as they are stored, and which keys have one."""
        none = (None,) * len(self.state.schema)
        kept = np.array([state is not None for state in states], np.bool_)
        return self.state.written([none if state is None else state for state in states]), kept


Call = Callable[[Given], Made]
MakeCall = Callable[[StatefulMapOp, pa.Schema], Call]
"""Takes the operator, and the schema of the rows that will come."""
"""Calls the function for a whole batch. Raises RowError if it fails, or gives what was not declared."""


class RowCalls:
    """``f(key, row, state) -> (rows, state)``."""

    def __init__(self, function: Function, shapes: Shapes, passes: Passes) -> None:
        self._function = function
        self._shapes = shapes
        self._passes = passes

    def __call__(self, given: Given) -> Made:
        rows = self._shapes.row.read(given.rows)
        of_each = (islice(rows, count) for count in np.diff(given.bounds).tolist())
        return _key_by_key(self._shapes, given, of_each, self._fold)

    def _fold(self, key: Any, rows: Iterable[Any], state: Any, output: OutputRows) -> Any:
        for row in rows:
            try:
                state = _state(self._shapes, self._function(key, row, state), output)
            except Misfit as misfit:
                raise _unfit(misfit, _of_row(key, row)) from misfit
            except self._passes:
                raise
            except BaseException as error:  # of any class: it is the user's code
                raise _raised(error, _of_row(key, row)) from error
        return state


class KeyCalls:
    """``f(key, rows, state) -> (rows, state)``, the rows of a key as an Arrow batch."""

    def __init__(self, function: Function, shapes: Shapes, passes: Passes) -> None:
        self._function = function
        self._shapes = shapes
        self._passes = passes

    def __call__(self, given: Given) -> Made:
        of_each = (given.rows.slice(start, stop - start) for start, stop in pairwise(given.bounds.tolist()))
        return _key_by_key(self._shapes, given, of_each, self._fold)

    def _fold(self, key: Any, rows: pa.RecordBatch, state: Any, output: OutputRows) -> Any:
        try:
            return _state(self._shapes, self._function(key, rows, state), output)
        except Misfit as misfit:
            raise _unfit(misfit, _of_key(key)) from misfit
        except self._passes:
            raise
        except BaseException as error:  # of any class: it is the user's code
            raise _raised(error, _of_key(key)) from error


Fold = Callable[[Any, Any, Any, OutputRows], Any]
"""Takes a key, its rows and its state; adds to the output and returns the state."""


def _key_by_key(shapes: Shapes, given: Given, rows: Iterable[Any], fold: Fold) -> Made:
    keys, states, output = shapes.keys(given.keys), shapes.states(given), OutputRows(shapes.output)
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


def _state(shapes: Shapes, answer: Any, output: OutputRows) -> Any:
    """Add the rows of an answer to the output; returns the state in it."""
    rows, state = _answer(answer, _ROWS_AND_STATE)
    kept = None if state is None else shapes.state.settled(state)  # as it is now: a generator of rows may change it
    output.add(rows)
    return kept


class BatchCalls:
    """``f(keys, rows, states) -> (keys, rows, states)``: a row's key is the place of its state."""

    def __init__(self, function: Function, shapes: Shapes, passes: Passes) -> None:
        self._function = function
        self._shapes = shapes
        self._passes = passes

    def __call__(self, given: Given) -> Made:
        owners = np.repeat(np.arange(given.keys.num_rows), np.diff(given.bounds))
        try:
            return self._made(self._function(owners, given.rows, given.states), given.keys.num_rows)
        except Misfit as misfit:
            raise _unfit(misfit, self._of_batch(given)) from misfit
        except self._passes:
            raise
        except BaseException as error:  # of any class: it is the user's code
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


CALLS: Mapping[Per, Callable[[Function, Shapes, Passes], Call]] = {
    Per.ROW: RowCalls,
    Per.KEY: KeyCalls,
    Per.BATCH: BatchCalls,
}


def map_call(op: StatefulMapOp, source: pa.Schema, process: CallingProcess = THIS_PROCESS) -> Call:
    """The function of a stateful map, as it is called in this process. source: of the rows that will come. Raises
    DeclarationError if the function cannot be loaded here."""
    shapes = Shapes(
        RowReader(key_of(op), "key"),
        RowReader(source, "row"),
        PlainRows(op.state, "state"),
        PlainRows(given_by(op), "output row"),
    )
    return CALLS[op.per](loaded(op.function, about_map(op), process), shapes, process.passes)


def key_of(op: StatefulMapOp) -> pa.Schema:
    """The key's columns."""
    return pa.schema(list(op.output)[: len(op.key)])


def given_by(op: StatefulMapOp) -> pa.Schema:
    """The columns of the rows that the function gives, without their key."""
    return pa.schema(list(op.output)[len(op.key) :])


def _answer(answer: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    if not isinstance(answer, tuple) or len(answer) != len(wanted):
        raise Misfit(f"{shown(answer)} is not ({', '.join(wanted)})")
    return answer


def _raised(error: BaseException, where: str) -> RowError:
    what = f"{error_text(error)}{line_of(error)}"
    return RowError(f"the function raised {what} for {where}. Correct it, or let it skip such rows")


def _unfit(misfit: Misfit, where: str) -> RowError:
    return RowError(
        f"for {where} the function returned a value that is not declared: {misfit}. "
        "Correct it, or declare what it returns"
    )


def _of_key(key: Any) -> str:
    return f"the key {shown(key)}"


def _of_row(key: Any, row: Any) -> str:
    return f"the key {shown(key)} and the row {repr(row)[:ROW_CHARS_MAX]}"


def line_of(error: BaseException) -> str:
    """The line of the user's code that raised the error, or that it passed through first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("upriver.engine."):
        trace = trace.tb_next
    return "" if trace is None else f" (line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename})"


@dataclass(frozen=True, slots=True)
class GoodCalls:
    """The result of the good rows. bad: places of the others, ascending. errors: what is wrong with each."""

    made: Made
    bad: Positions
    errors: tuple[str, ...]


class BisectedCalls:
    """Calls a function in one of its forms."""

    __slots__ = ("_call", "_is_by_row", "_nothing")

    def __init__(self, call: Call, per: Per, output: pa.Schema) -> None:
        """output: schema of the rows that the function gives, without their key."""
        self._call = call
        self._is_by_row = per is Per.ROW
        self._nothing = pa.RecordBatch.from_pylist([], output)

    def __call__(self, given: Given) -> GoodCalls:
        """k bad rows or keys of n take O(k log n) calls."""
        try:
            return GoodCalls(self._call(given), np.empty(0, np.int64), ())
        except RowError as error:
            if given.keys.num_rows > 1:
                return self._by_keys(given)
            if self._is_by_row and given.rows.num_rows > 1:
                return self._by_rows(given)
            return self._without(given, str(error))

    def _without(self, given: Given, error: str) -> GoodCalls:
        rows = given.rows.num_rows
        made = Made(self._nothing, np.empty(0, np.int64), given.states, given.known)
        return GoodCalls(made, np.arange(rows), (error,) * rows)

    def _by_keys(self, given: Given) -> GoodCalls:
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

    def _by_rows(self, given: Given) -> GoodCalls:
        """For one key: the second half of its rows starts with the state that the first half has left."""
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


def _together(made: Made, parts: Sequence[GoodCalls], row: int) -> GoodCalls:
    """row: where the second part begins."""
    one, other = parts
    return GoodCalls(made, np.concatenate([one.bad, other.bad + row]), one.errors + other.errors)


def loaded(function: bytes, about: str, process: CallingProcess) -> Function:
    """Unpickle a user's function; ``process.begins``, if there is any, is called before each of its calls. about: names
    it in messages. This is the only place that unpickles anything. The plan
    with the function comes in the closure of Spark's task, or over a channel that the cluster's secret seals. PySpark
    pickles a function of its session as a pair with the type."""
    try:
        found = pickle.loads(function)
        loaded: Function = found[0] if isinstance(found, tuple) else found
    except process.passes:
        raise
    except BaseException as error:  # of any class: loading runs what the user's modules have in them
        raise DeclarationError(
            f"{about} cannot be loaded on a worker: {error_text(error)}. "
            "Give the workers the modules that it needs, or define it in the program that declares it"
        ) from error
    return loaded if process.begins is None else _noted(loaded, process.begins)


def _noted(function: Function, begins: Callable[[], object]) -> Function:
    """The function; ``begins`` is called before each of its calls."""

    def call(*arguments: Any) -> Any:
        begins()
        return function(*arguments)

    return call
