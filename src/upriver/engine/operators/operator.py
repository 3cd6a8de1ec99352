"""What every operator of a region is."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.xxh64 import Hashes


class Operator(Protocol):
    """Changes in, changes out. Each row goes with the hash64 of the region's routing key, which an operator keeps."""

    def apply(self, port: int, batch: Batch) -> Batch:
        """Take in changes of one input (ports count from 0); returns the changes of the output that follow.

        After each call the output stands as if all rows so far had come at once. Raises RowError for a row at fault;
        the operator is of no use then.
        """
        ...


class Stateful(Operator, Protocol):
    """An operator that keeps something by the routing key, or by something finer. What it keeps can be moved."""

    @property
    def parts(self) -> int:
        """How many batches :meth:`collect` gives. It depends on the plan only."""
        ...

    @property
    def held(self) -> int:
        """How many rows, or states, are kept."""
        ...

    @property
    def nbytes(self) -> int:
        """Of memory, without what is not used yet. Costs no more with size."""
        ...

    @property
    def live_nbytes(self) -> int:
        """What of ``nbytes`` is for something that is kept; the rest comes back in time."""
        ...

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64 of all routing keys of which anything is kept, from ``least`` to ``most``, which is one of them.

        In no particular order, each any number of times.
        """
        ...

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """All that is kept of the routing keys with these hash64, ascending and unique; it stays here, too.

        ``parts`` batches, each of a schema that depends on the plan only, with the routing key's hash64 as its first
        column; any of them may have no rows.
        """
        ...

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Keep what another operator of the same plan has collected. Nothing may be kept of these keys yet."""
        ...

    def drop(self, keys: Hashes) -> None:
        """Forget all of the routing keys with these hash64, ascending and unique. Memory is given back in time."""
        ...
