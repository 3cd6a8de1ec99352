"""How Spark's processes are started by tests: for a short life."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "  # better code is not worth the wait, nor are threads of a collector
    "-XX:ReservedCodeCacheSize=256m "  # at this level the default is so small that a long run ends uncompiled
    "-Xlog:disable -Xlog:all=warning:stderr"  # some programs are listened to
)
ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
"""Of Spark's classes; ``archive.py`` writes it. Java does without if it is another Java's."""


def start_quickly() -> None:
    """Have all of Spark's processes that are started from here on do so, whatever starts them."""
    options = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK
    settings = [f'--conf "spark.{kind}.defaultJavaOptions={options}"' for kind in ("driver", "executor")]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*settings, "pyspark-shell"])
