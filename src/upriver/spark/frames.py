"""Spark's own types, for modules outside this package that only pass them through, and comparing two DataFrames."""

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]


def differing_rows(ours: DataFrame, theirs: DataFrame) -> int:
    """Rows that one has and the other lacks, counting repeats. Raises ValueError if their columns differ."""
    if ours.dtypes != theirs.dtypes:
        raise ValueError(f"their columns differ: {ours.dtypes} and {theirs.dtypes}")
    return ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
