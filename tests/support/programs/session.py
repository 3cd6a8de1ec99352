"""Spark sessions as tests want them: nothing shown, on loopback, and for a short life."""

import os
import sys
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from upriver.options import Checkpoints, Compaction, Standbys, Tokens
from upriver.spark.runs import warm_up
from upriver.spark.session import CHECKPOINT_FILES

COMMON = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",  # tables are small and queries many
    **CHECKPOINT_FILES,
}
OUR_DAEMON = {"spark.python.daemon.module": "upriver.spark.daemon"}

_GROUPS = {"standbys": Standbys, "checkpoints": Checkpoints, "compaction": Compaction, "tokens": Tokens}


def options_of(settings: dict[str, Any]) -> dict[str, Any]:
    """An app's options from JSON, in which a group of options is an object."""
    return {name: _GROUPS[name](**value) if name in _GROUPS else value for name, value in settings.items()}


def session(master: str, more: dict[str, Any] | None = None) -> SparkSession:
    """more: settings that win over the common ones."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    return SparkSession.builder.master(master).config(map={**COMMON, **(more or {})}).getOrCreate()


def without_warm_up(spark: SparkSession) -> SparkSession:
    """The session, whose first app does not pass 100,000 made-up rows of each table through it: that takes seconds.
    Programs have apps that do, and so has ``tests/spark/test_monitoring.py``."""
    warm_up(spark, ())
    return spark
