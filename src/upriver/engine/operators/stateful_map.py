"""StatefulMap: a user's Python function over the rows of each key, in order, with a state for each key.

The operator cuts a batch by key, reads the states of its keys, and calls the function for all of them. It stores the
new states only when every call has succeeded: a batch that fails leaves nothing behind. Alternatively it leaves out the
rows on which the function fails (:class:`BisectedCalls`).

States: one row of state for each key, which any batch may replace. A :class:`RoutedIndex` gives each key a slot, which
addresses the state's columns. Dropped states, and some replaced ones, leave memory behind;
:mod:`upriver.engine.operators.compacted` gives it back.

A user's function is called once for each row, for each key of a batch, or for each batch. docs/guide/stateful-maps.md
tells the user what it takes and gives. Each returned value is checked against its declaration. So the function sees the
same state whether it was stored in between or not: where a batch ends must not matter.

BisectedCalls repeats a call that fails for each half of its keys. If the function is called row by row, it then repeats
it for each half of a key's rows, one after the other. This ends when the failing rows, or the keys with failing rows,
are known. Each call reads the states anew as they were before: a failed call leaves nothing behind, even if the
function has changed a state in place. So the result is as if those rows had never come.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.engine.operators.operator import check_new, part_of
from upriver.engine.operators.plain_rows import Fields, Misfit, OutputRows, PlainRows, RowReader, python_columns, shown
from upriver.engine.row_text import error_text, row_text
from upriver.errors import DeclarationError, ProtocolError, RowError
from upriver.hashing import Hashes, hash64
from upriver.plan.plan import Per
from upriver.plan.plan import StatefulMapOp as StatefulMapOp
from upriver.state.columns import canonical, cells_of, replaceable_of, validity
from upriver.state.indexes import RoutedIndex, first_equal, run_heads
from upriver.state.vectors import Mask, Positions, Slots, true_at


class StateKeys(RoutedIndex):
    """Keys that can be looked up even if they are absent."""

    __slots__ = ()

    def find(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for an absent key. routed: the hash64 of their routing keys."""
        return self._entries.index.find(routed if self._fanout is None else hash64(keys, len(routed)), keys)


class States:
    """The states of keys. A key is the routing key or finer, and comes with the hash64 of its routing key."""

    __slots__ = ("_columns", "_keys", "_state")

    def __init__(self, key: pa.Schema, state: pa.Schema, routing: Sequence[str]) -> None:
        """routing: the routing key's columns, all in the key."""
        self._keys = StateKeys(key, routing)
        self._state = state
        self._columns = [replaceable_of(type) for type in state.types]

    @property
    def held(self) -> int:
        """How many keys have a state."""
        return self._keys.held

    @property
    def slots(self) -> int:
        """How many states there is memory for, including those that are gone."""
        return max([len(self._keys), *(column.places for column in self._columns)])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + sum(column.nbytes for column in self._columns)

    def read(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[pa.RecordBatch, Mask]:
        """The state of each key, a row of nulls for a key without one; and which keys have one."""
        slots = self._keys.find(hashes, keys)
        known = slots >= 0
        columns = [column.take(slots[known]) for column in self._columns]
        if not known.all():
            places = pa.array(np.cumsum(known) - 1, mask=~known)
            columns = [column.take(places) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._state), known

    def write(self, hashes: Hashes, keys: Sequence[pa.Array], states: pa.RecordBatch) -> None:
        """Set the state of each key; each key is named once."""
        slots = self._keys.assign(hashes, keys)
        for column, values in zip(self._columns, states.columns, strict=True):
            column.resize(len(self._keys))
            column.put(slots, values)

    def forget(self, hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        """Remove the states of these keys, which all have one."""
        self._keys.forget(self._keys.find(hashes, keys))

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have a state."""
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """A row for each key with one of these hash64: that, the key's columns, the state's."""
        slots = self._keys.with_hash(keys)
        states = [column.take(slots) for column in self._columns]
        return (part_of(self._keys.hashes(slots), [*self._keys.columns(slots), *states]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError for a key that has a state already."""
        for batch in state:
            hashes, *columns = batch.columns
            keys, states = columns[: -len(self._columns)], columns[-len(self._columns) :]
            check_new(not (self._keys.find(cells_of(hashes), keys) >= 0).any())
            self.write(cells_of(hashes), keys, pa.RecordBatch.from_arrays(states, schema=self._state))

    def drop(self, keys: Hashes) -> None:
        self._keys.forget(self._keys.with_hash(keys))


Function = Callable[..., Any]
Begins = Callable[[], object]
"""Called before each call of a user's function."""

MAP_FUNCTION = "the function of a stateful map"
"""What messages call the function."""

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

    def __init__(self, function: Function, shapes: Shapes) -> None:
        self._function = function
        self._shapes = shapes

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

    def _fold(self, key: Any, rows: pa.RecordBatch, state: Any, output: OutputRows) -> Any:
        try:
            return _state(self._shapes, self._function(key, rows, state), output)
        except Misfit as misfit:
            raise _unfit(misfit, _of_key(key)) from misfit
        except (Exception, SystemExit, GeneratorExit) as error:  # of any class: it is the user's code
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


def map_call(op: StatefulMapOp, source: pa.Schema, begins: Begins | None = None) -> Call:
    """The function of a stateful map, as it is called in this process. source: of the rows that will come. begins: as
    :func:`noted` takes it. Raises DeclarationError if the function cannot be loaded here."""
    shapes = Shapes(
        RowReader(key_of(op, source), "key"),
        RowReader(source, "row"),
        PlainRows(op.state, "state"),
        PlainRows(given_by(op), "output row"),
    )
    return CALLS[op.per](noted(loaded(op.function, MAP_FUNCTION), begins), shapes)


def key_of(op: StatefulMapOp, source: pa.Schema) -> pa.Schema:
    """The key's columns."""
    return pa.schema([pa.field(name, source.field(name).type) for name in op.key])


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


class StatefulMap(TwoStores[States]):
    """The function and its states. ``parts`` is 1: the states."""

    __slots__ = ("_bisected", "_call", "_is_finer", "_key", "_output")

    parts = 1

    def __init__(
        self,
        op: StatefulMapOp,
        source: pa.Schema,
        routing: Sequence[str],
        pace: CompactionPace = USUAL,
        make_call: MakeCall = map_call,
    ) -> None:
        """source: of the rows that will come. routing: the routing key's columns, all of them in the key. pace: how
        soon and how fast to compact. make_call: how the function is called.

        Raises DeclarationError if the function cannot be loaded here, ProtocolError for an op that contradicts itself.
        """
        if not set(routing) <= set(op.key):
            raise ProtocolError(f"a stateful map by {op.key} in a region that is routed by {tuple(routing)}")
        key = key_of(op, source)
        if list(op.output)[: len(key)] != list(key):
            raise ProtocolError(f"the output {op.output.names} does not begin with the key {op.key}")
        self._key = key
        self._output = op.output
        self._call = make_call(op, source)
        self._bisected = BisectedCalls(self._call, op.per, given_by(op))
        self._is_finer = set(routing) < set(op.key)
        super().__init__(partial(States, key, op.state, routing), pace)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Call the function for the rows; returns the rows that it gives, each behind its key, those of a key in order.

        Raises RowError if the function raises, or gives what was not declared; then no state has changed. Raises
        ProtocolError for a retraction: what a function has made of a row cannot be undone.
        """
        batch = _repeated(batch)
        if not len(batch):
            return Batch(pa.RecordBatch.from_pylist([], self._output), batch.hash64)
        given, hashes = self._given(batch)
        return self._kept(given, hashes, self._call(given))

    def apply_good(self, batch: Batch) -> tuple[Batch, pa.RecordBatch, Sequence[str]]:
        """Call the function for the rows, as if the rows on which it fails had never come. If it is called row by row,
        only these rows are left out; else all rows that their keys have in the batch.

        Returns what :meth:`apply` does, the rows that were left out, and what is wrong with each. Raises ProtocolError.
        """
        batch = _repeated(batch)
        if not len(batch):
            return self.apply(0, batch), batch.rows, ()
        given, hashes = self._given(batch)
        found = self._bisected(given)
        made = self._kept(given, hashes, found.made)
        return made, given.rows.take(pa.array(found.bad)), found.errors

    def _kept(self, given: Given, hashes: Hashes, made: Made) -> Batch:
        """Store the new states; returns the rows, each behind its key. hashes: of the keys."""
        self._write(hashes, given, made)
        owners = pa.array(made.owners)
        columns = [column.take(owners) for column in given.keys.columns] + made.rows.columns
        return Batch(pa.RecordBatch.from_arrays(columns, schema=self._output), hashes[made.owners])

    def _given(self, batch: Batch) -> tuple[Given, Hashes]:
        """The batch by key, with the states; and the hash64 of each key's routing key."""
        keys = [canonical(batch.rows.column(name)) for name in self._key.names]
        hashes = hash64(keys) if self._is_finer else batch.hash64
        heads = run_heads(hashes, keys)
        if len(np.unique(hashes[heads])) < len(heads):  # a key's rows are apart, or two keys have one hash
            first = first_equal(hashes, keys)
            order = np.argsort(first, kind="stable")
            batch = Batch(batch.rows.take(pa.array(order)), batch.hash64[order])
            keys = [column.take(pa.array(order)) for column in keys]
            heads = np.unique(first[order], return_index=True)[1]
        routed = batch.hash64[heads]
        of_heads = pa.RecordBatch.from_arrays([column.take(pa.array(heads)) for column in keys], schema=self._key)
        states, known = self._read(routed, of_heads)
        return Given(batch.rows, np.append(heads, len(batch)), of_heads, states, known), routed

    def _read(self, hashes: Hashes, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Mask]:
        parts = [
            (true_at(share), *store.read(hashes[share], keys.filter(pa.array(share)).columns))
            for store, share in self.shares(hashes)
        ]
        places, states, known = zip(*parts, strict=True)
        in_order = np.argsort(np.concatenate(places))
        return pa.concat_batches(states).take(pa.array(in_order)), np.concatenate(known)[in_order]

    def _write(self, hashes: Hashes, given: Given, made: Made) -> None:
        gone = given.known & ~made.kept
        for store, share in self.shares(hashes):
            kept, lost = made.kept & share, gone & share
            store.write(hashes[kept], given.keys.filter(pa.array(kept)).columns, made.states.filter(pa.array(kept)))
            store.forget(hashes[lost], given.keys.filter(pa.array(lost)).columns)
        self.tidy()


def _repeated(batch: Batch) -> Batch:
    """Each row as often as its weight says."""
    if batch.weight is not None and (batch.weight < 0).any():
        raise ProtocolError("a row was retracted that a stateful map has seen: its input is append only")
    return batch.repeated()


def loaded(function: bytes, about: str) -> Function:
    """Unpickle a user's function. about: names it in messages. This is the only place that unpickles anything. The plan
    with the function comes in the closure of Spark's task, or over a channel that the cluster's secret seals. PySpark
    pickles a function of its session as a pair with the type."""
    try:
        found = pickle.loads(function)
        loaded: Function = found[0] if isinstance(found, tuple) else found
    except Exception as error:  # of any class: loading runs what the user's modules have in them
        raise DeclarationError(
            f"{about} cannot be loaded on a worker: {type(error).__name__}: {error}. "
            "Give the workers the modules that it needs, or define it in the program that declares it"
        ) from error
    return loaded


def noted(function: Function, begins: Begins | None) -> Function:
    """The function; ``begins``, if there is any, is called before each of its calls."""
    if begins is None:
        return function

    def call(*arguments: Any) -> Any:
        begins()
        return function(*arguments)

    return call
