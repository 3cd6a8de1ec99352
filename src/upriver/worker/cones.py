"""A worker's cones: they read the lake by themselves, epoch by epoch and key by key; ``docs/design/partial.md``."""

from upriver.partial.cone import Cone, Reads
from upriver.protocol.worker_events import FetchRows
from upriver.worker.following import Following
from upriver.worker.room import room_of


def work_on_all(phase: Following) -> None:
    """Let every cone that has something to do begin with it."""
    for view, cone in phase.cones.items():
        work_on(phase, view, cone)


def work_on(phase: Following, view: str, cone: Cone) -> None:
    """Let a cone begin with the next thing that it has to do, unless it is at it."""
    reads = None
    with phase.shares[view].contained("reading the lake"):
        reads = cone.work(phase.begun, room_of(phase, view))
    fetch(phase, view, reads)


def fetch(phase: Following, view: str, reads: Reads | None) -> None:
    """Have rows read for a cone, if it needs any."""
    if reads is not None:
        phase.actions.append(FetchRows(generation=phase.refilled_since, view=view, reads=reads))
