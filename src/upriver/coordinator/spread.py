"""How workers are spread over hosts and executors: where Spark is asked to start one, and which of them leave.

Spark deals out tasks at random, so two workers may start on one host while another is free. Then there is no room for
standbys, and a lost host takes more keys with it. Both functions are pure.

An *instance* is what a worker is lost with: an executor, as ``host/number`` (:attr:`.WorkerConfig.instance`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NewType

from upriver.ids import WorkerId

ExecutorId = NewType("ExecutorId", str)


@dataclass(frozen=True, slots=True)
class ExecutorSlots:
    """An executor that is up. slots: how many tasks it may run at a time. busy: how many it runs."""

    id: ExecutorId
    host: str
    slots: int
    busy: int = 0


def executor_for_worker(executors: Iterable[ExecutorSlots], workers: Mapping[ExecutorId, int]) -> ExecutorSlots | None:
    """Where the next worker should run: on the host with the fewest workers, there on the executor with the fewest.
    ``None``: no executor has a slot without a worker. workers: how many there are on each executor."""
    known = sorted(executors, key=lambda executor: executor.id)
    on_hosts = Counter[str]()
    for executor in known:
        on_hosts[executor.host] += workers.get(executor.id, 0)
    free = [executor for executor in known if workers.get(executor.id, 0) < executor.slots]
    return min(free, key=lambda each: (on_hosts[each.host], workers.get(each.id, 0), -each.slots), default=None)


def executor_elsewhere(
    executors: Collection[ExecutorSlots],
    workers: Mapping[ExecutorId, int],
    left: ExecutorId | None,
    copies: Collection[ExecutorId] = (),
) -> ExecutorSlots | None:
    """Where a worker should run that is to leave the host of this executor. ``None``: no other host has a slot that is
    free of any task, or that executor is not known. workers: as of :func:`executor_for_worker`. copies: where copies of
    the worker's task run, which end with it."""
    hosts, ending = {executor.host for executor in executors if executor.id == left}, Counter(copies)
    free = [each for each in executors if each.host not in hosts and each.busy - ending[each.id] < each.slots]
    if not hosts:
        return None
    return executor_for_worker(free, workers)


def host_of(instance: str) -> str:
    """The host of an instance; an instance that names none is a host for itself."""
    return instance.partition("/")[0]


def staying_workers(
    workers: Collection[WorkerId], size: int, instances: Mapping[WorkerId, str]
) -> tuple[WorkerId, ...]:
    """So many of these workers, such that those that stay are spread well. One leaves the host with the most workers,
    there the executor with the most, there the highest id leaves. instances: of the workers that are up."""
    staying = set(workers)
    while len(staying) > max(0, size):
        places = {worker: instances.get(worker, str(worker)) for worker in staying}
        on_instances = Counter(places.values())
        on_hosts = Counter(map(host_of, places.values()))
        staying.remove(
            max(staying, key=lambda each: (on_hosts[host_of(places[each])], on_instances[places[each]], each))
        )
    return tuple(sorted(staying))
