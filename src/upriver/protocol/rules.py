"""The safety rules of the river, one switch each.

A rule is switched off only by a test, to show that the checkers catch its absence. Their numbers are those of
``docs/design/0001-river.md``.
"""

from dataclasses import dataclass

from upriver.partial.rules import ALL_RULES as ALL_UPQUERY_RULES
from upriver.partial.rules import UpqueryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All on in production."""

    w1_each_epoch_once: bool = True
    """W1: a worker applies epochs in order, each exactly once."""
    w2_counts_match: bool = True
    """W2: an epoch ends at a worker only with as many rows per channel as its manifest promises."""
    w3_wait_for_replay: bool = True
    """W3: a worker answers no lookup before it has applied all that was published when it joined."""
    w4_own_vnodes_only: bool = True
    """W4: a worker that has no channel to its peers answers only for vnodes that it owns."""
    w5_snapshot_at_cut: bool = True
    """W5: a snapshot is taken when the worker stands exactly at its cut."""
    w6_wait_until_over: bool = True
    """W6: a lookup that asks for a mixed epoch waits until it is over everywhere."""
    w8_own_generation_only: bool = True
    """W8: what workers said before all of them started anew is not listened to."""
    c1_all_workers_finish: bool = True
    """C1: an epoch ends when every worker has finished it, and every row was applied."""
    c2_current_incarnation_only: bool = True
    """C2: what another than a worker's current incarnation reports is ignored."""
    c4_cut_ahead_of_all: bool = True
    """C4: a snapshot's cut is the highest epoch that any worker has been sent."""
    c5_lock_step: bool = True
    """C5: while a rescale is on, epochs are opened when all that were opened have ended everywhere."""
    c6_between_epochs: bool = True
    """C6: a rescale is announced when all epochs that were opened have ended."""
    c7_still_while_cut: bool = True
    """C7: during a rescale a snapshot is taken when no state is on its way, and none moves until it is taken."""
    c8_leave_when_dry: bool = True
    """C8: a leaver's input is closed when the last epoch that it reads has ended."""
    c9_rows_have_arrived: bool = True
    """C9: a stage begins when every row of the epoch for its regions has arrived."""
    c10_anew_when_torn: bool = True
    """C10: with exchange edges, all workers begin anew when one of them or a channel between two is lost."""
    c11_views_change_between_epochs: bool = True
    """C11: views change between two epochs, when no rescale is on and no snapshot is being taken."""
    c12_no_older_snapshot: bool = True
    """C12: when all have begun anew, no snapshot is taken before somebody was sent what anybody was before."""
    w9_settle_what_comes_late: bool = True
    """W9: what was gathered elsewhere, and comes with its key's state after the stage is done here, is taken in."""
    w10_set_aside_at_once: bool = True
    """W10: a row that is left out of a view is written to the lake by the step that leaves it out."""
    w11_between_epochs: bool = True
    """W11: keys that are asked for together are answered when none of them has rows of a later epoch than is told."""
    w12_whole_stages: bool = True
    """W12: a stage is done at a worker when all its gathered rows are taken in, and all that came of them is sent."""
    v1_copy_before_change: bool = True
    """V1: a key is copied for a checkpoint as of its cut, before anything of a later epoch changes it."""
    v2_all_parts: bool = True
    """V2: a checkpoint is published when every worker has written all of its part."""
    v3_restore_first: bool = True
    """V3: a worker reads no epoch and answers nothing before all that it keeps is restored."""
    v4_moved_keys_change: bool = True
    """V4: keys that have moved, here or away, have changed since the last checkpoint."""
    v5_keys_stay: bool = True
    """V5: no checkpoint is taken while keys move, and none move while one is taken."""
    v6_given_up_when_torn: bool = True
    """V6: a checkpoint is given up when a worker that has a part of it is lost, or all begin anew."""
    v8_dropped_have_changed: bool = True
    """V8: what a checkpoint was to have that is given up is in the next one."""
    v9_whole_after_losses: bool = True
    """V9: a checkpoint is whole after somebody has gone for good who knew what has changed since the last one."""
    s2_taken_in_when_over: bool = True
    """S2: what has changed in an epoch is taken in by who follows when the epoch is over everywhere."""
    s3_put_back: bool = True
    """S3: when others take over, keys that an epoch has changed which is not over are put back as they were."""
    s4_caught_up: bool = True
    """S4: who takes a slice over has caught up with its owner."""
    s5_between_epochs: bool = True
    """S5: slices are handed to who has learned them between two epochs."""
    s6_put_back_has_changed: bool = True
    """S6: a key that was put back has changed, for whoever follows."""
    s8_unfed_says_so: bool = True
    """S8: who follows another, has not caught up, and loses its channel to it says so."""
    workers_failed_are_replaced: bool = True
    """workers.failed_are_replaced: a worker that fails, of whatever cause, is replaced, as if it had died."""
    views_fail_alone: bool = True
    """views.fail_alone: what goes wrong as a view is computed fails that view; its worker and other views go on."""
    views_fail_everywhere: bool = True
    """views.fail_everywhere: a view that has failed at one worker fails at all."""
    views_failed_are_recorded: bool = True
    """views.failed_are_recorded: a checkpoint names the views that have failed: what it has of their state is of no
    use."""
    views_fail_ahead: bool = True
    """views.fail_ahead: a worker tells its peers that a view has failed ahead of all that lacks the view's state."""
    lookups_one_moment: bool = True
    """lookups.one_moment: an answer that is read some rows at a time is as of the moment at which it began."""
    upqueries: UpqueryRules = ALL_UPQUERY_RULES
    """P1 to P10, K1 and K2, of partial state: ``docs/design/partial.md``."""


ALL_RULES = Rules()
