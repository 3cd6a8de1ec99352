"""What users of a simulated river do: look up, scan, forget, and give up waiting."""

from collections.abc import Callable, Iterator, Sequence
from random import Random

from simulator.boards import drawn_board, drawn_from_board, found_on_board
from simulator.clients import drawn_eviction, drawn_lookup, drawn_lookup_here, drawn_view, lookup_of, short_keys
from simulator.process import Process
from simulator.river import River
from upriver.ids import BEGINNING
from upriver.plan.graph import DataflowPlan
from upriver.protocol.coordinator_events import SnapshotAsked
from upriver.protocol.worker_events import LookupGivenUp

KEYS_EVICTED_MAX = 3  # by one wish
NEW_BOARD_SHARE = 0.2  # of the looks at a board that is not there yet


class Users:
    """Each method is one thing that happens. tickets: for whatever somebody waits for. happened: told of it, under what
    it counts and in a line."""

    def __init__(
        self,
        lots: Random,
        river: River,
        plans: Sequence[DataflowPlan],
        tickets: Iterator[int],
        happened: Callable[[str, str], None],
    ) -> None:
        self._lots = lots
        self._river = river
        self._plans = plans
        self._tickets = tickets
        self._happened = happened

    def look_up(self) -> None:
        process = self._lots.choice(self._river.running)
        plan = self._lots.choice(self._plans)
        reader, published = self._lots.choice(self._river.running), self._river.lake.published
        lookup = drawn_lookup(next(self._tickets), process, reader, plan, self._river.oracle, published, self._lots)
        at_least = f" at least {lookup.at_least}" if lookup.at_least else ""
        self._happened("lookups_asked", f"{process} is asked for {short_keys(lookup)}{at_least}: {lookup.ticket}")
        self._river.step_worker(process, lookup)

    def look_on_board(self) -> None:
        """Somebody looks for keys on a board, and asks for some that may come to be there."""
        process, plan = self._lots.choice(self._river.running), self._lots.choice(self._plans)
        given = drawn_board(process, plan, NEW_BOARD_SHARE, self._lots)
        if given is not None:
            self._happened("boards", f"{process} is given a board for {plan.name}")
            self._river.step_worker(process, given)
        self._find_on_board(process, plan)
        lookup = drawn_lookup_here(next(self._tickets), process, plan, self._river.oracle, self._lots)
        if lookup is not None:
            what = f"{process} is asked for {short_keys(lookup)}, which it keeps: {lookup.ticket}"
            self._happened("lookups_asked", what)
            self._river.step_worker(process, lookup)

    def _find_on_board(self, process: Process, plan: DataflowPlan) -> None:
        """Look for keys that have been on the board, whoever keeps them now: not everybody knows the newest map."""
        lookup = drawn_from_board(next(self._tickets), process, plan, self._river.oracle, self._lots)
        found = None if lookup is None else found_on_board(process, lookup)
        if lookup is not None and found is not None:
            self._happened("found_on_board", f"{process}: {short_keys(lookup)} are on its board, as of {found.epoch}")
            self._river.askers.finds(process, lookup, found, self._river.watcher.is_current(process))

    def look_everything_up(self, plan: DataflowPlan) -> None:
        """All keys that there are, and some that there could be, each where it is kept."""
        oracle, view = self._river.oracle, plan.name
        hashes, there = oracle.hashes[view], oracle.at(view, self._river.lake.published)
        for process in self._river.running:
            vnode_map = process.map_of(view)
            vnodes = () if vnode_map is None else vnode_map.vnodes_of_worker(process.worker)
            keys = {key: hashes[key] for key in [*there, *hashes] if oracle.vnode_of(view, key) in vnodes}
            if keys:
                self._river.step_worker(process, lookup_of(next(self._tickets), plan, keys, view, BEGINNING, True))

    def evict_at_will(self) -> None:
        """Somebody wants keys of a view to be forgotten, or all of it; or of a view that is not there, or is full."""
        plan = self._lots.choice(self._plans)
        wish = drawn_eviction(next(self._tickets), plan, self._river.oracle, KEYS_EVICTED_MAX, self._lots)
        keys = "all" if wish.keys is None else len(wish.keys)
        self._happened("evictions_wanted", f"eviction {wish.ticket} of {plan.name}, {keys} keys")
        self._river.wants(wish)

    def give_up(self) -> None:
        process = self._lots.choice(self._river.running)
        if process.waiting:
            ticket = self._lots.choice(list(process.waiting))
            self._happened("lookups_given_up", f"{process} is not asked any more: {ticket}")
            self._river.step_worker(process, LookupGivenUp(ticket=ticket))

    def scan(self) -> None:
        view, ticket = drawn_view(self._plans, self._lots), next(self._tickets)
        self._happened("scans_asked", f"scan {ticket} of {view}")
        self._river.wants(SnapshotAsked(ticket=ticket, view=view))
