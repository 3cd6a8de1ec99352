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

from upriver.engine.batch import Batch
from upriver.errors import UpriverError
from upriver.hashing import hash64
from upriver.ids import MapVersion
from upriver.migration.messages import Acquire
from upriver.net import peer_codec, wire
from upriver.plan.graph import DataflowPlan, RegionPlan
from upriver.protocol.peers import Envelope, ForRegion
from upriver.worker.following import BuildRegion

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


def warm_up(plans: Sequence[DataflowPlan], build_region: BuildRegion) -> None:
    """Take made-up rows into each region, read them, and move them from it to another."""
    for plan in plans:
        for region in plan.regions:
            try:
                _warm_region(plan, region, build_region)
            except UpriverError:
                continue  # made-up rows may be such as no user has; the view is only so much warmer


def _warm_region(plan: DataflowPlan, region: RegionPlan, build_region: BuildRegion) -> None:
    old, new = build_region(plan, region), build_region(plan, region)
    for port, entry in enumerate(region.inputs):
        made_up = [_made_up(field.type) for field in entry.schema]
        rows = pa.RecordBatch.from_arrays(made_up, schema=_nullable(entry.schema))
        keys = rows.select(list(entry.edge.key))
        hashes = hash64(keys.columns, keys.num_rows)
        order = np.argsort(hashes)
        old.apply(port, Batch(rows.take(pa.array(order)), hashes[order]))
    old.settle(ROWS)
    old.drain(ROWS)
    moving = np.unique(np.concatenate([old.keys_of(vnode, 2) for vnode in (0, 1)]))
    acquire = Acquire(version=MapVersion(0), keys=moving, state=old.collect(moving))
    envelope = Envelope(generation=0, content=ForRegion(region=region.name, message=acquire))
    (arrived,) = peer_codec.decode(wire.decode(wire.encode(peer_codec.encode([envelope]))))
    old.drop(moving)
    assert isinstance(arrived.content, ForRegion)
    assert isinstance(arrived.content.message, Acquire)
    state = arrived.content.message.state
    assert isinstance(state, tuple)
    new.install(state)
    if region.store is not None:
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
