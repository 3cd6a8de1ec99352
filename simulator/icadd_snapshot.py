"""A snapshot by aligned barriers in the migration model (fault R11): the cluster has none, the document's readers do.

Once every worker has settled, each sends a barrier behind its last row to every peer. A worker that has a peer's
barrier reads no further from it, and takes its snapshot when it has all. A snapshot is right if it holds, of every
origin, all and only the rows ahead of its barrier.
"""

from simulator.icadd_node import NodeKind, NodePart, ProtocolViolation
from simulator.icadd_rows import TracedRow
from simulator.icadd_scenario import Rulebook, Scenario
from simulator.icadd_world import IcaddStep, IcaddWorld
from upriver.ids import WorkerId
from upriver.migration.events import Rule


class SnapshotWorld(IcaddWorld):
    """A world whose members take one snapshot of its last region after the rescale.

    ahead: per channel with a barrier in it, how many messages are ahead of that. came: for each worker, the peers whose
    barrier it has. cuts: rows of its own upstream ahead of each worker's barrier. snapped: the workers that have taken
    their snapshot.
    """

    def __init__(self, scenario: Scenario, rulebook: Rulebook) -> None:
        super().__init__(scenario, rulebook)
        self._region = tuple(scenario.maps)[-1]
        self.ahead: dict[tuple[WorkerId, WorkerId], int] = {}
        self.came: frozenset[tuple[WorkerId, WorkerId]] = frozenset()
        self.cuts: dict[WorkerId, int] = {}
        self.snapped: frozenset[WorkerId] = frozenset()

    def copy(self) -> "SnapshotWorld":
        other = super().copy()
        assert isinstance(other, SnapshotWorld)
        other.ahead, other.cuts = dict(self.ahead), dict(self.cuts)
        return other

    def state(self) -> int:
        barriers = frozenset(self.ahead.items()), frozenset(self.cuts.items()), self.came, self.snapped
        return hash((super().state(), barriers))

    def possible(self) -> list[IcaddStep]:
        steps = [step for step in super().possible() if not self._waits_for_barriers(step)]
        if self.coordinator.announced is None and self.asked == len(self.scenario.requests):
            steps += [IcaddStep("barrier", worker) for worker in self.scenario.workers if worker not in self.cuts]
        steps += [IcaddStep("align", to, peer=sender) for (sender, to), ahead in self.ahead.items() if not ahead]
        return steps

    def _waits_for_barriers(self, step: IcaddStep) -> bool:
        if step.worker in self.snapped:
            return False
        if step.kind == "input":
            return step.worker in self.cuts and step.region == self._region
        return step.kind == "receive" and (
            self.ahead.get((step.peer, step.worker)) == 0 or (step.worker, step.peer) in self.came
        )

    def take(self, step: IcaddStep) -> None:
        if step.kind == "barrier":
            self._send_barrier(step.worker)
        elif step.kind == "align":
            del self.ahead[step.peer, step.worker]
            self._barrier_came(step.worker, step.peer)
        else:
            if step.kind == "receive" and (step.peer, step.worker) in self.ahead:
                self.ahead[step.peer, step.worker] -= 1
            super().take(step)

    def _send_barrier(self, worker: WorkerId) -> None:
        self.cuts[worker] = self.parts[worker, self._region].position
        for peer in self.scenario.workers:
            if peer != worker:
                self.ahead[worker, peer] = len(self.channels.get((worker, peer), ()))
        self._barrier_came(worker, worker)

    def _barrier_came(self, worker: WorkerId, origin: WorkerId) -> None:
        self.came |= {(worker, origin)}
        if all((worker, peer) in self.came for peer in self.scenario.workers):
            self.snapped |= {worker}

    def _apply(self, step: IcaddStep, part: NodePart, item: TracedRow, rule: Rule) -> None:
        """CUT: the row's origin has put it on the other side of its barrier than this worker does."""
        if step.region != self._region:
            return super()._apply(step, part, item, rule)
        position = self.input_of(item.origin, step.region).index(item)
        in_snapshot = step.worker not in self.snapped
        if item.origin in self.cuts and in_snapshot != (position < self.cuts[item.origin]):
            side = "ahead of" if in_snapshot else "behind"
            where = f"{item} was applied at {step.worker} by rule {rule} {side} its snapshot"
            raise ProtocolViolation(
                NodeKind.CUT, f"{where}; in its origin it is on the other side of the barrier", rule
            )
        return super()._apply(step, part, item, rule)


def new_world(scenario: Scenario, rulebook: Rulebook) -> IcaddWorld:
    """The world of this scenario at its beginning."""
    return SnapshotWorld(scenario, rulebook) if scenario.snapshot else IcaddWorld(scenario, rulebook)
