"""Descriptions of Spark jobs, for Spark's UI and its status stores."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

DESCRIPTION = "spark.job.description"
"""The local property of a thread that describes its jobs."""


@contextmanager
def jobs_described(context: SparkContext, description: str) -> Iterator[None]:
    """Describe the jobs that this thread starts in the block. Afterwards it has its own description again; its job
    group stays as it is."""
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, description)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]  # None unsets it
