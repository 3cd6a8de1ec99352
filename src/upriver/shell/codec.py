"""The machines' messages as wire messages, and back. JSON all the way: nothing is unpickled."""

from collections.abc import Mapping
from typing import Any

from upriver.dataflow.plan import ViewPlan
from upriver.errors import ProtocolError
from upriver.ids import Channel, Epoch, SnapshotId, VnodeId, WorkerId
from upriver.machines.messages import (
    Assign,
    DropSnapshot,
    EpochFinished,
    FromWorker,
    OpenEpoch,
    Retire,
    SnapshotTaken,
    TakeSnapshot,
    ToWorker,
    WorkerFailed,
)
from upriver.shell.wire import Message


def encode(message: ToWorker | FromWorker) -> Message:
    """A machine's message for the wire; its class name is the kind."""
    return Message(type(message).__name__, _fields(message))


def _fields(message: ToWorker | FromWorker) -> dict[str, Any]:
    match message:
        case Assign():
            return {
                "worker": message.worker,
                "vnodes_total": message.vnodes_total,
                "vnodes": list(message.vnodes),
                "plans": [plan.to_json() for plan in message.plans],
                "serve_from": message.serve_from,
            }
        case OpenEpoch():
            return {"epoch": message.epoch}
        case TakeSnapshot():
            return {"snapshot": message.snapshot, "view": message.view, "at": message.at}
        case DropSnapshot():
            return {"snapshot": message.snapshot}
        case Retire():
            return {}
        case EpochFinished():
            stats = {view: dict(numbers) for view, numbers in message.stats.items()}
            return {"epoch": message.epoch, "received": dict(message.received), "stats": stats}
        case SnapshotTaken():
            return {"snapshot": message.snapshot, "rows": message.rows}
        case WorkerFailed():
            return {"kind": message.kind, "error": message.error}


def decode_to_worker(message: Message) -> ToWorker:
    """What the coordinator says. Raises ProtocolError for anything else."""
    fields: Mapping[str, Any] = message.fields
    match message.kind:
        case "Assign":
            return Assign(
                worker=WorkerId(fields["worker"]),
                vnodes_total=fields["vnodes_total"],
                vnodes=tuple(VnodeId(vnode) for vnode in fields["vnodes"]),
                plans=tuple(ViewPlan.from_json(plan) for plan in fields["plans"]),
                serve_from=Epoch(fields["serve_from"]),
            )
        case "OpenEpoch":
            return OpenEpoch(epoch=Epoch(fields["epoch"]))
        case "TakeSnapshot":
            snapshot, at = SnapshotId(fields["snapshot"]), Epoch(fields["at"])
            return TakeSnapshot(snapshot=snapshot, view=fields["view"], at=at)
        case "DropSnapshot":
            return DropSnapshot(snapshot=SnapshotId(fields["snapshot"]))
        case "Retire":
            return Retire()
    raise ProtocolError(f"the coordinator said {message.kind!r}, which no worker knows")


def decode_from_worker(message: Message) -> FromWorker:
    """What a worker says. Raises ProtocolError for anything else."""
    fields: Mapping[str, Any] = message.fields
    match message.kind:
        case "EpochFinished":
            received = {Channel(channel): int(rows) for channel, rows in fields["received"].items()}
            return EpochFinished(epoch=Epoch(fields["epoch"]), received=received, stats=fields["stats"])
        case "SnapshotTaken":
            return SnapshotTaken(snapshot=SnapshotId(fields["snapshot"]), rows=fields["rows"])
        case "WorkerFailed":
            return WorkerFailed(kind=fields["kind"], error=fields["error"])
    raise ProtocolError(f"a worker said {message.kind!r}, which the coordinator does not know")
