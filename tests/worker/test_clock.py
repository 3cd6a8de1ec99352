"""A worker and the clock: rule clock.loads_before_the_end, and when the clock gets to an epoch's instant."""

from dataclasses import replace

from machines_kit import (
    ALL_MINE,
    FLOW,
    KEYS,
    PLAN,
    Seen,
    announce,
    applied,
    assign,
    meet,
    move,
    opened,
    owners_with,
    read,
    reports,
    rows,
    said,
)

from upriver.plan.clock import ClockOp
from upriver.plan.plan import Node
from upriver.protocol.messages import EpochFinished
from upriver.protocol.peers import Installed
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.worker.share import FlowShare

(REGION,) = PLAN.regions
CLOCKED = replace(PLAN, regions=(replace(REGION, nodes=(Node(ClockOp(()), (0,), REGION.inputs[0].schema),)),))
"""A view that depends on the clock, by its plan."""
HERE, STAYS = KEYS[0][0], KEYS[1][0]


class Clocked(Seen):
    """Keeps the instants that its clock has got to."""

    def __init__(self) -> None:
        super().__init__()
        self.instants: list[int] = []

    def advance(self, clock: int) -> None:
        self.instants.append(clock)


def giving(rules: Rules) -> FlowShare:
    """Worker 0 has sent HERE to worker 1, and has not heard that it is installed."""
    machine = FlowShare(FLOW, lambda *_: Clocked(), rules)
    told = meet(0, 1), announce(ALL_MINE, owners_with(ALL_MINE, v0=1), 0, 1)
    for event in (assign(plans=(CLOCKED,)), *applied([HERE, STAYS]), *told, move(9)):
        machine.step(event)
    return machine


def finished(machine: FlowShare) -> list[int]:
    """The epochs that the worker finishes by reading epoch 2, and by hearing that its load is installed."""
    machine.step(replace(opened(2, mixed=True), clock=7))
    at_once = reports(machine.step(read(2, 0)), EpochFinished)
    later = reports(machine.step(said(1, Installed(region="seen"))), EpochFinished)
    return [len(at_once), len(later)]


def test_clock_loads_before_the_end_a_worker_finishes_when_its_loads_are_installed() -> None:
    assert finished(giving(ALL_RULES)) == [0, 1]


def test_clock_loads_before_the_end_switched_off_ends_the_epoch_while_keys_are_on_their_way() -> None:
    assert finished(giving(Rules(clock_loads_before_the_end=False))) == [1, 0]


def test_the_clock_gets_to_an_epoch_with_the_first_that_is_read_of_it() -> None:
    regions: list[Clocked] = []

    def build(*_: object) -> Clocked:
        regions.append(Clocked())
        return regions[-1]

    machine = FlowShare(FLOW, build)
    machine.step(assign(plans=(CLOCKED,)))
    machine.step(replace(opened(1), clock=7))
    assert regions[-1].instants == []
    machine.step(rows(1, HERE))
    assert regions[-1].instants == [7]
    machine.step(read(1, 1))
    assert regions[-1].instants == [7]
