"""Trust at the HTTP door: tokens, roles, sessions, other sites, and limits."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
from http_kit import BEARER, NO_TLS, READER, HttpApp
from hypothesis import given, settings
from hypothesis import strategies as st
from server_kit import SECONDS_MAX, TOKEN
from soak import examples
from standby_kit import await_that

from upriver.doors.http.application import REQUESTS, STREAMS
from upriver.doors.http.guard import is_loopback
from upriver.doors.http.messages import BODY_BYTES_MAX
from upriver.doors.http.refusals import LINGER_BYTES_MAX, LingeringTransport
from upriver.doors.http.server import UNPROVED_REQUESTS_MAX
from upriver.doors.http.sessions import SESSION_S_MAX, SESSIONS_MAX, BrowserSessions
from upriver.net.handshake import Role

OPEN = {"/healthz", "/readyz", "/login", "/login.css"}
"""What a caller without a token gets."""


@pytest.fixture(scope="module")
def app() -> Iterator[HttpApp]:
    running = HttpApp()
    yield running
    running.stop()


@pytest.fixture
def caller(app: HttpApp) -> Iterator[httpx.Client]:
    """A caller without a token."""
    with app.caller({}) as anonymous:
        yield anonymous


@pytest.fixture(scope="module")
def operator(app: HttpApp) -> Iterator[httpx.Client]:
    with app.caller() as caller:
        yield caller


def log_in(caller: httpx.Client, token: str = TOKEN, headers: Mapping[str, str] | None = None) -> httpx.Response:
    return caller.post("/login", data={"token": token}, headers=headers)


def test_only_health_and_the_login_need_no_token(caller: httpx.Client) -> None:
    for path in ("/", "/page.js", "/v1/status", "/v1/views", "/v1/openapi.json", "/metrics", "/v1/nothing", *OPEN):
        status = caller.get(path).status_code
        assert (status == 200) == (path in OPEN), (path, status)
    refused = caller.get("/v1/status")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="upriver"')
    home = caller.get("/", headers={"accept": "text/html"})
    assert (home.status_code, home.headers["location"]) == (303, "/login")


@pytest.mark.parametrize(
    "shown",
    ["", "Bearer", f"Basic {TOKEN}", "Bearer wrong", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"],
)
def test_a_wrong_token_is_refused_and_not_repeated(caller: httpx.Client, shown: str) -> None:
    answer = caller.get("/v1/status", headers={b"authorization": shown.encode()})
    assert answer.status_code == 401
    assert "wrong" not in answer.text
    assert TOKEN[:-1] not in answer.text


def test_a_token_in_the_query_opens_nothing(caller: httpx.Client) -> None:
    assert caller.get(f"/v1/status?token={TOKEN}&access_token={TOKEN}").status_code == 401


def test_a_reader_reads_and_changes_nothing(app: HttpApp) -> None:
    with app.caller(READER) as reader:
        assert reader.get("/v1/session").json() == {"role": "reader"}
        assert reader.get("/v1/views/planes?key=N1").status_code == 200
        for method, path in (("POST", "/v1/rescale"), ("DELETE", "/v1/rescale"), ("POST", "/v1/views/planes/evict")):
            refused = reader.request(method, path)
            assert (refused.status_code, refused.json()["detail"]) == (403, "this needs the operator's token")
    assert app.coordinator.heard() == []
    assert app.evicted == []


def test_a_browser_logs_in_once_and_out_again(app: HttpApp, caller: httpx.Client) -> None:
    wrong = log_in(caller, "wrong")
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    done = log_in(caller)
    cookie = done.headers["set-cookie"]
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert caller.get("/v1/session").json() == {"role": "operator"}
    kept = dict(caller.cookies)
    own = {"sec-fetch-site": "same-origin"}
    assert caller.post("/logout", headers=own).status_code == 303
    with app.caller({}) as again:
        again.cookies.update(kept)
        assert again.get("/v1/session").status_code == 401


@pytest.mark.parametrize("other", ['prefs={"a": 1}', "a@b=c", "flag", "expires=1", '"', "="])
def test_cookies_of_other_programs_close_no_session(app: HttpApp, other: str) -> None:
    with app.caller({}) as caller:
        session = log_in(caller).headers["set-cookie"].partition(";")[0]
    for cookies in (f"{other}; {session}", f"{session}; {other}", f"{other};{session}"):
        with app.caller({"cookie": cookies}) as caller:
            assert caller.get("/v1/session").json() == {"role": "operator"}, cookies
    for cookies in (f"x{session}", f"{other}; x={session}", session.partition("=")[0]):
        with app.caller({"cookie": cookies}) as caller:
            assert caller.get("/v1/session").status_code == 401, cookies


OTHER_SITES: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
]


@pytest.mark.parametrize("headers", OTHER_SITES)
def test_another_site_changes_nothing_with_the_cookie(
    app: HttpApp, caller: httpx.Client, headers: dict[str, str]
) -> None:
    log_in(caller)
    for method, path in (("POST", "/v1/rescale"), ("POST", "/v1/views/planes/evict"), ("POST", "/logout")):
        refused = caller.request(method, path, json={"workers": 3}, headers=headers)
        assert (refused.status_code, refused.json()["title"]) == (403, "OtherSite")
    assert app.coordinator.heard() == []
    if headers:
        with app.caller({}) as other:
            assert log_in(other, headers=headers).status_code == 403


def test_the_door_s_own_page_does(app: HttpApp, caller: httpx.Client) -> None:
    log_in(caller)
    own = {"origin": f"http://{app.server.address}"}
    assert caller.post("/v1/views/planes/evict", headers=own).status_code == 200
    assert app.evicted.pop() == {"view": "planes", "keys": None}


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8080", "", "[", "10.0.0.1"])
def test_a_foreign_name_that_points_here_is_refused_first(caller: httpx.Client, host: str) -> None:
    for path in ("/healthz", "/login", "/v1/status"):
        answer = caller.get(path, headers={**BEARER, "host": host})
        assert (answer.status_code, "upriver_session" in str(answer.headers)) == (421, False)


def test_names_of_loopback_are_known() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "LOCALHOST.")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "localhost.evil.example", "10.0.0.1", "::")))


def test_every_answer_keeps_other_sites_out(caller: httpx.Client) -> None:
    for path in ("/login", "/v1/status", "/healthz", "/v1/nothing"):
        headers = caller.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_sessions_are_bounded_and_end() -> None:
    now = [0.0]
    sessions = BrowserSessions(lambda: now[0])
    first = sessions.begin(Role.READER)
    assert sessions.role(first) is Role.READER
    others = [sessions.begin(Role.OPERATOR) for _ in range(SESSIONS_MAX)]
    assert sessions.role(first) is None
    now[0] = SESSION_S_MAX
    assert [session for session in others if sessions.role(session)] == []


def test_a_body_that_is_too_long_is_refused_unread(app: HttpApp) -> None:
    with app.caller() as caller:
        told = caller.post("/v1/views/planes/lookup", content=b" " * (BODY_BYTES_MAX + 1))
        assert (told.status_code, told.json()["title"]) == (413, "BodyTooLarge")
        untold = caller.post("/v1/views/planes/lookup", content=iter([b" " * (1 << 20)] * 5))
        assert untold.status_code == 413
    with app.caller({}) as anonymous:
        assert anonymous.post("/login", content=b"token=" + b"x" * 9_000).status_code == 413


LOOKUP = f"POST /v1/views/planes/lookup HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
LARGE = b" " * (5 << 20)
PIECE = b"%x\r\n%b\r\n" % (len(LARGE), LARGE)
REFUSED: Mapping[str, tuple[bytes, int, str]] = {
    "a body whose length is told": (
        f"{LOOKUP}Content-Length: {len(LARGE)}\r\n\r\n".encode() + LARGE,
        413,
        "a body has at most",
    ),
    "a body in pieces": (
        f"{LOOKUP}Transfer-Encoding: chunked\r\n\r\n".encode() + PIECE,
        413,
        "a body has at most",
    ),
    "a login": (
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE,
        413,
        "a body has at most",
    ),
    "a long path": (
        b"GET /" + b"a" * 120_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        431,
        "a request's head, its path, query and headers, has at most 65,536 bytes",
    ),
    "many headers": (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        431,
        "a request's head",
    ),
    "a head without an end": (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * (1 << 20),
        431,
        "a request's head",
    ),
    "a head with a body": (
        f"{LOOKUP}X: {'y' * 120_000}\r\nContent-Length: {len(LARGE)}\r\n\r\n".encode() + LARGE,
        431,
        "a request's head",
    ),
    "no request": (b"\x16\x03\x01\x02\x00\r\n\r\n" + LARGE, 400, "this is no request of HTTP/1.1"),
    "a malformed piece": (
        f"{LOOKUP}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode() + LARGE,
        400,
        "this is no request of HTTP/1.1",
    ),
}


@pytest.mark.parametrize("asked", REFUSED)
def test_a_refusal_is_delivered_whole_to_a_client_that_sends_all_first(app: HttpApp, asked: str) -> None:
    sent, status, text = REFUSED[asked]
    host, _, port = app.server.address.partition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as raw:
        raw.sendall(sent)
        head, _, body = b"".join(iter(lambda: raw.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == str(status).encode()
    assert b"connection: close" in head.lower()
    assert text in json.loads(body)["detail"]


def test_what_a_refused_client_sends_further_is_read_up_to_a_limit(app: HttpApp) -> None:
    host, _, port = app.server.address.partition(":")
    sent = 0
    with socket.create_connection((host, int(port)), SECONDS_MAX) as raw:
        raw.sendall(REFUSED["a long path"][0])
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 431")
        with suppress(ConnectionError):
            while sent < 2 * LINGER_BYTES_MAX:
                sent += raw.send(LARGE)
    assert sent < 2 * LINGER_BYTES_MAX


PROBE = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SESSION = f"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


@pytest.mark.parametrize("path", ["/readyz", "/v1/views"])
def test_a_connection_without_a_token_has_few_requests(caller: httpx.Client, path: str) -> None:
    told = [caller.get(path).headers.get("connection") for _ in range(2 * UNPROVED_REQUESTS_MAX)]
    assert told == [*[None] * (UNPROVED_REQUESTS_MAX - 1), "close"] * 2


def test_requests_that_are_sent_ahead_without_a_token_are_not_read(app: HttpApp) -> None:
    host, _, port = app.server.address.partition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as raw:
        raw.sendall(PROBE * 1_000)
        answers = b"".join(iter(lambda: _received(raw), b""))
    assert answers.count(b"HTTP/1.1 200") == answers.count(b"connection: close") == 1


def test_a_connection_that_has_shown_a_token_has_any_number_of_requests(app: HttpApp) -> None:
    host, _, port = app.server.address.partition(":")
    count = 3 * UNPROVED_REQUESTS_MAX
    with socket.create_connection((host, int(port)), SECONDS_MAX) as raw:
        raw.sendall(SESSION + PROBE * count)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < count + 1:
            answers += raw.recv(1 << 16)
    assert b"connection: close" not in answers


class _Lost(asyncio.Protocol):
    def __init__(self, ended: asyncio.Future[None]) -> None:
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set_result(None)


def test_a_connection_lingers_for_a_few_seconds() -> None:
    async def answered(ours: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        transport, _ = await loop.create_connection(lambda: _Lost(ended), sock=ours)
        lingering = LingeringTransport(transport, loop, lambda: True, seconds=0.01)
        lingering.write(b"no")
        lingering.close()
        await asyncio.wait_for(ended, SECONDS_MAX)

    ours, theirs = socket.socketpair()
    with theirs:
        asyncio.run(answered(ours))
        assert theirs.recv(16) == b"no"


@contextmanager
def lookups_waiting(app: HttpApp, begins: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Lookups wait at the workers meanwhile. begins: called by each."""
    go_on = threading.Event()

    def wait(_: int) -> None:
        begins()
        assert go_on.wait(6 * SECONDS_MAX)

    for worker in app.cluster.workers.values():
        worker.before = wait
    try:
        yield
    finally:
        go_on.set()
        for worker in app.cluster.workers.values():
            worker.before = lambda _: None


def test_more_requests_than_there_is_room_for_are_told_to_come_again(app: HttpApp) -> None:
    begun = threading.Semaphore(0)
    statuses: list[int] = []
    url = f"http://{app.server.address}/v1/views/planes?key=N1"

    def ask() -> None:
        while (answer := httpx.get(url, headers=BEARER, timeout=30, verify=NO_TLS)).status_code == 503:
            pass  # the late caller's request had the last room for a moment
        statuses.append(answer.status_code)

    with ThreadPoolExecutor(REQUESTS.caller) as threads, lookups_waiting(app, begun.release):
        for _ in range(REQUESTS.caller):
            threads.submit(ask)
        assert begun.acquire(timeout=SECONDS_MAX)
        with app.caller() as late:
            while (busy := late.get("/v1/views")).status_code == 200:
                pass
            assert (busy.status_code, busy.json()["title"], busy.headers["retry-after"]) == (503, "Busy", "1")
            assert "20 requests of the operator's token at this host are under way" in busy.json()["detail"]
            assert late.get("/healthz").status_code == late.get("/metrics").status_code == 200
        with app.caller(READER) as reader:
            assert reader.get("/v1/views").status_code == reader.get("/metrics").status_code == 200
    assert statuses == [200] * REQUESTS.caller


def test_clients_that_hang_up_leave_their_places(app: HttpApp) -> None:
    host, _, port = app.server.address.rpartition(":")
    head = f"GET /v1/views/planes?key=N1&timeout=60 HTTP/1.1\r\nHost: {app.server.address}"
    callers = [socket.create_connection((host, int(port))) for _ in range(REQUESTS.caller)]
    give_up_at = time.monotonic() + 2 * SECONDS_MAX  # the lookups take longer
    with lookups_waiting(app):
        for each in callers:
            each.sendall(f"{head}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        with app.caller() as late:
            while late.get("/v1/views").status_code == 200:
                assert time.monotonic() < give_up_at
            for each in callers:
                each.close()
            while late.get("/v1/views").status_code == 503:
                assert time.monotonic() < give_up_at


def test_a_caller_that_hangs_up_again_and_again_takes_no_other_s_thread(app: HttpApp) -> None:
    host, _, port = app.server.address.rpartition(":")
    head = f"GET /v1/views/planes?key=N1&timeout=60 HTTP/1.1\r\nHost: {app.server.address}\r\nConnection: close"
    asked = f"{head}\r\nAuthorization: {READER['authorization']}\r\n\r\n".encode()
    give_up_at = time.monotonic() + 3 * SECONDS_MAX
    callers: list[socket.socket] = []
    with lookups_waiting(app), ExitStack() as opened:
        with app.caller(READER) as late:
            while "hung up" not in (told := late.get("/v1/views").json().get("detail", "")):
                assert time.monotonic() < give_up_at, told
                if told:
                    while callers:
                        callers.pop().close()
                else:
                    callers.append(opened.enter_context(socket.create_connection((host, int(port)), SECONDS_MAX)))
                    callers[-1].sendall(asked)
        assert told.startswith(f"{2 * REQUESTS.caller} answers of the reader's token at this host are being computed")
        with app.caller() as operator:
            assert operator.get("/v1/status").status_code == operator.get("/metrics").status_code == 200
    with app.caller(READER) as reader:
        await_that(lambda: reader.get("/v1/views").status_code == 200)  # threads have ended


def test_streams_of_one_caller_leave_places_for_others(app: HttpApp) -> None:
    with ExitStack() as opened:
        reader, other = opened.enter_context(app.caller(READER)), opened.enter_context(app.caller())
        for _ in range(STREAMS.caller):
            assert opened.enter_context(reader.stream("GET", "/v1/river/events")).status_code == 200
        refused = reader.get("/v1/river/events")
        assert (refused.status_code, refused.json()["title"]) == (503, "Busy")
        assert "32 streams of events of the reader's token at this host are open" in refused.json()["detail"]
        assert opened.enter_context(other.stream("GET", "/v1/river/events")).status_code == 200
    with app.caller(READER) as reader:
        await_that(lambda: _is_streamed(reader))


def _is_streamed(caller: httpx.Client) -> bool:
    with caller.stream("GET", "/v1/river/events") as answer:
        return answer.status_code == 200


PARTS = ["v1", "views", "planes", "days", "lookup", "evict", "rescale", "status", "changes", "..", "%2e%2e", "%00", "é"]
PATHS = st.lists(st.sampled_from([*PARTS, ""]), max_size=5).map(lambda parts: "/" + "/".join(parts).lstrip("/"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["N1", "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["keys", "at_least", "max_age", "timeout", "workers", "moves", "strategy", "keys_max", "x"])
BODIES = st.binary(max_size=50) | st.dictionaries(FIELDS, VALUES, max_size=4).map(
    lambda value: json.dumps(value).encode()
)
QUERIES = st.dictionaries(
    st.sampled_from(["key", "since", "ticket", "timeout", "at_least", "customer", "day", "tailnum"]),
    st.text(max_size=8) | st.sampled_from(["1", "[1]", '[["a"]]', "now", "-1", "1e400", "9" * 5000]),
    max_size=3,
)


@settings(max_examples=examples(50))
@given(st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS", "BREW"]), PATHS, QUERIES, BODIES)
def test_no_request_is_answered_with_a_fault(
    operator: httpx.Client, method: str, path: str, query: dict[str, str], body: bytes
) -> None:
    answer = operator.request(method, path, params=query, content=body)
    assert answer.status_code < 500 or answer.status_code in (503, 504), (answer.status_code, answer.text)
    assert len(answer.content) < 100_000
    if answer.status_code >= 400 and answer.content:
        assert answer.headers["content-type"] == "application/problem+json"
        assert "Traceback" not in answer.text


def test_an_error_does_not_send_all_back_that_it_was_given(app: HttpApp) -> None:
    with app.caller() as caller:
        for path in (f"/v1/views/{'x' * 60_000}", f"/v1/views/days?key={'9' * 4_000}"):
            assert 100 < len(caller.get(path).content) < 3_000


JUNK: list[bytes] = [
    b"\x16\x03\x01\x02\x00",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"POST /login HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * (1 << 17) + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_bytes_that_are_no_request_are_refused_and_harm_nothing(app: HttpApp, junk: bytes) -> None:
    host, _, port = app.server.address.partition(":")
    with socket.create_connection((host, int(port)), SECONDS_MAX) as raw:
        with suppress(OSError):  # the server may hang up before it has got all
            raw.sendall(junk)
            raw.shutdown(socket.SHUT_WR)
        answer: Any = b"".join(iter(lambda: _received(raw), b""))
    assert not answer or answer.split(b" ")[1] in (b"400", b"421", b"431"), answer[:100]
    with app.caller({}) as after:
        assert after.get("/healthz").status_code == 200


def _received(raw: socket.socket) -> bytes:
    try:
        return raw.recv(4096)
    except ConnectionError:
        return b""
