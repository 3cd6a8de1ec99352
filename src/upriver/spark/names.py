"""Spark's own types, for modules outside this package that only pass them through."""

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
