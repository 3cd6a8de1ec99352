"""The steps of a client's lookups: wait until the view is ready, ask the owners of the keys, ask again what was not
answered, and check how old the answer is.

Threads and event loops take the same steps; see :mod:`.lookups` for what a step may wait for.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypedDict

import pyarrow as pa

from upriver.arguments import flag, seconds, whole
from upriver.client.freshness import KnownFreshness
from upriver.client.keys import KeyColumns, Keys, key_columns
from upriver.client.lookup_lines import KeyRequest
from upriver.client.lookups import (
    Asked,
    BlockingCall,
    Delay,
    Found,
    KeySet,
    Lookup,
    Steps,
    answer_of,
    check_short,
    final_error,
    found_of,
    in_key_order,
    is_worth_another_try,
    only_row,
    requests_of,
    several_rows,
)
from upriver.client.routes import KnownRoutes, check_view
from upriver.errors import (
    ClusterError,
    DeclarationError,
    KeyTypeError,
    NotReady,
    UpriverError,
    WaitTimeout,
)
from upriver.net.line import HEAD_BYTES_MAX, KEYS_BYTES_MAX, KEYS_MAX
from upriver.net.remote import Remote
from upriver.protocol.lookups import ViewRoute
from upriver.traces import lookup_traced

LOOKUP_S = 10.0
"""Seconds that a lookup may take, unless the caller says otherwise."""
RETRY_S_MIN, RETRY_S_MAX = 0.01, 0.5
"""Seconds before the client retries keys that were not answered; doubled each time."""
LAST_WORD_S_MAX = 1.0
"""Seconds that the coordinator has to report its last epoch, when a lookup has waited for an epoch in vain."""


class ClientLookups(NamedTuple):
    """What takes the lookups of a client. remote: the coordinator, with the token that the workers know, too."""

    remote: Remote
    routes: KnownRoutes
    steps: "LookupSteps"


def check_limits(limits: Mapping[str, object]) -> None:
    """Raise DeclarationError for a name that is no limit: a misspelt limit must not let too old an answer pass."""
    for name in limits:
        if name not in LookupLimits.__annotations__:
            known = ", ".join(LookupLimits.__annotations__)
            raise DeclarationError(f"{name}={limits[name]!r}: a lookup has no such limit; it has {known}")


class LookupLimits(TypedDict, total=False):
    """The options of a lookup besides view and keys; :meth:`.Client.lookup` explains each."""

    at_least: int | None
    max_age: float | None
    allow_warming: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class CheckedLimits:
    """The options of a lookup, each of its kind. give_up_at: when its time is over, monotonic."""

    at_least: int | None
    max_age: float | None
    allows_warming: bool
    timeout: float
    give_up_at: float

    @classmethod
    def of(cls, limits: LookupLimits) -> Self:
        """Raises DeclarationError as :func:`check_limits` does."""
        if not limits:
            return cls(None, None, False, LOOKUP_S, time.monotonic() + LOOKUP_S)
        check_limits(limits)
        at_least, max_age = limits.get("at_least"), limits.get("max_age")
        timeout = seconds("timeout", limits.get("timeout", LOOKUP_S))
        return cls(
            None if at_least is None else whole("at_least", at_least),
            None if max_age is None else seconds("max_age", max_age),
            flag("allow_warming", limits.get("allow_warming", False)),
            timeout,
            time.monotonic() + timeout,
        )


class DatedTable:
    """The answer to a lookup. epoch: the one that the rows reflect to its end; 0 for no keys. committed_at: when the
    epoch was committed, in seconds since 1970; ``None`` if that is not known."""

    __slots__ = ("committed_at", "epoch", "rows")

    def __init__(self, rows: pa.Table, epoch: int, committed_at: float | None) -> None:
        self.rows = rows
        self.epoch = epoch
        self.committed_at = committed_at


class _DeclaredAnew(Exception):
    """The view of a lookup under way was dropped, and another view has its name."""


class LookupSteps:
    """The lookups of one client. is_closed: whether the client is."""

    def __init__(self, routes: KnownRoutes, freshness: KnownFreshness, is_closed: Callable[[], bool]) -> None:
        self._routes = routes
        self._freshness = freshness
        self._is_closed = is_closed

    def table(self, view: str, keys: Keys, limits: LookupLimits) -> Steps[tuple[pa.Table, int]]:
        """As :meth:`.Client.lookup_with_epoch`."""
        checked = CheckedLimits.of(limits)
        if type(keys) is list and len(keys) == 1 and checked.max_age is None:
            request = yield from self._short(view, keys[0], checked)
            if request is not None:
                answer = answer_of(request)
                check_short(request, answer)
                rows = pa.Table.from_batches([answer.batch], request.route.schema)
                dated = DatedTable(rows, answer.answered.epoch, answer.answered.committed_at)
                return (yield from self._dated(request.route, dated))
        return (yield from self._long(view, keys, checked))

    def row(self, view: str, key: Any, limits: LookupLimits) -> Steps[dict[str, Any] | None]:
        """As :meth:`.Client.lookup_one`."""
        checked = CheckedLimits.of(limits)
        if checked.max_age is None:
            request = yield from self._short(view, key, checked)
            if request is not None:
                self._freshness.keep_recent()
                return only_row(request, key)
        rows, _ = yield from self._long(view, [key], checked)
        if rows.num_rows > 1:
            raise several_rows(view, key, rows.num_rows)
        return dict(rows.to_pylist()[0]) if rows.num_rows else None

    # The short way

    def _short(self, view: str, key: Any, limits: CheckedLimits) -> Steps[KeyRequest | None]:
        """The answered request of a single key of plain values; ``None``: it must go the long way."""
        plan = self._routes.plan(view) if type(view) is str else None
        short = None if plan is None else plan.short(key)
        if plan is None or short is None:
            return None
        route = plan.route
        if not (limits.allows_warming or self._freshness.is_known_ready(route)):
            return None
        with lookup_traced(view, 1) as note:
            lookup = Lookup(view, route, limits.at_least, False, limits.timeout, limits.give_up_at)
            request = lookup.request(short, plan.owner_of(short), plan.routing)
            yield Asked((request,))
            try:
                answered = answer_of(request).answered
            except UpriverError as error:
                if is_worth_another_try(error):
                    yield from self._before_another_try(lookup, request, error, RETRY_S_MIN)
                    return None
                if isinstance(error, WaitTimeout):
                    yield from self._check_there(lookup)
                raise
            note("upriver.epoch", answered.epoch)
            self._routes.note_detours(answered.version, relayed=answered.relayed)
            return request

    # The long way

    def _long(self, view: str, keys: Keys, limits: CheckedLimits) -> Steps[tuple[pa.Table, int]]:
        again = list(keys) if isinstance(keys, Iterator) else keys
        while True:
            route, columns = yield from self.columns(view, again)
            _check_size(view, columns)
            if not limits.allows_warming:
                yield from self.ready(view, route, limits.timeout, limits.give_up_at)
            lookup = Lookup(view, route, limits.at_least, len(columns[0]) > 1, limits.timeout, limits.give_up_at)
            with suppress(_DeclaredAnew), lookup_traced(view, len(columns[0])) as note:
                found = yield from self._fresh(lookup, columns, limits.max_age)
                note("upriver.epoch", found.epoch)
                return (yield from self._dated(route, found))

    def columns(self, view: str, keys: Keys) -> Steps[tuple[ViewRoute, KeyColumns]]:
        """The keys as columns of the view's key types. If they do not fit, the view may have been declared anew."""
        check_view(view)
        route = yield from self._route(view)
        try:
            return route, key_columns(view, route.key_schema, keys)
        except KeyTypeError:
            with suppress(ClusterError):
                yield BlockingCall(self._routes.refresh)
            newest = yield from self._route(view)
            if newest == route:
                raise
        return newest, key_columns(view, newest.key_schema, keys)

    def _route(self, view: str) -> Steps[ViewRoute]:
        known = self._routes.last
        if known is not None and view in known.views:
            return known.views[view]
        route: ViewRoute = yield BlockingCall(lambda: self._routes.route(view))
        return route

    def ready(self, view: str, route: ViewRoute, timeout: float, give_up_at: float) -> Steps[None]:
        """Wait until all tables that the view reads are ready. Raises NotReady if that takes longer."""
        if self._freshness.is_known_ready(route):
            return
        pause = RETRY_S_MIN
        while lacks := (yield BlockingCall(lambda: self._freshness.lacks(route))):
            if (left := give_up_at - time.monotonic()) <= 0:
                raise NotReady(
                    f"view {view!r} is not ready after {timeout:g} s: {lacks}. Give a longer timeout, wait with "
                    f"app.wait(), or look up with allow_warming=True what there is by now"
                )
            yield from self._pause(min(pause, left))
            pause = min(2 * pause, RETRY_S_MAX)

    def _pause(self, seconds: float) -> Steps[None]:
        yield Delay(seconds)
        if self._is_closed():
            raise ClusterError("the client is closed")

    def _dated(self, route: ViewRoute, found: DatedTable) -> Steps[tuple[pa.Table, int]]:
        """The table, with what is known of its age."""
        if self._freshness.must_ask(found.epoch, found.committed_at):
            metadata = yield BlockingCall(lambda: self._freshness.metadata(route, found.epoch, found.committed_at))
        else:
            metadata = self._freshness.metadata(route, found.epoch, found.committed_at)
        return found.rows.replace_schema_metadata(metadata), found.epoch

    def _fresh(self, lookup: Lookup, columns: KeyColumns, max_age: float | None) -> Steps[DatedTable]:
        """The rows of the keys, not older than ``max_age``."""
        if max_age is None:
            return (yield from self._in_time(lookup, columns))
        view, route, age = lookup.view, lookup.route, max_age
        while True:
            told = self._freshness.young(route, age)
            if told is None:
                told = yield BlockingCall(lambda: self._freshness.check_age(view, route, age))
            found = yield from self._in_time(lookup, columns)
            is_of_then = found.epoch >= told.report.epoch or not len(columns[0])
            if is_of_then and self._freshness.is_young(told, route, age):
                return found
            if time.monotonic() >= lookup.give_up_at:
                raise self._freshness.stale(view, route, age, told)
            if not is_of_then:  # the worker lags behind the coordinator's report
                lookup = replace(lookup, at_least=max(lookup.at_least or 0, told.report.epoch))

    def _in_time(self, lookup: Lookup, columns: KeyColumns) -> Steps[DatedTable]:
        asked = KeySet.of(pa.RecordBatch.from_arrays(columns, schema=lookup.route.key_schema))
        if lookup.together and asked.count < 2:
            lookup = replace(lookup, together=False)
        try:
            found = yield from self._of_one_epoch(lookup, asked)
        except WaitTimeout:
            yield from self._check_there(lookup)
            raise
        rows = in_key_order(found, asked, lookup.route.schema)
        if not found:
            return DatedTable(rows, 0, None)
        oldest = min((part.answered for part in found), key=lambda answered: answered.epoch)
        return DatedTable(rows, oldest.epoch, oldest.committed_at)

    def _check_there(self, lookup: Lookup) -> Steps[None]:
        """Raise WaitTimeout if the epoch that a lookup has waited for is not there yet, with the last one that is."""
        if lookup.at_least is None:
            return
        last = None
        with suppress(ClusterError):
            told = yield BlockingCall(lambda: self._freshness.ask(LAST_WORD_S_MAX))
            last = told.report.epoch
        if last is not None and last < lookup.at_least:
            raise WaitTimeout(
                f"view {lookup.view!r}: epoch {lookup.at_least} is not there yet after {lookup.timeout:g} s: the last "
                f"that every worker reflects is {last}"
            )

    def _of_one_epoch(self, lookup: Lookup, asked: KeySet) -> Steps[list[Found]]:
        """The rows of all keys, as of one epoch if they belong together."""
        found = yield from self._ask(lookup, asked)
        while lookup.together and len(epochs := {part.answered.epoch for part in found}) > 1:
            newest = max(epochs)
            behind = KeySet.concat([part.keys for part in found if part.answered.epoch < newest])
            again = yield from self._ask(replace(lookup, at_least=newest), behind)
            found = [*(part for part in found if part.answered.epoch == newest), *again]
        return found

    def _ask(self, lookup: Lookup, asked: KeySet) -> Steps[list[Found]]:
        """The rows of all keys. If a worker does not answer, the client asks the keys' owners of then again."""
        found: list[Found] = []
        pause = RETRY_S_MIN
        while True:
            if self._is_closed():
                raise ClusterError("the client is closed")
            routing = self._routes.last
            assert routing is not None  # the lookup has a route
            requests = requests_of(lookup, asked, routing)
            yield Asked(requests)
            unanswered = self._take(requests, found)
            if not unanswered:
                self._note_detours(found)
                return found
            yield from self._before_another_try(lookup, *unanswered[0], pause)
            pause = min(2 * pause, RETRY_S_MAX)
            if (yield from self._route(lookup.view)) != lookup.route:
                raise _DeclaredAnew
            asked = KeySet.concat([_keys_of(request) for request, _ in unanswered])

    def _before_another_try(
        self, lookup: Lookup, request: KeyRequest, error: UpriverError, pause: float
    ) -> Steps[None]:
        """Wait for so many seconds, then refresh the routing. Raises the last error if there is no time."""
        if time.monotonic() + pause >= lookup.give_up_at:
            raise final_error(lookup, request, error)
        yield from self._pause(pause)
        timeout = max(RETRY_S_MAX, lookup.give_up_at - time.monotonic())
        yield BlockingCall(lambda: self._routes.refresh(timeout))

    def _take(self, requests: Sequence[KeyRequest], found: list[Found]) -> list[tuple[KeyRequest, UpriverError]]:
        """Add the rows of the answered requests to ``found``; returns the others, to ask again. Raises the first error
        that is not worth it."""
        unanswered: list[tuple[KeyRequest, UpriverError]] = []
        errors: list[UpriverError] = []
        for request in requests:
            try:
                found.append(found_of(request))
            except UpriverError as error:
                if is_worth_another_try(error):
                    unanswered.append((request, error))
                else:
                    errors.append(error)
        if errors:
            raise errors[0]
        return unanswered

    def _note_detours(self, found: Sequence[Found]) -> None:
        version = max((part.answered.version for part in found), default=0)
        self._routes.note_detours(version, relayed=any(part.answered.relayed for part in found))


def _keys_of(request: KeyRequest) -> KeySet:
    assert isinstance(request.keys, KeySet)
    return request.keys


def _check_size(view: str, columns: KeyColumns) -> None:
    """Raise DeclarationError for more keys than a worker accepts at once."""
    keys, nbytes = len(columns[0]), sum(column.nbytes for column in columns)
    if keys > KEYS_MAX or nbytes > KEYS_BYTES_MAX - HEAD_BYTES_MAX:
        raise DeclarationError(
            f"view {view!r}: {keys:,} keys of {nbytes:,} bytes are too many for one lookup: give at most {KEYS_MAX:,} "
            f"keys, of at most {KEYS_BYTES_MAX - HEAD_BYTES_MAX:,} bytes, and look up in several calls, or use "
            f"app.read({view!r}) for most of a view"
        )
