"""What a worker does when there is time, some keys at a time: it evicts, copies state for checkpoints, feeds others."""

import time
from collections.abc import Callable

from upriver.machines.worker import WorkerMachine
from upriver.machines.worker_events import TimeToCopy, TimeToEvict, TimeToFeed
from upriver.shell.slice_pace import SlicePace

EVICTION_BUDGET_S = 0.002
"""Seconds that one slice of an eviction may take."""
COPY_BUDGET_S = 0.005
"""Seconds that one slice of copying state for a checkpoint, or for who follows this worker, may take."""
EVICTION_AIM_SHARE = 0.75
"""Of that time: half a millisecond goes by whatever a slice's keys, and with few of them evictions would fall behind
what lookups fill."""
EVICTED_KEYS_MIN = 32
"""Keys of one slice, however long the last one took: with fewer, there would hardly be an end."""

Step = Callable[[TimeToCopy | TimeToEvict | TimeToFeed], object]


class Chores:
    """Of one worker's loop. has_room: whether the lake keeps up with what is copied for a checkpoint."""

    def __init__(self, machine: WorkerMachine, step: Step, has_room: Callable[[], bool]) -> None:
        self._machine = machine
        self._step = step
        self._has_room = has_room
        self._evictor = SlicePace(EVICTION_BUDGET_S, aim_share=EVICTION_AIM_SHARE)
        self._copier = SlicePace(COPY_BUDGET_S)
        self._feeder = SlicePace(COPY_BUDGET_S)

    @property
    def are_due(self) -> bool:
        """Whether there is anything to do."""
        machine = self._machine
        return machine.must_evict or machine.can_feed or (machine.can_copy and self._has_room())

    def do(self) -> None:
        """Do a slice of each thing that there is to do."""
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

    def _timed(self, event: TimeToCopy | TimeToEvict | TimeToFeed) -> float:
        """Step, and return the seconds of processor time: by the clock it takes longer on a busy machine, but no less
        with fewer keys."""
        began = time.thread_time()
        self._step(event)
        return time.thread_time() - began
