"""Steps of a stop; some of them fail."""

import logging

import pytest

from upriver.shutdown import run_all


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
