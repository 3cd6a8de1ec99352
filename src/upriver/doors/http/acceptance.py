"""The HTTP door's listener on its event loop: it takes callers from the gate, as many at a time as it can read."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from upriver.net.gate import PAUSE_S, UNPROVED_S_MAX, GatedCaller, GatedListener

ACCEPTED_AT_A_TIME = 2
"""Callers that are accepted in one turn of the loop. A handshake of TLS takes several turns of the loop, and the
gate must not have dropped its caller for later ones by then."""
LATE_S = 0.5
"""Seconds between two looks for callers that have not shown a token in time."""


class HttpAcceptance:
    """Accepts from construction until ``close``; only the loop's thread uses it. Stands for asyncio's own server.

    make: makes the protocol of a caller, whose ``caller`` is set here. tls: ``None``: callers do not encrypt.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: GatedListener,
        make: Callable[[], Any],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._make = make
        self._tls = tls
        self._connecting: set[asyncio.Task[None]] = set()
        """Callers in their handshake of TLS, or about to be read."""
        self._pause: asyncio.TimerHandle | None = None
        listener.socket.setblocking(False)
        loop.add_reader(listener.socket, self._accept)
        self._dropping = loop.create_task(self._drop_late())

    def close(self) -> None:
        """Accept no more callers."""
        self._loop.remove_reader(self._listener.socket)
        self._dropping.cancel()
        for connecting in self._connecting:
            connecting.cancel()
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        """Wait for callers that are being connected."""
        await asyncio.gather(*self._connecting)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_A_TIME):
            try:
                caller = self._listener.accept()
            except OSError:  # there are no descriptors left
                self._loop.remove_reader(self._listener.socket)
                self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            if caller is None:
                return
            connecting = self._loop.create_task(self._connect(caller))
            self._connecting.add(connecting)
            connecting.add_done_callback(self._connecting.discard)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener.socket, self._accept)

    async def _connect(self, caller: GatedCaller) -> None:
        def protocol() -> Any:
            made = self._make()
            made.caller = caller
            return made

        limit = None if self._tls is None else UNPROVED_S_MAX
        try:
            await self._loop.connect_accepted_socket(
                protocol, caller.socket, ssl=self._tls, ssl_handshake_timeout=limit
            )
        except (OSError, asyncio.CancelledError):  # its handshake has failed, or the door closes
            caller.cut()  # the loop closes what it has registered
            caller.leave()

    async def _drop_late(self) -> None:
        while True:
            self._listener.drop_late()
            await asyncio.sleep(LATE_S)
