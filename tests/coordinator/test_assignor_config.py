"""What the assignor refuses, and what it would never let out."""

from dataclasses import replace
from typing import Any

import pytest
from membership_kit import active, alone, standby, tasks

from upriver.coordinator.assignor import Roster, problems
from upriver.coordinator.group import Assignment, Group, InstanceId, MembershipConfig, TaskId
from upriver.errors import DeclarationError, ProtocolError
from upriver.ids import WorkerId

S1, S2, S3 = map(WorkerId, range(1, 4))


def test_the_documents_defaults() -> None:
    """Document 002: ``scale.down.timeout.ms`` "infinity", ``learner.partial.rebalance`` true. Kafka: no standbys, two
    warm-ups."""
    config = MembershipConfig()
    assert config.scale_down_timeout_ms is None
    assert config.learner_partial_rebalance is True
    assert (config.num_standby_replicas, config.max_warmup_replicas) == (0, 2)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("num_standby_replicas", -1, 0),
        ("num_standby_replicas", True, 0),
        ("max_warmup_replicas", 0, 1),
        ("max_warmup_replicas", 1.5, 1),
        ("acceptable_lag_epochs", -1, 0),
        ("acceptable_lag_epochs", "1", 0),
        ("scale_down_timeout_ms", -1, 0),
        ("scale_down_timeout_ms", float("inf"), 0),
    ],
)
def test_a_count_that_cannot_be_is_refused(name: str, value: Any, least: int) -> None:
    with pytest.raises(DeclarationError, match=f"^{name} must be a whole number, {least} or more, not {value!r}$"):
        MembershipConfig(**{name: value})


@pytest.mark.parametrize("name", ["learner_partial_rebalance", "eventual_balance"])
@pytest.mark.parametrize("value", [1, None, "true"])
def test_a_switch_is_on_or_off(name: str, value: Any) -> None:
    with pytest.raises(DeclarationError, match=f"^{name} must be True or False, not {value!r}$"):
        MembershipConfig(**{name: value})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"instances": {}}, "no worker"),
        ({"instances": {InstanceId("a"): []}}, "no worker"),
        ({"instances": {InstanceId("a"): [S1], InstanceId("b"): [S1]}}, r"in two instances, or twice in one: \[1, 1\]"),
        ({"leaving": {S3: 0}}, r"workers \[3\] leave, and are not there"),
        ({"leaving": {S1: -1}}, r"workers \[1\] were told to leave less than 0 ms ago"),
        ({"tasks": tasks(1, 1)}, "a task is named twice"),
    ],
)
def test_a_group_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    group = Group(tasks=tasks(1), instances=alone(1, 2))
    with pytest.raises(ProtocolError, match=message):
        replace(group, **wrong)


INSTANCES = {InstanceId("a"): [S1, S2], InstanceId("b"): [S3]}
GOOD = Assignment(active=active(S1=[1], S3=[2, 3]), standby=standby(S3=[1], S2=[2]), learner=active(S2=[2]))


def problems_of(leaving: WorkerId | None = None, **changed: Any) -> tuple[str, ...]:
    """Of tasks 1 and 2, and 3, which has no state."""
    group = Group(tasks=tasks(1, 2, 3), instances=INSTANCES, leaving={} if leaving is None else {leaving: 0})
    config = MembershipConfig(num_standby_replicas=1)
    stateful, stateless = [TaskId(1), TaskId(2)], [TaskId(3)]
    return problems(replace(GOOD, **changed), stateful, stateless, Roster.of(group, config), config)


def test_an_assignment_that_may_be() -> None:
    assert problems_of() == ()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"active": active(S1=[1], S3=[2])}, "tasks [3] are active nowhere, or are not there"),
        ({"active": active(S1=[1], S3=[2, 3, 4])}, "tasks [4] are active nowhere, or are not there"),
        ({"active": active(S1=[1], S3=[2], S9=[3])}, "task 3 is active at worker 9, which takes no part"),
        ({"learner": active(S2=[3])}, "worker 2 learns task 3, which has no state"),
        ({"learner": active(S3=[2])}, "worker 3 learns task 2, which it has"),
        ({"learner": active(S9=[2])}, "worker 9 learns task 2, and does not stay"),
        ({"leaving": S2, "standby": {}}, "worker 2 learns task 2, and does not stay"),
        ({"leaving": S2, "learner": {}}, "workers [2] are standbys of task 2, and do not stay"),
        ({"standby": standby(S1=[3])}, "there are standbys of task 3, which has no state"),
        ({"standby": standby(S2=[1])}, "two copies of task 1 are on one instance: workers [1, 2]"),
        ({"standby": standby(S1=[2], S2=[2])}, "task 2 has 2 standbys, of 1"),
    ],
)
def test_a_problem_is_named(changed: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(**changed)
