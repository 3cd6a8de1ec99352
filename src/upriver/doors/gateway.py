"""The gateway: what every door may ask of an app, by which role, and within which bounds.

HTTP, Arrow Flight and PostgreSQL's wire differ in how they spell a question. Behind them is one client of the app, so
an answer is the same at each door.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa

from upriver.arguments import seconds
from upriver.client.client import SCAN_S, Client, Keys, LookupLimits
from upriver.client.dated_rows import DatedRows
from upriver.client.key_texts import keys_of_texts
from upriver.client.queries import answer_as_batch, parameters_from_json
from upriver.client.rescale import Rescale
from upriver.client.scans import ScanReader
from upriver.doors.cancellation import Cancellation
from upriver.doors.column_titles import with_spark_names
from upriver.doors.execution import ClientRows, execute, parse_turn
from upriver.doors.parameters import with_values
from upriver.doors.queries import ViewQuery
from upriver.doors.query_processes import QUERY_S_MAX
from upriver.doors.river import RiverFeed
from upriver.doors.shares import OWN_CALLER, QueryCaller
from upriver.errors import DeclarationError
from upriver.lake.address import Root
from upriver.lake.lake import Lake
from upriver.net.handshake import Role
from upriver.net.server import Caller
from upriver.options import Tokens
from upriver.plan.explain import render
from upriver.plan.types import spark_name
from upriver.protocol.lookups import ViewRoute, route_among
from upriver.runtime.change_feed import ChangeFeed


class Gateway:
    """Answers for all doors of one app. Usable by many threads; every method raises only UpriverErrors."""

    def __init__(self, connected: Callable[[], Client], tokens: Tokens, root: str | None = None) -> None:
        """connected: the app's client; raises NotReady while the app starts, for doors are open before it is up. root:
        of the app's lake; ``None``: this process has no access to it, and tells no changes."""
        self._connected = connected
        self.river = RiverFeed(connected)
        self.root = root
        self._changes = None if root is None else ChangeFeed(Lake(root))
        self._tokens = tokens
        self._pepper = secrets.token_bytes(32)
        self._operator = self._digest(tokens.operator)
        self._reader = secrets.token_bytes(32) if tokens.reader is None else self._digest(tokens.reader)

    @property
    def client(self) -> Client:
        """Raises NotReady while the app starts."""
        return self._connected()

    # Callers

    def role(self, token: str) -> Role | None:
        """The role of a caller that shows this token; ``None`` if it is no token of the app. Takes as long for a wrong
        token as for a right one."""
        digest = self._digest(token)
        is_operator, is_reader = hmac.compare_digest(digest, self._operator), hmac.compare_digest(digest, self._reader)
        return Role.OPERATOR if is_operator else Role.READER if is_reader else None

    @property
    def tokens(self) -> Mapping[str, str]:
        """The app's tokens by role, for a door whose callers prove that they know one without sending it."""
        reader = self._tokens.reader
        return {"operator": self._tokens.operator} | ({} if reader is None else {"reader": reader})

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._pepper, token.encode("utf-8", "surrogatepass"), hashlib.sha256)

    # Views

    @property
    def store(self) -> Mapping[str, str]:
        """Settings that open the lake's object store."""
        return self.root.options if isinstance(self.root, Root) else {}

    def routes(self) -> Mapping[str, ViewRoute]:
        """All views: key, columns, and the tables that each reads."""
        return self.client.routes()

    def route(self, view: str) -> ViewRoute:
        """One view. Raises UnknownView."""
        return route_among(view, self.routes())

    def described(self, view: str) -> dict[str, Any]:
        """A view as a plain dict: ``view``, ``key``, ``columns`` (name and type of each, as Spark names it), ``tables``
        that it reads, ``sql``, ``is_partial``, and ``explain``, a text. Raises UnknownView."""
        route, explained = self.route(view), self.client.explain(view)
        columns = [{"name": field.name, "type": spark_name(field.type)} for field in route.schema]
        return {
            "view": view,
            "key": list(route.key),
            "columns": columns,
            "tables": list(route.tables),
            "sql": explained["sql"],
            "is_partial": explained["regions"][-1]["state"] == "partial",
            "explain": render(explained),
        }

    # Rows

    def lookup(self, view: str, keys: Keys, **limits: Unpack[LookupLimits]) -> DatedRows:
        """The rows of these keys, as of one epoch, in the order of the keys; as ``Client.lookup``, which documents
        keys, limits and errors."""
        return self.client.lookup_rows(view, keys, **limits)

    def keys_of_texts(self, view: str, texts: Sequence[str]) -> pa.Table:
        """Keys from their texts, read in the types of the view's key columns: a value, or a JSON list of values.

        Raises UnknownView, KeyTypeError."""
        return keys_of_texts(view, self.client.key_schema(view), texts)

    def scan(self, view: str, timeout: float = SCAN_S) -> ScanReader:
        """All rows of a view as of the end of one epoch, in batches, read as they are pulled; as ``Client.scan``."""
        return self.client.scan(view, timeout=timeout, store=self.store)

    def rows(self, scan_s: float = QUERY_S_MAX) -> ClientRows:
        """What queries read. scan_s: seconds in which a scan must have been read."""
        return ClientRows(self._connected, self.store, scan_s)

    def query(
        self,
        sql: str,
        parameters: pa.RecordBatch,
        timeout: float = QUERY_S_MAX,
        caller: QueryCaller = OWN_CALLER,
    ) -> pa.Table:
        """The answer of a SELECT in Spark's SQL over views. parameters: as ``with_values`` takes them. timeout: seconds
        after which its caller has given it up. caller: whose share it takes.

        The rows of each view are as of the end of one epoch. Raises as ``execute`` does."""
        give_up_at = time.monotonic() + timeout
        rows, cancellation = self.rows(), Cancellation(lambda: time.monotonic() >= give_up_at, caller)
        with parse_turn(sql, cancellation):
            query = ViewQuery.of(with_spark_names(with_values(sql, parameters)), rows.routes())
        return execute(query, rows, cancellation=cancellation)

    def query_piece(self, asked: Mapping[str, Any], caller: Caller) -> tuple[Mapping[str, Any], pa.RecordBatch]:
        """The same for a client: ``sql``, ``timeout_s`` and ``parameters``, as :func:`.query_fields` gives them; the
        answer is one batch with a stream of Arrow's, since each query has columns of its own."""
        timeout = seconds("timeout_s", asked["timeout_s"])
        share = QueryCaller(caller.host, "" if caller.role is None else caller.role.name)
        found = self.query(str(asked["sql"]), parameters_from_json(asked["parameters"]), timeout, share)
        return {}, answer_as_batch(found)

    def changes(self) -> ChangeFeed:
        """The changes of the app's views. Raises DeclarationError if this process has no access to the lake."""
        if self._changes is None:
            raise DeclarationError("this door has no access to the app's lake, which has the changes of views")
        return self._changes

    # The app

    def status(self) -> dict[str, Any]:
        """As ``App.status``."""
        return self.client.status()

    def metrics(self) -> str:
        """The app's metrics, in Prometheus' text format."""
        return self.client.metrics()

    def check_ready(self) -> None:
        """Raise NotReady unless every view reflects all rows from before the start; ClusterError if the app does not
        answer."""
        self.client.check_ready()

    def rescales(self) -> list[dict[str, Any]]:
        """The last rescales, oldest first; as ``App.rescales``."""
        return self.client.rescales()

    def rescale_under_way(self) -> Rescale | None:
        """The rescale that has begun and has not ended."""
        told = self.status().get("rescale")
        return None if told is None else self.client.rescale_of(told["ticket"])

    # Operators' calls; each door checks the role

    def rescale(
        self,
        workers: int | None = None,
        *,
        moves: Mapping[int, int] | None = None,
        strategy: str = "icadd",
        keys_max: int | None = None,
    ) -> Rescale:
        """Begin a rescale; as ``App.rescale``."""
        return self.client.rescale(workers, moves=moves, strategy=strategy, keys_max=keys_max)

    def rescale_of(self, ticket: int) -> Rescale:
        """A rescale of this run of the app, by its ticket."""
        return self.client.rescale_of(ticket)

    def evict(self, view: str, keys: Keys | None = None) -> None:
        """Evict keys of a partial view; as ``Client.evict``."""
        self.client.evict(view, keys)
