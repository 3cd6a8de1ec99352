"""Leaves: an app's tables and views as Spark DataFrames that exist before the app runs, and after it has stopped.

A leaf's plan is a map in Arrow over the numbers of its partitions. It is made in the app's own session and given to
the user's, so no catalog knows it, and it costs no Python process. The name of its function says which app's and which
table or view it is (:mod:`upriver.sql.leaves`).

A task asks the process of the driver where the rows are. There one server answers for all apps, from the first leaf
on. While an app does not run, its tasks get NotReady. They get it in the task and not while Spark plans: Spark would
keep an error of planning for the DataFrame, and the same object is to give rows once the app runs.
"""

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from upriver.client.scans import SNAPSHOT_S_MAX
from upriver.errors import DeclarationError, NotReady
from upriver.ids import Epoch
from upriver.net.handshake import HandshakeKeys, Purpose
from upriver.net.remote import Connection, Remote
from upriver.net.server import Calls, Listen, Server
from upriver.net.tls import TlsIdentity, TlsTrust
from upriver.net.wire import refusing_malformed
from upriver.runtime.leaf_reads import SNAPSHOT_ATTEMPTS, LeafReads, RunningActions
from upriver.spark.leaf_plans import LeafPlans, frame_of, leaf_name, numbered
from upriver.spark.scan import ScannedView, ScanSource, rows_of_group
from upriver.spark.schema import spark_arrow_schema
from upriver.spark.session import map_in_arrow
from upriver.vnodes import VnodeGroup

LEAF_S_MAX = SNAPSHOT_ATTEMPTS * SNAPSHOT_S_MAX + 10.0
"""Seconds to wait for the answer where a leaf's rows are."""
_READ = "leaf"
"""The action of the server: fields ``app``, ``name``, ``execution`` and ``stage``."""
_EXECUTION = "spark.sql.execution.id"
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of a leaf, in Spark's tasks. server, server_token: where the task asks. app: the identity of the leaf's
    app. token: opens the app's workers. tls: how both are verified; ``None``: they do not encrypt. name: of the table
    or view. schema: of its rows. partitions: of the leaf. store: settings that open the lake's object store."""

    server: str
    server_token: str = field(repr=False)
    app: str
    token: str = field(repr=False)
    tls: TlsTrust | None
    name: str
    schema: pa.Schema
    partitions: int
    store: Mapping[str, str] = field(repr=False)

    @property
    def __name__(self) -> str:
        """The name of the function in Spark's plans."""
        return leaf_name(self.app, self.name)

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task's partitions. numbers: of the partitions. Raises NotReady."""
        schema = spark_arrow_schema(from_arrow_schema(self.schema, prefer_timestamp_ntz=True), "UTC")
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            for rows in self._rows(number):
                yield rows.cast(schema)

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        told = self._asked()
        source = ScanSource.from_json(told)
        if _columns(source.schema) != _columns(self.schema):
            raise DeclarationError(
                f"{self.name!r} has the columns {_columns(source.schema)}, not {_columns(self.schema)}: it has been "
                f"declared anew, which returns another DataFrame"
            )
        groups = VnodeGroup.all(source.vnodes, min(self.partitions, source.vnodes))
        if number < len(groups):
            asked = ScannedView(Remote.parse(self.server, self.token, self.tls), self.name)
            yield from rows_of_group(asked, source, told, groups[number], None, self.store)

    def _asked(self) -> dict[str, Any]:
        context = TaskContext.get()
        assert context is not None
        execution = context.getLocalProperty(_EXECUTION)
        fields = {
            "app": self.app,
            "name": self.name,
            "execution": None if execution is None else int(execution),
            "stage": context.stageId(),
        }
        with Connection(Remote.parse(self.server, self.server_token, self.tls)) as driver:
            told = driver.act(_READ, fields, timeout=LEAF_S_MAX)
            with refusing_malformed(driver.address):
                return dict(told)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class Leaves:
    """The leaves of one app."""

    def __init__(
        self,
        spark: SparkSession,
        session: Callable[[], SparkSession],
        listen: Listen,
        tls: TlsIdentity | None,
        token: str,
        store: Mapping[str, str],
        partitions: int,
    ) -> None:
        """spark: the user's session. session: gives the app's own. listen: where the app answers. tls: what it shows;
        ``None``: it does not encrypt. token: the app's. store: settings that open the lake's object store. partitions:
        of each leaf."""
        self.app = secrets.token_hex(8)
        """The identity of the app."""
        self._spark, self._session = spark, session
        self._listen, self._tls = listen, tls
        self._token, self._store, self._partitions = token, dict(store), partitions
        self._made: dict[str, tuple[pa.Schema, DataFrame]] = {}
        """By name: the columns, and the leaf in the app's own session."""
        self._reads: LeafReads | None = None
        """Of the running app."""

    @cached_property
    def plans(self) -> LeafPlans:
        """Leaves in the plans of the session's JVM."""
        return LeafPlans(self._spark)

    def own(self, name: str, schema: pa.Schema) -> DataFrame:
        """The leaf of a table or view with these columns, in the app's own session. Each time the same."""
        known = self._made.get(name)
        if known is None or not known[0].equals(schema):
            session, server = self._session(), LeafServer.of(self._listen, self._tls)
            server.answer_for(self)
            tls = None if self._tls is None else self._tls.client_trust
            rows = LeafRows(
                server.address, server.token, self.app, self._token, tls, name, schema, self._partitions, self._store
            )
            columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
            known = self._made[name] = schema, map_in_arrow(numbered(session, self._partitions), rows, columns)
        return known[1]

    def frame(self, name: str, schema: pa.Schema) -> DataFrame:
        """The same leaf as a DataFrame of the user's session."""
        return frame_of(self._spark, self.own(name, schema)._jdf.queryExecution().analyzed())

    def names_of(self, frame: DataFrame) -> tuple[str, ...]:
        """The tables and views of the app that a DataFrame reads, each once, by name."""
        return self.plans.names_of(frame, self.app)

    def register(self, session: SparkSession, schemas: Mapping[str, pa.Schema]) -> None:
        """Let the SQL of the app's own session read leaves by the names of their tables and views."""
        for name, schema in schemas.items():
            self.own(name, schema).createOrReplaceTempView(f"`{name}`")

    def serve(self, reads: Callable[[RunningActions], LeafReads]) -> None:
        """Let leaves be read from now on. reads: makes what answers their tasks."""
        self._reads = reads(_AppActions(self))

    def end(self) -> None:
        """Let tasks that read leaves get NotReady from now on."""
        self._reads = None

    def read(self, name: str, execution: int | None, stage: int) -> dict[str, Any]:
        """As :meth:`LeafReads.read`. Raises NotReady if the app does not run."""
        reads = self._reads
        if reads is None:
            if execution is not None:
                _AppActions(self).pin(execution, None)
            raise NotReady(f"{name!r} cannot be read: the app does not run. Call app.start()")
        return reads.read(name, execution, stage)


class _AppActions:
    """What Spark says of its actions, for one app."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves

    def names_read(self, execution: int) -> tuple[str, ...] | None:
        return _in_jvm(lambda: self._leaves.plans.names_read(execution, self._leaves.app))

    def pinned(self, execution: int) -> Epoch | None:
        return _in_jvm(lambda: self._leaves.plans.pinned(execution, self._leaves.app))

    def pin(self, execution: int, epoch: Epoch | None) -> None:
        _in_jvm(lambda: self._leaves.plans.pin(execution, self._leaves.app, epoch))


T = TypeVar("T")
_JVM_THREAD = ThreadPoolExecutor(1, "upriver-leaves")
"""Calls the JVM for the server's threads: py4j keeps a connection, and a thread in the JVM, for each that calls it."""


def _in_jvm(call: Callable[[], T]) -> T:
    return _JVM_THREAD.submit(call).result()


class LeafServer:
    """Answers the tasks that read leaves, for all apps of this process that listen alike and show the same, until the
    process ends."""

    _known: ClassVar[dict[tuple[Listen, TlsIdentity | None], "LeafServer"]] = {}
    _making: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, listen: Listen, tls: TlsIdentity | None) -> "LeafServer":
        """The server on the host where an app listens. tls: what the app shows. Raises ClusterError if it cannot listen
        there."""
        listen = replace(listen, port=0)
        with cls._making:
            if (listen, tls) not in cls._known:
                cls._known[listen, tls] = cls(listen, tls)
            return cls._known[listen, tls]

    def __init__(self, listen: Listen, tls: TlsIdentity | None) -> None:
        self.token = secrets.token_hex(_SECRET_BYTES)
        self._apps: WeakValueDictionary[str, Leaves] = WeakValueDictionary()
        """By identity. An App that its program has dropped is not kept."""
        keys = HandshakeKeys(self.token, secrets.token_bytes(_SECRET_BYTES), tls=tls)
        self._server = Server(keys, {Purpose.CALLS: Calls({_READ: self._read})}, listen=listen)

    @property
    def address(self) -> str:
        """``host:port`` for Spark's tasks."""
        return self._server.address

    def answer_for(self, leaves: Leaves) -> None:
        """Answer for an app, too."""
        self._apps[leaves.app] = leaves

    def _read(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        leaves = self._apps.get(str(asked["app"]))
        if leaves is None:
            raise NotReady(f"{asked['name']!r} cannot be read: the app that declared it is gone")
        execution = asked["execution"]
        return leaves.read(str(asked["name"]), None if execution is None else int(execution), int(asked["stage"]))
