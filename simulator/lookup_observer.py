"""The observer of lookups: what each asker is told must be right as of some epoch, and never go back."""

from collections import Counter

from simulator import checkers
from simulator.bad_rows import BadRows
from simulator.checkers import require
from simulator.lake import FakeLake
from simulator.oracle import Oracle, by_key
from simulator.process import Process, SimulatedLookup
from simulator.tables import ORDERED, Key
from simulator.view_observer import ViewObserver
from upriver.errors import UnknownView
from upriver.ids import Epoch
from upriver.protocol.messages import Assign, DropFlow, ForShare, Meet, Resume, Retire
from upriver.protocol.worker_events import Answer, LookupAsked, PeerLost, Refuse, WorkerEvent


class LookupObserver:
    """Raises Violated at the first answer that is wrong.

    doubtful: tickets that nothing can be said about, as some process has answered that had misread an epoch, or that
    was replaced and did not know.
    """

    def __init__(
        self,
        view_observer: ViewObserver,
        lake: FakeLake,
        oracle: Oracle,
        counters: Counter[str],
        bad_rows: BadRows,
    ) -> None:
        self._bad_rows = bad_rows
        self.doubtful: set[int] = set()
        self._view_observer = view_observer
        self._lake = lake
        self._oracle = oracle
        self._counters = counters
        self._seen: dict[tuple[str, Key], Epoch] = {}
        """By view and key: the latest epoch that a lookup has shown."""

    def asks(self, process: Process, lookup: LookupAsked) -> None:
        """A client is about to ask."""
        seen = {key: self._seen.get((lookup.view, key), Epoch(0)) for key in _keys(lookup)}
        process.waiting[lookup.ticket] = SimulatedLookup(lookup, seen)

    def asked(self, process: Process, lookup: LookupAsked) -> None:
        """A client has asked, and may have an answer already."""
        is_waiting = lookup.ticket in process.waiting
        owned = self._is_owned(process, lookup)
        part = process.part_of(lookup.view)
        alone = process.serves and part is not None and part.alone
        require(checkers.lookups_for_others_are_refused_by_who_is_alone, owned, alone, is_waiting)

    def answered(self, process: Process, answer: Answer, is_current: bool) -> None:
        require(checkers.everybody_is_answered_once, answer.ticket, process.waiting)
        asked = process.waiting.pop(answer.ticket)
        part = process.part_of(asked.lookup.view)
        assert part is not None
        is_unknown = not self._oracle.knows(asked.lookup.view, answer.epoch)
        if part.torn or answer.ticket in self.doubtful or is_unknown:
            return  # between the fault of the shell and the end of the epoch, the machine cannot know
        lookup = asked.lookup
        require(checkers.lookups_wait_for_their_epoch, answer.epoch, lookup.at_least)
        if part.alone:
            require(checkers.lookups_wait_for_the_replay, answer.epoch, part.assigned.serve_from)
        told = process.versions.get(lookup.view, answer.version)
        require(checkers.lookups_tell_a_map_no_older_than_before, told, answer.version)
        process.versions[lookup.view] = answer.version
        plan = self._view_observer.possible[lookup.view]
        found = by_key(answer.rows, plan)
        keys = _keys(lookup)
        require(checkers.lookups_give_only_what_was_asked_for, keys, found)
        if plan.name in ORDERED:
            place = plan.schema.get_field_index(ORDERED[plan.name])
            require(checkers.a_keys_rows_are_in_order, found, place)
        for key in keys:
            rows = found.get(key, [])
            epochs = self._oracle.epochs_that_show(plan.name, key, rows, answer.epoch)
            require(checkers.lookups_equal_the_oracle, key, rows, epochs, answer.epoch, self._lake.published)
            if is_current:
                require(checkers.lookups_never_go_back, key, asked.seen[key], epochs)
                seen = plan.name, key
                self._seen[seen] = max(self._seen.get(seen, Epoch(0)), min(epochs))
        if lookup.together:
            then = self._oracle.at(plan.name, answer.epoch)
            expected = {key: then.get(key, []) for key in keys}
            require(
                checkers.keys_are_as_of_one_epoch, {key: found.get(key, []) for key in keys}, expected, answer.epoch
            )
        self._counters["lookups"] += 1
        self._counters["lookups_in_mid_epoch"] += bool(part.unread)

    def refused(self, process: Process, refusal: Refuse, cause: WorkerEvent) -> None:
        require(checkers.everybody_is_answered_once, refusal.ticket, process.waiting)
        lookup = process.waiting.pop(refusal.ticket).lookup
        plan = self._view_observer.possible.get(lookup.view)
        if plan is not None and self._bad_rows.explain(refusal.error, plan, self._lake):
            self._counters["lookups_failed"] += 1
            return
        # Peers may be at other epochs than this process, and then it cannot have their part together with its own.
        part = process.part_of(lookup.view)
        has_all = self._is_owned(process, lookup) if part is None or part.alone else not lookup.together
        owned = part is None or (not part.leaves and has_all)
        is_gone = lookup.view in self._view_observer.left and isinstance(refusal.error, UnknownView)
        known, dismissed = part is not None and not is_gone, self._dismisses(cause, lookup.view)
        require(checkers.lookups_are_refused_for_a_reason, refusal.error, known, process.serves, owned, dismissed)
        self._counters["lookups_refused"] += 1

    def _dismisses(self, event: WorkerEvent, view: str) -> bool:
        """Whether a process may refuse lookups of a view because of this event."""
        match event:
            case ForShare(flow=flow, message=Assign() | Resume()):
                return view in [plan.name for plan in self._view_observer.plans_of(flow)]
            case DropFlow(flow=flow):
                return view in [plan.name for plan in self._view_observer.plans_of(flow)]
        return isinstance(event, Meet | Retire | PeerLost)

    def _is_owned(self, process: Process, lookup: LookupAsked) -> bool:
        """Whether a process that is alone keeps all these keys."""
        vnode_map = process.map_of(lookup.view)
        if vnode_map is None:
            return False
        vnodes = [self._oracle.vnode_of(lookup.view, key) for key in _keys(lookup)]
        return all(vnode_map.owners[vnode] == process.worker for vnode in vnodes)


def _keys(lookup: LookupAsked) -> list[Key]:
    return list(zip(*(column.to_pylist() for column in lookup.keys.columns), strict=True))
