"""One table's source: whether it runs, is stalled, fails or is finished, and when it is started again.

A source runs in *attempts*: each is one Spark query, or one load, numbered from 1. After an attempt that has ended with
an error, another one follows, with a back-off that doubles from ``BACKOFF_S_MIN`` to ``BACKOFF_S_MAX``. After a
permanent error the source stays failed until a user asks for a restart. An attempt that shows nothing for
``SILENT_S_MAX`` is ended, and has failed. The shell watches the running attempt and reports what it sees; seconds are
those of a clock that never goes back.

``judge``: whether a failed source is worth another attempt, and what its user can do, by Spark's errors. These have a
*condition* (``FAILED_READ_FILE.NO_HINT``) and an SQLSTATE, whose first two characters are a class of the SQL standard.
A condition that is listed here counts more than a class, and an error more than its cause. A failure that is listed
under neither is tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from upriver.protocol.freshness import SourceState

BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 60.0
"""Seconds from a failure to the next attempt: after the first failure, and at most."""
STALLED_S = 60.0
"""Seconds after which a source that is at work, and has finished no batch meanwhile, is stalled."""
UNANSWERED_S = 20.0
"""Seconds after which a source is stalled that has not said what rows there are. A batch may take long. A server that
is there answers this soon, but Spark may ask one that is absent, or has no such topic, for minutes before it fails."""
SILENT_S_MAX = 900.0
"""Seconds for which an attempt may have neither finished a batch nor had a job of Spark. After each failure in a row
they are twice as many, ``SILENT_DOUBLINGS_MAX`` times: what only takes long, such as a list of many files, ends."""
SILENT_DOUBLINGS_MAX = 4


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
class AttemptWorks:
    """The attempt is at work. asks: it waits until the source says what rows there are. is_silent: Spark runs no job
    for it. doing: as of ``stall``."""

    at: float
    attempt: int
    asks: bool
    is_silent: bool = False
    doing: str = ""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt has ended with an error. is_permanent: another attempt would end the same way."""

    at: float
    attempt: int
    error: str
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The attempt has ended, and has taken all its rows."""

    at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """A user has asked for an attempt at once."""

    at: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed, and nothing else has happened."""

    at: float


@dataclass(frozen=True, slots=True)
class SourceStopped:
    """The app stops: no attempt begins any more."""

    at: float


SourceEvent = (
    SourceStarted
    | AttemptProgressed
    | AttemptWorks
    | AttemptFailed
    | AttemptFinished
    | RestartAsked
    | TimePassed
    | SourceStopped
)


@dataclass(frozen=True, slots=True)
class BeginAttempt:
    """Start the query, or the load; the attempt before it is over."""

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
        self._failed_at = 0.0
        """When the last attempt that failed did so."""
        self._began_at = self._progressed_at = 0.0
        self._heard_at = 0.0
        """When the attempt last progressed, or had a job of Spark."""
        self._doing = ""
        self._asks_since: float | None = None
        """Since when the attempt waits for the source's answer; ``None``: it does not."""
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
        if at - self._progressed_at > STALLED_S or self.is_unanswered(at):
            return SourceState.STALLED
        return SourceState.RUNNING if self._error is None else SourceState.FAILING

    def attempt_for_s(self, at: float) -> float | None:
        """Seconds since the present attempt began; ``None`` if none is alive."""
        return at - self._began_at if self._is_alive else None

    def failed_ago_s(self, at: float) -> float | None:
        """Seconds since the attempt of ``error`` failed; ``None`` without an error."""
        return None if self._error is None else at - self._failed_at

    def is_unanswered(self, at: float) -> bool:
        """Whether the attempt has waited for the source's answer for too long."""
        return self._asks_since is not None and at - self._asks_since > UNANSWERED_S

    def stalled_for_s(self, at: float) -> float | None:
        """Seconds since a stalled source last progressed; ``None`` if it is not stalled."""
        return at - self._progressed_at if self.state(at) is SourceState.STALLED else None

    def retry_in_s(self, at: float) -> float | None:
        """Seconds until the next attempt; ``None`` if none is due."""
        return None if self._retry_at is None else max(0.0, self._retry_at - at)

    def step(self, event: SourceEvent) -> list[SourceAction]:
        """Take an event. An event of an attempt that is over, or after the stop, is ignored."""
        if self._is_stopped:
            return []
        match event:
            case SourceStarted():
                return self._begin(event.at) if self._attempt == 0 else []
            case AttemptProgressed():
                return self._progressed(event)
            case AttemptWorks():
                if self._is_current(event.attempt):
                    since = event.at if self._asks_since is None else self._asks_since
                    self._asks_since = since if event.asks else None
                    self._heard_at, self._doing = self._heard_at if event.is_silent else event.at, event.doing
                return []
            case AttemptFailed():
                return self._failed(event)
            case AttemptFinished():
                if self._is_current(event.attempt):
                    self._is_alive, self._is_finished, self._error = False, True, None
                return []
            case RestartAsked():
                return self._restart(event.at)
            case TimePassed():
                if self._is_alive and event.at - self._heard_at > self._silent_s_max:
                    return self._end_silent(event.at)
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
        self._began_at = self._progressed_at = self._heard_at = at
        self._asks_since, self._doing = None, ""
        return [BeginAttempt(self._attempt)]

    def _progressed(self, event: AttemptProgressed) -> list[SourceAction]:
        if self._is_current(event.attempt):
            self._progressed_at = self._heard_at = event.at
            self._asks_since, self._error = None, None
            if event.has_committed or event.at - self._began_at >= BACKOFF_S_MAX:
                self._failures = 0
        return []

    def _failed(self, event: AttemptFailed) -> list[SourceAction]:
        if self._is_current(event.attempt):
            self._is_alive, self._error, self._failed_at = False, event.error, event.at
            backoff_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(self._failures, 30))
            self._failures += 1
            self._retry_at = None if event.is_permanent else event.at + backoff_s
        return []

    @property
    def _silent_s_max(self) -> float:
        """Seconds for which this attempt may show nothing."""
        return SILENT_S_MAX * 2.0 ** min(self._failures, SILENT_DOUBLINGS_MAX)

    def _end_silent(self, at: float) -> list[SourceAction]:
        error = hang(at - self._heard_at, self._doing)
        self._failed(AttemptFailed(at, self._attempt, error, is_permanent=False))
        return [EndAttempt(self._attempt)]

    def _restart(self, at: float) -> list[SourceAction]:
        """A source that runs well, or is finished, is left alone."""
        if self._attempt == 0 or self.state(at) in (SourceState.RUNNING, SourceState.FINISHED):
            return []
        ended: list[SourceAction] = [EndAttempt(self._attempt)] if self._is_alive else []
        self._failures = 0
        return [*ended, *self._begin(at)]


ERROR_CHARS_MAX = 800
"""Characters of a failure's text at most."""


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """Why an attempt has ended, in one line, with advice. is_permanent: another attempt would end the same way."""

    error: str
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class SourceFault:
    """One error of a chain, from the one that was raised to its innermost cause.

    kind: its class, Java's with its package. condition, sql_state: ``None`` if it has none. text: its first line.
    """

    kind: str
    condition: str | None
    sql_state: str | None
    text: str


@dataclass(frozen=True, slots=True)
class _Verdict:
    is_permanent: bool
    advice: str


_AGAIN = "It continues where it was when the cause is gone"
_FILE = "Repair or restore the file; the source continues where it was"
_ROW = "The row comes again with each attempt: correct the source, or the DataFrame, and start the app again"
_DECLARED = "Declare the table so that Spark can run it, and start the app again"
_SERVER = "Check that the servers run and can be reached from here; the source continues where it was when they answer"
_ABSENT = "Check that the topic or table exists; one that is made again has other rows, and needs another root"
_SCHEMA = (
    "The source has other columns than the table was declared with: correct it, or declare the table on another root"
)
_CHECKPOINT = "Restore the checkpoint, or start on another root"
_CHANGES = (
    "An append table takes no updates or deletes: read the source's change feed into a table with a primary_key, or "
    "have the reader skip such commits, and start the app again"
)
_GONE = "The source has dropped rows that were not taken yet: have the reader go on without them, or use another root"

_BY_CONDITION = {
    "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH": _Verdict(True, _SCHEMA),
    "FAILED_READ_FILE": _Verdict(False, _FILE),
    "PATH_NOT_FOUND": _Verdict(False, _AGAIN),
    "MALFORMED_CSV_RECORD": _Verdict(True, _ROW),
    "USER_RAISED_EXCEPTION": _Verdict(True, _ROW),
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": _Verdict(True, _CHECKPOINT),
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE": _Verdict(True, _CHECKPOINT),
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY": _Verdict(True, _CHECKPOINT),
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": _Verdict(True, _CHECKPOINT),
    "STREAMING_UNFINISHED_REPARTITION_DETECTED": _Verdict(True, _CHECKPOINT),
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE": _Verdict(True, _CHECKPOINT),
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE": _Verdict(True, _CHECKPOINT),
    "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS": _Verdict(True, _CHECKPOINT),
    "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED": _Verdict(True, _CHECKPOINT),
    "INVALID_LOG_VERSION": _Verdict(True, _CHECKPOINT),
    "MALFORMED_LOG_FILE": _Verdict(True, _CHECKPOINT),
    "KAFKA_DATA_LOSS": _Verdict(True, _GONE),
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": _Verdict(True, _CHANGES),
    "DELTA_SOURCE_IGNORE_DELETE": _Verdict(True, _CHANGES),
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": _Verdict(True, _SCHEMA),
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": _Verdict(True, _SCHEMA),
    "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": _Verdict(True, _SCHEMA),
    "DELTA_STREAMING_METADATA_EVOLUTION": _Verdict(True, _SCHEMA),
    "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART": _Verdict(True, _SCHEMA),
    "DELTA_SCHEMA_CHANGED": _Verdict(True, _SCHEMA),
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS": _Verdict(True, _SCHEMA),
    "DELTA_SCHEMA_CHANGED_WITH_VERSION": _Verdict(True, _SCHEMA),
    "DELTA_STREAMING_SOURCE_FROM_DIFFERENT_DELTA_TABLE": _Verdict(True, _CHECKPOINT),
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": _Verdict(True, _CHECKPOINT),
    "DELTA_SCHEMA_NOT_SET": _Verdict(False, _ABSENT),  # nothing is left of the table
    "DELTA_TABLE_NOT_FOUND": _Verdict(False, _ABSENT),
    "DELTA_PATH_DOES_NOT_EXIST": _Verdict(False, _ABSENT),
    "DELTA_VERSIONS_NOT_CONTIGUOUS": _Verdict(True, _GONE),
    "DELTA_MISSING_FILES_UNEXPECTED_VERSION": _Verdict(True, _GONE),
    "DELTA_STREAMING_TRAILING_COMMIT_MISSING": _Verdict(True, _GONE),
    "DELTA_TRUNCATED_TRANSACTION_LOG": _Verdict(True, _GONE),
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE": _Verdict(True, _GONE),
}
"""A condition with its subclass, or without, for all its subclasses."""
_BY_STATE = {
    "22": _Verdict(True, _ROW),  # a value that does not fit
    "0A": _Verdict(True, _DECLARED),  # what Spark cannot do
    "42": _Verdict(True, _DECLARED),  # names, types and syntax
    "46": _Verdict(True, _DECLARED),  # a class that cannot be loaded
    "51": _Verdict(True, _SCHEMA),  # a table that has changed since it was analysed
}
"""By the class of the SQLSTATE."""
_BY_KIND = {
    "java.lang.UnsupportedOperationException": _Verdict(True, _DECLARED),
    "org.apache.kafka.common.errors.TimeoutException": _Verdict(False, _SERVER),
    "org.apache.kafka.common.errors.DisconnectException": _Verdict(False, _SERVER),
    "java.net.ConnectException": _Verdict(False, _SERVER),
    "java.net.UnknownHostException": _Verdict(False, _SERVER),
    "java.net.SocketTimeoutException": _Verdict(False, _SERVER),
    "org.apache.kafka.common.errors.UnknownTopicOrPartitionException": _Verdict(False, _ABSENT),
    "org.apache.kafka.clients.consumer.OffsetOutOfRangeException": _Verdict(True, _GONE),
}
_BY_TEXT = {
    "assertion failed: Invalid batch: ": _Verdict(True, _SCHEMA),  # Spark's word on a source with other columns
}
"""By the beginning of the message, for errors that have no condition and no class of their own."""
_WRAPPERS = frozenset({"STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR"})
"""Conditions that say only that something else has failed."""


def judge(chain: Sequence[SourceFault], place: str = "") -> SourceFailure:
    """What a failure means. chain: at least one fault, the raised one first. place: appended to the error's text."""
    surface = next((fault for fault in chain if fault.condition not in _WRAPPERS), chain[0])
    said, cause = surface.text.rstrip(". "), chain[-1].text.rstrip(". ")
    if cause and cause not in said:
        said = f"{said} ({cause})" if said else cause
    verdict = _verdict(chain)
    return SourceFailure(f"{_cut(said or surface.kind)}{place}. {verdict.advice}.", verdict.is_permanent)


def stall(doing: str) -> str:
    """The message for a query that is alive and has finished no batch for longer than ``STALLED_S``.

    doing: what the query is doing, by Spark's word, with the topic or the path if Spark names it; may be empty.
    """
    return (
        f"no batch has been finished for {STALLED_S:.0f} s.{_spark_says(doing)} Check whether the source's server "
        "answers, and whether the batch is only long; the source continues by itself."
    )


def silence(doing: str) -> str:
    """The message for a query that has waited for its source's answer for longer than ``UNANSWERED_S``.

    doing: as of ``stall``.
    """
    return (
        f"it has not said for {UNANSWERED_S:.0f} s what rows there are.{_spark_says(doing)} Check that its server "
        "answers, and that the topic or table exists; a large directory may only take long to list. The source "
        "continues by itself."
    )


def hang(seconds: float, doing: str) -> str:
    """The message for an attempt that was ended because it has shown nothing for so many seconds.

    doing: as of ``stall``.
    """
    return (
        f"its attempt was ended: for {seconds:.0f} s it has finished no batch, and Spark ran no job for it."
        f"{_spark_says(doing)} Check that the source's server answers; the source continues by itself."
    )


def _spark_says(doing: str) -> str:
    at = " ".join(doing.split())
    return f' Spark says "{_cut(at)}".' if at else ""


def _verdict(chain: Sequence[SourceFault]) -> _Verdict:
    conditions = [fault.condition for fault in chain if fault.condition is not None]
    for condition in conditions:
        for name in (condition, condition.partition(".")[0]):
            if name in _BY_CONDITION:
                return _BY_CONDITION[name]
    for fault in chain:
        if fault.condition not in _WRAPPERS and (found := _BY_STATE.get((fault.sql_state or "")[:2])) is not None:
            return found
    for fault in chain:
        for beginning, verdict in _BY_TEXT.items():
            if fault.text.startswith(beginning):
                return verdict
    return next((_BY_KIND[fault.kind] for fault in chain if fault.kind in _BY_KIND), _Verdict(False, _AGAIN))


def _cut(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_MAX else f"{text[:ERROR_CHARS_MAX]}..."
