"""What shows that each safety rule is needed: without it, one seed of one scenario goes wrong at a known step.

The record is ``replays.toml``. A change of the machines or of the simulator can let a seed play out otherwise:
``python -m simulator.replays RULE...`` searches again, and prints the record's new lines. Without arguments it does so
for every rule whose record no longer holds, and ``--write`` puts the lines into the record.
"""

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from simulator.campaign import Simulator
from simulator.checkers import Violated
from simulator.icadd_campaign import run
from simulator.icadd_cases import SMALL_CASES
from simulator.icadd_scenario import mended
from simulator.late_drivers import LateWorld
from simulator.redistribute_cases import REDISTRIBUTE_CASES
from simulator.redistribute_rulebook import redistribute_rulebook
from simulator.scenarios import SCENARIOS
from upriver.migration.rules import ALL_ON, MendedRules, RedistributeRules
from upriver.migration.rules import ALL_RULES as ALL_MENDED
from upriver.partial.rules import UpqueryRules
from upriver.protocol.rules import ALL_RULES, Rules

RECORD = Path(__file__).parent / "replays.toml"
STEPS_TO_REST_MAX = 12_000
"""Steps after which a cluster without a rule will never rest."""
SEEDS_MAX, FOUND_MAX = 200, 3
"""A search plays so many seeds at most, and takes the shortest of the first so many that show the absence, if the
checker of the record is among those that notice."""

Finding = tuple[int, str]
"""The step at which something was wrong, and the checker that noticed."""
Play = Callable[[int, str | None], Finding | None]
"""Plays a seed, without a rule if one is given; what was wrong first, if anything was."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Without the rule, this seed of the scenario goes wrong at this step, and this checker notices."""

    rule: str
    scenario: str
    seed: int
    step: int
    checker: str

    def __str__(self) -> str:
        """A line of the record."""
        told = f'seed = {self.seed}, step = {self.step}, checker = "{self.checker}"'
        return f'{self.rule} = {{ scenario = "{self.scenario}", {told} }}'

    def found(self, rule: str | None) -> Finding | None:
        """What is wrong if the seed is played without a rule, or with all."""
        return PLAYS[self.scenario](self.seed, rule)

    @property
    def holds(self) -> bool:
        return self.found(self.rule) == (self.step, self.checker)


def replays(record: Path = RECORD) -> Mapping[str, Replay]:
    """By rule, what the record has."""
    found = tomllib.loads(record.read_text())["replays"]
    return {rule: Replay(rule, **pinned) for rule, pinned in found.items()}


def by_hand() -> Mapping[str, str]:
    """By rule, the test that shows its absence message by message: ``path::name``."""
    found: dict[str, str] = tomllib.loads(RECORD.read_text())["by_hand"]
    return found


def switches() -> list[str]:
    """The names of all rules that can be switched off."""
    classes = (Rules, UpqueryRules, MendedRules, RedistributeRules)
    return [field.name for rules in classes for field in fields(rules) if field.type is bool]


def without(rule: str | None) -> Rules:
    """All rules of the cluster but this one."""
    if rule is None:
        return ALL_RULES
    off: dict[str, Any] = {rule: False}
    of_partial_state = rule in {field.name for field in fields(UpqueryRules)}
    return replace(ALL_RULES, **({"upqueries": replace(ALL_RULES.upqueries, **off)} if of_partial_state else off))


def search(old: Replay) -> Replay:
    """Another seed, beginning with the recorded one. Raises LookupError if none is found."""
    found = list[Replay]()
    for seed in dict.fromkeys((old.seed, *range(SEEDS_MAX))):
        wrong = PLAYS[old.scenario](seed, old.rule)
        if wrong is not None:
            found.append(Replay(old.rule, old.scenario, seed, *wrong))
        if len(found) >= FOUND_MAX and old.checker in {"", *(replay.checker for replay in found)}:
            break
    for replay in sorted(found, key=lambda replay: (replay.checker != old.checker, replay.step)):
        if replay.found(None) is None:
            return replay
    raise LookupError(f"{old.rule}: nothing goes wrong in {SEEDS_MAX} seeds of {old.scenario}")


# What is played -------------------------------------------------------------------------------------------------------


@cache
def _simulator(scenario: str, rule: str | None) -> Simulator:
    if rule is None:
        return Simulator(SCENARIOS[scenario], ALL_RULES)
    return Simulator(SCENARIOS[scenario], without(rule), steps_to_rest_max=STEPS_TO_REST_MAX)


def _cluster(scenario: str, seed: int, rule: str | None) -> Finding | None:
    wrong = _simulator(scenario, rule).play(seed).violation
    return None if wrong is None else (wrong.step, wrong.checker)


def _late_writes(seed: int, rule: str | None) -> Finding | None:
    world = LateWorld(seed, without(rule))
    try:
        world.play()
    except Violated as violated:
        return world.rounds, violated.checker
    return None


def _icadd(case: int, seed: int, rule: str | None) -> Finding | None:
    rules = ALL_MENDED if rule is None else replace(ALL_MENDED, **{rule: False})
    steps, wrong, _ = run(seed, SMALL_CASES[case], mended(rules))
    return None if wrong is None else (len(steps), wrong.kind)


def _redistribute(case: int, seed: int, rule: str | None) -> Finding | None:
    rules = ALL_ON if rule is None else replace(ALL_ON, **{rule: False})
    steps, wrong, _ = run(seed, (*SMALL_CASES, *REDISTRIBUTE_CASES)[case], redistribute_rulebook(rules))
    return None if wrong is None else (len(steps), wrong.kind)


def _cases(name: str, play: Callable[..., Finding | None], cases: Any) -> Iterator[tuple[str, Play]]:
    return ((f"{name}: {case.name}", partial(play, number)) for number, case in enumerate(cases))


PLAYS: Mapping[str, Play] = {
    **{name: partial(_cluster, name) for name in SCENARIOS},
    "late writes": _late_writes,
    **dict(_cases("icadd", _icadd, SMALL_CASES)),
    **dict(_cases("redistribute", _redistribute, (*SMALL_CASES, *REDISTRIBUTE_CASES))),
}
"""By the name of a scenario."""


def main(arguments: list[str] | None = None, record: Path = RECORD) -> int:
    """Search again; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m simulator.replays", description=search.__doc__)
    parser.add_argument("rules", nargs="*", metavar="RULE", help="those whose record does not hold, unless given")
    parser.add_argument("--write", action="store_true", help="put what is found into the record")
    options = parser.parse_args(arguments)
    known, status = replays(record), 0
    for rule in options.rules or [rule for rule, replay in known.items() if not replay.holds]:
        try:
            line = str(search(known[rule]))
        except LookupError as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        print(line, flush=True)
        if options.write:
            lines = record.read_text().splitlines()
            record.write_text("".join(f"{line if old.startswith(f'{rule} = ') else old}\n" for old in lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
