"""The safety rules of migration, one switch each: those of ``redistribute``, and those that mend ICADD.

``docs/internals/redistribute.md`` and ``docs/internals/icadd.md`` say why there is each rule. A rule is switched off
only by a test or by the simulator, to show what it prevents. ``AS_PUBLISHED`` is document 001 as written, with the
races P1 to P5.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedRules:
    """All on in production."""

    icadd_take_from_old_owner_only: bool = True
    """icadd.take_from_old_owner_only: a worker that has not started takes rows early only from their owner, and parks
    those of other workers."""
    icadd_park_behind_marker: bool = True
    """icadd.park_behind_marker: rows that came straight are parked until their origin's mark came by way of the old
    owner."""
    icadd_old_owner_first: bool = True
    """icadd.old_owner_first: rows go to the old owner until it has said Done of their slice."""
    icadd_whitelist_what_passes: bool = True
    """icadd.whitelist_what_passes: a key that passes while its slice is interrogated is whitelisted, whichever worker
    sent it."""
    icadd_joiner_knows_old_map: bool = True
    """icadd.joiner_knows_old_map: a joining worker starts from the old map."""
    icadd_early_messages_kept: bool = True
    """icadd.early_messages_kept: a peer's messages of the next rescale count even before it is announced here."""
    icadd_leave_after_marks: bool = True
    """icadd.leave_after_marks: a worker leaves only when every origin's mark was relayed."""
    icadd_one_rescale_at_a_time: bool = True
    """icadd.one_rescale_at_a_time: a rescale is announced only when all workers have settled the one before."""
    icadd_waiting_rows_in_flight: bool = True
    """icadd.waiting_rows_in_flight: rows held or parked count as in flight, so no epoch ends over them."""
    icadd_state_before_held_rows: bool = True
    """icadd.state_before_held_rows: held rows follow their key's Acquire on the same channel."""
    icadd_done_when_both_empty: bool = True
    """icadd.done_when_both_empty: Done of a slice is said when its whitelist and its hold are both empty."""
    icadd_mark_after_start: bool = True
    """icadd.mark_after_start: an origin marks a slice only when it has itself started, and so has sent its last row by
    the old way."""
    icadd_begun_slice_is_finished: bool = True
    """icadd.begun_slice_is_finished: an abort keeps no slice whose new owner was sent a key or a row of it."""


ALL_RULES = MendedRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeRules:
    """All on in production."""

    redistribute_new_keys_wait: bool = True
    """redistribute.new_keys_wait: a key that is in no set waits until its old owner has closed the sets (P1, P2)."""
    redistribute_what_passes_is_listed: bool = True
    """redistribute.what_passes_is_listed: keys that pass at the old owner until the last X's first FINAL are added to
    its sets (P1, P2)."""
    redistribute_final_of_nothing: bool = True
    """redistribute.final_of_nothing: FINAL and REDISTRIBUTE are said once even when the sets are empty (P1)."""
    redistribute_one_copy_of_state: bool = True
    """redistribute.one_copy_of_state: the state goes to the new owner in one copy, not in a copy from each X (P3,
    P6)."""
    redistribute_straight_rows_wait: bool = True
    """redistribute.straight_rows_wait: the new owner parks rows of a key until a REDISTRIBUTE has told it that it owns
    the key (P3)."""
    redistribute_each_owner_by_itself: bool = True
    """redistribute.each_owner_by_itself: an X goes by the new map only for keys of those old owners that have sent
    their sets (P4)."""
    redistribute_all_have_announced: bool = True
    """redistribute.all_have_announced: an old owner begins when every X has said SHUTDOWN or SCALEUP, so no X that it
    hears lags behind."""
    redistribute_all_are_final: bool = True
    """redistribute.all_are_final: state leaves when every X has said FINAL of its keys."""
    redistribute_waiting_rows_in_flight: bool = True
    """redistribute.waiting_rows_in_flight: rows stored or parked count as in flight, so no epoch ends over them."""
    redistribute_joiner_knows_old_map: bool = True
    """redistribute.joiner_knows_old_map: a joining worker starts from the old map."""
    redistribute_begun_is_finished: bool = True
    """redistribute.begun_is_finished: an abort keeps nothing of an old owner that has closed its sets or collected a
    key."""
    redistribute_settle_when_all_told: bool = True
    """redistribute.settle_when_all_told: a worker settles, and so can leave, only when every old owner has reported
    that it is through."""
    redistribute_sets_are_united: bool = True
    """redistribute.sets_are_united: the sets of a region with several operators are those of all of them (P5)."""


ALL_ON = RedistributeRules()

AS_PUBLISHED = RedistributeRules(
    redistribute_new_keys_wait=False,
    redistribute_what_passes_is_listed=False,
    redistribute_final_of_nothing=False,
    redistribute_one_copy_of_state=False,
    redistribute_straight_rows_wait=False,
    redistribute_each_owner_by_itself=False,
    redistribute_waiting_rows_in_flight=False,
    redistribute_sets_are_united=False,
)
"""The document has no epochs and no aborts; waiting for all X (redistribute.all_have_announced,
redistribute.all_are_final) is its own rule."""
