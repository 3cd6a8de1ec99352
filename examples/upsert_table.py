"""A table whose rows replace each other: the last version of each customer counts, and one that says so deletes."""

import upriver
from upriver.spark.session import local_session

spark = local_session(workers=2)
changes = spark.createDataFrame(
    [
        (1, "north", 1, "I"),
        (2, "north", 1, "I"),
        (3, "south", 1, "I"),
        (2, "south", 2, "U"),  # customer 2 moves
        (3, "south", 2, "D"),  # customer 3 leaves
    ],
    "customer INT, region STRING, version INT, op STRING",
)

app = upriver.App(spark, root="/tmp/customers-lake", workers=2)
app.table("customers", changes, primary_key="customer", order_by="version", deletes="op = 'D'")
app.view("regions", "SELECT region, count(*) AS customers FROM customers GROUP BY region", key="region")
app.start(wait=True)
print(app.lookup("regions", ["north", "south"]).to_pylist())
# [{'region': 'north', 'customers': 1}, {'region': 'south', 'customers': 1}]
app.stop()
