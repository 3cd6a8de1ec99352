"""The process from which Spark forks its Python workers, with all that a worker of ours needs already loaded.

Spark starts one such process for each executor (``spark.python.daemon.module``) and forks it for each Python task. A
worker that joins a running app is then there at once: it has nothing to load while others answer lookups.
"""

from upriver.shell.arenas import share_free_memory

share_free_memory()  # first: what is loaded below begins threads

# ruff: noqa: E402
import gc

import pandas  # type: ignore[import-untyped]  # noqa: F401  Spark's own Python tasks load it
from pyspark import daemon

import upriver.spark.task  # noqa: F401

if __name__ == "__main__":
    # Spark has each process collect garbage after each task. What is loaded here is none, and takes longer to look
    # through than a small task takes.
    gc.freeze()
    daemon.manager()
