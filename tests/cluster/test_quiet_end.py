"""A program that had streams ends without a word of what could not be unloaded."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "quiet_end.py"
SECONDS_MAX = 300.0

pytestmark = pytest.mark.cluster


def test_a_program_that_had_a_stream_ends_in_silence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()) == (0, ["IngestFailed", "[{'k': 1, 'total': 5}]"]), (
        ended.stderr
    )
    assert "nanobind" not in ended.stderr
