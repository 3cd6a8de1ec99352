"""Each named fault of ICADD: shown on the rules as published, by a shortest trace, and gone once they are mended."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulator.icadd_cases import BYSTANDER, PAIR
from simulator.icadd_faults import FAULTS, PublishedFault, search_published
from simulator.icadd_join import search_join
from simulator.icadd_node import NodeKind, ProtocolViolation
from simulator.icadd_scenario import mended, published
from simulator.icadd_search import Search, tell
from simulator.icadd_world import IcaddStep, IcaddWorld
from simulator.published.published import PublishedRules

BY_NUMBER = {fault.number: fault for fault in FAULTS}


def check_shown_and_mended(number: str, steps: int) -> list[str]:
    """The fault is found after exactly so many steps, and no checker finds anything once it is mended."""
    fault: PublishedFault = BY_NUMBER[number]
    finding = fault.shortest()
    assert finding is not None
    story = tell(fault.case, fault.rulebook, finding)
    assert len(finding.steps) == steps, story
    assert story[-1].startswith(f"{fault.kind}: ")
    searched = Search(fault.case, mended()).everything(50_000)
    assert searched.complete
    assert not searched.findings
    return story


def test_r1_the_version_rule_splits_state() -> None:
    story = check_shown_and_mended("R1", steps=5)
    assert "by rule V while 2 has its key's state" in story[-1]


def test_r2_done_overtakes_rows_on_their_detour() -> None:
    story = check_shown_and_mended("R2", steps=10)
    assert "1 receives from 0: WorkerDone [After]" in story


def test_r3_a_bystander_reorders_its_own_rows() -> None:
    story = check_shown_and_mended("R3", steps=10)
    assert not any("[After]" in line for line in story)


def test_r3_outlives_the_mends_of_r1_and_r2() -> None:
    rulebook = published(PublishedRules(version_rule_asks_sender=True, done_counts_early=True))
    fault = BY_NUMBER["R3"]
    finding = Search(BYSTANDER, rulebook).first(fault.is_this, 200_000)
    assert finding is not None
    assert finding.violation.kind is NodeKind.ORDER


def test_r4_a_new_key_is_stranded() -> None:
    story = check_shown_and_mended("R4", steps=8)
    assert "ends at 0, and belongs to 1" in story[-1]


def test_r5_a_joiner_makes_state_of_its_own() -> None:
    check_shown_and_mended("R5", steps=1)


def test_r7_an_early_done_is_lost() -> None:
    story = check_shown_and_mended("R7", steps=9)
    assert "never settles" in story[-1]


def test_r8_a_leaver_goes_too_early() -> None:
    story = check_shown_and_mended("R8", steps=11)
    assert "which has left" in story[-1]


def test_r10_an_epoch_ends_over_held_rows() -> None:
    check_shown_and_mended("R10", steps=10)


def test_r11_barriers_cut_through_rows_on_their_detour() -> None:
    story = check_shown_and_mended("R11", steps=12)
    settled = [place for place, line in enumerate(story) if "[After]" in line]
    barriers = [place for place, line in enumerate(story) if "sends its barrier" in line]
    assert max(settled) < min(barriers), "the snapshot waits until all have finished, and that is not enough"


def test_a_snapshot_of_rows_on_both_sides_is_right_once_mended() -> None:
    searched = Search(replace(PAIR, snapshot=True), mended()).everything(50_000)
    assert searched.complete
    assert searched.ends > 1
    assert not searched.findings


def test_r14_of_two_distributors_one_collects_and_one_lets_through() -> None:
    _, story = search_join(published, distributors=2)
    assert len(story) - 1 == 4, story
    assert story[-1].startswith("SPLIT: ")
    tried, clean = search_join(mended, distributors=1)
    assert not clean
    assert tried > 50


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
    fault = BY_NUMBER[number]
    finding = fault.shortest()
    assert finding is not None
    begin = IcaddWorld(fault.case, fault.rulebook)
    assert not any(fault.is_this(*way) for way in ways(begin, (), len(finding.steps) - 1))
    assert any(fault.is_this(*way) for way in ways(begin, (), len(finding.steps)))


def test_the_search_tells_all_faults_in_json() -> None:
    found = json.loads(json.dumps(search_published()))
    assert [entry["fault"] for entry in found] == ["R1", "R2", "R3", "R4", "R5", "R7", "R8", "R10", "R11", "R14"]
    for entry in found:
        assert entry["found"]
        assert entry["trace"][-1].startswith(entry["kind"])
        assert len(entry["trace"]) == entry["steps"] + 1
