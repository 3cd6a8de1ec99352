"""Spark's analyses for tests and the simulator, from one process that all of them share.

The first that asks starts it: ``python -m simulator.shared_analyser FOLDER``. It ends by itself when it has had no
connection for :data:`IDLE_S`. What it has answered it does not ask Spark again.
"""

import contextlib
import fcntl
import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import MappingProxyType
from typing import Any

import upriver.errors
from upriver.errors import UpriverError
from upriver.plan.plan import TableSpec, UserFunction
from upriver.sql.resolved.views import Analysed

IDLE_S = 30.0
"""Seconds after which a process that no other is connected to ends."""
START_S_MAX = 120.0
"""Seconds that it has to start."""
SESSIONS_MAX = 64
"""Sets of tables and functions whose sessions it keeps."""
ANSWERS_MAX = 20_000
"""Queries whose answers it keeps."""
_POLL_S = 0.05
_SOCKET, _LOCK, _LOG = "socket", "lock", "log"
_KEY = b"of one user's tests"
"""The folder is that user's alone."""


class SharedAnalyser:
    """Analyses queries over ``tables``, in a session of this time zone."""

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        functions: Mapping[str, UserFunction] | None = None,
        timezone: str = "UTC",
    ) -> None:
        self._tables = tables
        self.functions: Mapping[str, UserFunction] = functions or MappingProxyType({})
        self._timezone = timezone

    @property
    def timezone(self) -> str:
        return self._timezone

    def analysed(self, name: str, sql: str, views: Mapping[str, str]) -> Analysed:
        """Raises what Spark's analyser raises: DeclarationError, UnsupportedSql."""
        found: Analysed = self._asked("analysed", name, sql, dict(views))
        return found

    def condition(self, table: str, sql: str) -> Analysed:
        """Raises as :meth:`analysed`."""
        found: Analysed = self._asked("condition", table, sql)
        return found

    def curve(self, bits: int) -> tuple[float, ...]:
        """What Spark has measured."""
        found: tuple[float, ...] = self._asked("curve", bits)
        return found

    def _asked(self, method: str, *operands: Any) -> Any:
        about = dict(self._tables), dict(self.functions), self._timezone
        kind, found = _process().ask((about, method, operands))
        if kind:
            raise _error(kind, found)
        return found


def _error(kind: str, words: str) -> Exception:
    found = getattr(upriver.errors, kind, None)
    if isinstance(found, type) and issubclass(found, UpriverError):
        return found(words)
    return RuntimeError(f"{kind}: {words}")


class _Process:
    """The process that answers, started if need be; one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._owner = 0
        """The process that has connected: a fork must not use its parent's connection."""

    def ask(self, request: Any) -> tuple[str, Any]:
        """The name of an error's class and its words; or nothing and the answer."""
        asked = pickle.dumps(request)
        with self._lock:
            for is_last in (False, True):
                try:
                    if self._connection is None or self._owner != os.getpid():
                        self._connection, self._owner = self._connected(), os.getpid()
                    self._connection.send_bytes(asked)
                    found: tuple[str, Any] = pickle.loads(self._connection.recv_bytes())
                    return found
                except (EOFError, OSError):
                    self._connection = None
                    if is_last:
                        raise
        raise AssertionError("the last attempt answers or raises")

    def _connected(self) -> Connection:
        """Only one of several processes starts the other."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):
                return Client(str(self._folder / _SOCKET), authkey=_KEY)
            self._start()
            give_up_at = time.monotonic() + START_S_MAX
            while time.monotonic() < give_up_at:
                with contextlib.suppress(OSError):
                    return Client(str(self._folder / _SOCKET), authkey=_KEY)
                time.sleep(_POLL_S)
        raise RuntimeError(f"the analyser does not start: {(self._folder / _LOG).read_text()[-2000:]}")

    def _start(self) -> None:
        """Start it by a shell that ends at once, so that it is no child of the process that asks first."""
        root = str(Path(__file__).parents[1])
        paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        with (self._folder / _LOG).open("w") as log:
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-m", "simulator.shared_analyser", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=root,
                env={**os.environ, "PYTHONPATH": paths},
                check=True,
            )


@cache
def _process() -> _Process:
    """That of this version of the code."""
    digest = hashlib.sha256(version("pyspark").encode())
    for name in ("analysed_plans", "analyser", "session", "user_functions"):
        digest.update((Path(upriver.__file__).parent / "spark" / f"{name}.py").read_bytes())
    digest.update(Path(__file__).read_bytes())
    digest.update(sys.executable.encode())
    return _Process(Path(tempfile.gettempdir()) / f"upriver-{os.getuid()}-{digest.hexdigest()[:16]}")


# The process itself ---------------------------------------------------------------------------------------------------


class _Answers:
    """Answers requests, each different one once."""

    def __init__(self, session: Callable[[str], Any], make: Callable[..., Any]) -> None:
        """session: of a time zone. make: an analyser of a session, tables and functions."""
        self._session, self._make = session, make
        self._analysers: OrderedDict[bytes, Any] = OrderedDict()
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, asked: bytes) -> bytes:
        with self._lock:
            if asked not in self._known:
                self._known[asked] = pickle.dumps(self._made(*pickle.loads(asked)))
                if len(self._known) > ANSWERS_MAX:
                    self._known.popitem(last=False)
            return self._known[asked]

    def _made(self, about: Any, method: str, operands: tuple[Any, ...]) -> tuple[str, Any]:
        key = pickle.dumps(about)
        if key not in self._analysers:
            tables, functions, timezone = about
            self._analysers[key] = self._make(self._session(timezone), tables, functions)
            if len(self._analysers) > SESSIONS_MAX:
                self._analysers.popitem(last=False)
        self._analysers.move_to_end(key)
        try:
            return "", getattr(self._analysers[key], method)(*operands)
        except Exception as error:  # of any class: the asking process raises it
            return type(error).__name__, str(error)


def serve(folder: Path) -> None:
    """Answer until no process has been connected for a while."""
    from upriver.spark.analyser import SparkAnalyser
    from upriver.spark.session import ZONE, local_session

    spark = local_session(1, app_name="analyser")
    spark.sparkContext.setLogLevel("OFF")

    @cache
    def session(timezone: str) -> Any:
        other = spark.newSession()
        other.conf.set(ZONE, timezone)
        return other

    answers, connected = _Answers(session, SparkAnalyser), [0, time.monotonic()]
    address = folder / _SOCKET
    address.unlink(missing_ok=True)
    with Listener(str(address), authkey=_KEY) as listener:

        def accept() -> None:
            while True:
                try:
                    connection = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: Connection) -> None:
            connected[0] += 1
            with contextlib.suppress(EOFError, OSError):
                while True:
                    connection.send_bytes(answers.of(connection.recv_bytes()))
            connected[0] -= 1
            connected[1] = time.monotonic()

        threading.Thread(target=accept, daemon=True).start()
        while connected[0] or time.monotonic() - connected[1] < IDLE_S:
            time.sleep(1.0)
    spark.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
