"""Each named fault of the published protocols: shown by a shortest trace, and gone by the rules that ship."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from simulator.icadd_cases import BYSTANDER, PAIR
from simulator.icadd_join import search_join
from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_scenario import mended, published
from simulator.icadd_search import Search, tell
from simulator.icadd_world import IcaddStep, IcaddWorld
from simulator.published.published import PublishedRules
from simulator.published_faults import FAULTS, PublishedFault, on_the_graph, search_published
from simulator.redistribute_rulebook import redistribute_rulebook

BY_NUMBER = {fault.number: (protocol, fault) for protocol, faults in FAULTS.items() for fault in faults}
SHIPS = {"icadd": mended(), "redistribute": redistribute_rulebook()}
SHOWN = [
    ("R1", 5, "by rule V while 2 has its key's state"),
    ("R2", 10, ""),
    ("R3", 10, ""),
    ("R4", 8, "ends at 0, and belongs to 1"),
    ("R5", 1, ""),
    ("R7", 9, "never settles"),
    ("R8", 11, "which has left"),
    ("R10", 10, ""),
    ("R11", 12, ""),
    ("P1", 8, "while 0 has its key's state"),
    ("P1, empty sets", 7, "ends at 0, and belongs to 1"),
    ("P2", 10, "while 0 has its key's state"),
    ("P3", 10, "came to a worker that has made some of its own"),
    ("P4", 8, "while 1 has its key's state"),
    ("P5", 6, "while 0 has its key's state"),
]


def story(fault: PublishedFault) -> list[str]:
    finding = fault.shortest()
    assert finding is not None
    return tell(fault.case, fault.rulebook, finding)


def test_every_fault_is_tried() -> None:
    assert [number for number, _, _ in SHOWN] == list(BY_NUMBER)


@pytest.mark.parametrize(("number", "steps", "words"), SHOWN, ids=[number for number, _, _ in SHOWN])
def test_a_fault_is_found_in_so_many_steps_and_mended(number: str, steps: int, words: str) -> None:
    protocol, fault = BY_NUMBER[number]
    *told, finding = story(fault)
    assert len(told) == steps, told
    assert finding.startswith(f"{fault.kind}: ")
    assert words in finding
    searched = Search(fault.case, SHIPS[protocol]).everything(50_000)
    assert searched.complete
    assert not searched.findings


ON_THE_GRAPH: Mapping[str, tuple[pytest.MarkDecorator, ...]] = {
    "R3": (pytest.mark.long,),
    "R4": (pytest.mark.verify,),
    "R10": (pytest.mark.long,),
}
"""Faults that a search does not find within a second or two."""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=ON_THE_GRAPH.get(number, ()))
        for number, (protocol, _) in BY_NUMBER.items()
        if protocol == "icadd"
    ],
)
def test_a_fault_shows_on_the_documents_own_graph_and_is_mended(number: str) -> None:
    fault = on_the_graph(BY_NUMBER[number][1])
    *told, finding = story(fault)
    assert finding.startswith(f"{fault.kind}: ")
    assert any("next region" in line for line in (*told, finding))
    searched = Search(fault.case, SHIPS["icadd"]).everything(5_000)
    assert not searched.findings


def test_r2_done_overtakes_rows_on_their_detour() -> None:
    assert "1 receives from 0: WorkerDone [After]" in story(BY_NUMBER["R2"][1])


def test_r3_a_bystander_reorders_its_own_rows() -> None:
    assert not any("[After]" in line for line in story(BY_NUMBER["R3"][1]))


def test_r3_outlives_the_mends_of_r1_and_r2() -> None:
    rulebook = published(PublishedRules(version_rule_asks_sender=True, done_counts_early=True))
    finding = Search(BYSTANDER, rulebook).first(BY_NUMBER["R3"][1].is_this, 200_000)
    assert finding is not None
    assert finding.violation.kind is NodeKind.ORDER


def test_r11_a_snapshot_that_waits_until_all_have_finished_is_cut_through_rows_all_the_same() -> None:
    told = story(BY_NUMBER["R11"][1])
    settled = [place for place, line in enumerate(told) if "[After]" in line]
    barriers = [place for place, line in enumerate(told) if "sends its barrier" in line]
    assert max(settled) < min(barriers)


def test_a_snapshot_of_rows_on_both_sides_is_right_once_mended() -> None:
    searched = Search(replace(PAIR, snapshot=True), mended()).everything(50_000)
    assert searched.complete
    assert searched.ends > 1
    assert not searched.findings


def test_r14_of_two_distributors_one_collects_and_one_lets_through() -> None:
    _, told = search_join(published, distributors=2)
    assert len(told) - 1 == 4, told
    assert told[-1].startswith("SPLIT: ")
    tried, clean = search_join(mended, distributors=1)
    assert not clean
    assert tried > 50


def test_p2_needs_two_distributors() -> None:
    finding = BY_NUMBER["P2"][1].shortest()
    assert finding is not None
    assert {step.worker for step in finding.steps if step.kind == "input"} == {1, 2}


def ways(
    world: IcaddWorld, steps: tuple[IcaddStep, ...], steps_max: int
) -> Iterator[tuple[IcaddWorld, tuple[IcaddStep, ...], ProtocolViolation]]:
    """Every violation within so many steps, found by trying all ways, one by one, equal states or not."""
    possible = world.possible()
    if not possible:
        try:
            world.check_end()
        except ProtocolViolation as violation:
            yield world, steps, violation
    for step in possible if steps_max else ():
        after = world.copy()
        try:
            after.take(step)
        except ProtocolViolation as violation:
            yield world, (*steps, step), violation
            continue
        yield from ways(after, (*steps, step), steps_max - 1)


@pytest.mark.parametrize("number", ["R1", "R4", "R5", "R7"])
def test_no_shorter_way_leads_to_the_fault(number: str) -> None:
    _, fault = BY_NUMBER[number]
    finding = fault.shortest()
    assert finding is not None
    begin = IcaddWorld(fault.case, fault.rulebook)
    assert not any(fault.is_this(*way) for way in ways(begin, (), len(finding.steps) - 1))
    assert any(fault.is_this(*way) for way in ways(begin, (), len(finding.steps)))


@pytest.mark.parametrize(("protocol", "more"), [("icadd", ["R14"]), ("redistribute", [])])
def test_the_search_tells_all_faults_in_json(protocol: str, more: list[str]) -> None:
    found = json.loads(json.dumps(search_published(protocol)))
    assert [entry["fault"] for entry in found] == [*(fault.number for fault in FAULTS[protocol]), *more]
    for entry in found:
        assert entry["found"]
        assert entry["trace"][-1].startswith(entry["kind"])
        assert len(entry["trace"]) >= entry["steps"]
