"""When a row passes a test of the clock: from one instant to before another (:mod:`upriver.plan.clock`). Also which
value of the clock a row shows, and until when.

Instants are microseconds since 1970, UTC. The clock's function never goes down, so the least instant at which it
reaches a value is found by going back through its steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.zone_offsets import instants_of, wall_clocks_of
from upriver.plan.clock import ClockColumn, ClockStep, ClockStepKind, ClockTest, Comparison
from upriver.state.columns import array_of, cells_of, validity
from upriver.state.vectors import Mask

Instants = npt.NDArray[np.int64]

BEFORE_ALL = -(2**63)
"""Before every instant: the clock of a region that has seen no epoch."""
NEVER = 2**63 - 1
"""After every instant."""
_FAR = 8 * 10**18
"""Microseconds beyond all instants that a clock shows. No number of a step is farther from 0."""
_DAY = 86_400_000_000
_DAYS_FAR = _FAR // _DAY
_NEAR = np.arange(-5, 6)
"""The days around a guess among which the right one is."""


_SHOWN_FROM, _SHOWN_TO = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The instants that values show: the years 1 to 9999."""


class ClockResult(Protocol):
    """One result of the clock for each of some rows, at any instants."""

    def column(self, clock: Instants) -> pa.Array:
        """At these instants, one for each row."""
        ...

    def differs(self, before: Instants, after: Instants) -> Mask:
        """For which rows it is not the same at both instants."""
        ...

    def following(self, clock: Instants) -> Instants:
        """The first change of each row after these instants; ``NEVER`` for none."""
        ...


@dataclass(frozen=True, slots=True)
class Showing:
    """A value of the clock. Implements :class:`ClockResult` for any number of rows."""

    of: ClockColumn

    def column(self, clock: Instants) -> pa.Array:
        numbers = self._numbers(clock)
        return array_of(self.of.type, np.ascontiguousarray(numbers, np.dtype(f"i{self.of.type.byte_width}")))

    def differs(self, before: Instants, after: Instants) -> Mask:
        different: Mask = self._numbers(before) != self._numbers(after)
        return different

    def following(self, clock: Instants) -> Instants:
        instants, places = _distinct(clock)
        return least(self.of, shown(self.of, instants) + 1)[places]

    def _numbers(self, clock: Instants) -> Instants:
        instants, places = _distinct(clock)
        return shown(self.of, instants)[places]


def _distinct(clock: Instants) -> tuple[Instants, npt.NDArray[np.intp]]:
    """The different instants, all of them such as a value shows, and the place of each row's among them."""
    if len(clock) and (clock == clock[0]).all():
        return np.clip(clock[:1], _SHOWN_FROM, _SHOWN_TO), np.zeros(len(clock), np.intp)
    instants, places = np.unique(clock, return_inverse=True)
    return np.clip(instants, _SHOWN_FROM, _SHOWN_TO), places


@dataclass(frozen=True, slots=True)
class Passing:
    """When rows pass a test: from ``begin`` on and before ``end``; outside of that, if it is ``negated``. known: where
    the tested value is not NULL."""

    begin: Instants
    end: Instants
    known: Mask
    negated: bool

    @classmethod
    def of(cls, test: ClockTest, values: pa.Array) -> Self:
        """values: of the tested column."""
        known = validity(values)
        numbers = np.clip(cells_of(values).astype(np.int64), -_FAR, _FAR - 1)  # arbitrary under a NULL
        begin, end = np.full(len(numbers), BEFORE_ALL, np.int64), np.full(len(numbers), NEVER, np.int64)
        match test.comparison:
            case Comparison.MORE:
                end = least(test, numbers)
            case Comparison.AT_LEAST:
                end = least(test, numbers + 1)
            case Comparison.AT_MOST:
                begin = least(test, numbers)
            case Comparison.LESS:
                begin = least(test, numbers + 1)
            case Comparison.EQUAL | Comparison.UNEQUAL:
                begin, end = least(test, numbers), least(test, numbers + 1)
        never = ~known | (begin >= end)
        begin[never], end[never] = NEVER, NEVER
        return cls(begin, end, known, test.comparison is Comparison.UNEQUAL)

    def at(self, clock: Instants) -> Mask:
        """Which rows pass at these instants, one for each row, where that is known."""
        inside: Mask = (self.begin <= clock) & (clock < self.end)
        passes: Mask = inside ^ self.negated
        return passes

    def column(self, clock: Instants) -> pa.Array:
        """As :meth:`at`, with NULL."""
        return pa.array(self.at(clock), pa.bool_(), mask=~self.known)

    def differs(self, before: Instants, after: Instants) -> Mask:
        different: Mask = self.known & (self.at(before) != self.at(after))
        return different

    def following(self, clock: Instants) -> Instants:
        """The first change of each row after these instants; ``NEVER`` for none."""
        later: Instants = np.where(self.end > clock, self.end, NEVER)
        return np.where(self.begin > clock, self.begin, later)


def shown(of: ClockTest | ClockColumn, clock: Instants) -> Instants:
    """The value of the clock's function at these instants."""
    for step in of.steps:
        clock = _forward(step, of.zone)(clock)
    return clock


def least(of: ClockTest | ClockColumn, numbers: Instants) -> Instants:
    """The least instant at which the clock's function is at least this number."""
    for step in reversed(of.steps):
        numbers = np.clip(_BACK[step.kind](step, of.zone, numbers), -_FAR, _FAR)
    return numbers


# Steps ----------------------------------------------------------------------------------------------------------------


def _forward(step: ClockStep, zone: str) -> Callable[[Instants], Instants]:
    n = step.amount
    forward: Mapping[ClockStepKind, Callable[[Instants], Instants]] = {
        ClockStepKind.MOVED: lambda z: z + n,
        ClockStepKind.DIVIDED: lambda z: z // n,
        ClockStepKind.TIMES: lambda z: z * n,
        ClockStepKind.DAY: lambda z: wall_clocks_of(z, zone) // _DAY,
        ClockStepKind.MIDNIGHT: lambda z: instants_of(z * _DAY, zone),
        ClockStepKind.MONTHS: lambda z: _add_months(z, n),
        ClockStepKind.MONTH_OF: lambda z: _first_of(_month(z) // n * n),
        ClockStepKind.WEEK_OF: lambda z: (z + 3) // 7 * 7 - 3,
        ClockStepKind.YEAR: lambda z: _month(z) // 12 + 1970,
    }
    return forward[step.kind]


def _month(days: Instants) -> Instants:
    """Months since 1970."""
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _first_of(months: Instants) -> Instants:
    """The first day of a month."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _add_months(days: Instants, months: int) -> Instants:
    """The same day of another month, or its last one."""
    month = _month(days)
    day = days - _first_of(month)
    return np.minimum(_first_of(month + months) + day, _first_of(month + months + 1) - 1)


def _days(numbers: Instants) -> Instants:
    return np.clip(numbers, -_DAYS_FAR, _DAYS_FAR)


def _next_first(numbers: Instants, months: int) -> Instants:
    """The first day of a unit of so many months, on or after these days."""
    month = _month(_days(numbers) - 1)
    return _first_of(month // months * months + months)


def _nearest(step: ClockStep, zone: str, guess: Instants, numbers: Instants) -> Instants:
    """The first day near the guess for which the step gives at least this number."""
    near = guess[:, np.newaxis] + _NEAR
    reached = _forward(step, zone)(near.reshape(-1)).reshape(near.shape) >= numbers[:, np.newaxis]
    nearest: Instants = near[np.arange(len(guess)), reached.argmax(axis=1)]
    return nearest


def _months_back(step: ClockStep, zone: str, numbers: Instants) -> Instants:
    days = _days(numbers)
    return _nearest(step, zone, _add_months(days, -step.amount), days)


def _midnight_back(step: ClockStep, zone: str, numbers: Instants) -> Instants:
    return _nearest(step, zone, _days(wall_clocks_of(numbers, zone) // _DAY), numbers)


_BACK: Mapping[ClockStepKind, Callable[[ClockStep, str, Instants], Instants]] = MappingProxyType(
    {
        ClockStepKind.MOVED: lambda step, _, y: y - step.amount,
        ClockStepKind.DIVIDED: lambda step, _, y: np.clip(y, -_FAR // step.amount, _FAR // step.amount) * step.amount,
        ClockStepKind.TIMES: lambda step, _, y: -(-y // step.amount),
        ClockStepKind.DAY: lambda _, zone, y: instants_of(_days(y) * _DAY, zone),
        ClockStepKind.MIDNIGHT: _midnight_back,
        ClockStepKind.MONTHS: _months_back,
        ClockStepKind.MONTH_OF: lambda step, _, y: _next_first(y, step.amount),
        ClockStepKind.WEEK_OF: lambda _step, _, y: -(-(_days(y) + 3) // 7) * 7 - 3,
        ClockStepKind.YEAR: lambda _step, _, y: _first_of((np.clip(y, -200_000, 200_000) - 1970) * 12),
    }
)
"""By kind: the least number for which the step gives at least this one."""


def all_changes(results: Sequence[ClockResult], clock: Instants) -> Instants:
    """The first change of any result of each row after these instants."""
    first = np.full(len(clock), NEVER, np.int64)
    for result in results:
        first = np.minimum(first, result.following(clock))
    return first
