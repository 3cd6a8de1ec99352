"""Each race of document 001: shown on the rules as published, by a shortest trace, and gone by those that ship."""

import json

import pytest

from simulator.icadd_search import Search, tell
from simulator.redistribute_faults import REDISTRIBUTE_FAULTS, search_published_redistribute
from simulator.redistribute_rulebook import redistribute_rulebook

BY_NUMBER = {fault.number: fault for fault in REDISTRIBUTE_FAULTS}


@pytest.mark.parametrize(
    ("number", "steps", "words"),
    [
        ("P1", 8, "while 0 has its key's state"),
        ("P1, empty sets", 7, "ends at 0, and belongs to 1"),
        ("P2", 10, "while 0 has its key's state"),
        ("P3", 10, "came to a worker that has made some of its own"),
        ("P4", 8, "while 1 has its key's state"),
        ("P5", 6, "while 0 has its key's state"),
    ],
)
def test_a_race_is_shown_and_mended(number: str, steps: int, words: str) -> None:
    fault = BY_NUMBER[number]
    finding = fault.shortest()
    assert finding is not None
    story = tell(fault.case, fault.rulebook, finding)
    assert len(finding.steps) == steps, story
    assert story[-1].startswith(f"{fault.kind}: ")
    assert words in story[-1]
    searched = Search(fault.case, redistribute_rulebook()).everything(5_000)
    assert searched.complete
    assert not searched.findings


def test_p2_needs_two_distributors() -> None:
    finding = BY_NUMBER["P2"].shortest()
    assert finding is not None
    assert {step.worker for step in finding.steps if step.kind == "input"} == {1, 2}


def test_the_search_tells_all_races_in_json() -> None:
    found = json.loads(json.dumps(search_published_redistribute()))
    assert [entry["fault"] for entry in found] == list(BY_NUMBER)
    for entry in found:
        assert entry["found"]
        assert entry["trace"][-1].startswith(entry["kind"])
        assert len(entry["trace"]) >= entry["steps"]
