"""A worker's process: its event loop, its server, its channels to its peers and to the coordinator.

Warm-up: before a worker takes its slot it does everything once, so that no user pays for the first time. The first call
of many library functions loads code. The first Arrow column made of a numpy array takes a tenth of a second or more,
which is longer than any key may wait while it moves.
"""

import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.function_calls import SilentCaller
from upriver.engine.region import Region
from upriver.errors import ClusterError, ProtocolError, UpriverError
from upriver.hashing import HASH64_MAX, hash64
from upriver.ids import FlowId, Incarnation, MapVersion, SnapshotId, WorkerId
from upriver.lake.lake import Lake
from upriver.logs import LogSettings
from upriver.migration.messages import Acquire
from upriver.net import codec, wire
from upriver.net.admission import GOODBYE_S_MAX
from upriver.net.channel import ChannelEnd, Channels, Receiver, open_channel
from upriver.net.codec import decode_to_worker, encode_message
from upriver.net.handshake import HandshakeKeys, Purpose
from upriver.net.lookups import LookupService
from upriver.net.peers import Peers
from upriver.net.remote import Remote
from upriver.net.server import WILDCARDS, Action, Calls, Get, Listen, Server, Service, local_address_to
from upriver.net.wire import Message
from upriver.plan.plan import DataflowPlan, RegionPlan
from upriver.protocol.messages import FlowStep, FromWorker, Meet
from upriver.protocol.peers import Envelope, ForRegion
from upriver.protocol.worker_events import PeerLost, PeersMet
from upriver.runtime.arenas import share_free_memory
from upriver.runtime.coordinator_service import MEASURED, REGISTER, SILENCED
from upriver.runtime.exit_witness import ExitWitness
from upriver.runtime.flow_functions import FlowFunctions, calls_functions
from upriver.runtime.function_process import FUNCTION_TIMEOUT_S
from upriver.runtime.leases import USUAL, FailureDetection, Lease
from upriver.runtime.measures import WorkerMeasures, measures_reported
from upriver.runtime.memory import trimming_heap
from upriver.runtime.snapshots import HeldSnapshots
from upriver.runtime.step_marks import MarkFile
from upriver.runtime.worker_loop import WorkerLoop
from upriver.vnodes import HashRange
from upriver.worker.regions import BuildRegion
from upriver.worker.worker import WorkerMachine

_LOG = logging.getLogger("upriver.worker")

NICENESS = 19
"""Niceness of a worker that is not in its slot yet, so that it does not slow down those that are."""
ROWS = 1024
"""Made-up rows: enough that structures grow."""


def at_low_priority(work: Callable[[], None]) -> None:
    """Do some work on a thread that yields the processors to all other threads; returns when it is done."""

    def run() -> None:
        if sys.platform == "linux":  # elsewhere, niceness is the whole process's, and cannot be undone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        work()

    thread = threading.Thread(target=run, name="upriver-warm-up")
    thread.start()
    thread.join()


def warm_up(plans: Sequence[DataflowPlan], evaluator: Evaluator) -> None:
    """Take made-up rows into each region, read them, and move them from it to another. The first bad one ends it: to
    set aside a thousand of them, if they are no dates, takes seconds. No function of a user is called: it might not
    return. evaluator: for views without such functions."""
    silent = SilentCaller()

    def build_for(plan: DataflowPlan) -> BuildRegion:
        if calls_functions(plan):
            return partial(Region.build, evaluator=Evaluator(silent), caller=silent)
        return partial(Region.build, evaluator=evaluator)

    for plan in plans:
        for region in plan.regions:
            try:
                _warm_region(plan, region, build_for(plan))
            except Exception:  # of any class: no user may have rows like the made-up ones
                continue  # the view is then less warm


def _warm_region(plan: DataflowPlan, region: RegionPlan, build_region: BuildRegion) -> None:
    old, new = build_region(plan, region), build_region(plan, region)
    for port, entry in enumerate(region.inputs):
        made_up = [_made_up(field.type) for field in entry.schema]
        rows = pa.RecordBatch.from_arrays(made_up, schema=_nullable(entry.schema))
        keys = rows.select(list(entry.edge.key))
        hashes = hash64(keys.columns, keys.num_rows)
        order = np.argsort(hashes)
        old.apply(port, Batch(rows.take(pa.array(order)), hashes[order]))
    old.settle(ROWS)
    old.drain(ROWS)
    moving = np.unique(np.concatenate([old.keys_of(vnode, 2) for vnode in (0, 1)]))
    acquire = Acquire(version=MapVersion(0), keys=moving, state=old.collect(moving))
    envelope = Envelope(flow=FlowId(0), generation=0, content=ForRegion(region=region.name, message=acquire))
    (arrived,) = codec.decode(wire.decode(wire.encode(codec.encode([envelope]))))
    old.drop(moving)
    assert isinstance(arrived.content, ForRegion)
    assert isinstance(arrived.content.message, Acquire)
    state = arrived.content.message.state
    assert isinstance(state, tuple)
    new.install(state)
    if region.store is not None:
        new.lookup(hashes[:1], keys.slice(0, 1))
        new.scan()


def _made_up(type: pa.DataType) -> pa.Array:
    """Ascending numbers, cast to the type; nulls if they cannot be cast."""
    try:
        return pa.array(np.arange(ROWS)).cast(type)
    except pa.ArrowException:
        return pa.nulls(ROWS, type)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


SNAPSHOT = "snapshot"
"""The get of some of a worker's part of a snapshot: ``{"snapshot": id, "view": name, "key": the view's key columns,
"ranges": [[least hash64, highest hash64], ...]}``."""
SNAPSHOT_READ = "snapshot_read"
"""The action of a scan that has read this worker's part: ``{"snapshot": id}``."""
SWITCH_S = 0.0005
"""Seconds after which a worker's thread yields to another: Python's default would keep lookups waiting."""
LINGER_S_MAX = 60.0
"""At most how many seconds a retired worker waits for scans of its parts of snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to find its app; picklable. It travels in the closure of Spark's task, and nowhere else; the
    keys are kept out of its ``repr``.

    root: of the lake. coordinator: its address. keys: the token that clients of the worker must know, the cluster's
    secret, which the coordinator asks of the worker, and the certificate that the worker shows. bind: what the
    coordinator listens on. If that is all interfaces, the worker listens on all, too, else where it reached the
    coordinator. migration_step_budget_ms: milliseconds that one step of a migration may take. plans: of the views that
    it will keep. memory_budget: bytes that its state may take; ``None`` for no limit. failure_detection: the
    coordinator's, too. life: number of this worker among those started for the slot. attempt: of the Spark task that it
    runs in. is_local: the driver's own process is the only executor. logs: how the worker's process logs; ``None``: as
    its Python does. function_timeout_s: seconds after which a call of a user's function fails.
    """

    root: str
    coordinator: str
    keys: HandshakeKeys = field(repr=False)
    bind: str
    plans: tuple[DataflowPlan, ...]
    migration_step_budget_ms: float = 5.0
    memory_budget: int | None = None
    failure_detection: FailureDetection = USUAL
    life: int = 0
    attempt: int = 0
    is_local: bool = False
    logs: LogSettings | None = None
    function_timeout_s: float = FUNCTION_TIMEOUT_S

    @property
    def instance(self) -> str:
        """What this process is lost with: the executor, whose one daemon has forked it. If the driver is the only
        executor, the app is lost with it, so each worker counts for itself."""
        return f"{socket.gethostname()}/{os.getpid() if self.is_local else os.getppid()}"


@dataclass(frozen=True, slots=True)
class _LeasedPeers:
    """A worker's channels to its peers, behind its lease: without the lease, the worker says nothing
    (leases.speak_only_with_lease)."""

    peers: Peers
    lease: Lease

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        """Block until the worker may speak, then send. If it never may, nothing is sent: it is about to retire."""
        if self.lease.wait(None):
            self.peers.send(to, envelope)

    def flush(self) -> None:
        self.peers.flush()


def serve_worker(config: WorkerConfig, worker: WorkerId) -> None:
    """Fill a worker's slot until it retires or fails; a failure is reported to the coordinator.

    Raises the error with which it failed, or with which its channel to the coordinator is lost.
    """
    sys.setswitchinterval(SWITCH_S)
    share_free_memory()  # first, for processes that a foreign daemon has forked
    tls = None if config.keys.tls is None else config.keys.tls.trust
    remote, lake = Remote(config.coordinator, config.keys.secret, tls), Lake(config.root)
    evaluator = Evaluator()

    def build_region(plan: DataflowPlan, region: RegionPlan) -> Region:
        return Region.build(plan, region, evaluator, loop.sets_aside)

    functions = FlowFunctions(build_region, lambda: loop.sets_aside, config.function_timeout_s, config.logs)
    functions.begin_spares(config.plans)
    marks = MarkFile(config.keys.secret, worker)
    record = lake.record()
    if record is not None and marks.begin_warm_up():
        at_low_priority(partial(warm_up, config.plans, evaluator))
        marks.end_warm_up()
    functions.load_spares()
    gc.freeze()  # loaded objects stay: no collection need look at them and delay a lookup
    own = local_address_to(config.coordinator)
    listen = Listen(host=config.bind if config.bind in WILDCARDS else own, advertised=own)
    machine = WorkerMachine(build_region, memory_budget=config.memory_budget, builders=functions.builder)
    loop = WorkerLoop(machine, lake, config.migration_step_budget_ms / 1000, functions)
    lease = Lease(config.failure_detection)
    peers = Peers(worker, remote, loop.hear_peer, partial(_lost, loop), limits=config.failure_detection.limits)
    held, measures = loop.snapshots, WorkerMeasures()
    lost: list[UpriverError] = []
    gets: dict[str, Get] = {SNAPSHOT: partial(_snapshot, held)}
    actions: dict[str, Action] = {SNAPSHOT_READ: partial(_snapshot_read, held)}
    services: dict[Purpose, Service] = {
        Purpose.CHANNEL: Channels(peers.accept, config.failure_detection.limits),
        Purpose.LOOKUPS: LookupService(loop, lease, measures),
        Purpose.CALLS: Calls(actions, gets),
    }
    with trimming_heap(), Server(config.keys, services, listen=listen) as server:
        receiver = _receiver(loop, lost.append)
        channel = open_channel(
            remote,
            _hello(worker, config, server.address, marks.last()),
            receiver,
            limits=config.failure_detection.worker_limits,
        )
        marks.replace(machine.mark)
        lease.begin(channel)
        if (witness := ExitWitness.inherited) is not None:
            witness.watch(remote, worker, config.life, config.attempt)
        _LOG.info("worker %d serves at %s", worker, server.address, extra={"worker": int(worker)})

        def report(messages: Sequence[FromWorker]) -> None:
            channel.send_together([*map(encode_message, messages)])

        with measures_reported(partial(_measured, measures, loop), partial(_send_measures, channel)):
            failure = loop.run(report, partial(_meet, loop, peers, worker), _LeasedPeers(peers, lease))
        marks.remove()
        _log_end(worker, failure, lost)
        if failure is None:
            with suppress(ClusterError):  # the channel is gone, and ``lost`` was told
                channel.send(Message(SILENCED))
            loop.linger(LINGER_S_MAX)
            peers.close()
            channel.close()
        # A worker that fails says no goodbye: the coordinator would think that it has retired.
        channel.wait_closed(GOODBYE_S_MAX)
    if failure is not None:
        raise failure
    if lost:
        raise lost[0]


def _log_end(worker: WorkerId, failure: Exception | None, lost: Sequence[UpriverError]) -> None:
    extra = {"worker": int(worker)}
    if failure is not None:
        _LOG.error("worker %d has failed: %s: %s", worker, type(failure).__name__, failure, extra=extra)
    elif lost:
        _LOG.warning("worker %d ends, because it has lost the coordinator: %s", worker, lost[0], extra=extra)
    else:
        _LOG.info("worker %d retires", worker, extra=extra)


def _hello(worker: WorkerId, config: WorkerConfig, address: str, died_in: FlowStep | None) -> Message:
    who = {"worker": worker, "life": config.life, "attempt": config.attempt}
    return Message(REGISTER, {**who, "address": address, "instance": config.instance, "died_in": died_in})


def _measured(measures: WorkerMeasures, loop: WorkerLoop) -> dict[str, Any]:
    return {"views": measures.to_json(), "upqueries": loop.upqueries()}


def _send_measures(channel: ChannelEnd, report: dict[str, Any]) -> None:
    channel.send(Message(MEASURED, report))


def _snapshot(held: HeldSnapshots, asked: Mapping[str, Any], first: int) -> pa.Table:
    part = held.read(SnapshotId(asked["snapshot"]), str(asked["view"]), first)
    return part.rows_in(list(map(str, asked["key"])), [_hash_range(range) for range in asked["ranges"]])


def _hash_range(range: Any) -> HashRange:
    if not isinstance(range, list) or [*map(type, range)] != [int, int] or not 0 <= range[0] <= range[1] <= HASH64_MAX:
        raise ProtocolError(f"{range!r:.100} is no range of hash64")
    return range[0], range[1]


def _snapshot_read(held: HeldSnapshots, told: Mapping[str, Any]) -> Mapping[str, Any]:
    held.was_read(SnapshotId(told["snapshot"]))
    return {}


def _receiver(loop: WorkerLoop, lost: Callable[[UpriverError], None]) -> Receiver:
    """Feeds the loop. A worker without its coordinator is of no use: it retires. lost: told why the channel closed."""

    def on_close(error: UpriverError | None) -> None:
        if error is not None:
            lost(error)
        loop.hurry()

    return Receiver(lambda message: loop.hear(decode_to_worker(message)), on_close)


def _meet(loop: WorkerLoop, peers: Peers, worker: WorkerId, meet: Meet) -> None:
    def met(meeting: int) -> None:
        loop.hear(PeersMet(meeting=meeting))

    def failed(_: int, error: UpriverError, unreached: WorkerId) -> None:
        loop.hear(PeerLost(why=str(error), unreached=unreached))

    incarnation, _ = meet.peers[worker]
    peers.meet(meet.meeting, meet.peers, incarnation, met, failed)


def _lost(loop: WorkerLoop, peer: WorkerId, incarnation: Incarnation, error: UpriverError | None) -> None:
    why = f"worker {peer}: {error or 'it has closed its end'}"
    loop.hear(PeerLost(why=why, peer=peer, incarnation=incarnation))
