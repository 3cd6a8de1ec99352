"""Two columns of orders, one view of totals: the program of the README."""

import upriver
from upriver.spark.session import local_session

spark = local_session(workers=2)  # or your own session: one task slot per worker, and one more for ingest
orders = spark.createDataFrame([("ada", 10), ("bob", 20), ("ada", 7)], "customer string, amount int")

app = upriver.App(spark, root="/tmp/orders-lake", workers=2)
app.table("orders", orders, key="customer")  # a streaming DataFrame works the same way
app.view("totals", "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer", key="customer")
app.start(wait=True)  # until all rows are reflected
print(app.lookup("totals", ["ada", "bob"]).to_pylist())
# [{'customer': 'ada', 'n': 2, 'total': 17}, {'customer': 'bob', 'n': 1, 'total': 20}]
app.read("totals").show()  # the whole view, as a Spark DataFrame
print(app.explain("totals"))  # how it is kept
print(app.address, app.token)  # for lookups from elsewhere
app.stop()
