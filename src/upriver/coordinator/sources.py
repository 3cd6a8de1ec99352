"""One table's source: whether it runs, is stalled, has failed or is finished, and when it is started again.

A source runs in *attempts*: each is one Spark query, or one load, numbered from 1. Another attempt follows one that
has ended with an error, after a back-off that doubles from ``BACKOFF_S_MIN`` to ``BACKOFF_S_MAX``. After a permanent
error the source stays failed until a user asks for a restart. The shell looks at the attempt that is alive and reports
what it sees; seconds are those of a clock that never goes back.
"""

from dataclasses import dataclass
from enum import StrEnum

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
"""Seconds from a failure to the next attempt: after the first failure, and at most."""
STALLED_S = 60.0
"""Seconds after which a source that is at work, and has finished no batch meanwhile, is stalled."""


class SourceState(StrEnum):
    """What a source is said to be."""

    RUNNING = "running"
    """Its attempt is alive, and takes rows or waits for some."""
    STALLED = "stalled"
    """Its attempt is alive and has work, but no batch has been finished for ``STALLED_S``; or the attempt follows a
    failure and has shown nothing yet."""
    FAILED = "failed"
    """Its last attempt ended with an error; the next one, if there is to be one, has not begun."""
    FINISHED = "finished"
    """All rows are in the lake, and no more will come."""


@dataclass(frozen=True, slots=True)
class SourceStarted:
    """The app has started: begin the first attempt."""

    at: float


@dataclass(frozen=True, slots=True)
class AttemptProgressed:
    """The attempt has finished a batch, or has nothing to do. has_committed: rows of it are in the lake."""

    at: float
    attempt: int
    has_committed: bool


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt has ended with an error. is_permanent: another attempt would end the same way."""

    at: float
    attempt: int
    error: str
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The attempt has ended, and has taken all that it was to take."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """A user has asked for an attempt at once."""

    at: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing has happened; it is later."""

    at: float


@dataclass(frozen=True, slots=True)
class SourceStopped:
    """The app stops: no attempt any more."""

    at: float


SourceEvent = (
    SourceStarted | AttemptProgressed | AttemptFailed | AttemptFinished | RestartAsked | TimePassed | SourceStopped
)


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Start the query, or the load; the one before it is over."""

    attempt: int


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Stop this attempt, and report nothing of it any more."""

    attempt: int


SourceAction = BeginAttempt | EndAttempt


class SourceMachine:
    """Decides over one source. ``step`` takes events in the order of their times."""

    def __init__(self) -> None:
        self._attempt = 0
        self._is_alive = False
        self._is_finished = False
        self._is_stopped = False
        self._failures = 0
        """In a row: since rows were last committed, or an attempt lasted for ``BACKOFF_S_MAX``."""
        self._error: str | None = None
        self._began_at = self._progressed_at = 0.0
        self._retry_at: float | None = None

    @property
    def attempt(self) -> int:
        """The number of the last attempt; 0 before the first."""
        return self._attempt

    @property
    def is_alive(self) -> bool:
        """Whether an attempt has begun and not ended."""
        return self._is_alive

    @property
    def error(self) -> str | None:
        """Why the last attempt failed; ``None`` once a later one has progressed."""
        return self._error

    def state(self, at: float) -> SourceState:
        """What the source is at this time."""
        if self._is_finished:
            return SourceState.FINISHED
        if not self._is_alive:
            return SourceState.RUNNING if self._error is None else SourceState.FAILED
        is_late = at - self._progressed_at > STALLED_S
        return SourceState.STALLED if is_late or self._error is not None else SourceState.RUNNING

    def stalled_for_s(self, at: float) -> float | None:
        """Seconds since a stalled source last progressed; ``None`` if it is not stalled, or follows a failure."""
        is_stalled = self._error is None and self.state(at) is SourceState.STALLED
        return at - self._progressed_at if is_stalled else None

    def retry_in_s(self, at: float) -> float | None:
        """Seconds until the next attempt; ``None`` if none is due."""
        return None if self._retry_at is None else max(0.0, self._retry_at - at)

    def step(self, event: SourceEvent) -> list[SourceAction]:
        """Take an event. What concerns an attempt that is over, or comes after the stop, is ignored."""
        if self._is_stopped:
            return []
        match event:
            case SourceStarted():
                return self._begin(event.at) if self._attempt == 0 else []
            case AttemptProgressed():
                return self._progressed(event)
            case AttemptFailed():
                return self._failed(event)
            case AttemptFinished():
                if self._is_current(event.attempt):
                    self._is_alive, self._is_finished, self._error = False, True, None
                return []
            case RestartAsked():
                return self._restart(event.at)
            case TimePassed():
                is_due = self._retry_at is not None and event.at >= self._retry_at
                return self._begin(event.at) if is_due else []
            case SourceStopped():
                was_alive, self._is_alive, self._is_stopped, self._retry_at = self._is_alive, False, True, None
                return [EndAttempt(self._attempt)] if was_alive else []

    def _is_current(self, attempt: int) -> bool:
        return self._is_alive and attempt == self._attempt

    def _begin(self, at: float) -> list[SourceAction]:
        self._attempt += 1
        self._is_alive, self._retry_at = True, None
        self._began_at = self._progressed_at = at
        return [BeginAttempt(self._attempt)]

    def _progressed(self, event: AttemptProgressed) -> list[SourceAction]:
        if self._is_current(event.attempt):
            self._progressed_at, self._error = event.at, None
            if event.has_committed or event.at - self._began_at >= BACKOFF_S_MAX:
                self._failures = 0
        return []

    def _failed(self, event: AttemptFailed) -> list[SourceAction]:
        if self._is_current(event.attempt):
            self._is_alive, self._error = False, event.error
            backoff_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(self._failures, 30))
            self._failures += 1
            self._retry_at = None if event.is_permanent else event.at + backoff_s
        return []

    def _restart(self, at: float) -> list[SourceAction]:
        """A source that runs well, or is finished, is left alone."""
        if self._attempt == 0 or self.state(at) in (SourceState.RUNNING, SourceState.FINISHED):
            return []
        ended: list[SourceAction] = [EndAttempt(self._attempt)] if self._is_alive else []
        self._failures = 0
        return [*ended, *self._begin(at)]
