"""One step of a distributor in the making: who acts, and the actions so far."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from upriver.ids import MapVersion, WorkerId
from upriver.migration.actions import Action, PassDown, Rule, Send
from upriver.migration.messages import Message, Rows, RowsSent
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.state.vectors import Mask

Workers = npt.NDArray[np.integer[Any]]
"""A worker per row."""


@dataclass(slots=True)
class Turn:
    """``me`` acts by ``rules``; ``actions`` come out in order. together: keys for which slices are given together."""

    me: WorkerId
    rules: MendedRules = ALL_RULES
    together: int = 1
    actions: list[Action] = field(default_factory=list)

    def say(self, action: Action) -> None:
        self.actions.append(action)

    def send(self, to: WorkerId, message: Message) -> None:
        self.actions.append(Send(to=to, message=message))

    def pass_down(self, rows: Rows, mask: Mask, rule: Rule) -> None:
        """The masked rows go to the operators here."""
        if mask.any():
            self.say(PassDown(rows=rows.filtered(mask), rule=rule))

    def send_rows(self, version: MapVersion, rows: Rows, mask: Mask, targets: Workers) -> None:
        """Each masked row goes to its target; targets: per row of ``rows``."""
        if mask.any():
            for target in np.unique(targets[mask]).tolist():
                there = rows.filtered(mask & (targets == target))
                self.send(WorkerId(target), RowsSent(version=version, rows=there))
