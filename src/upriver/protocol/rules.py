"""The safety rules of the cluster, one switch each.

A rule is switched off only by a test, to show that the checkers catch its absence. Their numbers are those of
``docs/internals/epochs.md``.
"""

from dataclasses import dataclass

from upriver.partial.rules import ALL_RULES as ALL_UPQUERY_RULES
from upriver.partial.rules import UpqueryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All on in production."""

    worker_each_epoch_once: bool = True
    """worker.each_epoch_once: a worker applies epochs in order, each exactly once."""
    worker_counts_match: bool = True
    """worker.counts_match: views fail if a worker has read more or fewer rows of their channel than an epoch's manifest
    promises."""
    worker_wait_for_replay: bool = True
    """worker.wait_for_replay: a worker answers no lookup before it has applied all epochs that were published when it
    joined."""
    worker_own_vnodes_only: bool = True
    """worker.own_vnodes_only: a worker that has no channel to its peers answers only for vnodes that it owns."""
    worker_snapshot_at_cut: bool = True
    """worker.snapshot_at_cut: a snapshot is taken when the worker stands exactly at its cut."""
    worker_wait_until_over: bool = True
    """worker.wait_until_over: a lookup that asks for a mixed epoch waits until it is over everywhere."""
    worker_own_generation_only: bool = True
    """worker.own_generation_only: messages from before all workers started anew are ignored."""
    coordinator_all_workers_finish: bool = True
    """coordinator.all_workers_finish: an epoch ends when every worker has finished it, and every row was applied."""
    coordinator_current_incarnation_only: bool = True
    """coordinator.current_incarnation_only: reports of any but a worker's current incarnation are ignored."""
    coordinator_late_reports_change_nothing: bool = True
    """coordinator.late_reports_change_nothing: a report that comes late, twice, or for something that is over changes
    nothing."""
    coordinator_cut_ahead_of_all: bool = True
    """coordinator.cut_ahead_of_all: a snapshot's cut is the highest epoch that any worker has been sent."""
    coordinator_lock_step: bool = True
    """coordinator.lock_step: while a rescale is on, epochs are opened when all that were opened have ended
    everywhere."""
    coordinator_between_epochs: bool = True
    """coordinator.between_epochs: a rescale is announced when all epochs that were opened have ended."""
    coordinator_still_while_cut: bool = True
    """coordinator.still_while_cut: during a rescale a snapshot is taken when no state is on its way, and none moves
    until it is taken."""
    coordinator_leave_when_dry: bool = True
    """coordinator.leave_when_dry: a leaver's input is closed when the last epoch that it reads has ended."""
    coordinator_rows_have_arrived: bool = True
    """coordinator.rows_have_arrived: a stage begins when every row of the epoch for its regions has arrived."""
    coordinator_anew_when_met: bool = True
    """coordinator.anew_when_met: after a channel between two workers is lost that are both there, no worker begins anew
    before all have channels again. Until then they keep their state, and answer."""
    coordinator_move_cut_off: bool = True
    """coordinator.move_cut_off: if a link between two workers stays broken for a lease's time, and a slot is free on
    another host, the end with more broken links is replaced by a process there."""
    coordinator_anew_when_torn: bool = True
    """coordinator.anew_when_torn: with exchange edges, all workers begin anew when one of them or a channel between
    two is lost."""
    flows_change_between_rescales: bool = True
    """flows.change_between_rescales: flows are added and dropped when no rescale is on, and no standby is about to
    take over."""
    coordinator_no_older_snapshot: bool = True
    """coordinator.no_older_snapshot: after all workers begin anew, no snapshot is taken before a worker was sent the
    highest epoch that any worker was sent before."""
    coordinator_none_within_a_segment: bool = True
    """coordinator.none_within_a_segment: the epochs of a segment are opened as one from the moment when no worker
    stands among them, and none may begin there."""
    coordinator_rewritten_for_all: bool = True
    """coordinator.rewritten_for_all: segments that were rewritten as of an epoch are read from the moment when every
    worker is through that epoch or before the segments, and then by all workers."""
    succession_fence_first: bool = True
    """succession.fence_first: a driver takes the next slot of the epochs, and of the commits of the change log, before
    it assigns one or removes a file. A rule for the shell, as the next two."""
    succession_sealed_files: bool = True
    """succession.sealed_files: of an earlier term's segments, indexes, supplements, sources, folds and checkpoints,
    only those count that were there when a later driver had opened its term."""
    succession_check_before_removal: bool = True
    """succession.check_before_removal: a driver decides which files nothing needs, then checks that the root is still
    its own, and removes them then."""
    segments_grace: bool = True
    """segments.grace: files that a segment has replaced stay for the readers that have begun. A rule for the shell."""
    worker_settle_what_comes_late: bool = True
    """worker.settle_what_comes_late: a worker takes in rows that another worker gathered and that come with their key's
    state after the stage is done here."""
    worker_put_off_rows_count: bool = True
    """worker.put_off_rows_count: a stage is over when every row that a node has failed on was tried again, wherever its
    key is by then."""
    worker_set_aside_at_once: bool = True
    """worker.set_aside_at_once: a row that is left out of a view is written to the lake by the step that leaves it
    out."""
    worker_between_epochs: bool = True
    """worker.between_epochs: keys that are looked up together are answered when none of them has rows of a later epoch
    than the answer tells."""
    worker_whole_keys: bool = True
    """worker.whole_keys: a lookup waits while one of its keys may have a part of the rows of an epoch."""
    worker_moving_keys_whole: bool = True
    """worker.moving_keys_whole: the rows that a key has of an epoch on one edge are applied in one piece while keys
    move, and where their reader does not keep the key: its owner would not know of a part."""
    worker_whole_stages: bool = True
    """worker.whole_stages: a stage is done at a worker when all its gathered rows are taken in, and all their results
    are sent."""
    checkpoints_copy_before_change: bool = True
    """checkpoints.copy_before_change: a key is copied for a checkpoint as of its cut, before a later epoch changes
    it."""
    checkpoints_all_parts: bool = True
    """checkpoints.all_parts: a checkpoint is published when every worker has written all of its part."""
    checkpoints_restore_first: bool = True
    """checkpoints.restore_first: a worker reads no epoch and answers no lookup before all its state is restored."""
    checkpoints_moved_keys_change: bool = True
    """checkpoints.moved_keys_change: keys that have moved, here or away, have changed since the last checkpoint."""
    checkpoints_keys_stay: bool = True
    """checkpoints.keys_stay: no checkpoint is taken while keys move, and none move while one is taken."""
    checkpoints_given_up_when_torn: bool = True
    """checkpoints.given_up_when_torn: a checkpoint is given up when a worker that has a part of it is lost, or all
    begin anew."""
    checkpoints_dropped_have_changed: bool = True
    """checkpoints.dropped_have_changed: keys of a checkpoint that is given up are in the next one."""
    checkpoints_damaged_is_skipped: bool = True
    """checkpoints.damaged_is_skipped: a checkpoint with a damaged file is left out; workers begin with an older one."""
    checkpoints_not_within_a_segment: bool = True
    """checkpoints.not_within_a_segment: no worker begins with a checkpoint of an epoch within a segment; newer ones may
    build on it."""
    checkpoints_whole_after_losses: bool = True
    """checkpoints.whole_after_losses: a checkpoint is whole after a worker has gone for good that knew what changed
    since the last one."""
    checkpoints_kept_while_read: bool = True
    """checkpoints.kept_while_read: a checkpoint that is outgrown is dropped when no worker restores from it."""
    changes_all_parts: bool = True
    """changes.all_parts: changes are published when every worker has written all of its part."""
    changes_keys_stay: bool = True
    """changes.keys_stay: no changes are taken while keys move, and none move while changes are taken."""
    changes_given_up_when_torn: bool = True
    """changes.given_up_when_torn: changes that are being taken are given up when a worker that has a part of them is
    lost, or all begin anew. The next ones have them."""
    changes_kept_until_logged: bool = True
    """changes.kept_until_logged: a worker forgets changes when they are in the log, and not when it has written
    them."""
    changes_settled_before_views_change: bool = True
    """changes.settled_before_views_change: no view is declared or dropped while the driver commits changes: the next
    ones would have them again."""
    changes_noted_from_the_cut: bool = True
    """changes.noted_from_the_cut: a worker that begins while the driver commits the beginning of a log notes the
    changes after that version."""
    changes_not_within_a_segment: bool = True
    """changes.not_within_a_segment: epochs after the last version of the log are not opened as one with those before
    it."""
    replication_taken_in_when_over: bool = True
    """replication.taken_in_when_over: a follower takes in an epoch's changes when the epoch is over everywhere."""
    replication_put_back: bool = True
    """replication.put_back: when standbys take over, keys that an unfinished epoch has changed are put back as they
    were."""
    replication_caught_up: bool = True
    """replication.caught_up: a follower that takes a slice over has caught up with its owner."""
    replication_between_epochs: bool = True
    """replication.between_epochs: slices are handed to their learners between two epochs."""
    replication_put_back_has_changed: bool = True
    """replication.put_back_has_changed: a key that was put back has changed, for its followers."""
    replication_unfed_says_so: bool = True
    """replication.unfed_says_so: a follower that has not caught up and loses its channel to the owner says so."""
    control_record_before_begin: bool = True
    """control.record_before_begin: a rescale begins when the lake has a control record of what it leads to."""
    control_record_before_end: bool = True
    """control.record_before_end: clients hear of a rescale's end when the lake has a control record of it."""
    workers_faults_are_theirs: bool = True
    """workers.faults_are_theirs: an error of the coordinator while it handles a worker's message replaces that worker,
    and all begin anew."""
    workers_failed_are_replaced: bool = True
    """workers.failed_are_replaced: a worker that fails, of whatever cause, is replaced, as if it had died."""
    views_fail_alone: bool = True
    """views.fail_alone: an error while a view is computed fails that view; its worker and other views go on."""
    flows_fail_alone: bool = True
    """flows.fail_alone: an error in a step of one flow's share fails the views of that flow; the worker and its other
    flows go on."""
    flows_build_fails_first: bool = True
    """flows.build_fails_first: where views that keep every key take more than the budget, one that is built beside
    others fails before any of them."""
    flows_held_in_order: bool = True
    """flows.held_in_order: what comes for a share behind an event that waits for a user's function waits, too."""
    flows_fail_when_deadly: bool = True
    """flows.fail_when_deadly: a flow fails when a worker's process has died three times running in a step of it, at one
    epoch."""
    views_fail_everywhere: bool = True
    """views.fail_everywhere: a view that has failed at one worker fails at all."""
    views_fail_readers: bool = True
    """views.fail_readers: what reads a stateful map of its flow fails with the map."""
    views_failed_are_recorded: bool = True
    """views.failed_are_recorded: a checkpoint names the views that have failed: their state in it is of no use."""
    views_fail_ahead: bool = True
    """views.fail_ahead: a worker tells its peers that a view has failed before any message that lacks its state."""
    views_fail_miscounted: bool = True
    """views.fail_miscounted: a view whose rows are miscounted fails, and its counts hold no epoch up."""
    lookups_one_moment: bool = True
    """lookups.one_moment: an answer that is read some rows at a time is as of the moment at which it began."""
    retention_retract_with_epoch: bool = True
    """retention.retract_with_epoch: the rows that an epoch's cut reaches are taken back with the epoch's own rows."""
    retention_late_rows_stay_out: bool = True
    """retention.late_rows_stay_out: a row that its epoch's cut has reached is not let in."""
    retention_read_what_remains: bool = True
    """retention.read_what_remains: a read of keys through an epoch gives the rows that remain at that epoch's end."""
    clock_loads_before_the_end: bool = True
    """clock.loads_before_the_end: where a view depends on the clock, a worker finishes an epoch when all state that it
    has sent before the epoch is installed."""
    clock_own_instant: bool = True
    """clock.own_instant: an epoch is opened with its own instant, however late a worker gets to it."""
    clock_lookups_between_epochs: bool = True
    """clock.lookups_between_epochs: where a view depends on the clock, lookups are answered between a worker's epochs:
    amid one, a key may have the rows of one epoch at the time of another."""
    upqueries: UpqueryRules = ALL_UPQUERY_RULES
    """partial.*, cones.keep_what_keys_rest_on and cones.never_back, of partial state: ``docs/internals/partial.md``."""


ALL_RULES = Rules()
