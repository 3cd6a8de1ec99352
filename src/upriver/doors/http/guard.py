"""Admission of callers: hosts, tokens, sessions and their origin. Decides from a request's headers alone.

- ``Host``: on loopback it must name loopback. A page of another site that has its own name point here (DNS rebinding)
  is refused before anything else.
- A caller shows a token in ``Authorization: Bearer``, or the cookie of a session that it has begun with one.
- A browser sends the cookie by itself. So a change asked for with the cookie must come from the door's own pages:
  ``Sec-Fetch-Site`` or ``Origin`` says so.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from upriver.doors.gateway import Gateway
from upriver.doors.http.problems import HttpProblem
from upriver.doors.http.sessions import SESSION_S_MAX, BrowserSessions
from upriver.net.handshake import Role

SAFE_METHODS = ("GET", "HEAD")
"""Methods that change nothing."""
SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer: pages load nothing but the door's own files, and no other site may frame or read them."""


class CallerGuard:
    """Knows the callers of one HTTP door. host, port: where it listens. is_encrypted: whether callers come over TLS."""

    def __init__(self, gateway: Gateway, host: str, port: int, is_encrypted: bool) -> None:
        self._gateway = gateway
        self._is_loopback = is_loopback(host)
        self._cookie = f"upriver_session_{port}"  # cookies of one host are shared by all its ports
        self._attributes = "HttpOnly; SameSite=Strict" + "; Secure" * is_encrypted
        self.sessions = BrowserSessions()

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise HttpProblem for a request that was meant for another host."""
        if self._is_loopback and not is_loopback(_host_name(headers.get("host", ""))):
            raise HttpProblem(
                421, "WrongHost", "this address answers as localhost, 127.0.0.1 or [::1], not by another name"
            )

    def role(self, method: str, headers: Mapping[str, str]) -> Role:
        """The caller's role. Raises HttpProblem for a caller without one, and for a change from another site."""
        shown = headers.get("authorization")
        if shown is not None:
            scheme, _, token = shown.partition(" ")
            role = self._gateway.role(token.strip()) if scheme.lower() == "bearer" else None
            if role is None:
                raise _unauthorized("Authorization does not have a token of the app: Authorization: Bearer TOKEN")
            return role
        session = self.session(headers)
        role = None if session is None else self.sessions.role(session)
        if role is None:
            raise _unauthorized("show the app's token: Authorization: Bearer TOKEN, or log in at /login")
        if method not in SAFE_METHODS:
            check_same_origin(headers, is_required=True)
        return role

    def session(self, headers: Mapping[str, str]) -> str | None:
        """The session of the cookie, if there is one, open or not.

        Other programs of the host set cookies, too, of any form. ``http.cookies`` gives up at the first it dislikes."""
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self._cookie:
                return value
        return None

    def cookie(self, session: str | None) -> str:
        """The header that begins a session in the browser; ``None`` ends it."""
        age = int(SESSION_S_MAX) if session is not None else 0
        return f"{self._cookie}={session or ''}; Path=/; Max-Age={age}; {self._attributes}"


def check_same_origin(headers: Mapping[str, str], *, is_required: bool) -> None:
    """Raise HttpProblem for a request of another site. is_required: also for one that does not say."""
    fetched, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if fetched is not None:
        is_own = fetched in ("same-origin", "none")
    elif origin is not None:
        is_own = urlsplit(origin).netloc == headers.get("host")
    else:
        is_own = not is_required
    if not is_own:
        raise HttpProblem(
            403, "OtherSite", "a change with the browser's cookie must come from the app's own page; or show the token"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The name in a ``Host`` header."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _unauthorized(detail: str) -> HttpProblem:
    return HttpProblem(401, "Unauthorized", detail, {"www-authenticate": 'Bearer realm="upriver"'})
