"""What clients, workers and the coordinator tell each other for lookups.

``Routing``: which worker answers lookups of each key. The coordinator reports it, and clients keep it. ``LookupTerms``:
what a client asks of one lookup, beside its keys. ``Answered``: what a worker says of the rows of one lookup.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self

import msgspec
import pyarrow as pa

from upriver.errors import UnknownView
from upriver.ids import Epoch, WorkerId
from upriver.plan.schemas import key_schema, schema_to_json
from upriver.protocol.freshness import NOTHING_KNOWN, FreshnessReport
from upriver.protocol.json_forms import record_form
from upriver.vnodes import VnodeMap, check_vnodes


@dataclass(frozen=True)
class ViewRoute:
    """A view, as clients know it. key: columns of ``schema``, in the order of hashing. tables: those that it reads."""

    key: tuple[str, ...]
    schema: pa.Schema
    tables: tuple[str, ...] = ()

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Names and types of the key."""
        return key_schema(self.key, self.schema)

    def to_json(self) -> dict[str, Any]:
        return {"key": list(self.key), "schema": schema_to_json(self.schema), "tables": list(self.tables)}


def tables_by_view(routes: Mapping[str, ViewRoute]) -> dict[str, tuple[str, ...]]:
    """The tables that each view reads."""
    return {name: route.tables for name, route in routes.items()}


def route_among(view: str, routes: Mapping[str, ViewRoute], tables: Iterable[str] = ()) -> ViewRoute:
    """The route of one view. Raises UnknownView, which names those that there are. tables: that the app has, too."""
    if view not in routes:
        raise UnknownView.among(view, tables_by_view(routes), tables)
    return routes[view]


@dataclass(frozen=True, slots=True)
class Routing:
    """The worker that answers for each vnode. addresses: of the workers that are up, ``host:port``. epoch: the last one
    that has ended. freshness: of the tables."""

    vnode_map: VnodeMap
    addresses: Mapping[WorkerId, str]
    views: Mapping[str, ViewRoute]
    epoch: Epoch
    freshness: FreshnessReport = NOTHING_KNOWN

    def to_json(self) -> dict[str, Any]:
        return {
            "vnode_map": self.vnode_map.to_json(),
            "map_version": self.vnode_map.version,
            "addresses": {str(worker): address for worker, address in self.addresses.items()},
            "views": {name: view.to_json() for name, view in self.views.items()},
            "epoch": self.epoch,
            "freshness": self.freshness.to_json(),
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`. Raises as ``refusing_malformed`` has it for what is malformed."""
        _, from_json = record_form(Routing)
        routing: Self = from_json(json)
        check_vnodes(len(routing.vnode_map.owners))
        for route in routing.views.values():
            key_schema(route.key, route.schema)  # a key without its column is malformed, too
        return routing


class LookupTerms(msgspec.Struct, array_like=True, frozen=True):
    """A client's lookup, beside its keys. number: names it on its line. keys: how many it has. at_least: epoch that the
    rows must reflect. together: all rows must be as of the end of one epoch. timeout: seconds, which the worker keeps
    to."""

    number: int
    keys: Annotated[int, msgspec.Meta(ge=0)]
    at_least: int | None
    together: bool
    timeout: Annotated[float, msgspec.Meta(ge=0)]


class Answered(msgspec.Struct, frozen=True):
    """What a worker says of the rows of some lookups: they are as of ``epoch`` at least; with ``together``, as of its
    end. version: of the map that the keys are kept by. relayed: whether another worker keeps some of them. held_up:
    whether some were not present at first, or about to move. committed_at: when ``epoch`` was committed, in seconds
    since 1970; ``None`` if the worker does not know."""

    epoch: int
    version: int
    relayed: bool = False
    held_up: bool = False
    committed_at: float | None = None
