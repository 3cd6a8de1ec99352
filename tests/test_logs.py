"""Logs are silent by default, and text or JSON where a program wants them."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from upriver import logs
from upriver.errors import DeclarationError, LakeError
from upriver.logs import LogSettings

QUIET = """
import logging
import upriver.runtime.worker
logging.getLogger("upriver.sources").error("not to be seen")
"""


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    logs.reset()


def test_nothing_is_written_unless_the_program_wants_it() -> None:
    run = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_json_has_one_object_a_line_with_what_it_is_about() -> None:
    written = io.StringIO()
    logs.configure(format="json", stream=written)
    log = logging.getLogger("upriver.sources")
    log.info("table %s: its source\nruns", "Zürich", extra={"table": "Zürich", "epoch": 3})
    log.debug("less than the level")
    try:
        raise LakeError("the disk is full")
    except LakeError:
        log.exception("it has failed")
    first, second = map(json.loads, written.getvalue().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "INFO",
        "logger": "upriver.sources",
        "message": "table Zürich: its source\nruns",
        "table": "Zürich",
        "epoch": 3,
    }
    assert second["exception"].splitlines()[-1] == "upriver.errors.LakeError: the disk is full"


def test_a_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(format="json", stream=first)
    logs.configure(level="WARNING", stream=second)
    logging.getLogger("upriver.views").info("less than the level")
    logging.getLogger("upriver.views").warning("view %s has failed", "v")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("WARNING upriver.views: view v has failed\n")
    assert logs.settings() == LogSettings("text", "WARNING")
    logs.reset()
    assert logs.settings() is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"format": "xml"}, "format='xml': logs are 'text' or 'json'"),
        ({"level": "LOUD"}, "level='LOUD': give 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL'"),
    ],
)
def test_other_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        logs.configure(**wrong)
    assert str(refused.value) == said
    assert logs.settings() is None
