# ruff: noqa: E501  queries are easier to read on one line
"""Bad rows of tables that set them aside, on Spark: views are those of the good rows, and each bad one is told once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.errors import RowError

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, shop STRING, amount STRING, parts INT, at STRING"
PRICES = "item BIGINT, version BIGINT, price STRING"
BAD_AMOUNT, BAD_PARTS, BAD_AT = "id % 10 = 3", "parts = 0", "id % 40 = 7"
BAD_PRICE = "price = 'free'"
VIEWS = {
    "totals": (
        "SELECT shop, count(*) AS n, sum(CAST(amount AS INT)) AS amount FROM orders GROUP BY shop",
        "shop",
        BAD_AMOUNT,
    ),
    "shares": (
        "SELECT share, count(*) AS n FROM (SELECT 12 DIV parts AS share FROM orders) GROUP BY share",
        "share",
        BAD_PARTS,
    ),
    "days": (
        "SELECT id, CAST(at AS DATE) AS at FROM orders WHERE CAST(amount AS INT) >= 0",
        "id",
        f"{BAD_AMOUNT} OR {BAD_AT}",
    ),
    "counts": ("SELECT shop, count(*) AS n FROM orders GROUP BY shop", "shop", "false"),
}
"""By name: the query, the key, and the rows of ``orders`` that it cannot be computed from."""
BY_PRICE = "SELECT price, count(*) AS n FROM (SELECT CAST(price AS INT) AS price FROM prices) GROUP BY price"


TALLIES = (
    """SELECT shop, id, cast(row_number() OVER (PARTITION BY shop ORDER BY id) AS INT) AS nth,
                    cast(amount AS INT) AS amount FROM orders""",
    "shop",
    BAD_AMOUNT,
)
"""What the stateful map gives for good rows."""
CURRENT = """SELECT item, version, price FROM
             (SELECT *, row_number() OVER (PARTITION BY item ORDER BY version DESC) AS place FROM versions) WHERE place = 1"""


def orders(spark: Any, first: int, last: int) -> Any:
    """One in ten has no number for an amount, one in eight no parts; of the others a few came at no time."""
    return spark.range(first, last).selectExpr(
        "id",
        "concat('s', id % 7) AS shop",
        "if(id % 10 = 3, 'many', string(id % 9)) AS amount",
        "cast(id % 8 AS INT) AS parts",
        "if(id % 40 = 7, 'noon', string(date_add(DATE '2024-01-01', int(id)))) AS at",
    )


def prices(spark: Any, first: int, last: int) -> Any:
    """Versions of twenty items, some of which are free for a while."""
    return spark.range(first, last).selectExpr(
        "id % 20 AS item", "id AS version", "if(id % 9 = 2, 'free', string(id % 5)) AS price"
    )


def tally(shop: str, order: Any, seen: list[int] | None) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Changes its state before it finds that it cannot be done."""
    seen = [] if seen is None else seen
    seen.append(order.id)
    return [(order.id, len(seen), int(order.amount))], seen


def write(rows: Any, path: Path) -> None:
    rows.coalesce(1).write.mode("append").parquet(str(path))


def app_on(spark: Any, path: Path, on_bad_row: str = "set_aside") -> App:
    app = App(spark, str(path / "lake"), workers=2, vnodes=16)
    streams = {
        name: spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(path / name))
        for name, schema in (("orders", ORDERS), ("prices", PRICES))
    }
    app.table("orders", streams["orders"], key="id", order_by="id", on_bad_row=on_bad_row)
    app.table("prices", streams["prices"], primary_key="item", order_by="version", on_bad_row=on_bad_row)
    for name, (sql, key, _) in VIEWS.items():
        app.view(name, sql, key=key)
    app.view("by_price", BY_PRICE, key="price")
    app.stateful_map(
        "tallies", source="orders", key="shop", func=tally, schema="id BIGINT, nth INT, amount INT", order_by="id"
    )
    return app


def same_rows(ours: Any, theirs: Any) -> bool:
    return ours.dtypes == theirs.dtypes and Counter(ours.collect()) == Counter(theirs.collect())


def check_views(spark: Any, app: App, path: Path) -> None:
    every = spark.read.schema(ORDERS).parquet(str(path / "orders")).cache()
    for name, (sql, _, bad) in {**VIEWS, "tallies": TALLIES}.items():
        every.where(f"NOT ({bad})").createOrReplaceTempView("orders")
        assert same_rows(app.read(name), spark.sql(sql)), name
    spark.read.schema(PRICES).parquet(str(path / "prices")).createOrReplaceTempView("versions")
    spark.sql(CURRENT).where(f"NOT ({BAD_PRICE})").createOrReplaceTempView("prices")
    assert same_rows(app.read("by_price"), spark.sql(BY_PRICE))


def check_rejected(spark: Any, app: App, path: Path, cuts: list[int]) -> None:
    """cuts: how many versions of prices there were at the end of each of their epochs."""
    every = spark.read.schema(ORDERS).parquet(str(path / "orders"))
    told: Counter[tuple[str, int]] = Counter()
    for name, (_, _, bad) in {**VIEWS, "tallies": TALLIES}.items():
        told.update((name, row.id) for row in every.where(bad).collect())
    assert Counter((row.view, row.row.id) for row in app.rejected("orders").collect()) == told
    versions = spark.read.schema(PRICES).parquet(str(path / "prices"))
    free: set[int] = set()
    for cut in cuts:
        versions.where(f"version < {cut}").createOrReplaceTempView("versions")
        free |= {row.version for row in spark.sql(CURRENT).where(BAD_PRICE).collect()}
    assert Counter(row.row.version for row in app.rejected("prices").collect()) == Counter(free)


def test_views_are_those_of_the_good_rows_and_bad_ones_are_told_once(spark: Any, tmp_path: Path) -> None:
    write(orders(spark, 0, 60), tmp_path / "orders")
    write(prices(spark, 0, 60), tmp_path / "prices")
    with app_on(spark, tmp_path) as app:
        app.start()
        app.wait()
        rescale = app.rescale(3, keys_max=4)
        write(orders(spark, 60, 100), tmp_path / "orders")
        assert rescale.wait()["outcome"] == "finished"
        write(prices(spark, 60, 100), tmp_path / "prices")
        app.wait()
        check_views(spark, app, tmp_path)
        check_rejected(spark, app, tmp_path, [60, 100])
        status = app.status()
        assert status["views"]["totals"]["rows"] == 7
        assert sorted(status["views"]) == sorted([*VIEWS, "by_price", "tallies"])
    with app_on(spark, tmp_path) as app:  # which reads all epochs again
        app.start()
        app.wait()
        check_rejected(spark, app, tmp_path, [60, 100])
        (error,) = {row.error for row in app.rejected("orders").where("view = 'totals'").collect()}
        assert "many" in error
        assert {row.epoch for row in app.rejected("prices").collect()} <= set(range(1, status["epoch"] + 1))


def test_what_is_made_of_several_rows_is_not_set_aside(spark: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a", 1), ("a", -1), ("b", 0)], "k string, v int")
    app = App(spark, str(tmp_path), workers=1)
    app.table("numbers", rows, key="k", on_bad_row="set_aside")
    app.view(
        "of_sums",
        "SELECT share, count(*) AS n FROM (SELECT 1 / total AS share FROM (SELECT k, sum(v) AS total FROM numbers GROUP BY k)) GROUP BY share",
        key="share",
    )
    with app:
        app.start()
        app.wait()
        assert app.status()["views"]["of_sums"]["state"] == "failed"
        with pytest.raises(
            RowError,
            match=r"(?is)view 'of_sums', region 'of_sums/0', epoch 1: .*division by zero.* \(row: sum\(v\) = 0\)\..* It is not set aside: .* combines several",
        ):
            app.lookup("of_sums", [1.0])
    assert app.rejected("numbers").count() == 0
