"""The SQL by which changes are applied to a table, as text."""

import pytest

from upriver.errors import DeclarationError
from upriver.spark.merges import merge, table_in_sql


def test_a_merge_replaces_the_rows_of_the_keys() -> None:
    assert merge("lake.totals", "rows", ["day", "a`b"], ["day", "a`b", "n"]) == (
        "MERGE INTO lake.totals AS t USING `rows` AS s\n"
        "ON s.`upriver action` = 'delete' AND t.`day` <=> s.`day` AND t.`a``b` <=> s.`a``b`\n"
        "WHEN MATCHED THEN DELETE\n"
        "WHEN NOT MATCHED AND s.`upriver action` = 'insert' "
        "THEN INSERT (`day`, `a``b`, `n`) VALUES (s.`day`, s.`a``b`, s.`n`)"
    )


def test_a_merge_without_a_key_replaces_all_rows() -> None:
    assert "ON s.`upriver action` = 'delete'\n" in merge("t", "rows", [], ["n"])


@pytest.mark.parametrize(
    ("table", "in_sql"),
    [
        ("totals", "totals"),
        ("lake.db.totals", "lake.db.totals"),
        ("delta.`/data/totals`", "delta.`/data/totals`"),
        ("/data/totals", "delta.`/data/totals`"),
        ("s3a://bucket/totals", "delta.`s3a://bucket/totals`"),
    ],
)
def test_tables_have_names_or_paths(table: str, in_sql: str) -> None:
    assert table_in_sql(table, "delta") == in_sql


def test_a_path_is_no_table_of_iceberg() -> None:
    with pytest.raises(DeclarationError, match=r"give catalog\.database\.table"):
        table_in_sql("/data/totals", "iceberg")
