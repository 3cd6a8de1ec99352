"""The components of a share that has an assignment, and what follows each event.

Each component owns its fields and its handlers; ``Serving`` gives an event to the component that handles it. Every
component is built with those that it talks to, so they form layers: each calls only those below it.

======================  ===============================================================================
``Membership``          meetings, messages and losses of peers
``Fills``               rows that upqueries and cones have read
``Epochs``              epochs read, applied and finished, and their stages
``FailedViews``         failures of views, found and told
``KeyEvictions``        keys to evict, some at a time
``Distributors``        rows, lookups and state into the regions' distributors, and what comes of them
``Lookups``             lookups asked here, waiting here, or being read
``Replication``         feeds to followers, and slices that are followed
``CheckpointParts``     this worker's parts of checkpoints and snapshots
``Upqueries``           what is asked of the lake
``MemoryBudget``        whether there is room; one for all shares of the worker
``EpochProgress``       how far the worker is
``Regions``             the shard of each region
``KnownPeers``          which peers can be asked
``StepOutput``          the actions of the current step
======================  ===============================================================================

When all shares of the flow resume as another generation (a takeover; ``docs/internals/standbys.md``), they keep their
state, while some slices change hands. A learner takes over what it has learned this way, between two epochs. When a
worker is lost, the other workers put back changes of the unfinished epoch, and take over the lost worker's slices that
they have followed. Rules replication.put_back and replication.caught_up.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from upriver.errors import IllegalEvent, UpriverError, WrongOwner
from upriver.ids import Epoch, FlowId
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    ChangesLogged,
    CloseInput,
    ContinueEpochs,
    DropCheckpoint,
    DropSnapshot,
    EpochOver,
    Evict,
    FailView,
    Follow,
    KeepCheckpoint,
    Meet,
    MigrationOrder,
    OpenEpoch,
    PauseEpochs,
    ReadVnodes,
    Resume,
    StartedAnew,
    TakeChanges,
    TakeCheckpoint,
    TakeSnapshot,
    Unfollow,
)
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
    AllStateRead,
    ChangesNotStored,
    ChangesStored,
    EpochRead,
    KeysRead,
    KeysUnread,
    LookupAsked,
    LookupGivenUp,
    PeerLost,
    PeerSaid,
    PeersMet,
    ReadTakesLong,
    RowsFetched,
    RowsRead,
    RowsUnfetched,
    ShareAction,
    ShareEvent,
    StateNotWritten,
    StateRead,
    StateUnread,
    StateWritten,
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToMove,
    TimeToSettle,
    TimeToTakeIn,
)
from upriver.worker.changes import ChangeParts
from upriver.worker.checkpoints import CheckpointParts
from upriver.worker.distributors import Distributors
from upriver.worker.epochs import Epochs
from upriver.worker.evictions import KeyEvictions
from upriver.worker.failed_views import FailedViews
from upriver.worker.fills import Fills
from upriver.worker.long_answers import ANSWER_ROWS_MAX
from upriver.worker.lookups import Lookups
from upriver.worker.membership import Membership
from upriver.worker.memory import MemoryBudget
from upriver.worker.peers import KnownPeers, StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import BuildRegion, Regions
from upriver.worker.replication import Replication
from upriver.worker.upqueries import CROWD_KEYS, Upqueries

MAY_TAKE_MORE = (
    KeysRead | KeysUnread | TimeToTakeIn | RowsFetched | RowsUnfetched | EpochRead | TimeToSettle | AllStateRead
)
"""Events after which more memory may be taken than before."""

ROWS_MAY_WAIT = (
    OpenEpoch
    | RowsRead
    | EpochRead
    | KeysRead
    | KeysUnread
    | ReadTakesLong
    | LookupAsked
    | LookupGivenUp
    | Evict
    | TimeToEvict
    | TimeToFill
    | TimeToTakeIn
    | TimeToAnswer
)
"""Events that do not need all rows of partial regions applied, before or after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSettings:
    """What stays the same from one assignment to the next. crowd_keys, answer_rows_max: see the constants;
    ``answer_rows_max=None``: any."""

    flow: FlowId
    build_region: BuildRegion
    rules: Rules
    memory: MemoryBudget
    crowd_keys: int = CROWD_KEYS
    answer_rows_max: int | None = ANSWER_ROWS_MAX


class Serving:
    """Applies epochs, answers lookups, gives and takes keys, by one assignment."""

    def __init__(self, assignment: Assign, settings: ShareSettings, born: int) -> None:
        """A share that holds nothing. born: the generation in which it last began anew."""
        rules = settings.rules
        self.assignment = assignment
        self._born = born
        self.output = output = StepOutput(settings.flow, assignment.generation)
        self.regions = regions = Regions(assignment, settings.build_region, rules)
        progress = EpochProgress(assignment.start_at, assignment.reads, is_staged=regions.is_staged)
        self.peers = peers = KnownPeers(assignment.worker)
        self.memory = memory = settings.memory
        self._flow = settings.flow
        memory.enter(settings.flow, regions, builds=assignment.builds)
        self.upqueries = upqueries = Upqueries(regions, progress, memory, output, settings.crowd_keys)
        self.checkpoints = checkpoints = CheckpointParts(assignment, regions, progress, output, rules)
        changes = ChangeParts(assignment, regions, progress, output, rules)
        self.replication = replication = Replication(regions, progress, peers, output, rules)
        self.lookups = lookups = Lookups(
            regions,
            progress,
            peers,
            upqueries,
            output,
            rules,
            serve_from=assignment.serve_from,
            answer_rows_max=settings.answer_rows_max,
        )
        self.distributors = distributors = Distributors(regions, progress, peers, lookups, checkpoints, output, rules)
        self.evictions = KeyEvictions(regions, memory, lookups, distributors, output)
        self.failed_views = failed_views = FailedViews(regions, peers, replication, lookups, output, rules)
        self.epochs = epochs = Epochs(
            progress, regions, upqueries, replication, checkpoints, changes, distributors, output, rules
        )
        self.fills = Fills(regions, upqueries, lookups, distributors, epochs, output)
        membership = Membership(
            born, regions, progress, peers, upqueries, lookups, replication, distributors, failed_views, output, rules
        )
        self._handlers = self._table(membership)

    @property
    def progress(self) -> EpochProgress:
        return self.epochs.progress

    @property
    def unfinished(self) -> Epoch:
        """The first epoch that this share is not through: the one to restore, or to read, or in its stages, or the
        next."""
        progress = self.epochs.progress
        if progress.reading is not None:
            return progress.reading.epoch
        if self.checkpoints.is_restoring:
            return self.assignment.start_at
        return progress.applied if progress.reflected < progress.applied else Epoch(progress.applied + 1)

    def handle(self, event: ShareEvent) -> list[ShareAction]:
        """Advance by one event. Raises IllegalEvent for an event that no component handles."""
        handler = self._handlers.get(type(event))
        if handler is None:
            raise IllegalEvent(f"{type(event).__name__} in phase Serving")
        self.output.begin()
        taken = self.distributors.taken
        may_be_behind = isinstance(event, ROWS_MAY_WAIT)
        if not may_be_behind:
            self.regions.catch_up()
        handler(event)
        if not may_be_behind:
            self.regions.catch_up()
        self._follow_up(may_take_more=isinstance(event, MAY_TAKE_MORE), taken=taken)
        return self.output.take()

    def _follow_up(self, *, may_take_more: bool, taken: int) -> None:
        """What follows every event. may_take_more: than before. taken: the keys that had come before the event."""
        self.failed_views.note()
        self.epochs.finish()  # which may have waited for a view that has failed
        self.distributors.follow_owners()
        self.epochs.end_stage()
        if may_take_more:
            self.memory.weigh()
            if self.progress.applied >= self.assignment.serve_from:
                self.memory.serves(self._flow)
        self.upqueries.begin_postponed()
        self.epochs.settle_late_rows()
        self.epochs.report_late_rows()
        if self.distributors.taken != taken:
            self.distributors.report_still()
        self.failed_views.note()

    def memory_changed(self) -> list[ShareAction]:
        """Another share has made or taken room."""
        self.output.begin()
        self.failed_views.note()
        self.epochs.finish()
        self.evictions.count()
        self.upqueries.begin_postponed()
        return self.output.take()

    def fail(self, error: Exception) -> list[ShareAction]:
        """A step has failed: so do all views (flows.fail_alone). What it was to say before stays said."""
        self.failed_views.fail_all(error)
        self._follow_up(may_take_more=False, taken=self.distributors.taken)
        self.epochs.read_next()
        return self.output.take()

    def begin(self) -> list[ShareAction]:
        """The actions of a share that has just been assigned."""
        self.checkpoints.restore()
        self.failed_views.note()
        return self.output.take()

    def end(self, error: UpriverError) -> list[ShareAction]:
        """Refuse all lookups: this assignment is over."""
        self.output.begin()
        self.lookups.refuse_all(error)
        return self.output.take()

    def resumed(self, event: Resume, settings: ShareSettings) -> "Serving":
        """The share after the change of hands; the actions of its ``output`` are what must be done."""
        ended = self.end(WrongOwner("keys change their workers; ask again"))
        before = self.regions.settled_maps()
        assignment = replace(
            self.assignment,
            maps=event.maps,
            reads=event.reads,
            start_at=event.at,
            serve_from=event.serve_from,
            generation=event.generation,
            failed=self.regions.failed,
        )
        new = Serving(assignment, settings, self._born)
        new.output.put_first(ended)
        keep_partial = self.progress.opened <= event.at
        new.upqueries.succeed(self.upqueries, keep_state=keep_partial)
        new.evictions.succeed(self.evictions)
        new.checkpoints.succeed(self.checkpoints)
        new.replication.succeed(self.replication)
        new.regions.succeed(self.regions, keep_partial=keep_partial, put_back=settings.rules.replication_put_back)
        new.output.report(StartedAnew(generation=event.generation))
        gained, owners = new.regions.change_hands(before)
        new.replication.take_over(owners, gained)
        new.replication.end_moved(new.regions.moved_since(before))
        new.replication.go_back_to(event.at)
        new.failed_views.note()
        return new

    def _table(self, membership: Membership) -> Mapping[type, Callable[[Any], None]]:
        """The handler of each event. The key is the type of the handler's event, which no type checker can see."""
        return {
            OpenEpoch: self.epochs.open_epoch,
            RowsRead: self.epochs.rows_read,
            EpochRead: self.epochs.epoch_read,
            BeginStage: self.epochs.begin_stage,
            TimeToSettle: self.epochs.time_to_settle,
            EpochOver: self.epochs.epoch_over,
            AllStateRead: self.epochs.all_state_read,
            LookupAsked: self.distributors.lookup_asked,
            TimeToAnswer: self.distributors.time_to_answer,
            LookupGivenUp: self.lookups.given_up,
            TimeToMove: self.distributors.time_to_move,
            PauseEpochs: self.distributors.pause_moves,
            ContinueEpochs: self.distributors.continue_moves,
            KeysRead: self.fills.keys_read,
            KeysUnread: self.fills.keys_read,
            ReadTakesLong: self.upqueries.read_takes_long,
            RowsFetched: self.fills.rows_fetched,
            RowsUnfetched: self.fills.rows_fetched,
            TimeToTakeIn: self.fills.time_to_take_in,
            TimeToFill: self.upqueries.time_to_fill,
            Evict: self.evictions.evict,
            TimeToEvict: self.evictions.time_to_evict,
            TakeSnapshot: self.checkpoints.snapshot_asked,
            DropSnapshot: self.checkpoints.snapshot_dropped,
            StateRead: self.checkpoints.state_read,
            StateUnread: self.checkpoints.state_unread,
            TakeCheckpoint: self.checkpoints.checkpoint_asked,
            TimeToCopy: self.checkpoints.time_to_copy,
            StateWritten: self.checkpoints.state_written,
            StateNotWritten: self.checkpoints.state_not_written,
            KeepCheckpoint: self.checkpoints.checkpoint_kept,
            DropCheckpoint: self.checkpoints.checkpoint_dropped,
            TakeChanges: self.epochs.changes.asked,
            ChangesStored: self.epochs.changes.stored,
            ChangesNotStored: self.epochs.changes.not_stored,
            ChangesLogged: self.epochs.changes.logged,
            Follow: self.replication.follow,
            Unfollow: self.replication.unfollow,
            TimeToFeed: self.replication.time_to_feed,
            FailView: self.failed_views.failed_elsewhere,
            Meet: membership.begin_meeting,
            PeersMet: membership.peers_met,
            MigrationOrder: membership.migration_ordered,
            PeerSaid: membership.peer_said,
            PeerLost: membership.peer_lost,
            ReadVnodes: membership.read_vnodes,
            CloseInput: membership.close_input,
        }
