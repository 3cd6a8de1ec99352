"""Several operators in one region (document 001, "Z is comprised of multiple operators"): they answer as one.

FINAL enters at the first operator and runs down. The first that has state of its keys turns it into a REDISTRIBUTE;
those behind add theirs. So what comes out at the end has the state of all. State stays in place until it is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np

from upriver.hashing import Hashes
from upriver.migration.rules import ALL_ON, RedistributeRules
from upriver.state.vectors import NO_KEYS, contains, key_set


class KeyedOperator(Protocol):
    """An operator with state by key."""

    @property
    def name(self) -> str:
        """Of its own in the region; the same on every worker."""

    @property
    def keys(self) -> Hashes:
        """Of which it has state: ascending, without repeats."""

    def collect(self, keys: Hashes) -> object:
        """The state of these keys, all of which it has; it keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalOf:
    """On its way down the chain: no operator so far has state of ``keys``."""

    keys: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class RedistributeOf:
    """On its way down the chain: the state of ``keys`` so far, by operator; following: which keys can go next."""

    keys: Hashes
    state: Mapping[str, object]
    following: Hashes


@dataclass(frozen=True, slots=True)
class OperatorChain:
    """The operators of one region on one worker, in the order in which rows pass them."""

    operators: Sequence[KeyedOperator]
    rules: RedistributeRules = ALL_ON

    def keys(self) -> Hashes:
        """Keys for which an operator has state (redistribute.sets_are_united); as published, for the first operator
        only."""
        answering = self.operators if self.rules.redistribute_sets_are_united else self.operators[:1]
        return key_set(*(operator.keys for operator in answering))

    def collect(self, keys: Hashes, following_max: int = 1) -> RedistributeOf:
        """What comes out at the end for FINAL of ``keys``; of keys that no operator has, an empty state.

        following_max: how many keys one operator names as the next, at most.
        """
        message: FinalOf | RedistributeOf = FinalOf(keys=keys)
        for operator in self.operators:
            message = passed(operator, message, following_max)
        if isinstance(message, FinalOf):  # in the document no operator answers, and its X would wait for ever
            left = (left_after(operator, keys)[:following_max] for operator in self.operators)
            following = next((some for some in left if len(some)), NO_KEYS)
            return RedistributeOf(keys=keys, state=MappingProxyType({}), following=following)
        return message


def passed(operator: KeyedOperator, message: FinalOf | RedistributeOf, following_max: int) -> FinalOf | RedistributeOf:
    """What an operator sends on. It answers FINAL if it has state of the keys, and forwards it unchanged if not; to a
    REDISTRIBUTE it adds what it has, and names the next keys if no operator has so far."""
    here = message.keys[contains(operator.keys, message.keys)]
    if isinstance(message, FinalOf):
        if not len(here):
            return message
        message = RedistributeOf(keys=message.keys, state=MappingProxyType({}), following=NO_KEYS)
    if len(here):
        message = replace(message, state=MappingProxyType({**message.state, operator.name: operator.collect(here)}))
    if not len(message.following):
        message = replace(message, following=left_after(operator, message.keys)[:following_max])
    return message


def left_after(operator: KeyedOperator, keys: Hashes) -> Hashes:
    """The operator's keys but for these."""
    return np.setdiff1d(operator.keys, keys, assume_unique=True)
