"""The account of a flow's epochs: rows that went in, rows that came to each region, and the epochs that ended; rules
coordinator.all_workers_finish, coordinator.rows_have_arrived, coordinator.late_reports_change_nothing and
views.fail_miscounted.

Without exchange edges, an epoch has ended when every worker has read its slices, and as many rows have come to each
region as its lake edges promise. With exchange edges, it then goes through stages, one for each depth of regions. In a
stage, every worker takes in the rows that its regions of that depth have gathered, and sends the results to deeper
ones. A stage is over when every worker says so, and all rows sent to its regions are taken in, and all that left them
have arrived.

Workers report totals, which only grow, so the ledger keeps the highest. A report that comes late or twice, or of an
epoch that has ended, changes nothing. Rows that cannot be right are a fault: more than went in, fewer than were
published, or more of an epoch that has ended. The view whose region they have come to fails, and its counts hold no
epoch up.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from upriver.coordinator.published import PublishedEpochs
from upriver.errors import ProtocolError
from upriver.ids import BEGINNING, Channel, Epoch, WorkerId, preceding
from upriver.plan.flows import stages_of
from upriver.plan.plan import DataflowPlan, view_of
from upriver.plan.schemas import rows_from_bytes
from upriver.protocol.messages import NO_STAGE, EpochFinished, RowsApplied, RowsSettled, StageDone
from upriver.protocol.rules import Rules

ENDED_ACCOUNTS_MAX = 16
"""Accounts of ended epochs that are kept, to tell a late report from a miscount."""


@dataclass(slots=True)
class Work:
    """One worker's work on an epoch, by region. is_read: it has read its slices. stage: the last one that it has done.
    aged: by channel, as in ``EpochRead``."""

    is_read: bool = False
    aged: Mapping[Channel, int] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    settled: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    stage: int = NO_STAGE


@dataclass(frozen=True, slots=True)
class LoggedVersions:
    """The change logs that a driver finds in the lake. found: the last version of each that goes on with the views
    declared. ended: the last version of every log there has ever been, by view."""

    found: Mapping[str, Epoch] = field(default_factory=dict)
    ended: Mapping[str, Epoch] = field(default_factory=dict)


@dataclass(slots=True)
class Account:
    """An epoch. done: the work of each worker that has reported any. stage: the last one that has begun. mixed: keys
    move meanwhile."""

    done: dict[WorkerId, Work] = field(default_factory=dict)
    stage: int = NO_STAGE
    mixed: bool = False

    def applied(self) -> Counter[str]:
        return sum((work.applied for work in self.done.values()), Counter())

    def settled(self) -> Counter[str]:
        return sum((work.settled for work in self.done.values()), Counter())

    def aged(self, channel: Channel) -> int:
        return sum(work.aged.get(channel, 0) for work in self.done.values())

    def sent(self) -> Counter[str]:
        return sum((work.sent for work in self.done.values()), Counter())


class Ledger:
    """epochs: those in the lake, in order. ended: the last that has ever ended. through: the last that has ended
    since all workers began. It is behind ``ended`` while all workers repeat epochs, and ahead of it while places are
    still vacant."""

    def __init__(
        self,
        plans: Sequence[DataflowPlan],
        rules: Rules,
        logs: LoggedVersions | None = None,
        epochs: PublishedEpochs | None = None,
    ) -> None:
        """logs: the change logs in the lake. epochs: those that are there already; ``None``: none are."""
        self.epochs = epochs or PublishedEpochs()
        self.ended = Epoch(0)
        self.through = Epoch(0)
        self.deepest = 0
        self._channels: dict[str, list[Channel]] = {}
        """By region: the lake edges that feed it."""
        self._constants: dict[Channel, int] = {}
        """The rows of constant edges, which the first epoch has."""
        self._depths: Mapping[str, int] = {}
        self._take(plans)
        self._rules = rules
        logs = logs or LoggedVersions()
        self.logged: dict[str, Epoch | None] = {}
        """By logged view: the last version in its change log; ``None`` before the log begins."""
        self.logged.update((plan.name, logs.found.get(plan.name)) for plan in plans if plan.logs_changes)
        self.log_begins: dict[str, Epoch] = {}
        """By view whose change log begins with changes that the driver is committing: the first version."""
        self.log_ends: dict[str, Epoch] = dict(logs.ended)
        """The last version of every log that had ended when this one began, by view."""
        self._accounts: dict[Epoch, Account] = {}
        """All and only the epochs that have not ended, and that a worker has reported on or that were opened mixed."""
        self._ended_accounts: dict[Epoch, Account] = {}
        """The last ``ENDED_ACCOUNTS_MAX`` epochs that have ended, since all workers began."""
        self._miscounted: dict[str, str] = {}
        """By view whose counts are wrong, and count no more: what is wrong."""

    @property
    def noted(self) -> dict[str, Epoch | None]:
        """By logged view: the version after which a worker that begins notes changes; ``None``: not at all."""
        return {**self.logged, **self.log_begins}

    def end_log(self, view: str) -> Epoch | None:
        """A view's changes are logged no more. Returns the last version of its log, if it has begun."""
        return self.logged.pop(view, None)

    def begin_logs(self, begins: Mapping[str, Epoch]) -> None:
        """The driver is committing the first changes of these views' logs. begins: the first version, by view."""
        self.log_begins = dict(begins)

    def extend_logs(self, views: Collection[str], at: Epoch) -> dict[str, Epoch]:
        """The logs of these views have all changes through a version. Returns those that are logged still."""
        through = {view: at for view in views if view in self.logged}
        self.logged.update(through)
        return through

    def _take(self, plans: Sequence[DataflowPlan]) -> None:
        regions = [region for plan in plans for region in plan.spread]
        self._depths = stages_of(plans)
        self.deepest = max(self._depths.values(), default=0)
        self._channels = {region.name: [channel for _, channel in region.lake_ports] for region in regions}
        self._constants = {
            channel: rows_from_bytes(edge.rows).num_rows for plan in plans for channel, edge in plan.constants.items()
        }

    @property
    def is_staged(self) -> bool:
        """Whether rows are exchanged."""
        return self.deepest > 0

    @property
    def published(self) -> Epoch:
        """The last epoch in the lake."""
        return self.epochs.last

    @property
    def next(self) -> Epoch | None:
        """The epoch after the last that has ended; ``None`` if it is not published."""
        return self.epochs.following(self.through)

    def share_of_rows(self, through: Epoch) -> float:
        """Of the rows that are there to read, the share up to this epoch."""
        channels = {channel for channels in self._channels.values() for channel in channels}
        return self.epochs.share_of_rows(channels, through)

    @property
    def miscounted(self) -> Mapping[str, str]:
        """By view whose rows are miscounted since all workers began: what is wrong."""
        return self._miscounted

    def pass_over(self) -> None:
        """Skip the published epochs. No worker has begun, and none needs to read them: lookups fill keys from the lake.
        The skipped epochs end when there is a worker in every place."""
        self.through = self.published
        self.epochs.forget()
        self._accounts.clear()

    def end_what_was_passed_over(self) -> list[Epoch]:
        """End the skipped epochs, and return the last of them, if there are any."""
        passed = [self.through] if self.through > self.ended else []
        self.ended = Epoch(max(self.ended, self.through))
        return passed

    def open_mixed(self, epoch: Epoch) -> None:
        """Rows of this epoch may be applied at other workers than those that read them."""
        self._account(epoch).mixed = True

    def finished(self, worker: WorkerId, message: EpochFinished) -> None:
        """A worker has read its slices."""
        work = self._work(worker, message.epoch)
        if work is None:
            return
        if not (work.is_read and self._rules.coordinator_late_reports_change_nothing):
            work.is_read, work.aged = True, message.aged
        self._keep_highest(work.applied, message.applied)

    def applied(self, worker: WorkerId, message: RowsApplied) -> None:
        """Rows of an epoch came to a worker after it had finished."""
        self._count(worker, message.epoch, applied=message.applied)

    def settled(self, worker: WorkerId, message: RowsSettled) -> None:
        """A worker has taken in the rows that it had gathered, and has sent the results."""
        self._count(worker, message.epoch, settled=message.settled, sent=message.sent)

    def stage_done(self, worker: WorkerId, message: StageDone) -> None:
        work = self._work(worker, message.epoch)
        if work is None:
            return
        if not self._rules.coordinator_late_reports_change_nothing:
            work.stage = message.stage
        elif message.stage <= self._accounts[message.epoch].stage:
            work.stage = max(work.stage, message.stage)

    def _count(self, worker: WorkerId, epoch: Epoch, **totals: Mapping[str, int]) -> None:
        """A worker reports totals of an epoch, by the kind of row."""
        work = self._work(worker, epoch)
        if work is not None:
            for kind, rows in totals.items():
                self._keep_highest(getattr(work, kind), rows)
            return
        ended = self._ended_accounts.get(epoch, Account()).done.get(worker)
        if ended is None:
            return  # before all workers began, or too long ago for any row to be on its way
        for kind, rows in totals.items():
            for region, total in rows.items():
                if total > getattr(ended, kind)[region]:
                    self._is_wrong(region, f"worker {worker} has {kind} more rows of epoch {epoch}, which has ended")

    def _keep_highest(self, kept: Counter[str], totals: Mapping[str, int]) -> None:
        for region, total in totals.items():
            if total > kept[region] or not self._rules.coordinator_late_reports_change_nothing:
                kept[region] = total

    def _is_wrong(self, region: str, what: str) -> None:
        """views.fail_miscounted: the rows of a region are miscounted, so its view fails. Raises ProtocolError if the
        rule is off."""
        if not self._rules.views_fail_miscounted:
            raise ProtocolError(f"{what} (region {region!r})")
        if region in self._depths:
            self._miscounted.setdefault(view_of(region), f"{what} (region {region!r})")

    def _is_counted(self, region: str) -> bool:
        return view_of(region) not in self._miscounted

    def forget(self, worker: WorkerId) -> None:
        """The worker's incarnation is lost, and what it applied with it."""
        for account in (*self._accounts.values(), *self._ended_accounts.values()):
            account.done.pop(worker, None)

    def start_anew(self, at: Epoch = BEGINNING) -> None:
        """All workers begin anew with the state as of the end of epoch ``at``."""
        self._accounts.clear()
        self._ended_accounts.clear()
        self._miscounted.clear()
        if self.is_staged:
            self.through = at

    def resume(self, at: Epoch) -> None:
        """No worker has begun, and all will begin with the state as of the end of epoch ``at``."""
        self.through = at

    def stage_due(self, workers: Collection[WorkerId]) -> tuple[Epoch, int] | None:
        """Begin the next stage if it can begin, and return it. workers: all that must take part."""
        epoch = self.next if self._accounts else None
        account = None if epoch is None else self._accounts.get(epoch)
        if epoch is None or account is None or account.stage == self.deepest or not self.is_staged:
            return None
        if not self._is_over(epoch, account, workers):
            return None
        account.stage += 1
        return epoch, account.stage

    def end(self, workers: Collection[WorkerId]) -> list[Epoch]:
        """The epochs that have ended by now. workers: all that must finish one."""
        ended: list[Epoch] = []
        while self._accounts and (epoch := self.next) in self._accounts:
            account = self._accounts[epoch]
            if self._rules.coordinator_all_workers_finish:
                if not self._is_over(epoch, account, workers):
                    break
                if self.is_staged and account.stage < self.deepest:
                    break
            self._ended_accounts[epoch] = self._accounts.pop(epoch)
            if len(self._ended_accounts) > ENDED_ACCOUNTS_MAX:
                del self._ended_accounts[next(iter(self._ended_accounts))]
            self.through = epoch
            self.ended = Epoch(max(self.ended, epoch))
            ended.append(epoch)
        return ended

    def _is_over(self, epoch: Epoch, account: Account, workers: Collection[WorkerId]) -> bool:
        """Whether the epoch's current stage is over; before the first stage, whether all its rows were read."""
        if any(worker not in account.done or not account.done[worker].is_read for worker in workers):
            return False
        if any(account.done[worker].stage < account.stage for worker in workers):
            return False
        sent, settled = account.sent(), account.settled()
        begun = [region for region, depth in self._depths.items() if depth <= account.stage]
        waits = any(settled[region] != sent[region] for region in begun if self._is_counted(region))
        if self._is_on_its_way(epoch, account, sent, waits):
            return False
        here = [region for region in begun if self._depths[region] == account.stage]
        for region in here:
            if settled[region] > sent[region]:
                what = f"{settled[region]} rows are settled, and {sent[region]} were sent"
                self._is_wrong(region, f"epoch {epoch}: {what}")
        return all(settled[region] == sent[region] for region in here if self._is_counted(region))

    def _is_on_its_way(self, epoch: Epoch, account: Account, sent: Counter[str], waits: bool) -> bool:
        """Whether rows of the epoch have yet to arrive. waits: some rows are not taken in whose stage has begun."""
        short = False
        applied, rows = account.applied(), self._rows(epoch)
        for region, channels in self._channels.items():
            went_in = sum(rows.get(channel, 0) + account.aged(channel) for channel in channels) + sent[region]
            more = applied[region] > went_in and not (account.mixed and waits)  # a sender may report late
            fewer = applied[region] < went_in and not account.mixed and account.stage == NO_STAGE  # later, some travel
            if more or fewer:
                self._is_wrong(region, f"epoch {epoch}: {applied[region]} rows have come, and {went_in} went in")
            short |= applied[region] != went_in and self._is_counted(region)
        return short and (account.stage == NO_STAGE or self._rules.coordinator_rows_have_arrived)

    def _rows(self, epoch: Epoch) -> Mapping[Channel, int]:
        """The rows of an epoch, or of a segment, by lake edge."""
        published = self.epochs[epoch]
        first = preceding(epoch, published.after) == BEGINNING
        return {**published.rows, **self._constants} if first else published.rows

    def _account(self, epoch: Epoch) -> Account:
        return self._accounts.setdefault(epoch, Account())

    def _work(self, worker: WorkerId, epoch: Epoch) -> Work | None:
        """``None`` if the epoch has ended."""
        return self._account(epoch).done.setdefault(worker, Work()) if epoch > self.through else None
