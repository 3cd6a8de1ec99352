"""Spark's own types, for those outside this package who only pass them through."""

from pyspark.sql import DataFrame, SparkSession

__all__ = ["DataFrame", "SparkSession"]
