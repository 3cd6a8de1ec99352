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

from upriver.coordinator.cluster import Cluster, Member
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.restarts import PlaceHistory
from upriver.errors import UserError
from upriver.ids import BEGINNING, Epoch, Incarnation, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, RescaleWanted
from upriver.protocol.messages import Moved, TookOver, WorkerLoad
from upriver.state.failure import ViewFailure

_LOG = logging.getLogger("upriver.workers")

RECOVERIES_KEPT_MAX = 20
"""Recoveries that the status has; the oldest are forgotten first."""


@dataclass(slots=True)
class Recovery:
    """A worker was lost, and its slot is filled again. noticed: by the clock. assigned: which incarnation has the slot
    by now, in which generation. serve_from: the epoch that it must reflect before it answers."""

    worker: WorkerId
    noticed: float
    served_again_s: float | None = None
    assigned: tuple[Incarnation, int] | None = None
    serve_from: Epoch = BEGINNING

    def is_over(self, cluster: Cluster, places: Mapping[WorkerId, Member | None]) -> bool:
        """Whether lookups of the lost worker's keys are answered again. places: the member in each slot that takes
        part."""
        if self.worker not in places:  # other workers have taken over, and go on from the last epoch's end
            has_resumed = all(member.generation == cluster.generation.number for member in cluster.by_worker())
            return has_resumed and cluster.ledger.through >= cluster.generation.serve_from
        member = places[self.worker]
        return member is not None and self.serves(cluster, member)

    def serves(self, cluster: Cluster, member: Member) -> bool:
        """Whether lookups of the slot's keys are answered again: its member has restored its state, and reflects all
        epochs that were published when it was assigned (worker.wait_for_replay)."""
        if not member.assigned:
            return False
        ledger, assigned = cluster.ledger, (member.incarnation, cluster.generation.number)
        if self.assigned != assigned:
            self.assigned, self.serve_from = assigned, ledger.published
        reflected = ledger.through if ledger.is_staged else member.finished
        return member.is_restored and reflected >= self.serve_from


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
        places = {worker: cluster.members.get(worker) for worker in cluster.workers}
        for worker, before in self._filled.items():
            member = places.get(worker)
            if worker in places and (member is None or member.incarnation != before):
                self._lost(worker)
        self._filled = {worker: member.incarnation for worker, member in places.items() if member is not None}
        for recovery in self._kept:
            if recovery.served_again_s is None and recovery.is_over(cluster, places):
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
    handed: TookOver = NOTHING
    """All that learners have taken over."""

    @property
    def is_on(self) -> bool:
        return self.state in (STARTING, MOVING)

    @property
    def is_over(self) -> bool:
        return not self.is_on and self.state != QUEUED

    def total(self, what: str) -> int:
        """Over all workers and views."""
        moved: int = sum(getattr(moved, what) for moved in self.moved.values())
        handed: int = getattr(self.handed, what, 0)
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
        if self.handed.vnodes and not self.is_over:
            left = keys * max(0, self.vnodes - self.handed.vnodes) // self.handed.vnodes
        heard = len({worker for worker, _ in self.moved}) >= (self.before or 0)
        vnodes_left = max((self._vnodes_left(view) for _, view in self.moved), default=0) if heard else self.vnodes
        vnodes_left = max(0, min(vnodes_left - self.handed.vnodes, self.vnodes - handed_over))
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

    def took_over(self, message: TookOver) -> None:
        """A learner has taken slices over."""
        case = self.on()
        if case is not None:
            self._stands(case, MOVING)
            before = case.handed
            case.handed = TookOver(
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
    members, leader = machine.members, machine.leader
    vnode_map = machine.vnode_map  # one map: each vnode that changes its owner must count once
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
                **_in_users_words(view_stats(plan, members.values())),
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
    """What a worker keeps of all views; it should be within the worker's budget."""
    return sum(int(of_one["bytes"]) for of_one in member.stats.values())


def view_stats(plan: DataflowPlan, members: Iterable[Member]) -> dict[str, int]:
    """The numbers that the workers report of all regions of a view, added up. Rows and keys are those of the last
    region: the others report that they have none."""
    total = {"rows": 0, "keys": 0, "bytes": 0}
    for member in members:
        for region in plan.spread:
            for name, number in member.stats.get(region.name, {}).items():
                total[name] = total.get(name, 0) + int(number)
    return total


def _in_users_words(stats: Mapping[str, int]) -> dict[str, int]:
    return {_IN_USERS_WORDS.get(name, name): number for name, number in stats.items()}
