"""The coordinator's part of the change log: one version after the other, each through one cut of all flows with logged
views, at all workers; rules
changes.all_parts, changes.keys_stay, changes.given_up_when_torn, changes.settled_before_views_change and
changes.noted_from_the_cut.

``docs/internals/changes.md``. The changes through a cut are requested, written by every worker, and published. If that
fails it is given up: workers keep all changes until they are in the log, so the next version has them.
"""

from dataclasses import dataclass, field

from upriver.coordinator.cluster import Cluster, ServedFlow
from upriver.ids import Epoch, FlowId, WorkerId
from upriver.protocol.coordinator_events import ChangesPublished, ChangesUnpublished, PublishChanges
from upriver.protocol.messages import ChangesLogged, ChangesNotWritten, ChangesWritten, TakeChanges
from upriver.state.changes import ChangePart


@dataclass(slots=True, kw_only=True)
class TakingChanges:
    """Changes on their way into the log. at: the epoch through which. begins: the views whose log begins with them.
    untold: the flows whose workers were not asked, since they do not stand at the cut. parts: those of each flow at
    each worker that has written its part. is_whole: all have."""

    number: int
    at: Epoch
    views: tuple[str, ...]
    begins: tuple[str, ...]
    flows: frozenset[FlowId]
    untold: set[FlowId]
    workers: tuple[WorkerId, ...]
    parts: dict[tuple[FlowId, WorkerId], tuple[ChangePart, ...]] = field(default_factory=dict)
    is_whole: bool = False

    def has_all(self) -> bool:
        """Whether every flow has its part of every worker."""
        return self.parts.keys() >= {(flow, worker) for flow in self.flows for worker in self.workers}


class ChangePublication:
    """Publishes changes. Through which epoch the log has them is in each flow's ledger."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._last = 0
        self._taking: TakingChanges | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no worker has yet to write its part, so that keys may move (changes.keys_stay)."""
        return self._taking is None or self._taking.is_whole or not self._cluster.rules.changes_keys_stay

    @property
    def is_settled(self) -> bool:
        """Whether no changes are on their way into the log, so that views may change
        (changes.settled_before_views_change)."""
        return self._taking is None or not self._cluster.rules.changes_settled_before_views_change

    @property
    def cuts(self) -> list[Epoch]:
        """The epoch as of whose end changes are being taken, if any are."""
        return [] if self._taking is None else [self._taking.at]

    @property
    def standing(self) -> tuple[int, int, bool] | None:
        """How far the changes are that are on their way into the log."""
        taking = self._taking
        return None if taking is None else (taking.number, len(taking.untold), taking.is_whole)

    def holds(self, flow: ServedFlow) -> bool:
        """Whether the flow opens no epoch, because its workers stand at the cut, or beyond."""
        taking = self._taking
        return taking is not None and flow.id in taking.untold and flow.ledger.through >= taking.at

    def begin(self) -> None:
        """Take the changes since the last version, if there may be any. Nothing else is under way. No worker can be
        past the cut: it is the last epoch that any of these flows has opened."""
        flows = [flow for flow in self._cluster if self._takes_part(flow)]
        if self._taking is not None or not flows or not all(flow.is_complete() for flow in flows):
            return
        at = Epoch(max(flow.ledger.through if flow.in_step else flow.opened for flow in flows))
        if any(flow.in_step and not (flow.can_be_cut() or flow.ledger.through < at) for flow in flows):
            return
        through = {
            view: known for flow in flows for view, known in flow.ledger.logged.items() if self._goes_on(flow, view, at)
        }
        begins = tuple(view for view, known in through.items() if known is None)
        if not through or (not begins and all(known is not None and known >= at for known in through.values())):
            return
        self._last += 1
        named = frozenset(flow.id for flow in flows if flow.ledger.logged.keys() & through.keys())
        self._taking = TakingChanges(
            number=self._last,
            at=at,
            views=tuple(through),
            begins=begins,
            flows=named,
            untold=set(named),
            workers=self._cluster.workers,
        )
        self.go_on()

    def go_on(self) -> None:
        """Ask the flows whose workers go one by one, and of the others those that stand at the cut."""
        taking = self._taking
        if taking is None:
            return
        for flow in self._cluster:
            stands = not flow.in_step or (flow.can_be_cut() and flow.ledger.through == taking.at)
            if flow.id in taking.untold and stands:
                taking.untold.discard(flow.id)
                begins = tuple(view for view in taking.begins if view in flow.ledger.logged)
                for worker in taking.workers:
                    flow.tell(flow.members[worker], TakeChanges(taking=taking.number, at=taking.at, begins=begins))

    def _takes_part(self, flow: ServedFlow) -> bool:
        """Whether the flow has logged views. While it is built, their logs have not begun."""
        return bool(flow.ledger.logged) and not flow.is_building

    def _goes_on(self, flow: ServedFlow, view: str, at: Epoch) -> bool:
        """Whether the view has not failed, and its log, if it begins, does so after the last one of this name: a reader
        of that must not take its versions for those of the new one."""
        ledger = flow.ledger
        is_later = ledger.logged[view] is not None or at > ledger.log_ends.get(view, -1)
        return view not in flow.failed and is_later

    def written(self, flow: ServedFlow, worker: WorkerId, message: ChangesWritten) -> None:
        """A worker's part is in the lake. The last part makes the changes whole."""
        taking = self._of(message.taking)
        if taking is None or taking.is_whole:
            return
        taking.parts[flow.id, worker] = message.parts
        if not taking.has_all() and self._cluster.rules.changes_all_parts:
            return
        taking.is_whole = True
        if self._cluster.rules.changes_noted_from_the_cut:
            for each in self._cluster:
                begins = dict.fromkeys(each.ledger.logged.keys() & set(taking.begins), taking.at)
                each.ledger.begin_logs(begins)
        parts = tuple(part for key in sorted(taking.parts) for part in taking.parts[key])
        self._cluster.act(
            PublishChanges(taking=taking.number, at=taking.at, views=taking.views, begins=taking.begins, parts=parts)
        )

    def not_written(self, message: ChangesNotWritten) -> None:
        if self._of(message.taking) is not None:
            self.forget()

    def published(self, event: ChangesPublished) -> None:
        """Readers of the log have the changes from now on, and workers may forget them."""
        taking = self._of(event.taking)
        if taking is not None:
            self._log(taking)

    def unpublished(self, event: ChangesUnpublished) -> None:
        if self._of(event.taking) is not None:
            self.forget()

    def _log(self, taking: TakingChanges) -> None:
        self.forget()
        for flow in self._cluster:
            through = flow.ledger.extend_logs(taking.views, taking.at)
            if through:
                flow.tell_all(ChangesLogged(through=through))

    def torn(self) -> None:
        """changes.given_up_when_torn: a worker is lost, or all begin anew. Changes that are whole are published all the
        same."""
        is_whole = self._taking is not None and self._taking.is_whole
        if not is_whole and self._cluster.rules.changes_given_up_when_torn:
            self.forget()

    def forget(self) -> None:
        """The changes are in the log, or given up."""
        self._taking = None
        for flow in self._cluster:
            flow.ledger.begin_logs({})

    def _of(self, number: int) -> TakingChanges | None:
        return self._taking if self._taking is not None and self._taking.number == number else None
