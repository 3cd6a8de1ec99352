"""What people are told of the river: as the coordinator machine has it, in plain dicts."""

from collections.abc import Iterable, Mapping
from typing import Any

from upriver.coordinator.cluster import Member
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.restarts import PlaceHistory
from upriver.ids import Epoch, WorkerId
from upriver.plan.graph import DataflowPlan
from upriver.state.failure import ViewFailure

_IN_USERS_WORDS = {
    "held": "state_rows",
    "gathered": "waiting_rows",
    "live_bytes": "used_bytes",
    "present": "cached_keys",
    "pending": "filling_keys",
    "resting": "intermediate_keys",
}
"""What users are told instead of the names that workers have for these numbers; docs/status.md says what each is."""

_NEVER_LOST = PlaceHistory()


def river_status(
    machine: CoordinatorMachine,
    addresses: Mapping[WorkerId, str],
    ended: Epoch,
    histories: Mapping[WorkerId, PlaceHistory],
) -> dict[str, Any]:
    """Epochs, workers, who stands by, and what the views hold, as last reported. addresses: of workers that are up.
    ended: the last epoch that has, everywhere. histories: of the workers' places."""
    members, leader = machine.members, machine.leader
    vnode_map = machine.vnode_map  # one, for vnodes that change hands are to be counted once
    workers = [
        {
            "worker": int(worker),
            "address": addresses.get(worker),
            "epoch": int(members[worker].finished) if worker in members else None,
            "vnodes": len(vnode_map.vnodes_of_worker(worker)),
            "bytes": _bytes(members[worker]) if worker in members else None,
            "held_up": members[worker].held_up if worker in members else None,
            "restarts": histories.get(worker, _NEVER_LOST).restarts,
            "last_failure": histories.get(worker, _NEVER_LOST).last_failure,
        }
        for worker in sorted({*machine.cluster.workers, *leader.vacant, *members})
    ]
    return {
        "epoch": int(ended),
        "published": int(machine.published),
        "workers": workers,
        "map_version": int(vnode_map.version),
        "views": {
            plan.name: {
                **_state(plan.name, machine.cluster.failed.get(plan.name), members.values()),
                **_total(plan, members.values()),
            }
            for plan in machine.plans
        },
        "standbys": dict(leader.standing()),
    }


def _state(view: str, failure: ViewFailure | None, members: Iterable[Member]) -> Mapping[str, str | None]:
    """state: running or failed. error: why it has failed, or why the last key of a partial view could not be filled, in
    one line."""
    unfilled = [member.unfilled[view] for member in members if view in member.unfilled]
    why = failure or next(iter(unfilled), None)
    error = None if why is None else " ".join(f"{why.kind}: {why.error}".split())
    return {"state": "running" if failure is None else "failed", "error": error}


def _bytes(member: Member) -> int:
    """What a worker keeps of all views; it is to be within its budget."""
    return sum(int(of_one["bytes"]) for of_one in member.stats.values())


def _total(plan: DataflowPlan, members: Iterable[Member]) -> Mapping[str, int]:
    """The numbers that the workers report of all regions of a view, added up. Rows and keys are the last one's: those
    before it say that they have none."""
    total = {"rows": 0, "keys": 0, "bytes": 0}
    for member in members:
        for region in plan.spread:
            for name, number in member.stats.get(region.name, {}).items():
                told = _IN_USERS_WORDS.get(name, name)
                total[told] = total.get(told, 0) + int(number)
    return total
