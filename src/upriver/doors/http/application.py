"""The HTTP door as an ASGI application: guards, bounds and errors around the table of endpoints.

Handlers block, so each runs on a thread. Every limit has a name; a request beyond one gets a problem, and costs no more
than that.
"""

import asyncio
import logging
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from upriver.client.json_values import json_bytes
from upriver.doors.gateway import Gateway
from upriver.doors.http.endpoints import ENDPOINTS
from upriver.doors.http.guard import SECURITY_HEADERS, CallerGuard, check_same_origin
from upriver.doors.http.messages import (
    BODY_BYTES_MAX,
    Endpoint,
    Events,
    HttpAnswer,
    HttpQuestion,
    Json,
    bad_request,
    event_bytes,
)
from upriver.doors.http.openapi import described
from upriver.doors.http.operations import metrics
from upriver.doors.http.places import CallerPlaces, HttpCaller, RequestPlaces
from upriver.doors.http.problems import PROBLEM_TYPE, RETRY_S, HttpProblem, fault, problem_of
from upriver.doors.http.readiness import Readiness
from upriver.doors.shares import Bounds
from upriver.errors import UpriverError
from upriver.net.gate import NO_PLACE
from upriver.net.handshake import Identity

REQUESTS = Bounds(total=28, group=24, caller=20)
"""Requests under way at a time, each on a thread; more are refused with 503. Their threads: twice as many."""
METRICS = Bounds(total=4, group=3, caller=2)
"""Requests for metrics, besides; and twice as many threads."""
STREAMS = Bounds(total=64, group=48, caller=32)
"""Streams of events that are open at a time."""
STREAM_THREADS_MAX = 8
"""Threads that all streams share."""
BODY_S_MAX = 10.0
"""Seconds in which a request's body must have come."""
SEND_S_MAX = 30.0
"""Seconds for which a client may not read, while an answer is sent to it."""
POLL_S = 0.25
"""Seconds between two looks for new events."""
HEARTBEAT_S = 15.0
"""Seconds after which a stream without events sends a comment, so that a lost client is noticed."""
PARAMETERS_MAX = 20_000
"""Parameters of a query."""
LOGIN_BYTES_MAX = 8_192
"""Bytes of a login form."""
CALLER = "upriver.caller"
"""Of a request's scope: the connection's place at the gate, a GatedCaller."""

_LOG = logging.getLogger("upriver.http")
_HERE = Path(__file__).parent
_OPEN_FILES = {"/login.css": _HERE / "login.css"}
"""Files that need no token: the login page has them."""

Page = Mapping[str, tuple[bytes, str]]
"""The files of the page: by path, bytes and content type."""


def page_files(folder: Path) -> Page:
    """The files of a folder, as they are at the start. Its index is at ``/``."""
    found: dict[str, tuple[bytes, str]] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        kind = mimetypes.guess_type(file.name)[0]
        if file.is_file() and kind is not None and file.suffix not in (".py", ".pyc"):
            path = "/" + file.relative_to(folder).as_posix()
            is_text = kind.startswith("text/") or kind.endswith(("javascript", "json", "xml"))
            found["/" if path == "/index.html" else path] = file.read_bytes(), kind + "; charset=utf-8" * is_text
    return found


class HttpDoor:
    """The application. host, port: where it listens. page: its files. endpoints: its operations.
    is_encrypted: whether callers come over TLS."""

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int,
        page: Page,
        endpoints: Sequence[Endpoint] = ENDPOINTS,
        *,
        is_encrypted: bool = False,
    ) -> None:
        self._gateway = gateway
        self.readiness = Readiness(gateway.check_ready)
        self._guard = CallerGuard(gateway, host, port, is_encrypted)
        self._page = page
        self._routes = [(compile_path(endpoint.path)[0], endpoint) for endpoint in endpoints]
        self._description = json_bytes(described(endpoints))
        self._login = (_HERE / "login.html").read_text()
        self._requests = RequestPlaces(REQUESTS)
        self._metrics = RequestPlaces(METRICS)
        self._streams = CallerPlaces("streams of events", "are open", STREAMS)
        self._threads = anyio.CapacityLimiter(2 * (REQUESTS.total + METRICS.total))
        self._abandoned: set[asyncio.Task[HttpAnswer]] = set()
        """Answers on their way to clients that have gone."""
        self._stream_threads = anyio.CapacityLimiter(STREAM_THREADS_MAX)
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End the streams; on the server's thread."""
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        request, began = Request(scope, receive), time.monotonic()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        with ExitStack() as held:
            try:
                response = await self._response(request, headers, held)
            except ClientDisconnect:
                return
            except Exception as error:
                response = _problem(self._problem_of(error))
            await self._send(response, request, began, send)

    async def _send(self, response: Response, request: Request, began: float, send: Send) -> None:
        """began: when the request did, monotonic."""
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)
        _LOG.debug(  # without the query, which has keys
            "%s %s: %d in %.1f ms",
            request.method,
            request.scope["path"][:200],
            response.status_code,
            1000 * (time.monotonic() - began),
        )
        await response(request.scope, request.receive, _bounded(send))

    def _problem_of(self, error: Exception) -> HttpProblem:
        if isinstance(error, HttpProblem):
            return error
        if isinstance(error, UpriverError):
            return problem_of(error)
        _LOG.error("a request has failed", exc_info=error)
        return fault()

    async def _response(self, request: Request, headers: Mapping[str, str], held: ExitStack) -> Response:
        """held: closed once the response has been sent."""
        self._guard.check_host(headers)
        method, path = request.method, request.url.path
        if path == "/healthz":
            return _answer_of(HttpAnswer(b"ok\n", "text/plain; charset=utf-8"), method)
        if path == "/readyz":
            return self._ready()
        if path == "/login":
            return await self._log_in(request, headers)
        if path in _OPEN_FILES:
            return Response(_OPEN_FILES[path].read_bytes(), media_type="text/css")
        if path == "/" and method in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
            try:
                self._guard.role(method, headers)
            except HttpProblem:
                return RedirectResponse("/login", 303)
        role = self._guard.role(method, headers)
        if not request.scope[CALLER].admit(Identity.CLIENT, role.name.lower()):
            raise HttpProblem(
                503,
                "Busy",
                NO_PLACE,
                {"retry-after": str(RETRY_S), "connection": "close"},
            )
        if path == "/logout" and method == "POST":
            return self._log_out(headers)
        if method in ("GET", "HEAD") and path in self._page:
            body, kind = self._page[path]
            return Response(body, media_type=kind)
        if method in ("GET", "HEAD") and path == "/v1/openapi.json":
            return Response(self._description, media_type="application/json")
        endpoint, parts = self._found(method, path)
        if role < endpoint.role:
            raise HttpProblem(403, "Forbidden", f"this needs the {endpoint.role.name.lower()}'s token")
        question = HttpQuestion(self._gateway, role, parts, _query(request.url.query), headers)
        endpoint.check_query(question)
        caller = HttpCaller(role, "" if request.client is None else request.client.host)
        places = self._metrics if endpoint.answer is metrics else self._requests
        if endpoint.events is not None:
            held.enter_context(self._streams.held(caller))
            with places.requests.held(caller), places.threads.held(caller):
                events = await anyio.to_thread.run_sync(endpoint.events, question, limiter=self._threads)
            return StreamingResponse(self._events(events), media_type="text/event-stream")
        with places.requests.held(caller):
            body = await _body(request, headers, BODY_BYTES_MAX)
            question = HttpQuestion(self._gateway, role, parts, question.query, headers, body)
            assert endpoint.answer is not None
            places.threads.take(caller)
            leave = partial(places.threads.leave, caller)
            return _answer_of(await self._answered(request, partial(endpoint.answer, question), leave), method)

    async def _answered(
        self, request: Request, answer: Callable[[], HttpAnswer], leave: Callable[[], None]
    ) -> HttpAnswer:
        """What a handler gives. Raises ClientDisconnect as soon as the client hangs up; then nothing waits for the
        handler's thread, which ends by its own limits. leave: called then."""
        answering = asyncio.ensure_future(anyio.to_thread.run_sync(answer, limiter=self._threads))
        answering.add_done_callback(lambda _: leave())
        leaving = asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        if not answering.done():
            self._abandoned.add(answering)
            answering.add_done_callback(self._forget)
            raise ClientDisconnect
        return answering.result()

    def _forget(self, abandoned: "asyncio.Task[HttpAnswer]") -> None:
        self._abandoned.discard(abandoned)
        if not abandoned.cancelled():
            abandoned.exception()  # nothing is told of it, since nothing waits for it

    def _found(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]]:
        """The endpoint of a request. Raises HttpProblem."""
        allowed: list[str] = []
        for pattern, endpoint in self._routes:
            if (match := pattern.match(path)) is not None:
                if endpoint.method == method or (endpoint.method, method) == ("GET", "HEAD"):
                    return endpoint, match.groupdict()
                allowed.append(endpoint.method)
        if not allowed:
            raise HttpProblem(404, "NotFound", "there is nothing at this path; /v1/openapi.json has all of them")
        raise HttpProblem(
            405, "MethodNotAllowed", f"this path takes {', '.join(allowed)}", {"allow": ", ".join(allowed)}
        )

    # Callers without a token

    def _ready(self) -> Response:
        """Whether the app is ready, from what is known, and nothing else about it."""
        if not self.readiness.is_ready:
            return Response("not ready\n", 503, media_type="text/plain")
        return Response("ready\n", media_type="text/plain")

    async def _log_in(self, request: Request, headers: Mapping[str, str]) -> Response:
        if request.method in ("GET", "HEAD"):
            return self._login_page("")
        if request.method != "POST":
            raise HttpProblem(405, "MethodNotAllowed", "this path takes GET, POST", {"allow": "GET, POST"})
        check_same_origin(headers, is_required=False)
        form = parse_qs((await _body(request, headers, LOGIN_BYTES_MAX)).decode("latin-1"), max_num_fields=4)
        role = self._gateway.role(form.get("token", [""])[0].strip())
        if role is None:
            return self._login_page("That is not a token of this app.", 401)
        answer = RedirectResponse("/", 303)
        answer.headers["set-cookie"] = self._guard.cookie(self._guard.sessions.begin(role))
        return answer

    def _login_page(self, said: str, status: int = 200) -> Response:
        return Response(self._login.replace("<!--said-->", said), status, media_type="text/html")

    def _log_out(self, headers: Mapping[str, str]) -> Response:
        session = self._guard.session(headers)
        if session is not None:
            self._guard.sessions.end(session)
        answer = RedirectResponse("/login", 303)
        answer.headers["set-cookie"] = self._guard.cookie(None)
        return answer

    # Events

    async def _events(self, events: Events) -> AsyncIterator[bytes]:
        yield b": upriver\n\n"
        quiet_since = time.monotonic()
        while not self._closing.is_set():
            try:
                event = await anyio.to_thread.run_sync(next, events, b"", limiter=self._stream_threads)
            except Exception as error:
                yield event_bytes("problem", self._problem_of(error).body())
                return
            if event == b"":
                return
            if event is not None:
                yield event
                quiet_since = time.monotonic()
                continue
            if time.monotonic() - quiet_since >= HEARTBEAT_S:
                yield b": still here\n\n"
                quiet_since = time.monotonic()
            try:
                await asyncio.wait_for(self._closing.wait(), POLL_S)
            except TimeoutError:
                continue


def _query(text: str) -> Mapping[str, Sequence[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except ValueError as error:
        raise bad_request(f"the query cannot be read: {error}") from None


async def _body(request: Request, headers: Mapping[str, str], bytes_max: int) -> bytes:
    """The whole body. Raises HttpProblem if it is too long, or too late."""
    too_long = HttpProblem(413, "BodyTooLarge", f"a body has at most {bytes_max:,} bytes", {"connection": "close"})
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > bytes_max:
        raise too_long
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise HttpProblem(
            408, "BodyTooSlow", f"the body has not come in {BODY_S_MAX:g} s", {"connection": "close"}
        ) from None
    return b"".join(parts)


async def _left(request: Request) -> None:
    """Wait until the client has hung up. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _answer_of(answer: HttpAnswer, method: str) -> Response:
    return Response(answer.body, answer.status, dict(answer.headers), answer.content_type)


def _problem(problem: HttpProblem) -> Response:
    body: Json = problem.body()
    return Response(json_bytes(body), problem.status, problem.headers, PROBLEM_TYPE)


async def _live(receive: Receive, send: Send) -> None:
    """Answer a server that tells when it begins and ends: there is nothing to do."""
    while True:
        told = (await receive())["type"]
        await send({"type": f"{told}.complete"})
        if told == "lifespan.shutdown":
            return


def _bounded(send: Send) -> Callable[[Message], Awaitable[None]]:
    """Give up on a client that does not read."""

    async def bounded(message: Message) -> None:
        async with asyncio.timeout(SEND_S_MAX):
            await send(message)

    return bounded
