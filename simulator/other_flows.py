"""The observer of flows beside each other: an event of one changes no other, and one that is gone stays gone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from simulator import checkers
from simulator.checkers import require
from simulator.process import Process
from upriver.ids import FlowId
from upriver.protocol.messages import DropFlow, ForShare, OfShare
from upriver.protocol.worker_events import Report, ShareHears, ShareWants, WorkerAction, WorkerEvent
from upriver.worker.serving import Serving


@dataclass(frozen=True, slots=True)
class OtherFlows:
    """What must not change at a process by an event. flow: that it is for; ``None``: for all. is_late: the process was
    told that this one is gone. kept: by region, the keys that others keep of partial views, if a share comes or goes.
    """

    flow: FlowId | None
    is_late: bool = False
    kept: Mapping[str, object] | None = None

    @classmethod
    def before(cls, process: Process, event: WorkerEvent) -> Self:
        """What there is before the event."""
        if not isinstance(event, ForShare | ShareHears | DropFlow):
            return cls(None)
        changes = isinstance(event, DropFlow) or event.flow not in process.parts
        return cls(event.flow, event.flow in process.gone, _kept(process, event.flow) if changes else None)

    def check(self, process: Process, actions: Sequence[WorkerAction], *, have_room: bool) -> None:
        """Look at what there is after it. have_room: memory is not scarce; else others may take what one leaves."""
        if self.flow is None:
            return
        if self.is_late:
            require(checkers.what_is_late_changes_nothing, actions)
        wants = {action.flow for action in actions if isinstance(action, ShareWants)}
        said = [action.message for action in actions if isinstance(action, Report)]
        told = wants | {message.flow for message in said if isinstance(message, OfShare)}
        before = {} if self.kept is None else self.kept
        after = {} if self.kept is None else _kept(process, self.flow)
        require(checkers.others_do_not_notice, told - {self.flow} if have_room else (), before, after)


def _kept(process: Process, flow: FlowId) -> dict[str, object]:
    """By region, the keys that shares of other flows keep of partial views."""
    phases = [share.phase for number, share in process.machine.shares.items() if number != flow]
    shards = [item for phase in phases if isinstance(phase, Serving) for item in phase.regions.shards.items()]
    return {name: shard.partial.keys_of(0, 1).tolist() for name, shard in shards if shard.partial is not None}
