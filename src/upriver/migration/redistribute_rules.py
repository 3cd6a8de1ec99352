"""The rules of ``redistribute``, one switch each; ``docs/design/redistribute.md`` says why each.

A rule is switched off only by a test or by the simulator, to show what it prevents. ``AS_PUBLISHED`` is document 001
as written: without it the races P1 to P5 are there.
"""

from dataclasses import dataclass


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
