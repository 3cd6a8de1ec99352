"""The model world by the rules of ``redistribute``, and regions of two operators for it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.icadd_rows import KEYS_PER_VNODE_MAX
from simulator.icadd_scenario import Logs, OneOperator, Rulebook, ScenarioOperators
from simulator.published.redistribute_chain import OperatorChain
from upriver.hashing import Hashes
from upriver.ids import WorkerId
from upriver.migration.redistribute import Redistributor
from upriver.migration.rules import ALL_ON, ALL_RULES, AS_PUBLISHED, RedistributeRules

Log = tuple[tuple[WorkerId, int], ...]


@dataclass(frozen=True, slots=True)
class ModelOperator:
    """An operator that has state of some keys of its region only."""

    name: str
    logs: Logs

    @property
    def keys(self) -> Hashes:
        return np.array(sorted(self.logs), np.uint64)

    def collect(self, keys: Hashes) -> Mapping[int, Log]:
        return {key: self.logs[key] for key in keys.tolist()}


@dataclass(frozen=True, slots=True)
class TwoOperators:
    """The first has state of keys with an odd number, the second of keys with a number from 2 on: 1 is the first's
    alone, 2 the second's alone, and 3 is of both."""

    rules: RedistributeRules

    def keys(self, logs: Logs) -> list[int]:
        keys: list[int] = self._chain(logs).keys().tolist()
        return keys

    def collect(self, logs: Logs, keys: list[int]) -> tuple[tuple[int, Log], ...]:
        """By key; where both have state, it must be of the same rows."""
        merged = self._chain(logs).collect(np.array(keys, np.uint64))
        by_operator = [dict(state) for state in merged.state.values() if isinstance(state, Mapping)]
        taken: dict[int, Log] = {}
        for state in by_operator:
            for key, log in state.items():
                assert taken.setdefault(key, log) == log
        return tuple((key, taken.get(key, ())) for key in keys)

    def _chain(self, logs: Logs) -> OperatorChain:
        odd = {key: log for key, log in logs.items() if _number(key) % 2}
        from_two = {key: log for key, log in logs.items() if _number(key) >= 2}
        return OperatorChain([ModelOperator("first", odd), ModelOperator("second", from_two)], self.rules)


def _number(key: int) -> int:
    return key & (KEYS_PER_VNODE_MAX - 1)


def redistribute_rulebook(
    rules: RedistributeRules = ALL_ON, *, two_operators: bool = True, aborts: bool = True
) -> Rulebook:
    """Worlds of redistributors. two_operators: in every region; else one. aborts: rescales can be given up."""
    operators: ScenarioOperators = TwoOperators(rules) if two_operators else OneOperator()
    return Rulebook(
        machine=lambda worker, map, together: Redistributor(worker, map, rules),
        coordinator=ALL_RULES,
        joiner_knows_old_map=rules.redistribute_joiner_knows_old_map,
        waiting_rows_in_flight=rules.redistribute_waiting_rows_in_flight,
        loses_done_to_the_gone=False,
        aborts=aborts,
        operators=operators,
    )


def redistribute_as_published() -> Rulebook:
    """Document 001 as written; it says nothing of aborts."""
    return redistribute_rulebook(AS_PUBLISHED, aborts=False)
