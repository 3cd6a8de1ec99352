"""What feeds what in a view whose rows are exchanged, and how keys are traced back; ``docs/design/partial.md``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from upriver.engine.batch import Batch
from upriver.errors import ProtocolError
from upriver.hashing import hash64
from upriver.plan.graph import DataflowPlan, ExchangeEdge, RegionPlan
from upriver.plan.provenance import Trace, traces
from upriver.xxh64 import Hashes


@dataclass(frozen=True, slots=True)
class Edge:
    """An exchange edge, from one region of the cone to another. traces: of the consumer's keys."""

    consumer: str
    port: int
    producer: str
    traces: tuple[Trace, ...]

    def pairs(self, rows: Sequence[tuple[Trace, Batch]]) -> tuple[Hashes, Hashes]:
        """Of rows that were read along a trace each: the consumer's key, and the producer's key that it rests on."""
        none: Hashes = np.empty(0, np.uint64)
        consumers = [batch.hash64 for _, batch in rows]
        producers = [
            hash64([batch.rows.column(column) for column in trace.producer_key], len(batch)) for trace, batch in rows
        ]
        return np.concatenate([none, *consumers]), np.concatenate([none, *producers])


@dataclass(frozen=True, slots=True)
class ConeShape:
    """regions: each after those that feed it; the last one has the view's store. edges: all exchange edges."""

    view: str
    regions: tuple[RegionPlan, ...]
    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, plan: DataflowPlan) -> Self:
        """Raises ProtocolError for a view whose keys cannot be traced: it is to be full."""
        edges = [
            Edge(region.name, port, entry.edge.region, _traced(plan, region.name, port))
            for region in plan.regions
            for port, entry in enumerate(region.inputs)
            if isinstance(entry.edge, ExchangeEdge)
        ]
        return cls(plan.name, plan.regions, tuple(edges))

    @property
    def top(self) -> str:
        """The region whose keys are looked up."""
        return self.regions[-1].name

    def into(self, region: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.consumer == region)

    def out_of(self, region: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.producer == region)

    def below(self, region: str) -> tuple[RegionPlan, ...]:
        """This region and all that feed it, each after those that feed it."""
        names = {region}
        for plan in reversed(self.regions):
            if plan.name in names:
                names |= {edge.producer for edge in self.into(plan.name)}
        return tuple(plan for plan in self.regions if plan.name in names)


def _traced(plan: DataflowPlan, region: str, port: int) -> tuple[Trace, ...]:
    found = traces(plan, region, port)
    if found is None:
        raise ProtocolError(f"view {plan.name!r}: the keys of region {region!r} cannot be traced at port {port}")
    return found
