"""How a program ends that runs an app: by itself without a word, by a signal with one line and so that another one goes
on in its root."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "quiet_end.py"
SECONDS_MAX = 300.0

pytestmark = pytest.mark.cluster


SAID = ["IngestFailed", "[{'k': 1, 'total': 5}]"]


def run(directory: Path, *ended_by: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(directory), *ended_by]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def test_a_signal_ends_a_program_with_one_line_and_another_one_goes_on_and_ends_in_silence(tmp_path: Path) -> None:
    """Each goes on with the root of the one before."""
    for by, says in (
        (signal.SIGINT, "interrupted: the app stops"),
        (signal.SIGTERM, "terminated: the app stops"),
    ):
        ended = run(tmp_path, by.name)
        assert (ended.returncode, ended.stdout.splitlines()) == (-by, SAID), ended.stderr
        assert ended.stderr.splitlines()[-1] == f"upriver: {says}"
        assert ended.stderr.count("upriver: ") == 1
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout.splitlines()) == (0, SAID), ended.stderr
    assert "nanobind" not in ended.stderr
