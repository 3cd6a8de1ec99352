"""Tables fed by a real Kafka broker: views have each row once, over restarts of the broker and new
partitions."""

from pathlib import Path
from typing import Any

import pytest
from standby_kit import await_that

from upriver import App

pytestmark = pytest.mark.servers

ORDER = "id bigint, customer string, amount int"
TOTALS = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"
NEWEST = "SELECT customer, id, amount FROM newest"
REFRESH_S = 1
TRIGGER = {"processingTime": "500 milliseconds"}


def orders(first: int, last: int) -> list[tuple[str, dict[str, Any]]]:
    """As a producer sends them: the key, and the row."""
    made = []
    for number in range(first, last):
        customer = f"c{number % 7}"
        made.append((customer, {"id": number, "customer": customer, "amount": number % 11}))
    return made


def stream(spark: Any, broker: Any, topic: str) -> Any:
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .option("kafka.metadata.max.age.ms", 1000 * REFRESH_S)  # new partitions are seen as soon
        .load()
    )
    return raw.selectExpr(f"from_json(CAST(value AS STRING), '{ORDER}') AS row").select("row.*")


def test_views_equal_spark_over_what_was_sent(kafka: Any, kafka_spark: Any, tmp_path: Path) -> None:
    """The broker restarts and the topic grows while the app runs; then the app starts again on its root."""
    topic = kafka.topic(partitions=2)
    sent: list[tuple[str, dict[str, Any]]] = []

    def send(last: int, partition: int = -1) -> None:
        new = orders(len(sent), last)
        kafka.send(topic, new, partition)
        sent.extend(new)

    def running() -> App:
        app = App(kafka_spark, str(tmp_path / "lake"), workers=1)
        rows = stream(kafka_spark, kafka, topic)
        app.table("orders", rows, key="customer", trigger=TRIGGER)
        app.table("newest", rows, primary_key="customer", order_by="id", trigger=TRIGGER)
        app.view("totals", TOTALS, key="customer", partial=False)
        app.view("of_each", NEWEST, key="customer", partial=False)
        return app.start()

    def assert_equal(app: App) -> None:
        app.wait(120)
        rows = kafka_spark.createDataFrame([tuple(row.values()) for _, row in sent], ORDER)
        rows.createOrReplaceTempView("orders")
        assert sorted(app.read("totals").collect()) == sorted(kafka_spark.sql(TOTALS).collect())
        last = "SELECT customer, max(id) AS id, max_by(amount, id) AS amount FROM orders GROUP BY customer"
        assert sorted(app.read("of_each").collect()) == sorted(kafka_spark.sql(last).collect())

    send(100)
    with running() as app:
        assert_equal(app)
        kafka.restart()
        send(150)
        assert_equal(app)
        kafka.grow(topic, 3)
        send(170, partition=2)
        send(200)
        assert_equal(app)
        assert {table["state"] for table in app.status()["tables"].values()} == {"running"}
    send(230)
    with running() as app:
        assert_equal(app)


def test_a_topic_that_is_absent_is_told_and_read_once_it_is_there(kafka: Any, kafka_spark: Any, tmp_path: Path) -> None:
    app = App(kafka_spark, str(tmp_path / "lake"), workers=1)
    app.table("orders", stream(kafka_spark, kafka, "not-yet"), key="customer", trigger=TRIGGER)
    app.view("totals", TOTALS, key="customer", partial=False)

    def told() -> dict[str, Any]:
        table: dict[str, Any] = app.status()["tables"]["orders"]
        return table

    with app.start():
        # Spark asks for some seconds or for minutes, by the broker and its client, before the query fails.
        await_that(lambda: told()["state"] in ("stalled", "failed"), seconds=60)
        assert "not-yet at " in told()["error"]
        assert "that the topic or table exists" in told()["error"]
        kafka.topic(name="not-yet")
        kafka.send("not-yet", orders(0, 20))
        app.restart_source("orders")
        app.wait(120)
        assert (told()["state"], told()["error"], told()["rows"]) == ("running", None, 20)
