"""A worker's upqueries: what is asked of the lake for keys that are missing; ``docs/internals/partial.md``.

Also the work of a worker's cones, which read the lake by themselves, epoch by epoch and key by key.
"""

from collections.abc import Sequence

from upriver.partial.cone import Cone, ConeReads
from upriver.partial.partial_region import PartialRegion
from upriver.protocol.peers import Hot
from upriver.protocol.worker_events import FetchRows, ReadKeys, ReadTakesLong, TimeToFill
from upriver.worker.memory import MemoryBudget
from upriver.worker.peers import StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions

CROWD_KEYS = 4
"""Upqueries rest if at least this many keys are requested while one is under way: about as many more will be requested
in the same time again. With fewer, the waiting lookups would gain nothing."""
FEW_KEYS = 256
"""An upquery of this many keys does not wait for more: below that, a few more keys cost hardly anything."""


class Upqueries:
    """Begins upqueries, and cones' reads."""

    def __init__(
        self,
        regions: Regions,
        progress: EpochProgress,
        memory: MemoryBudget,
        output: StepOutput,
        crowd_keys: int,
    ) -> None:
        """crowd_keys: see ``CROWD_KEYS``."""
        self.fills_rest = False
        """Many keys were requested while an upquery was under way: the next one waits for more keys until
        ``TimeToFill``."""
        self.refilled_since = output.generation
        """The generation in which partial regions last began empty."""
        self._regions = regions
        self._progress = progress
        self._memory = memory
        self._output = output
        self._crowd_keys = crowd_keys

    def succeed(self, old: "Upqueries", *, keep_state: bool) -> None:
        """Go on after all have resumed. keep_state: whether partial regions keep their keys."""
        self.fills_rest = old.fills_rest
        if keep_state:
            self.refilled_since = old.refilled_since

    def end(self, region: str, partial: PartialRegion) -> None:
        """An upquery is over. Begin the next one, or let upqueries rest if many keys were requested meanwhile."""
        self.fills_rest |= partial.wanted >= self._crowd_keys
        self.begin(region)

    def want_hot(self, hot: Hot) -> None:
        """Fill keys that were read lately at their old owner."""
        shard = self._regions.shards.get(hot.region)
        if shard is None or shard.partial is None:
            return
        if shard.cone is not None:
            shard.cone.wait_until(hot.shown)
        shard.partial.want(hot.keys)
        self.begin(hot.region)

    def begin(self, region: str) -> None:
        """Begin an upquery of the wanted keys, unless one is under way already, or upqueries rest."""
        shard = self._regions.shards[region]
        if shard.cone is not None:
            self.work_on(region, shard.cone)
            return
        partial = shard.partial
        assert isinstance(partial, PartialRegion)
        if self.fills_rest and partial.wanted < FEW_KEYS:
            return
        upquery = partial.upquery(self._progress.begun, self._memory.room_of(self._regions, region))
        if upquery is not None:
            generation, ports = self.refilled_since, self._regions.lake_ports[region]
            needs_clock = self._regions.is_clocked
            self._output.add(
                ReadKeys(generation=generation, region=region, upquery=upquery, ports=ports, needs_clock=needs_clock)
            )

    def time_to_fill(self, _event: TimeToFill) -> None:
        """Upqueries have rested: begin those that were put off."""
        self.fills_rest = False
        self._begin_postponed()

    def read_takes_long(self, event: ReadTakesLong) -> None:
        """Other upqueries, or other tasks of the cone, may begin beside this one."""
        shard = self._regions.shards.get(event.region)
        if event.generation == self.refilled_since and shard is not None and shard.partial is not None:
            shard.partial.overtake(event.number)
            self.begin(event.region)

    def begin_postponed(self) -> None:
        """Begin upqueries that were put off for lack of room (partial.room_first): there may be room now."""
        if self._memory.is_limited:
            self._begin_postponed()

    def _begin_postponed(self) -> None:
        for region, shard in self._regions.shards.items():
            if shard.partial is not None and shard.partial.puts_off:
                self.begin(region)

    def work_on_all(self) -> None:
        """Let every cone that has work begin with it."""
        for view, cone in self._regions.cones.items():
            self.work_on(view, cone)

    def work_on(self, view: str, cone: Cone) -> None:
        """Let a cone begin with the tasks that may begin."""
        reads: Sequence[ConeReads] = ()
        with self._regions.shards[view].contained("reading the lake"):
            reads = cone.work(self._progress.begun, self._memory.room_of(self._regions, view))
        self.fetch(view, reads)

    def fetch(self, view: str, reads: Sequence[ConeReads]) -> None:
        """Have rows read for tasks of a cone."""
        for each in reads:
            self._output.add(FetchRows(generation=self.refilled_since, view=view, task=each.task, reads=each.reads))
