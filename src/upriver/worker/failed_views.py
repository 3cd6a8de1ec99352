"""A worker's failed views: found, reported, and taken out of use; rules ``views.fail_alone``, ``views.fail_ahead`` and
``views.fail_readers``.

``docs/internals/failures.md``. A worker that finds a failure tells the coordinator and every peer that it has a channel
to, before any message that lacks the view's state. The coordinator tells all other workers.
"""

from upriver.protocol.messages import FailView, ViewFailed
from upriver.protocol.peers import FailedHere
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import Report, ShareAction
from upriver.state.failure import ViewFailure
from upriver.worker.lookups import Lookups
from upriver.worker.peers import KnownPeers, StepOutput
from upriver.worker.regions import Regions
from upriver.worker.replication import Replication


class FailedViews:
    """Takes failed views out of use."""

    def __init__(
        self,
        regions: Regions,
        peers: KnownPeers,
        replication: Replication,
        lookups: Lookups,
        output: StepOutput,
        rules: Rules,
    ) -> None:
        self._regions = regions
        self._peers = peers
        self._replication = replication
        self._lookups = lookups
        self._output = output
        self._rules = rules

    def note(self) -> None:
        """Check whether a view has failed since the last look."""
        for shard in self._regions.shards.values():
            if shard.failure is not None and shard.view not in self._regions.failed:
                self._found(shard.view, shard.failure)

    def fail_all(self, error: Exception) -> None:
        """A step has failed, and it is not known which view is at fault: all fail (flows.fail_alone)."""
        for view in self._regions.views:
            if view not in self._regions.failed:
                self._regions.fail_shards(view, ViewFailure.of(error, f"view {view!r}"))
        self.note()

    def failed_elsewhere(self, event: FailView) -> None:
        """The coordinator reports a failed view, and its cause counts."""
        self._take_out(event.view, event.failure)

    def failed_at_peer(self, message: FailedHere) -> None:
        """A peer reports a failed view. This worker reports it too: the coordinator may never hear it from the peer."""
        if message.view in self._regions.views and message.view not in self._regions.failed:
            self._found(message.view, message.failure)

    def _found(self, view: str, failure: ViewFailure) -> None:
        """Report the failure, and those of the view's readers, before all other messages of this step: some of them may
        lack the view's state."""
        readers = self._regions.readers(view) if self._rules.views_fail_readers else ()  # views.fail_readers
        ahead: list[ShareAction] = []
        for name, cause in failure.with_readers(view, readers).items():
            self._take_out(name, cause)
            ahead.append(Report(message=ViewFailed(view=name, failure=cause)))
            if self._rules.views_fail_ahead:  # views.fail_ahead
                content = FailedHere(view=name, failure=cause)
                ahead += [self._output.to_peer(peer, content) for peer in self._peers.reached]
        self._output.put_first(ahead)

    def _take_out(self, view: str, failure: ViewFailure) -> None:
        """Drop the view's state, and refuse all lookups that wait for it."""
        if view not in self._regions.views:
            return
        self._replication.forget_regions(self._regions.fail_view(view, failure))
        self._lookups.refuse_view(view, failure.raised())
