"""Lookups of single keys while workers take in large epochs, of views with joins: ``busy`` of
``python -m benchmarks latency``.

What is made of a row costs more than in the view of totals, and a worker has one thread for rows and lookups. One view
is of one region; the rows of the other are exchanged between workers, once for each epoch.

``python -m benchmarks.busy TASK.json`` is the process that asks, without Spark, one lookup after the other.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.figures import percentile
from benchmarks.hand_fed import HandFedApp, HandFedView
from benchmarks.probed_load import Probing
from benchmarks.prober_process import run_prober
from upriver.client.client import Client, connect
from upriver.plan.plan import TableSpec
from upriver.spark.frames import SparkSession

AUCTIONS_PER_SELLER, PRICES = 30, 1_000
EPOCH_S = 1.0
"""Seconds from one epoch to the next, or as long as it takes to write it."""
LOOKUP_S = 0.01
"""Seconds from one answer to the next question."""
WARM_UP = 100
"""Lookups before the clock starts."""
CHECKED_KEYS_MAX = 1_000
"""Keys that are compared with what was published."""
REFLECT_S_MAX = 600.0

AUCTION = TableSpec("auction", pa.schema([("id", pa.int64()), ("seller", pa.int64())]), ("id",))
BID = TableSpec("bid", pa.schema([("auction", pa.int64()), ("price", pa.int64())]), ("auction",))
VIEWS = (
    HandFedView(
        name="joined",
        sql="""
        SELECT a.id, a.seller, b.n, b.top
        FROM auction a JOIN (SELECT auction, count(*) AS n, max(price) AS top FROM bid GROUP BY auction) b
        ON a.id = b.auction
        """,
        key="id",
        tables=(AUCTION, BID),
    ),
    HandFedView(
        name="exchanged",
        sql="""
        SELECT a.seller, b.auction, b.price, b.n
        FROM auction a JOIN (SELECT auction, price, count(*) AS n FROM bid GROUP BY auction, price) b
        ON a.id = b.auction
        """,
        key="seller",
        tables=(AUCTION, BID),
    ),
)
Figures = dict[str, Any]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyOptions:
    """What to measure. auctions: of which there is a bid each before. rows: of an epoch. idle_s: seconds of lookups
    while nothing comes."""

    workers: int
    rows: int
    epochs: int
    auctions: int = 300_000
    idle_s: float = 4.0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTask:
    """What to ask: single keys of a view, which has those from 0 up to but without ``keys``. result: file for the
    seconds of each lookup, an Arrow stream."""

    address: str
    view: str
    keys: int
    result: str
    seed: int


def measure_busy(spark: SparkSession, directory: Path, options: BusyOptions) -> Figures:
    """By view: milliseconds of lookups with no load, and while epochs come; and whether the view is right then."""
    return {view.name: _measure(spark, directory / view.name, view, options) for view in VIEWS}


def _measure(spark: SparkSession, directory: Path, view: HandFedView, options: BusyOptions) -> Figures:
    directory.mkdir()
    rng, ids = np.random.default_rng(options.seed), np.arange(options.auctions)
    drawn = [ids, *(rng.integers(0, options.auctions, options.rows) for _ in range(options.epochs))]
    first, *batches = [_bids(auctions, rng) for auctions in drawn]
    counts = np.bincount(np.concatenate(drawn))
    if view.key == "seller":
        counts = np.bincount(ids // AUCTIONS_PER_SELLER, weights=counts).astype(np.int64)
    with HandFedApp(spark, directory / "lake", options.workers, (view,)) as app:
        app.publish(pa.table([ids, ids // AUCTIONS_PER_SELLER], schema=AUCTION.schema), AUCTION.name)
        app.publish(first, BID.name)
        app.wait(REFLECT_S_MAX)
        result = str(directory / "seconds.arrow")
        task = BusyTask(address=app.address, view=view.name, keys=len(counts), result=result, seed=options.seed)
        with _Asking(task, app.token, directory) as idle:
            threading.Event().wait(options.idle_s)
        began = time.perf_counter()
        with _Asking(task, app.token, directory) as busy:
            for number, batch in enumerate(batches):
                threading.Event().wait(max(0.0, began + number * EPOCH_S - time.perf_counter()))
                app.publish(batch, BID.name)
            app.wait(REFLECT_S_MAX)
            seconds = round(time.perf_counter() - began, 2)
        figures = {"idle": idle.figures, "busy": busy.figures, "rows": options.rows * options.epochs}
        return {**figures, "seconds": seconds, "right": _is_right(app, view, counts)}


def _bids(auctions: Counts, rng: np.random.Generator) -> pa.Table:
    return pa.table([auctions, rng.integers(0, PRICES, len(auctions))], schema=BID.schema)


def _is_right(app: HandFedApp, view: HandFedView, counts: Counts) -> bool:
    """Whether keys have as many bids in the view as were published. counts: by key."""
    keys = np.random.default_rng(0).permutation(len(counts))[:CHECKED_KEYS_MAX]
    with connect(app.address, app.token) as client:
        found = client.lookup(view.name, keys, timeout=REFLECT_S_MAX)
    shown = np.bincount(found[view.key].to_numpy(), weights=found["n"].to_numpy(), minlength=len(counts))
    return bool((shown[keys] == counts[keys]).all())


class _Asking(Probing):
    """Another process looks keys up while the context is open; ``figures`` are there when it has ended."""

    figures: Figures

    def __init__(self, task: BusyTask, token: str, directory: Path) -> None:
        super().__init__("benchmarks.busy", asdict(task), token, directory)
        self._result = task.result

    def gather(self) -> None:
        with pa.OSFile(self._result) as source, pa.ipc.open_stream(source) as stream:
            self.figures = in_ms(stream.read_all()["seconds"].to_pylist())


class BusyProber:
    """Asks for one key after the other."""

    def __init__(self, client: Client, task: BusyTask) -> None:
        self._client = client
        self._task = task
        self._rng = np.random.default_rng(task.seed)

    def warm_up(self) -> None:
        """Open connections, load code."""
        for _ in range(WARM_UP):
            self._ask()

    def probe(self, told: Iterable[str]) -> pa.Table:
        """Ask until ``told`` ends; the seconds of each lookup."""
        is_over = threading.Event()

        def hear() -> None:
            deque(told, maxlen=0)
            is_over.set()

        threading.Thread(target=hear, daemon=True).start()
        seconds = [self._ask()]
        while not is_over.wait(LOOKUP_S):
            seconds.append(self._ask())
        return pa.table({"seconds": seconds})

    def _ask(self) -> float:
        key = int(self._rng.integers(self._task.keys))
        began = time.perf_counter()
        self._client.lookup(self._task.view, [key], timeout=REFLECT_S_MAX)
        return time.perf_counter() - began


def in_ms(seconds: Sequence[float]) -> Figures:
    """Percentiles and the longest, and how many there are."""
    at = {f"p{percent}_ms": round(percentile(seconds, percent) * 1e3, 2) for percent in (50, 95, 99)}
    return {**at, "max_ms": round(max(seconds) * 1e3, 2), "lookups": len(seconds)}


if __name__ == "__main__":
    run_prober(BusyTask, BusyProber)
