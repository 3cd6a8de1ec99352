"""One step of a redistribute machine in the making."""

from dataclasses import dataclass

from upriver.ids import WorkerId
from upriver.migration.redistribute_messages import RedistributeMessage
from upriver.migration.redistribute_rules import ALL_ON, RedistributeRules
from upriver.migration.turn import Turn


@dataclass(slots=True)
class RedistributeTurn(Turn):
    """A turn that goes by the rules of redistribute: ``by``."""

    by: RedistributeRules = ALL_ON

    def tell(self, to: WorkerId, message: RedistributeMessage) -> None:
        self.send(to, message)
