"""The snapshots of a flow's views: consistent cuts through all workers; rules coordinator.cut_ahead_of_all,
coordinator.still_while_cut and coordinator.no_older_snapshot.

Without a rescale, a snapshot's cut is the highest epoch that any worker has been sent. No worker can be past it, and
each takes its part when it gets there. After all have begun anew, scans wait until that epoch is as high as it ever
was: a client that reads a view does not see less than before. While keys move, a snapshot is taken when every open
epoch has ended, no worker gives keys away, and no keys are on their way.
"""

from dataclasses import dataclass, field

from upriver.coordinator.flow import Flow, Member
from upriver.errors import DeclarationError, RowError, UpriverError, WaitTimeout, WorkerLost
from upriver.ids import BEGINNING, Epoch, Incarnation, SnapshotId, WorkerId
from upriver.protocol.coordinator_events import SnapshotAsked, SnapshotFailed, SnapshotReady
from upriver.protocol.messages import (
    ContinueEpochs,
    DropSnapshot,
    PauseEpochs,
    SnapshotNotTaken,
    SnapshotTaken,
    Still,
    TakeSnapshot,
)

SNAPSHOTS_HELD_MAX = 16
"""Snapshots that the workers hold at one time; one more lets the oldest go."""
SCANS_WAITING_MAX = 1000
"""Snapshots that wait until they can be taken; one more is refused."""


@dataclass(slots=True, kw_only=True)
class Pending:
    """A snapshot on its way. asked: the incarnations that each keep a part of it. awaiting: all and only those of
    them that have not taken theirs."""

    ticket: int
    view: str
    at: Epoch
    workers: tuple[WorkerId, ...]
    asked: frozenset[Incarnation]
    awaiting: set[Incarnation]


@dataclass(slots=True)
class Pause:
    """No worker gives keys away. still: per incarnation that has said so, what it has given and taken. reached: nothing
    moves any more."""

    name: int
    still: dict[Incarnation, tuple[int, int]] = field(default_factory=dict)
    reached: bool = False

    def nothing_moves(self, everybody: set[Incarnation]) -> bool:
        """Whether all hold still, and all that was given was taken."""
        given, taken = (sum(numbers) for numbers in zip(*self.still.values(), strict=True)) if self.still else (0, 0)
        return self.still.keys() >= everybody and given == taken

    def reach(self) -> None:
        self.reached = True


class Scans:
    """Snapshots asked for, waiting, on their way and held."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._waiting: list[SnapshotAsked] = []
        self._pending: dict[SnapshotId, Pending] = {}
        self._held: list[SnapshotId] = []
        self._pause: Pause | None = None
        self._last_pause = 0
        self._paused_at = Epoch(-1)
        """The last epoch that had ended when the last pause began."""
        self._has_moved = False
        """A slice has moved since the last pause began."""

    @property
    def is_idle(self) -> bool:
        """Whether no snapshot is being taken."""
        return not self._pending and self._pause is None

    @property
    def are_pending(self) -> bool:
        """Whether any worker has been asked for its part of a snapshot that is not ready."""
        return bool(self._pending)

    @property
    def cuts(self) -> list[Epoch]:
        """The ends of epochs at which workers take the snapshots that are being taken."""
        return [pending.at for pending in self._pending.values()]

    @property
    def wants_pause(self) -> bool:
        """Whether the next epoch waits for a snapshot."""
        return (bool(self._waiting) and self._is_back and self._may_pause) or not self.is_idle

    @property
    def _is_back(self) -> bool:
        """coordinator.no_older_snapshot: whether, since all workers began, one was sent the highest epoch ever sent.
        Before the epoch as of which segments were rewritten, views lack rows that have left by then."""
        flow = self._flow
        highest = max((member.sent for member in flow.by_worker()), default=BEGINNING)
        return highest >= max(flow.sent.ever, flow.ledger.epochs.as_of) or not flow.rules.coordinator_no_older_snapshot

    @property
    def _may_pause(self) -> bool:
        """A rescale makes progress between two pauses, however many scans are requested."""
        return self._has_moved or self._flow.ledger.ended > self._paused_at

    def asked(self, event: SnapshotAsked) -> None:
        """A request for a snapshot; it waits until :meth:`take_now` or :meth:`take_still`."""
        failure = self._flow.failed.get(event.view)
        if failure is not None:
            self._fail(event.ticket, failure.raised())
        elif not self._can_be_had(event):
            self._fail_impossible(event)
        elif len(self._waiting) >= SCANS_WAITING_MAX:
            self._fail(event.ticket, WaitTimeout(f"{SCANS_WAITING_MAX} scans wait already; scan again"))
        else:
            self._waiting.append(event)

    def take_now(self) -> None:
        """Take all requested snapshots, while epochs flow."""
        waiting, self._waiting = (
            (self._waiting, []) if self._is_back else ([], self._waiting)
        )  # coordinator.no_older_snapshot
        for event in waiting:
            missing = sorted(set(self._flow.workers) - self._flow.members.keys())
            if missing:
                self._fail(event.ticket, WorkerLost(f"workers {missing} are not up; scan again when they are"))
                continue
            pick = max if self._flow.rules.coordinator_cut_ahead_of_all else min
            self._take(event, pick(member.sent for member in self._flow.by_worker()))  # coordinator.cut_ahead_of_all

    def take_still(self) -> None:
        """coordinator.still_while_cut: between two epochs of a rescale, hold all keys where they are, then take the
        requested snapshots."""
        if not self._flow.rules.coordinator_still_while_cut:
            self.take_now()
            return
        if self._pause is None and not self._pending and self.wants_pause:
            self._paused_at, self._has_moved = self._flow.ledger.ended, False
            self._last_pause += 1
            self._pause = Pause(self._last_pause)
            self._flow.tell_all(PauseEpochs(pause=self._last_pause))

    def still(self, member: Member, message: Still) -> None:
        """A worker gives no keys away."""
        pause = self._pause
        if pause is None or message.pause != pause.name or pause.reached:
            return
        pause.still[member.incarnation] = (message.given, message.taken)
        if pause.nothing_moves({member.incarnation for member in self._flow.by_worker()}):
            pause.reach()
            self.take_now()
            self._go_on()

    def some_have_moved(self) -> None:
        """A worker has told how far it is with giving keys away."""
        self._has_moved = True

    def all_have_moved(self) -> None:
        """No keys are left to move, so the pause waits for no worker: some may have left."""
        if self._pause is not None:
            self._pause.reach()
            self._go_on()

    def _take(self, event: SnapshotAsked, cut: Epoch) -> None:
        snapshot = self._flow.places.next_snapshot()
        members = [member for member in self._flow.by_worker() if member.worker in self._flow.workers]
        asked = frozenset(member.incarnation for member in members)
        workers = tuple(member.worker for member in members)
        self._pending[snapshot] = Pending(
            ticket=event.ticket, view=event.view, at=cut, workers=workers, asked=asked, awaiting=set(asked)
        )
        for member in members:
            self._flow.tell(member, TakeSnapshot(snapshot=snapshot, view=event.view, at=cut))
        self._hold(snapshot)

    def _hold(self, snapshot: SnapshotId) -> None:
        """Account for one more snapshot at the workers; the oldest one goes when there are too many."""
        self._held.append(snapshot)
        if len(self._held) <= SNAPSHOTS_HELD_MAX:
            return
        oldest = self._held.pop(0)
        self._flow.tell_all(DropSnapshot(snapshot=oldest))
        pending = self._pending.pop(oldest, None)
        if pending is not None:
            late = WaitTimeout(
                f"{SNAPSHOTS_HELD_MAX} later snapshots pushed this one out before it was ready; scan again"
            )
            self._fail(pending.ticket, late)

    def taken(self, member: Member, message: SnapshotTaken) -> None:
        """A worker holds its part."""
        pending = self._pending.get(message.snapshot)
        if pending is None:
            return
        pending.awaiting.discard(member.incarnation)
        if not pending.awaiting:
            del self._pending[message.snapshot]
            self._flow.act(
                SnapshotReady(
                    ticket=pending.ticket, snapshot=message.snapshot, epoch=pending.at, workers=pending.workers
                )
            )
        self._go_on()

    def not_taken(self, message: SnapshotNotTaken) -> None:
        """A worker cannot take its part."""
        pending = self._pending.get(message.snapshot)
        if pending is not None:
            failure = self._flow.failed.get(pending.view)
            self._give_up(message.snapshot, RowError(message.error) if failure is None else failure.raised())
        self._go_on()

    def lost(self, incarnation: Incarnation) -> None:
        """An incarnation is lost, and the snapshots that it keeps a part of with it."""
        error = WorkerLost("a worker was lost while the snapshot was taken; scan again")
        for snapshot in [s for s in sorted(self._pending) if incarnation in self._pending[s].asked]:
            self._give_up(snapshot, error)
        self._go_on()

    def _give_up(self, snapshot: SnapshotId, error: UpriverError) -> None:
        self._fail(self._pending.pop(snapshot).ticket, error)
        self._held.remove(snapshot)
        self._flow.tell_all(DropSnapshot(snapshot=snapshot))  # its cut may lie ahead of some workers

    def start_anew(self) -> None:
        """All shares begin from nothing, and hold no snapshots."""
        for snapshot in sorted(self._pending):
            error = WorkerLost("the view started anew while the snapshot was taken; scan again")
            self._fail(self._pending.pop(snapshot).ticket, error)
        self._pause = None
        self._held.clear()

    def _go_on(self) -> None:
        """End the pause when all its snapshots are ready: keys may move again."""
        if self._pause is not None and self._pause.reached and not self._pending:
            self._pause = None
            self._flow.tell_all(ContinueEpochs())

    def _can_be_had(self, event: SnapshotAsked) -> bool:
        """Whether all of the view is at the workers."""
        return any(plan.name == event.view and plan.full_because is not None for plan in self._flow.views)

    def _fail_impossible(self, event: SnapshotAsked) -> None:
        why = f"view {event.view!r} is partial: workers keep only what is looked up; app.read has Spark compute it"
        self._fail(event.ticket, DeclarationError(why))

    def end(self, error: UpriverError) -> None:
        """The flow is gone: snapshots that wait or are on their way fail with this error."""
        for event in self._waiting:
            self._fail(event.ticket, error)
        for pending in self._pending.values():
            self._fail(pending.ticket, error)
        self._waiting.clear()
        self._pending.clear()

    def _fail(self, ticket: int, error: UpriverError) -> None:
        self._flow.act(SnapshotFailed(ticket=ticket, error=error))
