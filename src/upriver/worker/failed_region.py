"""The stand-in for a region of a view that has failed; rule ``views.fail_alone``, ``docs/internals/failures.md``.

The view's regions still take part in everything that concerns every region: rows come to them and are counted, stages
begin and end, rescales pass through. They hold no state, and answer only with the error.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.operators.view import LongRead
from upriver.engine.region import FullRegionState, State
from upriver.hashing import Hashes
from upriver.state.failure import ViewFailure
from upriver.state.vectors import NO_KEYS, Positions


class FailedRegion:
    """Stands in for a region of a view that has failed. It counts rows that come over exchange edges until their stage:
    the epoch ends when as many rows were taken in as were sent."""

    def __init__(
        self,
        failure: ViewFailure,
        gathered: int,
        exchange_ports: Collection[int],
        build: Callable[[], FullRegionState] | None,
        put_off: int = 0,
    ) -> None:
        """gathered, put_off: rows that waited in the region, and those of them that a node had failed on.
        exchange_ports: the ports that other regions feed. build: makes an empty region, which counts the waiting rows
        in state that comes from another worker; ``None``: none can wait."""
        self.failure = failure
        self.gathered = gathered
        self._put_off = put_off
        self._exchange_ports = frozenset(exchange_ports)
        self._build = build

    @property
    def waiting(self) -> int:
        return self.gathered + self._put_off

    @property
    def unsettled(self) -> int:
        return self.waiting

    def apply(self, port: int, batch: Batch) -> None:
        if port in self._exchange_ports:
            self.gathered += len(batch)

    def left_out(self) -> Sequence[SetAside]:
        return ()

    def due(self, clock: int) -> Hashes:
        return NO_KEYS

    def advance(self, clock: int) -> None:
        pass

    def show_due(self) -> None:
        pass

    def settle(self, rows_max: int) -> int:
        settled, self.gathered, self._put_off = self.gathered, 0, 0
        return settled

    def drain(self, rows_max: int) -> Sequence[Outgoing]:
        return ()

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        raise self.failure.raised()

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        raise self.failure.raised()

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        raise self.failure.raised()

    def scan(self) -> pa.Table:
        raise self.failure.raised()

    def stats(self) -> Mapping[str, int]:
        return {"rows": 0, "keys": 0, "held": 0, "gathered": self.gathered, "bytes": 0, "live_bytes": 0}

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        return NO_KEYS

    def collect(self, keys: Hashes) -> State:
        """No state at all: by this, another worker sees that the view has failed here."""
        return ()

    def install(self, state: State) -> None:
        if state and self._build is not None:
            apart = self._build()
            apart.install(state)
            self.gathered += apart.gathered
            self._put_off += apart.waiting - apart.gathered

    def drop(self, keys: Hashes) -> None:
        pass
