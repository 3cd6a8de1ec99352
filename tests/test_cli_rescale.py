"""``upriver rescale`` and ``upriver status --watch``: what they ask for, what they show, how they end."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from client_kit import EPOCH, Cluster
from rescale_kit import TICKET, UNDERWAY, Coordinator, progress, report
from server_kit import TOKEN

from upriver.cli import main
from upriver.client.client import TOKEN_VARIABLE
from upriver.client.rescale import STRATEGIES
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.text import Screen, render_bytes


@dataclass(frozen=True)
class Shell:
    """The command line, with a cluster to speak to."""

    coordinator: Coordinator
    address: str
    capsys: pytest.CaptureFixture[str]

    def run(self, *arguments: str) -> int:
        command, *rest = arguments
        return main([command, "--address", self.address, "--token", TOKEN, *rest])

    def out(self) -> str:
        """What it has printed since it was last asked, its errors left out."""
        return self.capsys.readouterr().out

    def err(self) -> str:
        return self.capsys.readouterr().err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    coordinator = Coordinator()
    cluster = Cluster(2, coordinator.actions())
    yield Shell(coordinator, cluster.coordinator.address, capsys)
    cluster.stop()


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


REPORT_TEXT = """\
rescale 7                  icadd, 2 -> 3 workers
-------------------------  -------------------------------
outcome                    finished
moved                      1,234 keys in 5 vnodes, 56.8 kB
took                       1.250 s
longest wait of a key      3.2 ms
longest stall of a worker  4.6 ms
rows forwarded, bounced    1,000, 20
"""


def test_rescale_tells_of_itself_line_by_line(shell: Shell) -> None:
    assert shell.run("rescale", "3") == 0
    name = "rescale 7 (icadd, 2 -> 3 workers)"
    assert shell.out().splitlines() == [
        f"{name}: starting, [{'.' * 30}] 0/5 vnodes, 0 B of 0 B, 0.5 s",
        f"{name}: moving, [############..................] 400/1,000 keys, 40.0 kB of 100.0 kB, 0.9 s",
        f"{name}: moving, [###########################...] 900/1,000 keys, 90.0 kB of 100.0 kB, 1.1 s",
        f"{name}: finished, [{'#' * 30}] 1,000/1,000 keys, 100.0 kB of 100.0 kB, 0.5 s",
        *REPORT_TEXT.splitlines(),
    ]


def test_a_log_has_one_line_for_each_second(shell: Shell) -> None:
    moving = [progress("moving", tenths, 30, seconds=tenths / 10) for tenths in range(30)]
    shell.coordinator.script = [*moving, progress("finished", 30)]
    assert shell.run("rescale", "3") == 0
    assert [line.split()[-2] for line in shell.out().splitlines()[:4]] == ["0.0", "1.0", "2.0", "0.5"]


def test_of_a_rescale_that_waits_little_is_known(shell: Shell) -> None:
    queued = progress("queued", vnodes_moving=0, seconds=0.0) | {"from": None, "to": None}
    shell.coordinator.script = [queued, progress("aborted")]
    shell.coordinator.report = report("aborted") | {"from": None, "to": None}
    assert shell.run("rescale", "--abort", "7") == 0
    lines = shell.out().splitlines()
    assert lines[0] == "rescale 7 (icadd, ? -> ? workers): queued"
    assert lines[1].startswith("rescale 7 (icadd, 2 -> 3 workers): aborted, ")
    assert lines[2].split("  ")[-1] == "icadd, ? -> ? workers"


def test_rescale_ends_with_one_json_object(shell: Shell) -> None:
    moves = ["--move", "3=1", "--move", "4=0", "--strategy", STRATEGIES[1], "--keys", "10"]
    assert shell.run("rescale", *moves, "--json") == 0
    assert json.loads(shell.out().splitlines()[-1]) == shell.coordinator.report
    asked = {"workers": None, "moves": {"3": 1, "4": 0}, "strategy": "redistribute", "keys_max": 10}
    assert shell.coordinator.heard()[0] == ("rescale", asked)


def test_on_a_terminal_the_progress_stays_in_its_place(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    share = {"worker": 1, "view": "planes", "phase": "Collecting", "keys_moved": 400, "keys_left": 600}
    moving = progress("moving", 400, 600, seconds_left=1.5, workers=[{**share, "bytes_moved": 40_000}])
    shell.coordinator.script = [progress("starting", waits_for="worker 2 to start"), moving, progress("finished", 1000)]
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "58")
    with redirect_stdout(terminal):
        assert shell.run("rescale", "3") == 0
    first, second, last = terminal.getvalue().replace("\x1b[J", "").split("\x1b[")
    assert first.splitlines() == [
        "rescale 7 (icadd, 2 -> 3 workers): starting, waits for worker 2 to start"[:57],
        "[..............................] 0/5 vnodes",
        "0 B of 0 B, 0.5 s",
    ]
    assert second.splitlines() == [
        "3Frescale 7 (icadd, 2 -> 3 workers): moving",
        "[############..................] 400/1,000 keys",
        "40.0 kB of 100.0 kB, 0.5 s, about 1.5 s left",
        "worker  view    phase       keys moved  keys left    moved"[:57],
        "------  ------  ----------  ----------  ---------  -------"[:57],
        "     1  planes  Collecting         400        600  40.0 kB"[:57],
    ]
    assert last.startswith("6Frescale 7 (icadd, 2 -> 3 workers): finished\n")
    assert last.endswith("\n" + REPORT_TEXT)


def test_a_low_window_shows_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "4")
    terminal = Terminal()
    screen = Screen(terminal)
    screen.show("a\nb\nc\nd\ne")
    screen.show("f")
    assert terminal.getvalue() == "a\nb\nc\n\x1b[3F\x1b[Jf\n"


def test_rescale_need_not_wait(shell: Shell) -> None:
    assert shell.run("rescale", "3", "--no-wait", "--json") == 0
    assert json.loads(shell.out()) == {"ticket": TICKET}
    assert shell.run("rescale", "3", "--no-wait") == 0
    assert f"upriver rescale --abort 7 --address {shell.address}" in shell.out()
    assert {action for action, _ in shell.coordinator.heard()} == {"rescale"}


def test_how_to_go_on_names_the_root_that_was_given_and_no_token(shell: Shell, tmp_path: Path) -> None:
    root = tmp_path / "a lake"
    owned = OwnedLake(str(root), LakeRecord(1, (), {}), {})
    owned.announce(shell.address)
    owned.release()
    assert main(["rescale", "3", "--no-wait", "--root", str(root), "--token", TOKEN]) == 0
    said = shell.out()
    assert f"upriver status --watch --root '{root}'; " in said
    assert f"upriver rescale --abort 7 --root '{root}'\n" in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    ("arguments", "outcome", "ended"),
    [
        (["3"], "finished", 0),
        (["3"], "aborted", 1),
        (["--abort", "7"], "aborted", 0),
        (["--abort", "7"], "finished", 1),
    ],
)
def test_the_exit_status_says_whether_it_ended_as_asked(
    shell: Shell, arguments: list[str], outcome: str, ended: int
) -> None:
    shell.coordinator.report = report(outcome)
    assert shell.run("rescale", *arguments) == ended
    assert (shell.coordinator.heard()[0][0] == "rescale_abort") == ("--abort" in arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "DeclarationError: rescale to what?"),
        (["0"], "DeclarationError: workers=0"),
        (["3", "--strategy", "magic"], "DeclarationError: strategy='magic'"),
        (["3", "--keys", "0"], "DeclarationError: keys_max=0"),
        (["3", "--move", "1=1"], "DeclarationError: workers and moves"),
        (["--move", "1=1", "--move", "1=0"], "UserError: --move names a vnode twice"),
        (["--abort", "7", "3"], "UserError: --abort TICKET goes without N"),
        (["--abort", "7", "--strategy", "icadd"], "UserError: --abort TICKET goes without N"),
    ],
)
def test_nonsense_on_the_command_line_ends_with_status_2(shell: Shell, arguments: list[str], said: str) -> None:
    assert shell.run("rescale", *arguments) == 2
    assert f"upriver: {said}" in shell.err()
    assert shell.coordinator.heard() == []


@pytest.mark.parametrize("move", ["1", "1=", "=1", "a=1", "1=-1", "1=1=1"])
def test_a_move_is_a_vnode_and_a_worker(shell: Shell, move: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        shell.run("rescale", "--move", move)
    assert "is not of the form V=W" in shell.err()


@pytest.mark.parametrize(("outcome", "status"), [("refused", 2), ("failed", 1)])
def test_a_rescale_that_fails_says_why(shell: Shell, outcome: str, status: int) -> None:
    shell.coordinator.script, shell.coordinator.report = [progress(outcome)], report(outcome, "worker 1 was lost")
    assert shell.run("rescale", "3") == status
    assert "worker 1 was lost" in shell.err()


def test_ctrl_c_leaves_the_rescale_running_and_says_how_to_go_on(shell: Shell) -> None:
    shell.coordinator.script = [progress("moving", 400, 600)]
    shell.coordinator.interrupt("rescale_progress")
    assert shell.run("rescale", "3") == 130
    error = shell.err()
    assert "It goes on" in error
    assert "upriver status --watch" in error
    assert "upriver rescale --abort 7" in error
    assert "rescale_abort" not in [action for action, _ in shell.coordinator.heard()]


def test_so_does_a_timeout(shell: Shell) -> None:
    shell.coordinator.script = [progress("moving", 400, 600)]
    assert shell.run("rescale", "3", "--timeout", "0.05") == 1
    error = shell.err()
    assert "upriver rescale --abort 7" in error
    assert "WaitTimeout: rescale 7 is moving, 400 of 1,000 keys moved" in error


# Status


def test_status_shows_the_rescale_that_is_on(shell: Shell) -> None:
    shell.coordinator.script = UNDERWAY[1:2]
    assert shell.run("status") == 0
    lines = shell.out().splitlines()
    assert lines[0] == f"epoch {EPOCH} of 6 published, map version 2"
    assert "rescale 7 (icadd, 2 -> 3 workers): moving" in lines
    assert "[############..................] 400/1,000 keys" in lines
    assert lines[-1] == "rescales that wait: 1"


def test_status_shows_one_that_has_to_wait(shell: Shell) -> None:
    shell.coordinator.script = [progress("queued")]
    assert shell.run("status") == 0
    lines = shell.out().splitlines()
    assert lines[-2:] == ["rescale 7 (icadd, 2 -> 3 workers): queued", "rescales that wait: 1"]


def test_watching_ends_with_ctrl_c(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.coordinator.interrupt("status")
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert main(["status", "--address", shell.address, "--watch", "--interval", "0.01"]) == 0
    text = shell.out()
    assert text.index("icadd, 2 -> 3 workers): starting") < text.index("icadd, 2 -> 3 workers): moving")


def test_watching_gives_one_json_object_a_line(shell: Shell) -> None:
    shell.coordinator.interrupt("status")
    assert shell.run("status", "--watch", "--interval", "0.01", "--json") == 0
    states = [json.loads(line)["rescale"]["state"] for line in shell.out().splitlines()]
    assert states[:2] == ["starting", "moving"]


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf"])
def test_an_interval_is_some_seconds(shell: Shell, interval: str) -> None:
    assert shell.run("status", "--watch", "--interval", interval) == 2
    assert f"--interval {interval}: give seconds, more than 0" in shell.err()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (10**15, "1000.0 TB")],
)
def test_bytes_are_told_in_powers_of_ten(count: int, text: str) -> None:
    assert render_bytes(count) == text


ENTRY = {
    "term": 2,
    "ticket": 0,
    "began_at": 1_700_000_000.0,
    "strategy": "icadd",
    "from": 2,
    "to": 4,
    "outcome": "interrupted",
    "error": "the driver ended",
    "seconds": None,
    "moved_vnodes": 0,
    "moved_keys": 1_200,
    "moved_bytes": 56_789,
}
HISTORY_TEXT = """\
began rescale outcome took keys moved why
2023-11-14 22:13:20 UTC icadd, 2 -> 4 workers interrupted - 1,200 56.8 kB the driver ended
2023-11-14 22:13:20 UTC icadd, 4 -> 3 workers finished 1.5 s 1,200 56.8 kB
"""
"""But for the spaces between columns, and the line below their names."""


def test_the_history_has_a_line_for_each_rescale(shell: Shell) -> None:
    finished = {**ENTRY, "from": 4, "to": 3, "outcome": "finished", "error": None, "seconds": 1.5}
    shell.coordinator.rescales = [ENTRY, finished]
    assert shell.run("rescale", "--history") == 0
    told = [" ".join(line.split()) for line in shell.out().splitlines()]
    assert [line for line in told if not line.startswith("-")] == HISTORY_TEXT.splitlines()
    assert shell.run("rescale", "--history", "--json") == 0
    assert json.loads(shell.out()) == {"rescales": [ENTRY, finished]}


def test_the_history_goes_without_a_request(shell: Shell) -> None:
    assert shell.run("rescale", "3", "--history") == 2
    assert "--history goes without N" in shell.err()


def test_views_are_listed_with_their_sql(shell: Shell) -> None:
    view = {"name": "a", "sql": "SELECT k\nFROM t", "key": ["k", "j"], "is_partial": True, "since": 1_700_000_000.0}
    gone = {**view, "name": "b", "is_partial": False, "until": 1_700_000_060.0, "ended": "dropped"}
    declared = {**view, "until": None, "ended": None}
    shell.coordinator.views = [gone, declared]
    assert shell.run("views") == 0
    shown = "a: partial view of key k, j, since 2023-11-14 22:13:20 UTC\n    SELECT k\n    FROM t\n"
    assert shell.out() == shown
    assert shell.run("views", "--all") == 0
    assert shell.out() == (
        "b: full view of key k, j, since 2023-11-14 22:13:20 UTC, dropped 2023-11-14 22:14:20 UTC\n"
        f"    SELECT k\n    FROM t\n{shown}"
    )
    assert shell.run("views", "--json") == 0
    assert json.loads(shell.out()) == {"views": [declared]}
