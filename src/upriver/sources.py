"""Sources of upsert tables: envelopes of Debezium, and the change feed of a Delta table."""

from upriver.spark.change_feeds import UpsertTable, debezium, delta_cdf

__all__ = ["UpsertTable", "debezium", "delta_cdf"]
