"""Each rule of ``redistribute`` is there for something: without it, the checkers find what it prevents."""

from dataclasses import fields, replace

import pytest

from simulator.icadd_cases import BOUNCED, BYSTANDER, EPOCHS, JOIN_WITH_ROWS, QUIET, TINY
from simulator.icadd_node import NodeKind
from simulator.icadd_scenario import Scenario
from simulator.icadd_search import Search
from simulator.redistribute_cases import (
    ABORT_TWO_KEYS,
    LEAVE_AMONG_OTHERS,
    SECOND_OPERATOR,
    TWO_ORIGINS,
    TWO_OWNERS,
)
from simulator.redistribute_rulebook import redistribute_rulebook
from upriver.migration.rules import ALL_ON, RedistributeRules

STATES_MAX = 5_000

CAUGHT: list[tuple[str, Scenario, NodeKind]] = [
    ("redistribute_new_keys_wait", TWO_ORIGINS, NodeKind.SPLIT),
    ("redistribute_what_passes_is_listed", BOUNCED, NodeKind.MISPLACED),
    ("redistribute_final_of_nothing", BOUNCED, NodeKind.ILLEGAL),
    ("redistribute_one_copy_of_state", QUIET, NodeKind.SPLIT),
    ("redistribute_straight_rows_wait", BYSTANDER, NodeKind.SPLIT),
    ("redistribute_each_owner_by_itself", TWO_OWNERS, NodeKind.SPLIT),
    ("redistribute_all_have_announced", TINY, NodeKind.ILLEGAL),
    ("redistribute_all_are_final", BYSTANDER, NodeKind.SPLIT),
    ("redistribute_waiting_rows_in_flight", EPOCHS, NodeKind.LATE),
    ("redistribute_joiner_knows_old_map", JOIN_WITH_ROWS, NodeKind.SPLIT),
    ("redistribute_begun_is_finished", ABORT_TWO_KEYS, NodeKind.SPLIT),
    ("redistribute_settle_when_all_told", LEAVE_AMONG_OTHERS, NodeKind.DEAD),
    ("redistribute_sets_are_united", SECOND_OPERATOR, NodeKind.SPLIT),
]


def test_every_rule_is_on_the_list() -> None:
    assert [name for name, _, _ in CAUGHT] == [field.name for field in fields(RedistributeRules)]


@pytest.mark.parametrize(("rule", "case", "kind"), CAUGHT, ids=[rule for rule, _, _ in CAUGHT])
def test_a_rule_that_is_off_is_missed(rule: str, case: Scenario, kind: NodeKind) -> None:
    broken = redistribute_rulebook(replace(ALL_ON, **{rule: False}))
    assert Search(case, broken).first(lambda world, steps, violation: violation.kind is kind, STATES_MAX) is not None
    whole = Search(case, redistribute_rulebook()).everything(STATES_MAX)
    assert whole.complete
    assert not whole.findings
