"""The rules that mend ICADD, one switch each.

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
