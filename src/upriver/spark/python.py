"""Which Python the executors run."""

import os
import sys

from pyspark.sql import SparkSession

from upriver.errors import DeclarationError


def use_own_python(spark: SparkSession) -> None:
    """In local mode, let Spark's Python workers be this interpreter.

    Unless told otherwise Spark starts whatever ``python3`` comes first on the PATH, which need not have our
    packages. On a cluster, and where the user has chosen, the choice stands.
    """
    if not isinstance(spark, SparkSession):
        raise DeclarationError(f"spark={spark!r}: give a SparkSession, not a {type(spark).__name__}")
    context = spark.sparkContext
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
