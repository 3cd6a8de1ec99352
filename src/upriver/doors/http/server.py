"""The HTTP server of an app: uvicorn on one daemon thread of the driver."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import uvicorn

from upriver.doors.doors import cannot_listen
from upriver.doors.gateway import Gateway
from upriver.doors.http.acceptance import HttpAcceptance
from upriver.doors.http.application import CALLER, HttpDoor, page_files
from upriver.doors.http.readiness import READY_EVERY_S
from upriver.doors.http.refusals import HEAD_BYTES_MAX, RefusingHttp
from upriver.doors.river import SAMPLE_S
from upriver.errors import ClusterError
from upriver.net.gate import CallerGate, GatedCaller, GatedListener
from upriver.net.server import Listen, listening_socket
from upriver.options import Tls

_LOG = logging.getLogger("upriver.http")
CONNECTIONS_MAX = 256
"""Connections at a time of callers that have shown a token; requests on more are refused with 503."""
HEAD_S_MAX = 10.0
"""Seconds in which a request's head must have come, from the first byte or the connection on."""
UNPROVED_REQUESTS_MAX = 8
"""Requests that a connection without a token may make: a load balancer keeps its connection for several probes. One
that sends a request before it has the answer to the last gets no more."""
IDLE_S_MAX = 60
"""Seconds for which a connection without requests stays open."""
CLOSE = (b"connection", b"close")
"""Of an answer's headers: no more requests of this connection are read."""
START_S_MAX = 10.0
"""Seconds in which the server must have begun."""
STOP_S_MAX = 3
"""Seconds that requests under way have when the server stops."""
PAGE = Path(__file__).parent.parent / "page"


class BoundedHttp(RefusingHttp):
    """HTTP/1.1, where a client that does not finish a request's head is cut off, and one without a token has few
    requests. caller: set before it begins."""

    caller: GatedCaller
    _late: asyncio.TimerHandle | None = None
    _unproved_requests = 0
    """That were answered before the caller had shown a token."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._asks, self.app = self.app, self._ask

    async def _ask(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start" and self.caller.identity is None:
                self._unproved_requests += 1
                is_ahead = bool(self.conn.trailing_data[0])
                if (is_ahead or self._unproved_requests >= UNPROVED_REQUESTS_MAX) and CLOSE not in message["headers"]:
                    message = {**message, "headers": [*message["headers"], CLOSE]}
            await send(message)

        await self._asks({**scope, CALLER: self.caller}, receive, answer)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)
        self.caller.leave()

    def _watch(self) -> None:
        """Begin to wait for a head, unless a request is under way or the wait has begun."""
        is_in_request = self.cycle is not None and not self.cycle.response_complete
        if is_in_request or self.transport.lingers or self.timeout_keep_alive_task is not None:
            self._cancel()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S_MAX, self.transport.abort)

    def _cancel(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose one server takes its callers from the gate; uvicorn would take as many as come."""

    def __init__(self, listener: GatedListener) -> None:
        super().__init__()
        self._listener = listener

    async def create_server(self, make: Any, *_: Any, ssl: Any = None, **__: Any) -> Any:  # type: ignore[override]
        return HttpAcceptance(self, self._listener, make, ssl)


class HttpServer:
    """Serves from construction until ``close``. Raises ClusterError if it cannot listen."""

    def __init__(
        self, gateway: Gateway, listen: Listen, tls: Tls | None = None, gate: CallerGate | None = None
    ) -> None:
        """tls: ``None``: it does not encrypt. gate: ``None``: the process's."""
        self._socket = _listening(listen)
        self._listener = GatedListener(self._socket, gate, callers_max=CONNECTIONS_MAX)
        port = self._socket.getsockname()[1]
        self.address = listen.address(port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began = threading.Event()
        self._gateway, self._host, self._port, self._tls = gateway, listen.host, port, tls
        self._door: HttpDoor | None = None
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="upriver-http", daemon=True)
        self._thread.start()
        if not self._began.wait(START_S_MAX) or self._server is None:
            self._socket.close()
            raise ClusterError(f"http={self.address}: the server has not begun in {START_S_MAX:g} s")

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(self._serve())

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop(self._listener)

    async def _serve(self) -> None:
        try:
            is_encrypted = self._tls is not None
            self._door = HttpDoor(self._gateway, self._host, self._port, page_files(PAGE), is_encrypted=is_encrypted)
            self._server = _Uvicorn(self._door, self._tls)
            self._loop = asyncio.get_running_loop()
        finally:
            self._began.set()
        watching = [
            asyncio.create_task(_repeat(self._gateway.river.sample, SAMPLE_S)),
            asyncio.create_task(_repeat(self._door.readiness.look, READY_EVERY_S)),
        ]
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for task in watching:
                task.cancel()

    def close(self) -> None:
        """Take no more connections, end the streams, and give requests under way ``STOP_S_MAX`` seconds."""
        server, door, loop = self._server, self._door, self._loop
        if server is None or door is None or loop is None:
            return
        server.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(door.close)
        self._thread.join(STOP_S_MAX + 2.0)
        self._socket.close()


class _Uvicorn(uvicorn.Server):
    """A server on a thread that is not the main one: it takes no signals."""

    def __init__(self, door: HttpDoor, tls: Tls | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # ours says what matters, without addresses
        super().__init__(
            uvicorn.Config(
                door,
                http=BoundedHttp,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_S_MAX,
                timeout_graceful_shutdown=STOP_S_MAX,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            )
        )
        if tls is not None:
            self.config.load()
            self.config.ssl = tls.context()


async def _repeat(call: Callable[[], object], every_s: float) -> None:
    """Call this on a thread, again and again: the page's history has a past for its first viewer, and a probe needs no
    call of its own."""
    threads = anyio.CapacityLimiter(1)
    while True:
        try:
            await anyio.to_thread.run_sync(call, limiter=threads, abandon_on_cancel=True)
        except Exception:  # the charts have a gap; viewers are told why when they ask for the picture
            _LOG.debug("the page's history lacks a point", exc_info=True)
        await asyncio.sleep(every_s)


def _listening(listen: Listen) -> socket.socket:
    try:
        return listening_socket(listen.host, listen.port)
    except OSError as error:
        raise cannot_listen("http", listen, error) from None


def serve(gateway: Gateway, listen: Listen, tls: Tls | None) -> Any:
    """Open the door. Raises ClusterError if it cannot listen."""
    return HttpServer(gateway, listen, tls)
