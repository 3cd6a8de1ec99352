"""A worker's process: its event loop, its server, and its channel to the coordinator."""

from dataclasses import dataclass, field
from functools import partial

from upriver.dataflow.expressions import Evaluator
from upriver.dataflow.region import Region
from upriver.errors import UpriverError
from upriver.ids import WorkerId
from upriver.machines.messages import FromWorker, Retire
from upriver.machines.worker import WorkerMachine
from upriver.shell.channel import Receiver, open_channel
from upriver.shell.codec import decode_to_worker, encode
from upriver.shell.coordinator_service import REGISTER
from upriver.shell.flight import GOODBYE_S_MAX, FlightBase, Listen
from upriver.shell.lake import Lake
from upriver.shell.lookup import LOOKUP, LookupExchange
from upriver.shell.remote import Remote
from upriver.shell.wire import Message
from upriver.shell.worker_loop import WorkerLoop

SNAPSHOT = "snapshot"
"""The get that gives a worker's part of a snapshot: ``{"snapshot": id, "view": name}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What a worker needs to find its app; picklable. The token is kept out of its ``repr``.

    root: of the lake. coordinator: its address. bind: address that the worker's server listens on.
    """

    root: str
    coordinator: str
    token: str = field(repr=False)
    bind: str


def serve_worker(config: WorkerConfig, worker: WorkerId) -> None:
    """Fill a worker's place until it retires, its channel is lost, or it fails, which it tells the coordinator."""
    build_view = partial(Region.build, evaluator=Evaluator())
    loop = WorkerLoop(WorkerMachine(build_view), Lake(config.root))
    gets = {SNAPSHOT: lambda asked: loop.snapshot(int(asked["snapshot"]), str(asked["view"]))}
    exchanges = {LOOKUP: LookupExchange(loop.lookup)}
    with FlightBase(config.token, listen=Listen(host=config.bind), exchanges=exchanges, gets=gets) as server:
        hello = Message(REGISTER, {"worker": worker, "address": server.address})
        channel = open_channel(Remote(config.coordinator, config.token), hello, _receiver(loop))

        def report(message: FromWorker) -> None:
            channel.send(encode(message))

        loop.run(report)
        channel.close()
        channel.wait_closed(GOODBYE_S_MAX)


def _receiver(loop: WorkerLoop) -> Receiver:
    """Feeds the loop. A worker without its coordinator is of no use: it retires, and another takes its place."""

    def on_close(_: UpriverError | None) -> None:
        loop.hear(Retire())

    return Receiver(lambda message: loop.hear(decode_to_worker(message)), on_close)
