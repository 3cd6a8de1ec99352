"""What one rescale of a large cluster costs in messages: real machines, one key per vnode, first in first out."""

from collections import Counter, deque
from typing import Any

import numpy as np

from simulator.icadd_rows import Key
from upriver.errors import ProtocolError
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import (
    Action,
    Collect,
    CollectAsked,
    Collected,
    Event,
    Interrogate,
    Interrogated,
    Received,
    RescaleAnnounced,
    Send,
)
from upriver.migration.icadd import Distributor
from upriver.migration.phases import Normal
from upriver.vnodes import VnodeMap


def count_messages(workers_before: int, workers_after: int, vnodes: int) -> dict[str, Any]:
    """Rescale a cluster whose workers are numbered from 0, with one key in each vnode. For JSON.

    Keys: workers_before, workers_after, vnodes, moved (vnodes), least (that must move), touched (vnodes of which any
    message speaks), messages (by kind), steps (events at all machines).
    """
    before = VnodeMap.initial(vnodes, _workers(workers_before))
    after = VnodeMap(MapVersion(1), before.rebalanced(_workers(workers_after)).owners)
    rescale = RescaleAnnounced(before=before, after=after, old=_workers(workers_before), new=_workers(workers_after))
    cluster = _Cluster(before, max(workers_before, workers_after))
    cluster.announce(rescale)
    cluster.run()
    if any(machine.phase != Normal(map=after) for machine in cluster.machines):
        raise ProtocolError("not every worker has settled")
    return {
        "workers_before": workers_before,
        "workers_after": workers_after,
        "vnodes": vnodes,
        "moved": len(before.diff(after)),
        "least": vnodes // max(workers_before, workers_after) * abs(workers_after - workers_before),
        "touched": len(cluster.touched),
        "messages": dict(sorted(cluster.messages.items())),
        "steps": cluster.steps,
    }


def _workers(count: int) -> tuple[WorkerId, ...]:
    return tuple(map(WorkerId, range(count)))


class _Cluster:
    """Events wait in one queue: that is one of the orders that FIFO channels allow."""

    def __init__(self, map: VnodeMap, workers: int) -> None:
        self.machines = [Distributor(worker, map) for worker in _workers(workers)]
        self.vnodes = len(map.owners)
        self.events: deque[tuple[WorkerId, Event]] = deque()
        self.messages: Counter[str] = Counter()
        self.touched: set[VnodeId] = set()
        self.steps = 0

    def announce(self, rescale: RescaleAnnounced) -> None:
        self.events.extend((machine.me, rescale) for machine in self.machines)

    def run(self) -> None:
        while self.events:
            worker, event = self.events.popleft()
            machine = self.machines[worker]
            self.steps += 1
            for action in machine.step(event):
                self._carry_out(worker, action)
            if machine.can_collect and isinstance(event, Interrogated | Collected):
                self.events.append((worker, CollectAsked(keys_max=1)))

    def _carry_out(self, worker: WorkerId, action: Action) -> None:
        match action:
            case Send(to=to, message=message):
                self.messages[type(message).__name__] += 1
                self.events.append((to, Received(sender=worker, message=message)))
            case Interrogate(vnodes=vnodes):
                self.touched.update(vnodes)
                keys = [Key(vnode, 1).hash64(self.vnodes) for vnode in vnodes]
                self.events.append((worker, Interrogated(keys=np.array(keys, np.uint64))))
            case Collect(keys=keys):
                self.events.append((worker, Collected(keys=keys, state=None)))
