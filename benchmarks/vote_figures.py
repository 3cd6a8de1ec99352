"""Figures of the vote workload from its answers, each of which is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.figures import percentile
from benchmarks.rescale_figures import FedRows, Mask, Probes, Window, rows_per_s
from benchmarks.vote_model import KeyArray
from benchmarks.vote_prober import BATCHED, FRESH, HIT, MISS, SINGLE, Times

PERCENTS = (50, 95, 99)
KINDS = {"read": BATCHED, "single": SINGLE, "loaded_hit": HIT, "loaded_miss": MISS, "update": FRESH}
"""How figures call the kinds of answers."""


@dataclass(frozen=True, slots=True)
class VoteAnswers:
    """The columns of ``vote_prober.ANSWERS``."""

    kind: npt.NDArray[np.int8]
    due_at: Times
    answered_at: Times
    key: KeyArray
    n: KeyArray
    epoch: KeyArray

    @classmethod
    def read(cls, path: str) -> Self:
        """From a file that the prober has written."""
        with pa.OSFile(path) as source, pa.ipc.open_stream(source) as stream:
            return cls(*(column.to_numpy() for column in stream.read_all().columns))

    def where(self, mask: Mask) -> "VoteAnswers":
        return VoteAnswers(
            self.kind[mask],
            self.due_at[mask],
            self.answered_at[mask],
            self.key[mask],
            self.n[mask],
            self.epoch[mask],
        )

    def due_in(self, window: Window) -> "VoteAnswers":
        """Those that were asked for in the window."""
        return self.where((self.due_at >= window.began) & (self.due_at < window.ended))

    @property
    def fresh(self) -> Probes:
        """Those of articles just voted for, as of that vote."""
        found = self.where(self.kind == FRESH)
        return Probes(found.due_at, found.answered_at, found.key, found.n, found.epoch)


@dataclass(frozen=True, slots=True)
class VotesBefore:
    """What was there before a load: so many epochs, and by article its votes."""

    epochs: int
    counts: KeyArray


def wrong_answers(answers: VoteAnswers, before: VotesBefore, fed: FedRows) -> int:
    """How many reads gave no row or another article's, or a number of votes that cannot be.

    A number has every vote up to the epoch that the answer reflects, and none that was not yet published when it was
    given.
    """
    published = before.epochs + np.searchsorted(fed.published_at, answers.answered_at, side="right")
    least = before.counts[answers.key] + fed.rows_of(answers.key, answers.epoch)
    most = before.counts[answers.key] + fed.rows_of(answers.key, published)
    return int(np.count_nonzero((answers.n < least) | (answers.n > most)))


def load_figures(answers: VoteAnswers, fed: FedRows, window: Window) -> dict[str, Any]:
    """Reads and writes a second of the window, and how long each kind of read took that was due in it."""
    asked = answers.due_in(window)
    answered = (answers.answered_at >= window.began) & (answers.answered_at < window.ended)
    reads = int(np.count_nonzero(answered & (answers.kind != FRESH)))
    figures: dict[str, Any] = {
        "reads_per_s": round(reads / window.seconds),
        "writes_per_s": rows_per_s(answers.fresh, fed, window),
    }
    for name, kind in KINDS.items():
        found = asked.where(asked.kind == kind)
        figures |= latencies(name, ((found.answered_at - found.due_at) * 1e3).tolist())
    return figures


def latencies(name: str, ms: Sequence[float]) -> dict[str, float | None]:
    """Percentiles; ``None`` of nothing."""
    return {f"{name}_p{percent}_ms": round(percentile(ms, percent), 2) if ms else None for percent in PERCENTS}
