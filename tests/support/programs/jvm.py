"""How Spark's processes are started by tests: for a short life."""

import os
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "  # better code is not worth the wait, nor are threads of a collector
    "-XX:ReservedCodeCacheSize=256m "  # at this level the default is so small that a long run ends uncompiled
    "-Xlog:disable -Xlog:all=warning:stderr"  # some programs are listened to
)
ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
"""Of Spark's classes; ``archive.py`` writes it. Java does without if it is another Java's."""

HOME = Path(sys.prefix) / f"spark-home-{version('pyspark')}"
"""The installed Spark, with PySpark as a directory."""


def spark_home() -> Path:
    """Make :data:`HOME`, unless it is there, and return it.

    Spark has its processes in Python import PySpark from a zip, and Python compiles again what it imports from one: a
    second of each process. Here a link to the installed packages is in the zip's place."""
    if HOME.exists():
        return HOME
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    libraries = Path("python") / "lib"
    with tempfile.TemporaryDirectory(prefix=HOME.name, dir=HOME.parent) as directory:
        made = Path(directory) / HOME.name
        (made / libraries).mkdir(parents=True)
        for part in (Path(), libraries.parent, libraries):
            for found in (package / part).iterdir():
                if not (made / part / found.name).exists():
                    (made / part / found.name).symlink_to(package.parent if found.suffix == ".zip" else found)
        with suppress(OSError):  # another process has made it meanwhile
            made.rename(HOME)
    return HOME


def start_quickly() -> None:
    """Have all of Spark's processes that are started from here on do so, whatever starts them."""
    os.environ["SPARK_HOME"] = str(spark_home())
    options = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK
    settings = [f'--conf "spark.{kind}.defaultJavaOptions={options}"' for kind in ("driver", "executor")]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*settings, "pyspark-shell"])
