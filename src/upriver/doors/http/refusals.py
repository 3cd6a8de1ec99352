"""Refusals of the HTTP door that the client gets whole: of a head that is too long, of what is no request, and of a
body that is not read."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from upriver.client.json_values import json_bytes
from upriver.doors.http.problems import PROBLEM_TYPE, HttpProblem

HEAD_BYTES_MAX = 64 << 10
"""Bytes of a request's head: its path, query and headers."""
LINGER_BYTES_MAX = 64 << 20
"""Bytes of a refused request that are read and dropped before its connection is closed: what is left unread would make
the system reset the connection, and the client lose the answer."""
LINGER_S_MAX = 5.0
"""Seconds for which they are read."""


class _BoundedHead(h11.Connection):
    """A server's end of HTTP/1.1 that refuses a head of more than ``HEAD_BYTES_MAX``. h11's own limit holds for what it
    cannot parse yet, and so not for a head that comes at once."""

    def next_event(self) -> Any:
        held = len(self.trailing_data[0]) if self.their_state is h11.IDLE else 0
        event = super().next_event()
        if isinstance(event, h11.Request) and held - len(self.trailing_data[0]) > HEAD_BYTES_MAX:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
        return event


class LingeringTransport:
    """A connection's transport, whose ``close`` lets the client read the answer first. It reads and drops what the
    client still sends, until the client closes or a limit is reached. The rest is the transport's own."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        is_sending: Callable[[], bool],
        seconds: float = LINGER_S_MAX,
    ) -> None:
        """is_sending: whether the client has sent its request in part. seconds: for which it reads."""
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self._seconds = seconds
        self._left = LINGER_BYTES_MAX
        """Bytes that are dropped at most."""
        self._end: asyncio.TimerHandle | None = None
        """When it closes, once it lingers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        """Whether nothing more is sent."""
        return self._end is not None

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        if self._is_sending():
            self.linger()
        else:
            self._transport.close()

    def linger(self) -> None:
        """Send no more."""
        if self.is_closing():
            return
        if self._transport.can_write_eof():  # over TLS, the length tells the client where the answer ends
            self._transport.write_eof()
        self._transport.resume_reading()
        self._end = self._loop.call_later(self._seconds, self._transport.close)

    def drop(self, nbytes: int) -> None:
        """So much has come."""
        self._left -= nbytes
        if self._left < 0:
            self._transport.close()

    def end(self) -> None:
        """Close at once."""
        if self._end is not None:
            self._end.cancel()
        self._transport.close()


class RefusingHttp(H11Protocol):
    """HTTP/1.1, where a client whose request is refused gets the answer, however much it still sends."""

    transport: LingeringTransport  # type: ignore[assignment]  # it has all that uvicorn uses

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _BoundedHead(h11.SERVER, HEAD_BYTES_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = LingeringTransport(transport, self.loop, lambda: self.conn.their_state is h11.SEND_BODY)

    def data_received(self, data: bytes) -> None:
        if self.transport.lingers:
            self.transport.drop(len(data))
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.transport.end()

    def shutdown(self) -> None:
        if self.transport.lingers:
            self.transport.end()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request. uvicorn calls this while it handles h11's error."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            text = f"a request's head, its path, query and headers, has at most {HEAD_BYTES_MAX:,} bytes"
            problem = HttpProblem(431, "HeadTooLarge", text)
        else:
            problem = HttpProblem(400, "BadRequest", f"this is no request of HTTP/1.1: {error}")
        if self.cycle is not None:
            self.cycle.disconnected = True  # what it answers is not sent any more
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else its answer is under way
            body = json_bytes(problem.body())
            headers = [("content-type", PROBLEM_TYPE), ("content-length", str(len(body))), ("connection", "close")]
            answer = h11.Response(status_code=problem.status, headers=headers)
            for event in (answer, h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.linger()
