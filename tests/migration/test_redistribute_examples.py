"""Document 001's examples through whole machines: Z gives keys 4, 5 and 6 to Y, and everything said is compared."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from migration_kit import announce, vnode_map

from simulator.published.redistribute_chain import OperatorChain
from upriver.ids import WorkerId
from upriver.migration.events import (
    Action,
    Collect,
    CollectAsked,
    Collected,
    Event,
    Interrogate,
    Interrogated,
    Received,
    Send,
    TakeState,
)
from upriver.migration.messages import Acquire, Final, Redistribute, Scaleup, Sets, Shutdown
from upriver.migration.redistribute import Redistributor
from upriver.migration.redistribute_phases import RedistributeNormal

Y, Z = WorkerId(0), WorkerId(1)


@dataclass(frozen=True)
class Operator:
    """It has state of these keys."""

    name: str
    held: tuple[int, ...]

    @property
    def keys(self) -> np.ndarray:
        return np.array(self.held, np.uint64)

    def collect(self, keys: np.ndarray) -> object:
        return keys.tolist()


class ModelCluster:
    """Two workers, one channel each way, and Z's operators. said: every message, as the document would write it."""

    def __init__(self, operators: Sequence[Operator], new: tuple[int, ...]) -> None:
        before = vnode_map(0, Z)
        self.machines = {worker: Redistributor(worker, before) for worker in (Y, Z)}
        self.events: deque[tuple[WorkerId, Event]] = deque()
        self.chain = OperatorChain(operators)
        self.said: list[str] = []
        self.taken: list[object] = []
        self.state: object = None
        for worker in (Y, Z):
            self.events.append((worker, announce(before, Y, old=(Y, Z), new=new)))

    def run(self, keys_max: int) -> None:
        while self.events or self.machines[Z].can_collect:
            worker, event = self.events.popleft() if self.events else (Z, CollectAsked(keys_max=keys_max))
            for action in self.machines[worker].step(event):
                self.carry_out(worker, action)

    def carry_out(self, worker: WorkerId, action: Action) -> None:
        match action:
            case Send(to=to, message=message):
                self.hear(message)
                self.events.append((to, Received(sender=worker, message=message)))
            case Interrogate():
                self.events.append((worker, Interrogated(keys=self.chain.keys())))
            case Collect(keys=keys):
                self.events.append((worker, Collected(keys=keys, state=self.chain.collect(keys).state)))
            case TakeState(state=state):
                self.taken.append(state)

    def hear(self, message: object) -> None:
        match message:
            case Shutdown() | Scaleup():
                self.said.append(type(message).__name__.upper())
            case Sets(whitelist=whitelist, hold=hold):
                self.said.append(f"sets({written(whitelist)}, {written(hold)})")
            case Final(keys=keys):
                self.said.append(f"FINAL({written(keys)})")
            case Acquire(state=state):
                self.state = state
            case Redistribute(keys=keys, following=following):
                assert isinstance(self.state, Mapping)
                owners = "+".join(sorted(self.state))
                self.said.append(f"REDISTRIBUTE({written(keys)}, {owners}, {written(following)})")


def written(keys: np.ndarray) -> str:
    return "".join(map(str, keys.tolist())) or "None"


def test_scaling_down_goes_as_in_the_document() -> None:
    cluster = ModelCluster([Operator("S", (4, 5, 6))], new=(Y,))
    cluster.run(keys_max=1)
    assert cluster.said == [
        "SHUTDOWN",
        "sets(56, 4)",
        "FINAL(4)",
        "REDISTRIBUTE(4, S, 5)",
        "FINAL(5)",
        "REDISTRIBUTE(5, S, 6)",
        "FINAL(6)",
        "REDISTRIBUTE(6, S, None)",
    ]
    assert cluster.taken == [{"S": [4]}, {"S": [5]}, {"S": [6]}]
    assert all(isinstance(machine.phase, RedistributeNormal) for machine in cluster.machines.values())


def test_two_operators_go_as_in_the_document() -> None:
    cluster = ModelCluster([Operator("Z1", (4, 5)), Operator("Z2", (5, 6))], new=(Y,))
    cluster.run(keys_max=1)
    assert cluster.said == [
        "SHUTDOWN",
        "sets(56, 4)",
        "FINAL(4)",
        "REDISTRIBUTE(4, Z1, 5)",
        "FINAL(5)",
        "REDISTRIBUTE(5, Z1+Z2, 6)",
        "FINAL(6)",
        "REDISTRIBUTE(6, Z2, None)",
    ]
    assert cluster.taken == [{"Z1": [4]}, {"Z1": [5], "Z2": [5]}, {"Z2": [6]}]


def test_a_stayer_is_told_scaleup_and_several_keys_go_at_a_time() -> None:
    cluster = ModelCluster([Operator("S", (4, 5, 6, 7, 8))], new=(Y, Z))
    cluster.run(keys_max=3)
    assert cluster.said == [
        "SCALEUP",
        "sets(5678, 4)",
        "FINAL(4)",
        "REDISTRIBUTE(4, S, 567)",
        "FINAL(567)",
        "REDISTRIBUTE(567, S, 8)",
        "FINAL(8)",
        "REDISTRIBUTE(8, S, None)",
    ]
