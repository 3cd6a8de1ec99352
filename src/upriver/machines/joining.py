"""Rows that go down right after each other are taken in together: few rows cost operators nearly as much as more."""

from collections.abc import Sequence
from dataclasses import replace

from upriver.dataflow.operators.consolidate import concatenated
from upriver.machines.peers import Portion
from upriver.migration.actions import Action, PassDown


def joined(actions: Sequence[Action]) -> list[Action]:
    """The same, with neighbours of one epoch and one port as one, in their order; it has the rule of the first.

    While a slice moves, two rules send the rows of a batch down: of the slice, and of all others.
    """
    found: list[Action] = []
    for action in actions:
        both = _as_one(found[-1], action) if found else None
        if both is None:
            found.append(action)
        else:
            found[-1] = both
    return found


def _as_one(first: Action, second: Action) -> PassDown | None:
    match first, second:
        case PassDown(rows=Portion() as one), PassDown(rows=Portion() as other):
            if (one.epoch, one.port) == (other.epoch, other.port):
                return replace(first, rows=replace(one, batch=concatenated([one.batch, other.batch])))
    return None
