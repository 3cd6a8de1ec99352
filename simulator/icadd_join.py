"""Two inputs of one region on one worker, as a join has: one distributor each, or one for both (fault R14).

Only the old owner is modelled. Its operators have one key; the key's rows come by either input, and it is to move.
"""

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_rows import Key, ModelRows, TracedRow
from simulator.icadd_scenario import Machine, Rulebook
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import (
    Action,
    Collect,
    CollectAsked,
    Collected,
    Drop,
    Event,
    Interrogate,
    Interrogated,
    PassDown,
    RescaleAnnounced,
    RowsArrived,
)
from upriver.vnodes import VnodeMap

OLD, NEW = WorkerId(0), WorkerId(1)
KEY = Key(VnodeId(0), 1).hash64(1)
KEYS = np.array([KEY], np.uint64)


@dataclass(slots=True)
class _Input:
    """A distributor, and the inputs that it serves. rows: to come, by input. answer: of its operators."""

    machine: Machine
    order: RescaleAnnounced | None
    rows: tuple[TracedRow, ...]
    answer: Interrogated | Collected | None = None


class JoinWorld:
    """The old owner with its two inputs."""

    def __init__(self, rulebook: Rulebook, distributors: int) -> None:
        before = VnodeMap(MapVersion(0), (OLD,))
        after = VnodeMap(MapVersion(1), (NEW,))
        order = RescaleAnnounced(before=before, after=after, old=(OLD, NEW), new=(OLD, NEW))
        rows = (
            TracedRow(KEY, WorkerId(10), 1),
            TracedRow(KEY, WorkerId(11), 1),
        )  # the inputs are told apart as origins
        served = [rows] if distributors == 1 else [rows[:1], rows[1:]]
        self.inputs = [_Input(rulebook.machine(OLD, before, 1), order, mine) for mine in served]
        self.sealed = False

    def copy(self) -> "JoinWorld":
        other = copy.copy(self)
        other.inputs = [copy.copy(each) for each in self.inputs]
        for each in other.inputs:
            each.machine = copy.copy(each.machine)
        return other

    def possible(self) -> list[tuple[int, Event, str]]:
        """By distributor: what can happen to it next, and in words."""
        steps: list[tuple[int, Event, str]] = []
        for number, each in enumerate(self.inputs):
            if each.order is not None:
                steps.append((number, each.order, "hears of the rescale"))
            if each.rows:
                steps.append((number, RowsArrived(rows=ModelRows.of(each.rows[0])), f"has a row: {each.rows[0]}"))
            if each.answer is not None:
                steps.append((number, each.answer, "is answered by the operators"))
            elif each.machine.can_collect:
                steps.append((number, CollectAsked(keys_max=1), "collects the key"))
        return steps

    def take(self, number: int, event: Event) -> None:
        """One step. Raises ``ProtocolViolation`` for a row that meets operators whose state was collected."""
        mine = self.inputs[number]
        match event:
            case RescaleAnnounced():
                mine.order = None
            case RowsArrived():
                mine.rows = mine.rows[1:]
            case Interrogated() | Collected():
                mine.answer = None
            case _:
                pass
        for action in mine.machine.step(event):
            self._carry_out(mine, action)

    def _carry_out(self, mine: _Input, action: Action) -> None:
        match action:
            case PassDown(rows=ModelRows(items=items), rule=rule) if self.sealed:
                raise ProtocolViolation(
                    NodeKind.SPLIT, f"{items[0]} was applied by rule {rule} after its key was collected", rule
                )
            case Interrogate():
                mine.answer = Interrogated(keys=KEYS[: 1 - self.sealed])
            case Collect(keys=keys):
                self.sealed = True
                mine.answer = Collected(keys=keys, state=())
            case Drop():
                self.sealed = True  # the key is the new owner's for good
            case _:
                pass


def search_join(rulebook: Callable[[], Rulebook], distributors: int) -> tuple[int, list[str]]:
    """All ways it can go: how many were tried, and a shortest one that splits the key's state, in words, or none."""
    frontier: deque[tuple[JoinWorld, list[str]]] = deque([(JoinWorld(rulebook(), distributors), [])])
    tried = 0
    while frontier:
        world, story = frontier.popleft()
        for number, event, words in world.possible():
            tried += 1
            after = world.copy()
            line = f"distributor {number + 1} {words}"
            try:
                after.take(number, event)
            except ProtocolViolation as violation:
                return tried, [*story, line, str(violation)]
            frontier.append((after, [*story, line]))
    return tried, []
