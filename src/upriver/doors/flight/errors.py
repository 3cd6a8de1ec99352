"""Errors as Flight's clients know them, each on one line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import UnionType

import pyarrow as pa
import pyarrow.flight as flight

from upriver.doors.doors import ERROR_CHARS_MAX
from upriver.errors import (
    AccessDenied,
    Busy,
    NotReady,
    QueryCancelled,
    UpriverError,
    UserError,
    WaitTimeout,
    WorkerLost,
)

_LOG = logging.getLogger("upriver.flight")


@contextmanager
def flight_errors() -> Iterator[None]:
    """Errors as Flight's clients know them, each on one line.

    Arrow shows a client the whole traceback of any exception that is not Flight's own, also of its ArrowInvalid and
    ArrowKeyError. So only Flight's own leave a method of the server."""
    try:
        yield
    except (flight.FlightError, UntracedError, UnsupportedCommand):
        raise
    except UpriverError as error:
        told = _told(error)
    except Exception as error:
        _LOG.exception("a call over Arrow Flight has failed")
        told = flight.FlightInternalError(f"{type(error).__name__}: a fault of Upriver; the app's log has more", b"")
    else:
        return
    raise told


@contextmanager
def flight_sql_errors() -> Iterator[None]:
    """As :func:`flight_errors`, and mistakes of the caller have the code INVALID_ARGUMENT, as ADBC's and JDBC's drivers
    expect it."""
    try:
        with flight_errors():
            yield
    except flight.FlightServerError as error:
        told = UntracedError(str(error))
    else:
        return
    raise told


class _Untraced:
    """Arrow sends only the name of an error's class if the traceback cannot be formatted."""

    @property
    def __cause__(self) -> None:
        raise AttributeError("the traceback is not for the client")


class UntracedError(_Untraced, pa.ArrowInvalid):  # type: ignore[misc]
    """An error without a traceback for the client. Of GetSchema, pyarrow shows that of Flight's own errors, too."""


class UnsupportedCommand(_Untraced, pa.ArrowNotImplementedError):  # type: ignore[misc]
    """A call of Flight SQL that is refused whatever it says, with the code UNIMPLEMENTED; without a traceback, too."""

    def __init__(self, text: str) -> None:
        super().__init__(f"UnsupportedSql: {text}"[:ERROR_CHARS_MAX])


def _told(error: UpriverError) -> Exception:
    """extra_info of the result is the name of the error's class. A text is sent in a header, and a long one would be
    dropped with all that it says."""
    name = type(error).__name__
    kind = next((kind for ours, kind in _KINDS if isinstance(error, ours)), flight.FlightInternalError)
    told: Exception = kind(f"{name}: {' '.join(str(error).split())}"[:ERROR_CHARS_MAX], name.encode())
    return told


_KINDS: tuple[tuple[type[UpriverError] | UnionType, type[Exception]], ...] = (
    (AccessDenied, flight.FlightUnauthenticatedError),
    (QueryCancelled, flight.FlightCancelledError),
    (WaitTimeout, flight.FlightTimedOutError),
    (Busy | NotReady | WorkerLost, flight.FlightUnavailableError),
    (UserError, flight.FlightServerError),
)
"""Flight's error by kind of ours; the first match counts."""
