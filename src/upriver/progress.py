"""Progress of calls that take long: in a terminal on stderr, or in a notebook; quiet elsewhere.

A call shows what it does after half a second, and refreshes that until it is over. What is shown leaves again; in
its place stays one line with the time that the call has taken.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from upriver.errors import DeclarationError

LINES_MAX = 12
"""Lines below the first: of more tables, their number is shown."""
_WHEEL = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

Told = Callable[[str], None]
"""Takes the step that a call is at."""


class ProgressScreen(Protocol):
    """Where progress is shown. One thread calls everything."""

    def show(self, lines: list[str]) -> None:
        """Show these lines in place of the last ones."""

    def close(self, last: str) -> None:
        """Leave one line in their place."""


@dataclass(frozen=True, slots=True)
class ProgressPace:
    """show_after_s: seconds before a call shows anything, since most are over by then. refresh_s: between two
    refreshes."""

    show_after_s: float = 0.5
    refresh_s: float = 0.2


DEFAULT_PACE = ProgressPace()


class _Setting:
    """Whether progress is shown, and how soon. shown: ``None``: in a terminal or a notebook."""

    shown: bool | None = None
    pace: ProgressPace = DEFAULT_PACE


def configure(*, shown: bool | None = None, pace: ProgressPace = DEFAULT_PACE) -> None:
    """Show the progress of ``start``, ``wait``, ``view`` and ``stop`` always (``True``), never (``False``), or in a
    terminal and in a notebook (``None``, as without this call). pace: how soon. Raises
    DeclarationError, also for ``True`` without ``rich``."""
    if shown not in (None, True, False):
        raise DeclarationError(f"shown={shown!r}: give True, False or None")
    if shown and found_screen(shown) is None:
        raise DeclarationError("progress needs rich, which is not installed: pip install 'upriver[spark]'")
    _Setting.shown, _Setting.pace = shown, pace


class TerminalScreen:
    """A terminal, by ``rich``. console: of rich."""

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def show(self, lines: list[str]) -> None:
        from rich.text import Text

        text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)

    def close(self, last: str) -> None:
        self._live.stop()
        self._console.print(last, markup=False, highlight=False)


class NotebookScreen:
    """The output of a notebook's cell. display: of ``IPython.display``. html: makes what it shows."""

    def __init__(self, display: Callable[..., Any], html: Callable[[str], Any]) -> None:
        self._html = html
        self._handle = display(html(""), display_id=True)

    def show(self, lines: list[str]) -> None:
        self._handle.update(self._html(f"<pre>{escape(chr(10).join(lines))}</pre>"))

    def close(self, last: str) -> None:
        self.show([last])


def found_screen(shown: bool | None) -> Callable[[], ProgressScreen] | None:
    """What opens a screen; ``None``: there is none to show progress on, or it is not wanted, or not to be had."""
    if shown is False:
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True, force_terminal=shown)
    if console.is_jupyter:
        from IPython.display import HTML, display  # type: ignore[import-not-found]  # a notebook has it

        return lambda: NotebookScreen(display, HTML)
    return (lambda: TerminalScreen(console)) if console.is_terminal else None


def no_lines() -> Iterable[str]:
    return ()


@contextmanager
def progress_shown(
    doing: str,
    lines: Callable[[], Iterable[str]] = no_lines,
    open_screen: Callable[[], ProgressScreen] | None = None,
    pace: ProgressPace | None = None,
) -> Iterator[Told]:
    """Show the progress of this block where the setting allows it; gives a function that takes each step.

    doing: what the call does, such as "start". lines: gives the lines below the first; after an error there are none.
    open_screen: by default of :func:`found_screen`. pace: by default that of ``configure``.
    """
    screen = open_screen or found_screen(_Setting.shown)
    if screen is None:
        yield lambda _: None
        return
    shown = _Shown(screen, doing, lines, pace or _Setting.pace)
    shown.start()
    is_done = False
    try:
        yield shown.at
        is_done = True
    finally:
        shown.stop(is_done)


class _Shown:
    """A thread that shows the progress of one call."""

    def __init__(
        self,
        open_screen: Callable[[], ProgressScreen],
        doing: str,
        lines: Callable[[], Iterable[str]],
        pace: ProgressPace,
    ) -> None:
        self._open_screen = open_screen
        self._doing = doing
        self._lines = lines
        self._pace = pace
        self._step = ""
        self._is_done = False
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver-progress", daemon=True)

    def start(self) -> None:
        with suppress(RuntimeError):  # Python starts no thread any more when the program ends
            self._thread.start()

    def at(self, step: str) -> None:
        """The call is at this step."""
        self._step = step

    def stop(self, is_done: bool) -> None:
        """The call is over. is_done: without an error."""
        self._is_done = is_done
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        if self._is_over.wait(self._pace.show_after_s):
            return
        screen, wheel = self._open_screen(), 0
        while True:
            screen.show(self._text(_WHEEL[wheel % len(_WHEEL)]))
            if self._is_over.wait(self._pace.refresh_s):
                break
            wheel += 1
        ended = "done" if self._is_done else "not done"
        screen.close(f"Upriver: {self._doing}: {ended} after {self._seconds:.1f} s")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _text(self, wheel: str) -> list[str]:
        step = f": {self._step}" if self._step else ""
        lines: list[str] = []
        with suppress(Exception):  # the call itself raises what is wrong
            lines = list(self._lines())
        more = len(lines) - LINES_MAX
        below = [*lines[:LINES_MAX], f"and {more} more"] if more > 0 else lines
        return [f"{wheel} Upriver: {self._doing}{step} ({self._seconds:.0f} s)", *(f"    {line}" for line in below)]
