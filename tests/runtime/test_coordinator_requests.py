"""Callers that wait for the coordinator: for an answer, for a change, or for neither after a failure."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from upriver.errors import ClusterError, UserError, WaitTimeout
from upriver.protocol.coordinator_events import CoordinatorEvent, SnapshotAsked
from upriver.runtime.coordinator_requests import AppFailure, CoordinatorInbox, PendingRequests

SECONDS_MAX = 30.0
EVER = 10 * SECONDS_MAX


class Coordinator:
    """A thread that does with each request what the test says."""

    def __init__(self, does: Callable[[PendingRequests, int], None]) -> None:
        self.inbox = CoordinatorInbox()
        self.failure = AppFailure(threading.Condition())
        self.requests = PendingRequests(self.inbox, self.failure)
        self._does = does

    def take(self, requests: int = 1) -> None:
        for event in islice(self.inbox.events(), requests):
            assert isinstance(event, SnapshotAsked)
            self._does(self.requests, event.ticket)

    def ask(self, seconds: float = EVER) -> object:
        ticket = self.requests.new_ticket()
        wanted: CoordinatorEvent = SnapshotAsked(ticket=ticket, view="rows")
        return self.requests.request(ticket, wanted, seconds, "too late")


def test_each_caller_gets_the_answer_to_its_own_request() -> None:
    coordinator = Coordinator(lambda requests, ticket: requests.answer(ticket, f"answer {ticket}"))
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(coordinator.ask) for _ in range(3)]
        coordinator.take(3)
        answers = {each.result(SECONDS_MAX) for each in asked}
    assert answers == {"answer 0", "answer 1", "answer 2"}


def test_a_refused_request_raises_its_error() -> None:
    coordinator = Coordinator(lambda requests, ticket: requests.refuse(ticket, UserError("no such view")))
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(coordinator.ask)
        coordinator.take()
        with pytest.raises(UserError, match="no such view"):
            asked.result(SECONDS_MAX)


def test_an_answer_after_the_caller_has_given_up_is_forgotten() -> None:
    coordinator = Coordinator(lambda requests, ticket: requests.answer(ticket))
    with pytest.raises(WaitTimeout, match="too late"):
        coordinator.ask(0.0)
    coordinator.take()  # does not raise
    with pytest.raises(WaitTimeout, match="too late"):
        coordinator.ask(0.0)


def test_a_failure_ends_the_wait_of_each_caller_and_of_later_ones() -> None:
    coordinator = Coordinator(lambda requests, _: requests.refuse_all(ClusterError("the app has failed")))
    with ThreadPoolExecutor() as threads:
        change = threads.submit(coordinator.failure.wait_for, lambda: False, EVER)
        asked = threads.submit(coordinator.ask)
        assert coordinator.failure.set(ClusterError("the app has failed"))
        assert not coordinator.failure.set(ClusterError("another failure"))
        coordinator.requests.refuse_all(ClusterError("the app has failed"))
        for told in (change, asked):
            with pytest.raises(ClusterError, match="the app has failed"):
                told.result(SECONDS_MAX)
    with pytest.raises(ClusterError, match="the app has failed"):
        coordinator.ask()
    with pytest.raises(ClusterError, match="the app has failed"):
        coordinator.failure.check()


def test_a_closed_inbox_ends_after_what_it_holds() -> None:
    inbox = CoordinatorInbox()
    event = SnapshotAsked(ticket=1, view="rows")
    inbox.put(event)
    inbox.close()
    assert list(inbox.events()) == [event]
