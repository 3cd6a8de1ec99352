"""Sinks for the changes of a view: a table that is kept equal to it, and messages to Kafka."""

from upriver.spark.sinks import BatchFunction, keep_equal, publish_to_kafka

__all__ = ["BatchFunction", "keep_equal", "publish_to_kafka"]
