"""What the coordinator logs of the events that it has taken and the actions that it has carried out.

The coordinator's thread calls ``note`` after each step. The machine itself logs nothing.
"""

import logging
import time

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.ids import FlowId
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointReady,
    CoordinatorAction,
    CoordinatorEvent,
    EpochEnded,
    EpochPublished,
    PlansTaken,
    RescaleBegun,
    RescaleEnded,
    RescaleOutcome,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
)
from upriver.protocol.messages import HeldUp, KeysUnfilled, Moved, OfShare, Restored, TookOver
from upriver.runtime.rescales import Rescales

PROGRESS_S = 5.0
"""Seconds between two lines on the progress of a rescale, at least."""

_CHECKPOINTS = logging.getLogger("upriver.checkpoints")
_EPOCHS = logging.getLogger("upriver.epochs")
_RESCALES = logging.getLogger("upriver.rescales")
_VIEWS = logging.getLogger("upriver.views")
_WORKERS = logging.getLogger("upriver.workers")


class CoordinatorJournal:
    """Logs for one coordinator. One thread calls ``note``."""

    def __init__(self, machine: CoordinatorMachine, rescales: Rescales) -> None:
        self._machine = machine
        self._rescales = rescales
        self._failed = dict(machine.cluster.failed)
        self._unplaced: str | None = None
        """Why standbys have no place, as it was last logged."""
        self._broken = machine.broken_links
        """The broken links, as they were last logged."""
        self._progress_at = 0.0
        """When the progress of a rescale was last logged."""

    def note(self, event: CoordinatorEvent, actions: list[CoordinatorAction]) -> None:
        """The machine has taken the event, and these actions are carried out."""
        self._note_event(event)
        for action in actions:
            self._note_action(action)
        failed = self._machine.cluster.failed
        if failed.keys() != self._failed.keys():
            for view in failed.keys() - self._failed.keys():
                why = f"{failed[view].kind}: {failed[view].error}"
                _VIEWS.error("view %s has failed: %s", view, why, extra={"view": view})
            self._failed = dict(failed)
        self._note_standbys()
        self._note_links()

    def _note_links(self) -> None:
        broken = self._machine.broken_links
        if broken == self._broken:
            return
        for one, other in sorted({*broken} - {*self._broken}):
            _WORKERS.warning("workers %d and %d do not reach each other", one, other, extra={"worker": int(one)})
        if not broken:
            _WORKERS.info("all workers reach each other again")
        self._broken = broken

    def _note_standbys(self) -> None:
        why, before = self._machine.leader.why_unplaced, self._unplaced
        if why == before or not self._machine.cluster.has_begun:
            return
        self._unplaced = why
        if why is None:
            _WORKERS.info("standbys have places again")
        else:
            _WORKERS.warning("standbys have no place: %s", why)

    def _note_event(self, event: CoordinatorEvent) -> None:
        match event:
            case WorkerRegistered(worker=worker):
                extra = {"worker": int(worker)}
                _WORKERS.info("worker %d has registered at %s", worker, event.address, extra=extra)
                if event.died_in is not None:
                    flow, epoch = event.died_in
                    said = "worker %d: its last process has died at epoch %d in a step of: %s"
                    _WORKERS.warning(said, worker, epoch, self._views_of(flow), extra=extra)
            case WorkerGone():
                _WORKERS.debug("incarnation %d has gone", event.incarnation)
            case EpochPublished():
                rows = max(event.rows.values(), default=0)
                _EPOCHS.debug("epoch %d is committed: %d rows", event.epoch, rows, extra={"epoch": int(event.epoch)})
            case WorkerSaid():
                self._note_message(event)

    def _note_message(self, event: WorkerSaid) -> None:
        process = self._machine.cluster.places.of_incarnation(event.incarnation)
        worker = -1 if process is None else int(process.worker)
        match event.message:
            case OfShare(flow=flow, message=Restored()):
                extra = {"worker": worker, "flow": int(flow)}
                _WORKERS.info("worker %d has restored its state of %s", worker, self._views_of(flow), extra=extra)
            case HeldUp(error=None):
                _WORKERS.info("worker %d goes on", worker, extra={"worker": worker})
            case HeldUp(error=error):
                _WORKERS.warning("worker %d is held up: %s", worker, error, extra={"worker": worker})
            case OfShare(message=KeysUnfilled(view=view, failure=failure)):
                why = f"{failure.kind}: {failure.error}"
                _VIEWS.warning("view %s: keys could not be filled: %s", view, why, extra={"view": view})
            case OfShare(message=Moved() | TookOver()):
                self._note_progress()

    def _views_of(self, flow: FlowId) -> str:
        found = self._machine.cluster.flows.get(flow)
        return "a flow that is gone" if found is None else ", ".join(plan.name for plan in found.views)

    def _note_progress(self) -> None:
        now = time.monotonic()
        if now < self._progress_at + PROGRESS_S:
            return
        told = self._rescales.status()["rescale"]
        if told is not None:
            self._progress_at = now
            _RESCALES.info(
                "rescale %d: %d of %d vnodes have moved, with %d keys",
                *(told["ticket"], told["vnodes_moved"], told["vnodes_moving"], told["keys_moved"]),
                extra={"ticket": told["ticket"]},
            )

    def _note_action(self, action: CoordinatorAction) -> None:
        match action:
            case EpochEnded(flow=flow, epoch=epoch):
                _EPOCHS.debug("epoch %d has ended: %s", epoch, self._views_of(flow), extra={"epoch": int(epoch)})
            case RescaleBegun(ticket=ticket):
                self._progress_at = time.monotonic()
                moves = (ticket, self._rescales.strategy(ticket), action.before, action.after, action.vnodes)
                _RESCALES.info(
                    "rescale %d by %s begins: %d to %d workers, %d vnodes move", *moves, extra={"ticket": ticket}
                )
            case RescaleEnded():
                self._note_end(action)
            case PlansTaken():
                views = ", ".join(plan.name for plan in self._machine.plans)
                _VIEWS.info("the views have changed; there are: %s", views or "none")
            case CheckpointReady(flow=flow, epoch=epoch):
                views, extra = self._views_of(flow), {"epoch": int(epoch)}
                _CHECKPOINTS.info("the checkpoint of epoch %d is written: %s", epoch, views, extra=extra)
            case CheckpointFailed(flow=flow, epoch=epoch, why=why):
                views, extra = self._views_of(flow), {"epoch": int(epoch)}
                _CHECKPOINTS.warning("the checkpoint of epoch %d is given up: %s: %s", epoch, views, why, extra=extra)

    def _note_end(self, action: RescaleEnded) -> None:
        report, extra = self._rescales.report(action.ticket), {"ticket": action.ticket}
        if action.outcome in (RescaleOutcome.FINISHED, RescaleOutcome.ABORTED):
            moved = (report["moved_vnodes"], report["moved_keys"], report["seconds"])
            _RESCALES.info(
                "rescale %d is %s: %d vnodes and %d keys have moved in %.3g s",
                *(action.ticket, action.outcome, *moved),
                extra=extra,
            )
        else:
            _RESCALES.warning("rescale %d is %s: %s", action.ticket, action.outcome, action.error, extra=extra)
