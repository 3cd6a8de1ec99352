"""Rows that make a simulated view fail, or kill the process that computes it: which they are, the regions that fail on
them, and what must come of it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NoReturn

import numpy as np
import pyarrow as pa

from simulator.lake import FakeLake
from simulator.tables import BAD_ROWS
from upriver.coordinator.coordinator import DEATHS_MAX
from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.operators.view import LongRead
from upriver.engine.region import FullRegionState, State
from upriver.errors import RowError, UpriverError
from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.plan.provenance import lake_edges
from upriver.state.vectors import Mask, Positions
from upriver.worker.regions import BuildRegion

EVERY = (9, 40, 150)
"""One row in so many makes a view fail."""
VIEWS_SHARE, COPIED_SHARE = 0.5, 0.3
"""Of the views of a cluster where some fail, and of those views."""
SAID = "this row is no good"


class StepKilled(BaseException):
    """The process dies in mid-step."""


@dataclass(frozen=True, slots=True)
class BadRows:
    """views: of each that can fail, one row in how many is bad, and which. copied: of those views, the ones that fail
    when the state of such a key is copied. doomed: views that fail for another reason: a worker has read other rows of
    theirs than the lake has, or has made rows up, or real operators fail on a row. deadly: of those that can fail, the
    ones that kill their process instead. kills: by view, how many processes it has killed."""

    views: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()
    doomed: set[str] = field(default_factory=set)
    deadly: frozenset[str] = frozenset()
    kills: Counter[str] = field(default_factory=Counter)

    @classmethod
    def drawn(cls, rng: Random, plans: Sequence[DataflowPlan], deadly_share: float) -> "BadRows":
        """Of some views; of none whose rows are set aside, which ends when the view fails. deadly_share: of these
        views, those that kill."""
        every = rng.choice(EVERY)
        able = [plan.name for plan in plans if plan.name not in BAD_ROWS]
        views = {view: (every, rng.randrange(every)) for view in able if rng.random() < VIEWS_SHARE}
        copied = frozenset(view for view in views if rng.random() < COPIED_SHARE)
        deadly = frozenset(view for view in views if deadly_share and rng.random() < deadly_share)
        return cls(views, copied, deadly=deadly)

    def fail(self, view: str, error: Exception) -> NoReturn:
        """A row of this view is bad."""
        if view in self.deadly:
            self.kills[view] += 1
            raise StepKilled(view)
        raise error

    def of(self, view: str, rows: pa.RecordBatch) -> Mask:
        """Which rows of a table are bad; constant rows never are."""
        if "seq" not in rows.schema.names:
            return np.zeros(rows.num_rows, np.bool_)
        every, which = self.views[view]
        bad: Mask = rows.column("seq").to_numpy() % every == which
        return bad

    def are_keys(self, view: str, keys: Hashes) -> bool:
        """Whether some of these keys make the view fail."""
        every, which = self.views[view]
        return bool((keys % np.uint64(every) == which).any())

    def may_fail(self, plan: DataflowPlan, lake: FakeLake) -> bool:
        """Whether there is a reason why it can."""
        if plan.name in self.deadly - self.doomed:
            return self.kills[plan.name] >= DEATHS_MAX
        exchanges = plan.name in self.views and plan.depth > 0
        return exchanges or plan.name in self.doomed | self.copied or self.are_in(plan, lake)

    def are_in(self, plan: DataflowPlan, lake: FakeLake) -> bool:
        """Whether a bad row was published that the view reads."""
        return any(len(hashes) for hashes in self.hashes(plan, lake))

    def hashes(self, plan: DataflowPlan, lake: FakeLake) -> list[Hashes]:
        """The hash64 of the bad rows that have come to views, by the indexes that the view reads."""
        if plan.name not in self.views:
            return []
        channels = {edge.channel for edge in lake_edges(plan)}
        return [
            run.batch.hash64[self.of(plan.name, run.batch.rows)]
            for epoch in range(1, lake.published + 1)
            for channel, run in lake.published_changes(Epoch(epoch)).items()
            if channel in channels
        ]

    def explain(self, error: UpriverError, plan: DataflowPlan, lake: FakeLake) -> bool:
        """Whether a lookup may be refused with this error."""
        said = f"view {plan.name!r}" if plan.name in self.doomed | self.deadly else SAID
        return said in str(error) and self.may_fail(plan, lake)

    def built_by(self, build_region: BuildRegion) -> BuildRegion:
        """The same, with regions that fail on bad rows."""

        def build(plan: DataflowPlan, region: RegionPlan) -> FullRegionState:
            made = build_region(plan, region)
            if plan.name not in self.views:
                return made
            return FailingRegion(made, plan.name, self, {port for port, _ in region.lake_ports})

        return build if self.views else build_region


class FailingRegion:
    """A region that fails on bad rows: half of those that came with one are in its state by then. Rows that are
    exchanged are bad by their hash64, and make it fail when they are taken in."""

    def __init__(self, region: FullRegionState, view: str, bad_rows: BadRows, lake_ports: Collection[int]) -> None:
        self._region = region
        self._view = view
        self._bad_rows = bad_rows
        self._lake_ports = lake_ports
        self._is_doomed = False

    def due(self, clock: int) -> Hashes:
        return self._region.due(clock)

    def advance(self, clock: int) -> None:
        self._region.advance(clock)

    def advance_keys(self, clock: int) -> Hashes:
        return self._region.advance_keys(clock)

    def show_due(self) -> None:
        self._region.show_due()

    def raise_clock(self, keys: Hashes, clock: int) -> None:
        self._region.raise_clock(keys, clock)

    def apply(self, port: int, batch: Batch) -> None:
        if port in self._lake_ports and self._bad_rows.of(self._view, batch.rows).any():
            self._region.apply(port, batch.slice(0, len(batch) // 2))
            self._bad_rows.fail(self._view, RowError(SAID))
        if port not in self._lake_ports:
            self._is_doomed |= self._bad_rows.are_keys(self._view, batch.hash64)
        self._region.apply(port, batch)

    def settle(self, rows_max: int) -> int:
        if self._is_doomed and self._region.gathered:
            self._region.settle(max(1, rows_max // 2))
            self._bad_rows.fail(self._view, ZeroDivisionError(SAID))
        return self._region.settle(rows_max)

    def settle_first(self, rows_max: int) -> None:
        if self._is_doomed and self._region.gathered:
            self._region.settle_first(max(1, rows_max // 2))
            self._bad_rows.fail(self._view, ZeroDivisionError(SAID))
        self._region.settle_first(rows_max)

    def try_again(self, keys: Hashes) -> None:
        self._region.try_again(keys)

    @property
    def gathered(self) -> int:
        return self._region.gathered

    @property
    def waiting(self) -> int:
        return self._region.waiting

    @property
    def unsettled(self) -> int:
        return self._region.unsettled

    def left_out(self) -> Sequence[SetAside]:
        return self._region.left_out()

    def drain(self, rows_max: int) -> Sequence[Outgoing]:
        return self._region.drain(rows_max)

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        return self._region.lookup(hash64, keys, rows_max)

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        return self._region.lookup_each(hash64, keys, ends, rows_max)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        return self._region.long_read(hash64, keys)

    def scan(self) -> pa.Table:
        return self._region.scan()

    def stats(self) -> Mapping[str, int]:
        return self._region.stats()

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        return self._region.keys_of(vnode, vnodes)

    def collect(self, keys: Hashes) -> State:
        if self._view in self._bad_rows.copied and self._bad_rows.are_keys(self._view, keys):
            self._bad_rows.fail(self._view, RuntimeError(SAID))
        return self._region.collect(keys)

    def install(self, state: State) -> None:
        self._region.install(state)

    def drop(self, keys: Hashes) -> None:
        self._region.drop(keys)
