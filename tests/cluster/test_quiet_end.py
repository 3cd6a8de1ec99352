"""How a program ends that runs an app: by itself without a word, by a signal with one line and so that another one goes
on in its root."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "quiet_end.py"
SECONDS_MAX = 300.0

pytestmark = pytest.mark.cluster


SAID = ["IngestFailed", "[{'k': 1, 'total': 5}]"]


def run(directory: Path, *ended_by: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(directory), *ended_by]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, start_new_session=True
    )


START, WAIT, CALL, RESCALE = (
    *((signal.SIGINT, "start"), (signal.SIGTERM, None)),
    *((signal.SIGINT, "call"), (signal.SIGTERM, "rescale")),
)
"""What ends a program, and when: amid its start, while it waits, amid a call of Spark, amid a rescale."""


@pytest.mark.parametrize(
    "moments", [(START, RESCALE), pytest.param((START, WAIT, CALL, RESCALE), marks=pytest.mark.long)], ids=len
)
def test_a_signal_ends_a_program_with_one_line_and_another_one_goes_on_and_ends_in_silence(
    tmp_path: Path, moments: Sequence[tuple[signal.Signals, str | None]]
) -> None:
    """Each program goes on with the root of the one before; the last one ends by itself."""
    for by, moment in moments:
        ended = run(tmp_path, by.name, *([] if moment is None else [moment]))
        assert (ended.returncode, ended.stdout.splitlines()) == (-by, [] if moment == "start" else SAID), ended.stderr
        _, _, after = ended.stderr.partition("the signal comes\n")
        assert after == f"upriver: {'interrupted' if by == signal.SIGINT else 'terminated'}: the app stops\n"
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout.splitlines()) == (0, SAID), ended.stderr
    assert "nanobind" not in ended.stderr
