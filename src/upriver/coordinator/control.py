"""Control records: what the coordinator has written to the lake for the next driver (rules control.*).

Theory of operation. The leader of document 002 remembers the last assignment, and forgets it when it crashes. The
coordinator's memory is in the lake. A record has the placement in force, and the placement that a rescale leads to. A
rescale begins when the record that says so is written, and its clients hear of its end when that is recorded, too. So
whatever clients have heard, the next driver knows. A shell writes the records, in order, while everything else goes on.

``docs/internals/membership.md``.
"""

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.rescale.plan import RescalePlan, first
from upriver.ids import WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, WriteControl
from upriver.vnodes import Placement

WORKERS_DEFAULT = 2
"""Workers of an app on a new lake, unless the user says otherwise."""


def placement_at_start(recorded: Placement | None, workers: int | None, vnodes: int) -> Placement:
    """What a driver begins with. recorded: what the last one has left; ``None`` on a new lake. workers: how many the
    user wants; ``None``: as many as there were. Raises DeclarationError for an impossible number."""
    if recorded is not None:
        return recorded if workers is None else recorded.resized(workers)
    return Placement.initial(vnodes, min(WORKERS_DEFAULT, vnodes) if workers is None else workers)


class Control:
    """The records of one driver. through: the number of the last one that is written."""

    def __init__(self, cluster: Cluster) -> None:
        self.through = 0
        self._cluster = cluster
        self._number = 0
        self._seen: tuple[Placement, frozenset[WorkerId], tuple[DataflowPlan, ...]] | None = None
        """What ``see`` has recorded last."""
        self._untold: list[tuple[int, RescaleEnded]] = []
        """Ended rescales, each with the number of the record that says so; their clients have not heard of it."""

    def see(self, vacant: frozenset[WorkerId]) -> None:
        """No rescale is on: record the placement or the views if they have changed. vacant: places that wait for a new
        worker, and whose vnodes other workers have taken over."""
        cluster = self._cluster
        if self._seen is None and not cluster.places.is_filled():
            return  # this driver has not got its workers yet: the last driver's record counts
        now = Placement(cluster.workers, cluster.vnode_map), vacant, cluster.plans
        if now != self._seen:
            self._seen = now
            self._write(target=self._filled(now[0], vacant))

    @staticmethod
    def _filled(placement: Placement, vacant: frozenset[WorkerId]) -> Placement | None:
        """The placement when the vacant places are filled; ``None`` without any."""
        workers = tuple(sorted({*placement.workers, *vacant}))
        return Placement(workers, placement.vnode_map.rebalanced(workers)) if vacant else None

    def begin(self, plan: RescalePlan, begun: RescaleBegun) -> int:
        """Record that a rescale begins, and what it leads to. Returns the record's number."""
        target = Placement(plan.new, first(plan.after))
        return self._write(Placement(plan.old, first(plan.before)), target, begins=begun)

    def abandon(self, plan: RescalePlan) -> None:
        """Record that a rescale that goes on leads back to the workers that there were before."""
        placement = Placement(self._cluster.workers, self._cluster.reading)
        self._write(placement, Placement(plan.old, first(plan.before)))

    def end(self, ended: RescaleEnded) -> None:
        """Record that a rescale has ended, and with what placement; then tell its clients."""
        number = self._write(ends=ended)
        if self._cluster.rules.control_record_before_end:  # control.record_before_end
            self._untold.append((number, ended))
        else:
            self._cluster.act(ended)

    def _write(
        self,
        placement: Placement | None = None,
        target: Placement | None = None,
        begins: RescaleBegun | None = None,
        ends: RescaleEnded | None = None,
    ) -> int:
        self._number += 1
        placement = placement or Placement(self._cluster.workers, self._cluster.vnode_map)
        record = WriteControl(number=self._number, placement=placement, target=target, begins=begins, ends=ends)
        self._cluster.act(record)
        return self._number

    def written(self, number: int) -> None:
        """This record is in the lake."""
        self.through = max(self.through, number)
        self._tell(number)

    def unwritten(self, number: int) -> None:
        """The lake does not take this record. What has ended has ended all the same."""
        self._tell(number)

    def _tell(self, number: int) -> None:
        self._cluster.act(*(ended for at, ended in self._untold if at <= number))
        self._untold = [(at, ended) for at, ended in self._untold if at > number]
