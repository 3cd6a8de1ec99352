"""A side of a benchmark in a process of its own: how it ended, what it said, what it used."""

from pathlib import Path

import pytest

from benchmarks.contest import run_side


@pytest.mark.parametrize(("task", "code"), [('{"rows": 5}', 0), ('{"rows": ', 1)])
def test_a_side_runs_to_its_end_under_a_meter(tmp_path: Path, task: str, code: int) -> None:
    (tmp_path / "task.json").write_text(task)
    watched = run_side("json.tool", tmp_path / "task.json", tmp_path / "output", run_s_max=60)
    assert watched.code == code
    assert watched.meter.cpu_s
    if code:
        assert "Expecting value" in watched.said[-1]
    else:
        assert [line.strip() for line in watched.said] == ["{", '"rows": 5', "}"]


def test_a_side_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text("{}")
    watched = run_side("json.tool", tmp_path / "task.json", tmp_path / "output", run_s_max=-1e9)
    assert (watched.code, watched.said) == (-9, [])
