"""Writes an archive of the classes that Spark loads, from which its processes start in half the time.

usage: archive.py. Does nothing if there is one.
"""

import os
import tempfile

from jvm import ARCHIVE, QUICK, spark_home
from pyspark import SparkContext
from pyspark.sql import DataFrame
from session import session

WAIT_S = 120.0


def _count(rows: DataFrame, _: int) -> None:
    rows.count()


def main() -> None:
    if ARCHIVE.exists():
        return
    os.environ["SPARK_HOME"] = str(spark_home())  # of no use for classes of another path
    unfinished = ARCHIVE.with_suffix(".unfinished")
    spark = session("local[2]", {"spark.driver.extraJavaOptions": f"{QUICK} -XX:ArchiveClassesAtExit={unfinished}"})
    with tempfile.TemporaryDirectory() as directory:
        spark.range(1_000).write.parquet(f"{directory}/rows")
        spark.read.parquet(f"{directory}/rows").groupBy("id").count().collect()
        stream = spark.readStream.schema("id long").parquet(f"{directory}/rows").writeStream
        stream = stream.trigger(availableNow=True).option("checkpointLocation", f"{directory}/checkpoint")
        stream.foreachBatch(_count).start().awaitTermination()
        spark.sparkContext.parallelize([1], 1).map(abs).collect()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc  # it writes when it ends, which it does when no process speaks to it any more
    java.stdin.close()
    java.wait(WAIT_S)
    unfinished.rename(ARCHIVE)


if __name__ == "__main__":
    main()
