"""Rows that go down right after each other are taken in together: few rows cost operators nearly as much as more."""

from collections.abc import Sequence
from itertools import groupby

from upriver.engine.operators.consolidate import concatenated
from upriver.ids import Epoch
from upriver.migration.actions import Action, PassDown
from upriver.protocol.peers import Portion


def joined(actions: Sequence[Action]) -> list[Action]:
    """The same, with neighbours of one epoch and one port as one, in their order; it has the rule of the first.

    While a slice moves, two rules send the rows of a batch down: of the slice, and of all others.
    """
    found: list[Action] = []
    for place, run in groupby(actions, _place):
        alike = list(run)
        found += alike if place is None else [_as_one(alike, *place)]
    return found


def _place(action: Action) -> tuple[Epoch, int] | None:
    """Of which epoch, and at which port, rows come in; ``None`` for all else."""
    match action:
        case PassDown(rows=Portion(epoch=epoch, port=port)):
            return epoch, port
    return None


def _as_one(alike: Sequence[Action], epoch: Epoch, port: int) -> PassDown:
    downs = [action for action in alike if isinstance(action, PassDown)]
    batches = [down.rows.batch for down in downs if isinstance(down.rows, Portion)]
    return PassDown(rows=Portion(epoch, port, concatenated(batches)), rule=downs[0].rule)
