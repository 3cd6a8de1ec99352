"""When a copy is ready, and when a worker asks for a round because of it. Document 002: the tag ``isReady``, and
``learner.partial.rebalance`` with its eager and its stable approach."""

from upriver.coordinator.membership.config import MembershipConfig
from upriver.coordinator.membership.group import Group, TaskId
from upriver.ids import WorkerId


def is_ready(task: TaskId, worker: WorkerId, group: Group, config: MembershipConfig) -> bool:
    """Whether the worker's copy is near enough to the active one to take over (rule A2)."""
    lag = group.lag_epochs.get(task, {}).get(worker)
    return lag is not None and lag <= config.acceptable_lag_epochs


def asking_for_a_round(group: Group, config: MembershipConfig) -> frozenset[WorkerId]:
    """The workers that have learners which are ready, and so want a round now (rule A12).

    Eager (the default): one learner is enough. Stable: all that the worker has. A round that is held for another
    reason takes every learner that is ready, whoever has asked.
    """
    learning: dict[WorkerId, list[bool]] = {}
    for task, worker in group.held.learner.items():
        learning.setdefault(worker, []).append(is_ready(task, worker, group, config))
    enough = any if config.learner_partial_rebalance else all
    return frozenset(worker for worker, ready in learning.items() if enough(ready))
