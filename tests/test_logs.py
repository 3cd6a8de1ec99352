"""Logs are silent by default, and text or JSON where a program wants them. They have the traces of short errors."""

import asyncio
import inspect
import io
import json
import logging
import pickle
import re
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import upriver
from upriver import logs
from upriver.errors import DeclarationError, LakeError, ProtocolError
from upriver.logs import NAMES, REPEAT_S, REPEATS_MAX, LogSettings, Repeats, with_short_errors

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


@with_short_errors
class Calls:
    """Each public member raises an error that has a cause."""

    def __init__(self, raises: bool = False) -> None:
        if raises:
            self._deep()

    def _deep(self) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise LakeError("torn") from error

    def call(self, number: int = 1) -> int:
        """A docstring."""
        self._deep()
        return number

    def through(self) -> int:
        return self.call()

    @property
    def value(self) -> int:
        """Of a property."""
        return self.call()

    def items(self) -> Iterator[int]:
        yield self.call()

    async def later(self) -> int:
        return self.call()

    async def later_items(self) -> AsyncIterator[int]:
        yield self.call()

    def fault(self) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ProtocolError("ours") from error


async def first_of(calls: Calls) -> int:
    return await anext(aiter(calls.later_items()))


@pytest.mark.parametrize(
    "call",
    [
        lambda calls: type(calls)(True),
        lambda calls: calls.call(),
        lambda calls: calls.through(),
        lambda calls: calls.value,
        lambda calls: next(calls.items()),
        lambda calls: asyncio.run(calls.later()),
        lambda calls: asyncio.run(first_of(calls)),
    ],
)
def test_a_public_call_raises_one_short_error_and_the_log_has_its_trace_once(call: Callable[[Calls], Any]) -> None:
    written = io.StringIO()
    logs.configure(level="DEBUG", stream=written)
    with pytest.raises(LakeError) as raised:
        call(Calls())
    shown = "".join(traceback.format_exception(raised.value))
    assert shown.count("Traceback") == 1
    assert shown.splitlines()[-1] == "upriver.errors.LakeError: torn"
    assert "_deep" not in shown
    assert "upriver/logs.py" not in shown
    assert isinstance(raised.value.__context__, KeyError)
    logged = written.getvalue()
    assert logged.count("DEBUG upriver.errors: LakeError: torn") == 1
    assert "direct cause" in logged
    assert "in _deep" in logged


def test_a_fault_of_ours_keeps_its_trace() -> None:
    with pytest.raises(ProtocolError) as raised:
        Calls().fault()
    shown = "".join(traceback.format_exception(raised.value))
    assert "direct cause" in shown
    assert "in fault" in shown


def test_calls_with_short_errors_have_their_own_signatures() -> None:
    assert str(inspect.signature(Calls.call)) == "(self, number: int = 1) -> int"
    assert (Calls.call.__doc__, Calls.value.__doc__) == ("A docstring.", "Of a property.")
    assert inspect.iscoroutinefunction(Calls.later)
    assert list(inspect.signature(upriver.connect).parameters) == ["address", "token", "root", "tls", "timeout"]
    assert pickle.loads(pickle.dumps(upriver.connect)) is upriver.connect


def test_a_message_that_repeats_is_written_once_a_minute_with_its_count() -> None:
    now, written = [0.0], io.StringIO()
    log = logging.getLogger("upriver.made_for_this_test")
    repeats = Repeats(lambda: now[0])
    log.addFilter(repeats)
    logs.configure(format="json", stream=written)

    def texts() -> list[str]:
        found = [json.loads(line)["message"] for line in written.getvalue().splitlines()]
        written.seek(written.truncate(0))
        return found

    for _ in range(500):
        log.error("no descriptor for %s", "the lake", extra={"table": "orders"})
        now[0] += 0.1
    log.error("no descriptor for %s", "a source")
    log.info("this")
    log.info("this")
    assert texts() == ["no descriptor for the lake", "no descriptor for a source", "this", "this"]
    now[0] = REPEAT_S
    log.error("no descriptor for %s", "the lake")
    assert texts() == ["no descriptor for the lake (again, 499 times since)", "no descriptor for the lake"]
    now[0] = 10 * REPEAT_S
    log.info("that")  # what came once is not written again
    assert texts() == ["that"]
    for number in range(REPEATS_MAX + 1):
        log.warning("%d", number)
    log.warning("0")  # it is forgotten
    assert texts() == [*(str(number) for number in range(REPEATS_MAX + 1)), "0"]


def test_every_logger_is_a_known_one() -> None:
    """Python applies a filter to the records of its own logger alone, and so each is listed."""
    used = {
        name
        for path in Path(upriver.__file__).parent.rglob("*.py")
        for name in re.findall(r"_\w+ = logging\.getLogger\((.*)\)", path.read_text())
    }
    ours = {f'"upriver.{name}"' for name in NAMES if name != "errors"}
    assert used == ours | {'f"{ROOT}.errors"'}
    assert all(logs.REPEATS in logging.getLogger(f"upriver.{name}").filters for name in NAMES)
