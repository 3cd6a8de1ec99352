"""The driver's part of checkpoints: a thread of its own publishes and sweeps them, and requests them in time."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from itertools import count
from typing import Any, assert_never

from upriver.errors import LakeError, UpriverError, WaitTimeout
from upriver.ids import BEGINNING, Epoch
from upriver.lake.checkpoints import newest_usable, publish, sweep
from upriver.lake.lake import OwnedLake
from upriver.plan.plan import DataflowPlan
from upriver.plan.used_columns import with_used_columns
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointUnpublished,
    CheckpointWanted,
    CoordinatorEvent,
    ForgetCheckpoints,
    PublishCheckpoint,
)
from upriver.protocol.plans import plan_to_json
from upriver.state.checkpoint import Checkpoint
from upriver.state.runs import checksum_of

STATE_FORMAT = 1
"""Format of the regions' state. State in another format is not restored; views are computed anew from the tables."""

CheckpointAction = PublishCheckpoint | CheckpointReady | CheckpointFailed | ForgetCheckpoints
"""What the coordinator wants done about checkpoints."""


def fingerprints(plans: Iterable[DataflowPlan]) -> dict[str, str]:
    """For each region that keeps all keys, a fingerprint of everything but rows that its state depends on: its
    plan, with the types of the columns that it uses."""
    found: dict[str, str] = {}
    for plan in plans:
        if plan.full_because is not None:
            form = plan_to_json(with_used_columns(plan))
            if not plan.functions:
                del form["functions"]  # plans had none, and keep their fingerprints
            if not plan.logs_changes:
                del form["logs_changes"]  # as above
            text = json.dumps([STATE_FORMAT, form], sort_keys=True)
            found |= dict.fromkeys((region.name for region in plan.spread), checksum_of(text.encode()))
    return found


class CheckpointKeeper:
    """Keeps the checkpoints of one lake. The coordinator's thread calls ``carry_out``, any thread may call the rest."""

    def __init__(self, lake: OwnedLake, plans: Iterable[DataflowPlan], interval_s: float | None) -> None:
        """interval_s: seconds from one checkpoint to the next; ``None``: only the coordinator or a caller requests
        them.

        Raises CorruptFile.
        """
        self._lake = lake
        self._interval_s = interval_s
        regions = fingerprints(plans)
        self.found: tuple[Checkpoint, ...] = ()
        """The chain to start from, newest first."""
        self._failed: str | None = None
        if regions:
            self.found, self._failed = newest_usable(lake, regions)
        self._chains = [tuple(checkpoint.epoch for checkpoint in self.found)]
        """The last two usable chains: a worker may still read the one before the last. The thread's own."""
        self._queue: queue.SimpleQueue[tuple[CheckpointAction, tuple[DataflowPlan, ...]] | None] = queue.SimpleQueue()
        self._hear: Callable[[CoordinatorEvent], None] = _discard
        self._thread = threading.Thread(target=self._run, name="upriver-checkpoint-keeper", daemon=True)
        self._tickets = count()
        self._asked: dict[int, Future[Epoch]] = {}
        self._failure: UpriverError | None = None
        """The app's, after which no checkpoint is taken."""
        self._own: int | None = None
        """The ticket of the last checkpoint that the interval requested, until its outcome is known."""
        self._newest = self.found[0].epoch if self.found else BEGINNING

    def start(self, hear: Callable[[CoordinatorEvent], None]) -> None:
        """hear: tells the coordinator."""
        self._hear = hear
        self._sweep(Epoch(self._lake.last_epoch() + 1))  # no worker is writing one
        self._thread.start()

    def take(self, seconds: float) -> Epoch:
        """Take a checkpoint; returns the epoch as of whose end it is. Raises WaitTimeout, and LakeError if it was given
        up; the caller may try again after that."""
        ticket, asker = next(self._tickets), Future[Epoch]()
        self._asked[ticket] = asker
        if self._failure is not None:
            self.fail(self._failure)
        self._hear(CheckpointWanted(ticket=ticket))
        try:
            return asker.result(seconds)
        except FutureTimeout as error:
            raise WaitTimeout(
                f"no checkpoint in {seconds:g} s: a rescale is on, a worker is missing, or there is much to write"
            ) from error
        finally:
            self._asked.pop(ticket, None)

    def fail(self, error: UpriverError) -> None:
        """The app has failed: waiting and later requests raise this error."""
        self._failure = error
        for asker in self._askers(list(self._asked)):
            asker.set_exception(type(error)(*error.args))

    def status(self) -> dict[str, Any]:
        """epoch: of the newest checkpoint, 0 for none. failed: why the last one was given up, if it was."""
        return {"epoch": int(self._newest), "failed": self._failed}

    def carry_out(self, action: CheckpointAction, plans: tuple[DataflowPlan, ...]) -> None:
        """Do what the coordinator wants and report back. plans: its plans at this moment."""
        match action:
            case CheckpointReady(tickets=tickets, epoch=epoch):
                self._newest, self._failed = action.chain[0] if action.chain else BEGINNING, None
                for asker in self._askers(tickets):
                    asker.set_result(epoch)
            case CheckpointFailed(tickets=tickets, epoch=epoch, why=why):
                self._failed = f"epoch {epoch}: {why}"
                for asker in self._askers(tickets):
                    asker.set_exception(LakeError(f"the checkpoint of epoch {epoch} was given up: {why}"))
            case ForgetCheckpoints():
                self._newest = BEGINNING
            case PublishCheckpoint():
                pass
        self._queue.put((action, plans))

    def _askers(self, tickets: Iterable[int]) -> list[Future[Epoch]]:
        tickets = tuple(tickets)
        if self._own in tickets:
            self._own = None
        found = (self._asked.pop(ticket, None) for ticket in tickets)
        return [asker for asker in found if asker is not None]

    def stop(self) -> None:
        """End requests and publishing."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    # On the thread

    def _run(self) -> None:
        due_at = self._next_due()
        while True:
            left_s = None if due_at is None else max(0.0, due_at - time.monotonic())
            try:
                work = self._queue.get(timeout=left_s)
            except queue.Empty:
                due_at = self._next_due()
                self._ask()
                continue
            if work is None:
                return
            self._work(*work)

    def _ask(self) -> None:
        """Request a checkpoint, unless the last one that was requested here has not begun."""
        if self._own is None:
            self._own = next(self._tickets)
            self._hear(CheckpointWanted(ticket=self._own))

    def _next_due(self) -> float | None:
        return None if self._interval_s is None else time.monotonic() + self._interval_s

    def _work(self, action: CheckpointAction, plans: tuple[DataflowPlan, ...]) -> None:
        match action:
            case PublishCheckpoint():
                self._publish(action, plans)
            case CheckpointReady():
                if action.chain != self._chains[-1]:
                    self._chains = [self._chains[-1], action.chain]
                    self._sweep(Epoch(action.chain[0] + 1) if action.chain else BEGINNING)
            case ForgetCheckpoints():
                self._chains = [()]
                self._sweep(Epoch(self._lake.last_epoch() + 1))
            case CheckpointFailed():
                pass  # the next sweep removes its files
            case _:
                assert_never(action)

    def _publish(self, action: PublishCheckpoint, plans: tuple[DataflowPlan, ...]) -> None:
        made = Checkpoint(
            epoch=action.epoch,
            base=action.base,
            regions=fingerprints(plans),
            files=action.files,
            failed=action.failed,
        )
        try:
            publish(self._lake, made)
        except Exception as error:  # of any class: no key can move until the coordinator knows
            self._hear(CheckpointUnpublished(checkpoint=action.checkpoint, error=str(error)))
        else:
            self._hear(CheckpointPublished(checkpoint=action.checkpoint, files=action.files))

    def _sweep(self, before: Epoch) -> None:
        try:
            sweep(self._lake, {epoch for kept in self._chains for epoch in kept}, before)
        except Exception as error:  # leftover files only take room; the next sweep tries again
            self._failed = f"old checkpoints could not be removed: {error}"


def _discard(event: CoordinatorEvent) -> None:
    raise AssertionError(f"{type(event).__name__} before the keeper was started")
