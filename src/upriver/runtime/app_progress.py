"""How far the app's epochs have come: which are committed, which have ended, and how fresh the tables are."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from upriver.coordinator.freshness import Freshness, Progress, ReadThrough
from upriver.ids import BEGINNING, Epoch, WorkerId
from upriver.lake.manifests import LakeEpochs
from upriver.protocol.freshness import FreshnessReport
from upriver.runtime.measures import EpochTimes, LakeTally

COMMITS_KEPT_MAX = 10_000
"""How many epochs, the last ones, have their commit time kept in memory."""


class AppProgress:
    """Called by any thread. changed: announces each change.

    published: the last epoch that the coordinator knows to be in the lake. missing: worker slots without a process.
    ready: called once, as soon as the app is ready.
    """

    def __init__(
        self,
        changed: threading.Condition,
        published: Callable[[], Epoch],
        missing: Callable[[], Iterable[WorkerId]],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._changed = changed
        self._published = published
        self._missing = missing
        self._ready = ready
        self._was_ready = False
        self._freshness = Freshness()
        self._has_begun = False
        """Whether the epochs that were in the lake at the start are known, and all others are new."""
        self._ended = BEGINNING
        self.epochs = EpochTimes()
        self.lake = LakeTally()
        self._commits: dict[Epoch, float] = {}
        """When the last epochs were committed, in seconds since 1970."""

    @property
    def ended(self) -> Epoch:
        """The last epoch that has ended at every worker."""
        return self._ended

    def end(self, epoch: Epoch) -> None:
        """The epoch has ended at every worker."""
        with self._changed:
            self._ended = epoch
            self._changed.notify_all()
        self.epochs.ended(epoch, time.monotonic())
        self._look_whether_ready()

    def commit(self, manifest: LakeEpochs) -> None:
        """An epoch is in the lake."""
        self.epochs.committed(manifest, time.monotonic())
        self.lake.add(manifest, is_new=self._has_begun)
        if manifest.committed_at is None:
            return
        with self._changed:
            self._commits[manifest.epoch] = manifest.committed_at
            if len(self._commits) > COMMITS_KEPT_MAX:
                del self._commits[next(iter(self._commits))]

    def committed_at(self, epoch: Epoch) -> float | None:
        """When an epoch was committed, in seconds since 1970; ``None`` if that is not known, or was long ago."""
        return self._commits.get(epoch)

    def expect_sources(
        self, tables: Mapping[str, bool], committed: Epoch, before: Mapping[str, ReadThrough] = MappingProxyType({})
    ) -> None:
        """The sources are about to start. tables: by name, whether the lake has rows of the table. committed: the last
        epoch in the lake. before: :meth:`marks` of the run before; a mark that is still to come, by our clock, says
        nothing."""
        today = time.time()
        behind = today - time.monotonic()
        marks = {table: replace(mark, at=mark.at - behind) for table, mark in before.items() if mark.at <= today}
        with self._changed:
            self._freshness = Freshness(tables, committed, marks)
            self._has_begun = True
        self.epochs.begin()

    def read_through(self, table: str, at: float, epoch: Epoch) -> None:
        """Every row that the table's source had offered by ``at``, monotonic, is in epochs up to ``epoch``."""
        with self._changed:
            self._freshness.read_through(table, ReadThrough(at, epoch))
            self._changed.notify_all()
        self._look_whether_ready()

    def marks(self) -> dict[str, ReadThrough]:
        """By table, the newest moment whose rows all workers reflect, in seconds since 1970."""
        behind = time.time() - time.monotonic()
        with self._changed:
            marks = self._freshness.marks(self._ended)
        return {table: ReadThrough(mark.at + behind, mark.epoch) for table, mark in marks.items()}

    def _look_whether_ready(self) -> None:
        if self._has_begun and not self._was_ready and self.lacks() is None:
            self._was_ready = True
            self._ready()

    def source_stands(self, table: str, state: str, error: str | None = None, *, is_final: bool = False) -> None:
        """As :meth:`Freshness.stands`."""
        with self._changed:
            self._freshness.stands(table, state, error, is_final=is_final)
            self._changed.notify_all()

    def freshness(self) -> FreshnessReport:
        """How fresh each table is, and what it lacks to be ready."""
        with self._changed:
            progress = Progress(self._ended, self._published(), tuple(sorted(self._missing())))
            return self._freshness.report(progress, time.monotonic())

    def lacks(self) -> str | None:
        """As :meth:`FreshnessReport.app_lacks`."""
        return self.freshness().app_lacks()
