"""Recovery: one of several workers is killed while rows come in and its keys are looked up, once for each way.

Spark's own streaming comes first, killed and started again from its checkpoint: it has processes of its own, and this
one has no Spark yet. What is measured, and what is left out: ``docs/benchmarks.md``.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.nexmark_queries import Refused
from benchmarks.recovery_spark import measure_spark
from benchmarks.recovery_ways import VICTIM, WAYS, RecoveryOptions, Say, measure_way
from upriver.errors import UserError
from upriver.spark.session import local_session

NOT_ASKED = Refused("not asked for")
SPARK = "spark"

Result = Mapping[str, Any] | Refused
"""A way's figures, or why there are none."""


def measure_recovery(options: RecoveryOptions, say: Say = print) -> dict[str, Any]:
    """Measure every way and Spark's; returns what ``--json`` prints. ``say`` is told how it goes.

    Raises UserError for too few workers, ClusterError if something does not recover in time.
    """
    if options.workers <= VICTIM:
        raise UserError(f"workers={options.workers}: one is killed and others go on, so there are {VICTIM + 1} or more")
    results: dict[str, Result] = dict.fromkeys(WAYS, NOT_ASKED)
    results[SPARK] = measure_spark(options, say) if options.has_spark else NOT_ASKED
    spark = local_session(options.workers, app_name="upriver-bench")
    try:
        for name, way in WAYS.items():
            results[name] = way if isinstance(way, Refused) else measure_way(spark, options, name, way, say)
    finally:
        spark.stop()
    return report(options, results)


def report(options: RecoveryOptions, results: Mapping[str, Result]) -> dict[str, Any]:
    """As ``--json`` has it: ``None`` where there is nothing to measure, and beside it why, ``<way>_why``."""
    measured = [result for result in results.values() if not isinstance(result, Refused)]
    shown: dict[str, Any] = {}
    for name, result in results.items():
        is_refused = isinstance(result, Refused)
        shown[name] = None if is_refused else result
        shown[f"{name}_why"] = result.why if isinstance(result, Refused) else None
    return {
        "keys": options.keys,
        "workers": options.workers,
        "epoch_rows": options.epoch_rows,
        "epochs_since": options.epochs_since,
        "epochs_per_s": options.epochs_per_s,
        **shown,
        "right": all(figures["views_equal"] and not figures.get("wrong_answers") for figures in measured),
    }
