"""Threads that flows share: a flow whose jobs hang leaves the others some, and no job is forgotten."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from upriver.ids import FlowId
from upriver.lake.flow_threads import FlowThreads

DONE_S_MAX = 30.0
"""Seconds for a job that no other one holds up."""
RIDES, FARES, TOLLS = map(FlowId, (1, 2, 3))
Make = Callable[[int], FlowThreads]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes threads that end with the test."""
    made: list[FlowThreads] = []

    def make(threads_max: int) -> FlowThreads:
        made.append(FlowThreads("jobs", threads_max))
        return made[-1]

    yield make
    for threads in made:
        threads.close()


class HangingJobs:
    """Jobs that hang until they may end."""

    def __init__(self) -> None:
        self._begun, self._may_end, self._ended = (threading.Semaphore(0) for _ in range(3))

    def __call__(self) -> None:
        self._begun.release()
        assert self._may_end.acquire(timeout=DONE_S_MAX)
        self._ended.release()

    def begin(self, count: int) -> bool:
        """Wait until so many more have begun."""
        return all(self._begun.acquire(timeout=DONE_S_MAX) for _ in range(count))

    @property
    def begins_no_more(self) -> bool:
        """Whether no other one has begun than those that were waited for."""
        return not self._begun.acquire(blocking=False)

    def end(self, count: int) -> bool:
        """Let so many end, and wait for them."""
        self._may_end.release(count)
        return all(self._ended.acquire(timeout=DONE_S_MAX) for _ in range(count))


def is_done(threads: FlowThreads, flow: FlowId) -> bool:
    """Whether the threads do a job of this flow."""
    done = threading.Event()
    threads.do(flow, done.set)
    return done.wait(DONE_S_MAX)


@pytest.mark.parametrize("threads_max", [1, 2, 3, 16])
def test_flows_get_all_their_jobs_done_whatever_the_number_of_threads(make: Make, threads_max: int) -> None:
    threads, count = make(threads_max), 500
    done = threading.Semaphore(0)
    for number in range(count):
        threads.do(FlowId(number % 3), done.release)
    assert all(done.acquire(timeout=DONE_S_MAX) for _ in range(count))


@pytest.mark.parametrize(("threads_max", "one", "next_one"), [(2, 1, 1), (3, 2, 1), (5, 3, 1), (8, 4, 2), (16, 8, 4)])
def test_a_flow_whose_jobs_hang_has_half_of_the_threads_and_the_next_one_half_of_the_rest(
    make: Make, threads_max: int, one: int, next_one: int
) -> None:
    threads = make(threads_max)
    flows = [(RIDES, one, HangingJobs()), (FARES, next_one, HangingJobs())]
    for flow, share, jobs in flows:
        for _ in range(threads_max + 1):
            threads.do(flow, jobs)
        assert jobs.begin(share)
    if one + next_one < threads_max:
        assert all(is_done(threads, TOLLS) for _ in range(3))
    for _, _, jobs in flows:
        assert jobs.begins_no_more
    for _, _, jobs in flows:
        assert jobs.end(threads_max + 1)


def test_two_jobs_begin_after_one_that_ends_if_two_have_room_then(make: Make) -> None:
    threads, rides, fares = make(6), HangingJobs(), HangingJobs()
    both = ((RIDES, rides), (FARES, fares))
    for flow, jobs in both:
        for _ in range(2):
            threads.do(flow, jobs)
        assert jobs.begin(2)
    for flow, jobs in both:  # two threads are free: no flow gets a third one
        threads.do(flow, jobs)
    assert fares.end(1)
    assert rides.begin(1)
    assert fares.begin(1)
    assert rides.end(3)
    assert fares.end(2)


def test_a_flow_whose_jobs_hang_does_not_keep_the_last_thread_from_a_flow_that_has_none(make: Make) -> None:
    threads, jobs = make(2), HangingJobs()
    for _ in range(5):
        threads.do(RIDES, jobs)
    assert jobs.begin(1)
    assert all(is_done(threads, FARES) for _ in range(20))
    assert jobs.end(5)


def test_flows_take_turns_a_job_each(make: Make) -> None:
    threads, first, order = make(1), HangingJobs(), list[FlowId]()
    threads.do(TOLLS, first)
    assert first.begin(1)
    for flow in (RIDES, RIDES, RIDES, FARES, FARES):
        threads.do(flow, partial(order.append, flow))
    assert first.end(1)
    assert is_done(threads, RIDES)
    assert order == [RIDES, FARES, RIDES, FARES, RIDES]


def test_jobs_that_wait_are_dropped_with_their_flow_alone(make: Make) -> None:
    threads, first, done = make(1), HangingJobs(), list[FlowId]()
    threads.do(RIDES, first)
    assert first.begin(1)
    for flow in (RIDES, FARES):
        threads.do(flow, partial(done.append, flow))
    threads.drop(RIDES)
    assert first.end(1)
    assert is_done(threads, FARES)
    assert done == [FARES]


def test_no_job_begins_after_the_end(make: Make) -> None:
    threads, first, done = make(1), HangingJobs(), list[FlowId]()
    threads.do(RIDES, first)
    assert first.begin(1)
    threads.do(FARES, partial(done.append, FARES))
    threads.close()
    assert first.end(1)
    for thread in threading.enumerate():
        if thread.name == "jobs":
            thread.join(DONE_S_MAX)
    assert not done
