"""Short words for tests of the worker machine: a small view, keys by vnode, events, and what came out of a step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from relation_kit import dataflow, group, scan

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.operators.view import LongRead
from upriver.errors import KeyTypeError, RowError
from upriver.hashing import Hashes, hash64
from upriver.ids import Channel, Epoch, FlowId, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.migration.messages import Message, RowsSent
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.protocol.lookups import LookupTerms
from upriver.protocol.messages import (
    Assign,
    EpochFinished,
    EpochOver,
    FromShare,
    FromWorker,
    Meet,
    MigrationOrder,
    OpenEpoch,
    TakeSnapshot,
)
from upriver.protocol.peers import Envelope, ForRegion, PeerLookup, PeerMessage, Portion
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.protocol.worker_events import (
    Answer,
    EpochRead,
    LookupAsked,
    LookupsAsked,
    PeerSaid,
    ReadEpoch,
    Refuse,
    Report,
    RowsRead,
    SendPeer,
    ShareAction,
    ShareEvent,
    TimeToMove,
    WorkerAction,
)
from upriver.state.pair_index import ManyMembers
from upriver.state.vectors import NO_KEYS, Positions
from upriver.vnodes import VnodeMap, vnodes_of
from upriver.worker.share import FlowShare

FLOW = FlowId(1)
LOOKUP_S = 10.0
VNODES = 8
ROWS = pa.schema([("k", pa.string()), ("e", pa.int64())])
SEEN = pa.schema([("k", pa.string()), ("seen", pa.list_(pa.int64()))])
CHANNEL = Channel("t/k")
TABLE = TableSpec("t", ROWS, ("k",))


def planned(name: str = "seen", key: str = "k") -> DataflowPlan:
    """A view of the epochs of each key."""
    relation = group(scan(TABLE), key, seen=("collect_list", "e", pa.list_(pa.int64())))
    return dataflow(name, relation, (key,), TABLE)


PLAN = planned()


class Seen:
    """A view that lists, per key, the epochs of its rows in the order in which they came; epoch 99 is a bad row.

    Rows of epoch 98 are set aside.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, list[int]] = {}
        self.aside: list[SetAside] = []

    @property
    def gathered(self) -> int:
        return 0

    @property
    def unsettled(self) -> int:
        return 0

    def due(self, clock: int) -> Hashes:
        return NO_KEYS

    def advance(self, clock: int) -> None:
        pass

    def advance_keys(self, clock: int) -> Hashes:
        return NO_KEYS

    def show_due(self) -> None:
        pass

    def raise_clock(self, keys: Hashes, clock: int) -> None:
        pass

    def left_out(self) -> list[SetAside]:
        aside, self.aside = self.aside, []
        return aside

    def settle_first(self, rows_max: int) -> None:
        raise AssertionError("only a cone's regions do this")

    def try_again(self, keys: Hashes) -> None:
        """No row is combined with others here, so each bad one is an error at once."""

    @property
    def waiting(self) -> int:
        return self.gathered

    def settle(self, rows_max: int) -> int:
        return 0

    def drain(self, rows_max: int) -> tuple[Outgoing, ...]:
        return ()

    def apply(self, _port: int, batch: Batch) -> None:
        for place, row in enumerate(batch.rows.to_pylist()):
            if row["e"] == 99:
                raise RowError("overflow")
            if row["e"] == 98:
                self.aside.append(SetAside("seen", "t", batch.rows.slice(place, 1), ("overflow",)))
                continue
            self.epochs.setdefault(row["k"], []).append(row["e"])

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        if keys.schema.types != [pa.string()]:
            raise KeyTypeError("key k is a string")
        known = [key for key in keys.column(0).to_pylist() if key in self.epochs]
        if rows_max is not None and len(known) > rows_max:
            raise ManyMembers(f"{len(known)} rows")
        return self._rows(known)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        rows = self.lookup(hash64, keys)
        return LongRead(rows.num_rows, lambda start, end: rows.slice(start, end - start))

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        bounds = pairwise([0, *ends.tolist()])
        each = [self.lookup(hash64[start:stop], keys.slice(start, stop - start)) for start, stop in bounds]
        rows = pa.concat_batches(each)
        if rows_max is not None and rows.num_rows > rows_max:
            raise ManyMembers(f"{rows.num_rows} rows")
        return rows, np.cumsum([part.num_rows for part in each])

    def scan(self) -> pa.Table:
        return pa.Table.from_batches([self._rows(sorted(self.epochs))])

    def stats(self) -> dict[str, int]:
        return {"rows": sum(map(len, self.epochs.values())), "keys": len(self.epochs), "bytes": 0}

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        hashes = np.sort(hashed(list(self.epochs)))
        mine: Hashes = hashes[vnodes_of(hashes, vnodes) == vnode]
        return mine

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        return (self._rows(self._named(keys)),)

    def install(self, state: tuple[pa.RecordBatch, ...]) -> None:
        for row in state[0].to_pylist():
            assert row["k"] not in self.epochs
            self.epochs[row["k"]] = row["seen"]

    def drop(self, keys: Hashes) -> None:
        for key in self._named(keys):
            del self.epochs[key]

    def _named(self, keys: Hashes) -> list[str]:
        return [key for key in self.epochs if hashed([key])[0] in keys]

    def _rows(self, keys: Sequence[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"k": key, "seen": self.epochs[key]} for key in keys], schema=SEEN)


def hashed(keys: Sequence[str]) -> Hashes:
    return hash64([pa.array(keys, pa.string())], len(keys))


def _by_vnode() -> list[list[str]]:
    names = sorted((f"k{number}" for number in range(200)), key=lambda name: int(hashed([name])[0]))
    vnodes = vnodes_of(hashed(names), VNODES).tolist()
    return [[name for name, place in zip(names, vnodes, strict=True) if place == vnode] for vnode in range(VNODES)]


KEYS = _by_vnode()
"""Some keys of each vnode, ascending by hash64."""

# The map -----------------------------------------------------------------------------------------------------------

ALL_MINE = (0,) * VNODES
HALVES = (0,) * 4 + (1,) * 4
"""Worker 0 owns vnodes 0 to 3, worker 1 the others."""


def vnode_map(owners: Sequence[int], version: int = 0) -> VnodeMap:
    return VnodeMap(MapVersion(version), tuple(map(WorkerId, owners)))


def owners_with(owners: Sequence[int], **moves: int) -> tuple[int, ...]:
    """``owners_with(HALVES, v3=1)``: the same, with vnode 3 at worker 1."""
    return tuple(moves.get(f"v{vnode}", owner) for vnode, owner in enumerate(owners))


# What the coordinator says ------------------------------------------------------------------------------------------


def assign(owners: Sequence[int] = ALL_MINE, me: int = 0, **fields: Any) -> Assign:
    """Worker ``me`` by version 0 of the map. fields: others of ``Assign``."""
    before = vnode_map(owners)
    known: dict[str, Any] = {
        "plans": (PLAN,),
        "maps": {"seen": before},
        "reads": before.vnodes_of_worker(WorkerId(me)),
        "start_at": Epoch(0),
        "serve_from": Epoch(0),
        "generation": 0,
    }
    return Assign(worker=WorkerId(me), **{**known, **fields})


def opened(epoch: int, mixed: bool = False) -> OpenEpoch:
    return OpenEpoch(epoch=Epoch(epoch), mixed=mixed)


def over(epoch: int) -> EpochOver:
    return EpochOver(epoch=Epoch(epoch))


def meet(*members: int, meeting: int = 1, keys_max: int | None = None) -> Meet:
    peers = {WorkerId(member): (Incarnation(member + 1), f"host-{member}") for member in members}
    return Meet(meeting=meeting, peers=peers, strategy=Strategy.ICADD, keys_max=keys_max)


def announce(
    before: Sequence[int], after: Sequence[int], *members: int, version: int = 0, view: str = "seen"
) -> MigrationOrder:
    """From ``before``, at ``version``, to ``after``; members: of both configurations, if owning does not say it."""
    was, will = vnode_map(before, version), vnode_map(after, version + 1)
    named = tuple(map(WorkerId, members))
    order = RescaleAnnounced(before=was, after=will, old=named or was.workers, new=named or will.workers)
    return MigrationOrder(region=view, order=order)


def abort(version: int = 1) -> MigrationOrder:
    return MigrationOrder(region="seen", order=AbortAsked(version=MapVersion(version)))


def take(snapshot: int, at: int) -> TakeSnapshot:
    return TakeSnapshot(snapshot=SnapshotId(snapshot), view="seen", at=Epoch(at))


# What else happens --------------------------------------------------------------------------------------------------


def batch(epoch: int, *keys: str) -> Batch:
    columns = [pa.array(keys, pa.string()), pa.array([epoch] * len(keys), pa.int64())]
    return Batch(pa.RecordBatch.from_arrays(columns, schema=ROWS), hashed(keys))


def rows(epoch: int, *keys: str, channel: str = CHANNEL) -> RowsRead:
    return RowsRead(epoch=Epoch(epoch), channel=Channel(channel), batch=batch(epoch, *keys))


def read(epoch: int, promised: int) -> EpochRead:
    return EpochRead(epoch=Epoch(epoch), promised={CHANNEL: promised})


def applied(*epochs: Sequence[str]) -> list[ShareEvent]:
    """The events of whole epochs, from the first on, each with a row of each of these keys."""
    events: list[ShareEvent] = []
    for epoch, keys in enumerate(epochs, 1):
        events += [opened(epoch), rows(epoch, *keys), read(epoch, len(keys))]
    return events


def asked(
    *keys: str, ticket: int = 1, view: str = "seen", key: str = "k", at_least: int = 0, together: bool = False
) -> LookupAsked:
    """A lookup of a view that has one key column."""
    names = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=[key])
    epoch = Epoch(at_least)
    return LookupAsked(ticket=ticket, view=view, keys=names, hash64=hashed(keys), at_least=epoch, together=together)


def asked_together(
    *lookups: Sequence[str],
    ticket: int = 1,
    view: str = "seen",
    at_least: Sequence[int | None] = (),
    together: Sequence[bool] = (),
) -> LookupsAsked:
    """Several lookups of a view, each of these keys. at_least, together: of each."""
    terms = [
        LookupTerms(
            place, len(keys), at_least[place] if at_least else None, bool(together and together[place]), LOOKUP_S
        )
        for place, keys in enumerate(lookups)
    ]
    keys = [key for each in lookups for key in each]
    names = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=["k"])
    return LookupsAsked(ticket=ticket, view=view, keys=names, hash64=hashed(keys), lookups=terms)


def said(sender: int, content: PeerMessage, generation: int = 0) -> PeerSaid:
    return PeerSaid(sender=WorkerId(sender), envelope=Envelope(flow=FLOW, generation=generation, content=content))


def of_region(sender: int, message: Message, generation: int = 0) -> PeerSaid:
    return said(sender, ForRegion(region="seen", message=message), generation)


def rows_from(sender: int, epoch: int, *keys: str, version: int = 0) -> PeerSaid:
    portion = Portion(Epoch(epoch), 0, batch(epoch, *keys))
    return of_region(sender, RowsSent(version=MapVersion(version), rows=portion))


def question_from(
    sender: int, *keys: str, ticket: int = 1, at_least: int = 0, version: int = 0, together: bool = False
) -> PeerSaid:
    names = pa.RecordBatch.from_arrays([pa.array(keys, pa.string())], names=["k"])
    question = PeerLookup(ticket, WorkerId(sender), Epoch(at_least), names, hashed(keys), together)
    return of_region(sender, RowsSent(version=MapVersion(version), rows=question))


def move(keys_max: int = 1) -> TimeToMove:
    return TimeToMove(keys_max=keys_max)


def worker(*events: ShareEvent, rules: Rules = ALL_RULES) -> FlowShare:
    """A machine that has lived through these events."""
    machine = FlowShare(FLOW, lambda *_: Seen(), rules)
    for event in events:
        machine.step(event)
    return machine


Action = ShareAction | WorkerAction

# What came out ------------------------------------------------------------------------------------------------------


def reading(epoch: int, vnodes: Sequence[int] = range(VNODES)) -> ReadEpoch:
    owned = tuple(map(VnodeId, vnodes))
    return ReadEpoch(epoch=Epoch(epoch), channels=(CHANNEL,), vnodes=owned, in_parts=frozenset({CHANNEL}))


def finished(epoch: int, read: int, applied: int, keys: int, total: int) -> EpochFinished:
    """read, applied: rows of the epoch. keys, total: keys and rows held."""
    stats = {"seen": {"rows": total, "keys": keys, "bytes": 0}}
    return EpochFinished(epoch=Epoch(epoch), read={CHANNEL: read}, applied={"seen": applied}, stats=stats)


def reports(actions: Sequence[Action], kind: type[FromShare | FromWorker] | None = None) -> list[Any]:
    """What was said to the coordinator; of one kind only, if one is named."""
    messages = [action.message for action in actions if isinstance(action, Report)]
    return [message for message in messages if kind is None or isinstance(message, kind)]


def sent(actions: Sequence[Action]) -> list[tuple[int, Any]]:
    """What was said to peers; a region's messages without their wrapping."""
    return [
        (action.to, getattr(action.envelope.content, "message", action.envelope.content))
        for action in actions
        if isinstance(action, SendPeer)
    ]


def answered(actions: Sequence[Action]) -> dict[int, tuple[dict[str, list[int]], int]]:
    """By ticket: the epochs seen per key that was found, and the answer's epoch."""
    answers = [action for action in actions if isinstance(action, Answer)]
    return {a.ticket: ({row["k"]: row["seen"] for row in a.rows.to_pylist()}, a.epoch) for a in answers}


def refused(actions: Sequence[Action]) -> dict[int, type[Exception]]:
    return {action.ticket: type(action.error) for action in actions if isinstance(action, Refuse)}
