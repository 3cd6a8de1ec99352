"""Routing: which worker answers lookups of each key. The coordinator reports it, and clients keep it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from upriver.coordinator.freshness import NOTHING_KNOWN, FreshnessReport
from upriver.ids import Epoch, WorkerId
from upriver.plan.plan import schema_from_json, schema_to_json
from upriver.vnodes import VnodeMap


@dataclass(frozen=True)
class ViewRoute:
    """A view, as clients know it. key: columns of ``schema``, in the order of hashing. tables: those that it reads."""

    key: tuple[str, ...]
    schema: pa.Schema
    tables: tuple[str, ...] = ()

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Names and types of the key."""
        return pa.schema([self.schema.field(name) for name in self.key])

    def to_json(self) -> dict[str, Any]:
        return {"key": list(self.key), "schema": schema_to_json(self.schema), "tables": list(self.tables)}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        return cls(tuple(json["key"]), schema_from_json(json["schema"]), tuple(json["tables"]))


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
        return cls(
            VnodeMap.from_json(json["vnode_map"]),
            {WorkerId(int(worker)): address for worker, address in json["addresses"].items()},
            {name: ViewRoute.from_json(view) for name, view in json["views"].items()},
            Epoch(json["epoch"]),
            FreshnessReport.from_json(json["freshness"]),
        )
