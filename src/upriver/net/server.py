"""A process's one server: an admission (:mod:`.admission`) that authenticates callers, and a thread for each of them.

``Calls``: actions and gets by name. A question ``{"act": name, "fields": object}`` is answered with an object, a
question ``{"get": name, "fields": object, "from": row}`` with rows from that row on, a question ``{"piece": name,
"fields": object}`` with an object and rows. The client pulls rows, a bounded batch at a time: a client that stops
reading holds nothing here.

``listen_for``: where an app's servers listen, and the address by which other processes reach them. The coordinator
listens on loopback if all executors are on its machine, or if Spark itself is on loopback. Otherwise it listens as
Spark's driver does, and executors reach it as they reach the driver. A worker advertises the local address of the
socket by which it reached the coordinator: the other processes are on that side of the machine.
"""

import atexit
import ipaddress
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self

import pyarrow as pa

from upriver.arguments import whole
from upriver.errors import AccessDenied, ClusterError, DeclarationError, ProtocolError, UpriverError
from upriver.net.admission import AdmittedCaller, CallerAdmission, ServedConnections
from upriver.net.byte_stream import ByteStream
from upriver.net.frames import SEND_S_MAX, Traffic
from upriver.net.gate import CallerGate, GatedListener
from upriver.net.handshake import HandshakeKeys, Identity, Purpose, Role, Session
from upriver.net.line import CALL_TERMS, Frame, Line, answer_all
from upriver.net.remote import PORT_MAX, check_token
from upriver.net.wire import AskedFields

IDLE_S_MAX = 600.0
"""Seconds after which a client's idle connection is closed."""

WILDCARDS = ("0.0.0.0", "::", "[::]")
"""Hosts that stand for all interfaces."""


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
class Caller:
    """A caller that has proved its identity: its connection, its session keys, and the server's bounds. role: a
    client's; ``None`` for the cluster."""

    stream: ByteStream
    session: Session
    traffic: Traffic
    role: Role | None

    @property
    def host(self) -> str:
        """The address that it comes from, without the port."""
        return self.stream.peer.rpartition(":")[0]


class Service(Protocol):
    """Serves callers of one purpose."""

    def serve(self, caller: Caller, /) -> None:
        """Serve a caller until it has gone, on a thread of its own. The server closes the stream afterwards. An OSError
        or UpriverError ends this, too."""

    def stop(self) -> None:
        """End all conversations, in good order as far as that is possible soon."""


NO_SERVICES: Mapping[Purpose, Service] = MappingProxyType({})


class Server:
    """Listens from construction until ``stop``, on threads of its own. Also a context manager.

    keys: what callers must know. services: by purpose. gate: ``None``: the process's. Raises UserError for a malformed
    token, ClusterError if it cannot listen; the services are stopped then.
    """

    def __init__(
        self,
        keys: HandshakeKeys,
        services: Mapping[Purpose, Service] = NO_SERVICES,
        *,
        listen: Listen = Listen(),
        gate: CallerGate | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        check_token(keys.token)
        if keys.reader_token is not None:
            check_token(keys.reader_token)
        self._services = dict(services)
        self._traffic = traffic or Traffic()
        self._connections = ServedConnections()
        self._is_stopped = threading.Lock()
        listening = self._listening(listen)
        self.port: int = listening.getsockname()[1]
        self.address = listen.address(self.port)
        listener = GatedListener(listening, gate)
        self._admission = CallerAdmission(listener, keys, frozenset(self._services), self._admit)
        self._admission.start()
        atexit.register(self.stop)

    def _listening(self, listen: Listen) -> socket.socket:
        host = listen.host.strip("[]")
        try:
            return listening_socket(host, listen.port)
        except (OSError, UnicodeError, OverflowError) as error:
            self._stop_services()
            why = getattr(error, "strerror", None) or error
            place, advice = listen.host, "an address of this machine"
            if listen.port:  # without one, the port is not the trouble
                place, advice = f"{place}:{listen.port}", f"another port, 0 for a free one, or {advice}"
            raise ClusterError(
                f"cannot listen on {place} ({why}): give App(listen=...) {advice}. Without listen=, the app listens "
                f"where Spark's driver does: spark.driver.bindAddress"
            ) from None

    def stop(self) -> None:
        """Take no more callers, stop the services, then cut the connections that are left.

        Running handlers must return by themselves: the server cannot stop them, so no handler may call this. A second
        call does nothing.
        """
        if not self._is_stopped.acquire(blocking=False):
            return
        atexit.unregister(self.stop)
        self._admission.stop()
        self._stop_services()
        self._connections.cut()
        self._traffic.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stop_services(self) -> None:
        for service in self._services.values():
            service.stop()

    def _admit(self, admitted: AdmittedCaller) -> None:
        """A caller has proved its identity. The admission's thread calls this."""
        if admitted.purpose.needs is Identity.CLIENT:
            admitted.stream.limit(SEND_S_MAX, IDLE_S_MAX)
        name = f"upriver-{admitted.purpose}"
        thread = threading.Thread(target=partial(self._serve, admitted), name=name, daemon=True)
        try:
            self._connections.begin(admitted.stream, thread)
        except RuntimeError:  # the caller tries again; the admission goes on
            admitted.stream.close()
            admitted.place.leave()

    def _serve(self, admitted: AdmittedCaller) -> None:
        """One caller, on a thread of its own."""
        caller = Caller(admitted.stream, admitted.session, self._traffic, admitted.role)
        try:
            with suppress(OSError, UpriverError):
                self._services[admitted.purpose].serve(caller)
        finally:
            self._connections.end(caller.stream)
            caller.stream.close()
            admitted.place.leave()


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
Piece = Callable[[Mapping[str, Any], Caller], tuple[Mapping[str, Any], pa.RecordBatch | None]]
"""JSON object and its caller in; JSON object and perhaps rows out, as much as one answer may have."""


class Calls:
    """The service of calls. actions, gets: handlers by name; many threads call them at once. operations: further
    actions, which readers may not call. pieces: actions that give rows, too."""

    def __init__(
        self,
        actions: Mapping[str, Action] = _NOTHING,
        gets: Mapping[str, Get] = _NOTHING,
        operations: Mapping[str, Action] = _NOTHING,
        pieces: Mapping[str, Piece] = _NOTHING,
    ) -> None:
        self._actions: Mapping[str, Action] = {PING: lambda _: {}, **actions, **operations}
        self._gets = dict(gets)
        self._operations = frozenset(operations)
        self._pieces = dict(pieces)

    def serve(self, caller: Caller) -> None:
        answer_all(Line(caller.stream, CALL_TERMS, caller.session, caller.traffic), partial(self._answer, caller))

    def stop(self) -> None:
        """Do nothing: calls under way end with their connections."""

    def _answer(self, caller: Caller, question: Frame) -> tuple[Mapping[str, Any], pa.RecordBatch | None]:
        head = question.head
        fields = head.get("fields", {})
        if not isinstance(fields, dict):
            raise ProtocolError(f"fields {fields!r:.100}: give an object")
        fields = AskedFields(fields)
        if "get" in head:
            get, first = _named(self._gets, "get", head["get"]), whole("from", head.get("from", 0))
            return _rows(str(head["get"]), get(fields, first), first)
        if "piece" in head:
            told, rows = _named(self._pieces, "piece", head["piece"])(fields, caller)
            return {"view": str(head["piece"]), "answer": dict(told)}, rows
        action = _named(self._actions, "action", head.get("act"))
        if head["act"] in self._operations and caller.role is not Role.OPERATOR:
            raise AccessDenied(
                f"{head['act']!r} needs the operator's token, app.token; this client has shown the reader's, which "
                "opens lookups, scans, changes, status and explain"
            )
        return {"answer": dict(action(fields))}, None


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
_HOST_AND_PORT = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
REACH_S_MAX = 5.0
"""Seconds that a worker tries to reach the coordinator's address."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent to it: the system only says which interface it would use."""


BACKLOG = 1024
"""Connections that wait to be accepted; the system may have a lower limit. One that finds no room there is tried again
after a second."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there, in the host's family. Raises OSError, UnicodeError, OverflowError if it cannot."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno)) from None  # Python's text repeats the address


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


def listen_at(what: str, address: str) -> Listen:
    """From ``host:port``; port 0 takes a free one. what: begins the message. Raises DeclarationError."""
    found = _HOST_AND_PORT.fullmatch(address) if isinstance(address, str) else None
    if found is None or int(found["port"]) > PORT_MAX:
        raise DeclarationError(
            f'{what}={address!r}: give "host:port", as in "{LOOPBACK}:8080"; port 0 takes a free one'
        )
    return Listen(found["host"].strip("[]"), int(found["port"]))


def listen_for(
    given: Listen | None,
    spark: SparkHosts,
    *,
    resolve: Callable[[str], Sequence[str]] = resolved,
    outward: Callable[[], str] = outward_address,
) -> Listen:
    """Where the coordinator listens. given: the user's choice; ``None`` leaves the choice to Upriver.

    Raises DeclarationError for loopback if executors on other hosts cannot reach it.
    """
    driver_is_here = spark.executors_are_here or is_loopback(spark.driver_host, resolve)
    driver_host = spark.driver_host.strip("[]")
    if given is None:
        if driver_is_here:
            return Listen(host=LOOPBACK)
        return Listen(host=(spark.driver_bind or driver_host).strip("[]"), advertised=driver_host)
    if given.host in WILDCARDS:
        return replace(given, advertised=outward() if driver_is_here else driver_host)
    if not driver_is_here and is_loopback(given.host, resolve):
        raise DeclarationError(
            f"listen={given.address(given.port)!r}: executors of {spark.master} may be on other hosts, which do not "
            f"reach loopback. Leave listen out: the app then listens as Spark's driver does, on {spark.driver_host}. "
            "If all executors are on this machine, set spark.driver.host=127.0.0.1"
        )
    return given


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
