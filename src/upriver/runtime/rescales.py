"""Requests for rescales from other threads, and what is known of each rescale."""

import threading
from collections.abc import Callable
from typing import Any

from upriver.errors import UserError
from upriver.ids import WorkerId
from upriver.lake.control import RescaleCost
from upriver.protocol.coordinator_events import AbortWanted, LeaversOverdue, RescaleBegun, RescaleEnded, RescaleWanted
from upriver.protocol.messages import FromWorker, Moved, OfShare, TookOver, WorkerLoad
from upriver.runtime.coordinator_requests import AppFailure, CoordinatorInbox
from upriver.runtime.status import RescaleReports


class Rescales:
    """Called by any thread.

    changed: announces each change. leavers_s: seconds for which a rescale by learners waits for workers that leave;
    ``None``: as long as it takes. handed_over: as of :class:`RescaleReports`.
    """

    def __init__(
        self,
        changed: threading.Condition,
        failure: AppFailure,
        inbox: CoordinatorInbox,
        leavers_s: float | None,
        handed_over: Callable[[], int],
    ) -> None:
        self._changed = changed
        self._failure = failure
        self._inbox = inbox
        self._leavers_s = leavers_s
        self._reports = RescaleReports(changed.notify_all, handed_over)
        self._waits_for: str | None = None

    def request(self, wanted: RescaleWanted) -> None:
        """Request a rescale. Its report says if anything is wrong with it."""
        with self._changed:
            self._reports.wanted(wanted)
        self._inbox.put(wanted)

    def workers_wanted(self) -> int | None:
        """As :meth:`RescaleReports.workers_wanted`."""
        with self._changed:
            return self._reports.workers_wanted()

    def abort(self, ticket: int) -> None:
        """Raises UserError for a ticket that is not known; a rescale that is over stays over."""
        with self._changed:
            self._reports.case(ticket)
        self._inbox.put(AbortWanted(ticket=ticket))

    def progress(self, ticket: int, unless: str | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        """How far a rescale is. While its state is ``unless``, wait for another state, at most ``wait_s`` seconds.

        Raises UserError for a ticket that is not known, and the failure if the app has failed.
        """
        with self._changed:
            self._failure.wait_for(lambda: self._reports.case(ticket).state != unless, wait_s)
            return self._reports.progress(self._reports.case(ticket))

    def report(self, ticket: int) -> dict[str, Any]:
        """The report of a rescale. Raises UserError if it is not over, or the ticket is not known."""
        with self._changed:
            case = self._reports.case(ticket)
            if not case.is_over:
                raise UserError(f"rescale {ticket} is not over: it is {case.state}")
            return case.report()

    def strategy(self, ticket: int) -> str:
        """The strategy of a rescale. Raises UserError for a ticket that is not known."""
        with self._changed:
            return str(self._reports.case(ticket).wanted.strategy)

    def cost(self, ticket: int) -> RescaleCost:
        """What a rescale has cost up to now. Raises UserError for a ticket that is not known."""
        with self._changed:
            case = self._reports.case(ticket)
            seconds, keys = round(case.seconds(), 3), case.total("keys")
            return RescaleCost(seconds=seconds, moved_keys=keys, moved_bytes=case.total("bytes"))

    def status(self) -> dict[str, Any]:
        """As :meth:`RescaleReports.status`."""
        with self._changed:
            return self._reports.status()

    def outcomes(self) -> dict[str, int]:
        """How many rescales have ended since the start, by outcome."""
        with self._changed:
            return dict(self._reports.outcomes)

    def hear(self, worker: WorkerId | None, message: FromWorker) -> None:
        """A worker has sent a message; most are not about rescales. worker: ``None`` if its channel has closed."""
        match message:
            case OfShare(message=Moved() as moved) if worker is not None:
                with self._changed:
                    self._reports.moved(worker, moved)
            case WorkerLoad() if worker is not None:
                with self._changed:
                    self._reports.took_load(worker, message)
            case OfShare(flow=flow, message=TookOver() as handed):
                with self._changed:
                    self._reports.took_over(flow, handed)

    def waits(self, waits_for: str | None) -> None:
        """What the current rescale waits for by now. Called by the coordinator's thread only."""
        if waits_for != self._waits_for:
            self._waits_for = waits_for
            with self._changed:
                self._reports.waits(waits_for)

    def begun(self, action: RescaleBegun) -> None:
        """The coordinator has begun with a rescale."""
        with self._changed:
            self._reports.begun(action)
        if self._leavers_s is not None:
            self._inbox.put_later(self._leavers_s, LeaversOverdue(ticket=action.ticket))

    def ended(self, action: RescaleEnded) -> None:
        """A rescale is over."""
        with self._changed:
            self._reports.ended(action)
