"""Places of callers with a token: requests, threads and streams that one role never takes all, nor one host alone.

A caller is a role's token at one host. A reader that asks for slow lookups without end leaves places for the operator,
and for readers of other hosts. Metrics have places of their own.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from upriver.doors.http.problems import RETRY_S, HttpProblem
from upriver.net.handshake import Role


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """host: that the connection comes from; a proxy's, if callers come through one."""

    role: Role
    host: str


@dataclass(frozen=True, slots=True)
class PlaceBounds:
    """The most places that there may be in all, of one role's callers, and of one caller."""

    total: int
    role: int
    caller: int


class CallerPlaces:
    """Counts places; only the server's thread uses it. things, state: what has a place, and why, in words."""

    def __init__(self, things: str, state: str, bounds: PlaceBounds) -> None:
        self._things, self._state = things, state
        self._bounds = bounds
        self._taken: Counter[HttpCaller | Role | None] = Counter()
        """By caller, role, and ``None`` for all."""

    def take(self, caller: HttpCaller) -> None:
        """Raises HttpProblem if there is none for this caller."""
        role = caller.role.name.lower()
        for whose, words, most in (
            (caller, f"of the {role}'s token at this host", self._bounds.caller),
            (caller.role, f"of the {role}'s token", self._bounds.role),
            (None, "of all callers", self._bounds.total),
        ):
            if self._taken[whose] >= most:
                told = f"{most} {self._things} {words} {self._state}: try again"
                raise HttpProblem(503, "Busy", told, {"retry-after": str(RETRY_S)})
        self._taken.update((caller, caller.role, None))

    def leave(self, caller: HttpCaller) -> None:
        for whose in (caller, caller.role, None):
            self._taken[whose] -= 1
            if not self._taken[whose]:
                del self._taken[whose]

    @contextmanager
    def held(self, caller: HttpCaller) -> Iterator[None]:
        """A place meanwhile. Raises HttpProblem."""
        self.take(caller)
        try:
            yield
        finally:
            self.leave(caller)


class RequestPlaces:
    """Requests under way, and threads that compute their answers. A thread goes on after its client has hung up, for a
    lookup cannot be ended early: so there may be twice as many threads."""

    def __init__(self, bounds: PlaceBounds) -> None:
        """bounds: of requests."""
        threads = PlaceBounds(2 * bounds.total, 2 * bounds.role, 2 * bounds.caller)
        self.requests = CallerPlaces("requests", "are under way", bounds)
        self.threads = CallerPlaces("answers", "are being computed, some for clients that have hung up", threads)
