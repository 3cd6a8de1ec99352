"""The coordinator's account of epochs: what was promised, what was applied, what has ended; rule C1."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from upriver.dataflow.plan import ViewPlan
from upriver.errors import ProtocolError
from upriver.ids import Channel, Epoch, WorkerId
from upriver.machines.messages import EpochFinished, RowsApplied


class Ledger:
    """published: the last epoch in the lake. ended: the last of which every row was applied."""

    def __init__(self, plans: Sequence[ViewPlan], waits_for_all: bool) -> None:
        """waits_for_all: rule C1."""
        self.published = Epoch(0)
        self.ended = Epoch(0)
        self._channels = {plan.name: plan.channel for plan in plans}
        self._c1_all_workers_finish = waits_for_all
        self._promised: dict[Epoch, Mapping[str, int]] = {}
        """Rows per view, of all and only the epochs that have not ended."""
        self._finished: dict[Epoch, dict[WorkerId, Counter[str]]] = {}
        """Who has finished such an epoch, and what it has applied of it."""
        self._mixed: set[Epoch] = set()

    def publish(self, epoch: Epoch, rows: Mapping[Channel, int]) -> None:
        """Raises ProtocolError for an epoch that does not follow the last one."""
        if epoch != self.published + 1:
            raise ProtocolError(f"epoch {epoch} was published after {self.published}")
        self.published = epoch
        self._promised[epoch] = {view: rows.get(channel, 0) for view, channel in self._channels.items()}

    def open_mixed(self, epoch: Epoch) -> None:
        """Rows of this epoch may be applied elsewhere than where they are read."""
        self._mixed.add(epoch)

    def finished(self, worker: WorkerId, message: EpochFinished) -> None:
        """A worker has read its slices."""
        if message.epoch > self.ended:
            self._finished.setdefault(message.epoch, {})[worker] = Counter(message.applied)

    def applied(self, worker: WorkerId, message: RowsApplied) -> None:
        """Rows of an epoch came to a worker after it had finished."""
        of_worker = self._finished.get(message.epoch, {}).get(worker)
        if of_worker is None:
            raise ProtocolError(f"worker {worker} has applied more of epoch {message.epoch}, which has ended")
        of_worker.update(message.applied)

    def forget(self, worker: WorkerId) -> None:
        """What an incarnation has applied is lost."""
        for of_workers in self._finished.values():
            of_workers.pop(worker, None)

    def start_anew(self) -> None:
        """All workers begin from nothing."""
        self._finished.clear()
        self._mixed.clear()

    def end(self, workers: Collection[WorkerId]) -> list[Epoch]:
        """The epochs that have ended by now. workers: all that must finish one.

        Raises ProtocolError if an epoch that is not mixed came out with other rows than went in, or a mixed one with
        more: rows were lost or doubled.
        """
        ended: list[Epoch] = []
        while (epoch := Epoch(self.ended + 1)) in self._finished:
            of_workers = self._finished[epoch]
            if self._c1_all_workers_finish:  # C1
                if not of_workers.keys() >= set(workers):
                    break
                if self._is_on_its_way(epoch, sum(of_workers.values(), Counter())):
                    break
            del self._finished[epoch], self._promised[epoch]
            self.ended = epoch
            ended.append(epoch)
        return ended

    def _is_on_its_way(self, epoch: Epoch, applied: Counter[str]) -> bool:
        """Whether rows of the epoch have yet to be applied somewhere."""
        promised = self._promised[epoch]
        short = False
        for view, went_in in promised.items():
            if applied[view] > went_in or (applied[view] < went_in and epoch not in self._mixed):
                raise ProtocolError(
                    f"epoch {epoch}: view {view!r} applied {applied[view]} rows and {went_in} were published"
                )
            short |= applied[view] < went_in
        return short
