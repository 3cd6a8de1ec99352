"""The driver's part of control records: a thread of its own writes them, so that the coordinator never waits for the
lake."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from upriver.coordinator.freshness import ReadThrough
from upriver.engine.row_text import failure_text
from upriver.errors import LakeInUse, UpriverError, WaitTimeout
from upriver.lake.control import (
    ControlRecord,
    FoundControl,
    RescaleCost,
    as_lake_error,
    sweep_control,
    write_control,
)
from upriver.lake.lake import OwnedLake
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import ControlUnwritten, ControlWritten, CoordinatorEvent, WriteControl
from upriver.vnodes import Placement

_LOG = logging.getLogger("upriver.control")

AGAIN_S_MIN, AGAIN_S_MAX = 0.5, 30.0
"""Seconds between a failed write and the next attempt: doubled each time."""


class ControlKeeper:
    """Keeps the control records of one lake. The coordinator's thread calls ``carry_out``, any thread the rest.

    If several records wait, only the last is written: it says what the others do.
    """

    def __init__(
        self, lake: OwnedLake, found: FoundControl, placement: Placement, clock: Callable[[], float] = time.time
    ) -> None:
        """found: what the last driver has left. placement: that this driver begins with. clock: seconds since 1970."""
        self._lake = lake
        self._clock = clock
        before = found.record or ControlRecord(placement=placement)
        self._record = before.of_next_driver(placement)
        self._changed = threading.Condition()
        """Guards and announces all that follows."""
        self._wanted = 0
        """The number of the last record that the coordinator wants written."""
        self._written = 0
        self._error: UpriverError | None = None
        """Why the last write has failed, until one succeeds."""
        self._has_marks = False
        """Whether sources have been read further than the last record says."""
        self._is_stopping = False
        self._hear: Callable[[CoordinatorEvent], None] = _discard
        self._thread = threading.Thread(target=self._run, name="upriver-control-keeper", daemon=True)
        for why in found.damaged:
            _LOG.warning("a control record is skipped, and the one before counts: %s", why)

    def start(self, hear: Callable[[CoordinatorEvent], None]) -> None:
        """hear: tells the coordinator."""
        self._hear = hear
        self._thread.start()

    def carry_out(
        self, action: WriteControl, plans: Sequence[DataflowPlan], strategy: str = "", cost: RescaleCost | None = None
    ) -> None:
        """Write a record soon. plans: the declared views. strategy, cost: of the rescale that begins, or has ended."""
        now = self._clock()
        with self._changed:
            record = self._record.after(action).with_views(plans, now)
            if action.begins is not None:
                record = record.with_begun(action.begins, strategy, self._lake.term, now)
            if action.ends is not None:
                assert cost is not None
                record = record.with_ended(action.ends, cost, self._lake.term)
            self._record, self._wanted = record, action.number
            self._changed.notify_all()

    def marks_but_of(self, replaced: Collection[str]) -> Mapping[str, ReadThrough]:
        """How far the last driver had read each source, in seconds since 1970. replaced: tables whose source another
        one replaces: how far that one was read says nothing, and is forgotten."""
        with self._changed:
            known = self._record.marks
            kept = {table: mark for table, mark in known.items() if table not in replaced}
            self._mark(kept)
            return kept

    def read_through(self, marks: Mapping[str, ReadThrough]) -> None:
        """Record soon how far the sources of some tables are read."""
        with self._changed:
            self._mark({**self._record.marks, **marks})

    def _mark(self, marks: Mapping[str, ReadThrough]) -> None:
        if marks != self._record.marks:
            self._record, self._has_marks = replace(self._record, marks=marks), True
            self._changed.notify_all()

    def wait_written(self, seconds: float) -> None:
        """Block until this driver has written a record. Raises the error of the write, or WaitTimeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._written or self._error is not None, seconds)
            if self._written:
                return
            if self._error is not None:
                raise type(self._error)(*self._error.args)
        raise WaitTimeout(f"no control record is in the lake after {seconds:g} s")

    def rescales(self) -> list[dict[str, Any]]:
        """The rescales of this driver and of earlier ones, oldest first."""
        with self._changed:
            return self._record.rescales_to_json()

    def views(self) -> list[dict[str, Any]]:
        """The views that are declared, or were."""
        with self._changed:
            return self._record.views_to_json()

    def unwritten(self) -> str | None:
        """Why the last control record could not be written, if it could not."""
        with self._changed:
            return None if self._error is None else str(self._error)

    def stop(self) -> None:
        """Write what is wanted, and end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # On the thread

    def _run(self) -> None:
        files, failures = 0, 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._written or self._has_marks or self._is_stopping)
                is_last, number, record = self._is_stopping, self._wanted, self._record
                has_marks, self._has_marks = self._has_marks, False
                if number == self._written and not has_marks:
                    return
            files += 1  # another name: a failed write may have left the file
            error = self._write(record, files)
            if number == self._written:
                if error is not None:  # the next record has what this one would have
                    _LOG.warning("the lake does not say how far the sources are read: %s", error)
                continue
            self._note(number, error)
            failures = 0 if error is None else failures + 1
            if error is not None and (is_last or isinstance(error, LakeInUse)):
                return
            self._rest(number, failures)

    def _write(self, record: ControlRecord, number: int) -> UpriverError | None:
        try:
            write_control(self._lake, record, number, self._clock())
        except Exception as error:  # of any class: no rescale can begin until the coordinator knows
            return as_lake_error(error)
        try:
            sweep_control(self._lake)
        except Exception as error:  # old records only take room; the next sweep tries again
            _LOG.warning("old control records could not be removed: %s", failure_text(error))
        return None

    def _note(self, number: int, error: UpriverError | None) -> None:
        with self._changed:
            self._error = error
            if error is None:
                self._written = number
            self._changed.notify_all()
        if error is None:
            self._hear(ControlWritten(number=number))
        else:
            _LOG.warning("a control record could not be written: %s", error)
            self._hear(ControlUnwritten(number=number, error=error))

    def _rest(self, number: int, failures: int) -> None:
        """After a failure: until it is time for another attempt, or there is something else to write."""
        if failures:
            seconds = min(AGAIN_S_MAX, AGAIN_S_MIN * 2.0 ** min(failures - 1, 16))
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > number or self._is_stopping, seconds)


def _discard(event: CoordinatorEvent) -> None:
    raise AssertionError(f"{type(event).__name__} before the keeper was started")
