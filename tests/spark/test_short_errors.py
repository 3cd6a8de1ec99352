"""A script shows one traceback for a wrong call, with its own lines and one message."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "wrong_calls.py"
SECONDS_MAX = 300.0
LINES_MAX = 12
CALLS_MIN = 50

pytestmark = [pytest.mark.spark, pytest.mark.verify]


def test_each_wrong_call_shows_one_traceback_of_the_callers_lines_and_one_message(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, ended.stderr
    shown = [part.partition("\n") for part in ended.stderr.split("#### ")[1:]]
    assert len(shown) >= CALLS_MIN
    for name, _, text in shown:
        lines = text.splitlines()
        assert text.count("Traceback") == 1, (name, text)
        assert len(lines) <= LINES_MAX, (name, text)
        assert all(PROGRAM.name in line for line in lines if line.startswith("  File ")), (name, text)
        assert any(line.startswith("upriver.errors.") for line in lines), (name, text)
