"""A partial view keeps in memory only the keys that are looked up. The rows of all others stay in the lake."""

import upriver
from upriver.spark.session import local_session

spark = local_session(workers=2)
orders = spark.range(100_000).selectExpr("id", "id % 10000 AS customer", "id % 7 AS amount")

app = upriver.App(spark, root="/tmp/partial-lake", workers=2, memory_budget=256 << 20)  # bytes of each worker
app.table("orders", orders, key="id")
app.view("totals", "SELECT customer, count(*) AS n FROM orders GROUP BY customer", key="customer")
app.start(wait=True)
print(app.lookup("totals", [17, 4711]).to_pylist())  # the workers fill both keys from the lake
# [{'customer': 17, 'n': 10}, {'customer': 4711, 'n': 10}]
app.evict("totals", [17])  # the key takes no memory any more
print(app.lookup("totals", [17]).to_pylist())  # and is filled again
# [{'customer': 17, 'n': 10}]
print(app.explain("totals"))  # says that the view is partial, or why it is not
app.stop()
