"""Reads a view and its changes in a session of Spark Connect: ADDRESS TOKEN VIEW FOLDER. Prints one JSON object."""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.types import Row

from upriver import App
from upriver.errors import DeclarationError
from upriver.spark.scan import UpriverDataSource

address, token, view, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.dataSource.register(UpriverDataSource)
options = {"address": address, "token": token, "view": view}


def plain(rows: list[Row]) -> list[list[object]]:
    return sorted([list(row) for row in rows], key=str)


said = {"session": type(spark).__module__}
try:
    App(spark, f"{folder}/lake", workers=1)
except DeclarationError as error:
    said["app"] = str(error)

found = plain(spark.read.format("upriver").options(**options).load().collect())
some = plain(spark.read.format("upriver").options(**options, keys="[2]").load().collect())

changes = spark.readStream.format("upriver").options(**options, changes="true").load()
kept = changes.select(view_column := changes.columns[0], "n", "_change_type")
query = (
    kept.writeStream.format("parquet")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{folder}/changes")
)
query.awaitTermination()
told = plain(spark.read.parquet(f"{folder}/changes").select(view_column, "n", "_change_type").collect())
print(json.dumps({**said, "rows": found, "some": some, "changes": told}))
spark.stop()
