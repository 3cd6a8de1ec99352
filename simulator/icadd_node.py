"""One region on one worker of the migration model: its distributor, and operators that keep a log per key."""

import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from simulator.icadd_rows import frozen
from simulator.icadd_scenario import Machine, ScenarioOperators
from upriver.ids import WorkerId
from upriver.migration.events import (
    AbortAsked,
    Collect,
    Collected,
    Drop,
    Interrogate,
    Interrogated,
    PassDown,
    RescaleAnnounced,
    Rule,
    TakeState,
)
from upriver.vnodes import vnodes_of

Log = tuple[tuple[WorkerId, int], ...]
"""The rows of one key that were applied, in order: origin and number."""

ForOperators = PassDown | Interrogate | Collect | TakeState | Drop


class NodeKind(StrEnum):
    """What a checker finds."""

    SPLIT = "SPLIT"
    ORDER = "ORDER"
    LOST = "LOST"
    DOUBLED = "DOUBLED"
    MISPLACED = "MISPLACED"
    STUCK = "STUCK"
    DEAD = "DEAD"
    LATE = "LATE"
    CUT = "CUT"
    ILLEGAL = "ILLEGAL"


class ProtocolViolation(Exception):
    """A checker's finding. rule: by which the row at fault was passed down, if one was."""

    def __init__(self, kind: NodeKind, text: str, rule: Rule | None = None) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.rule = rule


@dataclass(slots=True)
class NodePart:
    """One region on one worker. ``copy`` before a change, where worlds share it.

    logs: the state. sealed: keys whose state was collected and not yet dropped. queue: what the operators have not
    seen yet. answer: theirs, not yet with the distributor. position: rows that came from upstream. orders: of the
    coordinator, not yet here. peers: of a retired worker, who stays. fingerprint, steps: what this part is, and what
    can happen to it next, once asked for.
    """

    machine: Machine
    operators: ScenarioOperators
    logs: dict[int, Log] = field(default_factory=dict)
    sealed: frozenset[int] = frozenset()
    queue: tuple[ForOperators, ...] = ()
    answer: Interrogated | Collected | None = None
    position: int = 0
    orders: tuple[RescaleAnnounced | AbortAsked, ...] = ()
    peers: tuple[WorkerId, ...] | None = None
    left: bool = False
    fingerprint: Any = None
    steps: tuple[Any, ...] | None = None

    def copy(self) -> "NodePart":
        """A part to change; nothing that the two share is ever changed in place."""
        return NodePart(
            copy.copy(self.machine),
            self.operators,
            dict(self.logs),
            self.sealed,
            self.queue,
            self.answer,
            self.position,
            self.orders,
            self.peers,
            self.left,
        )

    def forget(self) -> None:
        """It is about to change: what was worked out before does not count."""
        self.fingerprint = self.steps = None

    def state(self) -> Any:
        """Equal for equal states, and hashable."""
        if self.fingerprint is None:
            self.fingerprint = (
                frozen(self.machine.phase),
                tuple(sorted(self.logs.items())),
                self.sealed,
                frozen(self.queue),
                frozen(self.answer),
                self.position,
                frozen(self.orders),
                self.peers,
                self.left,
            )
        return self.fingerprint

    def holds(self, key: int) -> bool:
        """Whether this key's state is here, or is being collected here; a copy that waits for its Drop is not."""
        if key not in self.logs and key not in self.sealed:
            return False
        return not any(isinstance(task, Drop) and key in task.keys.tolist() for task in self.queue)

    def taking(self, key: int) -> bool:
        """Whether this key's state has arrived, and the operators have not seen it."""
        return any(isinstance(task, TakeState) and key in task.keys.tolist() for task in self.queue)

    def interrogate(self, task: Interrogate, vnodes_total: int) -> None:
        """The operators name their keys of these vnodes."""
        keys = np.array(self.operators.keys(self.logs), np.uint64)
        self.answer = Interrogated(keys=keys[np.isin(vnodes_of(keys, vnodes_total), task.vnodes)])

    def collect(self, task: Collect) -> None:
        """The operators add the state of these keys, and keep it until Drop."""
        keys = task.keys.tolist()
        self.sealed |= set(keys)
        self.answer = Collected(keys=task.keys, state=self.operators.collect(self.logs, keys))

    def take(self, task: TakeState) -> None:
        """The operators take over state that no other worker keeps."""
        assert isinstance(task.state, tuple)
        for key, log in task.state:
            if self.holds(key):
                raise ProtocolViolation(
                    NodeKind.SPLIT, f"the state of a key came to a worker that has made some of its own: {log}"
                )
            if log:
                self.logs[key] = log

    def drop(self, task: Drop) -> None:
        """The operators forget."""
        for key in task.keys.tolist():
            self.logs.pop(key, None)
        self.sealed -= set(task.keys.tolist())
