"""Parts: the batches in which what is kept of some keys goes from one operator, or store, to another."""

from collections.abc import Sequence

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.state.columns import array_of
from upriver.xxh64 import Hashes


def part_of(hashes: Hashes, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    """Columns, which get their numbers for names, behind the hash64 of each row's routing key."""
    columns = [array_of(pa.uint64(), hashes), *columns]
    return pa.RecordBatch.from_arrays(columns, [str(place) for place in range(len(columns))])


def check_new(are_new: bool) -> None:
    """Raises ProtocolError unless nothing was kept yet of the keys that are installed."""
    if not are_new:
        raise ProtocolError("state was installed of a key that has state here")
