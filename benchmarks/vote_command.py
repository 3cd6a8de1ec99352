"""``python -m benchmarks vote``: its arguments, and its result for a person."""

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.arguments import number
from benchmarks.vote import VoteOptions
from benchmarks.vote_load import VoteRates
from benchmarks.vote_model import DISTRIBUTIONS
from upriver.text import render_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number(parser, "--articles", 1_000_000, "articles that are read and voted for")
    number(parser, "--votes", 1_000_000, "votes before the load begins")
    number(parser, "--workers", 2, "workers that keep the view")
    parser.add_argument(
        "--budgets-mb",
        type=int,
        nargs="*",
        default=(4, 8, 16),
        metavar="N",
        help="memory budgets of each worker, one after the other (default: 4 8 16)",
    )
    parser.add_argument(
        "--distributions", nargs="+", choices=DISTRIBUTIONS, default=DISTRIBUTIONS, help="of reads and votes"
    )
    parser.add_argument("--skew", type=float, default=1.15, help="of the zipf distribution (default 1.15)")
    number(parser, "--reads-per-s", 10_000, "reads of popular articles a second, those of some milliseconds together")
    number(parser, "--batch-ms", 10, "of these milliseconds")
    number(parser, "--singles-per-s", 50, "reads a second that go alone")
    number(parser, "--misses-per-s", 20, "reads a second of articles that were never read, alone")
    number(parser, "--votes-per-s", 1_000, "votes a second")
    number(parser, "--epochs-per-s", 20, "epochs a second that these come in")
    parser.add_argument(
        "--prime-reads",
        type=int,
        default=500_000,
        metavar="N",
        help="reads before the load, many together, so that what is read often is kept (default 500,000)",
    )
    number(parser, "--settle-s", 5, "seconds of load before it counts")
    number(parser, "--steady-s", 10, "seconds of load that count")
    number(parser, "--singles", 300, "misses, each with a hit, one after the other")
    number(parser, "--batches", 1_000, "lookups of 100 warm keys, one after the other")
    number(parser, "--fill-keys", 100_000, "cold keys that are filled together")
    parser.add_argument(
        "--new-view-rows",
        type=int,
        default=10_000_000,
        metavar="N",
        help="rows of a table that a view is added to while the app runs; 0 for none (default 10,000,000)",
    )


def options_of(options: argparse.Namespace) -> VoteOptions:
    """As the command line has it."""
    return VoteOptions(
        articles=options.articles,
        votes=options.votes,
        workers=options.workers,
        budgets_mb=tuple(options.budgets_mb),
        distributions=tuple(options.distributions),
        skew=options.skew,
        rates=VoteRates(
            reads_per_s=options.reads_per_s,
            batch_ms=options.batch_ms,
            singles_per_s=options.singles_per_s,
            misses_per_s=options.misses_per_s,
            votes_per_s=options.votes_per_s,
            epochs_per_s=options.epochs_per_s,
        ),
        prime_reads=options.prime_reads,
        settle_s=options.settle_s,
        steady_s=options.steady_s,
        singles=options.singles,
        batches=options.batches,
        fill_keys=options.fill_keys,
        new_view_rows=options.new_view_rows,
    )


def render_vote(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    names = [
        "state_mb",
        "rss_mb",
        "present_keys",
        "missed_keys_per_s",
        "reads_per_s",
        "writes_per_s",
        "read_p50_ms",
        "read_p99_ms",
        "loaded_hit_p50_ms",
        "loaded_miss_p50_ms",
        "loaded_miss_p99_ms",
    ]
    rows = [[_name(run), *(_shown(run[name]) for name in names)] for run in measured["runs"]]
    fills, batches, new = measured["fills"], measured["batches"], measured["new_view"]
    ours, theirs = batches["partial"], batches["redis"]
    redis = theirs["skipped"] or f"Redis ({theirs['parser']}): {theirs['keys_per_s']:,}"
    lines = [
        "",
        render_rows(["", *names], rows, [False, *(True for _ in names)]),
        "",
        f"Idle: a miss takes {measured['partial']['miss_p50_ms']} ms, a hit {measured['partial']['hit_p50_ms']} ms.",
        f"{fills['keys']:,} cold keys in one lookup: {fills['keys_per_s']:,} keys/s.",
        f"Lookups of {ours['keys']} warm keys: {ours['keys_per_s']:,} keys/s; {redis}.",
        *(_beside(f"Of {int(n):,}", rate, theirs["larger"].get(n)) for n, rate in ours["larger"].items()),
        *(_beside(f"On {n} threads", rate, theirs["threads"].get(n)) for n, rate in ours["threads"].items()),
    ]
    if new is not None:
        lines.append(f"A view added beside {new['rows']:,} rows: first answer after {new['total_ms']:,} ms.")
    wrong, checked = measured["wrong_answers"], measured["answers_checked"]
    return "\n".join(
        [*lines, f"{checked:,} answers checked, {wrong:,} WRONG." if wrong else f"{checked:,} answers, all right."]
    )


def _name(run: Mapping[str, Any]) -> str:
    budget = "" if run["budget_mb"] is None else f" {run['budget_mb']} MB"
    return f"{run['kept']}{budget}, {run['distribution']}"


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,}"


def _beside(case: str, ours: int, of_redis: int | None) -> str:
    return f"{case}: {ours:,} keys/s" + ("." if of_redis is None else f"; Redis: {of_redis:,}.")
