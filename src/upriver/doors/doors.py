"""The doors of an app: opened before it is up, closed before it stops.

The packages that a door needs are optional. So its module is loaded when the door is opened, and not before.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from upriver.doors.gateway import Gateway
from upriver.doors.query_processes import PROCESSES
from upriver.errors import ClusterError, DeclarationError
from upriver.net.server import Listen, listen_at
from upriver.options import Doors, Tls

ERROR_CHARS_MAX = 2_000
"""Characters of an error's text that a door sends: it may name what the caller has sent."""

MODULES: Mapping[str, tuple[str, str]] = {
    "http": ("upriver.doors.http.server", "http"),
    "postgres": ("upriver.doors.postgres.server", "spark"),
    "flight": ("upriver.doors.flight.server", "spark"),
}
"""By door: its module, which has ``serve(gateway, listen, tls) -> Door``, and the extra with the packages that
it needs."""


class Door(Protocol):
    """An open door. address: ``host:port``."""

    @property
    def address(self) -> str: ...

    def close(self) -> None:
        """Take no more callers, and end the calls under way soon."""
        ...


def listens_of(doors: Doors) -> dict[str, Listen]:
    """Where each door listens. Raises DeclarationError for a malformed address, or if a door's packages are missing."""
    for door in doors.addresses:
        _require(door)
    return {door: listen_at(f"Doors: {door}", address) for door, address in doors.addresses.items()}


def _require(door: str) -> Any:
    """The door's module. Raises DeclarationError if its packages are missing."""
    module, extra = MODULES[door]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("upriver"):
            raise
        raise DeclarationError(
            f"Doors: {door}: the package {error.name!r} is missing: pip install 'upriver[{extra}]'"
        ) from error


class OpenDoors:
    """The doors of one app: open before it starts, so that a taken address is said at once."""

    def __init__(self, doors: Doors, gateway: Gateway, tls: Tls | None) -> None:
        """Open all. tls: ``None``: they do not encrypt. Raises ClusterError if one cannot listen; the others are closed
        then."""
        self._open: dict[str, Door] = {}
        try:
            for door, listen in listens_of(doors).items():
                self._open[door] = _require(door).serve(gateway, listen, tls)
        except BaseException:
            self.close()
            raise

    def address(self, door: str) -> str:
        """``host:port`` of an open door. Raises DeclarationError if it is not open."""
        if door not in self._open:
            raise DeclarationError(f'the app has no {door} door: give App(doors=Doors({door}="127.0.0.1:0"))')
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
        f"{door}: {listen.host}:{listen.port}: cannot listen there ({why}): give another port, 0 for a free one, or an "
        f"address of this machine"
    )
