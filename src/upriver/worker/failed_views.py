"""A worker's failed views: found, reported, and taken out of use; rules ``views.fail_alone`` and ``views.fail_ahead``.

``docs/internals/failures.md``. A worker that finds a failure tells the coordinator and every peer that it has a channel
to, before any message that lacks the view's state. The coordinator tells all other workers.
"""

from upriver.protocol.messages import FailView, ViewFailed
from upriver.protocol.peers import Envelope, FailedHere
from upriver.protocol.worker_events import Report, SendPeer, WorkerAction
from upriver.state.failure import ViewFailure
from upriver.worker.lookups import refuse_those_who_ask_for
from upriver.worker.serving import Serving


def note_failures(phase: Serving) -> None:
    """Check whether a view has failed since the last look."""
    for share in phase.shares.values():
        if share.failure is not None and share.view not in phase.failed:
            _found(phase, share.view, share.failure)


def failed_elsewhere(phase: Serving, event: FailView) -> None:
    """The coordinator reports a failed view, and its cause counts."""
    _take_out(phase, event.view, event.failure)


def failed_at_peer(phase: Serving, message: FailedHere) -> None:
    """A peer reports a failed view. This worker reports it too: the coordinator may never hear it from the peer."""
    if message.view in phase.views and message.view not in phase.failed:
        _found(phase, message.view, message.failure)


def _found(phase: Serving, view: str, failure: ViewFailure) -> None:
    """Report the failure before all other messages of this step: some of them may lack the view's state."""
    _take_out(phase, view, failure)
    ahead: list[WorkerAction] = [Report(message=ViewFailed(view=view, failure=failure))]
    if phase.rules.views_fail_ahead:  # views.fail_ahead
        content = FailedHere(view=view, failure=failure)
        envelope = Envelope(generation=phase.assignment.generation, content=content)
        peers = () if phase.met is None else sorted(phase.met.peers.keys() - {phase.me})
        ahead += [SendPeer(to=peer, envelope=envelope) for peer in peers if phase.reaches(peer)]
    phase.actions[:0] = ahead


def _take_out(phase: Serving, view: str, failure: ViewFailure) -> None:
    """Drop the view's state, and refuse all lookups that wait for it."""
    if view not in phase.views:
        return
    phase.failed[view] = failure
    regions = [name for name, share in phase.shares.items() if share.view == view]
    for name in regions:
        phase.shares[name].fail(failure)
    for shadow in phase.shadows.values():
        shadow.forget_regions(regions)
    refuse_those_who_ask_for(phase, view, failure.raised())
