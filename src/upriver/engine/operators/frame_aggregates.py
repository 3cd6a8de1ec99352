"""Aggregates of frames: each frame is a group of its own, and its aggregate is computed as that of a group.

Rows with the same frame share its result. So an aggregate of whole partitions reads each row once; one of a running
frame reads a row once for each later row of its partition.
"""

import numpy as np
import pyarrow as pa

from upriver.engine.operators.accumulators import OutOfRange
from upriver.engine.operators.aggregate import Argument, ArgumentName
from upriver.engine.operators.window_frames import RowsInOrder
from upriver.errors import RowError
from upriver.plan.plan import AggregateCall, WindowFrame
from upriver.state.vectors import Positions, Tally, spread, true_at

MEMBERS_MAX = 1 << 20
"""Rows of all frames together that are read at a time, unless one frame alone has more."""


def over_frames(call: AggregateCall, frame: WindowFrame, rows: RowsInOrder, at: Positions) -> pa.Array:
    """The aggregate of the frame of each of these rows."""
    if not len(at):
        return pa.nulls(0, call.type)
    width = len(rows) + 1
    starts, ends = (bound[at].astype(np.int64) for bound in rows.frames(frame))
    frames, places = np.unique(starts * width + ends, return_inverse=True)
    starts, ends = np.divmod(frames, width)
    parts = np.cumsum(ends - starts) // MEMBERS_MAX
    found = [
        _of_groups(call, rows, starts[part], ends[part] - starts[part])
        for part in np.split(np.arange(len(frames)), true_at(np.diff(parts)) + 1)
    ]
    return pa.concat_arrays(found).take(pa.array(places))


def _of_groups(call: AggregateCall, rows: RowsInOrder, starts: Positions, lengths: Positions) -> pa.Array:
    """The aggregate of each of these stretches of rows."""
    members, slots = spread(starts, lengths), np.repeat(np.arange(len(starts)), lengths)
    names = [*dict.fromkeys((*call.columns, *(() if call.where is None else (call.where,))))]
    read = pa.RecordBatch.from_arrays([rows.column(name).take(pa.array(members)) for name in names], names)
    argument_name, tally = ArgumentName.of(call), Tally()
    tally.resize(len(starts))
    tally.add(slots, None)
    argument = Argument(argument_name.type(read.schema), tally, _out_of_range, retracts=True)
    results = argument.reader(call)
    argument.resize(len(starts))
    argument.add(slots, argument_name.values(read), None if call.where is None else read.column(call.where), None)
    return results(np.arange(len(starts)))


def _out_of_range(call: AggregateCall, slot: int) -> RowError:
    raise OutOfRange(0)
