"""The process from which Spark forks its Python workers, with all that a worker of ours needs already loaded.

Spark starts one such process for each executor (``spark.python.daemon.module``) and forks it for each Python task. A
worker that joins a running app is then there at once: it has nothing to load while others answer lookups.
"""

from upriver.runtime.memory import share_free_memory

share_free_memory()  # first: what is loaded below begins threads

# ruff: noqa: E402
import atexit
import gc
import sys
from zipimport import zipimporter

import pandas  # type: ignore[import-untyped]  # noqa: F401  Spark's own Python tasks load it
import pyspark.worker  # noqa: F401  what Spark runs in each process that is forked
from pyspark import daemon

import upriver.spark.host  # noqa: F401


def forget_archives() -> None:
    """Drop what was noted of the archives that something was loaded from; it is made again when it is needed.

    Spark has each new process look for files that have come meanwhile. Of ``pyspark.zip`` that is its whole table of
    contents, once for each package in it: a tenth of a second, while others answer lookups.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_archives()
    # Spark has each process collect garbage after each task. What is loaded here is none, and takes longer to look
    # through than a small task takes.
    gc.freeze()
    atexit.register(gc.unfreeze)  # what is never collected counts as leaked for DuckDB, which says so in forty lines
    daemon.manager()
