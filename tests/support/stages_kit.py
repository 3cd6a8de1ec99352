"""A view of two regions for tests of stages: the first passes its rows on to the second, under another key."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
from machines_kit import FLOW, KEYS, PLAN, ROWS, VNODES, Seen, assign, hashed, vnode_map

from upriver.engine.batch import Batch, Outgoing
from upriver.hashing import Hashes
from upriver.plan.plan import DataflowPlan, ExchangeEdge, Input, RegionPlan
from upriver.protocol.messages import Assign
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import ShareEvent
from upriver.worker.share import FlowShare

LAST = PLAN.regions[-1]
FIRST = RegionPlan("seen/0", LAST.inputs, (), None, "for a test")
STAGED = replace(PLAN, regions=(FIRST, replace(LAST, inputs=(Input(ExchangeEdge("seen/0", ("k",)), ROWS),))))
REGIONS = tuple(region.name for region in STAGED.regions)
OTHER_END = {KEYS[vnode][0]: KEYS[VNODES - 1 - vnode][1] for vnode in range(VNODES)}
"""For the first key of each vnode, the second key of the vnode at the other end."""


class Passing(Seen):
    """Passes each row on under the key at the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[Batch] = []

    def apply(self, port: int, batch: Batch) -> None:
        super().apply(port, batch)
        keys = [OTHER_END[row["k"]] for row in batch.rows.to_pylist()]
        rows = pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), batch.rows.column("e")], schema=ROWS)
        self.out.append(Batch(rows, hashed(keys)))

    @property
    def unsettled(self) -> int:
        return sum(map(len, self.out))

    def drain(self, rows_max: int) -> tuple[Outgoing, ...]:
        out, self.out = self.out[:rows_max], self.out[rows_max:]
        return tuple(Outgoing("seen", 0, batch) for batch in out)


class Gathering(Seen):
    """Takes rows in when its stage has come; gathered ones move with their key, epoch negated."""

    def __init__(self) -> None:
        super().__init__()
        self.to_settle: list[tuple[str, int]] = []

    @property
    def gathered(self) -> int:
        return len(self.to_settle)

    @property
    def unsettled(self) -> int:
        return self.gathered

    def apply(self, port: int, batch: Batch) -> None:
        assert port == 0
        self.to_settle += [(row["k"], row["e"]) for row in batch.rows.to_pylist()]

    def settle(self, rows_max: int) -> int:
        taken, self.to_settle = self.to_settle[:rows_max], self.to_settle[rows_max:]
        for key, epoch in taken:
            self.epochs.setdefault(key, []).append(epoch)
        return len(taken)

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        more = hashed([key for key, _ in self.to_settle])
        return np.union1d(super().keys_of(vnode, vnodes), more[(more >> np.uint64(61)) == vnode])

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        waiting = [{"k": key, "seen": [-epoch]} for key, epoch in self.to_settle if hashed([key])[0] in keys]
        (kept,) = super().collect(keys)
        return (pa.RecordBatch.from_pylist([*kept.to_pylist(), *waiting], schema=kept.schema),)

    def install(self, state: tuple[pa.RecordBatch, ...]) -> None:
        rows = state[0].to_pylist()
        self.to_settle += [(row["k"], -row["seen"][0]) for row in rows if row["seen"][0] < 0]
        super().install((pa.RecordBatch.from_pylist([r for r in rows if r["seen"][0] > 0], schema=state[0].schema),))

    def drop(self, keys: Hashes) -> None:
        super().drop(keys)
        self.to_settle = [(key, epoch) for key, epoch in self.to_settle if hashed([key])[0] not in keys]


def staged(owners: tuple[int, ...], me: int = 0) -> Assign:
    return assign(owners, me, plans=(STAGED,), maps=dict.fromkeys(REGIONS, vnode_map(owners)))


def built(_: DataflowPlan, region: RegionPlan) -> Seen:
    """An empty region of that view."""
    return Passing() if region.name == "seen/0" else Gathering()


def staged_worker(*events: ShareEvent, rules: Rules = ALL_RULES) -> FlowShare:
    """A machine that has lived through these events."""
    machine = FlowShare(FLOW, built, rules)
    for event in events:
        machine.step(event)
    return machine
