"""What a client knows of the workers and views: the routing that the coordinator has told last, and when to ask
again."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from upriver.client.key_plans import KeyPlan
from upriver.errors import UnknownView, UpriverError
from upriver.protocol.lookups import Routing, ViewRoute, route_among

DETOURS_S = 1.0
"""Seconds after a refresh of the routing in which lookups that took a detour do not cause another refresh."""


class KnownRoutes:
    """Usable by many threads. ask: asks the coordinator, in so many seconds; ``None``: in the client's usual time."""

    def __init__(self, ask: Callable[[float | None], Routing]) -> None:
        self._ask = ask
        self._routing: Routing | None = None
        self._plans: dict[str, KeyPlan] = {}
        """By view, of the routing that is known."""
        self._refreshed_at = 0.0
        self._rechecking = threading.Lock()
        """Held while a thread refreshes the routing because a lookup waits, or took a detour."""
        self._listeners: list[Callable[[Routing, float], object]] = []

    def listen(self, listener: Callable[[Routing, float], object]) -> None:
        """From now on call this with each new routing, and with when it was asked for, by the monotonic clock."""
        self._listeners.append(listener)

    @property
    def last(self) -> Routing | None:
        """The routing that the coordinator has told last."""
        return self._routing

    def known(self) -> Routing:
        """The last routing; asks for the first one."""
        if self._routing is None:
            self.refresh()
        assert self._routing is not None
        return self._routing

    def refresh(self, timeout: float | None = None) -> None:
        """Ask the coordinator again. timeout: seconds."""
        asked_at = time.monotonic()
        routing = self._ask(timeout)
        self._routing, self._plans = routing, {}
        self._refreshed_at = time.monotonic()
        for listener in self._listeners:
            listener(routing, asked_at)

    def route(self, view: str) -> ViewRoute:
        """A view's route. Asks the coordinator if it is not known. Raises UnknownView."""
        check_view(view)
        if view not in self.known().views:
            self.refresh()
        known = self.known()
        return route_among(view, known.views, known.freshness.tables)

    def plan(self, view: str) -> KeyPlan | None:
        """How keys of a view are asked for; ``None`` if the last routing does not have it."""
        plans, routing = self._plans, self._routing
        plan = plans.get(view)
        if plan is None and routing is not None and view in routing.views:
            plan = plans[view] = KeyPlan(routing.views[view], routing)
        return plan

    def recheck(self) -> None:
        """Refresh on another thread. A stopped worker says nothing; once another process has its slot, waiting lookups
        must ask that one."""
        if self._rechecking.acquire(blocking=False):
            threading.Thread(target=self._refresh_quietly, name="upriver-recheck", daemon=True).start()

    def _refresh_quietly(self) -> None:
        try:
            with suppress(UpriverError):  # the coordinator is gone; the lookup that waits finds out
                self.refresh()
        finally:
            self._rechecking.release()

    def note_detours(self, version: int, *, relayed: bool) -> None:
        """Refresh the routing if a worker had a newer map, or had to ask another worker. It has found the keys all the
        same, but there is a shorter way to them. No lookup waits for the refresh."""
        is_detour = relayed or version > self.known().vnode_map.version
        if is_detour and time.monotonic() > self._refreshed_at + DETOURS_S:
            self.recheck()


def check_view(view: str) -> None:
    """Raise UnknownView for a view that is no string."""
    if not isinstance(view, str):
        raise UnknownView(f"view={view!r}: give the name of a view, not a {type(view).__name__}")
