"""Requested evictions are over when every worker that keeps anything has done them."""

from coordinator_kit import BOTH, came, coordinator, gone, said, tell

from upriver.protocol.coordinator_events import EvictionOver, EvictWanted, WorkerSaid
from upriver.protocol.messages import Evict, Evicted

WANTED = EvictWanted(ticket=7, view="rows", keys=(1, 2))
OVER = EvictionOver(ticket=7)


def evicted(incarnation: int, eviction: int = 7) -> WorkerSaid:
    return said(incarnation, Evicted(eviction=eviction, stats={}))


def test_all_workers_are_told_and_the_last_one_ends_it() -> None:
    machine = coordinator(*BOTH)
    told = machine.step(WANTED)
    assert told == [tell(who, Evict(eviction=7, view="rows", keys=(1, 2))) for who in (1, 2)]
    assert OVER not in machine.step(evicted(1))
    assert OVER not in machine.step(evicted(2, eviction=6))
    assert OVER in machine.step(evicted(2))


def test_a_lost_worker_has_forgotten_everything() -> None:
    machine = coordinator(*BOTH, WANTED, evicted(1))
    assert OVER in machine.step(gone(2))


def test_a_later_worker_is_not_waited_for() -> None:
    machine = coordinator(*BOTH, WANTED, evicted(1))
    assert OVER in machine.step(came(1, 3))  # in place of the second one


def test_without_workers_it_is_over_at_once() -> None:
    assert OVER in coordinator().step(WANTED)
