"""A process of a flow's own for the code of its users' functions: it can be ended, and takes nothing along.

``FunctionProcess`` is the worker's side; :mod:`upriver.runtime.function_server` is the process. A call that does not
return in time ends the process, and so does a call during which the process dies. Then the function has failed for
good, and whatever calls it gets FunctionFailed at once. For the flow's other functions another process is started.

While the worker waits for an answer, it does other work: ``meanwhile``.
"""

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from upriver.engine.operators.map_calls import Call, Given, Made, about_map, given_by
from upriver.engine.user_functions import ColumnCall, about_function, retyped
from upriver.errors import FunctionFailed, UpriverError
from upriver.logs import LogSettings
from upriver.net.wire import error_from_json
from upriver.plan.plan import StatefulMapOp, UserFunction
from upriver.runtime.function_server import (
    START,
    Kind,
    Part,
    Said,
    batch_of,
    batch_part,
    column_schemas,
    given_parts,
    loading_column,
    loading_map,
    made_of,
    read_message,
)

_LOG = logging.getLogger("upriver.worker")

FUNCTION_TIMEOUT_S = 60.0
"""Seconds that a call of a user's function may take, unless the app says otherwise."""
LOAD_S_MAX = 120.0
"""Seconds that a process may take to start and load a function: it imports whatever the function needs."""
TELLS = 4
"""At least so many times in ``function_timeout`` a process tells that a function begins a call."""
TELL_EVERY_S_MAX = 1.0
"""And at least that often, in seconds."""
PATIENCE_S = 0.002
"""Seconds that the worker waits for an answer before it does other work."""
REST_S = 0.002
"""Seconds that it waits if there is no other work."""
ALIVE_S = 0.1
"""Seconds after which a silent process is checked for life: a process that it has forked may keep the link open."""
SOCKET_BYTES = 1 << 20
"""Bytes of an answer that a process can give without waiting for the worker."""

CLOSED = "the process for functions was ended, because its view or its worker ends"

Meanwhile = Callable[[], bool]
"""Does some other work, and does not wait; returns whether there was any."""


class _Late(Exception):
    """The call has not returned in time."""


class _Gone(Exception):
    """The process has ended."""


class _Child:
    """A process, and the link to it. loaded: the numbers of the functions that it has."""

    def __init__(self, tell_every_s: float, logs: LogSettings | None) -> None:
        self.loaded: set[int] = set()
        self._link, theirs = socket.socketpair()
        for end in (self._link, theirs):
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BYTES)
        self._link.setblocking(False)
        settings = {
            "path": sys.path,
            "link": theirs.fileno(),
            "tell_every_s": tell_every_s,
            "logs": None if logs is None else {"format": logs.format, "level": logs.level},
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", START, json.dumps(settings)],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._poll = select.poll()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exchange(self, said: Said, seconds: float, meanwhile: Meanwhile) -> Said:
        """Send, and return the answer. seconds: within which it must come, from now or from the last BEGUN on. Raises
        _Late, _Gone."""
        until = time.monotonic() + seconds
        try:
            self._send(said, until, meanwhile)
            while True:
                answer = read_message(partial(self._read, until=until, meanwhile=meanwhile))
                if answer.kind is not Kind.BEGUN:
                    return answer
                until = time.monotonic() + seconds
        except OSError as error:
            raise _Gone from error

    def _send(self, said: Said, until: float, meanwhile: Meanwhile) -> None:
        for piece in said.packed():
            sent = 0
            while sent < len(piece):
                try:
                    sent += self._link.send(piece[sent:])
                except BlockingIOError:
                    self._wait(select.POLLOUT, until, meanwhile)

    def _read(self, size: int, until: float, meanwhile: Meanwhile) -> bytearray:
        read = bytearray(size)
        view, have = memoryview(read), 0
        while have < size:
            try:
                count = self._link.recv_into(view[have:])
            except BlockingIOError:
                self._wait(select.POLLIN, until, meanwhile)
                continue
            if not count:
                raise _Gone
            have += count
        return read

    def _wait(self, event: int, until: float, meanwhile: Meanwhile) -> None:
        """Wait until the link is ready."""
        self._poll.register(self._link, event)
        rest, alive_at = PATIENCE_S, time.monotonic() + ALIVE_S
        while not self._poll.poll(1000 * rest):
            now = time.monotonic()
            if now >= until:
                raise _Late
            if now >= alive_at:
                if self._process.poll() is not None and not self._poll.poll(0):
                    raise _Gone
                alive_at = now + ALIVE_S
            rest = 0 if meanwhile() else REST_S

    def kill(self) -> None:
        """End it, from any thread: an exchange under way raises _Gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def end(self) -> int:
        """End it, unless it has ended, and forget it; returns its exit status, negative for a signal."""
        with suppress(subprocess.TimeoutExpired):  # a process whose link is closed may be about to end
            self._process.wait(ALIVE_S)
        self.kill()
        status = self._process.wait()
        self._link.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return status


class _Function:
    """A function of a process. number: its place there. about: what messages call it. load: the message that loads
    it."""

    __slots__ = ("about", "failure", "load", "number")

    def __init__(self, number: int, about: str, load: Said) -> None:
        self.number = number
        self.about = about
        self.load = load
        self.failure: str | None = None
        """Why it is not called any more."""


class FunctionProcess:
    """Calls functions in a process, as a :class:`FunctionCaller`. One thread at a time calls; any thread calls
    ``close``.

    timeout_s: seconds after which a call that has not returned fails. logs: how the process logs.
    """

    def __init__(
        self, timeout_s: float = FUNCTION_TIMEOUT_S, meanwhile: Meanwhile | None = None, logs: LogSettings | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._meanwhile: Meanwhile = meanwhile or _nothing
        self._logs = logs
        self._child: _Child | None = None
        self._functions: dict[tuple[Any, ...], _Function] = {}
        self._is_closed = False

    def load(self) -> None:
        """Load all functions that were made so far, and not with their first calls. One that cannot be loaded fails
        there."""
        for function in self._functions.values():
            with suppress(UpriverError):
                self._loaded(function)

    def work_meanwhile(self, meanwhile: Meanwhile) -> None:
        """What to do from now on while a call is under way."""
        self._meanwhile = meanwhile

    @property
    def pid(self) -> int | None:
        """Of the process; ``None`` if there is none now."""
        return None if self._child is None else self._child.pid

    def column_function(self, function: UserFunction) -> ColumnCall:
        kept = self._function(Kind.LOAD_COLUMN, about_function(function), loading_column(function))
        taken, given = column_schemas(function)

        def call(*columns: pa.Array) -> pa.Array:
            typed = [retyped(column, type) for column, type in zip(columns, taken.types, strict=True)]
            parts = self._called(kept, [batch_part(pa.RecordBatch.from_arrays(typed, schema=taken))])
            return batch_of(parts[0], given).column(0)

        return call

    def map_call(self, op: StatefulMapOp, source: pa.Schema) -> Call:
        kept = self._function(Kind.LOAD_MAP, about_map(op), loading_map(op, source))
        output = given_by(op)

        def call(given: Given) -> Made:
            return made_of(self._called(kept, given_parts(given, source)), output, op.state)

        return call

    def _function(self, kind: Kind, about: str, parts: Sequence[Part]) -> _Function:
        """The function that these parts load; a new one is loaded at its first call, and the process is started."""
        key = (kind, *map(bytes, parts))
        if key not in self._functions:
            number = len(self._functions)
            self._functions[key] = _Function(number, about, Said(kind, number, parts))
        if self._child is None:
            self._start()
        return self._functions[key]

    def _start(self) -> _Child:
        if self._is_closed:
            raise FunctionFailed(CLOSED)
        child = _Child(min(self._timeout_s / TELLS, TELL_EVERY_S_MAX), self._logs)
        self._child = child
        if self._is_closed:  # meanwhile, by another thread
            child.kill()
        return child

    def _called(self, function: _Function, parts: Sequence[Part]) -> Sequence[Part]:
        """The answer. Raises FunctionFailed, and what the function's call or its loading raises."""
        child = self._loaded(function)
        return self._asked(child, function, Said(Kind.CALL, function.number, parts), self._timeout_s).parts

    def _loaded(self, function: _Function) -> _Child:
        """The process, which has the function."""
        if function.failure is not None:
            raise FunctionFailed(function.failure)
        child = self._child or self._start()
        if function.number not in child.loaded:
            self._asked(child, function, function.load, LOAD_S_MAX)
            child.loaded.add(function.number)
        return child

    def _asked(self, child: _Child, function: _Function, said: Said, seconds: float) -> Said:
        try:
            answer = child.exchange(said, seconds, self._meanwhile)
        except _Late:
            child.kill()
            self._end(child)
            raise self._failed(function, self._late(function, said)) from None
        except _Gone:
            status = self._end(child)
            if self._is_closed:
                raise FunctionFailed(CLOSED) from None
            how = f"the process of {function.about} {_ended(status)} before a call returned. Correct the function"
            raise self._failed(function, how) from None
        except BaseException:  # its answer must not be taken for that of the next call
            self._end(child)
            raise
        if answer.kind is Kind.FAILED:
            raise error_from_json(json.loads(bytes(answer.parts[0])))
        return answer

    def _failed(self, function: _Function, why: str) -> FunctionFailed:
        _LOG.warning("%s", why)
        function.failure = why
        return FunctionFailed(why)

    def _late(self, function: _Function, said: Said) -> str:
        if said.kind is not Kind.CALL:
            return f"{function.about} could not be loaded in {LOAD_S_MAX:g} s, and its process was ended"
        return (
            f"a call of {function.about} did not return within function_timeout={self._timeout_s:g} s, and its process "
            "was ended. Correct the function, or give it more time: App(function_timeout=...)"
        )

    def _end(self, child: _Child) -> int:
        """End the process; another one is started when it is needed. Returns the exit status."""
        self._child = None
        return child.end()

    def close(self) -> None:
        """End the process for good: a call under way fails."""
        self._is_closed = True
        child = self._child
        if child is not None:
            child.kill()

    def reap(self) -> None:
        """After ``close``, by the thread that calls: forget the process."""
        if self._child is not None:
            self._end(self._child)


def _ended(status: int) -> str:
    """How a process has ended, for a message."""
    if status >= 0:
        return f"ended itself with the exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by the signal {-status}"


def _nothing() -> bool:
    return False
