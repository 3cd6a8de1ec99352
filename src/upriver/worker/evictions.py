"""A share's evictions: keys that a user asks to evict, and keys beyond the memory budget;
``docs/internals/partial.md``."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from upriver.hashing import Hashes
from upriver.partial.cone import Cone
from upriver.protocol.messages import Counted, Evict, Evicted
from upriver.protocol.worker_events import TimeToEvict
from upriver.worker.distributors import Distributors
from upriver.worker.lookups import Lookups
from upriver.worker.memory import MemoryBudget
from upriver.worker.peers import StepOutput
from upriver.worker.regions import Regions


@dataclass(slots=True)
class RequestedEviction:
    """A requested eviction. number: of the request. left: the hash64 (ascending) of the keys not handled yet."""

    number: int
    view: str
    left: Hashes


class KeyEvictions:
    """Evicts keys, some at a time, when there is time."""

    def __init__(
        self, regions: Regions, memory: MemoryBudget, lookups: Lookups, distributors: Distributors, output: StepOutput
    ) -> None:
        self.evicted = 0
        """Keys that the last step of an eviction handled."""
        self._is_uncounted = False
        """Keys were evicted for memory since the last ``Counted``."""
        self._requests: deque[RequestedEviction] = deque()
        """The requested evictions that are not done."""
        self._regions = regions
        self._memory = memory
        self._lookups = lookups
        self._distributors = distributors
        self._output = output

    @property
    def has_own_work(self) -> bool:
        """Whether there is a requested eviction, or state that evicted keys have left behind."""
        return bool(self._requests) or self._regions.has_leftovers

    @property
    def has_work(self) -> bool:
        """Whether there is work of this share, or keys to evict because memory is over budget."""
        return self._memory.is_over_budget or self.has_own_work

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the requested evictions that are not done."""
        return [request.number for request in self._requests]

    @property
    def largest(self) -> int:
        """The bytes that the kept keys of the largest partial region take; -1 if there is none."""
        stats = self._regions.last_stats
        partial = (name for name, shard in self._regions.shards.items() if shard.partial is not None)
        return max((stats[name]["live_bytes"] for name in partial), default=-1)

    def succeed(self, old: "KeyEvictions") -> None:
        """Go on with the requested evictions after all have resumed."""
        self._requests = old._requests

    def evict(self, event: Evict) -> None:
        """A request to evict keys: those that are present now, some at a time, when there is time."""
        shard = self._regions.shards.get(event.view)
        wanted = np.empty(0, np.uint64)
        if shard is not None and shard.partial is not None:  # else the view was dropped or replaced
            everything = event.keys is None
            wanted = shard.partial.keys_of(0, 1) if everything else np.unique(np.array(event.keys, np.uint64))
        self._requests.append(RequestedEviction(event.eviction, event.view, wanted))
        self._report_done()

    def time_to_evict(self, event: TimeToEvict) -> None:
        """Evict some keys: first what evicted keys have left behind, then requested keys, then keys beyond the memory
        budget."""
        leftovers = next(((view, cone) for view, cone in self._regions.cones.items() if cone.has_leftovers), None)
        if leftovers is not None:
            self._drop_leftovers(*leftovers, event.keys_max)
        elif self._requests:
            self._evict_requested(self._requests[0], event.keys_max)
        else:
            self._evict_oldest(event.keys_max)

    def _drop_leftovers(self, view: str, cone: Cone, keys_max: int) -> None:
        self.evicted = cone.drop_forgotten(keys_max)
        if not cone.has_leftovers:
            stats = self._regions.stats_after(view)
            self._memory.weigh_evicted(can_evict=self._memory.is_over_budget)
            self._output.report(Counted(stats=stats))
            self._report_done()

    def _evict_requested(self, request: RequestedEviction, keys_max: int) -> None:
        """Evict the next requested keys. Waiting lookups then request their keys again."""
        shard = self._regions.shards.get(request.view)
        keys, request.left = request.left[:keys_max], request.left[keys_max:]
        self.evicted = len(keys)
        if shard is not None and shard.partial is not None:
            shard.partial.evict(keys)
            self._distributors.ask_again()
        self._report_done()

    def _report_done(self) -> None:
        while self._requests and not len(self._requests[0].left) and not self._regions.has_leftovers:
            self._output.report(Evicted(eviction=self._requests.popleft().number, stats=self._regions.stats()))

    def _evict_oldest(self, keys_max: int) -> None:
        """The largest partial region that can evict does so. If none can, all keys must stay."""
        stats, self.evicted = self._regions.last_stats, 0
        partial = {name: shard.partial for name, shard in self._regions.shards.items() if shard.partial is not None}
        for name in sorted(partial, key=lambda region: stats[region]["live_bytes"], reverse=True):
            self.evicted = partial[name].evict_oldest(keys_max, self._lookups.waiting_hashes(name))
            if self.evicted:
                self._regions.stats_after(name)
                break
        self._is_uncounted = True
        self._memory.weigh_evicted(can_evict=self.evicted > 0)
        self.count()

    def count(self) -> None:
        """Report what is left, once no more keys must be evicted for memory."""
        if self._is_uncounted and not self._memory.is_over_budget:
            self._is_uncounted = False
            self._output.report(Counted(stats=self._regions.last_stats))
