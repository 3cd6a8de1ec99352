"""Logs: loggers under ``upriver``, silent until the program configures ``logging``, or calls :func:`configure`.

Every module logs with :func:`logging.getLogger`, under the names that docs/guide/monitoring.md lists. What a message
says of a table, a view, an epoch or a worker is in the record's attributes, too (``extra``), and so in the JSON form.

A warning or error that is logged again and again is written once a minute, with how often it came: :class:`Repeats`.

An error that a public call raises is short, as :mod:`upriver.errors` says, and its trace goes to the log.
"""

import inspect
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TextIO, TypeVar, cast

from upriver.errors import DeclarationError, ProtocolError, UpriverError, UpriverWarning

ROOT = "upriver"
_FILES = str(Path(__file__).parent) + os.sep
"""Where the files of this package begin."""
TEXT, JSON = "text", "json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has."""

_ERRORS = logging.getLogger(f"{ROOT}.errors")
P = ParamSpec("P")
T = TypeVar("T")

logging.getLogger(ROOT).addHandler(logging.NullHandler())

NAMES = (
    *(
        "app",
        "changes",
        "checkpoints",
        "clock",
        "compaction",
        "control",
        "epochs",
        "errors",
        "flight",
        "http",
        "ingest",
    ),
    *("lake", "postgres", "rescales", "sinks", "sources", "views", "worker", "workers"),
)
"""Of the loggers under ``upriver``."""
REPEAT_S = 60.0
"""Seconds in which a message is written once."""
REPEATS_MAX = 256
"""Different messages that are remembered for so long; beyond that the oldest is forgotten."""


@dataclass(slots=True)
class _Repeated:
    """A message that was written at this time, and has come so many times since."""

    record: logging.LogRecord
    written_at: float
    count: int = 0


class Repeats(logging.Filter):
    """Holds back warnings and errors that repeat one of the last ``REPEAT_S`` seconds, word by word. The next record of
    any of our loggers, after that time, has the number written of those that were held back. clock: monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int, str], _Repeated] = OrderedDict()
        """By logger, level and text, those first that were written first. Guarded by the lock."""

    def filter(self, record: logging.LogRecord) -> bool:
        now, held_back = self._clock(), False
        with self._lock:
            over = self._take_over(now)
            if record.levelno >= logging.WARNING:
                key = (record.name, record.levelno, record.getMessage())
                if (known := self._known.get(key)) is not None:
                    known.count, held_back = known.count + 1, True
                else:
                    self._known[key] = _Repeated(_without_frames(record), now)
                    if len(self._known) > REPEATS_MAX:
                        over.append(self._known.popitem(last=False)[1])
        for known in over:
            if known.count:
                logging.getLogger(known.record.name).callHandlers(_counted(known))
        return not held_back

    def _take_over(self, now: float) -> list[_Repeated]:
        """Forget the messages whose time is over."""
        over: list[_Repeated] = []
        while self._known and now - next(iter(self._known.values())).written_at >= REPEAT_S:
            over.append(self._known.popitem(last=False)[1])
        return over

    def forget(self) -> None:
        """Write each message again that comes from now on."""
        with self._lock:
            self._known.clear()


def _counted(known: _Repeated) -> logging.LogRecord:
    counted = copy(known.record)
    counted.msg = f"{known.record.getMessage()} (again, {known.count} times since)"
    return counted


def _without_frames(record: logging.LogRecord) -> logging.LogRecord:
    """The record without its exception: the frames of that would keep what they refer to, loaded libraries too, until
    the process ends."""
    kept = copy(record)
    kept.msg, kept.args, kept.exc_info, kept.exc_text = record.getMessage(), None, None, None
    return kept


REPEATS = Repeats()
for _name in NAMES:
    logging.getLogger(f"{ROOT}.{_name}").addFilter(REPEATS)


class _Shortened:
    """Around a public call: its error, or Ctrl-C, keeps no frame of ours and no cause, and so Python prints the
    caller's frames alone. A frame that re-raises an exception is not added to its trace either. What the caller was
    handling when it made the call is printed as ever. An error of the caller's own class keeps all."""

    __slots__ = ("_handled",)

    def __enter__(self) -> None:
        self._handled = sys.exception()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, UpriverError | KeyboardInterrupt) or isinstance(error, ProtocolError):
            return
        if isinstance(error, UpriverError) and type(error).__module__ != UpriverError.__module__:
            return
        if isinstance(error, UpriverError) and not error.is_logged:
            _ERRORS.debug("%s: %s", type(error).__name__, error, exc_info=error)
            error.is_logged = True
        if self._handled is not None and self._handled is not error:
            error.__cause__, error.__context__, error.__suppress_context__ = None, self._handled, False
        else:
            error.__context__ = error.__cause__ or error.__context__
            error.__cause__ = None  # this also suppresses the context
        error.__traceback__ = None


def shorten_errors(call: Callable[P, T]) -> Callable[P, T]:
    """Make a function one whose errors are short: also one that is async, a generator, or both."""
    function: Callable[..., Any] = call
    shortened: Callable[..., Any]

    if inspect.iscoroutinefunction(call):

        @wraps(call)
        async def shortened(*args: Any, **named: Any) -> Any:
            with _Shortened():
                return await function(*args, **named)

    elif inspect.isasyncgenfunction(call):

        @wraps(call)
        async def shortened(*args: Any, **named: Any) -> AsyncGenerator[Any, None]:
            with _Shortened():
                async with aclosing(function(*args, **named)) as items:
                    async for item in items:
                        yield item

    elif inspect.isgeneratorfunction(call):

        @wraps(call)
        def shortened(*args: Any, **named: Any) -> Generator[Any, Any, Any]:
            with _Shortened():
                return (yield from function(*args, **named))

    else:

        @wraps(call)
        def shortened(*args: Any, **named: Any) -> Any:
            with _Shortened():
                return function(*args, **named)

    return cast(Callable[P, T], shortened)


CALLED_BY_PYTHON = frozenset({"__init__", "__enter__", "__exit__", "__iter__", "__next__", "__aenter__", "__aexit__"})


def with_short_errors(kind: type[T]) -> type[T]:
    """Make a class one whose public methods and properties have short errors."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name not in CALLED_BY_PYTHON:
            continue
        if inspect.isfunction(member):
            setattr(kind, name, shorten_errors(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(shorten_errors(member.fget), doc=member.__doc__))
    return kind


def warn_caller(message: str) -> None:
    """Warn with an UpriverWarning, at the line of the caller's that called this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UpriverWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """Whether it runs code of this package; what dataclasses generate is in no file of it."""
    module = str(frame.f_globals.get("__name__"))
    return frame.f_code.co_filename.startswith(_FILES) or module.partition(".")[0] == __package__


def place_of_caller() -> str:
    """The file and line of the caller's that called this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What :func:`configure` was told. An app hands it to its workers."""

    format: str
    level: str


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, what the message is about, such as
    ``table`` or ``worker``, and ``exception`` with the stack, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        about = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **about,
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


class _OwnHandler(logging.StreamHandler[TextIO]):
    """The handler that :func:`configure` has installed."""

    settings: LogSettings


@shorten_errors
def configure(*, format: str = TEXT, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write what Upriver logs to ``stream``, by default the process's stderr.

    format: ``"text"`` or ``"json"``, one object a line. level: ``"DEBUG"`` to ``"CRITICAL"``. Workers of apps that
    start later write theirs to the stderr of their Spark executors, in the same form. A second call replaces the first.
    A program that configures ``logging`` by itself need not call this. Raises DeclarationError.
    """
    if format not in (TEXT, JSON):
        raise DeclarationError(f"format={format!r}: logs are {TEXT!r} or {JSON!r}")
    if level not in LEVELS:
        raise DeclarationError(f"level={level!r}: give {', '.join(map(repr, LEVELS[:-1]))} or {LEVELS[-1]!r}")
    logger = logging.getLogger(ROOT)
    handler = _OwnHandler(sys.stderr if stream is None else stream)
    handler.settings = LogSettings(format, level)
    handler.setFormatter(JsonLines() if format == JSON else logging.Formatter(_LINE))
    for old in _own_handlers():
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # the program's own handlers would write each line again


def settings() -> LogSettings | None:
    """What the last :func:`configure` was told; ``None`` if there was none."""
    return next((handler.settings for handler in _own_handlers()), None)


def reset() -> None:
    """Undo :func:`configure`."""
    logger = logging.getLogger(ROOT)
    for handler in _own_handlers():
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def _own_handlers() -> list[_OwnHandler]:
    return [handler for handler in logging.getLogger(ROOT).handlers if isinstance(handler, _OwnHandler)]
