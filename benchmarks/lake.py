"""How an app's age costs: files, start, upqueries and new views of a lake after ever more small epochs.

An upsert table of a fixed number of keys gets one new version an epoch. Runs and manifests are written as by ingest,
compacted and collected as by an app, in this process and without a grace. Nothing is synced to the disk meanwhile. No
Spark is needed.
"""

import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import median, percentile
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch, VnodeId, WorkerId
from upriver.lake.collection import collect, superseded
from upriver.lake.files import LocalFiles
from upriver.lake.history import KeyHistory
from upriver.lake.ingest_history import IngestHistory
from upriver.lake.lake import CommitTimes, Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.upkeep import compact
from upriver.plan.plan import TableSpec, lake_channel
from upriver.protocol.worker_events import ReadEpoch, RowsRead
from upriver.runtime.coordinator_loop import as_published
from upriver.runtime.lake_reader import LakeReader
from upriver.runtime.read_ahead import Piece
from upriver.state.runs import describe_run, encode_run, run_schema
from upriver.text import render_rows
from upriver.vnodes import VNODES_DEFAULT, VnodeMap

ACCOUNTS = TableSpec(
    "accounts",
    pa.schema([("id", pa.int64()), ("at", pa.int64()), ("balance", pa.int64())]),
    ("id",),
    ("at",),
    ("id",),
)
ACCOUNTS_BY_ID = lake_channel("accounts", ("id",))
COMPACTED_EPOCHS = 256
"""Epochs from one compaction to the next."""
REPEAT = 5
"""Fresh starts, first upqueries and new views; medians are reported."""
COLD_KEYS = 500
"""Keys that are looked up once each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """What to measure. epochs: ages, ascending. keys: of the table."""

    epochs: Sequence[int]
    keys: int
    seed: int


class UnsyncedFiles(LocalFiles):
    """Files of a lake that is thrown away: the same, but not safe from a crash of the machine."""

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        full_path = os.path.join(self._root, path)
        os.makedirs(os.path.dirname(full_path), exist_ok=True)
        with open(full_path, "xb") as file:
            file.write(content)


class UnsyncedLake(OwnedLake):
    """A lake that is written without syncing."""

    def __init__(self, root: str, declared: LakeRecord) -> None:
        super().__init__(root, declared, {})
        self.files = UnsyncedFiles(root)


class AgingLake:
    """The lake, the versions that count, and the epochs so far."""

    def __init__(self, root: str, options: LakeOptions) -> None:
        self.root = root
        self.epoch = Epoch(0)
        self._lake = UnsyncedLake(root, LakeRecord(VNODES_DEFAULT, (ACCOUNTS,), {"accounts": (("id",),)}))
        self._chance = np.random.default_rng(options.seed)
        ids = np.arange(options.keys)
        self.hashes: Hashes = hash64([pa.array(ids)])
        self.newest = np.zeros(options.keys, np.int64)
        """The epoch of each key's version that counts."""
        self.versions: list[np.ndarray] = []
        """The keys of each epoch."""

    def age(self, through: int) -> None:
        """Publish epochs up to this one, and compact them."""
        while self.epoch < through:
            self.publish_through(min(through, self.epoch + COMPACTED_EPOCHS - self.epoch % COMPACTED_EPOCHS))
            self._compact()

    def publish_through(self, through: int) -> None:
        """Publish epochs up to this one, and leave them as they are."""
        keys = len(self.newest)
        while self.epoch < through:
            self._publish(self._chance.integers(keys, size=1) if self.epoch else np.arange(keys))

    def _publish(self, ids: np.ndarray) -> None:
        self.epoch = Epoch(self.epoch + 1)
        self.newest[ids] = self.epoch
        self.versions.append(ids)
        hashes = self.hashes[ids]
        order = np.argsort(hashes)
        at = pa.array(np.full(len(ids), self.epoch))
        columns = [pa.array(hashes[order]), pa.array(ids[order]), at, at]
        encoded = encode_run(pa.Table.from_arrays(columns, schema=run_schema(ACCOUNTS.schema)))
        path = f"tables/{ACCOUNTS_BY_ID}/{self.epoch:012d}-bench-0.arrow"
        self._lake.files.create(path, encoded)
        runs = {ACCOUNTS_BY_ID: (describe_run(path, encoded, hashes[order], VNODES_DEFAULT),)}
        term = self._lake.term
        self._lake.publish(
            Manifest(epoch=self.epoch, term=term, table="accounts", query="bench", batch=self.epoch, runs=runs)
        )

    def _compact(self) -> None:
        for _ in compact(self._lake, self.epoch):
            pass
        while spans := list(superseded(self._lake, self.epoch, time.time() + 1)):
            collect(self._lake, spans)

    def release(self) -> None:
        self._lake.release()


def measure_lake(options: LakeOptions, say: Any = print) -> dict[str, Any]:
    """Measure a lake at each age; returns what ``--json`` prints. ``say`` is told how it goes."""
    ages: dict[str, dict[str, float]] = {}
    is_right = True
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as root:
        aging = AgingLake(root, options)
        try:
            for age in options.epochs:
                say(f"writing epochs up to {age:,}")
                started = time.monotonic()
                aging.age(age)
                say(f"  {time.monotonic() - started:.0f} s; measuring")
                figures, right = _figures(aging, np.random.default_rng(options.seed))
                ages[str(age)] = figures
                is_right &= right
        finally:
            aging.release()
    first, last = ages[str(options.epochs[0])], ages[str(options.epochs[-1])]
    growth = {name: round(last[name] / first[name], 2) if first[name] else None for name in first}
    return {"keys": options.keys, "epochs": ages, "growth": growth, "right": is_right}


def _figures(aging: AgingLake, chance: np.random.Generator) -> tuple[dict[str, float], bool]:
    _start(aging.root)  # once, so that no figure has the imports of the first call
    starts = [_seconds(lambda: _start(aging.root)) for _ in range(REPEAT)]
    firsts, cold, is_right = _upqueries(aging, chance)
    views = []
    for _ in range(REPEAT):
        began = time.perf_counter()
        at = _new_view(aging)
        views.append(time.perf_counter() - began)
        is_right &= at == dict(enumerate(aging.newest.tolist()))
    figures = {
        "files": sum(len(names) for _, _, names in os.walk(aging.root)),
        "start_s": round(median(starts), 4),
        "first_upquery_ms": round(median(firsts) * 1e3, 2),
        "cold_lookup_p50_ms": round(percentile(cold, 50) * 1e3, 3),
        "cold_lookup_p99_ms": round(percentile(cold, 99) * 1e3, 3),
        "driver_mb": round(_start_bytes(aging.root) / 1e6, 3),
        "new_view_s": round(median(views), 4),
    }
    return figures, is_right


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _start(root: str) -> tuple[CoordinatorMachine, IngestHistory]:
    """What a driver reads of the lake at its start, and keeps."""
    lake, history = Lake(root), IngestHistory()
    machine = CoordinatorMachine(VnodeMap.initial(VNODES_DEFAULT, [WorkerId(0), WorkerId(1)]), ())
    lake.record()
    for span in lake.spans(lake.last_epoch()):
        epochs = lake.epochs(span)
        history.add(epochs)
        machine.step(as_published(epochs))
    return machine, history


def _start_bytes(root: str) -> int:
    """The most memory that a start takes."""
    tracemalloc.start()
    try:
        kept = _start(root)
        del kept
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _upqueries(aging: AgingLake, chance: np.random.Generator) -> tuple[list[float], list[float], bool]:
    """Seconds of first upqueries, those of later cold ones, and whether each gave the version that counts."""
    is_right = True

    def ask(history: KeyHistory, key: int) -> float:
        nonlocal is_right
        began = time.perf_counter()
        rows = history.rows_of(ACCOUNTS_BY_ID, ACCOUNTS, aging.hashes[key : key + 1], aging.epoch)
        took = time.perf_counter() - began
        is_right &= max(rows.rows.column("at").to_pylist()) == int(aging.newest[key])
        return took

    keys = chance.choice(len(aging.newest), min(len(aging.newest), COLD_KEYS + REPEAT), replace=False).tolist()
    firsts = [ask(KeyHistory(Lake(aging.root)), key) for key in keys[:REPEAT]]
    history = KeyHistory(Lake(aging.root))
    ask(history, keys[0])
    return firsts, [ask(history, key) for key in keys[REPEAT:]], is_right


def _new_view(aging: AgingLake) -> dict[int, int]:
    """Read all epochs as a worker with a new view does; the last version of each key."""
    lake, newest = Lake(aging.root), dict[int, int]()
    reader = LakeReader(lake, CommitTimes(lake))
    reader.assign(VNODES_DEFAULT, {ACCOUNTS_BY_ID: ACCOUNTS})
    vnodes = tuple(map(VnodeId, range(VNODES_DEFAULT)))

    def take_in(piece: Piece) -> None:
        if isinstance(piece, RowsRead):
            rows = piece.batch.rows
            newest.update(zip(rows.column("id").to_pylist(), rows.column("at").to_pylist(), strict=True))

    for span in lake.spans(aging.epoch):
        reader.begin(ReadEpoch(epoch=span.last, channels=(ACCOUNTS_BY_ID,), vnodes=vnodes, after=span.after))
        while reader.is_on:
            reader.feed(take_in)
    return newest


def render_lake_ages(measured: dict[str, Any]) -> str:
    """The result for a person."""
    names = list(measured["growth"])
    rows = [[f"{int(age):,}", *(f"{each[name]:,}" for name in names)] for age, each in measured["epochs"].items()]
    rows.append(["last over first", *(str(measured["growth"][name]) for name in names)])
    verdict = "Every answer was right." if measured["right"] else "SOME ANSWERS WERE WRONG."
    return f"\n{render_rows(['epochs', *names], rows, [False, *(True for _ in names)])}\n\n{verdict}"
