"""``python -m benchmarks ...``: each benchmark is a subcommand; with ``--json`` its last line is one JSON object."""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.arguments import number
from benchmarks.contestant import SOURCES
from benchmarks.events import EventsSpec
from benchmarks.evolve import is_right, measure_evolve
from benchmarks.evolve_command import add_evolve, evolve_options, render_evolve
from benchmarks.graph import GraphOptions, measure_graph
from benchmarks.hotkey import measure_hotkey
from benchmarks.hotkey_command import add_hotkey, hotkey_options, render_hotkey
from benchmarks.idle import IdleOptions, measure_idle, render_idle
from benchmarks.lake import LakeOptions, measure_lake, render_lake_ages
from benchmarks.lake_app import measure_lake_app, render_lake_app
from benchmarks.latency import measure_latency
from benchmarks.latency_command import add_latency, latency_options, render_latency
from benchmarks.lobsters import measure_lobsters
from benchmarks.lobsters_command import add_lobsters, lobsters_options, render_lobsters
from benchmarks.nexmark import NexmarkOptions, measure_nexmark
from benchmarks.nexmark_contestant import STATE_STORES
from benchmarks.nexmark_events import NexmarkSpec
from benchmarks.nexmark_queries import QUERIES
from benchmarks.ranges import RangesOptions, measure_ranges, render_ranges
from benchmarks.reads import ReadsOptions, measure_reads, render_reads
from benchmarks.recovery import measure_recovery
from benchmarks.recovery_command import add_recovery, recovery_options, render_recovery
from benchmarks.rescale import RescaleOptions, measure_rescale
from benchmarks.serving import measure_serving
from benchmarks.serving_command import add_serving, render_serving, serving_options
from benchmarks.stages import StageOptions, measure_stages
from benchmarks.stateful_map import CASES
from benchmarks.throughput import ThroughputOptions, measure_throughput
from benchmarks.tpch import measure_tpch
from benchmarks.tpch_command import add_tpch, render_tpch, tpch_options
from benchmarks.vote import measure_vote
from benchmarks.vote_command import add_arguments, options_of, render_vote
from upriver.client.rescale import STRATEGIES
from upriver.errors import UserError
from upriver.plan.plan import Per
from upriver.protocol.strategies import Strategy
from upriver.text import render_rows

COMPARED = tuple(strategy for strategy in STRATEGIES if strategy != Strategy.LAZY)
"""Where every key is kept, ``lazy`` is ``icadd``."""

Run = Callable[[argparse.Namespace], int]


def add_benchmarks(benchmarks: Any) -> None:
    """Add the benchmarks to ``python -m benchmarks``'s subparsers (argparse does not name their type)."""
    _add_throughput(_benchmark(benchmarks, "throughput", _throughput, "rows/s from Spark's source to a view"))
    what = "from an epoch's commit to a lookup that shows it"
    add_latency(_benchmark(benchmarks, "latency", _latency, what))
    _add_idle(_benchmark(benchmarks, "idle", _idle, "what an app costs while no rows come, by its number of tables"))
    _add_rescale(_benchmark(benchmarks, "rescale", _rescale, "what a rescale costs lookups and ingest meanwhile"))
    _add_nexmark(_benchmark(benchmarks, "nexmark", _nexmark, "NEXMark's queries 0 to 8, beside Spark's streaming"))
    add_tpch(_benchmark(benchmarks, "tpch", _tpch, "queries of TPC-H's shapes, beside Spark's batch and streaming"))
    add_arguments(_benchmark(benchmarks, "vote", _vote, "partial views beside a full one, with less and less memory"))
    add_lobsters(_benchmark(benchmarks, "lobsters", _lobsters, "a site's pages, on partial views and on full"))
    add_recovery(_benchmark(benchmarks, "recovery", _recovery, "a worker is killed: until all is as before"))
    add_hotkey(_benchmark(benchmarks, "hotkey", _hotkey, "a key of millions of rows: what others wait meanwhile"))
    _add_graph(_benchmark(benchmarks, "graph", _graph, "two functions that feed each other, beside Spark's"))
    add_evolve(_benchmark(benchmarks, "evolve", _evolve, "views come and go: what lookups of others see meanwhile"))
    add_serving(_benchmark(benchmarks, "serving", _serving, "lookups of many callers, beside Redis"))
    _add_reads(_benchmark(benchmarks, "reads", _reads, "what it costs to check what is read of the lake"))
    _add_ranges(_benchmark(benchmarks, "ranges", _ranges, "a join by a range, with a sorted index and without"))
    _add_lake(_benchmark(benchmarks, "lake", _lake, "what a lake costs after 1,000, 10,000 and 100,000 epochs"))
    _add_stages(_benchmark(benchmarks, "stages", _stages, "rows/s of each step on the way to a view, alone"))


def _benchmark(benchmarks: Any, name: str, run: Run, about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = benchmarks.add_parser(name, help=about, description=about)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    parser.set_defaults(run=run)
    return parser


WARM_UP_FILES = 3
"""Files that each side takes the whole way before the run that is measured."""


def _add_events(parser: argparse.ArgumentParser) -> None:
    number(parser, "--rows", 10_000_000, "rows of all files together")
    number(parser, "--keys", 1_000_000, "keys, uniform")
    number(parser, "--files", 10, "Parquet files")
    number(parser, "--files-per-trigger", 1, "files of a micro-batch")
    number(parser, "--seed", 1, "of the rows")


def _events(options: argparse.Namespace, columns: int = 2) -> EventsSpec:
    return EventsSpec(rows=options.rows, keys=options.keys, files=options.files, seed=options.seed, columns=columns)


def _add_throughput(parser: argparse.ArgumentParser) -> None:
    _add_events(parser)
    number(parser, "--workers", 2, "workers that keep the view")
    number(parser, "--cores", None, "processors that each side may use, all together (default: as many as workers)")
    parser.add_argument(
        "--cold", action="store_true", help=f"without the warm-up of {WARM_UP_FILES} files that each side takes first"
    )
    number(parser, "--columns", 2, "columns of the files: the key, the value, and others that no view reads")
    number(parser, "--rows-per-batch", None, "rows of a micro-batch, in a file of its own, in place of --files")
    parser.add_argument("--source", choices=SOURCES, default="files", help="the files, or beside a computed column")
    number(parser, "--repeat", 1, "runs of each side, in turns; medians are reported")
    parser.add_argument("--data", metavar="DIR", help="keep the files there, and use them if they are there already")


def _throughput(options: argparse.Namespace) -> int:
    if options.rows_per_batch:
        options.files, options.files_per_trigger = max(1, options.rows // options.rows_per_batch), 1
    measured = measure_throughput(
        ThroughputOptions(
            events=_events(options, options.columns),
            source=options.source,
            workers=options.workers,
            cores=options.cores or min(options.workers, os.cpu_count() or 1),
            files_per_trigger=options.files_per_trigger,
            warm_up_files=0 if options.cold else WARM_UP_FILES,
            repeat=options.repeat,
            data=options.data,
        ),
        _say(),
    )
    if options.json:
        print(json.dumps(measured))
    else:
        print(render_throughput(measured))
    return 0 if measured["views_equal"] else 1


def render_throughput(measured: Mapping[str, Any]) -> str:
    """The result of ``python -m benchmarks throughput`` for a person."""
    figures = ["rows_per_s", "cpu_s", "rows_per_cpu_s", "peak_mb", "seconds", "ingest_s", "start_s"]
    rows = [[side, *(f"{measured[side][name]:,}" for name in figures)] for side in ("upriver", "spark")]
    verdict = "equal, row by row" if measured["views_equal"] else "NOT EQUAL"
    table = render_rows(["", *figures], rows, [False, *(True for _ in figures)])
    return f"\n{table}\n\nUpriver: {measured['ratio']} times Spark's rows/s. The views are {verdict}."


def _latency(options: argparse.Namespace) -> int:
    measured = measure_latency(latency_options(options), _say())
    print(json.dumps(measured) if options.json else render_latency(measured))
    return 0 if all(view["right"] for view in measured["busy"].values()) else 1


def _serving(options: argparse.Namespace) -> int:
    measured = measure_serving(serving_options(options), _say())
    print(json.dumps(measured) if options.json else render_serving(measured))
    return 0


def _evolve(options: argparse.Namespace) -> int:
    measured = measure_evolve(evolve_options(options), _say())
    print(json.dumps(measured) if options.json else render_evolve(measured))
    return 0 if is_right(measured) else 1


def _add_graph(parser: argparse.ArgumentParser) -> None:
    number(parser, "--rows", 10_000_000, "rows of all files together")
    number(parser, "--keys", 1_000_000, "keys of each function, uniform")
    number(parser, "--files", 10, "Parquet files, one to a micro-batch")
    number(parser, "--seed", 1, "of the rows")
    number(parser, "--spark-rows", 100_000, "rows of all files together for Spark's own way")
    parser.add_argument("--forms", nargs="*", choices=tuple(Per), default=tuple(Per), help="of the functions")
    number(parser, "--workers", 2, "workers, before the rescale")
    number(parser, "--to", 4, "workers after it; then back again")
    number(parser, "--cores", None, "processors that each side may use, all together (default: as many as workers)")
    number(parser, "--steady-s", 5, "seconds of steady load before each rescale")
    parser.add_argument("--no-spark", action="store_true", help="without Spark's own way")
    parser.add_argument("--no-rescale", action="store_true", help="without the rescale")


def _graph(options: argparse.Namespace) -> int:
    rescale = RescaleOptions(
        keys=options.keys,
        before=options.workers,
        after=options.to,
        strategies=(),
        epoch_rows=1_000,
        epochs_per_s=20,
        lookups_per_s=200,
        steady_s=options.steady_s,
        has_spark=False,
        batching=False,
        picture=None,
    )
    asked = GraphOptions(
        events=_events(options),
        spark_rows=options.spark_rows,
        forms=tuple(map(str, options.forms)),
        workers=options.workers,
        cores=options.cores or min(options.workers, os.cpu_count() or 1),
        has_spark=not options.no_spark,
        rescale=None if options.no_rescale else rescale,
    )
    measured = measure_graph(asked, _say())
    print(json.dumps(measured) if options.json else render_graph(measured))
    return 0 if measured["right"] else 1


def render_graph(measured: Mapping[str, Any]) -> str:
    """The result of ``python -m benchmarks graph`` for a person."""
    names = ["rows_per_s", "rows_per_cpu_s", "peak_mb"]
    rows = [
        [side, *(f"{figures[name]:,}" if name in figures else "" for name in names), figures.get("why", "")]
        for side, figures in measured["sides"].items()
    ]
    lines = ["", render_rows(["", *names, "why not"], rows, [False, True, True, True, False])]
    ways = ("there", "back") if measured["rescale"] else ()
    lines += [f"{way}: {json.dumps(measured['rescale'][way])}" for way in ways]
    return "\n".join([*lines, "" if measured["right"] else "WRONG"])


def _add_idle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", type=int, nargs="+", default=(1, 5, 20), metavar="N", help="numbers of tables")
    number(parser, "--seconds", 20, "seconds without a row that are measured")
    number(parser, "--rows", 20, "rows that come one by one after that")


def _idle(options: argparse.Namespace) -> int:
    measured = measure_idle(IdleOptions(tables=options.tables, seconds=options.seconds, rows=options.rows), _say())
    print(json.dumps(measured) if options.json else render_idle(measured))
    return 0


def _add_stages(parser: argparse.ArgumentParser) -> None:
    _add_events(parser)
    number(parser, "--cores", 2, "task slots of Spark's steps")


def _stages(options: argparse.Namespace) -> int:
    asked = StageOptions(events=_events(options), cores=options.cores, files_per_trigger=options.files_per_trigger)
    measured = measure_stages(asked, _say())
    print(json.dumps(measured) if options.json else render_stages(measured))
    return 0


def render_stages(measured: Mapping[str, Any]) -> str:
    """The result of ``python -m benchmarks stages`` for a person."""
    rows = [[stage, *(f"{rate:,}" for rate in rates.values())] for stage, rates in measured["stages"].items()]
    return "\n" + render_rows(["stage", "rows/s at first", "rows/s later"], rows, [False, True, True])


def _add_nexmark(parser: argparse.ArgumentParser) -> None:
    number(parser, "--events", 4_000_000, "people, auctions and bids together")
    number(parser, "--event-rate", 10_000, "of them a second of event time")
    number(parser, "--seed", 1, "of the events")
    number(parser, "--files", 20, "Parquet files of each table, one to a micro-batch")
    number(parser, "--warm-up-files", 8, "of them that each side takes the whole way once before")
    parser.add_argument(
        "--queries",
        type=_names,
        default=tuple(QUERIES),
        metavar="Q,...",
        help="those to run (default: all of q0 to q8)",
    )
    number(parser, "--workers", 2, "workers that keep the view")
    number(parser, "--cores", None, "processors that each side may use, all together (default: as many as workers)")
    parser.add_argument("--no-spark", action="store_true", help="without Spark's streaming")
    parser.add_argument(
        "--state-store", choices=STATE_STORES, default="default", help="where Spark's streaming keeps its state"
    )
    parser.add_argument(
        "--map-keys",
        type=_numbers,
        default=tuple(case.keys for case in CASES),
        metavar="N,...",
        help="stateful maps over so many keys are measured as well (default: all cases; none: an empty text)",
    )
    parser.add_argument("--data", metavar="DIR", help="keep the events there, and use them if they are there already")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _nexmark(options: argparse.Namespace) -> int:
    measured = measure_nexmark(
        NexmarkOptions(
            spec=NexmarkSpec(events=options.events, seed=options.seed, events_per_s=options.event_rate),
            queries=options.queries,
            workers=options.workers,
            cores=options.cores or min(options.workers, os.cpu_count() or 1),
            files=options.files,
            warm_up_files=options.warm_up_files,
            has_spark=not options.no_spark,
            state_store=options.state_store,
            map_keys=options.map_keys,
            data=options.data,
        ),
        _say(),
    )
    print(json.dumps(measured) if options.json else render_nexmark(measured))
    return 0 if measured["equal"] else 1


def _tpch(options: argparse.Namespace) -> int:
    measured = measure_tpch(tpch_options(options), _say())
    print(json.dumps(measured) if options.json else render_tpch(measured))
    return 0 if measured["equal"] else 1


def render_nexmark(measured: Mapping[str, Any]) -> str:
    """The result of ``python -m benchmarks nexmark`` for a person."""
    names = [
        "events_per_s",
        "spark_events_per_s",
        "ratio",
        "cpu_us_per_event",
        "spark_cpu_us_per_event",
        "equal",
        "why",
    ]
    rows = [
        [query, *(_shown(figures[name]) for name in names[:-2]), str(figures["equal"]), figures["why"] or ""]
        for query, figures in measured["queries"].items()
    ]
    table = render_rows(["", *names], rows, [False, *(True for _ in names[:-2]), False, False])
    return f"\n{table}\n\n{render_stateful_map(measured['stateful_map'])}"


def render_stateful_map(measured: Mapping[str, Any]) -> str:
    """The rows per second of stateful maps, each form's and Spark's, for a person."""
    if not measured["cases"]:
        return f"stateful maps: {measured['why']}"
    names = ["keys", "form", "rows_per_s", "spark_rows_per_s", "ratio", "with all keys in its state", "equal", "why"]
    rows = [
        [
            f"{case['keys']:,}",
            form,
            f"{rate:,}",
            _shown(case["spark_rows_per_s"]),
            _shown(case["ratio"] and case["ratio"][form]),
            f"{case['alone'][form]:,}",
            str(case["equal"]),
            case["why"] or "",
        ]
        for case in measured["cases"]
        for form, rate in case["upriver_rows_per_s"].items()
    ]
    return render_rows(names, rows, [True, False, True, True, True, True, False, False])


def _add_rescale(parser: argparse.ArgumentParser) -> None:
    number(parser, "--keys", 1_000_000, "keys that the view holds")
    number(parser, "--from", 2, "workers before")
    number(parser, "--to", 4, "workers after; then back again")
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=COMPARED, help="those to compare (default: all but lazy)"
    )
    parser.add_argument("--no-spark", action="store_true", help="without Spark's own way")
    parser.add_argument("--batching", action="store_true", help="compare fixed numbers of keys at a time as well")
    number(parser, "--epoch-rows", 1_000, "rows of each epoch of the steady ingest")
    number(parser, "--epochs-per-s", 20, "epochs a second")
    number(parser, "--lookups-per-s", 200, "lookups a second, of one key each")
    number(parser, "--steady-s", 5, "seconds of steady load before each rescale")
    parser.add_argument(
        "--picture", metavar="PATH", type=Path, help="draw there, as SVG (default: in a checkout, docs/rescale.svg)"
    )


def _rescale(options: argparse.Namespace) -> int:
    before, after = getattr(options, "from"), options.to
    if before == after:
        raise UserError(f"--from {before} --to {after}: that is no rescale")
    measured = measure_rescale(
        RescaleOptions(
            keys=options.keys,
            before=before,
            after=after,
            strategies=tuple(options.strategies),
            epoch_rows=options.epoch_rows,
            epochs_per_s=options.epochs_per_s,
            lookups_per_s=options.lookups_per_s,
            steady_s=options.steady_s,
            has_spark=not options.no_spark,
            batching=options.batching,
            picture=options.picture or default_picture(Path.cwd()),
        ),
        _say(),
    )
    print(json.dumps(measured) if options.json else render_rescale(measured))
    return 0 if measured["right"] else 1


def _vote(options: argparse.Namespace) -> int:
    measured = measure_vote(options_of(options), _say())
    print(json.dumps(measured) if options.json else render_vote(measured))
    return 1 if measured["wrong_answers"] else 0


def _lobsters(options: argparse.Namespace) -> int:
    measured = measure_lobsters(lobsters_options(options), _say())
    print(json.dumps(measured) if options.json else render_lobsters(measured))
    return 1 if measured["wrong_answers"] else 0


def _recovery(options: argparse.Namespace) -> int:
    measured = measure_recovery(recovery_options(options), _say())
    print(json.dumps(measured) if options.json else render_recovery(measured))
    return 0 if measured["right"] else 1


def _hotkey(options: argparse.Namespace) -> int:
    measured = measure_hotkey(hotkey_options(options), _say())
    print(json.dumps(measured) if options.json else render_hotkey(measured))
    return 0 if all(view["right"] for view in measured["views"].values()) else 1


def _add_reads(parser: argparse.ArgumentParser) -> None:
    number(parser, "--runs", 4, "runs of the lake")
    number(parser, "--rows", 2_000_000, "rows of each run")
    number(parser, "--repeat", 15, "rounds of both ways; medians are reported")
    number(parser, "--seed", 1, "of the keys that are looked up")


def _reads(options: argparse.Namespace) -> int:
    measured = measure_reads(
        ReadsOptions(runs=options.runs, rows=options.rows, repeat=options.repeat, seed=options.seed), _say()
    )
    print(json.dumps(measured) if options.json else render_reads(measured))
    return 0 if measured["right"] else 1


def _add_ranges(parser: argparse.ArgumentParser) -> None:
    number(parser, "--rows", 20_000, "rows of each side, all of one key")
    number(parser, "--length", 20, "of an interval; the points are 10 apart on average")
    number(parser, "--seed", 1, "of the rows")


def _ranges(options: argparse.Namespace) -> int:
    measured = measure_ranges(RangesOptions(rows=options.rows, length=options.length, seed=options.seed))
    print(json.dumps(measured) if options.json else render_ranges(measured))
    return 0 if measured["right"] else 1


def _add_lake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--epochs",
        type=_numbers,
        default=(1_000, 10_000, 100_000),
        metavar="N,...",
        help="ages to measure, ascending (default: 1000,10000,100000)",
    )
    number(parser, "--keys", 10_000, "keys of the table")
    number(parser, "--seed", 1, "of the rows")
    parser.add_argument("--spark", action="store_true", help="open the lakes with an app on local Spark")
    number(parser, "--uncompacted", None, "with --spark, a lake of so many epochs that was never compacted, too")


def _lake(options: argparse.Namespace) -> int:
    if not options.epochs or sorted(set(options.epochs)) != list(options.epochs) or options.epochs[0] < 1:
        raise UserError("--epochs: give ascending numbers, from 1 on")
    asked = LakeOptions(epochs=options.epochs, keys=options.keys, seed=options.seed)
    if options.spark:
        measured = measure_lake_app(asked, options.uncompacted or 0, _say())
        print(json.dumps(measured) if options.json else render_lake_app(measured))
        return 0 if measured["right"] else 1
    measured = measure_lake(asked, _say())
    print(json.dumps(measured) if options.json else render_lake_ages(measured))
    return 0 if measured["right"] else 1


def default_picture(directory: Path) -> Path | None:
    """``docs/rescale.svg`` of the checkout that this code runs from, if that is the directory; else ``None``."""
    return directory / "docs" / "rescale.svg" if Path(__file__).is_relative_to(directory / "benchmarks") else None


def render_rescale(measured: Mapping[str, Any]) -> str:
    """The result of ``python -m benchmarks rescale`` for a person."""
    names = [
        "max_unserved_ms",
        "lookup_p99_ms_before",
        "lookup_p99_ms_during",
        "lookup_max_ms_during",
        "rows_per_s_before",
        "rows_per_s_during",
        "seconds",
    ]
    there, back = (f"{measured[a]} -> {measured[b]}" for a, b in (("from", "to"), ("to", "from")))
    ways = [
        (f"{strategy}, {way}", figures)
        for strategy, both in measured["strategies"].items()
        for way, figures in ((there, both), (back, both["back"]))
    ]
    if "spark" in measured:
        spark = measured["spark"]
        ways += [
            (f"spark, {way}", {"max_unserved_ms": f["pause_ms"]}) for way, f in ((there, spark), (back, spark["back"]))
        ]
    rows = [[what, *(_shown(figures.get(name)) for name in names)] for what, figures in ways]
    lines = ["", render_rows(["", *names], rows, [False, *(True for _ in names)])]
    if measured["ratio_spark_to_icadd"] is not None:
        lines += ["", f"Spark's own way pauses {measured['ratio_spark_to_icadd']} times as long as icadd."]
    lines += ["", "Every answer was right." if measured["right"] else "SOME ANSWERS WERE WRONG."]
    return "\n".join(lines)


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,}"


def _say() -> Callable[[str], None]:
    """Progress goes to stderr: a result on stdout can be piped."""
    return functools.partial(print, file=sys.stderr, flush=True)
