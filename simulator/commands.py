"""``python -m simulator``: the cluster under a seeded scheduler, or one protocol of live migration by itself.

A protocol of migration has two sets of rules, and two things to do with them: a campaign plays random rescales by
seeds; a search looks for each known fault of the rules as published, and tells it by a shortest trace.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulator.campaign import Simulator, campaign
from simulator.event_weights import FAULTS
from simulator.icadd_campaign import RULEBOOKS, WORKERS_MAX, icadd_campaign
from simulator.published_faults import search_published
from simulator.redistribute_campaign import redistribute_campaign
from simulator.scenarios import SCENARIOS
from upriver.errors import UserError

CLUSTER = "cluster"
SCENARIO_DEFAULT = "drawn"


CAMPAIGNS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "icadd": icadd_campaign,
    "redistribute": redistribute_campaign,
}
"""By the name of a protocol."""


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m simulator``."""
    parser.add_argument(
        "--protocol",
        choices=(CLUSTER, *CAMPAIGNS),
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
        "--scenario",
        choices=tuple(SCENARIOS),
        metavar="NAME",
        help=f"of the cluster: one of simulator/scenarios.py (default {SCENARIO_DEFAULT})",
    )
    parser.add_argument(
        "--faults",
        help=f"of the cluster: all, none, or some of {','.join(FAULTS)} (drawn by the seed, unless given)",
    )
    parser.add_argument("--seed", type=int, help="the first seed (default 0)")
    parser.add_argument("--runs", type=int, help="how many seeds, from --seed on (default 1)")
    parser.add_argument(
        "--steps", type=int, help="steps of each run of the cluster (as the scenario has, unless given)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="workers of the cluster (as the scenario has, unless given); or those before the first rescale, "
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
    for name in ("scenario", "faults"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} is for the cluster, not for {options.protocol}")
    if options.steps is not None:
        raise UserError(f"--steps is for the cluster; a run of {options.protocol} ends when its rescales are over")
    if options.workers is not None and not 1 <= options.workers <= WORKERS_MAX:
        raise UserError(f"--workers of {options.protocol} is 1 to {WORKERS_MAX}, not {options.workers}")
    if options.rules == "published" and options.seed is options.runs is options.workers is None:
        return _search(options)
    return _play(options)


def _simulate_cluster(options: argparse.Namespace) -> int:
    if options.rules is not None:
        raise UserError(f"--rules goes with --protocol {' or '.join(CAMPAIGNS)}")
    seed, name = _given(options.seed, 0), options.scenario or SCENARIO_DEFAULT
    changed = {"steps": options.steps, "workers": options.workers, "faults": _faults(options.faults)}
    scenario = replace(SCENARIOS[name], **{field: value for field, value in changed.items() if value is not None})
    result = campaign(Simulator(scenario), seed, _given(options.runs, 1))
    if options.json:
        print(json.dumps(result, default=str))
    elif not result["violations"]:
        print(f"{result['runs']} runs of {name} from seed {seed}, {scenario.steps} steps each: no violation")
    else:
        given = ("scenario", "faults", "steps", "workers")
        told = [f" --{field} '{getattr(options, field)}'" for field in given if getattr(options, field) is not None]
        print("\n".join(result["trace"]))
        print(f"{result['violations']} of {result['runs']} runs violate a rule; the first, at step {result['step']}:")
        print(f"{result['checker']}: {result['message']}")
        print(f"python -m simulator{''.join(told)} --seed {result['seed']}")
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
    runs, campaign_of = _given(options.runs, 1), CAMPAIGNS[options.protocol]
    result = campaign_of(seed, runs, rules=rules, workers=options.workers)
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
    entries = search_published(options.protocol)
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
