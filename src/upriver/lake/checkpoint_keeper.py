"""The driver's part of checkpoints: a thread of its own publishes and sweeps those of all flows, and requests them in
time."""

import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from itertools import count
from typing import Any, assert_never

from upriver.engine.row_text import failure_text
from upriver.errors import LakeError, UpriverError, WaitTimeout
from upriver.ids import BEGINNING, Epoch, FlowId
from upriver.lake.checkpoint_places import find_place, state_of
from upriver.lake.checkpoints import newest_usable, publish, sweep, sweep_places
from upriver.lake.lake import OwnedLake
from upriver.plan.plan import DataflowPlan, view_of
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointsFailed,
    CheckpointsTaken,
    CheckpointUnpublished,
    CheckpointWanted,
    CoordinatorEvent,
    ForgetCheckpoints,
    PublishCheckpoint,
)
from upriver.state.checkpoint import Checkpoint, CheckpointPlace, FoundCheckpoints

CheckpointNews = CheckpointReady | CheckpointFailed | ForgetCheckpoints
"""What has become of a flow's checkpoints."""
CheckpointAction = PublishCheckpoint | CheckpointNews | CheckpointsTaken | CheckpointsFailed
"""What the coordinator wants done about checkpoints."""


@dataclass(slots=True, eq=False)
class _FlowCheckpoints:
    """A flow with full views. regions: as in :class:`FlowState`. chains: the last two usable ones, because a worker may
    still read the one before the last; the thread's own. newest: the epoch of the newest checkpoint. failed: why the
    last one was given up, or an older one is used."""

    place: CheckpointPlace
    regions: Mapping[str, str]
    chains: list[tuple[Epoch, ...]]
    newest: Epoch
    failed: str | None


class CheckpointKeeper:
    """Keeps the checkpoints of all flows of one lake. Any thread may call anything. ``carry_out``, ``forget`` and
    ``status`` never wait for the lake."""

    def __init__(
        self, lake: OwnedLake, interval_s: float | None, sets_aside: Callable[[], Collection[str]] = frozenset
    ) -> None:
        """interval_s: seconds from one checkpoint to the next; ``None``: only the coordinator or a caller requests
        them. sets_aside: the tables whose bad rows are left out, as of now."""
        self._lake = lake
        self._sets_aside = sets_aside
        self._interval_s = interval_s
        self._flows: dict[FlowId, _FlowCheckpoints] = {}
        """Those with full views, in the order in which they began. Replaced, and never changed."""
        self._lock = threading.Lock()
        """Held to replace ``_flows``."""
        self._lake_lock = threading.Lock()
        """Held while places are read, chosen, written or swept, and never while ``_lock`` is."""
        self._unswept: str | None = None
        """Why the checkpoints of flows that are gone could not be removed, if so."""
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._hear: Callable[[CoordinatorEvent], None] = _discard
        self._thread = threading.Thread(target=self._run, name="upriver-checkpoint-keeper", daemon=True)
        self._tickets = count()
        self._asked: dict[int, Future[Epoch]] = {}
        self._failure: UpriverError | None = None
        """The app's, after which no checkpoint is taken."""
        self._own: int | None = None
        """The ticket of the last checkpoint that the interval requested, until its outcome is known."""

    # Flows

    def begin(self, flow: FlowId, plans: Sequence[DataflowPlan]) -> FoundCheckpoints:
        """Give a flow its place, and find what it begins with. The flows of one start come before :meth:`start`, in the
        order of their declaration. Reads the lake. Raises CorruptFile.
        """
        state = state_of(plans, self._sets_aside())
        if state is None:
            return FoundCheckpoints(None)
        with self._lake_lock:
            place = find_place(self._lake, state, [kept.place.name for kept in self._flows.values()])
            found, failed = newest_usable(self._lake, place, state.regions)
            epochs = tuple(checkpoint.epoch for checkpoint in found)
            kept = _FlowCheckpoints(place, state.regions, [epochs], epochs[0] if epochs else BEGINNING, failed)
            with self._lock:
                self._flows = {**self._flows, flow: kept}
            if self._thread.is_alive():
                self._sweep_flow(kept, self._after_all())  # no worker writes there yet
        return FoundCheckpoints(place, found)

    def place_of(self, flow: FlowId) -> CheckpointPlace | None:
        """As :class:`FoundCheckpoints` has it, until the flow is gone."""
        kept = self._flows.get(flow)
        return None if kept is None else kept.place

    def forget(self, flow: FlowId) -> None:
        """The flow is gone: remove its checkpoints soon, unless another flow takes its place before that."""
        with self._lock:
            flows = dict(self._flows)
            is_kept = flows.pop(flow, None) is not None
            self._flows = flows
        if is_kept:
            self._queue.put(_SweepPlaces())

    def start(self, hear: Callable[[CoordinatorEvent], None]) -> None:
        """All flows of the start have begun: what other flows have left is removed. hear: tells the coordinator."""
        self._hear = hear
        with self._lake_lock:
            self._sweep_places()
            for kept in self._flows.values():
                self._sweep_flow(kept, self._after_all())  # no worker is writing one
        self._thread.start()

    # Requests

    def take(self, seconds: float) -> Epoch:
        """Take a checkpoint of everything; returns an epoch as of whose end, or a later one's, all flows have one now.
        Raises WaitTimeout, and LakeError if one was given up; the caller may try again after that."""
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
        for ticket in list(self._asked):
            if (asker := self._asker(ticket)) is not None:
                asker.set_exception(type(error)(*error.args))

    def status(self) -> dict[str, Any]:
        """epoch: the oldest of the newest checkpoints of all flows with full views, 0 if one of these has none. failed:
        why the last one was given up, if it was. views: the epoch of each full view's newest checkpoint."""
        flows = tuple(self._flows.values())
        failures = dict.fromkeys(why for why in (*(kept.failed for kept in flows), self._unswept) if why is not None)
        return {
            "epoch": int(min((kept.newest for kept in flows), default=BEGINNING)),
            "failed": "; ".join(failures) or None,
            "views": {view: int(kept.newest) for kept in flows for view in dict.fromkeys(map(view_of, kept.regions))},
        }

    def carry_out(self, action: CheckpointAction) -> None:
        """Do what the coordinator wants and report back. What is of a flow that is gone has no effect, except that its
        checkpoint is reported as not published."""
        match action:
            case CheckpointsTaken():
                if (asker := self._asker(action.ticket)) is not None:
                    asker.set_result(action.epoch)
                return
            case CheckpointsFailed(epoch=epoch, why=why):
                if (asker := self._asker(action.ticket)) is not None:
                    asker.set_exception(LakeError(f"the checkpoint of epoch {epoch} was given up: {why}"))
                return
        kept = self._flows.get(action.flow)
        if kept is not None:
            match action:
                case CheckpointReady():
                    kept.newest, kept.failed = action.chain[0] if action.chain else BEGINNING, None
                case CheckpointFailed(epoch=epoch, why=why):
                    kept.failed = f"epoch {epoch}: {why}"
                case ForgetCheckpoints():
                    kept.newest = BEGINNING
                case PublishCheckpoint():
                    pass
        self._queue.put(_ForFlow(action, kept))

    def _asker(self, ticket: int) -> Future[Epoch] | None:
        """The caller that waits for this ticket, if one does. It is answered now."""
        if self._own == ticket:
            self._own = None
        return self._asked.pop(ticket, None)

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
            with self._lake_lock:
                self._work(work)

    def _ask(self) -> None:
        """Request a checkpoint, unless the last one that was requested here has not begun."""
        if self._own is None:
            self._own = next(self._tickets)
            self._hear(CheckpointWanted(ticket=self._own))

    def _next_due(self) -> float | None:
        return None if self._interval_s is None else time.monotonic() + self._interval_s

    def _work(self, work: "_Work") -> None:
        if isinstance(work, _SweepPlaces):
            self._sweep_places()
            return
        action, kept = work.action, work.kept
        if isinstance(action, PublishCheckpoint):
            self._publish(action, kept)
        elif kept is not None and self._is_current(action.flow, kept):
            self._sweep_for(action, kept)

    def _is_current(self, flow: FlowId, kept: _FlowCheckpoints) -> bool:
        """Whether the place is still this flow's: another flow may have taken it."""
        return self._flows.get(flow) is kept

    def _sweep_for(self, action: CheckpointNews, kept: _FlowCheckpoints) -> None:
        match action:
            case CheckpointReady(chain=chain):
                if chain != kept.chains[-1]:
                    kept.chains = [kept.chains[-1], chain]
                    self._sweep_flow(kept, Epoch(chain[0] + 1) if chain else BEGINNING)
            case ForgetCheckpoints():
                kept.chains = [()]
                self._sweep_flow(kept, self._after_all())
            case CheckpointFailed():
                pass  # the next sweep removes its files
            case _:
                assert_never(action)

    def _publish(self, action: PublishCheckpoint, kept: _FlowCheckpoints | None) -> None:
        try:
            if kept is None or not self._is_current(action.flow, kept):
                raise LakeError(f"checkpoint of epoch {action.epoch}: its views are gone, or have no state to keep")
            made = Checkpoint(
                epoch=action.epoch, base=action.base, regions=kept.regions, files=action.files, failed=action.failed
            )
            publish(self._lake, kept.place, made)
        except Exception as error:  # of any class: no key can move until the coordinator knows
            self._hear(CheckpointUnpublished(checkpoint=action.checkpoint, error=failure_text(error)))
        else:
            self._hear(CheckpointPublished(checkpoint=action.checkpoint, files=action.files))

    def _after_all(self) -> Epoch:
        return Epoch(self._lake.last_epoch() + 1)

    def _sweep_flow(self, kept: _FlowCheckpoints, before: Epoch) -> None:
        try:
            sweep(self._lake, kept.place, {epoch for chain in kept.chains for epoch in chain}, before)
        except Exception as error:  # leftover files only take room; the next sweep tries again
            kept.failed = _unswept(error)

    def _sweep_places(self) -> None:
        """Remove the checkpoints of flows that are gone."""
        try:
            sweep_places(self._lake, {kept.place.name for kept in self._flows.values()})
        except Exception as error:  # as above
            self._unswept = _unswept(error)
        else:
            self._unswept = None


@dataclass(frozen=True, slots=True)
class _ForFlow:
    """kept: the flow when the coordinator wanted this; ``None`` if it was gone, or has no full views."""

    action: PublishCheckpoint | CheckpointNews
    kept: _FlowCheckpoints | None


@dataclass(frozen=True, slots=True)
class _SweepPlaces:
    pass


_Work = _ForFlow | _SweepPlaces


def _unswept(error: Exception) -> str:
    return f"old checkpoints could not be removed: {failure_text(error)}"


def _discard(event: CoordinatorEvent) -> None:
    raise AssertionError(f"{type(event).__name__} before the keeper was started")
