"""Steps of a stop; some of them fail. Commands whose output fails."""

import errno
import logging
import os
import subprocess
import sys

import pytest

from upriver.shutdown import READER_GONE_STATUS, exit_status, run_all


def test_every_step_runs_and_the_first_error_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    done = list[str]()

    def interrupted() -> None:
        done.append("interrupted")
        raise KeyboardInterrupt

    def failing() -> None:
        done.append("failing")
        raise OSError("the disk is gone")

    with caplog.at_level(logging.WARNING, "upriver"), pytest.raises(KeyboardInterrupt):
        run_all(interrupted, failing, lambda: done.append("last"))
    assert done == ["interrupted", "failing", "last"]
    assert "stopping: OSError: the disk is gone" in caplog.text


PRINTS = """
import sys
from upriver.shutdown import exit_status
from upriver.text import print_json

def run():
    if sys.argv[1] == "json":
        print_json(["row"] * 100_000)
    else:
        print("row\\n" * int(sys.argv[1]))
    return 0

sys.exit(exit_status("upriver", run))
"""
"""A command that prints so many lines, or JSON."""


@pytest.mark.parametrize("printed", ["2", "100_000", "json"])
def test_a_command_whose_output_cannot_be_written_ends_without_a_trace(printed: str) -> None:
    def ended(stdout: int) -> tuple[int, str]:
        with open(stdout, "wb"):
            run = subprocess.run(
                [sys.executable, "-c", PRINTS, printed], stdout=stdout, stderr=subprocess.PIPE, text=True
            )
        return run.returncode, run.stderr

    reader, writer = os.pipe()
    os.close(reader)
    assert ended(writer) == (READER_GONE_STATUS, "")
    if os.path.exists("/dev/full"):
        said = "upriver: stdout cannot be written: No space left on device\n"
        assert ended(os.open("/dev/full", os.O_WRONLY)) == (1, said)


def test_another_error_of_the_system_keeps_its_trace() -> None:
    def run() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        exit_status("upriver", run)
