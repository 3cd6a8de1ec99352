"""Which Python the executors run."""

import os
import sys

from pyspark.sql import SparkSession

from upriver.errors import DeclarationError
from upriver.given import class_name


def runs_elsewhere(spark: SparkSession) -> bool:
    """Whether executors may have other packages than this process: only its own interpreter on its machine has not."""
    context = spark.sparkContext
    is_own = os.path.realpath(context.pythonExec) == os.path.realpath(sys.executable)
    return not (is_own and str(context.master).startswith("local"))


def check_session(spark: SparkSession) -> None:
    """Raise DeclarationError if the session was stopped, or its JVM is gone."""
    try:
        java = spark.sparkContext._jsc
        is_stopped = java is None or bool(java.sc().isStopped())
    except Exception:  # of any class: the JVM does not answer
        is_stopped = True
    if is_stopped:
        raise DeclarationError("the Spark session has been stopped: make another one, and the app anew with it")


def use_own_python(spark: SparkSession) -> None:
    """In local mode, let Spark's Python workers be this interpreter.

    Unless told otherwise Spark starts whatever ``python3`` comes first on the PATH, which need not have our
    packages. On a cluster, and where the user has chosen, the choice stands.
    """
    if not isinstance(spark, SparkSession):
        if ".connect." in type(spark).__module__:
            raise DeclarationError(
                "spark is a session of Spark Connect, which is not supported: workers are tasks that the driver itself "
                "starts. Run the program where the driver is, with SparkSession.builder.master(...).getOrCreate()"
            )
        raise DeclarationError(f"spark={spark!r}: give a pyspark.sql.SparkSession, not a {class_name(spark)}")
    check_session(spark)
    context = spark.sparkContext
    chosen = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not chosen and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
