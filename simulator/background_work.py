"""What a simulated process does when it has time, for some keys or rows at a time."""

from collections.abc import Callable, Mapping
from random import Random

from upriver.protocol.worker_events import (
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToSettle,
    TimeToTakeIn,
    WorkerEvent,
)

COPIED_MAX, EVICTED_MAX = 4, 3  # keys at a time
SETTLED_MAX = 40  # rows at a time
TAKEN_IN_MAX, READ_MAX = 4_000, 30  # rows at a time

BACKGROUND_WORK: Mapping[str, tuple[int, Callable[[int], WorkerEvent]]] = {
    "copies": (COPIED_MAX, lambda most: TimeToCopy(keys_max=most)),
    "evictions": (EVICTED_MAX, lambda most: TimeToEvict(keys_max=most)),
    "feeds": (COPIED_MAX, lambda most: TimeToFeed(keys_max=most)),
    "settlings": (SETTLED_MAX, lambda most: TimeToSettle(rows_max=most)),
    "answers taken in": (TAKEN_IN_MAX, lambda most: TimeToTakeIn(rows_max=most)),
    "long answers": (READ_MAX, lambda most: TimeToAnswer(rows_max=most)),
    "fills": (1, lambda _: TimeToFill()),
}
"""By what the watcher counts it as."""


def drawn_work(kind: str, rng: Random) -> WorkerEvent:
    """Time for so many of them: few as often as many."""
    most, event_of = BACKGROUND_WORK[kind]
    return event_of(round(most ** rng.random()))
