"""Each safety rule is needed: without it, the seed of its record goes wrong at the step of its record, and with all
rules it does not."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from simulator.replays import Replay, by_hand, main, replays, search, switches

ROOT = Path(__file__).parent.parent.parent
REPLAYS, BY_HAND = replays(), by_hand()


def test_every_rule_is_in_the_record_once() -> None:
    assert Counter([*REPLAYS, *BY_HAND]) == Counter(switches())


@pytest.mark.parametrize("rule", REPLAYS)
def test_absence(rule: str) -> None:
    replay = REPLAYS[rule]
    found = replay.found(rule)
    assert found == (replay.step, replay.checker), f"search again: python -m simulator.replays {rule}"


@pytest.mark.parametrize("rule", REPLAYS)
def test_presence(rule: str) -> None:
    assert REPLAYS[rule].found(None) is None


@pytest.mark.parametrize("rule", BY_HAND)
def test_a_rule_that_is_shown_by_hand_has_a_test_that_switches_it_off(rule: str) -> None:
    path, _, name = BY_HAND[rule].partition("::")
    module = ast.parse((ROOT / path).read_text())
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    todo, seen = [name], set[str]()
    while todo:  # what it calls of its own module may switch the rule off
        seen.add(todo[-1])
        called = {node.id for node in ast.walk(functions[todo.pop()]) if isinstance(node, ast.Name)}
        todo += (called & functions.keys()) - seen
    assert any(rule == node.arg for each in seen for node in ast.walk(functions[each]) if isinstance(node, ast.keyword))


def test_a_search_finds_what_the_record_has_and_prefers_its_checker() -> None:
    stale = Replay("icadd_old_owner_first", "icadd: tiny", 0, 0, "SPLIT")
    found = search(stale)
    assert found.holds
    assert (found.checker, stale.holds) == ("SPLIT", False)
    assert str(found).startswith('icadd_old_owner_first = { scenario = "icadd: tiny", seed = ')


def test_a_search_that_finds_nothing_says_so() -> None:
    with pytest.raises(LookupError, match="nothing goes wrong in 200 seeds of icadd: quiet"):
        search(Replay("icadd_whitelist_what_passes", "icadd: quiet", 0, 0, "SPLIT"))


def test_the_command_prints_and_writes_the_new_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "replays.toml"
    record.write_text(f"[replays]\n{Replay('icadd_old_owner_first', 'icadd: tiny', 0, 0, '')}\n")
    assert main(["--write"], record) == 0
    line = capsys.readouterr().out
    assert record.read_text() == f"[replays]\n{line}"
    assert replays(record)["icadd_old_owner_first"].holds
    assert (main([], record), capsys.readouterr().out) == (0, "")
