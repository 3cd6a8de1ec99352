"""Where an app's servers listen, and the address by which other processes reach them.

The coordinator listens on loopback where all executors are on its machine, and where Spark itself is on loopback.
Elsewhere it listens as Spark's driver does, and executors reach it as they reach the driver. A worker advertises the
local address of the socket by which it reached the coordinator: the other processes are on that side of the machine.
"""

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from upriver.errors import ClusterError, DeclarationError
from upriver.net.server import WILDCARDS, Listen

LOOPBACK = "127.0.0.1"
REACH_S_MAX = 5.0
"""Seconds that a worker tries to reach the coordinator's address."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737). Nothing is sent to it: the system tells by which interface it would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkHosts:
    """What Spark says of its own addresses. executors_are_here: they run on the driver's machine by their master's
    kind. driver_host, driver_bind: ``spark.driver.host`` and, if it is set, ``spark.driver.bindAddress``."""

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
    """This machine's address on its way to others; loopback if it has no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def is_loopback(host: str, resolve: Callable[[str], Sequence[str]] = resolved) -> bool:
    """Whether only processes of this machine reach that host: a name is looked up."""
    found = [host.strip("[]")] if _is_address(host) else resolve(host)
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def host_of(bind: str) -> str:
    """``bind`` without brackets. Raises DeclarationError for a port, a URI or what else is no host."""
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
    """Where the coordinator listens. bind: what the user has chosen; ``None`` leaves the choice to us.

    Raises DeclarationError for what is no host, and for loopback where executors on other hosts would not reach it.
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
    """The local address of a socket that reaches ``address`` (``host:port``). Raises ClusterError if none does."""
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
