"""What users of a simulated cluster do: look up, scan, forget, and give up waiting."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from simulator.clients import drawn_eviction, drawn_lookup, drawn_view, lookup_of, short_keys
from simulator.cluster import SimulatedCluster
from upriver.ids import BEGINNING
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import SnapshotAsked
from upriver.protocol.worker_events import LookupGivenUp

KEYS_EVICTED_MAX = 3  # by one wish


class Users:
    """Each method is one thing that happens. tickets: of all that clients wait for. happened: told of it, under what
    it counts and in a line."""

    def __init__(
        self,
        rng: Random,
        cluster: SimulatedCluster,
        plans: Sequence[DataflowPlan],
        tickets: Iterator[int],
        happened: Callable[[str, str], None],
    ) -> None:
        self._rng = rng
        self._cluster = cluster
        self._plans = plans
        self._tickets = tickets
        self._happened = happened

    def look_up(self) -> None:
        process = self._rng.choice(self._cluster.running)
        plan = self._rng.choice(self._plans)
        reader, published = self._rng.choice(self._cluster.running), self._cluster.lake.published
        lookup = drawn_lookup(next(self._tickets), process, reader, plan, self._cluster.oracle, published, self._rng)
        at_least = f" at least {lookup.at_least}" if lookup.at_least else ""
        self._happened("lookups_asked", f"{process} is asked for {short_keys(lookup)}{at_least}: {lookup.ticket}")
        self._cluster.step_worker(process, lookup)

    def look_everything_up(self, plan: DataflowPlan) -> None:
        """All keys that there are, and some that there could be, each where it is kept."""
        oracle, view = self._cluster.oracle, plan.name
        hashes, there = oracle.hashes[view], oracle.at(view, self._cluster.lake.published)
        for process in self._cluster.running:
            vnode_map = process.map_of(view)
            vnodes = () if vnode_map is None else vnode_map.vnodes_of_worker(process.worker)
            keys = {key: hashes[key] for key in [*there, *hashes] if oracle.vnode_of(view, key) in vnodes}
            if keys:
                self._cluster.step_worker(process, lookup_of(next(self._tickets), plan, keys, view, BEGINNING, True))

    def evict_at_will(self) -> None:
        """A user evicts keys of a view, or all of it; or of a view that is not there, or is full."""
        plan = self._rng.choice(self._plans)
        wish = drawn_eviction(next(self._tickets), plan, self._cluster.oracle, KEYS_EVICTED_MAX, self._rng)
        keys = "all" if wish.keys is None else len(wish.keys)
        self._happened("evictions_wanted", f"eviction {wish.ticket} of {plan.name}, {keys} keys")
        self._cluster.wants(wish)

    def give_up(self) -> None:
        process = self._rng.choice(self._cluster.running)
        if process.waiting:
            ticket = self._rng.choice(list(process.waiting))
            self._happened("lookups_given_up", f"{process} is not asked any more: {ticket}")
            self._cluster.step_worker(process, LookupGivenUp(ticket=ticket))

    def scan(self) -> None:
        view, ticket = drawn_view(self._plans, self._rng), next(self._tickets)
        self._happened("scans_asked", f"scan {ticket} of {view}")
        self._cluster.wants(SnapshotAsked(ticket=ticket, view=view))
