"""The supervisor of the tables' sources, in the driver: it watches them, restarts failed ones, and reports on all.

:mod:`upriver.coordinator.sources` decides; this module looks at the clock and carries the actions out.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from upriver.coordinator.freshness import TableCounts
from upriver.coordinator.sources import (
    AttemptFailed,
    AttemptFinished,
    AttemptProgressed,
    AttemptWorks,
    BeginAttempt,
    EndAttempt,
    RestartAsked,
    SourceAction,
    SourceEvent,
    SourceFailure,
    SourceMachine,
    SourceStarted,
    SourceStopped,
    TimePassed,
    silence,
    stall,
)
from upriver.engine.row_text import failure_text
from upriver.errors import DeclarationError, IngestFailed, UpriverWarning, WaitTimeout
from upriver.ids import BEGINNING, Epoch
from upriver.lake.manifests import LakeEpochs, LastBatch
from upriver.logs import warn_caller
from upriver.protocol.freshness import SourceState
from upriver.shutdown import run_all

_LOG = logging.getLogger("upriver.sources")

LOOK_S = 0.5
"""Seconds between two looks at the sources, and so the precision of the ages of answers."""
FIRST_LOOKS_S = 0.05
"""The same until each source has been read through once, so that an app is ready as soon as it can be."""
RESTART_S_MAX = 60.0
"""At most how many seconds a call for a restart waits until the attempt has begun."""
END_S_MAX = 5.0
"""At most how many seconds the other sources wait for the end of an attempt that hangs; it goes on beside them."""
DROP_S_MAX = 10.0
"""At most how many seconds the end of a source is waited for that has failed at once."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An attempt, as it is now. batches: how many it has committed. is_idle: it waits for rows, or for its next
    trigger. is_asking: it waits until its source says what rows there are.

    failure: what it has ended with; an attempt that ended without a failure has read all there is. read_through: all
    that the source had until then, in seconds since 1970, is published. doing: what the attempt does, by Spark's word.
    way: how its rows come into the lake, and why; ``None`` until that is known.
    """

    attempt: int
    batches: int = 0
    is_idle: bool = False
    is_asking: bool = False
    is_over: bool = False
    failure: SourceFailure | None = None
    read_through: float | None = None
    doing: str = ""
    way: str | None = None


class SourceListener(Protocol):
    """Receives the state of the sources again and again."""

    def source_stands(self, table: str, state: str, error: str | None = None, *, is_final: bool = False) -> None:
        """The state of a source. error: why it has failed or stalled, in one line. is_final: it has failed for good."""

    def read_through(self, table: str, at: float, epoch: Epoch) -> None:
        """Every row that a source had by ``at``, by a clock that never goes back, is in epochs up to ``epoch``."""


class Ingest(Protocol):
    """One table's way into the lake, in attempts.

    One thread at a time calls ``start``, and one ``stop``: a start may come while an attempt before it is being ended.
    Any thread may call the others.
    """

    def start(self, attempt: int) -> None:
        """Begin an attempt and return. An error of this call is the attempt's failure: also that the attempt before is
        being ended, and has not ended yet."""

    def failure_of(self, error: Exception) -> SourceFailure:
        """The failure that an error of ``start`` stands for."""

    def wait_compared(self, seconds: float) -> None:
        """Wait until it is known whether the source has the rows that it had when it fed the table before, as far as
        that is compared; at most so many seconds. For after the first ``start``."""

    def wait_begun(self, seconds: float) -> None:
        """Wait until the attempt has compared its rows, has finished a batch, has nothing to do, or is over; at most so
        many seconds. For after the first ``start``."""

    def look(self) -> Seen:
        """The last attempt that has begun, as it is now. Does not wait. For after the first ``start``."""

    def has_jobs(self) -> bool:
        """Whether Spark runs a job for the last attempt. Does not wait. For after the first ``start``."""

    def drain(self, since: float, seconds_left: Callable[[], float]) -> None:
        """Wait until all rows that the source had at a moment, in seconds since 1970, are published, or until the
        current attempt has ended.

        Raises WaitTimeout when no time is left.
        """

    def stop(self) -> None:
        """End the current attempt, if there is one; returns when it is over. An error says that it has not ended in so
        many seconds as it is given."""


class _CountedBatches:
    """The rows and epochs of a table in the lake, declared or not."""

    def __init__(self) -> None:
        self.counts = TableCounts()
        self._last: tuple[str, int] | None = None
        """The query and the number of the last batch."""

    def add(self, last: LastBatch) -> None:
        """Count some epochs of the table. An epoch in which only time passes, or in which only rows leave, repeats the
        batch before, and does not count."""
        is_new, self._last = self._last != (last.query, last.batch), (last.query, last.batch)
        if is_new:
            self.counts.add(last.epoch, last.rows, last.committed_at, last.epochs)


class _Supervised:
    """A table, its source, and what is known of both. counts: of the table."""

    def __init__(self, counts: TableCounts) -> None:
        self.machine = SourceMachine()
        self.counts = counts
        self.ingest: Ingest | None = None
        self.acting = threading.Lock()
        """Held while an attempt is begun or ended."""
        self.ending: _Ending | None = None
        """The end of the source, if its table is being dropped."""
        self.rows_before = 0
        """Rows that were in the lake before the source started."""
        self.batches = 0
        """How many batches the attempt had committed at the last look."""
        self.read_through: float | None = None
        """Through when it had read its source at the last look."""
        self.doing = ""
        """What the attempt was doing at the last look."""
        self.way: str | None = None
        """How rows come into the lake, as of the last look."""
        self.logged = ""
        """The state that was last logged."""
        self.stands_since = 0.0
        """Since when the source is in that state."""
        self.has_failed_for_good = False
        """At the last look."""
        self.is_read = False
        """Whether the source was read through once, or has failed."""


class _Ending:
    """Ends a source, or its attempt, on a thread of its own."""

    def __init__(self, table: str, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"upriver-source-end-{table}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._stop()
        except Exception as error:  # the caller that waits raises it
            self._error = error

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, in so many seconds. Raises the error that has kept it from ending."""
        self._thread.join(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()


class SourceSupervisor:
    """All sources of an app. Any thread may call the public methods.

    now: seconds of a clock that never goes back. today: seconds since 1970. look_s: seconds between two looks. end_s:
    seconds to wait for the end of an attempt.
    """

    def __init__(
        self,
        tables: Iterable[str],
        now: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
        look_s: float = LOOK_S,
        end_s: float = END_S_MAX,
    ) -> None:
        self._now = now
        self._today = today
        self._look_s = look_s
        self._end_s = end_s
        self._batches: dict[str, _CountedBatches] = {}
        """By table in the lake."""
        self._sources: Mapping[str, _Supervised] = {table: _Supervised(self._counts(table)) for table in tables}
        """By declared table. Replaced, and never changed."""
        self._last = BEGINNING
        """The last epoch that is in the lake."""
        self._listener: SourceListener | None = None
        self._lock = threading.Lock()
        """Guards the above. No thread waits for a source while holding it."""
        self._one_look = threading.Lock()
        """Keeps the reports on a table in order."""
        self._warns = False
        self._restarts: dict[str, threading.Event] = {}
        """By table with a requested restart, the event that is set when the restart is done."""
        self._wake = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver-sources", daemon=True)

    def published(self, epochs: LakeEpochs) -> None:
        """An epoch is in the lake. The caller reports epochs in order, those of earlier runs before ``start``."""
        with self._lock:
            for table, last in epochs.batches.items():
                self._batches.setdefault(table, _CountedBatches()).add(last)
            self._last = epochs.epoch

    def _counts(self, table: str) -> TableCounts:
        return self._batches.setdefault(table, _CountedBatches()).counts

    def start(self, ingests: Mapping[str, Ingest], listener: SourceListener) -> None:
        """Begin the first attempt of each table's source. A source whose attempt fails at once is a failed source."""
        self._listener = listener
        for table, ingest in ingests.items():
            self._sources[table].ingest = ingest
            self._sources[table].rows_before = self._sources[table].counts.rows
        for table in ingests:
            self._take(table, self._sources[table], SourceStarted(self._now()))
        self._thread.start()

    def add(self, table: str, ingest: Ingest, seconds: float) -> None:
        """Begin with the source of one more table, after ``start``. Returns when it runs, or after so many seconds.

        Raises IngestFailed if its first attempt has failed by then, and has committed nothing: then the table is not
        known, as before.
        """
        with self._lock:
            source = _Supervised(self._counts(table))
            source.ingest, source.rows_before = ingest, source.counts.rows
            last = source.counts.last_epoch
        self._check_goes_on()
        self._take(table, source, SourceStarted(self._now()))
        with self._lock:  # no thread looks at a source before its first attempt has begun
            is_over = self._is_over.is_set()
            self._sources = self._sources if is_over else {**self._sources, table: source}
        if is_over:
            self._end(table, source)
            self._check_goes_on()
        if source.machine.is_alive:
            ingest.wait_begun(seconds)
        self._look(table)
        self._wake.set()
        self._check_goes_on()
        if (error := source.machine.error) is not None and source.counts.last_epoch == last:
            self.drop(table, DROP_S_MAX)
            raise IngestFailed(f"table {table!r} is not declared: its source has failed at once: {error}")

    def _check_goes_on(self) -> None:
        if self._is_over.is_set():
            raise DeclarationError("the app is being stopped: declare the table when it runs again")

    def drop(self, table: str, seconds: float) -> None:
        """End the source of a table, and know neither any more. A batch in flight is abandoned: its rows come again if
        the table is declared again.

        Raises WaitTimeout if the source has not ended in so many seconds. It ends all the same, and stays known until
        another call.
        """
        source = self._sources[table]
        with self._lock:
            source.machine.step(SourceStopped(self._now()))
            if source.ending is None and source.ingest is not None:
                source.ending = _Ending(table, partial(self._end_source, source))
        try:
            if source.ending is not None and not source.ending.wait(seconds):
                raise WaitTimeout(f"table {table!r}: its source has not ended in {seconds:g} s; drop the table again")
        except WaitTimeout:
            raise
        except Exception:
            source.ending = None  # another call tries again
            raise
        with self._one_look, self._lock:
            self._sources = {name: each for name, each in self._sources.items() if name != table}
            asked = self._restarts.pop(table, None)
        if asked is not None:
            asked.set()

    @staticmethod
    def _end_source(source: _Supervised) -> None:
        assert source.ingest is not None
        with source.acting:
            source.ingest.stop()

    def restart(self, table: str) -> None:
        """Retry a failed or stalled source now; leave a source alone that runs or is finished.

        Returns when the attempt has begun. Raises DeclarationError for a table that is not declared, WaitTimeout.
        """
        if not isinstance(table, str) or table not in self._sources:
            raise DeclarationError(f"no table {table!r}; there are: {', '.join(sorted(self._sources)) or 'none'}")
        with self._lock:
            done = self._restarts.setdefault(table, threading.Event())
        self._wake.set()
        if not done.wait(RESTART_S_MAX):
            raise WaitTimeout(f"table {table!r}: its source was not restarted in {RESTART_S_MAX:g} s; ask again")

    def drain(self, seconds_left: Callable[[], float], tables: Collection[str] | None = None) -> None:
        """Wait until all that the sources had at the call is published. tables: only the sources of these.

        Raises IngestFailed as soon as one of the sources has failed, WaitTimeout when no time is left.
        """
        since = self._today()
        drained = {table: source for table, source in self._sources.items() if tables is None or table in tables}
        for table in drained:  # all before one is waited for: looking makes Spark say when the source has no more rows
            self._look(table)
            self._raise_failure(table)
        for table, source in drained.items():
            self._drain(table, source, since, seconds_left)

    def _drain(self, table: str, source: _Supervised, since: float, seconds_left: Callable[[], float]) -> None:
        assert source.ingest is not None
        attempt = 0
        while attempt != source.machine.attempt:  # again if the attempt has failed, and another has begun
            attempt = source.ingest.look().attempt
            try:
                source.ingest.drain(since, seconds_left)
            except WaitTimeout as late:
                told = self.status().get(table)
                if told is None or told["error"] is None:
                    raise
                raise WaitTimeout(f"{late}. {failure_of_source(table, told)}") from None
            self._look(table)
            self._raise_failure(table)

    def _raise_failure(self, table: str) -> None:
        told = self.status().get(table)
        if told is not None and told["state"] == SourceState.FAILED:
            raise IngestFailed(failure_of_source(table, told))

    def status(self) -> dict[str, dict[str, Any]]:
        """By table, what :meth:`upriver.App.status` documents."""
        now, today = self._now(), self._today()
        with self._lock:
            return {table: _told(source, now, today) for table, source in self._sources.items()}

    def lasting_failures(self) -> list[str]:
        """Of each source that has failed for good, why. No other attempt of it begins unless a user asks for one."""
        return [failure_of_source(table, told) for table, told in self.status().items() if _has_failed_for_good(told)]

    def warn(self, seconds: float) -> None:
        """Warn of each source that has failed for good, now, and from now on as soon as it fails. Waits until sources
        are compared with earlier ones, at most so many seconds."""
        give_up_at = self._now() + seconds
        for table, source in self._sources.items():
            if source.ingest is not None:
                source.ingest.wait_compared(give_up_at - self._now())
            self._look(table)
        self._warns = True
        for failure in self.lasting_failures():
            warn_caller(failure)

    def ingested(self) -> dict[str, int]:
        """By table, the rows that were committed since the app started."""
        with self._lock:
            return {table: source.counts.rows - source.rows_before for table, source in self._sources.items()}

    def stop(self) -> None:
        """End all attempts; no other begins. A batch in flight is abandoned; the next start of the app reads it."""
        with self._lock:  # a table is added before this, or not at all
            self._is_over.set()
        self._wake.set()
        begun = {table: source for table, source in self._sources.items() if source.ingest is not None}
        run_all(self._join, *(partial(self._end, table, source) for table, source in begun.items()))

    def _join(self) -> None:
        if self._thread.is_alive():
            self._thread.join()

    def _end(self, table: str, source: _Supervised) -> None:
        self._take(table, source, SourceStopped(self._now()))
        if source.ending is not None:
            source.ending.wait()

    # The thread

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._wake.wait(self._look_s if self._are_all_read else min(self._look_s, FIRST_LOOKS_S))
            self._wake.clear()
            self.turn()

    def turn(self) -> None:
        """Look at all sources once, and do what is due. One thread at a time may call this."""
        for table, source in self._sources.items():
            if self._is_over.is_set():
                return
            for step in (partial(self._look, table), partial(self._advance, table, source)):
                try:
                    step()
                except Exception as error:  # of Spark or the system: no other thread looks at this or another source
                    extra = {"table": table}
                    why = failure_text(error)
                    _LOG.exception(
                        "table %s: its source is looked at again after an error: %s", table, why, extra=extra
                    )

    def _advance(self, table: str, source: _Supervised) -> None:
        """Begin or end an attempt if that is due, or was asked for."""
        with self._lock:
            done = self._restarts.pop(table, None)
        if done is not None:
            try:
                self._take(table, source, RestartAsked(self._now()))
            finally:
                done.set()
        self._take(table, source, TimePassed(self._now()))

    def _look(self, table: str) -> None:
        """Take in the progress of a table's attempt, and report it to the listener, unless the table is dropped."""
        with self._one_look:
            if (source := self._sources.get(table)) is not None:
                self._look_and_tell(table, source)

    def _look_and_tell(self, table: str, source: _Supervised) -> None:
        if source.ingest is None:
            return
        read_through = None
        if source.machine.is_alive:
            seen, at = source.ingest.look(), self._now()
            source.doing, source.way = seen.doing, seen.way or source.way
            self._step_as_seen(source, seen, at)
            read_through = seen.read_through
        told = self.status()[table]
        self._note_state(table, source, told)
        assert self._listener is not None
        self._listener.source_stands(table, told["state"], told["error"], is_final=_has_failed_for_good(told))
        if told["state"] == SourceState.FAILED:
            source.is_read = True  # it may stay so for long
        if told["state"] == SourceState.FINISHED:
            read_through = self._today()
        if read_through is not None:
            source.is_read = True
            # By now this supervisor knows every epoch that was published by then.
            self._listener.read_through(table, self._now() - (self._today() - read_through), self._last)

    def _note_state(self, table: str, source: _Supervised, told: Mapping[str, Any]) -> None:
        """Log the state of a source if it is another one than before, and warn if it has failed for good."""
        before, state, has_ended = source.logged, told["state"], _has_failed_for_good(told)
        if (before, source.has_failed_for_good) == (state, has_ended):
            return
        _log_state(table, before, told)
        if self._warns and has_ended:
            with suppress(UpriverWarning):  # a filter may make errors of warnings
                warn_caller(failure_of_source(table, told))
        source.has_failed_for_good = has_ended
        if before != state:
            source.logged, source.stands_since = state, self._now()

    def _step_as_seen(self, source: _Supervised, seen: Seen, at: float) -> None:
        if seen.is_over and seen.failure is not None:
            self._step(source, AttemptFailed(at, seen.attempt, seen.failure.error, seen.failure.is_permanent))
        elif seen.is_over:
            self._step(source, AttemptFinished(at, seen.attempt))
        elif seen.is_idle or (seen.batches, seen.read_through) != (source.batches, source.read_through):
            has_committed = seen.batches > source.batches
            source.batches, source.read_through = seen.batches, seen.read_through
            self._step(source, AttemptProgressed(at, seen.attempt, has_committed))
        else:
            assert source.ingest is not None
            # A stalled attempt alone is asked, for Spark looks through all its jobs to answer.
            is_silent = source.machine.state(at) is SourceState.STALLED and not source.ingest.has_jobs()
            self._step(source, AttemptWorks(at, seen.attempt, seen.is_asking, is_silent, seen.doing))

    @property
    def _are_all_read(self) -> bool:
        return all(source.is_read for source in self._sources.values())

    def _step(self, source: _Supervised, event: SourceEvent) -> list[SourceAction]:
        with self._lock:
            return source.machine.step(event)

    def _take(self, table: str, source: _Supervised, event: SourceEvent) -> None:
        """Step by an event, and begin or end an attempt if that follows."""
        with source.acting:
            end_s = None if isinstance(event, SourceStopped) else self._end_s
            self._carry_out(table, source, self._step(source, event), end_s)

    def _carry_out(self, table: str, source: _Supervised, actions: Iterable[SourceAction], end_s: float | None) -> None:
        """end_s: seconds to wait for the end of an attempt; ``None``: as many as it takes."""
        assert source.ingest is not None
        unended: Exception | None = None
        for action in actions:
            match action:
                case EndAttempt():
                    try:
                        _Ending(table, source.ingest.stop).wait(end_s)
                    except Exception as error:
                        unended = error
                case BeginAttempt():
                    unended = None  # the start ends it, or fails
                    source.batches, source.read_through, source.doing = 0, None, ""
                    extra = {"table": table, "attempt": action.attempt}
                    _LOG.info("table %s: attempt %d of its source begins", table, action.attempt, extra=extra)
                    try:
                        source.ingest.start(action.attempt)
                    except Exception as error:
                        failure = source.ingest.failure_of(error)
                        failed = AttemptFailed(self._now(), action.attempt, failure.error, failure.is_permanent)
                        self._step(source, failed)
        if unended is not None:
            raise unended


def _log_state(table: str, before: str, told: Mapping[str, Any]) -> None:
    """Log the state of a table's source. before: the state that was logged last. told: as ``status`` has it."""
    state, extra = told["state"], {"table": table, "state": told["state"]}
    match state:
        case SourceState.FAILED:
            _LOG.error("%s", failure_of_source(table, told), extra=extra)
        case SourceState.FAILING:
            pass  # that the attempt begins is logged
        case SourceState.STALLED:
            _LOG.warning("table %s: its source has stalled: %s", table, told["error"], extra=extra)
        case SourceState.FINISHED:
            _LOG.info("table %s: its source is finished, after %d rows", table, told["rows"], extra=extra)
        case _ if before:
            _LOG.info("table %s: its source runs again", table, extra=extra)


def _told(source: _Supervised, now: float, today: float) -> dict[str, Any]:
    machine, counts = source.machine, source.counts
    state = str(machine.state(now))
    return {
        "state": state,
        "state_for_s": _rounded(now - source.stands_since if state == source.logged else 0.0),
        "epoch": int(counts.last_epoch),
        "epoch_age_s": _rounded(counts.age_s(today)),
        "rows": counts.rows,
        "rows_per_s": round(counts.rows_per_s(today), 1),
        "error": machine.error if state != SourceState.STALLED else _stall(source, now),
        "stalled_for_s": _rounded(machine.stalled_for_s(now)),
        "retry_in_s": _rounded(machine.retry_in_s(now)),
        "attempts": machine.attempt,
        "attempt_for_s": _rounded(machine.attempt_for_s(now)),
        "doing": source.doing if machine.is_alive and source.doing else None,
        "way": source.way,
        "last_error": machine.error,
        "last_error_age_s": _rounded(machine.failed_ago_s(now)),
    }


def _stall(source: _Supervised, now: float) -> str:
    """Why a source counts as stalled, and what its last failure was if it has not progressed since."""
    machine = source.machine
    why = (silence if machine.is_unanswered(now) else stall)(source.doing)
    failed_ago_s = machine.failed_ago_s(now)
    if failed_ago_s is None:
        return why
    return (
        f"{why} This is attempt {machine.attempt}. An earlier one has failed, {failed_ago_s:.0f} s ago: {machine.error}"
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def source_failure(tables: Mapping[str, Mapping[str, Any]]) -> str | None:
    """One line on the sources that have failed, and made no progress since; ``None`` if there are none.

    tables: as :meth:`SourceSupervisor.status` gives them.
    """
    failed = [failure_of_source(table, told) for table, told in tables.items() if told["last_error"] is not None]
    return " ".join(failed) or None


def _has_failed_for_good(told: Mapping[str, Any]) -> bool:
    return told["state"] == SourceState.FAILED and told["retry_in_s"] is None


def failure_of_source(table: str, told: Mapping[str, Any]) -> str:
    """Why a source has failed, and what comes next. told: as :meth:`SourceSupervisor.status` has it."""
    match told["state"], told["retry_in_s"]:
        case SourceState.STALLED, _:
            return f"table {table!r}: its source has stalled after a failure: {told['error']}"
        case SourceState.FAILED, None:
            then = f"app.restart_source({table!r}) tries again"
        case SourceState.FAILED, retry_in_s:
            then = f"It is tried again in {retry_in_s:.0f} s; app.restart_source({table!r}) tries at once"
        case _:
            then = f"It is being tried again: attempt {told['attempts']} has run for {told['attempt_for_s']:.0f} s"
            then += f', and Spark says "{told["doing"]}"' if told["doing"] else ""
    return f"table {table!r}: its source has failed: {told['error']} {then}."
