"""A worker's fills: rows that upqueries and cones have read are taken in, and lookups that wait for them are answered;
``docs/internals/partial.md``."""

from collections.abc import Callable, Sequence

from upriver.errors import IllegalEvent
from upriver.partial.cone import Cone, ConeReads
from upriver.partial.partial_region import PartialRegion, UnansweredKeys
from upriver.protocol.messages import Counted, KeysUnfilled
from upriver.protocol.worker_events import KeysRead, KeysUnread, RowsFetched, RowsUnfetched, TimeToTakeIn
from upriver.state.failure import ViewFailure
from upriver.worker.distributors import Distributors
from upriver.worker.epochs import Epochs
from upriver.worker.lookups import Lookups
from upriver.worker.peers import StepOutput
from upriver.worker.regions import Regions
from upriver.worker.upqueries import Upqueries


class Fills:
    """Takes in the rows that were read from the lake for missing keys."""

    def __init__(
        self,
        regions: Regions,
        upqueries: Upqueries,
        lookups: Lookups,
        distributors: Distributors,
        epochs: Epochs,
        output: StepOutput,
    ) -> None:
        self._regions = regions
        self._upqueries = upqueries
        self._lookups = lookups
        self._distributors = distributors
        self._epochs = epochs
        self._output = output

    def keys_read(self, event: KeysRead | KeysUnread) -> None:
        """An upquery has its rows, or has failed. The next one begins, and waiting lookups are answered."""
        if event.generation != self._upqueries.refilled_since or self._regions.shards[event.region].failure is not None:
            return  # all have begun anew since, or the view has failed
        shard = self._regions.shards[event.region]
        partial = shard.partial
        left_open: Sequence[UnansweredKeys] | None = ()
        if not isinstance(partial, PartialRegion):
            raise IllegalEvent(f"an answer for region {event.region!r}, which has asked nothing")
        with shard.contained("filling keys"):
            if isinstance(event, KeysRead):
                left_open = partial.answer(event.number, event.rows, event.through, event.rows_max, event.clock)
            else:
                left_open = partial.refuse(event.number, event.error)
        self._continue(event.region, left_open)

    @property
    def unfilled(self) -> int:
        """About how many rows of upqueries' answers are not taken in yet."""
        return sum(partial.unfilled for _, partial in self._filling())

    def time_to_take_in(self, event: TimeToTakeIn) -> None:
        """Take in some more rows of an upquery's answer, or of those that a cone has read."""
        filling = self._filling()
        if not filling:
            return
        region, partial = min(filling, key=lambda each: each[1].unfilled)  # short answers overtake long ones
        if isinstance(partial, Cone):
            self._continue_cone(region, partial, lambda: partial.take_in(event.rows_max))
            return
        left_open: Sequence[UnansweredKeys] | None = ()
        with self._regions.shards[region].contained("filling keys"):
            left_open = partial.fill(event.rows_max)
        self._continue(region, left_open)

    def _filling(self) -> list[tuple[str, PartialRegion | Cone]]:
        shards = self._regions.shards.items()
        partial = [(name, shard.partial) for name, shard in shards if shard.failure is None]
        return [(name, region) for name, region in partial if region is not None and region.unfilled]

    def _continue(self, region: str, left_open: Sequence[UnansweredKeys] | None) -> None:
        """Rows of an answer were taken in, or cannot be. The next upquery begins if it may. left_open: the keys that
        could not be filled; ``None`` if more rows are left."""
        shard = self._regions.shards[region]
        partial = shard.partial
        if left_open is None:
            self._upqueries.begin(region)
            return
        self._refuse_unanswered(region, left_open)
        self._output.report(Counted(stats=self._regions.stats_after(region)))
        if shard.failure is not None or not isinstance(partial, PartialRegion):
            return
        self._upqueries.end(region, partial)
        self._distributors.ask_again()

    def _refuse_unanswered(self, view: str, left_open: Sequence[UnansweredKeys]) -> None:
        """Refuse lookups of keys that cannot be filled, and report the last failure to the coordinator."""
        for unanswered in left_open:
            error = type(unanswered.error)(f"view {view!r}: {unanswered.error}")
            self._lookups.refuse_keys(view, unanswered.keys, error)
        if left_open:
            failure = ViewFailure.of(left_open[-1].error, f"view {view!r}")
            self._output.report(KeysUnfilled(view=view, failure=failure))

    def rows_fetched(self, event: RowsFetched | RowsUnfetched) -> None:
        """A task of a cone goes on, and the next ones begin."""
        if event.generation != self._upqueries.refilled_since or event.view in self._regions.failed:
            return  # all have begun anew since, or the view has failed
        cone = self._regions.cones.get(event.view)
        if cone is None:
            raise IllegalEvent(f"rows for view {event.view!r}, which has asked for none")
        if isinstance(event, RowsFetched):
            self._continue_cone(event.view, cone, lambda: cone.proceed(event.task, event.rows, event.rows_max))
        else:
            self._continue_cone(event.view, cone, lambda: cone.proceed_without(event.task, event.error))

    def _continue_cone(self, view: str, cone: Cone, step: Callable[[], Sequence[ConeReads]]) -> None:
        """A task of a cone goes on by this step. If it is done, lookups may have their keys, and an epoch may be
        over."""
        shard, done = self._regions.shards[view], cone.done
        reads: Sequence[ConeReads] = ()
        with shard.contained("reading the lake"):
            reads = step()
        if shard.failure is not None:
            return
        self._upqueries.fetch(view, reads)
        self._upqueries.work_on(view, cone)
        if cone.done == done or shard.failure is not None:
            return
        self._refuse_unanswered(view, cone.unanswered())
        self._output.report(Counted(stats=self._regions.stats_after(view)))
        self._epochs.finish()  # waiting lookups get the epoch that the cone has come to
        self._distributors.ask_again()
