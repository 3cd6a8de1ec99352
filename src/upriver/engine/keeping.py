"""What a worker keeps of one region: the interface for moving, reading and feeding it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.operators.view import LongRead
from upriver.hashing import Hashes

ALL_ROWS = 2**63 - 1
"""More rows than there can be."""

State = tuple[pa.RecordBatch, ...]
"""All that a region keeps of some keys."""


class RegionState(Protocol):
    """One region's state at one worker."""

    @property
    def gathered(self) -> int:
        """Rows that came over exchange edges and are not settled yet."""
        ...

    def left_out(self) -> Sequence[SetAside]:
        """The rows of tables that were set aside since the last call."""
        ...

    @property
    def unsettled(self) -> int:
        """Unsettled rows, plus output that is not drained yet."""
        ...

    def settle(self, rows_max: int) -> int: ...

    def drain(self, rows_max: int) -> Sequence[Outgoing]: ...

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch: ...

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, lengths: Sequence[int], rows_max: int | None = None
    ) -> list[pa.RecordBatch]: ...

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead: ...

    def scan(self) -> pa.Table: ...

    def stats(self) -> Mapping[str, int]: ...

    def keys_of(self, vnode: int, vnodes: int) -> Hashes: ...

    def collect(self, keys: Hashes) -> State: ...

    def install(self, state: State) -> None: ...

    def drop(self, keys: Hashes) -> None: ...


class FullRegionState(RegionState, Protocol):
    """State as :class:`upriver.engine.region.Region` keeps it."""

    def apply(self, port: int, batch: Batch) -> None: ...

    def settle_first(self, rows_max: int) -> None: ...
