"""The tasks of a cone: which are under way, which may begin, and whose turn it is (:mod:`upriver.partial.cone`).

A task is work in steps: between two steps it waits for rows, for time to take rows in, or for its turn. A task begins
beside another one only if that is long: if it reads many rows, or takes many in. Epochs and fills take turns.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from upriver.errors import UpriverError
from upriver.hashing import Hashes
from upriver.partial.cone_state import ConeState, RowsLeft
from upriver.partial.partial_region import KeysToRead
from upriver.state.vectors import key_set

FILLS_MAX = 4
"""Fills at the same time at most."""


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A task waits until no epoch is being taken in, and no other keys join."""


Reads = tuple[KeysToRead, ...]
TaskRequest = Reads | RowsLeft | NextTurn
"""What a task waits for: rows of the lake, time to take rows in, or its turn."""
Result = TypeVar("Result")
Work = Generator[TaskRequest, Any, Result]
"""Work in steps. It is sent the rows that it has asked for; how many rows to take in; or nothing, if it is its turn."""


class ConeTask:
    """Work under way. number: its name."""

    def __init__(self, number: int, work: Work[None]) -> None:
        self.number = number
        self.request: TaskRequest = NextTurn()
        self.is_long = False
        """Other tasks may begin beside it."""
        self._work = work

    def go_on(self, answer: object) -> bool:
        """Answer the request; returns whether there is another one. The first call answers ``None``."""
        return self._step(lambda: self._work.send(answer))

    def go_on_without(self, error: UpriverError) -> bool:
        """As ``go_on``: the rows cannot be read."""
        return self._step(lambda: self._work.throw(error))

    def _step(self, step: Callable[[], TaskRequest]) -> bool:
        try:
            self.request = step()
        except StopIteration:
            return False
        return True

    @property
    def waits_for_turn(self) -> bool:
        return isinstance(self.request, NextTurn)

    @property
    def may_be_overtaken(self) -> bool:
        """Whether another task may begin."""
        return self.is_long or self.waits_for_turn

    @property
    def unfilled(self) -> int:
        """About how many rows the task has to take in now."""
        return self.request.rows if isinstance(self.request, RowsLeft) else 0


class Fill:
    """keys: that are being filled, except those given up since. apart: the regions that take their rows in, once there
    are any."""

    __slots__ = ("apart", "keys")

    def __init__(self, keys: Hashes) -> None:
        self.keys = keys
        self.apart: ConeState | None = None


class ConeTasks:
    """The tasks of one cone."""

    def __init__(self) -> None:
        self._epoch: ConeTask | None = None
        """Takes an epoch in."""
        self._fills: dict[int, tuple[ConeTask, Fill]] = {}
        """By number, the oldest first."""
        self._last = 0
        """The number of the last task."""
        self._done = 0
        self._joins = False
        """Filled keys join: no epoch may begin."""
        self._filled_last = False
        """A fill has begun, or got its turn, since the last epoch began."""

    def __iter__(self) -> Iterator[ConeTask]:
        if self._epoch is not None:
            yield self._epoch
        for task, _ in self._fills.values():
            yield task

    def of_number(self, number: int) -> ConeTask:
        return next(task for task in self if task.number == number)

    @property
    def done(self) -> int:
        """How many tasks have ended."""
        return self._done

    @property
    def filling(self) -> Hashes:
        """The keys that are being filled, except those given up since; ascending, each once."""
        return key_set(*(fill.keys for _, fill in self._fills.values()))

    @property
    def apart(self) -> list[ConeState]:
        """The regions that take in the rows of fills."""
        return [fill.apart for _, fill in self._fills.values() if fill.apart is not None]

    @property
    def may_begin(self) -> bool:
        """Whether a task may begin beside those under way."""
        return all(task.may_be_overtaken for task in self)

    @property
    def has_room(self) -> bool:
        """Whether there are fewer fills than ``FILLS_MAX``."""
        return len(self._fills) < FILLS_MAX

    @property
    def takes_none_in(self) -> bool:
        """Whether no epoch is being taken in, and no keys join."""
        return self._epoch is None and not self._joins

    def waiting_fill(self, epoch_waits: bool) -> ConeTask | None:
        """A fill whose turn it is now. epoch_waits: an epoch may begin instead."""
        waiting = next((task for task, _ in self._fills.values() if task.waits_for_turn), None)
        if waiting is None or not self.takes_none_in or not self.fills_have_turn(epoch_waits):
            return None
        self._filled_last = True
        return waiting

    def fills_have_turn(self, epoch_waits: bool) -> bool:
        """Whether a fill may go on or begin before an epoch does. epoch_waits: as in ``waiting_fill``."""
        return not (epoch_waits and self._filled_last)

    def begin_fill(self, fill: Fill, work: Work[None]) -> ConeTask:
        task = ConeTask(self._number(), work)
        self._fills[task.number] = task, fill
        self._filled_last = True
        return task

    def begin_epoch(self, work: Work[None]) -> ConeTask:
        self._epoch = ConeTask(self._number(), work)
        return self._epoch

    def pass_turn(self) -> None:
        """No fill takes its turn: fills have the next one, too."""
        self._filled_last = False

    def end(self, task: ConeTask) -> None:
        """The task has ended."""
        self._done += 1
        if task is self._epoch:
            self._epoch = None
        else:
            del self._fills[task.number]

    def overtake(self, number: int) -> None:
        """Reading for this task takes long: others may begin beside it."""
        for task in self:
            task.is_long |= task.number == number

    def give_up(self, keys: Hashes) -> None:
        """No lookup waits for these keys any more: fills need not keep them."""
        for _, fill in self._fills.values():
            fill.keys = np.setdiff1d(fill.keys, keys)

    @contextmanager
    def joining(self, fill: Fill) -> Iterator[None]:
        """The keys of a fill join the cone, after which its separate regions are gone."""
        self._joins = True
        try:
            yield
        finally:
            self._joins, fill.apart = False, None

    def _number(self) -> int:
        self._last += 1
        return self._last
