"""``python -m simulator``: the cluster under a seeded scheduler, or one protocol of live migration by itself.

A protocol of migration has two sets of rules, and two things to do with them: a campaign plays random rescales by
seeds; a search looks for each known fault of the rules as published, and tells it by a shortest trace.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.campaign import campaign
from simulator.event_weights import FAULTS
from simulator.icadd_campaign import RULEBOOKS, WORKERS_MAX, icadd_campaign
from simulator.icadd_faults import search_published
from simulator.redistribute_campaign import redistribute_campaign
from simulator.redistribute_faults import search_published_redistribute
from upriver.errors import UserError

CLUSTER = "cluster"

STEPS_DEFAULT = 200
WORKERS_DEFAULT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """One protocol of migration. Both give JSON.

    campaign: of (first seed, runs, rules, workers or None). search: the faults of the published rules, each found
    anew, with ``fault``, ``found``, ``title``, ``kind``, ``steps`` and ``trace``.
    """

    campaign: Callable[[int, int, str, int | None], dict[str, Any]]
    search: Callable[[], list[dict[str, Any]]]


def _icadd(first_seed: int, runs: int, rules: str, workers: int | None) -> dict[str, Any]:
    return icadd_campaign(first_seed, runs, rules=rules, workers=workers)


PROTOCOLS: Mapping[str, Protocol] = {
    "icadd": Protocol(campaign=_icadd, search=search_published),
    "redistribute": Protocol(campaign=redistribute_campaign, search=search_published_redistribute),
}
"""By the name that a user gives."""


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m simulator``."""
    parser.add_argument(
        "--protocol",
        choices=(CLUSTER, *PROTOCOLS),
        default=CLUSTER,
        help="the whole cluster (default), or a protocol of live migration by itself",
    )
    parser.add_argument(
        "--rules",
        choices=tuple(RULEBOOKS),
        help="of a protocol: those that ship (fixed, the default), or those published, whose faults are searched for "
        "one by one unless --seed, --runs or --workers asks for random runs",
    )
    parser.add_argument(
        "--faults",
        help=f"of the cluster: all, none, or some of {','.join(FAULTS)} (drawn by the seed, unless given)",
    )
    parser.add_argument("--seed", type=int, help="the first seed (default 0)")
    parser.add_argument("--runs", type=int, help="how many seeds, from --seed on (default 1)")
    parser.add_argument("--steps", type=int, help=f"steps of each run of the cluster (default {STEPS_DEFAULT})")
    parser.add_argument(
        "--workers",
        type=int,
        help=f"workers of the cluster (default {WORKERS_DEFAULT}); or those before the first rescale, "
        f"1 to {WORKERS_MAX} (drawn, unless given)",
    )


def simulate(options: argparse.Namespace) -> int:
    """Run what was asked for, print it, and return the exit status: 1 if anything was found.

    Raises UserError for options that do not go together.
    """
    if options.runs is not None and options.runs < 1:
        raise UserError(f"--runs is 1 or more, not {options.runs}")
    if options.protocol == CLUSTER:
        return _simulate_cluster(options)
    if options.faults is not None:
        raise UserError(f"--faults is for the cluster, not for {options.protocol}")
    if options.steps is not None:
        raise UserError(f"--steps is for the cluster; a run of {options.protocol} ends when its rescales are over")
    if options.workers is not None and not 1 <= options.workers <= WORKERS_MAX:
        raise UserError(f"--workers of {options.protocol} is 1 to {WORKERS_MAX}, not {options.workers}")
    if options.rules == "published" and options.seed is options.runs is options.workers is None:
        return _search(options)
    return _play(options)


def _simulate_cluster(options: argparse.Namespace) -> int:
    if options.rules is not None:
        raise UserError(f"--rules goes with --protocol {' or '.join(PROTOCOLS)}")
    seed = _given(options.seed, 0)
    steps, workers = _given(options.steps, STEPS_DEFAULT), _given(options.workers, WORKERS_DEFAULT)
    faults = _faults(options.faults)
    result = campaign(seed, _given(options.runs, 1), steps, workers, faults=faults)
    if options.json:
        print(json.dumps(result, default=str))
    elif not result["violations"]:
        print(f"{result['runs']} runs from seed {seed}, {steps} steps each: no violation")
    else:
        print("\n".join(result["trace"]))
        print(f"{result['violations']} of {result['runs']} runs violate a rule; the first, at step {result['step']}:")
        print(f"{result['checker']}: {result['message']}")
        told = "" if options.faults is None else f" --faults {options.faults}"
        print(f"python -m simulator --seed {result['seed']} --steps {steps} --workers {workers}{told}")
    return 1 if result["violations"] else 0


def _faults(given: str | None) -> tuple[str, ...] | None:
    """The kinds that are meant."""
    if given in (None, "all", "none"):
        return None if given is None else tuple(FAULTS) if given == "all" else ()
    assert given is not None
    kinds = tuple(given.split(","))
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise UserError(f"--faults {','.join(unknown)}: there are all, none and {', '.join(FAULTS)}")
    return kinds


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _play(options: argparse.Namespace) -> int:
    """Random rescales by seeds."""
    seed, rules = _given(options.seed, 0), options.rules or "fixed"
    result = PROTOCOLS[options.protocol].campaign(seed, _given(options.runs, 1), rules, options.workers)
    if options.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{runs:>9,}  {what}" for what, runs in result["counters"].items()))
        print(_verdict(result, seed, options.workers))
    return 1 if result["violations"] else 0


def _verdict(result: Mapping[str, Any], seed: int, workers: int | None) -> str:
    if not result["violations"]:
        return (
            f"{result['runs']:,} runs of {result['protocol']} from seed {seed}, {result['rules']} rules: no violation"
        )
    again = f"python -m simulator --protocol {result['protocol']} --rules {result['rules']} --seed {result['seed']}"
    return "\n".join(
        [
            *_numbered(result["trace"]),
            f"{result['violations']:,} of {result['runs']:,} runs violate a rule; above is the first. Again:",
            again if workers is None else f"{again} --workers {workers}",
        ]
    )


def _search(options: argparse.Namespace) -> int:
    """Every known fault of the published rules."""
    entries = PROTOCOLS[options.protocol].search()
    result = {
        "protocol": options.protocol,
        "rules": options.rules,
        "faults": [_fault(entry) for entry in entries if entry["found"]],
        "found": sum(entry["found"] for entry in entries),
        "missing": [entry["fault"] for entry in entries if not entry["found"]],
    }
    if options.json:
        print(json.dumps(result))
    else:
        print("\n\n".join([*map(_told, result["faults"]), _tally(result, len(entries))]))
    return 1


def _fault(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": entry["fault"],
        "violation": entry["kind"],
        "steps": entry["steps"],
        "claim": entry["title"],
        "trace": entry["trace"],
    }


def _told(fault: Mapping[str, Any]) -> str:
    head = f"{fault['name']}: {fault['claim']} ({fault['violation']} after {fault['steps']} steps)"
    return "\n".join([head, *_numbered(fault["trace"])])


def _tally(result: Mapping[str, Any], faults: int) -> str:
    missing = f"; not found: {', '.join(result['missing'])}" if result["missing"] else ""
    return f"{result['found']} of {faults} known faults of {result['protocol']} as published were found{missing}."


def _numbered(trace: Sequence[str]) -> list[str]:
    """A trace's steps with their numbers; its last line is what was found."""
    *steps, finding = trace
    return [*(f"{number:>5}  {line}" for number, line in enumerate(steps, 1)), f"       {finding}"]
