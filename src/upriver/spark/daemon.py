"""The process from which Spark forks its Python workers, with all modules of a worker already loaded.

Spark starts one such process for each executor (``spark.python.daemon.module``) and forks it for each Python task. A
worker that joins a running app is then ready at once: it loads nothing while the other workers answer lookups.
"""

from upriver.runtime.arenas import share_free_memory

share_free_memory()  # first: modules loaded below start threads

# ruff: noqa: E402
import atexit
import gc
import sys
from zipimport import zipimporter

import pandas  # type: ignore[import-untyped]  # noqa: F401  Spark's own Python tasks load it
import pyspark.worker  # noqa: F401  the module that each forked process runs
from pyspark import daemon

import upriver.spark.host  # noqa: F401
from upriver.runtime.exit_witness import ExitWitness


def forget_archives() -> None:
    """Drop the cached contents of archives that modules were loaded from; Python reads them again when needed.

    Spark makes each new process look for files that have come meanwhile. For ``pyspark.zip`` that reads its whole table
    of contents, once for each package in it: a tenth of a second, while other workers answer lookups.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_archives()
    # Spark makes each process collect garbage after each task. The modules loaded here are no garbage, and scanning
    # them takes longer than a small task.
    gc.freeze()
    atexit.register(gc.unfreeze)  # what is never collected counts as leaked for DuckDB, which says so in forty lines
    ExitWitness.inherited = ExitWitness.fork()
    daemon.manager()
