"""The driver's part of checkpoints on a real lake: published, swept, asked for in time; and the callers that wait for
one."""

import errno
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoint_kit import FIRST, SECOND, VNODES, Model, a_lake, add_epochs, chunks_of, model_of, written
from coordinator_kit import TABLE, planned

from simulator.shared_analyser import SharedAnalyser
from upriver.errors import LakeError, WaitTimeout
from upriver.ids import Epoch, FlowId, VnodeId
from upriver.lake.checkpoint_keeper import CheckpointAction, CheckpointKeeper
from upriver.lake.checkpoint_places import plan_digest, state_of
from upriver.lake.checkpoints import chain, checkpoint_path, load, place_directory, places, read_state
from upriver.lake.files import Files
from upriver.lake.lake import OwnedLake, term_path
from upriver.plan.plan import DataflowPlan, ExchangeEdge, Input
from upriver.plan.provenance import lake_edges
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointsFailed,
    CheckpointsTaken,
    CheckpointUnpublished,
    CheckpointWanted,
    CoordinatorEvent,
    ForgetCheckpoints,
    PublishCheckpoint,
)
from upriver.sql.views import declare_view
from upriver.state.checkpoint import CheckpointPlace, FoundCheckpoints
from upriver.state.failure import ViewFailure

WAIT_S = 20
ONE, TWO, THREE = FlowId(1), FlowId(2), FlowId(3)
A, B = planned("a"), planned("b", "j")
PLANS = (A, B)
PARTIAL = replace(planned("part"), full_because=None)
_STATE = state_of(PLANS)
assert _STATE is not None
STATE = _STATE
PLACE = CheckpointPlace(STATE.digest, STATE.views)
"""Of the flow of both views."""


class Failing:
    """Files of a disk that fails, when it is told to, with what it is told."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.create_fails: Exception | None = None
        self.remove_fails: Exception | None = None

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if self.create_fails:
            raise self.create_fails
        self._files.create(path, content)

    def remove(self, path: str) -> None:
        if self.remove_fails:
            raise self.remove_fails
        self._files.remove(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class Driver:
    """A keeper with a flow of these views, and what it tells the coordinator."""

    def __init__(self, lake: OwnedLake, plans: Sequence[DataflowPlan] = PLANS, interval_s: float | None = None) -> None:
        self.lake = lake
        self.keeper = CheckpointKeeper(lake, interval_s)
        self.found = self.keeper.begin(ONE, plans)
        self.heard: queue.SimpleQueue[CoordinatorEvent] = queue.SimpleQueue()
        self.hears: Callable[[CoordinatorEvent], None] = self.heard.put

    def start(self) -> "Driver":
        self.keeper.start(lambda event: self.hears(event))
        return self

    def wants(self, action: CheckpointAction) -> None:
        self.keeper.carry_out(action)

    def publish(
        self, epoch: int, base: int | None, model: Model = FIRST, flow: FlowId = ONE, region: str = "a"
    ) -> CoordinatorEvent:
        """Have a checkpoint published whose files are there; what is told of it. Its number is its epoch."""
        place = place_of(self, flow)
        files = written(self.lake, epoch, base, {region: [chunks_of(model, 2)]}, place=place).files
        on = None if base is None else Epoch(base)
        self.wants(PublishCheckpoint(flow=flow, checkpoint=epoch, epoch=Epoch(epoch), base=on, files=files))
        return self.heard.get(timeout=WAIT_S)

    def keep(self, *of_use: int, flow: FlowId = ONE) -> None:
        """These are the flow's chain now."""
        self.wants(CheckpointReady(flow=flow, epoch=Epoch(of_use[0]), chain=tuple(map(Epoch, of_use))))

    def catch_up(self) -> None:
        """Wait until what was wanted before is done."""
        self.wants(PublishCheckpoint(flow=ONE, checkpoint=0, epoch=Epoch(1), base=Epoch(1), files=()))
        told = self.heard.get(timeout=WAIT_S)
        assert isinstance(told, CheckpointUnpublished)
        assert "there is none of epoch 1 to build on" in told.error

    def stop(self) -> None:
        """What was wanted before is done then."""
        self.keeper.stop()


def place_of(driver: Driver, flow: FlowId) -> CheckpointPlace:
    place = driver.keeper.place_of(flow)
    assert place is not None
    return place


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@pytest.fixture
def disk(lake: OwnedLake) -> Failing:
    disk = lake.files = Failing(lake.files)
    return disk


@pytest.fixture
def driver(lake: OwnedLake, disk: Failing) -> Iterator[Driver]:
    driver = Driver(lake).start()
    yield driver
    driver.stop()


def there(lake: OwnedLake) -> list[int]:
    return [int(name) for name in lake.files.names(place_directory(PLACE))]


def found(lake: OwnedLake) -> list[int]:
    return [checkpoint.epoch for checkpoint in chain(lake, PLACE, STATE.regions)]


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


# Publishing ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_published_with_the_digests_of_the_plans(lake: OwnedLake, driver: Driver) -> None:
    told = driver.publish(3, None)
    made = load(lake, PLACE, Epoch(3))
    assert told == CheckpointPublished(checkpoint=3, files=made.files)
    assert (made.base, made.keys, made.regions) == (None, len(FIRST), STATE.regions)
    assert isinstance(driver.publish(5, 3, SECOND), CheckpointPublished)
    assert (found(lake), load(lake, PLACE, Epoch(5)).base) == ([5, 3], 3)


@pytest.mark.parametrize("error", [full(), pa.ArrowInvalid("No space left on device")], ids=["disk", "arrow"])
def test_what_goes_wrong_is_told_and_the_keeper_goes_on(
    lake: OwnedLake, driver: Driver, disk: Failing, error: Exception
) -> None:
    files = written(lake, 3, None, {"a": [chunks_of(FIRST, 2)]}, place=PLACE).files
    disk.create_fails = error
    driver.wants(PublishCheckpoint(flow=ONE, checkpoint=1, epoch=Epoch(3), base=None, files=files))
    told = driver.heard.get(timeout=WAIT_S)
    assert isinstance(told, CheckpointUnpublished)
    assert (told.checkpoint, "No space left" in told.error, found(lake)) == (1, True, [])
    disk.create_fails = None
    assert isinstance(driver.publish(3, None), CheckpointPublished)


def test_a_checkpoint_whose_files_are_not_there_is_not_published(lake: OwnedLake, driver: Driver) -> None:
    files = written(lake, 3, None, {"a": [chunks_of(FIRST, 2)]}, place=PLACE).files
    lake.files.remove(f"{place_directory(PLACE)}/000000000003/{files[0].name}")
    driver.wants(PublishCheckpoint(flow=ONE, checkpoint=1, epoch=Epoch(3), base=None, files=files))
    told = driver.heard.get(timeout=WAIT_S)
    assert isinstance(told, CheckpointUnpublished)
    assert "were not written" in told.error


def test_lake_one_owner_a_driver_that_has_lost_the_root_publishes_nothing(lake: OwnedLake, driver: Driver) -> None:
    lake.write_record(term_path(type(lake.term)(lake.term + 1)), {"owner": "another"})
    told = driver.publish(3, None)
    assert isinstance(told, CheckpointUnpublished)
    assert "another driver has taken it over" in told.error


# Sweeping -----------------------------------------------------------------------------------------------------------


def test_the_chain_and_the_one_before_it_are_kept(lake: OwnedLake, driver: Driver) -> None:
    for epoch, base in ((1, None), (2, 1), (3, None), (4, 3)):
        driver.publish(epoch, base)
        driver.keep(*({2: (2, 1), 4: (4, 3)}.get(epoch, (epoch,))))
        if epoch == 3:
            written(lake, 2, 1, {"a": [chunks_of(SECOND, 1)]}, place=PLACE)  # a late part of one that was given up
    written(lake, 5, 4, {"a": [chunks_of(SECOND, 1)]}, place=PLACE)  # which is being written
    driver.stop()
    assert (there(lake), found(lake)) == ([3, 4, 5], [4, 3])


def test_the_chain_before_is_kept_until_there_is_another_one(lake: OwnedLake, driver: Driver) -> None:
    driver.publish(1, None)
    driver.keep(1)
    driver.publish(2, None)
    driver.keep(2)
    driver.keep(2)
    driver.stop()
    assert there(lake) == [1, 2]


def test_what_is_written_of_the_next_one_is_left_alone(lake: OwnedLake, driver: Driver) -> None:
    driver.publish(2, None)
    written(lake, 1, None, {"a": [chunks_of(SECOND, 1)]}, place=PLACE)
    (file, *_) = written(lake, 3, 2, {"a": [chunks_of(SECOND, 1)]}, place=PLACE).files
    driver.keep(2)
    driver.stop()
    assert (there(lake), lake.files.names(f"{place_directory(PLACE)}/000000000003")) == ([2, 3], [file.name])


def test_a_checkpoint_that_was_given_up_goes_with_the_next_sweep(lake: OwnedLake, driver: Driver) -> None:
    written(lake, 1, None, {"a": [chunks_of(SECOND, 1)]}, place=PLACE)
    driver.wants(CheckpointFailed(flow=ONE, epoch=Epoch(1), why="the disk is full"))
    driver.publish(2, None)
    assert there(lake) == [1, 2]
    driver.keep(2)
    driver.stop()
    assert there(lake) == [2]


def test_when_the_views_are_others_all_go(lake: OwnedLake, driver: Driver) -> None:
    driver.publish(1, None)
    driver.keep(1)
    driver.publish(9, 1)
    driver.wants(ForgetCheckpoints(flow=ONE))
    driver.catch_up()
    assert there(lake) == []
    assert isinstance(driver.publish(9, None), CheckpointPublished)
    driver.keep(9)
    driver.stop()
    assert (there(lake), load(lake, PLACE, Epoch(9)).base) == ([9], None)


def test_what_cannot_be_removed_stays_and_the_keeper_goes_on(lake: OwnedLake, driver: Driver, disk: Failing) -> None:
    for epoch in (1, 2):
        driver.publish(epoch, None)
        driver.keep(epoch)
    driver.publish(3, None)
    disk.remove_fails = OSError(errno.EROFS, "Read-only file system")
    driver.keep(3)
    driver.catch_up()
    assert (there(lake), "Read-only" in driver.keeper.status()["failed"]) == ([1, 2, 3], True)
    disk.remove_fails = None
    driver.publish(5, None)
    driver.keep(5)
    driver.stop()
    assert there(lake) == [3, 5]


# When a driver comes ------------------------------------------------------------------------------------------------


def test_a_driver_finds_what_there_is_and_sweeps_the_rest(lake: OwnedLake) -> None:
    first = Driver(lake).start()
    for epoch, base in ((1, None), (2, None), (4, 2)):
        first.publish(epoch, base)
    written(lake, 6, 4, {"a": [chunks_of(SECOND, 1)]}, place=PLACE)
    first.stop()
    second = Driver(lake)
    assert [checkpoint.epoch for checkpoint in second.found.chain] == [4, 2]
    assert there(lake) == [1, 2, 4, 6]
    second.start()
    assert (there(lake), second.keeper.status()) == ([2, 4], {"epoch": 4, "failed": None, "views": {"a": 4, "b": 4}})
    second.publish(7, None)
    second.keep(7)
    second.stop()
    assert there(lake) == [2, 4, 7]


@pytest.mark.parametrize("plans", [(planned("a", "j"), B), (PARTIAL,), ()], ids=["other views", "partial", "none"])
def test_what_other_views_have_left_is_of_no_use(lake: OwnedLake, plans: tuple[DataflowPlan, ...]) -> None:
    first = Driver(lake).start()
    first.publish(9, None)
    first.stop()
    second = Driver(lake, plans)
    assert (second.found.chain, second.keeper.status()["epoch"]) == ((), 0)
    second.start().stop()
    assert places(lake) == []


def test_no_event_is_heard_before_the_start(lake: OwnedLake) -> None:
    with pytest.raises(AssertionError, match="CheckpointWanted before the keeper was started"):
        Driver(lake).keeper.take(WAIT_S)
    Driver(lake).stop()


# Flows --------------------------------------------------------------------------------------------------------------


FEWER = "SELECT k, j FROM t WHERE k > 'x'"


def compiled(name: str, sql: str) -> DataflowPlan:
    return declare_view(name, sql, "j", {"t": TABLE}, {}, SharedAnalyser({"t": TABLE}))


def renamed(plan: DataflowPlan, name: str) -> DataflowPlan:
    """The plan of the same query under another name, declared in other words."""

    def other(region: str) -> str:
        return name + region.removeprefix(plan.name)

    def fed(entry: Input) -> Input:
        edge = entry.edge
        return replace(entry, edge=replace(edge, region=other(edge.region)) if isinstance(edge, ExchangeEdge) else edge)

    regions = tuple(
        replace(region, name=other(region.name), inputs=tuple(map(fed, region.inputs)), why="in other words")
        for region in plan.regions
    )
    return replace(plan, name=name, sql=f"{plan.sql} -- {name}", full_because="for another reason", regions=regions)


def with_flows(lake: OwnedLake, *plans: DataflowPlan) -> Driver:
    """Each view is a flow."""
    driver = Driver(lake, plans[:1])
    for number, plan in enumerate(plans[1:], 2):
        driver.keeper.begin(FlowId(number), [plan])
    return driver.start()


def epochs_of(found: FoundCheckpoints) -> list[int]:
    return [checkpoint.epoch for checkpoint in found.chain]


def test_an_app_with_one_more_view_restores_the_others(lake: OwnedLake) -> None:
    first = with_flows(lake, A, B)
    first.publish(2, None)
    first.publish(4, 2, SECOND)
    first.publish(3, None, flow=TWO, region="b")
    first.stop()
    second = CheckpointKeeper(lake, None)
    found = [second.begin(FlowId(number), [plan]) for number, plan in enumerate((compiled("c", FEWER), A, B), 1)]
    assert list(map(epochs_of, found)) == [[], [4, 2], [3]]
    assert [each.place and each.place.views for each in found] == [("c",), ("a",), ("b",)]
    second.start(lambda event: None)
    assert second.status() == {"epoch": 0, "failed": None, "views": {"c": 0, "a": 4, "b": 3}}
    second.stop()


def test_a_renamed_view_finds_its_checkpoint(lake: OwnedLake) -> None:
    first = with_flows(lake, A)
    files = written(lake, 2, None, {"a": [chunks_of(FIRST, 2)]}, place=place_of(first, ONE)).files
    failed = {"a": ViewFailure(kind="RowError", error="division by zero")}
    first.wants(PublishCheckpoint(flow=ONE, checkpoint=1, epoch=Epoch(2), base=None, files=files, failed=failed))
    first.stop()
    second = Driver(lake, [renamed(A, "seen")])
    (checkpoint,) = second.found.chain
    assert checkpoint.regions.keys() == checkpoint.failed.keys() == {"seen"}
    assert {file.region for file in checkpoint.files} == {"seen"}
    vnodes = tuple(map(VnodeId, range(VNODES)))
    assert model_of(read_state(lake, place_of(second, ONE), [Epoch(2)], "seen", vnodes, VNODES)) == FIRST


def test_views_of_equal_plans_have_a_place_each_in_the_order_of_their_declaration(lake: OwnedLake) -> None:
    twin = renamed(A, "twin")
    first = with_flows(lake, A, twin)
    assert place_of(first, TWO).name == f"{place_of(first, ONE).name}-2"
    first.publish(2, None)
    first.publish(3, None, SECOND, TWO, "twin")
    first.stop()
    second = with_flows(lake, A, twin)
    assert second.keeper.status()["views"] == {"a": 2, "twin": 3}
    second.stop()


def test_a_view_whose_twin_is_gone_finds_its_checkpoint(lake: OwnedLake) -> None:
    """So does one that has taken the name of a view with the same plan."""
    first = with_flows(lake, A, renamed(A, "twin"))
    first.publish(2, None)
    first.publish(3, None, SECOND, TWO, "twin")
    first.keeper.forget(ONE)
    first.stop()
    assert places(lake) == [place_of(first, TWO).name]
    second = Driver(lake, [A])
    assert (epochs_of(second.found), place_of(second, ONE).views) == ([3], ("a",))


def test_checkpoints_of_changed_and_dropped_views_are_swept(lake: OwnedLake) -> None:
    first = with_flows(lake, A, B)
    first.publish(2, None)
    first.publish(3, None, flow=TWO, region="b")
    first.stop()
    second = with_flows(lake, compiled("a", FEWER), B)
    assert places(lake) == [place_of(second, TWO).name]
    second.keeper.forget(TWO)
    second.stop()
    assert places(lake) == []


def test_what_is_published_for_a_flow_that_is_gone_is_refused(lake: OwnedLake) -> None:
    driver = with_flows(lake, A, B)
    files = written(lake, 2, None, {"b": [chunks_of(FIRST, 2)]}, place=place_of(driver, TWO)).files
    driver.keeper.forget(TWO)
    driver.wants(PublishCheckpoint(flow=TWO, checkpoint=5, epoch=Epoch(2), base=None, files=files))
    told = driver.heard.get(timeout=WAIT_S)
    assert isinstance(told, CheckpointUnpublished)
    assert (told.checkpoint, "its views are gone" in told.error) == (5, True)
    for late in (CheckpointReady(flow=TWO, epoch=Epoch(2), chain=(Epoch(2),)), ForgetCheckpoints(flow=TWO)):
        driver.wants(late)
    driver.stop()
    assert driver.keeper.status() == {"epoch": 0, "failed": None, "views": {"a": 0}}


def test_a_view_that_is_added_while_the_app_runs_has_a_clean_place(lake: OwnedLake) -> None:
    driver = with_flows(lake, A)
    driver.publish(3, None)
    written(lake, 5, 3, {"a": [chunks_of(SECOND, 2)]}, place=place_of(driver, ONE))  # which was given up
    driver.keeper.forget(ONE)
    again = driver.keeper.begin(THREE, [renamed(A, "again")])
    assert epochs_of(again) in ([3], [])  # the sweep may have come first
    assert len(lake.files.names(place_directory(place_of(driver, THREE)))) == len(again.chain)
    assert isinstance(driver.publish(4, None, flow=THREE, region="again"), CheckpointPublished)
    driver.keep(4, flow=THREE)
    driver.stop()
    assert driver.keeper.status() == {"epoch": 4, "failed": None, "views": {"again": 4}}
    assert places(lake) == [place_of(driver, THREE).name]


def test_a_flow_of_partial_views_has_no_place(lake: OwnedLake) -> None:
    driver = with_flows(lake, A, PARTIAL)
    assert driver.keeper.place_of(TWO) is None
    driver.wants(CheckpointReady(flow=TWO, epoch=Epoch(3), chain=()))
    driver.publish(2, None)
    driver.keep(2)
    assert driver.keeper.status() == {"epoch": 2, "failed": None, "views": {"a": 2}}
    driver.wants(PublishCheckpoint(flow=TWO, checkpoint=7, epoch=Epoch(3), base=None, files=()))
    assert isinstance(driver.heard.get(timeout=WAIT_S), CheckpointUnpublished)
    driver.stop()


def test_checkpoints_of_releases_before_flows_are_swept(lake: OwnedLake) -> None:
    for name in ("manifest.json", "manifest@00000001.json", "1f.arrows"):
        lake.files.create(f"checkpoints/000000000004/{name}", b"of another form")
    driver = Driver(lake)
    assert (epochs_of(driver.found), driver.keeper.status()["failed"]) == ([], None)
    driver.start().stop()
    assert (lake.files.names("checkpoints"), driver.keeper.status()["failed"]) == ([], None)


def test_a_damaged_checkpoint_has_no_effect_on_other_places(lake: OwnedLake) -> None:
    first = with_flows(lake, A, B)
    for flow, region in ((ONE, "a"), (TWO, "b")):
        first.publish(2, None, flow=flow, region=region)
        first.publish(4, None, flow=flow, region=region)
    first.stop()
    damaged = Path(lake.root, checkpoint_path(place_of(first, ONE), Epoch(4)))
    damaged.write_bytes(b"torn")
    second = CheckpointKeeper(lake, None)
    assert epochs_of(second.begin(ONE, [A])) == [2]
    assert epochs_of(second.begin(TWO, [B])) == [4]
    status = second.status()
    assert (status["views"], str(damaged) in status["failed"]) == ({"a": 2, "b": 4}, True)


def test_publications_of_flows_interleave(lake: OwnedLake, disk: Failing) -> None:
    """A flow whose checkpoint cannot be published holds no other up."""
    driver = with_flows(lake, A, B)
    driver.publish(1, None)
    driver.publish(2, None, flow=TWO, region="b")
    driver.keep(1)
    driver.publish(3, 2, SECOND, flow=TWO, region="b")
    disk.create_fails = full()
    driver.wants(PublishCheckpoint(flow=ONE, checkpoint=9, epoch=Epoch(5), base=Epoch(1), files=()))
    assert isinstance(driver.heard.get(timeout=WAIT_S), CheckpointUnpublished)
    driver.wants(CheckpointFailed(flow=ONE, epoch=Epoch(5), why="no space left"))
    disk.create_fails = None
    driver.keep(3, 2, flow=TWO)
    driver.publish(6, None, flow=TWO, region="b")
    driver.keep(6, flow=TWO)
    driver.publish(6, 1, flow=ONE)
    driver.stop()
    assert driver.keeper.status() == {"epoch": 1, "failed": "epoch 5: no space left", "views": {"a": 1, "b": 6}}
    kept = [lake.files.names(place_directory(place_of(driver, flow))) for flow in (ONE, TWO)]
    assert [[int(name) for name in names] for names in kept] == [[1, 6], [2, 3, 6]]


# Digests ------------------------------------------------------------------------------------------------------------


def test_the_state_of_a_flow_is_that_of_its_full_views() -> None:
    found = state_of([A, B, PARTIAL])
    assert found is not None
    assert (set(found.regions), set(found.views)) == ({"a", "b"}, {"a", "b", "part"})
    assert state_of([PARTIAL]) is None
    first, second = state_of([A, B]), state_of([B, A])
    assert first == second


@pytest.mark.parametrize("other", [planned("a", "j"), replace(A, full_because=None), replace(A, logs_changes=True)])
def test_digests_differ_when_views_do(other: DataflowPlan) -> None:
    assert plan_digest(A) != plan_digest(other)


def test_digests_differ_when_bad_rows_of_its_tables_are_set_aside() -> None:
    (table,) = {edge.table for edge in lake_edges(A)}
    assert plan_digest(A, {table, "other"}) == plan_digest(A, {table}) != plan_digest(A) == plan_digest(A, {"other"})
    aside = state_of([A], {table})
    assert aside is not None
    assert aside.digest != plan_digest(A)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT u.j, count(*) AS n FROM t u JOIN t v ON u.k = v.j GROUP BY u.j",
        "SELECT u.j, v.k FROM t u JOIN t v ON u.k = v.k",
    ],
)
def test_names_and_words_are_not_in_a_digest(sql: str) -> None:
    first, second = compiled("seen", sql), compiled("other", sql.replace("SELECT", "select"))
    assert len(first.regions) > 1  # whose edges name regions
    assert first != second
    assert plan_digest(first) == plan_digest(second)


# The callers
# -----------------------------------------------------------------------------------------------------------


def test_a_caller_is_told_the_epoch(driver: Driver) -> None:
    def served(event: CoordinatorEvent) -> None:
        assert isinstance(event, CheckpointWanted)
        driver.wants(CheckpointsTaken(ticket=event.ticket, epoch=Epoch(7)))

    driver.hears = served
    assert [driver.keeper.take(WAIT_S), driver.keeper.take(WAIT_S)] == [7, 7]


def test_a_caller_is_told_why_it_was_given_up(driver: Driver) -> None:
    def refused(event: CoordinatorEvent) -> None:
        assert isinstance(event, CheckpointWanted)
        driver.wants(CheckpointsFailed(ticket=event.ticket, epoch=Epoch(7), why="a worker was lost"))

    driver.hears = refused
    with pytest.raises(LakeError, match="the checkpoint of epoch 7 was given up: a worker was lost"):
        driver.keeper.take(WAIT_S)


def test_the_status_says_why_the_last_checkpoint_was_given_up(driver: Driver) -> None:
    driver.wants(CheckpointFailed(flow=ONE, epoch=Epoch(7), why="a worker was lost"))
    none = {"a": 0, "b": 0}
    assert driver.keeper.status() == {"epoch": 0, "failed": "epoch 7: a worker was lost", "views": none}
    driver.keep(8)
    assert driver.keeper.status() == {"epoch": 8, "failed": None, "views": {"a": 8, "b": 8}}


def test_a_caller_that_has_waited_in_vain_is_told_so_and_not_served_later(driver: Driver) -> None:
    with pytest.raises(WaitTimeout, match="no checkpoint in 0 s"):
        driver.keeper.take(0)
    asked = driver.heard.get(timeout=WAIT_S)
    assert isinstance(asked, CheckpointWanted)
    for again in (asked.ticket, asked.ticket):
        driver.wants(CheckpointsTaken(ticket=again, epoch=Epoch(7)))


def test_when_the_views_are_others_there_is_no_newest_checkpoint(driver: Driver) -> None:
    driver.keep(8)
    driver.wants(ForgetCheckpoints(flow=ONE))
    assert driver.keeper.status()["epoch"] == 0


# Time and the end ---------------------------------------------------------------------------------------------------


def test_checkpoints_are_asked_for_in_time_whatever_else_there_is_to_do(lake: OwnedLake) -> None:
    driver = Driver(lake, interval_s=0.001).start()
    tickets = []
    for _ in range(4):
        asked = driver.heard.get(timeout=WAIT_S)
        assert isinstance(asked, CheckpointWanted)
        tickets.append(asked.ticket)
        driver.keep(1)
        assert driver.heard.empty()  # before it is known what has become of the last one
        driver.wants(CheckpointsFailed(ticket=asked.ticket, epoch=Epoch(1), why="a worker was lost"))
    driver.stop()
    assert len(set(tickets)) == 4


def test_requests_and_the_interval_have_tickets_of_their_own(lake: OwnedLake) -> None:
    driver = Driver(lake, interval_s=0.001).start()
    by_time = driver.heard.get(timeout=WAIT_S)
    driver.stop()
    with pytest.raises(WaitTimeout):
        driver.keeper.take(0)
    tickets = [by_time.ticket] if isinstance(by_time, CheckpointWanted) else []
    while not driver.heard.empty():
        event = driver.heard.get()
        assert isinstance(event, CheckpointWanted)
        tickets.append(event.ticket)
    assert len(tickets) == len(set(tickets)) >= 2


def test_without_an_interval_only_requests_count_and_those_before_the_end_are_served(lake: OwnedLake) -> None:
    driver = Driver(lake).start()
    add_epochs(lake, 10)
    files = written(lake, 10, None, {"a": [chunks_of(FIRST, 2)]}, place=PLACE).files
    driver.wants(PublishCheckpoint(flow=ONE, checkpoint=1, epoch=Epoch(10), base=None, files=files))
    driver.stop()
    driver.stop()
    assert found(lake) == [10]
    assert driver.heard.get(timeout=WAIT_S) == CheckpointPublished(checkpoint=1, files=files)
    assert driver.heard.empty()
    driver.wants(PublishCheckpoint(flow=ONE, checkpoint=2, epoch=Epoch(9), base=None, files=()))
    assert driver.heard.empty()
