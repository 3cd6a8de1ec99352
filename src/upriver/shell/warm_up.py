"""What a worker does before it takes its place: everything once, so that no user pays for the first time.

The first call of many a library function loads code: the first Arrow column made of a numpy array takes a tenth of a
second and more, which is longer than any key may wait while it moves.
"""

import os
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.plan import TableSpec, ViewPlan
from upriver.errors import UpriverError
from upriver.hashing import hash64
from upriver.ids import MapVersion
from upriver.machines.following import BuildView
from upriver.machines.peers import Envelope, ForRegion
from upriver.migration.messages import Acquire
from upriver.shell import wire
from upriver.shell.peer_codec import decode, encode

NICENESS = 19
"""How far a worker that is not in its place yet stands back behind those that are."""
ROWS = 1024
"""Made-up rows: enough that structures grow."""


def stand_back(work: Callable[[], None]) -> None:
    """Do some work on a thread that yields the processors to all others; returns when it is done."""

    def run() -> None:
        if sys.platform == "linux":  # elsewhere, niceness is the whole process's, which cannot take it back
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        work()

    thread = threading.Thread(target=run, name="upriver-warm-up")
    thread.start()
    thread.join()


def warm_up(plans: Sequence[ViewPlan], tables: Sequence[TableSpec], build_view: BuildView) -> None:
    """Take made-up rows into each view, read them, and move them from it to another."""
    specs = {table.name: table for table in tables}
    for plan in plans:
        try:
            _warm_view(plan, specs[plan.table].schema, build_view)
        except UpriverError:
            continue  # made-up rows may be such as no user has; the view is only so much warmer


def _warm_view(plan: ViewPlan, schema: pa.Schema, build_view: BuildView) -> None:
    old, new = build_view(plan), build_view(plan)
    rows = pa.RecordBatch.from_arrays([_made_up(field.type) for field in schema], schema=_nullable(schema))
    keys = rows.select(list(plan.index))
    hashes = hash64(keys.columns, keys.num_rows)
    order = np.argsort(hashes)
    old.apply(Batch(rows.take(pa.array(order)), hashes[order]))
    moving = np.unique(np.concatenate([old.keys_of(vnode, 2) for vnode in (0, 1)]))
    acquire = Acquire(version=MapVersion(0), keys=moving, state=old.collect(moving))
    envelope = Envelope(generation=0, content=ForRegion(view=plan.name, message=acquire))
    (arrived,) = decode(wire.decode(wire.encode(encode([envelope]))))
    old.drop(moving)
    assert isinstance(arrived.content, ForRegion)
    assert isinstance(arrived.content.message, Acquire)
    state = arrived.content.message.state
    assert isinstance(state, tuple)
    new.install(state)
    new.lookup(hashes[:1], keys.slice(0, 1))
    new.scan()


def _made_up(type: pa.DataType) -> pa.Array:
    """Numbers count up; what cannot be made of a number is null."""
    try:
        return pa.array(np.arange(ROWS)).cast(type)
    except pa.ArrowException:
        return pa.nulls(ROWS, type)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])
