"""The safety rules of the river, one switch each.

A rule is switched off only by a test, to show that the checkers catch its absence. Their numbers are those of
``docs/design/0001-river.md``.
"""

from dataclasses import dataclass


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
    """W4: a worker answers only for vnodes that it owns."""
    w5_snapshot_at_cut: bool = True
    """W5: a snapshot is taken when the worker stands exactly at its cut."""
    w6_whole_keys: bool = True
    """W6: a lookup sees all of an epoch's rows of a key, or none of them."""
    c1_all_workers_finish: bool = True
    """C1: an epoch ends when every worker has finished it."""
    c2_current_incarnation_only: bool = True
    """C2: what another than a worker's current incarnation reports is ignored."""
    c4_cut_ahead_of_all: bool = True
    """C4: a snapshot's cut is the highest epoch that any worker has been sent."""


ALL_RULES = Rules()
