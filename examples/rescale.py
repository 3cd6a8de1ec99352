"""More workers while rows stream in and lookups go on, and fewer again."""

import upriver
from upriver.spark.session import local_session

spark = local_session(workers=3)  # task slots for the largest number of workers
clicks = spark.readStream.format("rate").option("rowsPerSecond", 1000).load().selectExpr("value % 100 AS page", "value")

app = upriver.App(spark, root="/tmp/clicks-lake", workers=2)
app.table("clicks", clicks, key="page", trigger={"processingTime": "1 second"})
app.view("counts", "SELECT page, count(*) AS clicks FROM clicks GROUP BY page", key="page", partial=False)
app.start(wait=True)

for workers in (3, 2):
    rescale = app.rescale(workers)  # returns at once
    for progress in rescale.follow(timeout=60):
        clicks_so_far = sum(app.lookup("counts", range(100))["clicks"].to_pylist())  # keys answer while they move
        print(f"{progress['state']}: {progress['keys_moved']} keys moved, {clicks_so_far} clicks")
    report = rescale.outcome()
    print(f"{report['from']} -> {report['to']} workers in {report['seconds']:.1f} s")
app.stop()
