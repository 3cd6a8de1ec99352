"""The safety rules of partial state, one switch each; their names are those of ``docs/internals/partial.md``.

A rule is switched off only by a test, to show that the checkers catch its absence.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpqueryRules:
    """All on in production."""

    partial_missing_is_not_empty: bool = True
    """partial.missing_is_not_empty: rows of a missing key are dropped before any operator sees them."""
    partial_pending_keys_retain: bool = True
    """partial.pending_keys_retain: rows of a pending key that its upquery does not read are retained, and applied
    after its answer."""
    partial_each_row_once: bool = True
    """partial.each_row_once: a row of an epoch that the key's upquery has read is not applied again."""
    partial_own_upquery_only: bool = True
    """partial.own_upquery_only: an answer counts only for keys that still wait for that very upquery."""
    partial_ask_where_the_key_goes: bool = True
    """partial.ask_where_the_key_goes: pending keys of a slice that begins to move are given up here, and asked for at
    their new owner."""
    partial_asked_keys_stay: bool = True
    """partial.asked_keys_stay: a key that a waiting lookup has asked for is not evicted."""
    partial_read_ahead: bool = True
    """partial.read_ahead: an upquery also reads the published epochs after the one that is open here, as many as other
    workers may be ahead. Rows of the key in them may have been dropped, at its earlier owner or on their way here."""
    partial_rows_before_lookups: bool = True
    """partial.rows_before_lookups: rows that wait to be applied are applied before one of their keys is looked up."""
    partial_room_first: bool = True
    """partial.room_first: under a budget, keys are filled only when there is room; other keys are evicted first."""
    partial_whole_keys_only: bool = True
    """partial.whole_keys_only: a key is shown only once all rows that its upquery has read are taken in."""
    partial_clock_of_the_answer: bool = True
    """partial.clock_of_the_answer: an upquery's rows come as of the instant of the last epoch that it has read."""
    cones_keep_what_keys_rest_on: bool = True
    """cones.keep_what_keys_rest_on: what a kept key comes to rest on is filled before the epoch's rows are taken in."""
    cones_catch_up_first: bool = True
    """cones.catch_up_first: keys that were filled while the cone advanced catch up with it before they join it."""
    cones_whole_epochs: bool = True
    """cones.whole_epochs: a key is not shown while rows of an epoch that may change it are taken in."""
    cones_join_between_epochs: bool = True
    """cones.join_between_epochs: filled keys join a cone while it takes no epoch in."""
    cones_never_back: bool = True
    """cones.never_back: keys that came from another worker are not shown as of an epoch before the last one that that
    worker has shown."""


ALL_RULES = UpqueryRules()
