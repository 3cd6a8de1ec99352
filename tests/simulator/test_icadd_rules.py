"""Each rule of the mended protocol is there for something: without it, the checkers find what it prevents."""

from dataclasses import fields, replace

import pytest

from simulator.icadd_cases import (
    ABORT_NEW_KEY,
    BOUNCED,
    BYSTANDER,
    DOWN,
    EPOCHS,
    JOIN_WITH_ROWS,
    NEW_KEY,
    PAIR,
    QUIET,
    TINY,
    TWICE,
)
from simulator.icadd_node import NodeKind
from simulator.icadd_scenario import Scenario, mended
from simulator.icadd_search import Search
from upriver.migration.rules import ALL_RULES, MendedRules

STATES_MAX = 20_000

CAUGHT: list[tuple[str, Scenario, NodeKind]] = [
    ("icadd_take_from_old_owner_only", BYSTANDER, NodeKind.SPLIT),
    ("icadd_park_behind_marker", TINY, NodeKind.ORDER),
    ("icadd_old_owner_first", TINY, NodeKind.SPLIT),
    ("icadd_whitelist_what_passes", BOUNCED, NodeKind.MISPLACED),
    ("icadd_joiner_knows_old_map", JOIN_WITH_ROWS, NodeKind.SPLIT),
    ("icadd_early_messages_kept", QUIET, NodeKind.STUCK),
    ("icadd_leave_after_marks", DOWN, NodeKind.DEAD),
    ("icadd_one_rescale_at_a_time", TWICE, NodeKind.ILLEGAL),
    ("icadd_waiting_rows_in_flight", EPOCHS, NodeKind.LATE),
    ("icadd_state_before_held_rows", PAIR, NodeKind.SPLIT),
    ("icadd_done_when_both_empty", TINY, NodeKind.SPLIT),
    ("icadd_mark_after_start", NEW_KEY, NodeKind.ORDER),
    ("icadd_begun_slice_is_finished", ABORT_NEW_KEY, NodeKind.MISPLACED),
]


def test_every_rule_is_on_the_list() -> None:
    assert [name for name, _, _ in CAUGHT] == [field.name for field in fields(MendedRules)]


@pytest.mark.parametrize(("rule", "case", "kind"), CAUGHT, ids=[rule for rule, _, _ in CAUGHT])
def test_a_rule_that_is_off_is_missed(rule: str, case: Scenario, kind: NodeKind) -> None:
    broken = mended(replace(ALL_RULES, **{rule: False}))
    assert Search(case, broken).first(lambda world, steps, violation: violation.kind is kind, STATES_MAX) is not None
    whole = Search(case, mended()).everything(STATES_MAX)
    assert whole.complete
    assert not whole.findings
