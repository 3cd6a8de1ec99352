"""Indexes that a table gets when it has rows already. Runs in the driver, before ingest starts or beside it.

The rows are taken from the table's own runs, some epochs at a time, and written once more in the order of the new
index; what comes of each epoch is kept in a supplement to its manifest. When no epoch lacks the index, its record is
written, and from then on readers see it. Whatever is interrupted goes on with the next epoch that has no supplement.
Rules I5 to I8: ``docs/design/lake.md``.
"""

import threading
from collections.abc import Iterable, Iterator
from uuid import uuid4

from pyspark.sql import SparkSession

from upriver.errors import IngestFailed, UpriverError
from upriver.ids import Epoch
from upriver.lake.lake import Manifest
from upriver.lake.owned_lake import OwnedLake
from upriver.plan.plan import lake_channel
from upriver.spark.ingest import STOP_POLL_S, Layout
from upriver.spark.runs import Lot, rewrite_runs

JOB_EPOCHS_MAX = 64
JOB_ROWS = 10_000_000
"""Epochs of one Spark job, and their rows; an epoch is not split, even if it is larger."""


class Backfill:
    """Gives tables indexes, one after the other. Called from any thread."""

    def __init__(
        self, spark: SparkSession, lake: OwnedLake, epochs_max: int = JOB_EPOCHS_MAX, rows_max: int = JOB_ROWS
    ) -> None:
        """epochs_max, rows_max: of one Spark job."""
        self._spark = spark
        self._lake = lake
        self._epochs_max = epochs_max
        self._rows_max = rows_max
        self._tag = f"upriver-backfill-{uuid4().hex}"
        self._one_at_a_time = threading.Lock()
        self._stopping = threading.Event()

    def run(self, layout: Layout, index: tuple[str, ...], last: Epoch) -> None:
        """Give the table an index. All epochs after ``last`` have it, or will have it when they are published.

        Blocks until it is complete; returns at once if it is. Raises IngestFailed, LakeError.
        """
        what = f"table {layout.table.name!r}: its index ({', '.join(index)})"
        with self._one_at_a_time:
            context = self._spark.sparkContext
            context.addJobTag(self._tag)
            try:
                self._run(layout, index, last)
            except UpriverError:
                raise
            except Exception as error:
                why = "the app was stopped" if self._stopping.is_set() else error
                raise IngestFailed(f"{what} is not complete: {why}") from error
            finally:
                context.removeJobTag(self._tag)

    def _run(self, layout: Layout, index: tuple[str, ...], last: Epoch) -> None:
        record = self._lake.record()
        assert record is not None
        if index in record.indexes[layout.table.name]:
            return
        for manifests in self._jobs(self._lacking(layout, index, last)):
            if self._stopping.is_set():
                raise InterruptedError
            self._rewrite(layout, index, manifests)
        self._lake.complete(layout.table.name, index)  # I6

    def _lacking(self, layout: Layout, index: tuple[str, ...], last: Epoch) -> Iterator[Manifest]:
        """The manifests of the epochs that have the index neither themselves nor in a supplement."""
        channel = lake_channel(layout.table.name, index)
        supplemented = self._lake.supplemented(channel)
        for number in range(1, last + 1):
            if (epoch := Epoch(number)) not in supplemented:
                manifest = self._lake.manifest(epoch)
                if manifest.table == layout.table.name and channel not in manifest.runs:
                    yield manifest

    def _jobs(self, manifests: Iterable[Manifest]) -> Iterator[list[Manifest]]:
        """The same manifests, as many at a time as the limits allow."""
        held: list[Manifest] = []
        rows = 0
        for manifest in manifests:
            own = max(manifest.rows().values())  # all indexes of an epoch have the same
            if held and (len(held) == self._epochs_max or rows + own > self._rows_max):
                yield held
                held, rows = [], 0
            held.append(manifest)
            rows += own
        if held:
            yield held

    def _rewrite(self, layout: Layout, index: tuple[str, ...], manifests: list[Manifest]) -> None:
        writer = layout.writer(*(Lot(manifest.batch, index) for manifest in manifests))
        sources = [next(iter(manifest.runs.values())) for manifest in manifests]
        for manifest, runs in zip(manifests, rewrite_runs(self._spark, sources, writer), strict=True):
            self._lake.supplement(lake_channel(layout.table.name, index), manifest.epoch, runs)

    def stop(self) -> None:
        """End what is under way, and let nothing begin any more; it goes on when the app next starts."""
        self._stopping.set()
        while not self._one_at_a_time.acquire(timeout=STOP_POLL_S):
            self._spark.sparkContext.cancelJobsWithTag(self._tag)
        self._one_at_a_time.release()
