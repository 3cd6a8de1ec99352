"""What other threads ask of the coordinator's thread: its inbox, the pending requests, and the app's failure.

Once the app has failed, every caller that waits for a request or for a change raises the failure.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from upriver.errors import UpriverError, WaitTimeout
from upriver.protocol.coordinator_events import CoordinatorEvent


class CoordinatorInbox:
    """Events in the order in which they came. Any thread calls ``put`` and ``put_later``."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[CoordinatorEvent | None] = queue.SimpleQueue()

    def put(self, event: CoordinatorEvent) -> None:
        self._events.put(event)

    def put_later(self, seconds: float, event: CoordinatorEvent) -> None:
        """Put the event after so many seconds."""
        timer = threading.Timer(seconds, self._events.put, (event,))
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """``events`` ends after the events that are there."""
        self._events.put(None)

    def events(self) -> Iterator[CoordinatorEvent]:
        """Take each event, and wait for the next one, until the inbox is closed."""
        return iter(self._events.get, None)

    @property
    def is_empty(self) -> bool:
        """Whether ``events`` waits for the next event."""
        return self._events.empty()


class AppFailure:
    """Why the app cannot go on, once it cannot. Called by any thread. changed: announces the failure."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._error: UpriverError | None = None

    @property
    def error(self) -> UpriverError | None:
        return self._error

    def set(self, error: UpriverError) -> bool:
        """The app has failed. Only the first failure counts; returns whether this one is it."""
        with self._changed:
            if self._error is not None:
                return False
            self._error = error
            self._changed.notify_all()
            return True

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self._error is not None:
            raise _copy(self._error)

    def wait_for(self, has_come: Callable[[], bool], seconds: float) -> bool:
        """Wait until that is so, at most so many seconds; returns whether it is. Raises the failure.

        has_come: is called with the condition's lock held, after each change.
        """
        with self._changed:
            reached = self._changed.wait_for(lambda: self._error is not None or has_come(), seconds)
            self.check()
            return reached


class PendingRequests:
    """Requests whose callers wait for the coordinator's answer. Called by any thread."""

    def __init__(self, inbox: CoordinatorInbox, failure: AppFailure) -> None:
        self._inbox = inbox
        self._failure = failure
        self._tickets = itertools.count()
        self._answers: dict[int, Future[Any]] = {}
        """By ticket, of requests that are not answered. The thread that takes an entry out is the one that sets it."""

    def new_ticket(self) -> int:
        """A number that no other request has."""
        return next(self._tickets)

    def request(self, ticket: int, wanted: CoordinatorEvent, seconds: float, late: str) -> Any:
        """Send a request, and block until it is answered. Raises the error of the request, the app's failure, or
        WaitTimeout with the text ``late`` if it takes longer; the request is carried out all the same."""
        answer = self._answers[ticket] = Future[Any]()
        try:
            self._failure.check()  # a failure from now on finds the request
            self._inbox.put(wanted)
            return answer.result(seconds)
        except FutureTimeout:
            raise WaitTimeout(late) from None
        finally:
            self._answers.pop(ticket, None)

    def answer(self, ticket: int, answer: Any = None) -> None:
        """The request is carried out. Does nothing if its caller has given up."""
        if (waiting := self._answers.pop(ticket, None)) is not None:
            waiting.set_result(answer)

    def refuse(self, ticket: int, error: Exception) -> None:
        """The request cannot be carried out. Does nothing if its caller has given up."""
        if (waiting := self._answers.pop(ticket, None)) is not None:
            waiting.set_exception(error)

    def refuse_all(self, error: UpriverError) -> None:
        """The app has failed."""
        for ticket in list(self._answers):
            self.refuse(ticket, _copy(error))


def _copy(error: UpriverError) -> UpriverError:
    """Another error of the same class and text: each thread raises one of its own."""
    return type(error)(*error.args)
