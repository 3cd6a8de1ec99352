"""What a worker does some rows or keys at a time: it settles what it has gathered for a stage, takes in long
answers of upqueries, and reads long answers of lookups; and when there is time, evicts, copies state for checkpoints,
feeds others, goes on with upqueries that rest.
"""

import math
import time
from collections.abc import Callable
from functools import partial

from upriver.protocol.worker_events import (
    KeysRead,
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToSettle,
    TimeToTakeIn,
)
from upriver.runtime.row_pace import RowPace
from upriver.runtime.slice_pace import SlicePace
from upriver.worker.worker import WorkerMachine

EVICTION_BUDGET_S = 0.002
"""Seconds that one slice of an eviction may take."""
COPY_BUDGET_S = 0.005
"""Seconds that one slice of copying state for a checkpoint, or for who follows this worker, may take."""
EVICTION_AIM_SHARE = 0.5
"""Of that time. Less would not do: half a millisecond goes by whatever a slice's keys, and with few of them evictions
would fall behind what lookups fill."""
EVICTED_KEYS_MIN = 32
"""Keys of one slice, however long the last one took: with fewer, there would hardly be an end."""

FILL_REST_TIMES = 4.0
"""How long upqueries rest when others ask for keys all the time: so many times what the last one's rows took. What they
cost is mostly the same for one key and for twenty, and whoever runs on the same processors needs some of them, too."""
FILL_REST_S_MAX = 0.02
"""Seconds of that rest, at most."""

Chore = TimeToCopy | TimeToEvict | TimeToFeed | TimeToSettle | KeysRead | TimeToFill | TimeToTakeIn | TimeToAnswer
Step = Callable[[Chore], object]


class Chores:
    """Of one worker's loop. has_room: whether the lake keeps up with what is copied for a checkpoint."""

    def __init__(self, machine: WorkerMachine, step: Step, has_room: Callable[[], bool]) -> None:
        self._machine = machine
        self._step = step
        self._has_room = has_room
        self._evictor = SlicePace(EVICTION_BUDGET_S, aim_share=EVICTION_AIM_SHARE)
        self._copier = SlicePace(COPY_BUDGET_S)
        self._feeder = SlicePace(COPY_BUDGET_S)
        self._settler = RowPace()
        self._filler = RowPace()
        self._reader = RowPace()
        self._fills_rest_until = 0.0
        """By ``time.perf_counter``; of use while upqueries rest."""

    @property
    def are_due(self) -> bool:
        """Whether there is anything to do."""
        machine = self._machine
        others_wait = (
            machine.unsettled
            or machine.unfilled
            or machine.unread
            or machine.must_evict
            or machine.can_feed
            or self.due_in_s == 0
        )
        return bool(others_wait) or (machine.can_copy and self._has_room())

    @property
    def due_in_s(self) -> float:
        """Seconds until upqueries have rested; infinitely many if they do not rest."""
        return max(0.0, self._fills_rest_until - time.perf_counter()) if self._machine.can_fill else math.inf

    def fill(self, event: KeysRead) -> None:
        """Take an upquery's rows in."""
        rested = self._machine.can_fill
        seconds = self._timed(event)
        if not rested:  # else it goes on: other regions' upqueries do not make it longer
            self._fills_rest_until = time.perf_counter() + min(FILL_REST_TIMES * seconds, FILL_REST_S_MAX)

    def do(self) -> None:
        """Do a slice of each thing that there is to do."""
        if unsettled := self._machine.unsettled:
            rows = self._settler.rows
            self._settler.timed(min(rows, unsettled), partial(self._step, TimeToSettle(rows_max=rows)))
        if unfilled := self._machine.unfilled:
            rows = self._filler.rows
            self._filler.timed(min(rows, unfilled), partial(self._step, TimeToTakeIn(rows_max=rows)))
        if unread := self._machine.unread:
            rows = self._reader.rows
            self._reader.timed(min(rows, unread), partial(self._step, TimeToAnswer(rows_max=rows)))
        if self.due_in_s == 0:
            self._step(TimeToFill())
        if self._machine.must_evict:
            keys = max(EVICTED_KEYS_MIN, self._evictor.keys)
            seconds = self._timed(TimeToEvict(keys_max=keys))
            self._evictor.took(self._machine.evicted, seconds)
        if self._machine.can_copy and self._has_room():
            keys = self._copier.keys
            self._copier.took(keys, self._timed(TimeToCopy(keys_max=keys)))
        if self._machine.can_feed:
            keys = self._feeder.keys
            self._feeder.took(keys, self._timed(TimeToFeed(keys_max=keys)))

    def _timed(self, event: Chore) -> float:
        """Step, and return the seconds of processor time: by the clock it takes longer on a busy machine, but no less
        with fewer keys."""
        began = time.thread_time()
        self._step(event)
        return time.thread_time() - began
