"""One Spark session with each connector that fits this version of Spark: Kafka's, Delta's and Iceberg's.

A JVM takes jars only when it starts, so the tests with connectors (``servers``) run in processes without the session of
the other tests.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from servers.maven import Jars, Missing
from session import OUR_DAEMON, session

VERSION = ".".join(pyspark.__version__.split(".")[:2])
_LOGS = ("org.slf4j:*", "org.apache.logging.log4j:*")
_SPARK_HAS = (*_LOGS, "org.apache.hadoop:*", "org.scala-lang:*", "org.antlr:*", "com.fasterxml.jackson.core:*")
"""What PySpark brings itself. A second copy of another version would be taken for it."""


def _kafka(version: str) -> Jars:
    return Jars(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}", (*_SPARK_HAS, "org.scala-lang.modules:*"))


def _delta(spark: str, version: str) -> Jars:
    more = ("org.apache.parquet:*", "org.xerial.snappy:*", "com.github.luben:*", "org.roaringbitmap:*")
    return Jars(f"io.delta:delta-spark{spark}_2.13:{version}", (*_SPARK_HAS, *more))


def _iceberg(spark: str, version: str) -> Jars:
    return Jars(f"org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:{version}", ("*:*",))


CONNECTORS: Mapping[str, Mapping[str, Jars]] = {
    "kafka": {"4.3": _kafka("4.2.0"), "4.2": _kafka("4.2.0"), "4.1": _kafka("4.1.1"), "4.0": _kafka("4.0.0")},
    "delta": {"4.2": _delta("_4.2", "4.4.0"), "4.1": _delta("_4.1", "4.2.0"), "4.0": _delta("", "4.0.0")},
    "iceberg": {"4.1": _iceberg("4.1", "1.12.0"), "4.0": _iceberg("4.0", "1.11.0")},
}
"""By connector and version of Spark: the newest jars that work with it."""
_SETTINGS = {
    "kafka": {},
    "delta": {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",  # of 50: a minute for a hundred rows
    },
    "iceberg": {
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
    },
}
_MEMORY = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "10"}
_EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


def settings_of(*connectors: str) -> dict[str, str]:
    """Spark's settings for a session of its own with connectors. Spark takes the extensions of one of them only. Raises
    Missing, with the reason, if there are no jars."""
    settings = {"spark.jars": ",".join(str(jar) for name in connectors for jar in jars_for(name))}
    for name in connectors:
        settings |= _SETTINGS[name]
        if name in _EXTENSIONS:
            settings["spark.sql.extensions"] = _EXTENSIONS[name]
    return settings


class ConnectedSession:
    """The session, and the reason for each connector that it lacks. warehouse: of Iceberg's catalog, ``ice``."""

    def __init__(self, warehouse: Path) -> None:
        if SparkContext._active_spark_context is not None:
            raise Missing("this process has a Spark session without connectors already: run pytest -m servers")
        self.missing: dict[str, str] = {}
        jars: dict[str, list[Path]] = {}
        for name in CONNECTORS:
            try:
                jars[name] = jars_for(name)
            except Missing as missing:
                self.missing[name] = str(missing)
        settings: dict[str, Any] = {"spark.jars": ",".join(str(jar) for each in jars.values() for jar in each)}
        for name in jars:
            settings |= _SETTINGS[name]
        if extensions := [_EXTENSIONS[name] for name in jars if name in _EXTENSIONS]:
            settings["spark.sql.extensions"] = ",".join(extensions)
        if "iceberg" in jars:
            settings["spark.sql.catalog.ice.warehouse"] = str(warehouse)
        self.spark = session("local[8]", {**OUR_DAEMON, **_MEMORY, "spark.sql.session.timeZone": "UTC", **settings})
        self.spark.sparkContext.setLogLevel("ERROR")

    def having(self, connector: str) -> Any:
        """The session. Raises Missing, with the reason, if it lacks the connector."""
        if connector in self.missing:
            raise Missing(self.missing[connector])
        return self.spark

    def stop(self) -> None:
        self.spark.stop()


def jars_for(name: str) -> list[Path]:
    """The jars of a connector, for this version of Spark. Raises Missing, with the reason, if there are none."""
    versions = CONNECTORS[name]
    if VERSION not in versions:
        fits = " and ".join(sorted(versions))
        raise Missing(f"no connector for {name} is released for Spark {VERSION}: the tests run it with {fits}")
    return versions[VERSION].fetched()
