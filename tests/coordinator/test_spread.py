"""Where workers are started, and which of them leave, over random hosts and executors."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.coordinator.spread import (
    ExecutorId,
    ExecutorSlots,
    executor_elsewhere,
    executor_for_worker,
    host_of,
    staying_workers,
)
from upriver.ids import WorkerId

EXECUTORS = st.lists(st.tuples(st.sampled_from("ABCD"), st.integers(1, 3)), min_size=1, max_size=6).map(
    lambda found: [ExecutorSlots(ExecutorId(str(at)), host, slots) for at, (host, slots) in enumerate(found)]
)


def started(executors: Sequence[ExecutorSlots], workers: int) -> Counter[ExecutorId]:
    """Where so many workers run, one started after the other."""
    placed = Counter[ExecutorId]()
    for _ in range(workers):
        chosen = executor_for_worker(executors, placed)
        assert chosen is not None
        placed[chosen.id] += 1
    return placed


@given(EXECUTORS, st.data())
def test_no_host_has_two_workers_more_than_another_with_a_free_slot(
    executors: list[ExecutorSlots], data: st.DataObject
) -> None:
    slots = sum(each.slots for each in executors)
    placed = started(executors, data.draw(st.integers(0, slots)))
    on_hosts = Counter[str]()
    for each in executors:
        on_hosts[each.host] += placed[each.id]
        assert placed[each.id] <= each.slots
    for each in executors:
        if placed[each.id] < each.slots:
            assert max(on_hosts.values()) <= on_hosts[each.host] + 1
            beside = [placed[other.id] for other in executors if other.host == each.host]
            assert max(beside) <= placed[each.id] + 1


def test_where_all_slots_have_workers_none_is_chosen() -> None:
    executors = [ExecutorSlots(ExecutorId("0"), "A", 1)]
    assert executor_for_worker(executors, {ExecutorId("0"): 1}) is None
    assert executor_for_worker([], {}) is None


INSTANCES = st.lists(st.sampled_from(["A/1", "A/2", "B/1", "B/2", "C/1"]), min_size=1, max_size=8)


@given(INSTANCES, st.integers(0, 9))
def test_those_leave_whose_host_has_most(found: list[str], size: int) -> None:
    instances = {WorkerId(number): instance for number, instance in enumerate(found)}
    staying = staying_workers(list(instances), size, instances)
    assert len(staying) == min(size, len(found))
    before = Counter(host_of(instance) for instance in found)
    after = Counter(host_of(instances[worker]) for worker in staying)
    for host in before:
        if after[host] < before[host]:
            assert max(after.values(), default=0) <= after[host] + 1
    at = Counter(instances[worker] for worker in staying)
    for instance, workers in Counter(found).items():
        if at[instance] < workers:
            assert all(at[other] <= at[instance] + 1 for other in at if host_of(other) == host_of(instance))


@pytest.mark.parametrize(
    ("instances", "staying"),
    [
        (("A/1", "A/1", "B/1", "B/1"), (0, 2)),
        (("A/1", "A/2", "A/3", "B/1"), (0, 3)),
        (("A/1", "A/1", "A/2", "A/2"), (0, 2)),
        (("A/1", "B/1", "A/1", "B/1"), (0, 1)),
        ((), (0, 1)),
    ],
)
def test_of_equals_the_highest_leave(instances: tuple[str, ...], staying: tuple[int, ...]) -> None:
    workers = tuple(map(WorkerId, range(4)))
    assert staying_workers(workers, 2, dict(zip(workers, instances, strict=False))) == staying


def test_a_worker_that_leaves_its_host_goes_where_a_slot_is_free_of_any_task() -> None:
    here, full, free = (
        ExecutorSlots(ExecutorId(name), host, slots=2, busy=busy)
        for name, host, busy in (("0", "A", 1), ("1", "B", 2), ("2", "C", 1))
    )
    beside = ExecutorSlots(ExecutorId("3"), "A", slots=2)
    workers = Counter({free.id: 1})
    assert executor_elsewhere([here, beside, full, free], workers, here.id) == free
    assert executor_elsewhere([here, beside, full], workers, here.id) is None
    assert executor_elsewhere([full, free], workers, here.id) is None  # it is not known where the worker runs
    assert executor_elsewhere([here, free], workers, None) is None
    assert (
        executor_elsewhere([here, beside, full], workers, here.id, [full.id]) == full
    )  # a copy of its task runs there
