"""Places of callers with a token: requests, threads and streams that one role never takes all, nor one host alone.

A caller is a role's token at one host. A reader that asks for slow lookups without end leaves places for the operator,
and for readers of other hosts. Metrics have places of their own.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from upriver.doors.http.problems import RETRY_S, HttpProblem
from upriver.doors.shares import Bounds, count
from upriver.net.handshake import Role


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """host: that the connection comes from; a proxy's, if callers come through one."""

    role: Role
    host: str

    @property
    def counted_as(self) -> Sequence[tuple[object, str]]:
        """As of :class:`.SharingCaller`; its group is the role."""
        of_role = f"of the {self.role.name.lower()}'s token"
        return (self, f"{of_role} at this host"), (self.role, of_role), (None, "of all callers")


class CallerPlaces:
    """Counts places; only the server's thread uses it. things, state: what has a place, and why, in words."""

    def __init__(self, things: str, state: str, bounds: Bounds) -> None:
        self._things, self._state = things, state
        self._bounds = bounds
        self._taken: Counter[object] = Counter()

    def take(self, caller: HttpCaller) -> None:
        """Raises HttpProblem if there is none for this caller."""
        over = self._bounds.exceeded(self._taken, caller)
        if over is not None:
            why = f"{over.most} {self._things} {over.words} {self._state}: try again"
            raise HttpProblem(503, "Busy", why, {"retry-after": str(RETRY_S)})
        count(self._taken, caller, 1)

    def leave(self, caller: HttpCaller) -> None:
        count(self._taken, caller, -1)

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

    def __init__(self, bounds: Bounds) -> None:
        """bounds: of requests."""
        threads = Bounds(2 * bounds.total, 2 * bounds.group, 2 * bounds.caller)
        self.requests = CallerPlaces("requests", "are under way", bounds)
        self.threads = CallerPlaces("answers", "are being computed, some for clients that have hung up", threads)
