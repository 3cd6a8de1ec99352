"""What Spark logs about errors that are told in one line of ours: kept from the user meanwhile, and no longer."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.logger import PySparkLogger

ANALYSIS_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers on which PySpark writes each error of a query, with its stack, as some kilobytes of JSON."""


@contextmanager
def unlogged() -> Iterator[None]:
    """Drop what PySpark logs about errors of queries while the block runs, on this thread alone."""
    me = threading.get_ident()

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != me

    loggers = [PySparkLogger.getLogger(name) for name in ANALYSIS_LOGGERS]  # of their own class, as PySpark needs them
    for logger in loggers:
        logger.addFilter(is_others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_others)
