"""A client's lines to the workers, for the tasks of one event loop. No lookup takes a thread: the loop says when a
line can be read, and what comes wakes the tasks that wait for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from upriver.client.lookup_lines import REACH_S_MAX, RECHECK_S, KeyRequest, WorkerLine, no_answer_in_time
from upriver.errors import ClusterError, UpriverError, WorkerLost
from upriver.net.byte_stream import ByteStream
from upriver.net.handshake import Purpose, Session
from upriver.net.remote import Remote, dial

Connected = tuple[ByteStream, Session]
Run = Callable[[Callable[[], Connected]], Awaitable[Connected]]
"""Calls a function that blocks on a thread."""


class AsyncLine(WorkerLine):
    """A line of the tasks of a loop; only the loop's thread uses it. run: connects. recheck: called while lookups wait
    for long."""

    def __init__(self, remote: Remote, loop: asyncio.AbstractEventLoop, run: Run, recheck: Callable[[], None]) -> None:
        super().__init__(remote)
        self._loop = loop
        self._run = run
        self._recheck = recheck
        self._connecting: asyncio.Task[None] | None = None
        self._descriptor = -1
        """The descriptor that the loop watches."""
        self._is_writing = False
        """Whether the loop says when the line can be written."""
        self._timer: asyncio.TimerHandle | None = None
        """Checks the time of what waits, as long as anything does."""

    def ask(self, request: KeyRequest) -> None:
        """Send a request, at once or with the next ones."""
        with self._lock:
            self._put(request)
            if request.outcome is not None:
                return
            if self._may_send():
                self._send_waiting()
            elif self._stream is None and self._connecting is None:
                self._connecting = self._loop.create_task(self._dial())
        if self._outgoing and not self._is_writing:
            self._watch_writing()
        if self._timer is None:
            self._timer = self._loop.call_later(RECHECK_S, self._check_time)

    async def _dial(self) -> None:
        try:
            stream, session = await self._run(lambda: dial(self.remote, Purpose.LOOKUPS, REACH_S_MAX, WorkerLost))
        except UpriverError as error:
            self._connecting = None
            self._lose_stream(None, error)
            return
        self._connecting = None
        if self.why_ended is not None:
            stream.close()
            return
        stream.unblock()
        with self._lock:
            self._connect(stream, session)
            self._descriptor = stream.fileno
            self._loop.add_reader(self._descriptor, self._readable)
            self._send_waiting()
        if self._outgoing:
            self._watch_writing()

    def _readable(self) -> None:
        self._take_in()
        if self._outgoing and not self._is_writing:
            self._watch_writing()

    def _watch_writing(self) -> None:
        self._is_writing = True
        self._loop.add_writer(self._descriptor, self._writable)

    def _writable(self) -> None:
        with self._lock:
            self._write_on()
        if not self._outgoing and self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._descriptor)

    def _unwatch(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
        self._descriptor, self._is_writing = -1, False

    def _check_time(self) -> None:
        """Give up what has waited for too long, and check that the worker is there."""
        now = time.monotonic()
        with self._lock:
            waiting = [*self._sent.values(), *self._waiting]
            for request in waiting:
                if request.due_at <= now:
                    request.is_given_up = True
                    request.settle(no_answer_in_time(self.address))
            self._forget_given_up()
        self._timer = None
        if waiting:
            self._timer = self._loop.call_later(RECHECK_S, self._check_time)
            self._recheck()

    def end(self, why: UpriverError) -> None:
        """Cut the line for good: all that waits for it has this outcome."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self.why_ended = why
            self._lose(why)


class AsyncLines:
    """A client's lines to all workers, for the tasks of the running loop."""

    def __init__(self, remote: Remote, run: Run, recheck: Callable[[], None]) -> None:
        self._remote = remote
        self._run = run
        self._recheck = recheck
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, AsyncLine] = {}
        """By address."""
        self.is_closed = False

    async def ask(self, requests: Sequence[KeyRequest]) -> None:
        """Send these requests, then wait until each has its outcome."""
        for request in requests:
            if request.address is None:
                request.settle(WorkerLost(f"worker {request.worker} is not up"))
            elif self.is_closed:
                request.settle(ClusterError("the client is closed"))
            else:
                line = self._lines.get(request.address)
                if line is None:
                    remote = self._remote.at(request.address)
                    line = self._lines[request.address] = AsyncLine(remote, self._loop, self._run, self._recheck)
                line.ask(request)
        try:
            for request in requests:
                if request.outcome is None:
                    answered = self._loop.create_future()
                    request.wake = lambda answered=answered: answered.done() or answered.set_result(None)
                    await answered
        except BaseException:  # the task is cancelled: no other one is disturbed
            for request in requests:
                request.is_given_up = True
            raise

    def keep_only(self, addresses: Collection[str]) -> None:
        """End the lines to all other workers; lookups that wait for their answers are asked anew. Any thread calls
        this."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._keep_only, frozenset(addresses))

    def _keep_only(self, addresses: frozenset[str]) -> None:
        for address in set(self._lines) - addresses:
            self._lines.pop(address).end(WorkerLost(f"{address} is no longer a worker of the app"))

    def close(self) -> None:
        """End all lines; a lookup that waits for an answer fails."""
        self.is_closed = True
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.end(ClusterError("the client is closed"))
