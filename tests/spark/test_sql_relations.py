"""The same queries, and those that only Spark can read: a tree gives what Spark SQL gives over the same rows."""

from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from query_kit import evaluated, names_are_apart, relation_sql, rows, same_rows, tables
from query_list import DUCK, ONE_ROW, SPARK, UNNAMED, queries

from upriver.errors import DeclarationError
from upriver.spark.typer import SparkTyper
from upriver.sql.queries import compile_view

pytestmark = pytest.mark.spark

TABLES = tables()


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    """A session that has the tables."""
    for name, table in rows().items():
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        spark.createDataFrame(table, schema).createOrReplaceTempView(name)
    return spark


@pytest.mark.parametrize("sql", queries(DUCK + ONE_ROW + SPARK + UNNAMED))
def test_a_tree_gives_what_spark_gives(session: Any, sql: str) -> None:
    view = compile_view("v", sql, TABLES, {}, SparkTyper(session, TABLES))
    assert names_are_apart(view.relation)
    expected = session.sql(sql).toArrow()
    assert view.schema.names == expected.schema.names
    assert view.schema.types == expected.schema.types
    assert same_rows(evaluated(relation_sql(view.relation)), [tuple(row.values()) for row in expected.to_pylist()])


def test_spark_names_and_types_a_view_of_views(session: Any) -> None:
    views = {"counts": "SELECT k, count(*) FROM sales GROUP BY k;"}
    views["most"] = "WITH c AS (SELECT * FROM counts) SELECT * FROM c"
    sql = "SELECT m.*, upper(q.name) FROM most m JOIN people q ON m.k = q.k -- all of it"
    view = compile_view("v", sql, TABLES, views, SparkTyper(session, TABLES))
    assert view.schema.names == ["k", "count(1)", "upper(name)"]


def test_spark_tells_a_mistake_in_a_view_of_views_at_its_place(session: Any) -> None:
    views = {"counts": "SELECT k\nFROM sales"}
    with pytest.raises(DeclarationError, match=r"`nothing`.*line 2 pos 1"):
        compile_view("v", "SELECT k,\n nothing FROM counts", TABLES, views, SparkTyper(session, TABLES))
