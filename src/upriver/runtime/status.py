"""The status of the cluster for users, in plain dicts: workers and views, recoveries, rescales.

``Recoveries``: which workers were lost, when, and how long it took until their keys were served again. The coordinator
machine decides; this class looks at it after each step, and at the clock.

``RescaleReports``: how far each rescale is, and what it has cost. The machine decides, and workers report how far they
are; this class adds the reports up, and looks at the clock.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from upriver.coordinator.cluster import Cluster, ServedFlow
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.flow import Member
from upriver.coordinator.restarts import PlaceHistory
from upriver.errors import UserError
from upriver.ids import Epoch, FlowId, Incarnation, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, RescaleWanted
from upriver.protocol.messages import Moved, TookOver, WorkerLoad

_LOG = logging.getLogger("upriver.workers")

RECOVERIES_KEPT_MAX = 20
"""Recoveries that the status has; the oldest are forgotten first."""


@dataclass(slots=True)
class Recovery:
    """A worker was lost, and its slot is filled again. noticed: by the clock. assigned: by flow, which incarnation has
    the slot by now, in which generation, and the epoch that it must reflect before it answers."""

    worker: WorkerId
    noticed: float
    served_again_s: float | None = None
    assigned: dict[FlowId, tuple[Incarnation, int, Epoch]] = field(default_factory=dict)

    def is_over(self, cluster: Cluster) -> bool:
        """Whether lookups of the lost worker's keys are answered again, by every flow."""
        if self.worker not in cluster.workers:  # other workers have taken over, and go on from the last epoch's end
            return all(map(_has_resumed, cluster))
        process = cluster.processes.get(self.worker)
        return process is not None and process.assigned and all(self._serves(flow) for flow in cluster)

    def _serves(self, flow: ServedFlow) -> bool:
        """Whether lookups of the slot's keys are answered again: its share has restored its state, and reflects all
        epochs that were published when it was assigned (worker.wait_for_replay)."""
        member, ledger = flow.members.get(self.worker), flow.ledger
        if member is None:
            return False
        assigned = (member.incarnation, flow.generation.number)
        if self.assigned.get(flow.id, ())[:2] != assigned:
            self.assigned[flow.id] = (*assigned, ledger.published)
        reflected = ledger.through if ledger.is_staged else member.finished
        return member.is_restored and reflected >= self.assigned[flow.id][2]


def _has_resumed(flow: ServedFlow) -> bool:
    """Whether all shares go on after a takeover, and reflect what clients may have seen before."""
    has_resumed = all(member.generation == flow.generation.number for member in flow.by_worker())
    return has_resumed and flow.ledger.through >= flow.generation.serve_from


class Recoveries:
    """The last ``RECOVERIES_KEPT_MAX`` recoveries. One thread calls ``look``, any calls ``status``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._filled: dict[WorkerId, Incarnation] = {}
        """The incarnation in each slot at the last look."""
        self._kept: tuple[Recovery, ...] = ()
        """In the order in which they were noticed. The tuple is replaced, never changed: other threads may read it."""
        self._is_over = False

    def look(self, cluster: Cluster) -> None:
        """The coordinator has made a step."""
        if self._is_over:
            return
        places = {worker: cluster.processes.get(worker) for worker in cluster.workers}
        for worker, before in self._filled.items():
            process = places.get(worker)
            if worker in places and (process is None or process.incarnation != before):
                self._lost(worker)
        self._filled = {worker: process.incarnation for worker, process in places.items() if process is not None}
        for recovery in self._kept:
            if recovery.served_again_s is None and recovery.is_over(cluster):
                recovery.served_again_s = seconds = self._clock() - recovery.noticed
                lost = int(recovery.worker)
                _LOG.info("worker %d: its keys are served again after %.3g s", lost, seconds, extra={"worker": lost})

    def end(self) -> None:
        """The app stops: a worker that goes from now on was told to, and is not replaced."""
        self._is_over = True

    def _lost(self, worker: WorkerId) -> None:
        """A worker that is lost again before it served counts as one, longer recovery."""
        if all(kept.worker != worker or kept.served_again_s is not None for kept in self._kept):
            self._kept = (*self._kept, Recovery(worker, self._clock()))[-RECOVERIES_KEPT_MAX:]

    def status(self) -> list[dict[str, Any]]:
        """Oldest first. noticed_ago_s: seconds since the loss was noticed. served_again_s: seconds from then until the
        worker's keys were served again; ``None`` while they are not."""
        now = self._clock()
        return [
            {
                "worker": int(kept.worker),
                "noticed_ago_s": round(now - kept.noticed, 3),
                "served_again_s": None if kept.served_again_s is None else round(kept.served_again_s, 3),
            }
            for kept in self._kept
        ]


REPORTS_KEPT_MAX = 1000
"""Rescales that are over and still known; the oldest are forgotten first."""

NOTHING = TookOver(vnodes=0, keys=0, bytes=0)
QUEUED, STARTING, MOVING = "queued", "starting", "moving"


@dataclass(slots=True)
class RescaleCase:
    """One rescale. moved: the last report of each worker and view. strain: of each worker."""

    wanted: RescaleWanted
    state: str = QUEUED
    began: float = 0.0
    ended_s: float = 0.0
    """Seconds that it took."""
    before: int | None = None
    after: int | None = None
    vnodes: int = 0
    vnodes_moved: int = 0
    error: str | None = None
    waits_for: str | None = None
    """What it waits for before keys move."""
    moved: dict[tuple[WorkerId, str], Moved] = field(default_factory=dict)
    loads: dict[WorkerId, WorkerLoad] = field(default_factory=dict)
    handed: dict[FlowId, TookOver] = field(default_factory=dict)
    """All that learners have taken over, by flow."""

    @property
    def vnodes_handed(self) -> int:
        """How many vnodes learners have taken over, of every flow."""
        return max((handed.vnodes for handed in self.handed.values()), default=0)

    @property
    def is_on(self) -> bool:
        return self.state in (STARTING, MOVING)

    @property
    def is_over(self) -> bool:
        return not self.is_on and self.state != QUEUED

    def total(self, what: str) -> int:
        """Over all workers and views."""
        moved: int = sum(getattr(moved, what) for moved in self.moved.values())
        handed: int = sum(getattr(handed, what, 0) for handed in self.handed.values())
        return moved + handed

    def seconds(self) -> float:
        """Seconds since it began, at most until it ended."""
        if self.state == QUEUED:
            return 0.0
        return self.ended_s if self.is_over else time.monotonic() - self.began

    def progress(self, handed_over: int = 0) -> dict[str, Any]:
        """handed_over: vnodes that have moved by the map; workers may not have reported all of them."""
        keys, left = self.total("keys"), 0 if self.is_over else self.total("keys_left")
        seconds = self.seconds()
        handed = self.vnodes_handed
        if handed and not self.is_over:
            left = keys * max(0, self.vnodes - handed) // handed
        heard = len({worker for worker, _ in self.moved}) >= (self.before or 0)
        vnodes_left = max((self._vnodes_left(view) for _, view in self.moved), default=0) if heard else self.vnodes
        vnodes_left = max(0, min(vnodes_left - handed, self.vnodes - handed_over))
        if self.vnodes and not vnodes_left:
            left = 0
        return {
            **self._named(),
            "state": self.state,
            "vnodes_moving": self.vnodes,
            "vnodes_moved": self.vnodes_moved if self.is_over else self.vnodes - vnodes_left,
            "keys_moved": keys,
            "keys_left": left,
            "bytes_moved": self.total("bytes"),
            "bytes_left": self.total("bytes") * left // keys if keys else 0,
            "seconds": round(seconds, 3),
            "seconds_left": round(seconds * left / keys, 3) if keys and not self.is_over else None,
            "workers": [self._of_worker(*at) for at in sorted(self.moved)],
            "waits_for": "its turn" if self.state == QUEUED and self.waits_for is None else self.waits_for,
            "error": self.error,
        }

    def _named(self) -> dict[str, Any]:
        """Which rescale it is: the fields that progress and report share."""
        return {
            "ticket": self.wanted.ticket,
            "strategy": str(self.wanted.strategy),
            "from": self.before,
            "to": self.after if self.after is not None else self.wanted.workers,
        }

    def _vnodes_left(self, view: str) -> int:
        return sum(moved.vnodes_left for (_, of), moved in self.moved.items() if of == view)

    def _of_worker(self, worker: WorkerId, view: str) -> dict[str, Any]:
        moved = self.moved[worker, view]
        return {
            "worker": int(worker),
            "view": view,
            "phase": moved.phase,
            "keys_moved": moved.keys,
            "keys_left": moved.keys_left,
            "bytes_moved": moved.bytes,
        }

    def report(self) -> dict[str, Any]:
        return {
            **self._named(),
            "outcome": self.state,
            "moved_keys": self.total("keys"),
            "moved_bytes": self.total("bytes"),
            "moved_vnodes": self.vnodes_moved,
            "seconds": round(self.ended_s, 3),
            "max_hold_ms": round(max((loads.hold_ms for loads in self.loads.values()), default=0.0), 3),
            "max_stall_ms": round(max((loads.stall_ms for loads in self.loads.values()), default=0.0), 3),
            "rows_forwarded": self.total("forwarded"),
            "rows_bounced": self.total("bounced"),
            "error": self.error,
        }


class RescaleReports:
    """Knows every rescale that was requested. The caller makes sure that one thread at a time uses it.

    changed: called when a rescale's state has changed. handed_over: gives the vnodes that have moved by the map in the
    rescale under way.
    """

    def __init__(self, changed: Callable[[], None], handed_over: Callable[[], int] = lambda: 0) -> None:
        self._changed = changed
        self._handed_over = handed_over
        self._cases: dict[int, RescaleCase] = {}
        """In the order of the requests."""
        self.outcomes = Counter[str]()
        """How many have ended, by outcome."""

    def wanted(self, event: RescaleWanted) -> None:
        over = [ticket for ticket, case in self._cases.items() if case.is_over]
        for ticket in over[: max(0, len(self._cases) + 1 - REPORTS_KEPT_MAX)]:
            del self._cases[ticket]
        self._cases[event.ticket] = RescaleCase(event)

    def begun(self, action: RescaleBegun) -> None:
        case = self._cases[action.ticket]
        case.before, case.after, case.vnodes, case.began = action.before, action.after, action.vnodes, time.monotonic()
        self._stands(case, STARTING)

    def waits(self, waits_for: str | None) -> None:
        """What the oldest rescale that is not over waits for by now."""
        case = next((case for case in self._cases.values() if not case.is_over), None)
        if case is not None:
            case.waits_for = waits_for

    def workers_wanted(self) -> int | None:
        """How many workers there will be after all requested rescales; ``None``: as many as there are."""
        wanted = [case.wanted.workers for case in self._cases.values() if not case.is_over]
        return next((workers for workers in reversed(wanted) if workers is not None), None)

    def moved(self, worker: WorkerId, message: Moved) -> None:
        """A worker has reported its progress."""
        case = self.on()
        if case is not None:
            self._stands(case, MOVING)
            case.moved[worker, message.region] = message

    def took_over(self, flow: FlowId, message: TookOver) -> None:
        """A learner has taken slices of a flow over."""
        case = self.on()
        if case is not None:
            self._stands(case, MOVING)
            before = case.handed.get(flow, NOTHING)
            case.handed[flow] = TookOver(
                vnodes=before.vnodes + message.vnodes,
                keys=before.keys + message.keys,
                bytes=before.bytes + message.bytes,
            )

    def took_load(self, worker: WorkerId, message: WorkerLoad) -> None:
        case = self.on()
        if case is not None:
            before = case.loads.get(worker, message)
            stall_ms, hold_ms = max(before.stall_ms, message.stall_ms), max(before.hold_ms, message.hold_ms)
            case.loads[worker] = WorkerLoad(stall_ms=stall_ms, hold_ms=hold_ms)

    def ended(self, action: RescaleEnded) -> None:
        case = self._cases[action.ticket]
        case.ended_s, case.vnodes_moved = case.seconds(), action.vnodes
        case.error, case.waits_for = None if action.error is None else str(action.error), None
        self.outcomes[str(action.outcome)] += 1
        self._stands(case, str(action.outcome))

    def _stands(self, case: RescaleCase, state: str) -> None:
        if case.state != state:
            case.state = state
            self._changed()

    def on(self) -> RescaleCase | None:
        """The rescale under way."""
        return next((case for case in self._cases.values() if case.is_on), None)

    def status(self) -> dict[str, Any]:
        """rescale: the progress of the rescale under way. rescales_waiting: how many have not begun."""
        case, waiting = self.on(), sum(case.state == QUEUED for case in self._cases.values())
        return {"rescale": self.progress(case) if case else None, "rescales_waiting": waiting}

    def progress(self, case: RescaleCase) -> dict[str, Any]:
        """How far a rescale is."""
        return case.progress(self._handed_over() if case.is_on else 0)

    def case(self, ticket: int) -> RescaleCase:
        """Raises UserError for a ticket that is not known."""
        if ticket not in self._cases:
            raise UserError(f"there is no rescale {ticket}, or its report is no longer kept")
        return self._cases[ticket]


_IN_USERS_WORDS = {
    "held": "state_rows",
    "gathered": "waiting_rows",
    "live_bytes": "used_bytes",
    "present": "cached_keys",
    "pending": "filling_keys",
    "resting": "intermediate_keys",
}
"""The status's names of these numbers, by the workers' names; docs/guide/operations.md explains each."""

_NEVER_LOST = PlaceHistory()


def app_status(
    machine: CoordinatorMachine,
    addresses: Mapping[WorkerId, str],
    ended: Epoch,
    histories: Mapping[WorkerId, PlaceHistory],
) -> dict[str, Any]:
    """Epochs, workers, standbys, and what the views hold, as last reported. addresses: of workers that are up. ended:
    the last epoch that has ended at every worker. histories: of the workers' slots."""
    cluster, leader = machine.cluster, machine.leader
    processes, vnode_map = dict(cluster.processes), machine.vnode_map  # one map: each vnode that moves must count once
    shares = {worker: [flow.members[worker] for flow in cluster if worker in flow.members] for worker in processes}
    workers = [
        {
            "worker": int(worker),
            "address": addresses.get(worker),
            "epoch": _least_epoch(shares[worker], ended) if worker in processes else None,
            "vnodes": len(vnode_map.vnodes_of_worker(worker)),
            "bytes": _bytes(shares[worker]) if worker in processes else None,
            "held_up": processes[worker].held_up if worker in processes else None,
            "restarts": histories.get(worker, _NEVER_LOST).restarts,
            "last_failure": histories.get(worker, _NEVER_LOST).last_failure,
        }
        for worker in sorted({*cluster.workers, *leader.vacant, *processes})
    ]
    return {
        "epoch": int(ended),
        "published": int(machine.published),
        "workers": workers,
        "map_version": int(vnode_map.version),
        "views": {plan.name: _view(flow, plan) for flow in cluster for plan in flow.views},
        "standbys": dict(leader.standing()),
        "broken_links": [[int(worker) for worker in ends] for ends in machine.broken_links],
    }


def _least_epoch(shares: Iterable[Member], ended: Epoch) -> int:
    """The epoch that a worker's shares of all flows reflect. ended: without any, the last epoch that has ended."""
    return int(min((share.finished for share in shares), default=ended))


def _view(flow: ServedFlow, plan: DataflowPlan) -> dict[str, Any]:
    """state: building, running or failed. built: the share of the existing rows that it reflects while it is built.
    epoch: the last that the view reflects at every worker. error: why it has
    failed, or why the last key of a partial view could not be filled, in one line."""
    shares, failure = flow.members.copy().values(), flow.failed.get(plan.name)
    unfilled = [share.unfilled[plan.name] for share in shares if plan.name in share.unfilled]
    why = failure or next(iter(unfilled), None)
    return {
        "state": "failed" if failure is not None else "building" if flow.is_building else "running",
        "built": round(flow.built, 3) if flow.is_building else 1.0,
        "epoch": int(flow.ledger.ended),
        "error": None if why is None else " ".join(f"{why.kind}: {why.error}".split()),
        **_in_users_words(view_stats(plan, shares)),
    }


def _bytes(shares: Iterable[Member]) -> int:
    """What a worker keeps of all views; it should be within the worker's budget."""
    return sum(int(of_one["bytes"]) for share in shares for of_one in share.stats.values())


def view_stats(plan: DataflowPlan, shares: Iterable[Member]) -> dict[str, int]:
    """The numbers that the workers report of all regions of a view, added up. Rows and keys are those of the last
    region: the others report that they have none."""
    total = {"rows": 0, "keys": 0, "bytes": 0}
    for share in shares:
        for region in plan.spread:
            for name, number in share.stats.get(region.name, {}).items():
                total[name] = total.get(name, 0) + int(number)
    return total


def _in_users_words(stats: Mapping[str, int]) -> dict[str, int]:
    return {_IN_USERS_WORDS.get(name, name): number for name, number in stats.items()}
