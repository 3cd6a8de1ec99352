"""What an app measures, for Prometheus. ``Metrics.render`` reads the coordinator's state when it is called.

``FAMILIES`` lists all metrics. A family without a value, such as lookups before the first one, is rendered with its
help and type alone. Counters begin at zero with the app, or, if they have the label ``worker`` and are of a view, with
the worker's assignment: Prometheus' ``rate()`` knows such resets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from upriver.errors import DeclarationError
from upriver.protocol.coordinator_events import RescaleOutcome
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.measures import Buckets, LookupTotals

if TYPE_CHECKING:
    from prometheus_client import Metric

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
SOURCE_STATES = ("running", "stalled", "failing", "failed", "finished")

Number = int | float | bool
Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, Number | None]]
"""Values by labels; ``None``: there is no such sample."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One family of metrics. help: one sentence."""

    name: str
    kind: str
    help: str
    labels: Labels = ()


_VW = ("view", "worker")
FAMILIES = tuple(
    MetricSpec(*spec)
    for spec in (
        ("upriver_build_info", GAUGE, "Always 1; the label has Upriver's version.", ("version",)),
        ("upriver_app_ready", GAUGE, "Whether every view reflects all rows that existed at the start."),
        ("upriver_app_failed", GAUGE, "Whether the app cannot go on."),
        ("upriver_published_epoch", GAUGE, "The last epoch that is committed to the lake."),
        ("upriver_ended_epoch", GAUGE, "The last epoch that every view reflects."),
        ("upriver_epoch_duration_seconds", HISTOGRAM, "Time that epochs take, by stage.", ("stage",)),
        ("upriver_vnode_map_version", GAUGE, "Number of changes of the map of vnodes."),
        ("upriver_checkpoint_epoch", GAUGE, "Epoch of the newest checkpoint; 0 without one."),
        ("upriver_checkpoint_failed", GAUGE, "Whether the last checkpoint was given up."),
        ("upriver_ingested_rows_total", COUNTER, "Rows committed to the lake since the app started.", ("table",)),
        ("upriver_source_state", GAUGE, "1 for the state of the table's source, else 0.", ("table", "state")),
        ("upriver_source_attempts_total", COUNTER, "Attempts to run the table's source.", ("table",)),
        ("upriver_source_age_seconds", GAUGE, "Time since the table's last epoch was committed.", ("table",)),
        ("upriver_table_lag_seconds", GAUGE, "Age of the newest moment whose rows are all reflected.", ("table",)),
        ("upriver_table_lag_rows", GAUGE, "Rows that are committed and not yet reflected by all workers.", ("table",)),
        ("upriver_table_lag_epochs", GAUGE, "Epochs that are committed and not yet reflected.", ("table",)),
        ("upriver_view_failed", GAUGE, "Whether the view has failed.", ("view",)),
        ("upriver_view_rows", GAUGE, "Rows of the view, of a partial one those of its present keys.", _VW),
        ("upriver_view_state_bytes", GAUGE, "Memory of the view's state.", _VW),
        ("upriver_view_used_bytes", GAUGE, "Part of the state's memory that holds data.", _VW),
        ("upriver_view_present_keys", GAUGE, "Keys of a partial view that are in memory.", _VW),
        ("upriver_view_filling_keys", GAUGE, "Keys of a partial view that are being read from the lake.", _VW),
        ("upriver_view_unfillable_keys", GAUGE, "Keys of a partial view whose last fill has failed.", _VW),
        ("upriver_view_looked_up_keys_total", COUNTER, "Keys of all answered lookups of a partial view.", _VW),
        ("upriver_view_missed_keys_total", COUNTER, "Looked-up keys of a partial view that had to be filled.", _VW),
        ("upriver_view_evicted_keys_total", COUNTER, "Keys of a partial view that were evicted.", _VW),
        ("upriver_upqueries_total", COUNTER, "Reads of the lake for missing keys.", ("view",)),
        ("upriver_lookup_duration_seconds", HISTOGRAM, "Time of answered lookups, at the worker.", ("view",)),
        ("upriver_lookup_keys_total", COUNTER, "Keys of answered lookups.", ("view",)),
        ("upriver_lookup_waits_total", COUNTER, "Lookups whose keys were missing at first, or moving.", ("view",)),
        ("upriver_lookup_errors_total", COUNTER, "Lookups without an answer: refused, failed or too late.", ("view",)),
        ("upriver_worker_up", GAUGE, "Whether a process fills the worker's slot.", ("worker",)),
        ("upriver_worker_held_up", GAUGE, "Whether the worker cannot read the lake, and retries.", ("worker",)),
        ("upriver_worker_epoch", GAUGE, "The last epoch that the worker has finished.", ("worker",)),
        ("upriver_worker_vnodes", GAUGE, "Vnodes that the worker owns.", ("worker",)),
        ("upriver_worker_lookups_total", COUNTER, "Lookups that clients have sent to the worker.", ("worker",)),
        ("upriver_worker_restarts_total", COUNTER, "Times that the worker was lost and replaced.", ("worker",)),
        ("upriver_standby_ready_vnodes", GAUGE, "Vnodes that have all their standbys."),
        ("upriver_standby_learning_vnodes", GAUGE, "Vnodes that are being learned."),
        ("upriver_rescale_active", GAUGE, "Whether a rescale is under way."),
        ("upriver_rescale_waiting", GAUGE, "Requested rescales that have not begun."),
        ("upriver_rescale_planned_vnodes", GAUGE, "Vnodes that the rescale under way moves; 0 without one."),
        ("upriver_rescale_moved_vnodes", GAUGE, "Vnodes of it that have moved."),
        ("upriver_rescale_moved_keys", GAUGE, "Keys that the rescale under way has moved."),
        ("upriver_rescale_moved_bytes", GAUGE, "State that the rescale under way has moved."),
        ("upriver_rescales_total", COUNTER, "Rescales that have ended since the app started.", ("outcome",)),
        ("upriver_lake_runs", GAUGE, "Files of rows that readers of the lake use."),
        ("upriver_lake_bytes", GAUGE, "Size of these files."),
        ("upriver_lake_written_runs_total", COUNTER, "Files of rows that ingest has written."),
        ("upriver_lake_written_bytes_total", COUNTER, "Size of the files that ingest has written."),
        ("upriver_lake_due_segments", GAUGE, "Segments that compaction has yet to make."),
        ("upriver_lake_made_segments_total", COUNTER, "Segments that compaction has made."),
        ("upriver_lake_merged_runs_total", COUNTER, "Files of rows that segments have replaced."),
        ("upriver_lake_removed_runs_total", COUNTER, "Files of rows that were removed."),
        ("upriver_lake_removed_bytes_total", COUNTER, "Size of the removed files."),
        ("upriver_lake_maintenance_failed", GAUGE, "Whether compaction or collection fails, and is retried."),
    )
)
"""All metrics, in the order in which they are rendered."""

_OF_VIEWS = {
    "upriver_view_rows": "rows",
    "upriver_view_state_bytes": "bytes",
    "upriver_view_used_bytes": "live_bytes",
    "upriver_view_present_keys": "present",
    "upriver_view_filling_keys": "pending",
    "upriver_view_unfillable_keys": "unfillable",
    "upriver_view_looked_up_keys_total": "looked_up",
    "upriver_view_missed_keys_total": "missed",
    "upriver_view_evicted_keys_total": "evicted",
}
"""The workers' name of each number of a view and a worker."""
_OF_LAKE = {
    "upriver_lake_due_segments": "due",
    "upriver_lake_made_segments_total": "made",
    "upriver_lake_merged_runs_total": "merged_runs",
    "upriver_lake_removed_runs_total": "removed_runs",
    "upriver_lake_removed_bytes_total": "removed_bytes",
}
"""The status's name of each number of compaction."""
_OF_RESCALES = {
    "upriver_rescale_planned_vnodes": "vnodes_moving",
    "upriver_rescale_moved_vnodes": "vnodes_moved",
    "upriver_rescale_moved_keys": "keys_moved",
    "upriver_rescale_moved_bytes": "bytes_moved",
}
"""The name of each number in a rescale's progress."""


class Metrics:
    """The metrics of one running app. Any thread calls ``render``.

    loop: the app's coordinator. lookups: what its workers have reported.
    """

    def __init__(self, loop: CoordinatorLoop, lookups: LookupTotals) -> None:
        self._loop = loop
        self._lookups = lookups

    def render(self) -> bytes:
        """All metrics, in Prometheus' text format, version 0.0.4.

        Raises DeclarationError if ``prometheus-client`` is not installed.
        """
        try:
            from prometheus_client import CollectorRegistry, generate_latest
        except ImportError as error:
            raise DeclarationError(
                "metrics need prometheus-client, which is not installed: pip install 'upriver[http]'"
            ) from error
        registry = CollectorRegistry()
        registry.register(_Collector(self._samples(), self._buckets()))
        return generate_latest(registry)

    def _buckets(self) -> dict[str, Mapping[str, Buckets]]:
        """Histograms, by the value of their one label."""
        return {
            "upriver_epoch_duration_seconds": self._loop.progress.epochs.seconds(),
            "upriver_lookup_duration_seconds": self._lookups.seconds(),
        }

    def _samples(self) -> dict[str, Samples]:
        status = self._loop.status()
        return {
            **self._of_app(status),
            **self._of_tables(status["tables"]),
            **self._of_views(status["views"]),
            **self._of_lookups(),
            **_of_workers(status["workers"]),
            **self._of_rescales(status),
            **self._of_lake(status["lake"]),
        }

    def _of_app(self, status: Mapping[str, Any]) -> dict[str, Samples]:
        checkpoint, standbys = status["checkpoint"] or {}, status["standbys"]
        return {
            "upriver_build_info": [((installed_version(),), 1)],
            "upriver_app_ready": _one(self._loop.progress.lacks() is None),
            "upriver_app_failed": _one(self._loop.has_failed),
            "upriver_published_epoch": _one(status["published"]),
            "upriver_ended_epoch": _one(status["epoch"]),
            "upriver_vnode_map_version": _one(status["map_version"]),
            "upriver_checkpoint_epoch": _one(checkpoint.get("epoch", 0)),
            "upriver_checkpoint_failed": _one(checkpoint.get("failed") is not None),
            "upriver_standby_ready_vnodes": _one(standbys["ready"]),
            "upriver_standby_learning_vnodes": _one(standbys["learners"]),
        }

    def _of_tables(self, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Samples]:
        progress = self._loop.progress
        fresh, left = progress.freshness().tables, progress.epochs.left()
        return {
            "upriver_ingested_rows_total": [((table,), rows) for table, rows in self._loop.ingested().items()],
            "upriver_source_state": [
                ((table, state), told["state"] == state) for table, told in tables.items() for state in SOURCE_STATES
            ],
            "upriver_source_attempts_total": [((table,), told["attempts"]) for table, told in tables.items()],
            "upriver_source_age_seconds": [((table,), told["epoch_age_s"]) for table, told in tables.items()],
            "upriver_table_lag_seconds": [((table,), of_one.age_s) for table, of_one in fresh.items()],
            "upriver_table_lag_epochs": [((table,), left.get(table, (0, 0))[0]) for table in tables],
            "upriver_table_lag_rows": [((table,), left.get(table, (0, 0))[1]) for table in tables],
        }

    def _of_views(self, views: Mapping[str, Mapping[str, Any]]) -> dict[str, Samples]:
        found = self._loop.view_stats()
        of_views: dict[str, Samples] = {
            metric: [((view, str(worker)), stats[name]) for (view, worker), stats in found.items() if name in stats]
            for metric, name in _OF_VIEWS.items()
        }
        failed = [((view,), told["state"] == "failed") for view, told in views.items()]
        return {"upriver_view_failed": failed, **of_views}

    def _of_lookups(self) -> dict[str, Samples]:
        lookups = self._lookups
        return {
            "upriver_upqueries_total": _by_label(lookups.upqueries()),
            "upriver_lookup_keys_total": _by_label(lookups.counts("keys")),
            "upriver_lookup_waits_total": _by_label(lookups.counts("waits")),
            "upriver_lookup_errors_total": _by_label(lookups.counts("errors")),
            "upriver_worker_lookups_total": _by_label(lookups.by_worker()),
        }

    def _of_rescales(self, status: Mapping[str, Any]) -> dict[str, Samples]:
        progress, outcomes = status["rescale"] or {}, self._loop.rescales.outcomes()
        return {
            "upriver_rescale_active": _one(status["rescale"] is not None),
            "upriver_rescale_waiting": _one(status["rescales_waiting"]),
            **{metric: _one(progress.get(name, 0)) for metric, name in _OF_RESCALES.items()},
            "upriver_rescales_total": [((str(each),), outcomes.get(str(each), 0)) for each in RescaleOutcome],
        }

    def _of_lake(self, told: Mapping[str, Any]) -> dict[str, Samples]:
        """told: the status of compaction; empty before it runs."""
        (runs, size), (written, written_size) = self._loop.progress.lake.kept(), self._loop.progress.lake.written()
        return {
            "upriver_lake_runs": _one(runs),
            "upriver_lake_bytes": _one(size),
            "upriver_lake_written_runs_total": _one(written),
            "upriver_lake_written_bytes_total": _one(written_size),
            **{metric: _one(told.get(name, 0)) for metric, name in _OF_LAKE.items()},
            "upriver_lake_maintenance_failed": _one(told.get("failed") is not None),
        }


def installed_version() -> str:
    """Upriver's version; ``unknown`` if it runs without being installed."""
    try:
        return version("upriver")
    except PackageNotFoundError:
        return "unknown"


def _of_workers(workers: Iterable[Mapping[str, Any]]) -> dict[str, Samples]:
    def each(value: Callable[[Mapping[str, Any]], Number | None]) -> Samples:
        return [((str(told["worker"]),), value(told)) for told in workers]

    return {
        "upriver_worker_up": each(lambda told: told["address"] is not None),
        "upriver_worker_held_up": each(lambda told: told["held_up"] is not None),
        "upriver_worker_epoch": each(lambda told: told["epoch"]),
        "upriver_worker_vnodes": each(lambda told: told["vnodes"]),
        "upriver_worker_restarts_total": each(lambda told: told["restarts"]),
    }


def _one(value: Number) -> Samples:
    return [((), value)]


def _by_label(values: Mapping[Any, Number]) -> Samples:
    return [((str(label),), value) for label, value in values.items()]


class _Collector:
    """Gives the families once, as ``prometheus_client`` wants them. samples, buckets: by metric."""

    def __init__(self, samples: Mapping[str, Samples], buckets: Mapping[str, Mapping[str, Buckets]]) -> None:
        self._samples = samples
        self._buckets = buckets

    def describe(self) -> Iterable["Metric"]:
        """Nothing: then the registry does not collect to find out."""
        return ()

    def collect(self) -> Iterator["Metric"]:
        for spec in FAMILIES:
            yield self._histogram(spec) if spec.kind == HISTOGRAM else self._plain(spec)

    def _plain(self, spec: MetricSpec) -> "Metric":
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        kind = CounterMetricFamily if spec.kind == COUNTER else GaugeMetricFamily
        family = kind(spec.name, spec.help, labels=spec.labels)
        for labels, value in self._samples[spec.name]:
            if value is not None:
                family.add_metric(labels, float(value))
        return family

    def _histogram(self, spec: MetricSpec) -> "Metric":
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for label, buckets in self._buckets[spec.name].items():
            family.add_metric((label,), buckets.cumulative(), buckets.total)
        return family
