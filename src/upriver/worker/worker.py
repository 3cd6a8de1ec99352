"""The worker machine: keeps its vnodes' share of every view current and answers lookups on it.

Theory of operation. A worker is assigned once per incarnation, and again when all workers start anew. From then on the
coordinator opens epochs, in order. The worker asks the shell to read its slices of each epoch (``ReadEpoch``). As rows
come (``RowsRead``), it hands them to the shares of the regions that they feed. It reports the epoch when the shell has
read all slices (``EpochRead``). Each share has a distributor, which applies rows here; during a rescale, it may send
them to the peer that keeps their keys. A key's rows of one epoch are never split, so a client that looks a key up sees
all of an epoch's rows or none.

Lookups come at any time between two events, and go through the distributors as rows do: the worker with the keys'
state answers. The worker that was asked gathers the parts.

Phases: ``Unassigned`` -> ``Serving`` -> ``Retired``. Rules worker.*: ``docs/internals/epochs.md`` and
``docs/internals/rescale.md``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from upriver.errors import IllegalEvent, WrongOwner
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    CloseInput,
    ContinueEpochs,
    DropCheckpoint,
    DropSnapshot,
    EpochOver,
    Evict,
    Evicted,
    FailView,
    Follow,
    KeepCheckpoint,
    Meet,
    MigrationOrder,
    OpenEpoch,
    PauseEpochs,
    Probe,
    ReadVnodes,
    Resume,
    Retire,
    StartedAnew,
    TakeCheckpoint,
    TakeSnapshot,
    Unfollow,
)
from upriver.protocol.peers import Envelope, PeerLookupAnswered, PeerLookupGivenUp, PeerLookupRefused
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    AllStateRead,
    EpochRead,
    KeysRead,
    KeysUnread,
    LookupAsked,
    LookupGivenUp,
    PeerLost,
    PeerSaid,
    PeersMet,
    Refuse,
    Report,
    RowsFetched,
    RowsRead,
    RowsUnfetched,
    StateNotWritten,
    StateRead,
    StateUnread,
    StateWritten,
    Stop,
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToMove,
    TimeToSettle,
    TimeToTakeIn,
    WorkerAction,
    WorkerEvent,
)
from upriver.worker.checkpoints import (
    all_state_read,
    can_copy,
    checkpoint_asked,
    checkpoint_dropped,
    checkpoint_kept,
    restore,
    snapshot_asked,
    snapshot_dropped,
    state_not_written,
    state_read,
    state_unread,
    state_written,
    take_snapshots,
    time_to_copy,
)
from upriver.worker.epochs import (
    ask,
    ask_again,
    begin_stage,
    end_stage,
    epoch_over,
    epoch_read,
    finish_epoch,
    open_epoch,
    read_next,
    report_late_rows,
    rows_read,
    settle_late_rows,
    time_to_settle,
    unsettled,
)
from upriver.worker.failed_views import failed_elsewhere, note_failures
from upriver.worker.long_answers import ANSWER_ROWS_MAX, unread
from upriver.worker.lookups import (
    answered_at_once,
    fill_what_was_put_off,
    given_up,
    lookup_asked,
    refuse_all,
    time_to_answer,
    time_to_fill,
)
from upriver.worker.memory import weigh
from upriver.worker.replication import can_feed, follow, probed, time_to_feed, unfollow
from upriver.worker.rescales import (
    close_input,
    go_on,
    hold_still,
    meet,
    next_to_move,
    ordered,
    peer_lost,
    peer_said,
    peers_met,
    read_vnodes,
    say_still,
    time_to_move,
)
from upriver.worker.serving import CROWD_KEYS, BuildRegion, Serving, started
from upriver.worker.takeover import resumed
from upriver.worker.upqueries import evict, keys_read, rows_fetched, time_to_evict, time_to_take_in, unfilled


class Unassigned:
    """The worker has registered, and has no assignment yet."""


class Retired:
    """The worker was told to stop."""


class WorkerMachine:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(
        self,
        build_region: BuildRegion,
        rules: Rules = ALL_RULES,
        memory_budget: int | None = None,
        crowd_keys: int = CROWD_KEYS,
        answer_rows_max: int = ANSWER_ROWS_MAX,
    ) -> None:
        """memory_budget: bytes that the worker's state may take; ``None`` for any. crowd_keys,
        answer_rows_max: see the constants."""
        self._build_region = build_region
        self._memory_budget = memory_budget
        self._crowd_keys = crowd_keys
        self._answer_rows_max = answer_rows_max
        self._rules = rules
        self.phase: Unassigned | Serving | Retired = Unassigned()

    @property
    def next_to_move(self) -> str | None:
        """The region that ``TimeToMove`` would move keys of; ``None`` if there is none."""
        return next_to_move(self.phase) if isinstance(self.phase, Serving) else None

    @property
    def can_move(self) -> bool:
        """Whether ``TimeToMove`` would move a key."""
        return self.next_to_move is not None

    @property
    def can_copy(self) -> bool:
        """Whether ``TimeToCopy`` would copy a key."""
        return isinstance(self.phase, Serving) and can_copy(self.phase)

    @property
    def can_feed(self) -> bool:
        """Whether ``TimeToFeed`` would copy a key."""
        return isinstance(self.phase, Serving) and can_feed(self.phase)

    @property
    def can_fill(self) -> bool:
        """Whether upqueries rest until ``TimeToFill``."""
        return isinstance(self.phase, Serving) and self.phase.fills_rest

    @property
    def unread(self) -> int:
        """About how many rows ``TimeToAnswer`` would read."""
        return unread(self.phase) if isinstance(self.phase, Serving) else 0

    @property
    def unfilled(self) -> int:
        """About how many rows ``TimeToTakeIn`` would take in."""
        return unfilled(self.phase) if isinstance(self.phase, Serving) else 0

    @property
    def unsettled(self) -> int:
        """About how many rows ``TimeToSettle`` would take in or send."""
        return unsettled(self.phase) if isinstance(self.phase, Serving) else 0

    @property
    def must_evict(self) -> bool:
        """Whether ``TimeToEvict`` has work: a requested eviction, state that evicted keys have left behind, or keys to
        evict because memory is over budget."""
        phase = self.phase
        return isinstance(phase, Serving) and (phase.is_over_budget or bool(phase.evictions) or phase.has_leftovers)

    @property
    def evicted(self) -> int:
        """Keys that the last ``TimeToEvict`` handled: fewer than it allows, if there were no more."""
        return self.phase.evicted if isinstance(self.phase, Serving) else 0

    def step(self, event: WorkerEvent) -> list[WorkerAction]:
        """Advance by one event. Raises IllegalEvent when the phase does not allow it."""
        match self.phase, event:
            case (Serving() as phase, LookupAsked()) if answer := answered_at_once(phase, event):
                return [answer]
            case (Unassigned() | Serving() as phase, Assign()):
                return self._assigned(phase, event)
            case (Serving() as phase, Resume()):
                self.phase = resumed(phase, event)
                note_failures(self.phase)
                return self.phase.actions
            case (_, Retire()):
                return self._retire()
            case (Unassigned() | Retired(), LookupAsked()):
                return [Refuse(ticket=event.ticket, error=WrongOwner("this worker owns nothing"))]
            case (Serving() as phase, _):
                return _follow(phase, event)
            case (Retired(), _) | (_, LookupGivenUp() | KeysRead() | KeysUnread() | RowsFetched() | RowsUnfetched()):
                return []
            case (
                Unassigned(),
                PeerSaid(envelope=Envelope(content=PeerLookupAnswered() | PeerLookupRefused() | PeerLookupGivenUp())),
            ):
                return []  # meant for the worker that was in this place before
        raise IllegalEvent(f"{type(event).__name__} in phase {type(self.phase).__name__}")

    def _assigned(self, old: Unassigned | Serving, event: Assign) -> list[WorkerAction]:
        """Begin, or begin anew: earlier state and lookups belong to another generation."""
        actions = _taking_leave(old, WrongOwner("this worker starts anew; ask again"))
        self.phase = started(
            event, self._build_region, self._rules, self._memory_budget, self._crowd_keys, self._answer_rows_max
        )
        if isinstance(old, Serving):
            actions.append(Report(message=StartedAnew(generation=event.generation)))
            actions += [
                Report(message=Evicted(eviction=wish.number, stats=self.phase.stats())) for wish in old.evictions
            ]
        restore(self.phase)
        note_failures(self.phase)
        return [*actions, *self.phase.actions]

    def _retire(self) -> list[WorkerAction]:
        old, self.phase = self.phase, Retired()
        return [*_taking_leave(old, WrongOwner("this worker has retired")), Stop()]


def _taking_leave(phase: Unassigned | Serving | Retired, error: WrongOwner) -> list[WorkerAction]:
    if not isinstance(phase, Serving):
        return []
    phase.actions = []
    refuse_all(phase, error)
    return phase.actions


def _follow(phase: Serving, event: WorkerEvent) -> list[WorkerAction]:
    handler = _TABLE.get(type(event))
    if handler is None:
        raise IllegalEvent(f"{type(event).__name__} in phase Following")
    phase.actions = []
    taken = phase.taken
    may_be_behind = isinstance(event, _ROWS_MAY_WAIT)
    if not may_be_behind:
        phase.catch_up()
    handler(phase, event)
    if not may_be_behind:
        phase.catch_up()
    note_failures(phase)
    finish_epoch(phase)  # which may have waited for a view that has failed
    if phase.uprooted:
        phase.uprooted = False
        ask_again(phase)
    end_stage(phase)
    if isinstance(event, _MAY_TAKE_MORE):
        weigh(phase)
    fill_what_was_put_off(phase)
    settle_late_rows(phase)
    report_late_rows(phase)
    if phase.taken != taken:
        say_still(phase)
    note_failures(phase)
    return phase.actions


def _time_to_answer(phase: Serving, event: TimeToAnswer) -> None:
    under_way = len(phase.long_answers)
    time_to_answer(phase, event)
    if len(phase.long_answers) < under_way:
        ask_again(phase)  # another one may begin


def _lookup(phase: Serving, event: LookupAsked) -> None:
    question = lookup_asked(phase, event)
    if question is not None:
        ask(phase, event.view, question)


def _all_state_read(phase: Serving, event: AllStateRead) -> None:
    all_state_read(phase, event)
    phase.stats()  # for ``weigh``
    take_snapshots(phase)
    ask_again(phase)
    read_next(phase)


_MAY_TAKE_MORE = (
    KeysRead | KeysUnread | TimeToTakeIn | RowsFetched | RowsUnfetched | EpochRead | TimeToSettle | AllStateRead
)
"""Events after which more memory may be taken than before."""

_ROWS_MAY_WAIT = (
    OpenEpoch
    | RowsRead
    | EpochRead
    | KeysRead
    | KeysUnread
    | LookupAsked
    | LookupGivenUp
    | Evict
    | TimeToEvict
    | TimeToFill
    | TimeToTakeIn
    | TimeToAnswer
)
"""Events that do not need all rows of partial regions applied, before or after."""

# The table's key is the type of the handler's event, which no type checker can see.
_TABLE: Mapping[type, Callable[[Serving, Any], None]] = {
    FailView: failed_elsewhere,
    OpenEpoch: open_epoch,
    RowsRead: rows_read,
    EpochRead: epoch_read,
    BeginStage: begin_stage,
    EpochOver: epoch_over,
    LookupAsked: _lookup,
    LookupGivenUp: given_up,
    TakeSnapshot: snapshot_asked,
    DropSnapshot: snapshot_dropped,
    Meet: meet,
    PeersMet: peers_met,
    MigrationOrder: ordered,
    PeerSaid: peer_said,
    PeerLost: peer_lost,
    TimeToMove: time_to_move,
    KeysRead: keys_read,
    KeysUnread: keys_read,
    RowsFetched: rows_fetched,
    RowsUnfetched: rows_fetched,
    TimeToEvict: time_to_evict,
    Evict: evict,
    ReadVnodes: read_vnodes,
    CloseInput: close_input,
    PauseEpochs: hold_still,
    ContinueEpochs: go_on,
    StateRead: state_read,
    StateUnread: state_unread,
    AllStateRead: _all_state_read,
    TakeCheckpoint: checkpoint_asked,
    TimeToCopy: time_to_copy,
    StateWritten: state_written,
    StateNotWritten: state_not_written,
    KeepCheckpoint: checkpoint_kept,
    DropCheckpoint: checkpoint_dropped,
    Follow: follow,
    Unfollow: unfollow,
    Probe: probed,
    TimeToFeed: time_to_feed,
    TimeToSettle: time_to_settle,
    TimeToTakeIn: time_to_take_in,
    TimeToAnswer: _time_to_answer,
    TimeToFill: time_to_fill,
}
