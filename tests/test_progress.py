"""Progress shows in a terminal and in a notebook what a call does, and nowhere else."""

import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from upriver import progress
from upriver.errors import ClusterError, DeclarationError
from upriver.progress import (
    LINES_MAX,
    NotebookScreen,
    ProgressPace,
    ProgressScreen,
    TerminalScreen,
    found_screen,
    progress_shown,
)

SECONDS_MAX = 30.0
AT_ONCE = ProgressPace(0.0, 0.001)


@pytest.fixture(autouse=True)
def undone() -> Iterator[None]:
    yield
    progress.configure()


class Lines:
    """What a call has to say. were_shown: set once it was shown."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines
        self._calls = 0
        self.were_shown = threading.Event()

    def __call__(self) -> tuple[str, ...]:
        self._calls += 1
        if self._calls > 3:  # the lines of earlier calls are on the screen by now
            self.were_shown.set()
        return self._lines


def run(screen: Callable[[], ProgressScreen], lines: Lines, step: str = "reading") -> None:
    with progress_shown("wait", lines, screen, AT_ONCE) as told:
        told(step)
        lines.were_shown.clear()
        assert lines.were_shown.wait(SECONDS_MAX)


def terminal() -> tuple[io.StringIO, Callable[[], ProgressScreen]]:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=60, _environ={})
    return written, lambda: TerminalScreen(console)


def test_a_terminal_shows_the_step_and_the_lines_and_keeps_one() -> None:
    written, screen = terminal()
    run(screen, Lines("[events]: 3 rows in 1 epochs are left", "x" * 100))
    text = written.getvalue()
    assert "Upriver: wait: reading (0 s)" in text
    assert "    [events]: 3 rows in 1 epochs are left" in text
    assert "x" * 60 not in text, "a line is cut where the terminal ends"
    *_, last = text.strip().splitlines()
    assert "Upriver: wait: done after " in last


def test_a_call_that_raises_is_not_called_done() -> None:
    written, screen = terminal()
    lines = Lines()

    def start() -> None:
        with progress_shown("start", lines, screen, AT_ONCE):
            assert lines.were_shown.wait(SECONDS_MAX)
            raise ClusterError("Spark is gone")

    with pytest.raises(ClusterError, match="Spark is gone"):
        start()
    assert "Upriver: start: not done after " in written.getvalue()


def test_many_tables_are_counted() -> None:
    written, screen = terminal()
    run(screen, Lines(*(f"table {number}" for number in range(50))))
    assert f"    table {LINES_MAX - 1}" in written.getvalue()
    assert f"    table {LINES_MAX}" not in written.getvalue()
    assert f"    and {50 - LINES_MAX} more" in written.getvalue()


def test_lines_that_cannot_be_had_are_none() -> None:
    written, screen = terminal()
    tried = threading.Event()

    def fails() -> list[str]:
        tried.set()
        raise ClusterError("the app has failed")

    with progress_shown("wait", fails, screen, AT_ONCE):
        assert tried.wait(SECONDS_MAX)
    assert "the app has failed" not in written.getvalue()
    assert "Upriver: wait: done after " in written.getvalue()


class Cell:
    """The output of a notebook's cell, in place of IPython's."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, html: str, display_id: bool) -> "Cell":
        assert display_id
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


def test_a_notebook_shows_the_same_in_one_output() -> None:
    cell = Cell()
    run(lambda: NotebookScreen(cell.display, str), Lines("a <b>"))
    assert any("Upriver: wait: reading (0 s)\n    a &lt;b&gt;</pre>" in shown for shown in cell.shown)
    assert cell.shown[-1].startswith("<pre>Upriver: wait: done after ")


def test_nothing_is_shown_where_no_person_looks() -> None:
    assert found_screen(None) is None, "stderr is a file here"
    assert found_screen(False) is None
    assert found_screen(True) is not None


def test_a_call_without_a_screen_runs_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    progress.configure(shown=False)
    with progress_shown("wait") as told:
        told("reading")
    assert capsys.readouterr() == ("", "")


def test_it_is_never_in_the_way_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert found_screen(None) is None
    with pytest.raises(DeclarationError, match=r"^progress needs rich, .*pip install 'upriver\[spark\]'$"):
        progress.configure(shown=True)


def test_another_setting_is_refused() -> None:
    wrong: Any = "yes"
    with pytest.raises(DeclarationError, match=r"^shown='yes': give True, False or None$"):
        progress.configure(shown=wrong)
