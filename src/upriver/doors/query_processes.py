"""The processes that evaluate queries: started when they are needed, few at a time, each under a limit of memory.

A query that takes too long, is cancelled, or takes more memory than it may, loses its process. The driver loses
nothing.
"""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import duckdb
import pyarrow as pa

from upriver.doors.cancellation import Cancellation
from upriver.doors.query_program import OUT_OF_MEMORY, QueryFault, QueryTask, received_answer, send_task
from upriver.doors.shares import LOOK_S, Bounds, FairTurns
from upriver.errors import ClusterError

PROCESS_BYTES_MAX = 1 << 30
"""Bytes of memory that a process may take beyond what it has when idle (about 100 MB). Linux keeps the count."""
QUERY_S_MAX = 60.0
"""Seconds that a query may take once it has its turn, and that it waits for its turn."""
QUERIES_MAX = 4
"""Queries under way at a time, each with a process and the rows that it reads."""
HOST_QUERIES_MAX = 3
"""Of them, those of callers of one host."""
CALLER_QUERIES_MAX = 2
"""Of them, those of one caller."""
WAITING_MAX = 128
"""Queries that wait for their turn."""
HOST_WAITING_MAX = 64
"""Of them, those of callers of one host."""
CALLER_WAITING_MAX = 32
"""Of them, those of one caller."""
IDLE_MAX = 2
"""Processes that wait for the next query."""
END_S_MAX = 5.0
"""Seconds that a process that was killed has to end."""
_PROGRAM = "from upriver.doors.query_program import main; main()"
_LAST_FAULTS = (OUT_OF_MEMORY, duckdb.InternalException.__name__, duckdb.FatalException.__name__)
"""Kinds of errors after which a process takes no other query."""


class ProcessEnded(Exception):
    """The process has ended in place of an answer. is_late: because the query took too long. status: as Popen gives
    it."""

    def __init__(self, is_late: bool, status: int) -> None:
        super().__init__(f"status {status}")
        self.is_late, self.status = is_late, status


class QueryProcess:
    """One process. It answers one task after the other, and is killed to end one early."""

    def __init__(self, memory: int) -> None:
        """memory: bytes that it may take. Raises ClusterError."""
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        environment["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # Arrow's own one reserves 1 GiB at once, which counts
        command = [sys.executable, "-P", "-c", _PROGRAM, str(memory)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise ClusterError(f"a query's process cannot be started: {command[0]}: {error}") from None
        self.memory = memory
        self.is_spent = False
        """Whether it takes no further task."""

    def answer(
        self,
        task: QueryTask,
        tables: Mapping[str, pa.Table],
        seconds: float = QUERY_S_MAX,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> pa.Table:
        """The rows of a task. is_cancelled: whether they are not wanted any more. Raises QueryFault, ProcessEnded."""
        late, answered = threading.Event(), threading.Event()
        give_up_at = time.monotonic() + seconds

        def watch() -> None:
            while not answered.wait(min(LOOK_S, seconds)):
                if time.monotonic() >= give_up_at:
                    late.set()
                if late.is_set() or is_cancelled():
                    self.kill()
                    return

        watcher = threading.Thread(target=watch, name="upriver-query-watch", daemon=True)
        watcher.start()
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None
        assert received is not None
        try:
            send_task(sent, task, tables)
            found, is_spent = received_answer(received)
            self.is_spent = self.is_spent or is_spent
        except QueryFault as fault:
            self.is_spent = self.is_spent or fault.kind in _LAST_FAULTS
            raise
        except (OSError, EOFError, ValueError, pa.ArrowException):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S_MAX)  # if it ends by itself, its status tells why
            self.kill()
            raise ProcessEnded(late.is_set(), self._process.wait(END_S_MAX)) from None
        except BaseException:
            self.kill()  # what it sends next would be taken for the answer of another task
            raise
        finally:
            answered.set()
            watcher.join()  # it may be about to kill the process, which must not be taken for the next task then
        return found

    def kill(self) -> None:
        """End it, from any thread."""
        self.is_spent = True
        self._process.kill()

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S_MAX)


class QueryProcesses:
    """All of this process: a few at a time, shared by callers, and fewer that wait for the next query."""

    def __init__(self, memory: int = PROCESS_BYTES_MAX, wait_s_max: float = QUERY_S_MAX) -> None:
        """memory: bytes that each process may take. wait_s_max: seconds that a query waits for its turn."""
        self.memory = memory
        self._turns = FairTurns(
            Bounds(QUERIES_MAX, HOST_QUERIES_MAX, CALLER_QUERIES_MAX),
            Bounds(WAITING_MAX, HOST_WAITING_MAX, CALLER_WAITING_MAX),
            wait_s_max,
        )
        self._lock = threading.Lock()
        self._idle: list[QueryProcess] = []

    @contextmanager
    def process(self, cancellation: Cancellation | None = None) -> Iterator[QueryProcess]:
        """For one query. cancellation: of that query, and whose share it takes. Raises Busy if there is no turn for it,
        QueryCancelled."""
        cancellation = cancellation or Cancellation()
        turn = self._turns.take(cancellation.caller, cancellation.check)
        try:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = process or QueryProcess(self.memory)
            try:
                yield process
            finally:
                self._put_back(process)
        finally:
            self._turns.end(turn)

    def _put_back(self, process: QueryProcess) -> None:
        with self._lock:
            if not process.is_spent and len(self._idle) < IDLE_MAX:
                self._idle.append(process)
                return
        process.close()

    def close(self) -> None:
        """End those that wait. Later queries start others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()


PROCESSES = QueryProcesses()
atexit.register(PROCESSES.close)
