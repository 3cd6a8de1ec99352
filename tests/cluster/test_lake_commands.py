"""``upriver lake compact`` and ``collect``, killed at random moments."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from drivers_kit import Driver, await_change, has_not_ended
from segments_kit import BY_ID, BY_K, BY_N, EVENTS, USERS, Row, check_clean, owned, publish, rows_through
from soak import examples

from upriver.lake.lake import Lake, OwnedLake

COMMAND_S_MAX = 60
KILLED = [("compact", "tables/events/k"), ("compact", "segments"), ("collect", "epochs")]
"""Commands, and the directory of a root whose change says that it is time to kill them."""

pytestmark = pytest.mark.cluster


def publish_some(lake: OwnedLake, epochs: int) -> None:
    for _ in range(epochs):
        number = lake.last_epoch()
        if number % 8 == 3:
            publish(lake, USERS, [(number % 5, number, "Ulm"), (number % 3, number, None)])
        else:
            publish(lake, EVENTS, [(number % 3, number), (7, number)])


def all_rows(root: Path) -> list[list[Row]]:
    """Of an upsert table, how many keys: versions that a newer one has replaced leave it."""
    lake = Lake(str(root))
    users = sorted({row[:2] for row in rows_through(lake, BY_ID)})
    return [sorted(rows_through(lake, BY_K)), sorted(rows_through(lake, BY_N)), users]


def upriver_lake(action: str, root: Path) -> Driver:
    options = ["--grace", "0"] if action == "collect" else []
    command = [sys.executable, "-m", "upriver", "lake", action, str(root), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: Driver) -> str:
    out, _ = process.communicate(timeout=COMMAND_S_MAX)
    assert process.returncode == 0, out
    return out


def test_commands_that_are_killed_lose_no_row_and_the_next_ones_finish_their_work(tmp_path: Path) -> None:
    root, random = tmp_path / "lake", Random(1)
    for action, sign in KILLED * examples(1):
        with owned(root) as lake:
            publish_some(lake, 32)
        rows = all_rows(root)
        process = upriver_lake(action, root)
        await_change(process, root / sign)
        has_not_ended(process, random.choice([0.0, random.uniform(0, 0.05)]))
        process.kill()
        process.communicate(timeout=COMMAND_S_MAX)
        assert all_rows(root) == rows
    ended(upriver_lake("compact", root))
    ended(upriver_lake("collect", root))
    assert all_rows(root) == rows
    check_clean(root, [16] * 2 * len(KILLED) * examples(1))
