"""The rescales that wait for their turn, in the order in which they were asked for (M9)."""

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.rescale_protocol import QUEUE_REQUESTS_MAX
from upriver.errors import DeclarationError
from upriver.protocol.coordinator_events import Outcome, RescaleEnded, RescaleWanted
from upriver.protocol.strategies import Strategy


class RescaleQueue:
    """Those whose turn has not come."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: list[RescaleWanted] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: RescaleWanted) -> None:
        """Or refuse it, if it cannot be or there is no room."""
        if request.strategy is Strategy.LEARNER and request.moves is not None:
            self.refuse(request, "strategy 'learner' finds the places of slices by itself: give a number of workers")
        elif len(self._waiting) >= QUEUE_REQUESTS_MAX:
            self.refuse(request, f"{QUEUE_REQUESTS_MAX} rescales wait already")
        else:
            self._waiting.append(request)

    def take(self) -> RescaleWanted:
        """The one whose turn has come."""
        return self._waiting.pop(0)

    def drop(self, ticket: int) -> bool:
        """It is not wanted any more; whether it has waited."""
        left = [request for request in self._waiting if request.ticket != ticket]
        has_waited, self._waiting = len(left) < len(self._waiting), left
        if has_waited:
            self._cluster.actions.append(RescaleEnded(ticket=ticket, outcome=Outcome.ABORTED, vnodes=0))
        return has_waited

    def refuse(self, request: RescaleWanted, why: str) -> None:
        """What has not begun will not."""
        error = DeclarationError(why)
        refused = RescaleEnded(ticket=request.ticket, outcome=Outcome.REFUSED, vnodes=0, error=error)
        self._cluster.actions.append(refused)
