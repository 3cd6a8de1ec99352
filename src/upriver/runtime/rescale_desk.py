"""What people are told of rescales: how far each is, and what it has cost. Kept beside the coordinator machine.

The machine decides; workers report how far they are; this adds it all up, and looks at the clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from upriver.errors import UserError
from upriver.ids import WorkerId
from upriver.protocol.coordinator_events import RescaleBegun, RescaleEnded, RescaleWanted
from upriver.protocol.messages import Moved, Strain
from upriver.protocol.standby_messages import TookOver

REPORTS_KEPT_MAX = 1000
"""Rescales that are over and still known; the oldest are forgotten first."""

NOTHING = TookOver(vnodes=0, keys=0, bytes=0)
QUEUED, STARTING, MOVING = "queued", "starting", "moving"


@dataclass(slots=True)
class Case:
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
    moved: dict[tuple[WorkerId, str], Moved] = field(default_factory=dict)
    strain: dict[WorkerId, Strain] = field(default_factory=dict)
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
        """Since it began."""
        if self.state == QUEUED:
            return 0.0
        return self.ended_s if self.is_over else time.monotonic() - self.began

    def progress(self) -> dict[str, Any]:
        keys, left = self.total("keys"), 0 if self.is_over else self.total("keys_left")
        seconds = self.seconds()
        if self.handed.vnodes and not self.is_over:
            left = keys * max(0, self.vnodes - self.handed.vnodes) // self.handed.vnodes
        heard = len({worker for worker, _ in self.moved}) >= (self.before or 0)
        vnodes_left = max((self._vnodes_left(view) for _, view in self.moved), default=0) if heard else self.vnodes
        vnodes_left -= min(vnodes_left, self.handed.vnodes)
        return {
            **self._named(),
            "state": self.state,
            "vnodes_moving": self.vnodes,
            "vnodes_moved": self.vnodes_moved if self.is_over else max(0, self.vnodes - vnodes_left),
            "keys_moved": keys,
            "keys_left": left,
            "bytes_moved": self.total("bytes"),
            "bytes_left": self.total("bytes") * left // keys if keys else 0,
            "seconds": round(seconds, 3),
            "seconds_left": round(seconds * left / keys, 3) if keys and not self.is_over else None,
            "workers": [self._of_worker(*at) for at in sorted(self.moved)],
            "error": self.error,
        }

    def _named(self) -> dict[str, Any]:
        """Which rescale it is, for what is told of it."""
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
            "max_hold_ms": round(max((strain.hold_ms for strain in self.strain.values()), default=0.0), 3),
            "max_stall_ms": round(max((strain.stall_ms for strain in self.strain.values()), default=0.0), 3),
            "rows_forwarded": self.total("forwarded"),
            "rows_bounced": self.total("bounced"),
            "error": self.error,
        }


class RescaleDesk:
    """Knows every rescale that was asked for. Its caller sees to it that one thread at a time is here.

    changed: called when a rescale's state has become another one.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._cases: dict[int, Case] = {}
        """In the order in which they were asked for."""

    def wanted(self, event: RescaleWanted) -> None:
        over = [ticket for ticket, case in self._cases.items() if case.is_over]
        for ticket in over[: max(0, len(self._cases) + 1 - REPORTS_KEPT_MAX)]:
            del self._cases[ticket]
        self._cases[event.ticket] = Case(event)

    def begun(self, action: RescaleBegun) -> None:
        case = self._cases[action.ticket]
        case.before, case.after, case.vnodes, case.began = action.before, action.after, action.vnodes, time.monotonic()
        self._stands(case, STARTING)

    def workers_wanted(self) -> int | None:
        """How many workers there will be when all that was asked for is done; ``None``: as many as there are."""
        wanted = [case.wanted.workers for case in self._cases.values() if not case.is_over]
        return next((workers for workers in reversed(wanted) if workers is not None), None)

    def moved(self, worker: WorkerId, message: Moved) -> None:
        """A worker is that far."""
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

    def strained(self, worker: WorkerId, message: Strain) -> None:
        case = self.on()
        if case is not None:
            before = case.strain.get(worker, message)
            stall_ms, hold_ms = max(before.stall_ms, message.stall_ms), max(before.hold_ms, message.hold_ms)
            case.strain[worker] = Strain(stall_ms=stall_ms, hold_ms=hold_ms)

    def ended(self, action: RescaleEnded) -> None:
        case = self._cases[action.ticket]
        case.ended_s, case.vnodes_moved = case.seconds(), action.vnodes
        case.error = None if action.error is None else str(action.error)
        self._stands(case, str(action.outcome))

    def _stands(self, case: Case, state: str) -> None:
        if case.state != state:
            case.state = state
            self._changed()

    def on(self) -> Case | None:
        """The rescale that is on."""
        return next((case for case in self._cases.values() if case.is_on), None)

    def status(self) -> dict[str, Any]:
        """rescale: how far the one that is on is. rescales_waiting: how many have not begun."""
        case, waiting = self.on(), sum(case.state == QUEUED for case in self._cases.values())
        return {"rescale": case.progress() if case else None, "rescales_waiting": waiting}

    def case(self, ticket: int) -> Case:
        """Raises UserError for a ticket that is not known."""
        if ticket not in self._cases:
            raise UserError(f"there is no rescale {ticket}, or it is long over")
        return self._cases[ticket]
