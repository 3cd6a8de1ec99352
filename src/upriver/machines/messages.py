"""What the coordinator and a worker say to each other, over one FIFO channel each way."""

from collections.abc import Mapping
from dataclasses import dataclass

from upriver.dataflow.plan import ViewPlan
from upriver.ids import Channel, Epoch, SnapshotId, VnodeId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """The first message to a new incarnation: who it is and what it keeps.

    vnodes_total: vnodes of the lake. vnodes: all and only those this worker owns. serve_from: the last epoch
    published when it joined; it answers no lookup before that one is applied.
    """

    worker: WorkerId
    vnodes_total: int
    vnodes: tuple[VnodeId, ...]
    plans: tuple[ViewPlan, ...]
    serve_from: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpoch:
    """The epoch's manifest is in the lake: apply it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Keep a copy of the view as of the end of epoch ``at``."""

    snapshot: SnapshotId
    view: str
    at: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSnapshot:
    """Nobody reads the snapshot any more."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Stop and give the task slot back."""


ToWorker = Assign | OpenEpoch | TakeSnapshot | DropSnapshot | Retire


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished:
    """The worker has applied the epoch. received: rows per channel. stats: per view, rows, keys and bytes held."""

    epoch: Epoch
    received: Mapping[Channel, int]
    stats: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken:
    """The worker holds its part of the snapshot. rows: of that part."""

    snapshot: SnapshotId
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """The worker cannot go on; ``error`` says why, for a person. ``kind`` is the error's class name."""

    kind: str
    error: str


FromWorker = EpochFinished | SnapshotTaken | WorkerFailed
