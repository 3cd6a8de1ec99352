"""The coordinator's part of the change log: one version after the other, each through a cut of all workers; rules
changes.all_parts, changes.keys_stay, changes.given_up_when_torn, changes.settled_before_views_change and
changes.noted_from_the_cut.

``docs/internals/changes.md``. The changes through a cut are requested, written by every worker, and published. If that
fails it is given up: workers keep all changes until they are in the log, so the next version has them.
"""

from dataclasses import dataclass, field

from upriver.coordinator.cluster import Cluster, Member
from upriver.ids import Epoch, WorkerId
from upriver.protocol.coordinator_events import ChangesPublished, ChangesUnpublished, PublishChanges
from upriver.protocol.messages import ChangesLogged, ChangesNotWritten, ChangesWritten, TakeChanges
from upriver.state.changes import ChangePart


@dataclass(slots=True, kw_only=True)
class TakingChanges:
    """Changes on their way into the log. at: the epoch through which. begins: the views whose log begins with them.
    parts: those of each worker that has written its part. is_whole: all workers have."""

    number: int
    at: Epoch
    views: tuple[str, ...]
    begins: tuple[str, ...]
    workers: tuple[WorkerId, ...]
    parts: dict[WorkerId, tuple[ChangePart, ...]] = field(default_factory=dict)
    is_whole: bool = False


class ChangePublication:
    """Publishes changes. Through which epoch the log has them is in the ledger."""

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

    def begin(self) -> None:
        """Take the changes since the last version, if there may be any. Nothing else is under way; no worker can be
        past the cut."""
        cluster, ledger = self._cluster, self._cluster.ledger
        if self._taking is not None or not ledger.logged or not cluster.can_be_cut():
            return
        at = ledger.through if cluster.in_step else cluster.opened
        logged = {view: through for view, through in ledger.logged.items() if self._goes_on(view, at)}
        begins = tuple(view for view, through in logged.items() if through is None)
        if not logged or (not begins and all(through is not None and through >= at for through in logged.values())):
            return
        self._last += 1
        self._taking = TakingChanges(
            number=self._last, at=at, views=tuple(logged), begins=begins, workers=cluster.workers
        )
        for worker in cluster.workers:
            cluster.tell(cluster.members[worker], TakeChanges(taking=self._last, at=at, begins=begins))

    def _goes_on(self, view: str, at: Epoch) -> bool:
        """Whether the view has not failed, and its log, if it begins, does so after the last one of this name: a reader
        of that must not take its versions for those of the new one."""
        ledger = self._cluster.ledger
        is_later = ledger.logged[view] is not None or at > ledger.log_ends.get(view, -1)
        return view not in self._cluster.failed and is_later

    def written(self, member: Member, message: ChangesWritten) -> None:
        """A worker's part is in the lake. The last part makes the changes whole."""
        taking = self._of(message.taking)
        if taking is None or taking.is_whole:
            return
        taking.parts[member.worker] = message.parts
        if taking.parts.keys() < set(taking.workers) and self._cluster.rules.changes_all_parts:
            return
        taking.is_whole = True
        if self._cluster.rules.changes_noted_from_the_cut:
            self._cluster.ledger.begin_logs(dict.fromkeys(taking.begins, taking.at))
        parts = tuple(part for worker in sorted(taking.parts) for part in taking.parts[worker])
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
        through = self._cluster.ledger.extend_logs(taking.views, taking.at)
        self._cluster.tell_all(ChangesLogged(through=through))

    def torn(self) -> None:
        """changes.given_up_when_torn: a worker is lost, or all begin anew. Changes that are whole are published all the
        same."""
        is_whole = self._taking is not None and self._taking.is_whole
        if not is_whole and self._cluster.rules.changes_given_up_when_torn:
            self.forget()

    def forget(self) -> None:
        """The changes are in the log, or given up; or the views have changed."""
        self._taking = None
        self._cluster.ledger.begin_logs({})

    def _of(self, number: int) -> TakingChanges | None:
        return self._taking if self._taking is not None and self._taking.number == number else None
