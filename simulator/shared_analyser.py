"""Spark's analyses for tests and the simulator, from one process that all of them share.

The first that asks starts it: ``scripts/analyser FOLDER``, which reads requests and answers them, a line of JSON each.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

import upriver.errors
from upriver.errors import UpriverError
from upriver.plan.plan import TableSpec, UserFunction
from upriver.sql.views import Analysed

START_S_MAX = 120.0
"""Seconds that the process has to start."""
_POLL_S = 0.05
_ROOT = Path(__file__).parents[1]
_PROGRAM = _ROOT / "scripts" / "analyser"
_SOCKET, _LOCK, _LOG = "socket", "lock", "log"


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
        return self._analysed("analysed", name, sql, dict(views))

    def condition(self, table: str, sql: str) -> Analysed:
        """Raises as :meth:`analysed`."""
        return self._analysed("condition", table, sql)

    def curve(self, bits: int) -> tuple[float, ...]:
        """What Spark has measured."""
        return tuple(self._asked("curve", bits)["numbers"])

    def _analysed(self, method: str, *operands: Any) -> Analysed:
        found = self._asked(method, *operands)
        return Analysed(schema_from(found["schema"]), found["plan"])

    def _asked(self, method: str, *operands: Any) -> Any:
        about = {
            "tables": {name: schema_text(one.schema) for name, one in self._tables.items()},
            "functions": [_function(one) for one in self.functions.values()],
            "timezone": self._timezone,
        }
        found = _process().ask({"about": about, "method": method, "operands": operands})
        if "error" in found:
            raise _error(found["error"], found["words"])
        return found


def schema_text(schema: pa.Schema) -> str:
    """A schema, to be part of JSON."""
    return b64encode(schema.serialize().to_pybytes()).decode()


def schema_from(text: str) -> pa.Schema:
    """The inverse of :func:`schema_text`."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text)))


def _function(one: UserFunction) -> Mapping[str, str]:
    arguments = pa.schema([(f"a{place}", type) for place, type in enumerate(one.arguments)])
    returns = pa.schema([("returns", one.returns)])
    return {"name": one.name, "arguments": schema_text(arguments), "returns": schema_text(returns), "form": one.form}


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
        self._connection: Any = None
        self._owner = 0
        """The process that has connected: a fork must not use its parent's connection."""

    def ask(self, request: Any) -> Any:
        """The answer to a request. One that a process has not answered because it ended is asked once more."""
        asked = json.dumps(request).encode() + b"\n"
        with self._lock:
            for _ in range(2):
                if self._connection is None or self._owner != os.getpid():
                    self._connection, self._owner = self._connected(), os.getpid()
                with contextlib.suppress(OSError):
                    self._connection.write(asked)
                    self._connection.flush()
                    if answer := self._connection.readline():
                        return json.loads(answer)
                self._connection = None
        raise RuntimeError(f"the analyser has ended: {(self._folder / _LOG).read_text()[-2000:]}")

    def _connected(self) -> Any:
        """Only one of several processes starts the other."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):
                return self._open()
            self._start()
            give_up_at = time.monotonic() + START_S_MAX
            while time.monotonic() < give_up_at:
                with contextlib.suppress(OSError):
                    return self._open()
                time.sleep(_POLL_S)
        raise RuntimeError(f"the analyser does not start: {(self._folder / _LOG).read_text()[-2000:]}")

    def _open(self) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._folder / _SOCKET))
            return connection.makefile("rwb")

    def _start(self) -> None:
        """Start it by a shell that ends at once, so that it is no child of the process that asks first."""
        paths = [str(_ROOT), str(_ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        with (self._folder / _LOG).open("w") as log:
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, str(_PROGRAM), str(self._folder / _SOCKET)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                check=True,
            )


@cache
def _process() -> _Process:
    """That of this version of the code."""
    digest = hashlib.sha256(f"{version('pyspark')} {sys.executable}".encode())
    for path in (Path(__file__), _PROGRAM, *sorted((Path(upriver.errors.__file__).parent / "spark").glob("*.py"))):
        digest.update(path.read_bytes())
    return _Process(Path(tempfile.gettempdir()) / f"upriver-{os.getuid()}-{digest.hexdigest()[:16]}")
