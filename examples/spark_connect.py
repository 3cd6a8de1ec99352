"""The demo's reader: views and their changes in a session of Spark Connect, which needs no Java here.

Beside ``upriver demo --http 127.0.0.1:8080``, which prints the address and the token:

    SPARK_REMOTE=sc://HOST:15002 UPRIVER_ADDRESS=... UPRIVER_TOKEN=... python examples/spark_connect.py
"""

import os

from pyspark.sql import SparkSession

from upriver.spark.scan import UpriverDataSource

app = {"address": os.environ["UPRIVER_ADDRESS"], "token": os.environ["UPRIVER_TOKEN"]}
spark = SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).getOrCreate()
spark.dataSource.register(UpriverDataSource)

# A lookup as a DataFrame: only these keys are read.
aircraft = spark.read.format("upriver").options(**app, view="aircraft", keys='["N14228", "N24211"]').load()
for row in aircraft.collect():
    print(f"{row.tailnum} flew {row.flights} times, {row.miles} miles")

# The changes of a view, as a stream: here, those that there are by now.
changes = spark.readStream.format("upriver").options(**app, view="routes", changes="true").load()
query = changes.writeStream.format("memory").queryName("told").trigger(availableNow=True).start()
query.awaitTermination()
for row in spark.table("told").groupBy("_change_type").count().collect():
    print(f"{row['count']} changes are of the type {row['_change_type']}")
spark.stop()
