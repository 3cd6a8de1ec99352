"""What a worker does when there is time: upqueries that rest go on when they have rested."""

import math

import pytest
from upquery_kit import HERE, Workers, keys_of_worker_0

from upriver.protocol.worker_events import KeysRead, WorkerAction, WorkerEvent
from upriver.runtime.worker_loop import FILL_REST_S_MAX, BackgroundTasks
from upriver.worker.upqueries import CROWD_KEYS


class Paced(Workers):
    """Worker 0 has chores, which take the answers of its upqueries in."""

    def __init__(self) -> None:
        super().__init__()
        self.chores = BackgroundTasks(self.machines[0], lambda event: super(Paced, self).step(0, event), lambda: True)

    def step(self, worker: int, event: WorkerEvent) -> list[WorkerAction]:
        if not isinstance(event, KeysRead):
            return super().step(worker, event)
        self.chores.fill(event)
        return []


@pytest.fixture
def workers() -> Paced:
    return Paced()


def test_upqueries_that_rest_go_on_by_themselves(workers: Paced) -> None:
    first, *crowd, late = keys_of_worker_0(CROWD_KEYS + 2)
    workers.epoch(first, *crowd, late)
    for key in (first, *crowd):
        workers.look_up(0, key)
    workers.answer(0)
    workers.look_up(0, late)
    assert not workers.upqueries[0]
    assert workers.chores.due_in_s <= FILL_REST_S_MAX
    while not workers.chores.are_due:
        assert not workers.upqueries[0]
    workers.chores.do()
    assert workers.answer(0) == sorted([*crowd, late])


def test_nothing_is_due_for_a_single_question(workers: Paced) -> None:
    workers.look_up(0, HERE)
    workers.answer(0)
    assert not workers.chores.are_due
    assert workers.chores.due_in_s == math.inf
