"""The root of a lake as Spark and Upriver open it: one address, and one set of settings, for both."""

import os
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from upriver.errors import DeclarationError
from upriver.lake.address import Root, object_address, spark_address
from upriver.lake.lake import Lake
from upriver.lake.store_options import s3a_settings, store_options
from upriver.spark.session import java_class


def checked_root(spark: SparkSession, address: str) -> Root:
    """The root at an address that :func:`upriver.settings.absolute` has checked, with the settings of its store.

    They come from this process's environment, else from the Spark session. What Spark lacks to open an S3 bucket, it
    gets, for this bucket only. Raises DeclarationError for a root with files that are no lake, NotRead.
    """
    place = object_address(address)
    if place is None:
        root = Root(address)
    else:
        hadoop = _hadoop(spark)
        root = Root(address, store_options(place, os.environ, hadoop.get))
        spark_address(root)
        if place.store == "s3":
            for name, value in s3a_settings(place.bucket, root.options, hadoop.get).items():
                spark.sparkContext._jsc.hadoopConfiguration().set(name, value)
    Lake(root).check_not_foreign()
    return root


def check_stream_root(spark: SparkSession, root: str, table: str) -> None:
    """Raise DeclarationError unless Spark can open the root, where a stream has its Spark checkpoint."""
    if object_address(root) is None:
        return
    address = spark_address(root)
    scheme = address.partition(":")[0]
    try:
        java_class(spark, "org.apache.hadoop.fs.FileSystem").getFileSystemClass(scheme, _hadoop(spark))
    except Py4JJavaError as error:
        jar = {"s3a": "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}.get(scheme)
        version = java_class(spark, "org.apache.hadoop.util.VersionInfo").getVersion()
        name = f"{jar}:{version}" if jar else f"the Hadoop connector for {scheme}://"
        raise DeclarationError(
            f"table {table!r}: its stream has its Spark checkpoint in {address}, and this Spark session cannot open "
            f"{scheme}://. Start Spark with {name} (spark.jars.packages), or choose another root"
        ) from error


def _hadoop(spark: SparkSession) -> Any:
    """Hadoop's configuration, as the session's queries get it."""
    return spark._jsparkSession.sessionState().newHadoopConf()
