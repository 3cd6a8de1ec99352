"""The rules of ``redistribute``, one switch each; ``docs/design/redistribute.md`` says why each.

A rule is switched off only by a test or by the simulator, to show what it prevents. ``AS_PUBLISHED`` is document 001
as written: without it the races P1 to P5 are there.

The rules that mend ICADD, one switch each.

Rule Mn answers fault Rn of the rules as published; H1 to H4 are what the mended rules rest on besides. A rule is
switched off only by a test, to show that the checkers catch its absence. ``docs/design/icadd.md`` says why each.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedRules:
    """All on in production."""

    m1_take_from_old_owner_only: bool = True
    """M1: a worker that has not started takes rows early only from their owner; others' are parked."""
    m2_park_behind_marker: bool = True
    """M2: rows that came straight are parked until their origin's mark came by way of the old owner."""
    m3_old_owner_first: bool = True
    """M3: rows go to the old owner until it has said Done of their slice."""
    m4_whitelist_what_passes: bool = True
    """M4: a key that passes while its slice is interrogated is whitelisted, whoever sent it."""
    m5_joiner_knows_old_map: bool = True
    """M5: a joining worker starts from the old map."""
    m7_early_messages_kept: bool = True
    """M7: what a peer says of the next rescale before it was announced here counts."""
    m8_leave_after_marks: bool = True
    """M8: a worker leaves only when every origin's mark was relayed."""
    m9_one_rescale_at_a_time: bool = True
    """M9: a rescale is announced only when all workers have settled the one before."""
    m10_waiting_rows_in_flight: bool = True
    """M10: rows held or parked count as in flight, so no epoch ends over them."""
    h1_state_before_held_rows: bool = True
    """H1: held rows follow their key's Acquire on the same channel."""
    h2_done_when_both_empty: bool = True
    """H2: Done of a slice is said when its whitelist and its hold are both empty."""
    h3_mark_after_start: bool = True
    """H3: an origin marks a slice only when it has itself started, and so has sent its last row by the old way."""
    h4_begun_slice_is_finished: bool = True
    """H4: an abort keeps no slice of which the new owner was sent a key or a row."""


ALL_RULES = MendedRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeRules:
    """All on in production."""

    d1_new_keys_wait: bool = True
    """D1: a key that is in no set waits until its old owner has closed the sets (P1, P2)."""
    d2_what_passes_is_listed: bool = True
    """D2: keys that pass at the old owner until the last X's first FINAL are added to its sets (P1, P2)."""
    d3_final_of_nothing: bool = True
    """D3: FINAL and REDISTRIBUTE are said once even when the sets are empty (P1)."""
    d4_one_copy_of_state: bool = True
    """D4: the state goes to the new owner in one copy, not in one by way of each X (P3, P6)."""
    d5_straight_rows_wait: bool = True
    """D5: the new owner parks rows of a key until its own REDISTRIBUTE has told that the key is its own (P3)."""
    d6_each_owner_by_itself: bool = True
    """D6: an X goes by the new map only for keys of old owners whose sets have come (P4)."""
    d7_all_have_announced: bool = True
    """D7: an old owner begins when every X has said SHUTDOWN or SCALEUP; so it hears nobody who lags behind."""
    d8_all_are_final: bool = True
    """D8: state leaves when every X has said FINAL of its keys."""
    d9_waiting_rows_in_flight: bool = True
    """D9: rows stored or parked count as in flight, so no epoch ends over them."""
    d10_joiner_knows_old_map: bool = True
    """D10: a joining worker starts from the old map."""
    d11_begun_is_finished: bool = True
    """D11: an abort keeps nothing of an old owner that has closed its sets or collected a key."""
    d12_settle_when_all_told: bool = True
    """D12: a worker settles, and so can leave, only when every old owner has told it that it is through."""
    d13_sets_are_united: bool = True
    """D13: the sets of a region with several operators are those of all of them (P5)."""


ALL_ON = RedistributeRules()

AS_PUBLISHED = RedistributeRules(
    d1_new_keys_wait=False,
    d2_what_passes_is_listed=False,
    d3_final_of_nothing=False,
    d4_one_copy_of_state=False,
    d5_straight_rows_wait=False,
    d6_each_owner_by_itself=False,
    d9_waiting_rows_in_flight=False,
    d13_sets_are_united=False,
)
"""The document knows no epochs and no aborts; waiting for all X (D7, D8) is its own rule."""
