"""The process from which Spark forks its Python workers, with all that a worker of ours needs already loaded.

Spark starts one such process for each executor (``spark.python.daemon.module``) and forks it for each Python task. A
worker that joins a running app is then there at once: it has nothing to load while others answer lookups.
"""

import pandas  # type: ignore[import-untyped]  # noqa: F401  Spark's own Python tasks load it
from pyspark import daemon

import upriver.spark.task  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
