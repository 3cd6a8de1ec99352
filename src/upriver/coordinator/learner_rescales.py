"""The stages of a rescale by learners, from when all have met until who leaves has retired. Document 002.

The leader's rounds move slices one by one, while everything goes on. Then who stays meets without the leavers, so that
nobody misses them.
"""

from upriver.coordinator.cluster import Cluster
from upriver.coordinator.leader import Leader
from upriver.coordinator.meetings import Meetings
from upriver.coordinator.rescale_protocol import Plan
from upriver.coordinator.rescale_stages import Learning, Parting
from upriver.coordinator.scans import Scans
from upriver.protocol.coordinator_events import Outcome
from upriver.protocol.messages import Retire
from upriver.protocol.strategies import Strategy


class LearnerRescales:
    """Goes from stage to stage; which one it is at, its caller keeps."""

    def __init__(self, cluster: Cluster, scans: Scans, meetings: Meetings, leader: Leader) -> None:
        self._cluster = cluster
        self._scans = scans
        self._meetings = meetings
        self._leader = leader

    def begin(self, plan: Plan) -> Learning:
        self._leader.learn(set(plan.old) - set(plan.new))
        return Learning(self._cluster.reading, plan.joining, Outcome.FINISHED)

    def abort(self, stage: Learning) -> Learning:
        """Who has come is to leave again, and what has moved to others that stay is as good there."""
        self._leader.learn(stage.joining)
        return Learning(stage.before, stage.joining, Outcome.ABORTED)

    def advance(self, stage: Learning | Parting) -> Learning | Parting | None:
        """The stage after this one, or this one as long as its time has not come; ``None`` when all is over."""
        match stage:
            case Learning() if self._may_part():
                return self._part(stage)
            case Parting(leavers=leavers) if self._meetings.is_over:
                for leaver in leavers:
                    self._cluster.tell(leaver, Retire())
                self._leader.stop_learning()
                return None
        return stage

    def _may_part(self) -> bool:
        """Whether who leaves has nothing any more, and nothing is under way."""
        has_learned = self._leader.has_learned and self._meetings.have_all_met
        return has_learned and self._cluster.is_quiet() and self._scans.is_idle

    def _part(self, stage: Learning) -> Parting:
        cluster, leaving = self._cluster, self._leader.leaving
        leavers = [cluster.members.pop(worker) for worker in sorted(leaving & cluster.members.keys())]
        cluster.workers = tuple(worker for worker in cluster.workers if worker not in leaving)
        if leavers:
            cluster.has_lost_changes = True
            self._meetings.call(Strategy.ICADD, None)
        return Parting(stage.before, stage.outcome, tuple(leavers))
