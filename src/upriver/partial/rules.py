"""The safety rules of partial state, one switch each; their numbers are those of ``docs/design/partial.md``.

A rule is switched off only by a test, to show that the checkers catch its absence.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpqueryRules:
    """All on in production."""

    p1_missing_is_not_empty: bool = True
    """P1: rows of a missing key are dropped before any operator sees them."""
    p2_pending_keys_retain: bool = True
    """P2: rows of a pending key that its upquery does not read are retained, and applied after its answer."""
    p3_each_row_once: bool = True
    """P3: a row of an epoch that the key's upquery has read is not applied again."""
    p4_own_upquery_only: bool = True
    """P4: an answer counts only for keys that still wait for that very upquery."""
    p5_ask_where_the_key_goes: bool = True
    """P5: pending keys of a slice that begins to move are given up here, and asked for at their new owner."""
    p6_asked_keys_stay: bool = True
    """P6: a key that a waiting lookup has asked for is not evicted."""
    p7_read_ahead: bool = True
    """P7: an upquery reads the epochs after the one that is open here, too, as many as others may be ahead, as far as
    they are published: rows of the key may have been dropped in them, where it was kept before or on their way here."""
    p8_rows_before_lookups: bool = True
    """P8: rows that wait to be applied are applied before one of their keys is looked up."""
    p9_room_first: bool = True
    """P9: under a budget, keys are filled when there is room for them, and others are evicted first."""
    p10_whole_keys_only: bool = True
    """P10: a key is shown once all rows that its upquery has read are taken in, however many there are."""
    k1_keep_what_keys_rest_on: bool = True
    """K1: what a kept key comes to rest on is filled before the epoch's rows are taken in."""
    k2_never_back: bool = True
    """K2: keys that came from another worker are not shown as of an epoch before the one that it has shown."""


ALL_RULES = UpqueryRules()
