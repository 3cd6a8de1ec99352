"""Figures of a rescale from what lookups found, when they were due and when they were answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.figures import percentile
from upriver.hashing import hash64
from upriver.ids import VnodeId
from upriver.vnodes import vnodes_of

KeyArray = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

BIN_S = 0.1
"""Seconds of the latencies that are one point of a picture: the longest of them."""
AFTER_S = 1.0
"""Seconds after a rescale whose longest lookup is told apart: tasks of retired workers end in them."""


@dataclass(frozen=True, slots=True)
class Window:
    """A span of ``time.perf_counter``."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Probes:
    """Lookups of one key each: the columns of ``rescale_prober.PROBES``."""

    due_at: Times
    answered_at: Times
    key: KeyArray
    n: npt.NDArray[np.int64]
    at_least: npt.NDArray[np.int64]

    @classmethod
    def read(cls, path: str) -> Self:
        """From a file that the prober has written."""
        with pa.OSFile(path) as source, pa.ipc.open_stream(source) as stream:
            return cls(*(column.to_numpy() for column in stream.read_all().columns))

    def where(self, mask: Mask) -> "Probes":
        return Probes(self.due_at[mask], self.answered_at[mask], self.key[mask], self.n[mask], self.at_least[mask])

    def inside(self, window: Window) -> "Probes":
        """Those due and answered in the window."""
        return self.where((self.due_at >= window.began) & (self.answered_at <= window.ended))

    def touching(self, window: Window) -> "Probes":
        """Those that were under way at any time of the window."""
        return self.where((self.due_at <= window.ended) & (self.answered_at >= window.began))

    @property
    def steady(self) -> "Probes":
        """Lookups of any key at any time."""
        return self.where(self.at_least == 0)

    @property
    def fresh(self) -> "Probes":
        """Lookups of a key that was published, as of the epoch that it was published with."""
        return self.where(self.at_least > 0)

    @property
    def ms(self) -> Times:
        """How long each took, from when it was due."""
        return (self.answered_at - self.due_at) * 1e3


@dataclass(frozen=True, slots=True)
class FedRows:
    """Epochs that were published, one after the other from ``first`` on: when, and the keys of their rows."""

    first: int
    published_at: Times
    rows: npt.NDArray[np.int64]
    key: KeyArray
    epoch: npt.NDArray[np.int64]

    @classmethod
    def of(cls, first: int, published: Sequence[tuple[float, KeyArray]]) -> Self:
        """From when each epoch was published, and the key of each of its rows."""
        rows = np.array([len(keys) for _, keys in published], np.int64)
        epochs = first + np.arange(len(published), dtype=np.int64)
        keys = np.concatenate([np.zeros(0, np.int64), *(keys for _, keys in published)])
        return cls(first, np.array([at for at, _ in published]), rows, keys, np.repeat(epochs, rows))

    def counts(self, keys: int) -> npt.NDArray[np.int64]:
        """How many rows each key from 0 up to but without ``keys`` has."""
        return np.bincount(self.key, minlength=keys)

    def rows_of(self, keys: KeyArray, epochs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many rows each of ``keys`` has in all epochs up to and including the one beside it."""
        by_key = np.sort(_ordered(self.key, self.epoch))
        before = np.searchsorted(by_key, _ordered(keys, np.zeros_like(keys)))
        return np.searchsorted(by_key, _ordered(keys, epochs), side="right") - before


def _ordered(keys: KeyArray, epochs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers in the order of key, then epoch."""
    return keys << 32 | epochs


def wrong_answers(probes: Probes, fed: FedRows) -> int:
    """How many lookups failed, or gave a count that cannot be, where each key had one row before.

    A count has every row up to the epoch that was asked for, and none that was not yet published when it was given.
    """
    least = 1 + fed.rows_of(probes.key, probes.at_least)
    published = fed.first - 1 + np.searchsorted(fed.published_at, probes.answered_at, side="right")
    most = 1 + fed.rows_of(probes.key, published)
    return int(np.count_nonzero((probes.n < least) | (probes.n > most)))


def moving(keys: KeyArray, vnodes: int, moved: Sequence[VnodeId]) -> Mask:
    """Which of the keys are of the vnodes that move."""
    moves = np.zeros(vnodes, np.bool_)
    moves[list(moved)] = True
    return moves[vnodes_of(hash64([pa.array(keys)]), vnodes)]


def rows_per_s(probes: Probes, fed: FedRows, window: Window) -> int:
    """Rows a second of the epochs that came to show in the window. An epoch shows when all its probed keys do."""
    fresh = probes.fresh
    shown_at = np.full(len(fed.rows), -np.inf)
    np.maximum.at(shown_at, fresh.at_least - fed.first, fresh.answered_at)
    shown = (shown_at >= window.began) & (shown_at <= window.ended)
    return round(float(fed.rows[shown].sum() / window.seconds))


@dataclass(frozen=True, slots=True)
class Spans:
    """before: a steady span. during: the rescale. moved_at: when it had begun to move; until then workers started."""

    before: Window
    during: Window
    moved_at: float

    @property
    def after(self) -> Window:
        """A steady span as long as the one before."""
        began = self.during.ended + AFTER_S
        return Window(began, began + self.before.seconds)


def way_figures(probes: Probes, fed: FedRows, spans: Spans, moves: Mask, report: Mapping[str, Any]) -> dict[str, Any]:
    """One way of one strategy as ``--json`` prints it.

    moves: of each probe, whether its key does. report: the rescale's own.

    ``max_unserved_ms`` is the longest of three: a lookup under way during the rescale, of any key; an epoch's way from
    published to shown; and the longest hold that the workers report, which no sample misses.
    """
    before, during = spans.before, spans.during
    staying = probes.where(~moves).steady
    stays = staying.touching(during)
    starting, moved = Window(during.began, spans.moved_at), Window(spans.moved_at, during.ended)
    lookups, updates = probes.steady.touching(during), probes.fresh.touching(during)
    unserved = [_longest(lookups), _longest(updates), report["max_hold_ms"]]
    return {
        "max_unserved_ms": max((ms for ms in unserved if ms is not None), default=None),
        "lookup_p50_ms": _percentile(lookups, 50),
        "lookup_p99_ms_before": _percentile(staying.inside(before), 99),
        "lookup_p99_ms_during": _percentile(stays, 99),
        "lookup_p99_ms_after": _percentile(staying.inside(spans.after), 99),
        "lookup_max_ms_during": _longest(lookups),
        "seconds": report["seconds"],
        "bytes": report["moved_bytes"],
        "moved_keys": report["moved_keys"],
        "rows_per_s_before": rows_per_s(probes, fed, before),
        "rows_per_s_during": rows_per_s(probes, fed, during),
        "max_hold_ms": report["max_hold_ms"],
        "max_stall_ms": report["max_stall_ms"],
        "lookup_p50_ms_before": _percentile(probes.steady.inside(before), 50),
        "lookup_p99_ms_before_all_keys": _percentile(probes.steady.inside(before), 99),
        "lookup_p99_ms_during_all_keys": _percentile(lookups, 99),
        "update_p50_ms_before": _percentile(probes.fresh.inside(before), 50),
        "update_p50_ms_during": _percentile(updates, 50),
        "update_max_ms_during": _longest(updates),
        "lookups_during": len(lookups.key),
        "seconds_as_seen": round(during.seconds, 3),
        "starting_s": round(starting.seconds, 3),
        "lookup_max_ms_starting": _longest(lookups.touching(starting)),
        "lookup_max_ms_moving": _longest(lookups.touching(moved)),
        "lookup_p99_ms_moving": _percentile(stays.touching(moved), 99),
        "lookup_max_ms_after": _longest(probes.steady.inside(Window(during.ended, during.ended + AFTER_S))),
    }


def batching_figures(keys_max: int | None, probes: Probes, during: Window, report: Mapping[str, Any]) -> dict[str, Any]:
    """One point of the trade-off between few keys at a time and many. keys_max: ``None`` is adaptive."""
    lookups = probes.steady.touching(during)
    return {
        "keys_max": keys_max,
        "seconds": report["seconds"],
        "lookup_p50_ms_during": _percentile(lookups, 50),
        "lookup_p99_ms_during": _percentile(lookups, 99),
        "lookup_max_ms_during": _longest(lookups),
        "max_hold_ms": report["max_hold_ms"],
    }


def _percentile(probes: Probes, percent: float) -> float | None:
    """In ms; ``None`` of no lookups."""
    return round(percentile(probes.ms.tolist(), percent), 2) if len(probes.key) else None


def _longest(probes: Probes) -> float | None:
    return _percentile(probes, 100)


@dataclass(frozen=True, slots=True)
class LoadTrace:
    """One line of a picture: the longest lookup of each tenth of a second, by when it was due.

    seconds: middle of each tenth, from the begin of the rescale. took: seconds of the rescale.
    """

    seconds: tuple[float, ...]
    ms: tuple[float, ...]
    took: float


def trace(probes: Probes, shown: Window, during: Window) -> LoadTrace:
    """The line of the steady lookups that were due in the window that is ``shown``; bins without any are left out."""
    steady = probes.steady
    due = steady.where((steady.due_at >= shown.began) & (steady.due_at < shown.ended))
    bins = np.floor((due.due_at - during.began) / BIN_S).astype(np.int64)
    found, places = np.unique(bins, return_inverse=True)
    longest = np.zeros(len(found))
    np.maximum.at(longest, places, due.ms)
    middles = np.round((found + 0.5) * BIN_S, 3)
    return LoadTrace(tuple(middles.tolist()), tuple(np.round(longest, 3).tolist()), round(during.seconds, 3))
