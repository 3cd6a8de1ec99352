"""Logs: loggers under ``upriver``, silent until the program configures ``logging``, or calls :func:`configure`.

Every module logs with :func:`logging.getLogger`, under the names that docs/guide/monitoring.md lists. What a message
says of a table, a view, an epoch or a worker is in the record's attributes, too (``extra``), and so in the JSON form.
"""

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from upriver.errors import DeclarationError

ROOT = "upriver"
TEXT, JSON = "text", "json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has."""

logging.getLogger(ROOT).addHandler(logging.NullHandler())


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
