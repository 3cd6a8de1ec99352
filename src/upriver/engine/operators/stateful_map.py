"""StatefulMap: a user's Python function over the rows of each key, in order, with a state for each key.

A batch is cut by key, the states of its keys are read, the function is called for all of them (:mod:`.user_calls`), and
only when all has gone well are the new states stored: a batch that fails leaves nothing behind. Or the rows on which it
fails are left out (:mod:`.sifted_calls`).
"""

import pickle
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.plain_rows import PlainRows, RowReader
from upriver.engine.operators.sifted_calls import SiftedCalls
from upriver.engine.operators.states import States
from upriver.engine.operators.turning import USUAL, Eagerness, Turning
from upriver.engine.operators.user_calls import CALLS, Function, Given, Made, Shapes
from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import hash64
from upriver.plan.ops import StatefulMap as StatefulMapOp
from upriver.state.columns import canonical
from upriver.state.slots import first_equal, run_heads
from upriver.state.vectors import Mask, true_at
from upriver.xxh64 import Hashes


class StatefulMap(Turning[States]):
    """The function and its states. ``parts`` is one: the states."""

    __slots__ = ("_call", "_is_finer", "_key", "_output", "_sifted")

    parts = 1

    def __init__(
        self,
        op: StatefulMapOp,
        source: pa.Schema,
        routing: Sequence[str],
        eagerness: Eagerness = USUAL,
    ) -> None:
        """source: of the rows to come. routing: the routing key's columns, all of them in the key.
        eagerness: to give memory back.

        Raises DeclarationError if the function cannot be loaded here, ProtocolError for an op that contradicts itself.
        """
        if not set(routing) <= set(op.key):
            raise ProtocolError(f"a stateful map by {op.key} in a region that is routed by {tuple(routing)}")
        key = pa.schema([pa.field(name, source.field(name).type) for name in op.key])
        if list(op.output)[: len(key)] != list(key):
            raise ProtocolError(f"the output {op.output.names} does not begin with the key {op.key}")
        output = pa.schema(list(op.output)[len(key) :])
        shapes = Shapes(
            RowReader(key, "key"),
            RowReader(source, "row"),
            PlainRows(op.state, "state"),
            PlainRows(output, "output row"),
        )
        self._key = key
        self._output = op.output
        self._call = CALLS[op.per](_loaded(op.function), shapes)
        self._sifted = SiftedCalls(self._call, op.per, output)
        self._is_finer = set(routing) < set(op.key)
        super().__init__(partial(States, key, op.state, routing), eagerness)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Call the function for the rows; returns the rows that it gives, each behind its key, those of a key in order.

        Raises RowError, from what the function raised, or for what it gave that was not declared; no state has changed
        then. Raises ProtocolError for a retraction: what a function has made of a row cannot be undone.
        """
        batch = _repeated(batch)
        if not len(batch):
            return Batch(pa.RecordBatch.from_pylist([], self._output), batch.hash64)
        given, hashes = self._given(batch)
        return self._kept(given, hashes, self._call(given))

    def apply_good(self, batch: Batch) -> tuple[Batch, pa.RecordBatch, Sequence[str]]:
        """Call the function for the rows, as if those had never come on which it fails: where it is called row by row,
        the very rows; else, all rows that their keys have in the batch.

        Returns what :meth:`apply` does, the rows that were left out, and what is wrong with each. Raises ProtocolError.
        """
        batch = _repeated(batch)
        if not len(batch):
            return self.apply(0, batch), batch.rows, ()
        given, hashes = self._given(batch)
        sifted = self._sifted(given)
        made = self._kept(given, hashes, sifted.made)
        return made, given.rows.take(pa.array(sifted.bad)), sifted.errors

    def _kept(self, given: Given, hashes: Hashes, made: Made) -> Batch:
        """Store the states that were made; returns the rows, each behind its key. hashes: of the keys."""
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


def _loaded(function: bytes) -> Function:
    """The one place where anything is unpickled. A plan, and so its function, has come in the closure of Spark's task,
    or over a channel whose frames are sealed by the cluster's secret."""
    try:
        loaded: Function = pickle.loads(function)
    except Exception as error:  # of any class: loading runs what the user's modules have in them
        raise DeclarationError(
            f"the function of a stateful map cannot be loaded on a worker: {type(error).__name__}: {error}. "
            "Give the workers the modules that it needs, or define it in the program that declares it"
        ) from error
    return loaded
