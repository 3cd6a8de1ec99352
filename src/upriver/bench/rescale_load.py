"""The load under which a river is rescaled: steady ingest from here, steady lookups from a process of their own."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Self

import numpy as np
import pyarrow as pa

from upriver.bench.events import SCHEMA, VIEW
from upriver.bench.hand_fed import HandFedRiver
from upriver.bench.rescale_figures import Fed, KeyArray, Probes
from upriver.bench.rescale_prober import READY, ProbeTask
from upriver.errors import ClusterError

LOAD_ROWS_MAX = 1_000_000
"""Rows of an epoch of those that bring the view its keys."""
LOAD_S_MAX = 600.0
"""Seconds until the view must hold all keys."""
PROBED_KEYS = 4
"""Keys of each epoch that are looked up until the epoch shows."""
PROBER_S_MAX = 180.0
"""Seconds that the prober has for its last answers."""


def fill(river: HandFedRiver, keys: int) -> int:
    """Publish a row of value 1 for each key, and wait until the view has them; returns how many epochs that took."""
    chunks = [np.arange(first, min(first + LOAD_ROWS_MAX, keys)) for first in range(0, keys, LOAD_ROWS_MAX)]
    for chunk in chunks:
        river.publish(events(chunk))
    river.wait(LOAD_S_MAX)
    return len(chunks)


def events(keys: KeyArray) -> pa.Table:
    """A row of value 1 for each key."""
    return pa.table([keys, np.ones(len(keys), np.int64)], schema=SCHEMA)


class SteadyLoad:
    """Publishes epochs of random keys at a steady pace and has keys looked up, as long as its context is open.

    epochs: that the river had before; nobody else publishes. ``probes`` and ``fed`` are there when it has ended.
    """

    probes: Probes
    fed: Fed

    def __init__(
        self,
        river: HandFedRiver,
        directory: Path,
        *,
        keys: int,
        epochs: int,
        epoch_rows: int,
        epochs_per_s: float,
        lookups_per_s: float,
    ) -> None:
        self._river = river
        self._task = ProbeTask(
            address=river.address, view=VIEW, keys=keys, per_s=lookups_per_s, result=str(directory / "probes.arrow")
        )
        self._path = directory / "probe.json"
        self._errors = directory / "prober-errors"
        self._epochs = epochs
        self._epoch_rows = epoch_rows
        self._pause_s = 1 / epochs_per_s
        self._lots = np.random.default_rng(self._task.seed)
        self._published: list[tuple[float, KeyArray]] = []
        self._is_over = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._path.write_text(json.dumps(asdict(self._task)))
        command = [sys.executable, "-m", "upriver.bench.rescale_prober", str(self._path)]
        with self._errors.open("wb") as errors:
            self._prober = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._prober.stdin is not None
        assert self._prober.stdout is not None
        # The token goes through a pipe: everybody on the machine can read a command line.
        print(self._river.token, file=self._prober.stdin, flush=True)
        if self._prober.stdout.readline().strip() != READY:
            raise self._lost()
        self._feeding = threading.Thread(target=self._feed, args=(self._prober.stdin,), daemon=True)
        self._feeding.start()
        return self

    def check(self) -> None:
        """Raise what has made the load end before its time."""
        if self._prober.poll() is not None:
            raise self._lost()
        if self._failure is not None:
            raise self._failure

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._feeding.join()
        try:
            self._prober.communicate(timeout=0 if failed else PROBER_S_MAX)
        except subprocess.TimeoutExpired:
            self._prober.kill()
            self._prober.communicate()
        if failed:
            return
        if self._prober.returncode != 0:
            raise self._lost()
        if self._failure is not None:
            raise self._failure
        self.probes = Probes.read(self._task.result)
        self.fed = Fed.of(self._epochs + 1, self._published)

    def first_error(self) -> str | None:
        """Of the lookups that failed."""
        return next(iter(self._errors.read_text().splitlines()), None)

    def _feed(self, told: IO[str]) -> None:
        due_at = time.perf_counter()
        try:
            while not self._is_over.wait(max(0.0, due_at - time.perf_counter())):
                self._publish(told)
                due_at += self._pause_s
        except BaseException as error:
            self._failure = error

    def _publish(self, told: IO[str]) -> None:
        keys = self._lots.integers(0, self._task.keys, self._epoch_rows)
        at = self._river.publish(events(keys))
        self._published.append((at, keys))
        epoch = self._epochs + len(self._published)
        print(json.dumps({"epoch": epoch, "at": at, "keys": keys[:PROBED_KEYS].tolist()}), file=told, flush=True)

    def _lost(self) -> ClusterError:
        self._prober.kill()
        self._prober.communicate()
        status, said = self._prober.returncode, self._errors.read_text()
        return ClusterError(f"the process that looks up failed ({status}):\n{said}")
