"""Lookups from another process, which needs neither Spark nor Java: it has the app's address and its token."""

import os
import subprocess
import sys

import upriver
from upriver.spark.session import local_session

CLIENT = """
import os
import upriver

with upriver.connect(os.environ["UPRIVER_ADDRESS"], os.environ["UPRIVER_TOKEN"]) as client:
    found = client.lookup("totals", ["ada"], max_age=60)  # StaleView if a source has been dead for longer
    print(found.to_pylist())
"""

spark = local_session(workers=2)
orders = spark.createDataFrame([("ada", 10), ("bob", 20), ("ada", 7)], "customer string, amount int")

app = upriver.App(spark, root="/tmp/remote-lake", workers=2)
app.table("orders", orders, key="customer")
app.view("totals", "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer", key="customer")
app.start(wait=True)
known = {"UPRIVER_ADDRESS": app.address, "UPRIVER_TOKEN": app.token}  # keep the token secret
client = subprocess.run(
    [sys.executable, "-c", CLIENT], env=os.environ | known, stdout=subprocess.PIPE, text=True, check=True
)
print(client.stdout.strip())
# [{'customer': 'ada', 'total': 17}]
app.stop()
