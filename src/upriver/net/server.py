"""A process's one server: a listener, and a gate that authenticates callers before they cost more than a descriptor.

One thread accepts connections and reads their hellos (:mod:`.handshake`), which have a fixed size. A caller
that is not authenticated yet costs one descriptor and at most ``HELLO`` bytes for ``HANDSHAKE_S_MAX`` seconds. If there
are too many such callers, the gate drops the oldest, so idle ones never keep a rightful caller out. A caller that has
proved its identity gets a thread, which serves its purpose.

Descriptors are shared out in advance: part for unauthenticated callers, part for clients, part for the cluster's own
channels. The rest stays for the lake.

``Calls``: actions and gets by name. A question ``{"act": name, "fields": object}`` is answered with an object, a
question ``{"get": name, "fields": object, "from": row}`` with rows from that row on. The client pulls rows, a bounded
batch at a time: a client that stops reading holds nothing here.

``listen_for``: where an app's servers listen, and the address by which other processes reach them. The coordinator
listens on loopback if all executors are on its machine, or if Spark itself is on loopback. Otherwise it listens as
Spark's driver does, and executors reach it as they reach the driver. A worker advertises the local address of the
socket by which it reached the coordinator: the other processes are on that side of the machine.
"""

import atexit
import ipaddress
import resource
import selectors
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self

import pyarrow as pa

from upriver.arguments import whole
from upriver.errors import ClusterError, DeclarationError, ProtocolError, UpriverError
from upriver.net.byte_stream import ByteStream
from upriver.net.frames import SEND_S_MAX, Traffic
from upriver.net.handshake import (
    ANSWER,
    HELLO,
    PROOF_BYTES,
    HandshakeKeys,
    Identity,
    Purpose,
    Session,
    Verdict,
    greeting,
    is_same,
    nonce,
    read_hello,
)
from upriver.net.line import CALL_TERMS, Frame, Line, answer_all
from upriver.net.remote import check_token

HANDSHAKE_S_MAX = 5.0
"""Seconds in which a caller must prove its identity."""
UNAUTHENTICATED_MAX = 256
"""Connections of callers that have not yet; at most one for every eight files that the process may open."""
CLIENTS_MAX = 4096
"""Connections of clients; at most three for every eight files."""
CHANNELS_MAX = 4096
"""Connections of the cluster's own; at most one for every four files. So a quarter of the files is left for the
lake."""
IDLE_S_MAX = 600.0
"""Seconds after which a client's idle connection is closed."""
PAUSE_S = 0.1
"""Seconds until the gate accepts again when the process had no descriptor for a connection."""
GOODBYE_S_MAX = 2.0
"""Seconds that a stopping server waits for its threads."""

WILDCARDS = ("0.0.0.0", "::", "[::]")
"""Hosts that stand for all interfaces."""
_NO_PROOF = bytes(PROOF_BYTES)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens. host: name or address of an interface. port: 0 takes any that is free.

    advertised: the host name that other processes reach it by; ``host``, unless that is a wildcard.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised: str | None = None

    def address(self, port: int) -> str:
        """``host:port`` for other processes."""
        host = self.advertised or (socket.gethostname() if self.host in WILDCARDS else self.host)
        return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Places:
    """How many connections a server takes: of unauthenticated callers, of clients, of the cluster."""

    unauthenticated: int = UNAUTHENTICATED_MAX
    clients: int = CLIENTS_MAX
    channels: int = CHANNELS_MAX

    @classmethod
    def of_process(cls) -> Self:
        """As many places as leave files for the lake."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls() if files == resource.RLIM_INFINITY else cls.within(files)

    @classmethod
    def within(cls, files: int) -> Self:
        """The places of a process that may open so many files."""
        return cls(
            max(1, min(UNAUTHENTICATED_MAX, files // 8)),
            max(1, min(CLIENTS_MAX, 3 * files // 8)),
            max(1, min(CHANNELS_MAX, files // 4)),
        )

    def of(self, identity: Identity) -> int:
        return self.channels if identity is Identity.CLUSTER else self.clients


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that has proved its identity: its connection, its session keys, and the server's bounds."""

    stream: ByteStream
    session: Session
    traffic: Traffic


class Service(Protocol):
    """Serves callers of one purpose."""

    def serve(self, caller: Caller, /) -> None:
        """Serve a caller until it has gone, on a thread of its own. The server closes the stream afterwards. An OSError
        or UpriverError ends this, too."""

    def stop(self) -> None:
        """End all conversations, in good order as far as that is possible soon."""


NO_SERVICES: Mapping[Purpose, Service] = MappingProxyType({})


@dataclass(slots=True)
class _PendingCaller:
    """A caller before it is authenticated. due_at: when it must have proved its identity."""

    caller: socket.socket
    nonce: bytes
    due_at: float
    hello: bytes = b""


class Server:
    """Listens from construction until ``stop``, on threads of its own. Also a context manager.

    keys: what callers must know. services: by purpose. clock: in seconds, for the time limit of the handshake. Raises
    UserError for a malformed token, ClusterError if it cannot listen; the services are stopped then.
    """

    def __init__(
        self,
        keys: HandshakeKeys,
        services: Mapping[Purpose, Service] = NO_SERVICES,
        *,
        listen: Listen = Listen(),
        places: Places | None = None,
        traffic: Traffic | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_token(keys.token)
        self._keys = keys
        self._services = dict(services)
        self._places = places or Places.of_process()
        self._traffic = traffic or Traffic()
        self._clock = clock
        self._pending: OrderedDict[socket.socket, _PendingCaller] = OrderedDict()
        """In the order in which they came. Only the gate's thread uses it."""
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        """Guards the two that follow."""
        self._known: dict[ByteStream, threading.Thread] = {}
        self._taken: Counter[Identity] = Counter()
        self._stopping = threading.Event()
        self._is_stopped = threading.Lock()
        host = listen.host.strip("[]")
        try:
            family = socket.getaddrinfo(host, listen.port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, listen.port), family=family)
        except (OSError, UnicodeError, OverflowError) as error:
            self._stop_services()
            why = getattr(error, "strerror", None) or error
            raise ClusterError(
                f"cannot listen on {listen.host}:{listen.port} ({why}): give bind= an address of this machine"
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self.address = listen.address(self.port)
        self._waking, self._woken = socket.socketpair()
        self._gate = threading.Thread(target=self._run, name="upriver-gate", daemon=True)
        self._gate.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Take no more callers, stop the services, then cut the connections that are left.

        Running handlers must return by themselves: the server cannot stop them, so no handler may call this. A second
        call does nothing.
        """
        if not self._is_stopped.acquire(blocking=False):
            return
        atexit.unregister(self.stop)
        self._stopping.set()
        with suppress(OSError):
            self._waking.send(b"x")
        self._gate.join()
        self._waking.close()
        self._stop_services()
        with self._lock:
            known = dict(self._known)
        for stream in known:
            stream.cut()
        give_up_at = time.monotonic() + GOODBYE_S_MAX
        for thread in known.values():
            thread.join(max(0.0, give_up_at - time.monotonic()))
        self._traffic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stop_services(self) -> None:
        for service in self._services.values():
            service.stop()

    # The gate: only its thread calls what follows, except for the last method

    def _run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda: None)
        try:
            while not self._stopping.is_set():
                for key, _ in self._selector.select(self._seconds_left()):
                    key.data()
                while self._pending and self._seconds_left() == 0:
                    self._drop(next(iter(self._pending)))
        finally:
            for caller in list(self._pending):
                self._drop(caller)
            self._selector.close()
            self._listener.close()
            self._woken.close()

    def _seconds_left(self) -> float | None:
        """Seconds until the oldest pending caller is late."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else max(0.0, oldest.due_at - self._clock())

    def _accept(self) -> None:
        try:
            caller, _ = self._listener.accept()
        except BlockingIOError:  # the caller has gone
            return
        except OSError:  # there are no descriptors left
            if self._pending:
                self._drop(next(iter(self._pending)))
            else:
                self._stopping.wait(PAUSE_S)
            return
        if len(self._pending) >= self._places.unauthenticated:
            self._drop(next(iter(self._pending)))
        caller.setblocking(False)
        pending = _PendingCaller(caller, nonce(), self._clock() + HANDSHAKE_S_MAX)
        self._pending[caller] = pending
        self._selector.register(caller, selectors.EVENT_READ, partial(self._hear, pending))
        try:
            caller.send(greeting(pending.nonce))
        except OSError:
            self._drop(caller)

    def _hear(self, pending: _PendingCaller) -> None:
        """Read from a pending caller; once its hello is complete, decide."""
        if pending.caller not in self._pending:
            return  # it was dropped in this turn
        try:
            more = pending.caller.recv(HELLO.size - len(pending.hello))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        pending.hello += more
        if not more:
            self._drop(pending.caller)
        elif len(pending.hello) == HELLO.size:
            self._decide(pending)

    def _decide(self, pending: _PendingCaller) -> None:
        said = read_hello(pending.hello, pending.nonce)
        if said is None:
            self._drop(pending.caller)
            return
        exchange, proof = said
        identity = exchange.purpose.needs
        key = self._keys.of(identity)
        if not is_same(proof, exchange.proof_of_caller(key)):
            self._refuse(pending, Verdict.WRONG_KEY)
        elif exchange.purpose not in self._services:
            self._refuse(pending, Verdict.NOT_SERVED)
        elif not self._takes(identity):
            self._refuse(pending, Verdict.FULL, self._places.of(identity))
        else:
            answer = ANSWER.pack(Verdict.WELCOME, 0, exchange.proof_of_server(key))
            self._admit(pending, exchange.purpose, exchange.session_of_server(key), answer)

    def _takes(self, identity: Identity) -> bool:
        with self._lock:
            return self._taken[identity] < self._places.of(identity)

    def _refuse(self, pending: _PendingCaller, verdict: Verdict, number: int = 0) -> None:
        with suppress(OSError):
            pending.caller.send(ANSWER.pack(verdict, number, _NO_PROOF))
        self._drop(pending.caller)

    def _drop(self, caller: socket.socket) -> None:
        self._forget(caller)
        caller.close()

    def _forget(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._pending[caller]

    def _admit(self, pending: _PendingCaller, purpose: Purpose, session: Session, answer: bytes) -> None:
        self._forget(pending.caller)
        try:
            pending.caller.send(answer)
            stream = ByteStream(pending.caller)
        except OSError:  # the caller has gone already
            pending.caller.close()
            return
        if purpose.needs is Identity.CLIENT:
            stream.limit(SEND_S_MAX, IDLE_S_MAX)
        serve = partial(self._serve, Caller(stream, session, self._traffic), purpose)
        thread = threading.Thread(target=serve, name=f"upriver-{purpose}", daemon=True)
        with self._lock:
            self._known[stream] = thread
            self._taken[purpose.needs] += 1
        thread.start()

    def _serve(self, caller: Caller, purpose: Purpose) -> None:
        """One caller, on a thread of its own."""
        try:
            with suppress(OSError, UpriverError):
                self._services[purpose].serve(caller)
        finally:
            with self._lock:
                del self._known[caller.stream]
                self._taken[purpose.needs] -= 1
            caller.stream.close()


PING = "ping"
"""An action that every server has, and that does nothing."""
GET_ROWS_MAX = 65_536
"""Rows of one batch of a get's answer."""
GET_BYTES_MAX = 16 << 20
"""Bytes of such a batch, unless a single row has more."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})

Action = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""JSON object in, JSON object out. An UpriverError goes to the caller."""
Get = Callable[[Mapping[str, Any], int], pa.Table]
"""JSON object and first row in, the whole table out: the same table at each pull of the same get."""


class Calls:
    """The service of calls. actions, gets: handlers by name; many threads call them at once."""

    def __init__(self, actions: Mapping[str, Action] = _NOTHING, gets: Mapping[str, Get] = _NOTHING) -> None:
        self._actions: Mapping[str, Action] = {PING: lambda _: {}, **actions}
        self._gets = dict(gets)

    def serve(self, caller: Caller) -> None:
        answer_all(Line(caller.stream, CALL_TERMS, caller.traffic), self._answer)

    def stop(self) -> None:
        """Do nothing: calls under way end with their connections."""

    def _answer(self, question: Frame) -> tuple[Mapping[str, Any], pa.RecordBatch | None]:
        head = question.head
        fields = head.get("fields", {})
        if not isinstance(fields, dict):
            raise ProtocolError(f"fields {fields!r:.100}: give an object")
        if "get" in head:
            get, first = _named(self._gets, "get", head["get"]), whole("from", head.get("from", 0))
            return _rows(str(head["get"]), get(fields, first), first)
        return {"answer": dict(_named(self._actions, "action", head.get("act"))(fields))}, None


def _rows(name: str, table: pa.Table, first: int) -> tuple[Mapping[str, Any], pa.RecordBatch | None]:
    """One batch of rows from ``first`` on, and the number of rows in all."""
    if not 0 <= first <= table.num_rows:
        raise ProtocolError(f"from {first}: {name!r} has {table.num_rows} rows")
    count = min(GET_ROWS_MAX, max(1, GET_BYTES_MAX * table.num_rows // max(1, table.nbytes)))
    batches = table.slice(first, count).combine_chunks().to_batches()
    return {"view": name, "rows": table.num_rows}, batches[0] if batches else None


def _named(handlers: Mapping[str, Any], what: str, name: object) -> Any:
    if not isinstance(name, str) or name not in handlers:
        raise ProtocolError(f"no {what} {name!r:.100}; there are: {', '.join(sorted(handlers)) or 'none'}")
    return handlers[name]


LOOPBACK = "127.0.0.1"
REACH_S_MAX = 5.0
"""Seconds that a worker tries to reach the coordinator's address."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent to it: the system only says which interface it would use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkHosts:
    """Spark's own addresses. executors_are_here: the kind of master puts them on the driver's machine. driver_host,
    driver_bind: ``spark.driver.host`` and, if it is set, ``spark.driver.bindAddress``."""

    master: str
    executors_are_here: bool
    driver_host: str
    driver_bind: str | None


def resolved(host: str) -> Sequence[str]:
    """The addresses of a name; none if it has none."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def outward_address() -> str:
    """This machine's address towards other machines; loopback if it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def is_loopback(host: str, resolve: Callable[[str], Sequence[str]] = resolved) -> bool:
    """Whether only processes of this machine reach that host. Resolves names."""
    found = [host.strip("[]")] if _is_address(host) else resolve(host)
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def host_of(bind: str) -> str:
    """``bind`` without brackets. Raises DeclarationError for a port, a URI or anything else that is no host."""
    host = bind.strip()
    if _is_address(host):
        return host.strip("[]")
    if any(mark in host for mark in ":/[]") or not host or host != bind:
        alone = host.rpartition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]") or LOOPBACK
        raise DeclarationError(
            f"bind={bind!r}: give a host alone, without a port, as in bind={alone!r}; the system chooses the ports"
        )
    return host


def listen_for(
    bind: str | None,
    spark: SparkHosts,
    *,
    resolve: Callable[[str], Sequence[str]] = resolved,
    outward: Callable[[], str] = outward_address,
) -> Listen:
    """Where the coordinator listens. bind: the user's choice; ``None`` leaves the choice to Upriver.

    Raises DeclarationError for a bind that is no host, and for loopback if executors on other hosts cannot reach it.
    """
    driver_is_here = spark.executors_are_here or is_loopback(spark.driver_host, resolve)
    if bind is None:
        if driver_is_here:
            return Listen(host=LOOPBACK)
        return Listen(host=host_of(spark.driver_bind or spark.driver_host), advertised=host_of(spark.driver_host))
    host = host_of(bind)
    if host in WILDCARDS:
        return Listen(host=host, advertised=outward() if driver_is_here else host_of(spark.driver_host))
    if not driver_is_here and is_loopback(host, resolve):
        raise DeclarationError(
            f"bind={bind!r}: executors of {spark.master} may be on other hosts, which do not reach loopback. Leave "
            f"bind out: the app then listens as Spark's driver does, on {spark.driver_host}. If all executors are on "
            "this machine, set spark.driver.host=127.0.0.1"
        )
    return Listen(host=host)


def local_address_to(address: str, timeout: float = REACH_S_MAX) -> str:
    """The local address of a socket that reaches ``address`` (``host:port``). Raises ClusterError if it is
    unreachable."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout) as reached:
            return str(reached.getsockname()[0])
    except OSError as error:
        raise ClusterError(f"{address} cannot be reached from {socket.gethostname()}: {error}") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
