"""The coordinator's loop hands control records to their keeper, with what only the loop knows of a rescale."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_kit import a_lake
from coordinator_kit import PLAN

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import UpriverError
from upriver.ids import WorkerId
from upriver.lake.control import find_control
from upriver.lake.control_keeper import ControlKeeper
from upriver.lake.lake import OwnedLake
from upriver.protocol.messages import ToWorker
from upriver.protocol.strategies import Strategy
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.vnodes import Placement

SECONDS_MAX = 30.0


class Mute:
    """The end of a channel to a worker that says nothing."""

    def tell(self, message: ToWorker) -> None:
        pass

    def close(self) -> None:
        pass

    def give_up(self, error: UpriverError) -> None:
        pass


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@pytest.fixture
def loop(lake: OwnedLake) -> Iterator[CoordinatorLoop]:
    kept = lake.record()
    assert kept is not None
    first = Placement.initial(kept.vnodes, 2)
    machine = CoordinatorMachine(first.vnode_map, (PLAN,))
    control = ControlKeeper(lake, find_control(lake), first)
    loop = CoordinatorLoop(machine, start_worker=lambda worker: None, control=control)
    loop.start()
    for worker in first.workers:
        loop.register(worker, f"host-{worker}", Mute())
    control.wait_written(SECONDS_MAX)
    yield loop
    loop.stop(0.0)


def test_what_a_rescale_leads_to_is_in_the_lake_when_it_has_begun(loop: CoordinatorLoop, lake: OwnedLake) -> None:
    ticket = loop.rescale(3, None, Strategy.LAZY, None)
    assert loop.rescales.progress(ticket, "queued", SECONDS_MAX)["state"] == "starting"
    record = find_control(lake).record
    assert record is not None
    assert record.target is not None
    assert record.target.workers == (0, 1, 2)
    told = [(entry["strategy"], entry["from"], entry["to"], entry["outcome"]) for entry in loop.rescale_history()]
    assert told == [("lazy", 2, 3, None)]


def test_how_it_has_ended_is_in_the_lake_when_clients_hear_of_it(loop: CoordinatorLoop, lake: OwnedLake) -> None:
    ticket = loop.rescale(3, None, Strategy.LAZY, None)
    loop.rescales.progress(ticket, "queued", SECONDS_MAX)
    loop.rescales.abort(ticket)
    assert loop.rescales.progress(ticket, "starting", SECONDS_MAX)["state"] == "aborted"
    record = find_control(lake).record
    assert record is not None
    assert (record.placement.workers, record.target) == ((WorkerId(0), WorkerId(1)), None)
    (entry,) = record.rescales
    assert entry.outcome == "aborted"
    assert entry.seconds is not None
    assert [view["name"] for view in loop.view_history()] == ["rows"]
    assert loop.status()["unrecorded"] is None
