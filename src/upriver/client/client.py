"""The client: lookups in a running app, from any process, without Spark."""

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self, TypeVar, Unpack

import numpy as np
import pyarrow as pa

from upriver.arguments import seconds, whole
from upriver.client.dated_rows import DatedRows
from upriver.client.freshness import KnownFreshness
from upriver.client.keys import Keys, key_batch
from upriver.client.lookup_lines import ThreadLines
from upriver.client.lookup_steps import LOOKUP_S, ClientLookups, LookupLimits, LookupSteps
from upriver.client.lookups import Asked, Delay, Steps
from upriver.client.queries import QUERY, QUERY_S, Parameters, answer_of, query_fields
from upriver.client.rescale import Rescale, rescale_fields
from upriver.client.routes import KnownRoutes, check_view
from upriver.client.scans import ScanReader
from upriver.client.subscriptions import UNREACHABLE_S, Subscription
from upriver.errors import (
    ClusterError,
    DeclarationError,
    NotReady,
    UserError,
)
from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.logs import shorten_errors, with_short_errors
from upriver.net.remote import Connection, Remote, check_schema
from upriver.net.wire import refusing_malformed
from upriver.protocol.freshness import FreshnessReport
from upriver.protocol.lookups import Routing, ViewRoute
from upriver.state.changes import NOW, SUBSCRIBED_KEYS_MAX, ChangePosition, changes_schema
from upriver.state.key_filter import KeyFilter

__all__ = ["Client", "Keys", "LookupLimits", "connect"]

T = TypeVar("T")

SCAN_S = 3600.0
"""Seconds that reading the rows of a scan may take, unless the caller says otherwise."""
CONNECT_S = 10.0
"""Seconds that a client waits for the coordinator, unless the caller says otherwise."""
EVICT_KEYS_MAX = 500_000
"""Keys of one request to evict; more are evicted in several."""


ADDRESS_VARIABLE = "UPRIVER_ADDRESS"
TOKEN_VARIABLE = "UPRIVER_TOKEN"
TOKEN_FILE_VARIABLE = "UPRIVER_TOKEN_FILE"
"""A file with the token, and nothing else but blanks around it."""
TLS_VARIABLE = "UPRIVER_TLS"
"""What ``connect`` takes as ``tls``: a file, or ``true``."""


def address_and_token(address: str | None, token: str | None) -> tuple[str, str]:
    """What was not given, as the environment has it. Raises UserError if it has none, or names a file that cannot be
    read."""
    address = (os.environ.get(ADDRESS_VARIABLE) or None) if address is None else address
    if address is None:
        raise UserError(f"no address: give app.address, host:port, the app's root, or set {ADDRESS_VARIABLE}")
    token = (os.environ.get(TOKEN_VARIABLE) or None) if token is None else token
    if token is None and (path := os.environ.get(TOKEN_FILE_VARIABLE)):
        try:
            with open(path, encoding="ascii") as file:
                token = file.read().strip()
        except (OSError, ValueError) as error:
            raise UserError(f"{TOKEN_FILE_VARIABLE}={path!r}: the token cannot be read: {error}") from error
        if not token or token.split() != [token]:
            raise UserError(f"{TOKEN_FILE_VARIABLE}={path!r}: the file is to have one token, and nothing else")
    if token is None:
        raise UserError(f"no token: give app.token, or set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}")
    return address, token


def address_in(root: str | os.PathLike[str]) -> str:
    """Where the last app on a root answers, or did. Raises UserError if none has recorded that.

    The lake and its object stores are loaded here: no other client needs them.
    """
    from upriver.lake.lake import Lake

    where = os.path.expanduser(os.fspath(root))
    announced = Lake(where).announced()
    if announced is None:
        raise UserError(f"root={where!r}: no app has recorded an address there: start one on it, or give its address")
    return announced


@shorten_errors
def connect(
    address: str | None = None,
    token: str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    tls: bytes | str | os.PathLike[str] | bool | None = None,
    timeout: float = CONNECT_S,
) -> "Client":
    """Connect to a running app.

    address: ``host:port`` or ``grpc://host:port``, as ``App.address`` gives it; by default that of the environment's
    ``UPRIVER_ADDRESS``. root: instead, the app's root, which this process must be able to read: the app has recorded
    its address there, and never a token. token: as ``App.token`` gives it; by default ``UPRIVER_TOKEN``, else what the
    file ``UPRIVER_TOKEN_FILE`` has. tls: if the app has a certificate (``App(tls=...)``): the file with the
    certificates to trust, their PEM, or True for those of the system; by default ``UPRIVER_TLS``, which may be
    ``true``. The app's certificate must name the host of ``address``. timeout: seconds for this call, and for each
    later one to the coordinator. Raises UserError for a malformed address or none, and if the app has a certificate and
    ``tls`` is missing, or the other way round; AccessDenied, also for a certificate that is not to be trusted;
    ClusterError if the app cannot be reached."""
    if root is not None:
        if address is not None:
            raise UserError("give address= or root=, not both")
        address = address_in(root)
    if tls is None:
        tls = os.environ.get(TLS_VARIABLE) or None
    remote = Remote.parse(*address_and_token(address, token), tls)
    try:
        return connect_to(remote, seconds("timeout", timeout))
    except ClusterError as error:
        if root is not None and type(error) is ClusterError:
            raise ClusterError(f"no app answers at {address}, where the last one on {os.fspath(root)!r} did") from error
        raise


def connect_to(remote: Remote, timeout: float = CONNECT_S) -> "Client":
    """As :func:`connect`, to what is known of the app already."""
    client = Client(remote, timeout)
    try:
        client.refresh()
    except BaseException:
        client.close()
        raise
    return client


def _unreached(why: str) -> ClusterError:
    """The error for a coordinator that does not answer. why: how the client noticed."""
    return ClusterError(
        f"{why}. Check that the app runs, that this is its current app.address, and that its listen= admits this host"
    )


@with_short_errors
class Client:
    """A connection to an app and its workers; usable by many threads, and as a context manager. Use ``connect``."""

    def __init__(self, remote: Remote, timeout: float) -> None:
        self._closed = threading.Event()
        self._coordinator = Connection(remote, _unreached)
        self._freshness = KnownFreshness(self._told_freshness)
        self._routes = KnownRoutes(lambda timeout: self._answer("routing", {}, Routing.from_json, timeout))
        self._lines = ThreadLines(remote, self._routes.recheck)
        self._routes.listen(lambda routing, asked_at: self._freshness.heard(routing.freshness, asked_at))
        self._routes.listen(lambda routing, _: self._lines.keep_only(routing.addresses.values()))
        self._steps = LookupSteps(self._routes, self._freshness, self._closed.is_set)
        self.lookups = ClientLookups(remote, self._routes, self._steps)
        """For the client of an event loop, which takes the steps in its own way."""
        self._timeout = timeout
        atexit.register(self.close)  # an open stream would keep the interpreter from ending

    def lookup(
        self,
        view: str,
        keys: Keys,
        *,
        at_least: int | None = None,
        max_age: float | None = None,
        allow_warming: bool = False,
        timeout: float = LOOKUP_S,
    ) -> pa.Table:
        """The view's rows of those keys, in the order in which the keys are first given; each key once.

        keys: values for a key of one column; tuples, or dicts by column name, for several; or an Arrow array, batch
        or table. ``None`` is the null key. A datetime without a zone is local time. Keys that the view does not have
        give no rows. All rows are as of the end of one epoch. at_least: an epoch that they must reflect. max_age: the
        answer must have everything that the view's sources had offered so many seconds ago. allow_warming: answer
        although the view has never yet reflected all that its sources had; without it the lookup waits for that.
        timeout: seconds. The table may share memory with those of other threads' lookups at the same time.

        The metadata of the table's schema have its epoch (``upriver.epoch``), when that was committed
        (``upriver.committed_at``), how many seconds old the answer is at most (``upriver.age_s``), and the state of the
        view's sources (``upriver.sources``).

        Raises UnknownView, KeyTypeError, DeclarationError, AccessDenied; NotReady if the view is not ready in time;
        StaleView if an answer may be older than ``max_age``; WaitTimeout if ``at_least`` is not
        reached in time; WorkerLost or WaitTimeout if some worker could not be asked in time.
        """
        return self.lookup_with_epoch(
            view, keys, at_least=at_least, max_age=max_age, allow_warming=allow_warming, timeout=timeout
        )[0]

    def lookup_with_epoch(self, view: str, keys: Keys, **limits: Unpack[LookupLimits]) -> tuple[pa.Table, int]:
        """As :meth:`lookup`, with the epoch that the rows reflect to its end; 0 for no keys. The lookup of a single key
        waits for no epoch's end, so its rows may reflect a later epoch, too."""
        return self._run(self._steps.table(view, keys, limits))

    def lookup_rows(self, view: str, keys: Keys, **limits: Unpack[LookupLimits]) -> DatedRows:
        """As :meth:`lookup`, with what the metadata say as fields, and with ``to_pandas`` and ``to_polars``."""
        return DatedRows.of(*self.lookup_with_epoch(view, keys, **limits))

    def lookup_one(self, view: str, key: Any, **limits: Unpack[LookupLimits]) -> dict[str, Any] | None:
        """The only row of a key, by column name; ``None`` if the view has none.

        key: a value, or for several key columns a tuple, or a dict by column name. limits, errors: as of
        :meth:`lookup`; UserError if the key has several rows.
        """
        return self._run(self._steps.row(view, key, limits))

    def query(self, sql: str, parameters: Parameters | None = None, *, timeout: float = QUERY_S) -> pa.Table:
        """The answer of a SELECT in Spark's SQL over views; the app's driver evaluates it.

        parameters: values of any ``?``, as a list, or of any ``:name``, as a dict, as for ``spark.sql``: numbers,
        texts, bytes, dates, datetimes (without a zone: in the app's), and lists of these, for ``k IN (?)``. timeout:
        seconds.
        A condition that names keys, with ``=`` or ``IN`` for each column of a view's key, makes a lookup; any other
        view of the query is read whole (docs/guide/queries.md). The rows of each view are as of the end of one epoch.

        Raises UnsupportedSql, UnknownView, RowError for an expression that fails, DeclarationError for too many rows or
        keys and for wrong parameters, Busy, WaitTimeout, and the errors of lookups.
        """
        if self._closed.is_set():
            raise ClusterError("the client is closed")
        timeout = seconds("timeout", timeout)
        _, answer = self._coordinator.piece(QUERY, query_fields(sql, parameters, timeout), timeout=timeout)
        with refusing_malformed(self._coordinator.address):
            return answer_of(answer)

    def subscribe(
        self, view: str, keys: Keys | None = None, since: int | str | None = None, *, timeout: float = UNREACHABLE_S
    ) -> Subscription:
        """The view's changes, in Arrow batches, without end: iterate over it, on one thread. The view must be declared
        with ``changes=True``.

        A batch has the view's columns, then ``_change_type`` (``insert``, ``update_preimage``, ``update_postimage``,
        ``delete``), ``_commit_version`` (the epoch) and ``_commit_timestamp``; at most 65,536 rows, in the order of the
        versions. The metadata of its schema say through which version all changes have come (``upriver.through``): a
        consumer that remembers that, together with what it has done, gets each change once. keys: as for
        :meth:`lookup`; only their changes. since: a version, after which changes are given; ``"now"``: later ones
        alone; ``None``: from the start of the log, which begins with all rows as inserts. timeout: seconds for which
        the app may give no answer: until then the client asks again.

        Raises UnknownView for a view without a log, DeclarationError, KeyTypeError; when iterated over, also
        ChangesGone if the log has these changes no more, AccessDenied, ClusterError.
        """
        wanted = None if keys is None else KeyFilter(key_batch(view, self._routes.route(view).key_schema, keys))
        if wanted is not None and len(wanted.hashes) > SUBSCRIBED_KEYS_MAX:
            raise DeclarationError(
                f"view {view!r}: {len(wanted.hashes):,} keys are too many for a subscription: give at most "
                f"{SUBSCRIBED_KEYS_MAX:,}, or none, and filter the changes"
            )
        self._routes.route(view)
        if isinstance(since, str):
            if since != NOW:
                raise DeclarationError(f"since={since!r}: give None, {NOW!r} or a version, which is an epoch")
            begin = ChangePosition(
                Epoch(self._answer("change_last", {"view": view}, lambda told: whole("last", told["last"])))
            )
        else:
            begin = ChangePosition(None if since is None else Epoch(whole("since", since)))
        return Subscription(self._ask_piece, self._closed, view, wanted, begin, seconds("timeout", timeout))

    def _ask_piece(self, fields: Mapping[str, Any], timeout: float) -> tuple[dict[str, Any], pa.RecordBatch | None]:
        told, rows = self._coordinator.piece("changes", fields, timeout=timeout)
        view = fields["view"]
        if rows is not None and not rows.schema.equals(changes_schema(self._routes.route(view).schema)):
            self.refresh()  # the view may have been declared anew
            check_schema(self._coordinator.address, rows, changes_schema(self._routes.route(view).schema))
        return told, rows

    def status(self) -> dict[str, Any]:
        """Epoch, workers, map version, and per view its rows, keys and bytes, as a plain dict."""
        return self._act("status", {})

    def metrics(self) -> str:
        """The metrics of the app, in Prometheus' text format. Raises DeclarationError if its driver lacks
        ``prometheus-client``."""
        return self._answer("metrics", {}, lambda told: str(told["text"]))

    def rescales(self) -> list[dict[str, Any]]:
        """The last rescales of the app, of its earlier starts, too, oldest first; as ``App.rescales``."""
        return self._answer("rescales", {}, lambda told: list(told["rescales"]))

    def views(self) -> list[dict[str, Any]]:
        """The views of the app as the lake has them: first those that were dropped or replaced, the last ones, oldest
        first; then those that are declared.

        Each has ``name``, ``sql``, ``key``, ``is_partial``, ``since`` and ``until`` (seconds since 1970; ``until`` is
        ``None`` for a declared view) and ``ended`` (``dropped``, ``replaced`` or ``None``).
        """
        return self._answer("views", {}, lambda told: list(told["views"]))

    def explain(self, view: str) -> dict[str, Any]:
        """How a view is kept, as a plain dict. Raises UnknownView."""
        check_view(view)
        return self._act("explain", {"view": view})

    def rescale(
        self,
        workers: int | None = None,
        *,
        moves: Mapping[int, int] | None = None,
        strategy: str = "icadd",
        keys_max: int | None = None,
    ) -> Rescale:
        """Begin to change the number of workers, or the vnodes that they own, while the app runs; returns at once.

        As ``App.rescale``, which explains the arguments and the errors.
        """
        vnodes = len(self._routes.known().vnode_map.owners)
        fields = rescale_fields(vnodes, workers, moves, strategy, keys_max)
        return self.rescale_of(self._answer("rescale", fields, lambda told: whole("ticket", told["ticket"])))

    def evict(self, view: str, keys: Keys | None = None) -> None:
        """Evict these keys of a partial view from all workers; ``None``: all keys. The next lookup fills them again.

        keys: as for :meth:`lookup`. Returns when all workers have evicted them; a key that moves between two workers
        meanwhile may be kept. Raises UnknownView, KeyTypeError; DeclarationError for a view that keeps every key;
        WaitTimeout if a worker does not answer, and then it may evict them all the same.
        """
        hashes = None
        check_view(view)
        if keys is not None:
            _, columns = self._run(self._steps.columns(view, keys))
            hashes = np.unique(hash64(columns)).tolist()
        if hashes is None:
            self._act("evict", {"view": view, "keys": None})
            return
        for start in range(0, max(1, len(hashes)), EVICT_KEYS_MAX):
            self._act("evict", {"view": view, "keys": hashes[start : start + EVICT_KEYS_MAX]})

    def rescale_of(self, ticket: int) -> Rescale:
        """A rescale that was begun before, by any client."""
        return Rescale(self._act, whole("ticket", ticket))

    def key_schema(self, view: str) -> pa.Schema:
        """Names and types of a view's key columns. Raises UnknownView."""
        return self._routes.route(view).key_schema

    def routes(self) -> Mapping[str, ViewRoute]:
        """The views of the app, by name: key, schema and the tables that each reads. Asks the coordinator."""
        return self.routing().views

    def routing(self) -> Routing:
        """The worker of each vnode, the views, and how fresh each table is. Asks the coordinator."""
        self.refresh()
        return self._routes.known()

    def wait_ready(self, view: str, timeout: float = LOOKUP_S) -> None:
        """Wait until a view can be read: it has once reflected all that its sources had. timeout: seconds.

        Raises UnknownView, NotReady.
        """
        timeout = seconds("timeout", timeout)
        self._run(self._steps.ready(view, self._routes.route(view), timeout, time.monotonic() + timeout))

    def scan(
        self, view: str, *, timeout: float = SCAN_S, store: Mapping[str, str] = MappingProxyType({})
    ) -> ScanReader:
        """All rows of a view as of the end of one epoch, in Arrow batches, read as they are pulled.

        A full view is read from its workers. A partial view is computed here, from the lake, whose files this process
        must be able to read. timeout: seconds in which the rows must have been read. store: settings of the lake's
        object store, as of a Root. A view that is not ready is waited for, as by a lookup. Raises UnknownView,
        NotReady, the error of a view that has failed, ClusterError, LakeError.
        """
        check_view(view)
        if self._closed.is_set():
            raise ClusterError("the client is closed")
        if view in self.routes():  # as they are now: it may be declared anew. A table is read as it is in the lake
            self.wait_ready(view, min(LOOKUP_S, seconds("timeout", timeout)))
        return ScanReader.begin(self._coordinator, view, seconds("timeout", timeout), store)

    def check_ready(self) -> None:
        """Raise NotReady unless all views reflect the data from before the start; ``lookup`` does so for its view."""
        if (lacks := self._freshness.ask(self._timeout).report.app_lacks()) is not None:
            raise NotReady(f"the app is not ready: {lacks}")

    def refresh(self, timeout: float | None = None) -> None:
        """Ask the coordinator again which worker owns which vnodes; lookups do so by themselves when they must.

        timeout: seconds; by default, ``connect``'s.
        """
        self._routes.refresh(timeout)

    def close(self) -> None:
        """End all connections; lookups of other threads fail. A second call does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            atexit.unregister(self.close)
            self._lines.close()
            self._coordinator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _act(self, action: str, fields: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        if self._closed.is_set():
            raise ClusterError("the client is closed")
        return self._coordinator.act(action, fields, timeout=self._timeout if timeout is None else timeout)

    def _answer(
        self,
        action: str,
        fields: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
        timeout: float | None = None,
    ) -> T:
        """What ``read`` makes of the coordinator's answer. Raises ProtocolError if it cannot read it."""
        told = self._act(action, fields, timeout)
        with refusing_malformed(self._coordinator.address):
            return read(told)

    def _told_freshness(self, timeout: float | None, epoch: int | None = None) -> tuple[FreshnessReport, float | None]:
        def read(told: Mapping[str, Any]) -> tuple[FreshnessReport, float | None]:
            committed_at = told["committed_at"]
            return FreshnessReport.from_json(told), None if committed_at is None else float(committed_at)

        return self._answer("freshness", {"epoch": epoch}, read, timeout)

    def _run(self, steps: Steps[T]) -> T:
        """Take the steps on this thread."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Asked):
                    self._lines.ask(step.requests)
                    step = next(steps)
                elif isinstance(step, Delay):
                    self._closed.wait(step.seconds)
                    step = next(steps)
                else:
                    try:
                        result = step.function()
                    except Exception as error:  # of any class: it is the steps' to take
                        step = steps.throw(error)
                    else:
                        step = steps.send(result)
        except StopIteration as end:
            found: T = end.value
            return found
