"""Short words for tests of the migration machines: batches whose rows are numbered, and what became of them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.ids import MapVersion, VnodeId, WorkerId
from upriver.migration.events import Action, Event, PassDown, Received, RescaleAnnounced, Send
from upriver.migration.icadd import Distributor
from upriver.migration.messages import Message, RowsSent
from upriver.migration.rules import ALL_RULES, MendedRules
from upriver.vnodes import VnodeMap

ZERO, ONE, TWO = WorkerId(0), WorkerId(1), WorkerId(2)
V0, V1 = MapVersion(0), MapVersion(1)


def vnode_map(version: int, *owners: int) -> VnodeMap:
    return VnodeMap(MapVersion(version), tuple(map(WorkerId, owners)))


def hash_in(vnode: int, number: int, vnodes: int) -> int:
    """The hash64 of the ``number``-th key of a vnode."""
    return vnode * (2**64 // vnodes) + number


def batch(hashes: Sequence[int], first: int = 0) -> Batch:
    """One row per hash; the rows' only column numbers them from ``first``."""
    rows = pa.record_batch({"row": pa.array(range(first, first + len(hashes)), pa.int64())})
    return Batch(rows, np.array(hashes, np.uint64))


def announce(before: VnodeMap, *owners: int, old: Sequence[int] = (), new: Sequence[int] = ()) -> RescaleAnnounced:
    after = vnode_map(before.version + 1, *owners)
    return RescaleAnnounced(
        before=before,
        after=after,
        old=tuple(map(WorkerId, old)) or before.workers,
        new=tuple(map(WorkerId, new)) or after.workers,
    )


def distributor(
    me: int, before: VnodeMap, *events: Event, rules: MendedRules = ALL_RULES, together: int = 1
) -> Distributor:
    """A distributor to which these events have happened. together: keys for which slices are given together."""
    made = Distributor(WorkerId(me), before, rules, together)
    for event in events:
        made.step(event)
    return made


def received(sender: int, message: Message) -> Received:
    return Received(sender=WorkerId(sender), message=message)


def rows_of(rows: object) -> list[int]:
    assert isinstance(rows, Batch)
    numbers: list[int] = rows.rows.column("row").to_pylist()
    return numbers


def where(actions: Sequence[Action]) -> dict[str, list[int]]:
    """The rows' numbers by where the actions put them: ``"I1.1"``, a rule, for down; ``"to 2"`` for another worker."""
    places: dict[str, list[int]] = {}
    for action in actions:
        match action:
            case PassDown(rows=rows, rule=rule):
                places.setdefault(str(rule), []).extend(rows_of(rows))
            case Send(to=to, message=RowsSent(rows=rows)):
                places.setdefault(f"to {to}", []).extend(rows_of(rows))
    return places


def messages(actions: Sequence[Action]) -> list[tuple[int, Message]]:
    """Control messages and their receivers, in order."""
    return [(a.to, a.message) for a in actions if isinstance(a, Send) and not isinstance(a.message, RowsSent)]


def vnode(number: int) -> VnodeId:
    return VnodeId(number)
