"""Tables as they are declared: upsert tables, bad rows' policy, indexes that come with later views."""

from pathlib import Path
from typing import Any

import pytest
from rows_kit import differing_rows

from upriver.app import App
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.ids import Epoch, VnodeId
from upriver.lake.lake import Lake
from upriver.lake.rejected import Rejected
from upriver.lake.spans import single
from upriver.plan.plan import lake_channel

pytestmark = pytest.mark.spark

VERSIONS = "id long, country string, amount int, at timestamp, op string, tags array<int>"
BY_COUNTRY = "SELECT country, count(*) AS n, sum(amount) AS total FROM orders GROUP BY country"
BY_AMOUNT = "SELECT amount, count(*) AS n FROM orders GROUP BY amount"


def versions(spark: Any, first: int = 0, last: int = 40) -> Any:
    """Versions of orders: several of each id, in no order."""
    return spark.range(first, last).selectExpr(
        "id % 9 AS id",
        "nullif(concat('c', id % 4), 'c3') AS country",
        "cast(id AS int) AS amount",
        "timestamp_seconds(id * 7919 % 1000) AS at",
        "if(id % 10 = 0, 'D', 'U') AS op",
        "array(1) AS tags",
    )


def upserts(spark: Any, root: Path, **changed: Any) -> App:
    app = App(spark, str(root), workers=1)
    options = {"key": "country", "primary_key": "id", "order_by": "at", "deletes": "op = 'D'"}
    app.table("orders", versions(spark), **{**options, **changed})
    return app


WRONG = [
    ({"primary_key": "nothing"}, "primary_key names 'nothing'; its columns are id, country"),
    ({"primary_key": ["id", "id"]}, "primary_key names a column twice"),
    ({"primary_key": (), "deletes": None, "key": ()}, "its key has no column"),
    ({"order_by": ()}, "has a primary key and no order_by, which says which version"),
    ({"primary_key": ()}, "has deletes and no primary_key, which says which row"),
    ({"order_by": "tags"}, r"order_by names 'tags', and list<.*> has no order"),
    ({"on_bad_row": "ignore"}, "on_bad_row is 'fail' or 'set_aside', not 'ignore'"),
    ({"deletes": "nothing = 1"}, "(?s)deletes: .*`nothing`|no column 'nothing'"),
    ({"deletes": "amount"}, r"(?s)deletes: .*(BOOLEAN|boolean)"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_a_wrong_declaration_is_named(spark: Any, tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=f"table 'orders'.*(?:{said})" if "(?s)" not in said else said):
        upserts(spark, tmp_path, **changed)


def test_what_cannot_be_translated_is_named(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSql, match=r"table 'orders', deletes: line 1, column \d+: "):
        upserts(spark, tmp_path, deletes="op = 'D' AND rand() > 1")


NESTED = """
    SELECT id AS k, named_struct('a', id, 'b', named_struct('c', 'x')) AS s, array(id, 7) AS l,
    array(named_struct('a', id)) AS ls, map('x', named_struct('a', id)) AS m,
    window(timestamp'2020-01-01', '1 day') AS w FROM range(5)"""
"""Spark knows of all that these values are made of that it is not null."""


def test_nested_columns_are_kept_as_spark_has_them(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql(NESTED)
    rows.createOrReplaceTempView("nested")
    app = App(spark, str(tmp_path / "lake"), workers=1)
    app.table("nested", rows, key="k")
    views = {"kept": "SELECT * FROM nested", "few": "SELECT k, s FROM nested WHERE k > 1"}
    for name, sql in views.items():
        app.view(name, sql, key="k", partial=name != "kept")
    app.start()
    app.wait()
    for name, sql in views.items():
        assert differing_rows(app.read(name).drop("m"), spark.sql(sql).drop("m")) == 0  # Spark does not compare maps
    (row,) = app.lookup("kept", [3]).to_pylist()
    assert (row["s"], row["ls"], row["m"]) == ({"a": 3, "b": {"c": "x"}}, [{"a": 3}], [("x", {"a": 3})])
    assert app.lookup("few", [3]).to_pylist() == [{"k": 3, "s": row["s"]}]
    app.stop()


def test_variants_are_refused_wherever_they_are(spark: Any, tmp_path: Path) -> None:
    app = App(spark, str(tmp_path), workers=1)
    for value in ("parse_json('1')", "array(parse_json('1'))", "map('k', named_struct('v', parse_json('1')))"):
        with pytest.raises(DeclarationError, match=r"table 't': column 'v' is .*variant.*CAST it to STRING"):
            app.table("t", spark.sql(f"SELECT 1 AS k, {value} AS v"), key="k")


def test_a_primary_key_is_the_key_unless_one_is_given(spark: Any, tmp_path: Path) -> None:
    app = upserts(spark, tmp_path, key=(), primary_key="ID", order_by="At")  # in any case, as Spark takes names
    table = app._tables["orders"]
    assert (table.key, table.primary_key, table.order_by) == (("id",), ("id",), ("at",))
    assert table.deletes is not None
    assert app._running_app is None


def test_an_upsert_table_is_kept_by_its_primary_key_too(spark: Any, tmp_path: Path) -> None:
    with upserts(spark, tmp_path) as app:
        app.start()
        app.wait()
    lake = Lake(str(tmp_path))
    record = lake.record()
    assert record is not None
    assert record.indexes == {"orders": (("country",), ("id",))}
    (table,) = record.tables
    assert (table.primary_key, table.deletes) == (("id",), app._tables["orders"].deletes)
    of_ids: dict[int, list[Any]] = {}
    everywhere = frozenset(VnodeId(vnode) for vnode in range(record.vnodes))
    for batch in lake.read(lake.manifest(Epoch(1)), lake_channel("orders", ("id",)), everywhere, table):
        for row in batch.to_pylist():
            of_ids.setdefault(row["id"], []).append(row["at"])
    assert len(of_ids) == 9
    assert sum(map(len, of_ids.values())) == 40
    assert all(order == sorted(order) for order in of_ids.values())

    changes: list[dict[str, Any]] = [{"deletes": "op = 'X'"}, {"primary_key": ["id", "country"]}]
    for changed in changes:
        (said,) = changed
        with pytest.raises(DeclarationError, match=f"table 'orders' is kept in .* with {said}"):
            upserts(spark, tmp_path, **changed).start()


# Indexes that later views need ----------------------------------------------------------------------------------


def orders(spark: Any, source: Path) -> Any:
    return spark.readStream.schema(VERSIONS).option("maxFilesPerTrigger", 1).parquet(str(source))


def app_with(spark: Any, root: Path, source: Path, **views: tuple[str, str]) -> App:
    app = App(spark, str(root), workers=1)
    app.table("orders", orders(spark, source), key="country")
    for name, (sql, key) in views.items():
        app.view(name, sql, key=key, partial=False)
    return app


def assert_equals_spark(app: App, spark: Any, source: Path, view: str, sql: str) -> None:
    spark.read.schema(VERSIONS).parquet(str(source)).createOrReplaceTempView("orders")
    assert differing_rows(app.read(view), spark.sql(sql)) == 0


def test_a_view_with_another_key_may_come_later(spark: Any, tmp_path: Path) -> None:
    root, source = tmp_path / "lake", tmp_path / "source"
    for first in (0, 40):
        versions(spark, first, first + 40).coalesce(1).write.mode("append").parquet(str(source))
    with app_with(spark, root, source, totals=(BY_COUNTRY, "country")) as app:
        app.start()
        assert app.wait() == 2
    versions(spark, 80, 90).coalesce(1).write.mode("append").parquet(str(source))
    with app_with(spark, root, source, totals=(BY_COUNTRY, "country"), amounts=(BY_AMOUNT, "amount")) as app:
        app.start()
        app.wait()
        assert_equals_spark(app, spark, source, "totals", BY_COUNTRY)
        assert_equals_spark(app, spark, source, "amounts", BY_AMOUNT)


@pytest.mark.smoke
def test_an_index_is_added_while_the_app_runs(spark: Any, tmp_path: Path) -> None:
    root, source = tmp_path / "lake", tmp_path / "source"
    versions(spark).coalesce(1).write.parquet(str(source))
    with app_with(spark, root, source, totals=(BY_COUNTRY, "country")) as app:
        app.start()
        app.wait()
        app._running().add_index("orders", ("amount",))
        versions(spark, 40, 50).coalesce(1).write.mode("append").parquet(str(source))
        epochs = app.wait()
        app._running().add_index("orders", ("amount",))
        assert_equals_spark(app, spark, source, "totals", BY_COUNTRY)
    lake, channel = Lake(str(root)), lake_channel("orders", ("amount",))
    manifests = [lake.manifest(Epoch(epoch)) for epoch in range(1, epochs + 1)]
    assert sum(manifest.rows()[channel] for manifest in manifests) == 50
    assert lake.supplemented(channel) < set(map(single, range(1, epochs + 1)))


# Bad rows -------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_spark_reads_the_rows_that_were_set_aside(spark: Any, tmp_path: Path, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = versions(spark)
        app = App(spark, str(tmp_path / "lake"))
        app.table("orders", rows, key="country", on_bad_row="set_aside")
        table = app._tables["orders"]
        assert app.rejected("orders").collect() == []
        bad = rows.where("id = 3")
        batches = bad.toArrow().cast(table.schema).combine_chunks().to_batches()
        for _ in range(2):  # the second time, after a restart
            for epoch in (1, 2):
                rejected = Rejected(Lake(str(tmp_path / "lake")), table)
                rejected.add(Epoch(epoch), "totals", batches[0], ["too bad"] * batches[0].num_rows)
        found = app.rejected("orders")
        assert [field.name for field in found.schema] == ["epoch", "view", "error", "row"]
        assert found.schema["row"].dataType.simpleString() == rows.schema.simpleString()
        assert found.groupBy("epoch", "view", "error").count().orderBy("epoch").collect() == [
            (1, "totals", "too bad", bad.count()),
            (2, "totals", "too bad", bad.count()),
        ]
        assert differing_rows(found.where("epoch = 2").select("row.*"), bad) == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_the_lake_says_whose_bad_rows_are_set_aside(spark: Any, tmp_path: Path) -> None:
    """It may change from one start to the next: an app that a bad row has stopped can go on."""
    for policy, expected in (("fail", frozenset()), ("set_aside", frozenset(["orders"]))):
        with App(spark, str(tmp_path), workers=1) as app:
            app.table("orders", versions(spark), key="country", on_bad_row=policy)
            app.start()
        assert Lake(str(tmp_path)).sets_aside() == expected


def test_rows_of_an_undeclared_table_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="no table 'orders'; there are: none"):
        App(spark, str(tmp_path)).rejected("orders")
