"""Browser sessions: a random id in a cookie stands for the role of the token that was typed in."""

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from upriver.net.handshake import Role

SESSIONS_MAX = 1_000
"""Sessions that are open at a time; a further one ends the oldest."""
SESSION_S_MAX = 12 * 3600.0
"""Seconds after which a session ends, however much it is used."""
SESSION_BYTES = 32
"""Random bytes of a session's id."""


class BrowserSessions:
    """Sessions in memory: a restart of the app ends them all. Usable by many threads. clock: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, tuple[Role, float]] = OrderedDict()
        """By the digest of the id, so that a lookup takes as long for a wrong id as for a right one: the role, and when
        the session ends. Oldest first; guarded by the lock."""

    def begin(self, role: Role) -> str:
        """A new session's id."""
        session = secrets.token_urlsafe(SESSION_BYTES)
        with self._lock:
            self._open[_digest(session)] = (role, self._clock() + SESSION_S_MAX)
            if len(self._open) > SESSIONS_MAX:
                self._open.popitem(last=False)
        return session

    def role(self, session: str) -> Role | None:
        """The role of an open session."""
        digest = _digest(session)
        with self._lock:
            role, ends_at = self._open.get(digest, (None, 0.0))
            if role is not None and self._clock() >= ends_at:
                del self._open[digest]
                role = None
            return role

    def end(self, session: str) -> None:
        """End a session, open or not."""
        with self._lock:
            self._open.pop(_digest(session), None)


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode("utf-8", "surrogatepass")).digest()
