"""Schemas of queries' rows, which are kept."""

import pyarrow as pa
from doors_kit import TOTALS, KeptRows

from upriver.doors.flight import sql_schemas
from upriver.doors.flight.sql_schemas import QuerySchemas
from upriver.doors.queries import ViewQuery
from upriver.protocol.lookups import ViewRoute

ROUTES = KeptRows().routes()


def query(text: str, schema: pa.Schema = TOTALS.schema) -> ViewQuery:
    return ViewQuery.parse(text, "postgres", {**ROUTES, "totals": ViewRoute(("customer",), schema)})


def test_a_schema_is_kept_as_long_as_text_and_columns_stay() -> None:
    schemas = QuerySchemas()
    first = schemas.of(query("SELECT n, customer FROM totals"))
    assert first == pa.schema([("n", pa.int64()), ("customer", pa.string())])
    assert schemas.of(query("SELECT n, customer FROM totals")) is first
    narrower = pa.schema([("customer", pa.string()), ("n", pa.int32())])
    assert schemas.of(query("SELECT n, customer FROM totals", narrower)).types == [pa.int32(), pa.string()]
    assert schemas.of(query("SELECT n, customer FROM totals")) is first


def test_few_and_short_queries_are_kept() -> None:
    schemas = QuerySchemas()
    first = schemas.of(query("SELECT 0 AS n"))
    text = f"SELECT '{'x' * sql_schemas.KEPT_CHARS_MAX}' AS x"
    long = schemas.of(query(text))
    assert schemas.of(query(text)) is not long
    for number in range(1, sql_schemas.SCHEMAS_MAX):
        schemas._kept[f"{number}", "UTC", ()] = first
    assert schemas.of(query("SELECT 0 AS n")) is first
    schemas.of(query("SELECT 1 AS n"))
    assert len(schemas._kept) == sql_schemas.SCHEMAS_MAX
    assert ("1", "UTC", ()) not in schemas._kept
    assert schemas.of(query("SELECT 0 AS n")) is first
