"""Rescaling under load: an app goes from some workers to others and back while rows come in and keys are looked up.

Each strategy has an app of its own with the same keys and the same load. Spark's own way comes last, with as many
keys.
What is measured, and what is left out: ``docs/benchmarks.md``.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.events import VIEW
from benchmarks.hand_fed import TOTALS_OF_EVENTS, HandFedApp, HandFedPlan, HandFedView
from benchmarks.rescale_figures import (
    FedRows,
    LoadTrace,
    Mask,
    Probes,
    Spans,
    Window,
    batching_figures,
    moving,
    trace,
    way_figures,
    wrong_answers,
)
from benchmarks.rescale_load import SteadyLoad, fill
from benchmarks.rescale_picture import check_drawable, draw_batching, draw_rescale
from benchmarks.rescale_spark import measure_spark
from upriver.client.client import Client, connect
from upriver.errors import ClusterError
from upriver.ids import VnodeId
from upriver.net.remote import Connection, Remote
from upriver.protocol.lookups import Routing
from upriver.spark.frames import SparkSession
from upriver.spark.session import local_session
from upriver.vnodes import VnodeMap

RESCALE_S_MAX = 1800.0
"""Seconds that a rescale may take."""
SETTLE_S = 2.0
"""Seconds under load before a steady span begins, and that the pictures show after a rescale."""
SHOWN_BEFORE_S = 2.0
"""Seconds of the steady span that the pictures show."""
REFLECT_S_MAX = 120.0
"""Seconds until all that was published must show, once nothing more comes."""
ROUTING_S_MAX = 10.0
"""Seconds for the coordinator to name the owner of each vnode."""
COMPARED_KEYS = 100_000
"""Keys of one lookup when the whole view is compared with what was published."""
BATCHING: tuple[int | None, ...] = (1, 10, 100, 1_000, 10_000, None)
"""Keys that ICADD collects at a time, to compare; ``None``: as many as fit its time."""
BATCHING_KEYS_MAX = 100_000
"""Keys of the view for that: one at a time, a million would take very long."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleOptions:
    """What to measure. keys: that the view holds. before, after: workers. epoch_rows, epochs_per_s: the steady ingest.
    lookups_per_s: the steady lookups, of one key each. steady_s: seconds of load that a rescale is compared with.
    picture: file to draw into; ``None`` for none. batching: compare fixed numbers of keys at a time as well."""

    keys: int
    before: int
    after: int
    strategies: tuple[str, ...]
    epoch_rows: int
    epochs_per_s: int
    lookups_per_s: int
    steady_s: float
    has_spark: bool
    batching: bool
    picture: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleWay:
    """One rescale under load. before: the steady span. moved_at: when it had begun to move, as polled. moved: the
    vnodes that changed their owner, of so many."""

    before: Window
    during: Window
    moved_at: float
    moved: tuple[VnodeId, ...]
    vnodes: int
    report: Mapping[str, Any]

    def moves(self, probes: Probes) -> Mask:
        return moving(probes.key, self.vnodes, self.moved)

    def figures(self, probes: Probes, fed: FedRows) -> dict[str, Any]:
        spans = Spans(self.before, self.during, self.moved_at)
        return way_figures(probes, fed, spans, self.moves(probes), self.report)

    def trace(self, probes: Probes) -> LoadTrace:
        shown = Window(self.during.began - SHOWN_BEFORE_S, self.during.ended + SETTLE_S)
        return trace(probes, shown, self.during)


def measure_rescale(options: RescaleOptions, say: Say = print) -> dict[str, Any]:
    """Measure it all and draw it; returns what ``--json`` prints. ``say`` is told how it goes."""
    if options.picture is not None:
        check_drawable()
    spark = local_session(max(options.before, options.after), app_name="upriver-bench")
    result: dict[str, Any] = {
        "keys": options.keys,
        "from": options.before,
        "to": options.after,
        "rows_per_s": options.epoch_rows * options.epochs_per_s,
        "lookups_per_s": options.lookups_per_s,
        "strategies": {},
    }
    traces: dict[str, tuple[LoadTrace, LoadTrace]] = {}
    try:
        for strategy in options.strategies:
            figures, traces[strategy] = _measure_strategy(spark, options, strategy, say)
            result["strategies"][strategy] = figures
        if options.batching:
            result["batching"] = _measure_batching(spark, options, say)
        if options.has_spark:
            say(f"Spark's own way: {options.keys:,} keys, {options.before} -> {options.after} partitions")
            with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
                partitions = (options.before, options.after)
                result["spark"] = measure_spark(spark, Path(directory), options.keys, partitions)
    finally:
        spark.stop()
    result["ratio_spark_to_icadd"] = ratio(result)
    result["right"] = all(figures["right"] for figures in result["strategies"].values())
    _draw(options, result, traces)
    return result


def ratio(result: Mapping[str, Any]) -> float | None:
    """How many times longer Spark's own way pauses than any key waits under ICADD; ``None`` if one was not measured."""
    unserved = result["strategies"].get("icadd", {}).get("max_unserved_ms")
    return round(result["spark"]["pause_ms"] / unserved, 1) if unserved and "spark" in result else None


def _draw(
    options: RescaleOptions, result: Mapping[str, Any], traces: Mapping[str, tuple[LoadTrace, LoadTrace]]
) -> None:
    if options.picture is None:
        return
    ways = (f"{options.before} to {options.after} workers", f"{options.after} to {options.before} workers")
    spark = result.get("spark")
    pauses = None if spark is None else (spark["pause_ms"], spark["back"]["pause_ms"])
    draw_rescale(options.picture, ways, traces, pauses, options.keys)
    if "batching" in result:
        keys = min(options.keys, BATCHING_KEYS_MAX)
        draw_batching(options.picture.with_name("batching.svg"), result["batching"], keys)


def _measure_strategy(
    spark: SparkSession, options: RescaleOptions, strategy: str, say: Say
) -> tuple[dict[str, Any], tuple[LoadTrace, LoadTrace]]:
    say(f"{strategy}: {options.keys:,} keys, {options.before} -> {options.after} -> {options.before} workers")
    with loaded_app(spark, options, options.keys) as (app, client, load):
        with load:
            there = rescale_under(load, app, client, options.steady_s, options.after, strategy)
            back = rescale_under(load, app, client, options.steady_s, options.before, strategy)
            time.sleep(SETTLE_S + options.steady_s)
        differing = differing_keys(app, client, load, options.keys)
    probes, fed = load.probes, load.fed
    ways = [way.figures(probes, fed) for way in (there, back)]
    wrong = wrong_answers(probes, fed)
    for way, figures in zip((there, back), ways, strict=True):
        longest = figures["max_unserved_ms"]
        say(f"  {way.report['from']} -> {way.report['to']}: no key unserved for more than {longest} ms")
    say(f"  {len(probes.key):,} lookups, {wrong} wrong; {differing} keys differ at the end")
    if wrong and (error := load.first_error()):
        say(f"  {error}")
    verdict = {"lookups": len(probes.key), "lookups_wrong": wrong, "keys_differing": differing}
    figures = ways[0] | {"back": ways[1]} | verdict | {"right": wrong == differing == 0}
    return figures, (there.trace(probes), back.trace(probes))


@contextmanager
def loaded_app(
    spark: SparkSession, options: RescaleOptions, keys: int, view: HandFedView | HandFedPlan = TOTALS_OF_EVENTS
) -> Iterator[tuple[HandFedApp, Client, SteadyLoad]]:
    """An app that holds the keys, a client of it, and the load that it is to bear. view: named ``VIEW``, of a count and
    a sum for each key."""
    with (
        tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory,
        HandFedApp(spark, Path(directory) / "lake", options.before, (view,)) as app,
        connect(app.address, app.token) as client,
    ):
        load = SteadyLoad(
            app,
            Path(directory),
            keys=keys,
            epochs=fill(app, keys),
            epoch_rows=options.epoch_rows,
            epochs_per_s=options.epochs_per_s,
            lookups_per_s=options.lookups_per_s,
        )
        yield app, client, load


def rescale_under(
    load: SteadyLoad,
    app: HandFedApp,
    client: Client,
    steady_s: float,
    workers: int,
    strategy: str,
    keys_max: int | None = None,
) -> RescaleWay:
    """Let the load run steadily for so many seconds, then rescale to so many workers under it.

    Raises ClusterError if the rescale does not end as it should, or if the load has broken down.
    """
    time.sleep(SETTLE_S)
    old = _vnode_map(app)
    steady_at = time.perf_counter()
    time.sleep(steady_s)
    began_at = time.perf_counter()
    rescale = client.rescale(workers, strategy=strategy, keys_max=keys_max)
    moved_at = began_at
    for progress in rescale.follow(RESCALE_S_MAX):
        if progress["state"] in ("queued", "starting"):
            moved_at = time.perf_counter()
    ended_at = time.perf_counter()
    report = rescale.outcome()
    load.check()
    if report["outcome"] != "finished":
        raise ClusterError(f"{strategy} to {workers} workers: {report}")
    return RescaleWay(
        before=Window(steady_at, began_at),
        during=Window(began_at, ended_at),
        moved_at=moved_at,
        moved=tuple(old.diff(_vnode_map(app))),
        vnodes=len(old.owners),
        report=report,
    )


def _vnode_map(app: HandFedApp) -> VnodeMap:
    with Connection(Remote.parse(app.address, app.token)) as coordinator:
        return Routing.from_json(coordinator.act("routing", timeout=ROUTING_S_MAX)).vnode_map


def differing_keys(app: HandFedApp, client: Client, load: SteadyLoad, keys: int) -> int:
    """How many keys of the whole view have another count or sum than what was published: values are all 1."""
    app.wait(REFLECT_S_MAX)
    expected = 1 + load.fed.counts(keys)
    differing = 0
    for first in range(0, keys, COMPARED_KEYS):
        asked = np.arange(first, min(first + COMPARED_KEYS, keys))
        found = client.lookup(VIEW, pa.array(asked))
        if found.column(0).to_numpy().tolist() != asked.tolist():
            differing += len(asked)
            continue
        wanted = expected[asked]
        differing += int(np.count_nonzero((found["n"].to_numpy() != wanted) | (found["total"].to_numpy() != wanted)))
    return differing


def _measure_batching(spark: SparkSession, options: RescaleOptions, say: Say) -> list[dict[str, Any]]:
    """The trade-off of document 001, "small N, large N": one rescale up by ICADD for each N, all on one app."""
    keys = min(options.keys, BATCHING_KEYS_MAX)
    say(f"icadd with {keys:,} keys, at a time: {', '.join(str(n or 'adaptive') for n in BATCHING)}")
    with loaded_app(spark, options, keys) as (app, client, load), load:
        ways = []
        for keys_max in BATCHING:
            ways.append(rescale_under(load, app, client, 0.0, options.after, "icadd", keys_max))
            rescale_under(load, app, client, 0.0, options.before, "icadd")
    return [
        batching_figures(keys_max, load.probes, way.during, way.report)
        for keys_max, way in zip(BATCHING, ways, strict=True)
    ]
