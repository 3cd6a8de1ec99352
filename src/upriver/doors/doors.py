"""The doors of a running app: opened when it is up, closed before it stops.

The packages that a door needs are optional. So its module is loaded when the door is opened, and not before.
"""

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from upriver.doors.gateway import Gateway
from upriver.doors.query_processes import PROCESSES
from upriver.doors.tls import DoorCertificate
from upriver.errors import ClusterError, DeclarationError
from upriver.net.remote import PORT_MAX
from upriver.net.server import Listen

ERROR_CHARS_MAX = 2_000
"""Characters of an error's text that a door sends: it may name what the caller has sent."""
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", re.ASCII)

MODULES: Mapping[str, tuple[str, str]] = {
    "http": ("upriver.doors.http.server", "http"),
    "postgres": ("upriver.doors.postgres.server", "spark"),
    "flight": ("upriver.doors.flight.server", "spark"),
}
"""By door: its module, which has ``serve(gateway, listen, certificate) -> Door``, and the extra with the packages that
it needs."""


class Door(Protocol):
    """An open door. address: ``host:port``."""

    @property
    def address(self) -> str: ...

    def close(self) -> None:
        """Take no more callers, and end the calls under way soon."""
        ...


@dataclass(frozen=True, slots=True)
class DoorAddresses:
    """Where an app's doors listen; a door without an address stays closed. certificate: which they show; ``None``: they
    do not encrypt."""

    listens: Mapping[str, Listen]
    certificate: DoorCertificate | None = None

    @classmethod
    def of(cls, certificate: DoorCertificate | None = None, **addresses: str | None) -> "DoorAddresses":
        """From ``host:port`` for each door. Raises DeclarationError."""
        given = {door: address for door, address in addresses.items() if address is not None}
        for door in given:
            _require(door)
        if certificate is not None and not given:
            doors = ", ".join(f"{door}=" for door in MODULES)
            raise DeclarationError(f"tls_certificate=: the app has no door that could show it: give one of {doors}")
        return cls({door: _listen(door, address) for door, address in given.items()}, certificate)


def _listen(door: str, address: Any) -> Listen:
    found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or int(found["port"]) > PORT_MAX:
        raise DeclarationError(f'{door}={address!r}: give "host:port", as in "127.0.0.1:8080"; port 0 takes a free one')
    return Listen(found["host"].strip("[]"), int(found["port"]))


def _require(door: str) -> Any:
    """The door's module. Raises DeclarationError if its packages are missing."""
    module, extra = MODULES[door]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("upriver"):
            raise
        raise DeclarationError(
            f"{door}=: the package {error.name!r} is missing: pip install 'upriver[{extra}]'"
        ) from error


class OpenDoors:
    """The doors of one running app."""

    def __init__(self, addresses: DoorAddresses, gateway: Gateway) -> None:
        """Open all. Raises ClusterError if one cannot listen; the others are closed then."""
        self._open: dict[str, Door] = {}
        try:
            for door, listen in addresses.listens.items():
                self._open[door] = _require(door).serve(gateway, listen, addresses.certificate)
        except BaseException:
            self.close()
            raise

    def address(self, door: str) -> str:
        """``host:port`` of an open door. Raises DeclarationError if it is not open."""
        if door not in self._open:
            raise DeclarationError(f'the app has no {door} door: give App({door}="127.0.0.1:0")')
        return self._open[door].address

    def close(self) -> None:
        """Close all; a second call does nothing."""
        while self._open:
            self._open.popitem()[1].close()
        PROCESSES.close()


def cannot_listen(door: str, listen: Listen, error: OSError) -> ClusterError:
    """The error of a door whose address is taken, or is none of this machine."""
    why = error.strerror or error
    return ClusterError(
        f"{door}={listen.host}:{listen.port}: cannot listen there ({why}): give another port, 0 for a free one, or an "
        f"address of this machine"
    )
