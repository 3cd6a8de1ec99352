"""A Python function over the rows of each key, in order, with a state for each key: the trips of each aircraft."""

import upriver
from upriver.spark.session import local_session

spark = local_session(workers=2)
flights = spark.createDataFrame(
    [("N14228", 1, "IAH", 1400.0), ("N24211", 1, "IAH", 1416.0), ("N14228", 2, "ORD", 719.0)],
    "tailnum STRING, ts INT, dest STRING, distance DOUBLE",
)


def trips(tailnum, flight, state):
    """One row for each flight: its number, where it went, and the miles of the aircraft so far."""
    number, miles = (0, 0.0) if state is None else state
    number, miles = number + 1, miles + flight.distance
    return [(number, flight.dest, miles)], (number, miles)


app = upriver.App(spark, root="/tmp/flights-lake", workers=2)
app.table("flights", flights, key="tailnum", order_by="ts")
app.stateful_map(
    "trips",
    source="flights",
    key="tailnum",
    func=trips,
    schema="trip INT, dest STRING, miles DOUBLE",
    state="trips INT, miles DOUBLE",
)
app.start(wait=True)
print(*app.lookup("trips", ["N14228"]).to_pylist(), sep="\n")
# {'tailnum': 'N14228', 'trip': 1, 'dest': 'IAH', 'miles': 1400.0}
# {'tailnum': 'N14228', 'trip': 2, 'dest': 'ORD', 'miles': 2119.0}
app.stop()
