"""Programs that are drivers of their own, for tests that kill them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
LOOK_S = 0.005
WAIT_S = 240
"""Seconds that one driver may take."""
Driver = subprocess.Popen[str]


class Drivers:
    """Starts one program again and again, each time in a session of its own."""

    def __init__(self, program: str) -> None:
        self._program = PROGRAMS / program
        self.started: list[Driver] = []

    def __call__(self, *arguments: str | Path) -> Driver:
        command = [sys.executable, str(self._program), *map(str, arguments)]
        driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.started.append(driver)
        return driver


@contextmanager
def drivers(program: str) -> Iterator[Drivers]:
    """No driver, and no process of one, outlives the test."""
    started = Drivers(program)
    try:
        yield started
    finally:
        for driver in started.started:
            kill_session(driver)
            driver.communicate()


def kill_session(driver: Driver) -> None:
    """Kill all processes that a driver has started, and the driver."""
    for pid, _ in live_processes():
        if session_of(pid) == driver.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_of(session: int) -> list[str]:
    """Command lines of the live processes of a session."""
    return [command for pid, command in live_processes() if session_of(pid) == session]


def live_processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if command:
                yield int(entry.name), command


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def finish(driver: Driver) -> dict[str, Any]:
    """Let a driver end, and read what it printed last."""
    out, _ = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0, out
    printed: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return printed


def await_change(driver: Driver, directory: Path) -> None:
    """Block until other names are in a directory, or the driver has ended."""
    before, give_up_at = names_in(directory), time.monotonic() + WAIT_S
    while names_in(directory) == before and has_not_ended(driver, LOOK_S):
        assert time.monotonic() < give_up_at, f"nothing happens in {directory}"


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory)) if directory.is_dir() else []


def has_not_ended(driver: Driver, seconds: float) -> bool:
    """Whether it still runs after so many seconds."""
    try:
        driver.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False
