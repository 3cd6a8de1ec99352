"""What a run of the migration model is about: workers, keys, rows to come, and the rescales asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from simulator.icadd_coordinator import ModelRescale
from simulator.icadd_rows import TracedRow
from simulator.published.published import AS_WRITTEN, PublishedDistributor, PublishedRules
from upriver.ids import VnodeId, WorkerId
from upriver.migration.events import Action, Event
from upriver.migration.icadd import Distributor
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.vnodes import VnodeMap


class Machine(Protocol):
    """A distributor under either set of rules."""

    @property
    def phase(self) -> object: ...

    @property
    def can_collect(self) -> bool: ...

    @property
    def rows_waiting(self) -> int: ...

    def step(self, event: Event) -> tuple[Action, ...]: ...


Logs = Mapping[int, tuple[tuple[WorkerId, int], ...]]
"""The state of one region on one worker: of each key the rows that were applied, in order, by origin and number."""


class ScenarioOperators(Protocol):
    """How the operators of a region answer."""

    def keys(self, logs: Logs) -> list[int]:
        """Of which they say that they have state, in order."""

    def collect(self, logs: Logs, keys: list[int]) -> tuple[tuple[int, tuple[tuple[WorkerId, int], ...]], ...]:
        """What they hand out of the state of these keys."""


class OneOperator:
    """It has all the state of its region."""

    def keys(self, logs: Logs) -> list[int]:
        return sorted(logs)

    def collect(self, logs: Logs, keys: list[int]) -> tuple[tuple[int, tuple[tuple[WorkerId, int], ...]], ...]:
        return tuple((key, logs.get(key, ())) for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rulebook:
    """Which rules a world runs by.

    machine: made of its worker, the map, and for how many keys slices are given together. joiner_knows_old_map: else it
    starts from the new one, which is fault R5. waiting_rows_in_flight: see icadd.waiting_rows_in_flight.
    loses_done_to_the_gone: a Done that reaches a worker which has left does no harm. aborts: rescales can be given up.
    operators: how those of every region answer.
    """

    machine: Callable[[WorkerId, VnodeMap, int], Machine]
    coordinator: MendedRules
    joiner_knows_old_map: bool
    waiting_rows_in_flight: bool
    loses_done_to_the_gone: bool
    aborts: bool
    operators: ScenarioOperators = field(default_factory=OneOperator)


def mended(rules: MendedRules = ALL_RULES) -> Rulebook:
    """What ships; a rule switched off shows what it is for."""
    return Rulebook(
        machine=lambda worker, map, together: Distributor(worker, map, rules, together),
        coordinator=rules,
        joiner_knows_old_map=rules.icadd_joiner_knows_old_map,
        waiting_rows_in_flight=rules.icadd_waiting_rows_in_flight,
        loses_done_to_the_gone=False,
        aborts=True,
    )


def published(rules: PublishedRules = AS_WRITTEN, *, joiner_knows_old_map: bool = True) -> Rulebook:
    """The document's rules; it does not say what a joining worker knows."""
    return Rulebook(
        machine=lambda worker, map, together: PublishedDistributor(worker, map, rules),
        coordinator=ALL_RULES,
        joiner_knows_old_map=joiner_knows_old_map,
        waiting_rows_in_flight=False,
        loses_done_to_the_gone=True,
        aborts=False,
    )


Inputs = dict[tuple[WorkerId, str], tuple[TracedRow, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One case.

    workers, maps: at the start, per region. requests: rescales to ask for, in order; asked_at_once: the first when
    the world begins, so that no step is spent on it. inputs: rows of each worker's own upstream, per region.
    prior: keys that have state at the start, per region. keys_max: of one Collect. together: keys for which slices
    are given together. slow_operators: rows and orders
    wait in a queue before the operators. aborts: the coordinator may give one rescale up, at any time. snapshot:
    barriers cut one through the rows once all have settled. feeds: by region, the region whose distributors get a row
    for each row that its operators have applied, on the same worker; and by key, the key of that row.
    """

    name: str
    workers: tuple[WorkerId, ...]
    maps: dict[str, VnodeMap]
    requests: tuple[ModelRescale, ...]
    inputs: Inputs
    prior: dict[str, tuple[int, ...]]
    keys_max: int = 1
    together: int = 1
    asked_at_once: bool = True
    slow_operators: bool = False
    aborts: bool = False
    snapshot: bool = False
    feeds: Mapping[str, tuple[str, Mapping[int, int]]] = field(default_factory=dict)


def vnode_owner(map: VnodeMap, hash64: int) -> WorkerId:
    """The owner of one hash64."""
    return map.owners[VnodeId(hash64 * len(map.owners) >> 64)]
