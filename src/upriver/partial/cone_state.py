"""ConeState: regions of a view at one worker, each with the keys that are kept of it, and why they are.

A key of the view's last region is kept because somebody has looked it up, a key of any other because kept keys of its
consumers rest on it. All that comes for other keys is dropped before any operator sees it.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from upriver.engine.batch import Batch
from upriver.engine.keeping import ALL_ROWS, Region
from upriver.ids import Epoch
from upriver.partial.cone_shape import ConeShape, Edge
from upriver.partial.presence import PRESENT, Presence
from upriver.partial.supports import Supports
from upriver.plan.graph import RegionPlan
from upriver.state.vectors import Mask
from upriver.xxh64 import Hashes

RowsAt = Mapping[tuple[str, int], Batch]
"""Rows of lake edges, by region and port."""


class ConeState:
    """Some regions of a view: a region and all that feed it, or all."""

    def __init__(self, shape: ConeShape, plans: Sequence[RegionPlan], build: Callable[[RegionPlan], Region]) -> None:
        """plans: of the regions that are kept. build: makes an empty one."""
        self.regions = {plan.name: build(plan) for plan in plans}
        """Each after those that feed it."""
        self.presence = {plan.name: Presence() for plan in plans}
        self._shape = shape
        self._lake_ports = {plan.name: [port for port, _ in plan.lake_ports] for plan in plans}
        self._supports = {edge: Supports() for edge in shape.edges if edge.consumer in self.regions}
        self._leftovers: dict[str, list[Hashes]] = {plan.name: [] for plan in plans}
        """Of each region, keys that are forgotten, and whose state is still there unless they have come back since."""

    @property
    def nbytes(self) -> int:
        return sum(presence.nbytes for presence in self.presence.values()) + self._beside_nbytes

    @property
    def live_nbytes(self) -> int:
        return sum(presence.live_nbytes for presence in self.presence.values()) + self._beside_nbytes

    @property
    def _beside_nbytes(self) -> int:
        leftovers = sum(keys.nbytes for lots in self._leftovers.values() for keys in lots)
        return leftovers + sum(supports.nbytes for supports in self._supports.values())

    # Keys -------------------------------------------------------------------------------------------------------------

    def keys(self, region: str) -> Hashes:
        """The kept keys of a region, ascending."""
        return np.sort(self.presence[region].present())

    def has(self, region: str, keys: Hashes) -> Mask:
        """Which of these keys are kept."""
        return self.presence[region].look(keys).present

    def put(self, region: str, keys: Hashes, through: Epoch, now: int) -> None:
        """Keep these keys (ascending, each once) from now on. now: in lookups."""
        self.presence[region].put(keys, PRESENT, through, now)

    def rest(self, edge: Edge, consumers: Hashes, producers: Hashes) -> None:
        """Note on what kept consumers rest."""
        self._supports[edge].add(consumers, producers)

    def forget(self, region: str, keys: Hashes) -> None:
        """Keep these keys (ascending, each once) no more: nor those that rest on them, nor those that they alone have
        rested on. One may have rested on thousands: so what the regions have of them is left, to be let go in time."""
        for edge in self._shape.out_of(region):
            if edge in self._supports:
                consumers = self._supports[edge].consumers_of(keys)
                if len(consumers):
                    self.forget(edge.consumer, consumers)
        self._drop(region, keys)

    def _drop(self, region: str, keys: Hashes) -> None:
        """As :meth:`forget`, of keys that nobody rests on."""
        if region == self._shape.top:
            self.regions[region].drop(keys)
        else:
            self._leftovers[region].append(keys)
        self.presence[region].drop(keys[self.has(region, keys)])
        for edge in self._shape.into(region):
            self.release(edge.producer, self._supports[edge].drop(keys))

    def release(self, region: str, keys: Hashes) -> None:
        """Forget those of these kept keys (ascending, each once) that nobody rests on."""
        idle = keys[self.has(region, keys)]
        for edge in self._shape.out_of(region):
            if edge in self._supports:
                idle = idle[~self._supports[edge].rests_on(idle)]
        if len(idle):
            self._drop(region, idle)

    @property
    def has_leftovers(self) -> bool:
        """Whether there is anything to let go."""
        return any(self._leftovers.values())

    def let_go(self, keys_max: int) -> int:
        """Drop what regions have of up to so many forgotten keys; returns of how many."""
        for region, lots in self._leftovers.items():
            if lots:
                lot = lots.pop()
                keys, rest = lot[:keys_max], lot[keys_max:]
                if len(rest):
                    lots.append(rest)
                self.regions[region].drop(keys[~self.has(region, keys)])
                return len(keys)
        return 0

    # Rows -------------------------------------------------------------------------------------------------------------

    def take(self, rows: RowsAt) -> None:
        """Take in rows of one epoch, or of all up to some epoch, as the regions of all workers would do it together.

        Raises RowError as :meth:`Region.apply`.
        """
        for name, region in self.regions.items():
            for port in reversed(self._lake_ports[name]):  # the right side of a left join first
                mine = self._mine(name, rows.get((name, port)))
                if mine is not None:
                    region.apply(port, mine)
            region.settle(ALL_ROWS)
            for out in region.drain(ALL_ROWS):
                mine = self._mine(out.to, out.batch) if out.to in self.regions else None
                if mine is not None:
                    self.regions[out.to].apply(out.port, mine)

    def _mine(self, region: str, batch: Batch | None) -> Batch | None:
        """The rows of kept keys; ``None`` for none."""
        if batch is None or not len(batch):
            return None
        kept = self.has(region, batch.hash64)
        return batch.filtered(kept) if kept.any() else None

    def absorb(self, other: "ConeState", top: str, keys: Hashes, through: Epoch, now: int) -> None:
        """Take in what another has of these keys (ascending, each once) of the region ``top``, which is its last one,
        and of what they rest on. Both are as of the end of the same epoch. through, now: as in :meth:`put`."""
        new = {name: self._lacking(name, keys if name == top else other.keys(name)) for name in other.regions}
        for name, missing in new.items():
            if len(missing):
                if self._leftovers[name]:
                    self.regions[name].drop(missing)
                self.regions[name].install(other.regions[name].collect(missing))
                self.put(name, missing, through, now)
        for edge, supports in other._supports.items():
            self._supports[edge].add(*supports.of(new[edge.consumer]))
        for name in reversed([name for name in new if name != top]):
            self.release(name, new[name])  # what only those rest on that are wanted no more

    def _lacking(self, region: str, keys: Hashes) -> Hashes:
        missing: Hashes = keys[~self.has(region, keys)]
        return missing
