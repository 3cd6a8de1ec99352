"""What it costs to check what is read of a lake: cold lookups and scans, beside the same reads without a check.

A process that has read nothing of the lake looks keys up, then scans all rows. Both ways copy the same bytes of the
same files by the same code, in turns; one of them computes no checksum of a block. Files lie in the system's memory, so
nothing is waited for: times are of the processor, and other processes of the machine count for little. No Spark is
needed.
"""

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import median
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch, VnodeId
from upriver.lake.history import KeyHistory
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.runs import RunReader, VerifiedFile
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.runs import Checksums, RunInfo, describe_run, encode_run, run_schema
from upriver.text import render_rows
from upriver.vnodes import VNODES_DEFAULT

READINGS = TableSpec("readings", pa.schema([("k", pa.int64()), ("amount", pa.int64()), ("note", pa.string())]), ("k",))
CHANNEL = lake_channel("readings", ("k",))
LOOKUPS = (1, 100, 2_000)
"""Keys of a cold lookup."""
NO_KEYS: Hashes = np.empty(0, np.uint64)
OPENED_CALLS = 8
"""Calls after which a history has merged what it merges of some hundred small runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsOptions:
    """What to measure. rows: of each run. repeat: rounds of both ways; medians are reported."""

    runs: int
    rows: int
    repeat: int
    seed: int


class UncheckedFile(VerifiedFile):
    """A file that is read alike, and of whose blocks none is checked: for comparison, and for nothing else."""

    def _check(self, blocks: Sequence[int], contents: Iterable[memoryview], checksums: Checksums) -> None:
        pass


class UncheckedLake(Lake):
    """A lake whose long runs are read without a check."""

    def open_run(self, run: RunInfo, schema: pa.Schema) -> RunReader:
        return RunReader(run, schema, UncheckedFile(run, partial(self.read_into, run.path)))


def measure_reads(options: ReadsOptions, say: Any = print) -> dict[str, Any]:
    """Measure both ways; returns what ``--json`` prints. ``say`` is told how it goes."""
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as root:
        say(f"writing {options.runs} runs of {options.rows:,} rows")
        hashes, written = _write(root, options)
        lakes = {"checked": Lake(root), "unchecked": UncheckedLake(root)}
        chance = np.random.default_rng(options.seed)
        say("looking keys up")
        lookups = {str(count): _lookups(lakes, hashes, count, options, chance) for count in LOOKUPS}
        say("scanning")
        scan, is_whole = _scans(lakes, options)
    return {
        "runs": options.runs,
        "rows": options.runs * options.rows,
        "bytes": written,
        "right": is_whole and all(each["right"] for each in lookups.values()),
        "cold_lookup_of_keys": lookups,
        "scan": scan,
    }


def _write(root: str, options: ReadsOptions) -> tuple[Hashes, int]:
    """The lake; some of its keys, and the bytes of its runs."""
    lake = OwnedLake(root, LakeRecord(VNODES_DEFAULT, (READINGS,), {READINGS.name: (READINGS.key,)}), {})
    some, written = [], 0
    for number in range(options.runs):
        keys = pa.array(np.arange(number, options.runs * options.rows, options.runs))
        hashes = hash64([keys], len(keys))
        order = np.argsort(hashes)
        hashes, keys = hashes[order], keys.take(pa.array(order))
        columns = [pa.array(hashes), keys, keys, pa.compute.cast(keys, pa.string())]
        encoded = encode_run(pa.table(columns, schema=run_schema(READINGS.schema)))
        info = describe_run(f"tables/{CHANNEL}/{number}.arrow", encoded, hashes, VNODES_DEFAULT)
        lake.files.create(info.path, encoded)
        epoch = Epoch(number + 1)
        runs = {CHANNEL: (info,)}
        lake.publish(Manifest(epoch=epoch, term=lake.term, table=READINGS.name, query="bench", batch=number, runs=runs))
        some.append(hashes[:: max(1, options.rows // 10_000)])
        written += info.bytes
    lake.release()
    return np.concatenate(some), written


def _lookups(
    lakes: dict[str, Lake], hashes: Hashes, count: int, options: ReadsOptions, chance: np.random.Generator
) -> dict[str, Any]:
    """Lookups of so many keys by processes that have read nothing but manifests."""
    seconds: dict[str, list[float]] = {way: [] for way in lakes}
    found = set()
    for _ in range(options.repeat):
        keys = np.sort(chance.choice(hashes, min(count, len(hashes)), replace=False))
        for way, lake in lakes.items():
            history = KeyHistory(lake)
            for _ in range(OPENED_CALLS):
                history.rows_of(CHANNEL, READINGS, NO_KEYS, Epoch(options.runs))
            started = time.process_time()
            rows = history.rows_of(CHANNEL, READINGS, keys, Epoch(options.runs))
            seconds[way].append(time.process_time() - started)
            found.add(len(rows) == len(keys) and np.array_equal(rows.hash64, keys))
    medians = {way: median(each) for way, each in seconds.items()}
    ms = {f"{way}_ms": round(each * 1e3, 2) for way, each in medians.items()}
    return {**ms, "ratio": _ratio(medians), "right": found == {True}}


def _scans(lakes: dict[str, Lake], options: ReadsOptions) -> tuple[dict[str, Any], bool]:
    """All rows in order of epochs, as a worker reads them."""
    seconds: dict[str, list[float]] = {way: [] for way in lakes}
    vnodes = frozenset(map(VnodeId, range(VNODES_DEFAULT)))
    is_right = True
    for _ in range(options.repeat):
        for way, lake in lakes.items():
            manifests = [lake.manifest(Epoch(number + 1)) for number in range(options.runs)]
            started = time.process_time()
            read = sum(len(rows) for each in manifests for rows in lake.read(each, CHANNEL, vnodes, READINGS))
            seconds[way].append(time.process_time() - started)
            is_right &= read == options.runs * options.rows
    medians = {way: median(each) for way, each in seconds.items()}
    rates = {f"{way}_rows_per_s": round(options.runs * options.rows / each) for way, each in medians.items()}
    return {**rates, "ratio": _ratio(medians)}, is_right


def _ratio(seconds: dict[str, float]) -> float:
    """How many times as long it takes with the check."""
    return round(seconds["checked"] / seconds["unchecked"], 2)


def render_reads(measured: dict[str, Any]) -> str:
    """The result for a person."""
    columns = ["", "checked", "unchecked", "ratio"]
    lookups = [
        [f"{int(keys):,} keys, ms", f"{each['checked_ms']:,}", f"{each['unchecked_ms']:,}", f"{each['ratio']}"]
        for keys, each in measured["cold_lookup_of_keys"].items()
    ]
    scan = measured["scan"]
    rates = [f"{scan['checked_rows_per_s']:,}", f"{scan['unchecked_rows_per_s']:,}", f"{scan['ratio']}"]
    rows = [*lookups, ["scan, rows/s", *rates]]
    verdict = "Every answer was right." if measured["right"] else "SOME ANSWERS WERE WRONG."
    return f"\n{render_rows(columns, rows, [False, True, True, True])}\n\n{verdict}"
