"""The load under which an app is rescaled: steady ingest from here, steady lookups from a process of their own."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.events import SCHEMA, VIEW
from benchmarks.hand_fed import HandFedApp
from benchmarks.probed_load import ProbedLoad
from benchmarks.rescale_figures import FedRows, KeyArray, Probes
from benchmarks.rescale_prober import RescaleProbeTask

LOAD_ROWS_MAX = 1_000_000
"""Rows of an epoch of those that bring the view its keys."""
LOAD_S_MAX = 600.0
"""Seconds until the view must hold all keys."""
PROBED_KEYS = 4
"""Keys of each epoch that are looked up until the epoch shows."""


def fill(app: HandFedApp, keys: int) -> int:
    """Publish a row of value 1 for each key, and wait until the view has them; returns how many epochs that took."""
    chunks = [np.arange(first, min(first + LOAD_ROWS_MAX, keys)) for first in range(0, keys, LOAD_ROWS_MAX)]
    for chunk in chunks:
        app.publish(events(chunk))
    app.wait(LOAD_S_MAX)
    return len(chunks)


def events(keys: KeyArray) -> pa.Table:
    """A row of value 1 for each key."""
    return pa.table([keys, np.ones(len(keys), np.int64)], schema=SCHEMA)


class SteadyLoad(ProbedLoad):
    """Publishes epochs of random keys at a steady pace and has keys looked up, as long as its context is open.

    epochs: that the app had before; no other thread publishes. ``probes`` and ``fed`` are there when it has ended.
    """

    probes: Probes
    fed: FedRows

    def __init__(
        self,
        app: HandFedApp,
        directory: Path,
        *,
        keys: int,
        epochs: int,
        epoch_rows: int,
        epochs_per_s: float,
        lookups_per_s: float,
    ) -> None:
        self._app = app
        self._asked = RescaleProbeTask(
            address=app.address, view=VIEW, keys=keys, per_s=lookups_per_s, result=str(directory / "probes.arrow")
        )
        super().__init__("benchmarks.rescale_prober", asdict(self._asked), app.token, directory, epochs_per_s)
        self._epochs = epochs
        self._epoch_rows = epoch_rows
        self._rng = np.random.default_rng(self._asked.seed)
        self._published: list[tuple[float, KeyArray]] = []

    def publish(self) -> Mapping[str, Any]:
        keys = self._rng.integers(0, self._asked.keys, self._epoch_rows)
        at = self._app.publish(events(keys)).at
        self._published.append((at, keys))
        return {"epoch": self._epochs + len(self._published), "at": at, "keys": keys[:PROBED_KEYS].tolist()}

    def gather(self) -> None:
        self.probes = Probes.read(self._asked.result)
        self.fed = FedRows.of(self._epochs + 1, self._published)
