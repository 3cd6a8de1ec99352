"""A load of lookups from a process of their own, and one of epochs besides, published from here at a steady pace, of
which that process is told."""

import json
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from upriver.errors import ClusterError

PROBER_S_MAX = 180.0
"""Seconds that the prober has for its last answers."""
READY = "ready"
"""What a prober says on stdout when its lookups have begun."""


class Probing(ABC):
    """Has keys looked up by another process as long as its context is open. ``gather`` is a subclass's."""

    def __init__(self, module: str, task: Mapping[str, Any], token: str, directory: Path) -> None:
        """module: the prober's, run with the path of its task, JSON; it reads the token from stdin, and asks until that
        ends."""
        self._module = module
        self._task = task
        self._token = token
        self._directory = directory

    @abstractmethod
    def gather(self) -> None:
        """Take in what the prober has found."""

    def __enter__(self) -> Self:
        path = self._directory / "probe.json"
        path.write_text(json.dumps(self._task))
        command = [sys.executable, "-m", self._module, str(path)]
        with self._errors.open("wb") as errors:
            self._prober = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._prober.stdin is not None
        assert self._prober.stdout is not None
        # The token goes through a pipe: every user of the machine can read a command line.
        print(self._token, file=self._prober.stdin, flush=True)
        if self._prober.stdout.readline().strip() != READY:
            raise self._lost()
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._end(failed)
        if not failed:
            self.gather()

    def _end(self, failed: type[BaseException] | None) -> None:
        """Wait for the prober's last answers, unless something has failed. Raises what has made it end."""
        try:
            self._prober.communicate(timeout=0 if failed else PROBER_S_MAX)
        except subprocess.TimeoutExpired:
            self._prober.kill()
            self._prober.communicate()
        if not failed and self._prober.returncode != 0:
            raise self._lost()

    def first_error(self) -> str | None:
        """Of the lookups that failed."""
        return next(iter(self._errors.read_text().splitlines()), None)

    @property
    def _errors(self) -> Path:
        return self._directory / "prober-errors"

    def _lost(self) -> ClusterError:
        self._prober.kill()
        self._prober.communicate()
        status, said = self._prober.returncode, self._errors.read_text()
        return ClusterError(f"the process that looks up failed ({status}):\n{said}")


class ProbedLoad(Probing):
    """Publishes, too, and tells the prober of each epoch, in a line. ``publish`` is a subclass's."""

    def __init__(self, module: str, task: Mapping[str, Any], token: str, directory: Path, per_s: float) -> None:
        """per_s: epochs. All else as :class:`Probing` has it."""
        super().__init__(module, task, token, directory)
        self._pause_s = 1 / per_s
        self._is_over = threading.Event()
        self._failure: BaseException | None = None

    @abstractmethod
    def publish(self) -> Mapping[str, Any]:
        """Make an epoch; returns what the prober is to be told of it."""

    def __enter__(self) -> Self:
        super().__enter__()
        assert self._prober.stdin is not None
        self._feeding = threading.Thread(target=self._feed, args=(self._prober.stdin,), daemon=True)
        self._feeding.start()
        return self

    def check(self) -> None:
        """Raise what has made the load end before its time."""
        if self._prober.poll() is not None:
            raise self._lost()
        if self._failure is not None:
            raise self._failure

    def _end(self, failed: type[BaseException] | None) -> None:
        self._is_over.set()
        self._feeding.join()
        super()._end(failed)
        if not failed and self._failure is not None:
            raise self._failure

    def _feed(self, told: IO[str]) -> None:
        due_at = time.perf_counter()
        try:
            while not self._is_over.wait(max(0.0, due_at - time.perf_counter())):
                print(json.dumps(self.publish()), file=told, flush=True)
                due_at += self._pause_s
        except BaseException as error:
            self._failure = error
