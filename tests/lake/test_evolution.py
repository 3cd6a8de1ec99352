"""What may change in a table's declaration, and what each refusal says."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from upriver.errors import DeclarationError
from upriver.lake.evolution import evolved
from upriver.plan.plan import TableSpec
from upriver.plan.retention import Retain

KEPT = TableSpec(
    "orders",
    pa.schema(
        [
            ("id", pa.int32()),
            ("place", pa.int32()),
            ("amount", pa.decimal128(8, 2)),
            ("price", pa.float32()),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.timestamp("us", "UTC")),
        ]
    ),
    ("id",),
    order_by=("at",),
)
INDEXES = (("id",), ("place",))


def declared(**types: pa.DataType | None) -> TableSpec:
    """The table with other types for some columns, without some, or with more."""
    columns = {field.name: field.type for field in KEPT.schema} | types
    return replace(KEPT, schema=pa.schema([(name, type) for name, type in columns.items() if type is not None]))


def after(table: TableSpec) -> dict[str, pa.DataType]:
    kept = evolved(KEPT, table, INDEXES, "/lake")
    return {field.name: field.type for field in kept.schema}


@pytest.mark.parametrize(
    ("column", "type"),
    [
        ("amount", pa.decimal128(10, 2)),
        ("amount", pa.decimal128(10, 4)),
        ("price", pa.float64()),
        ("day", pa.timestamp("us")),
        ("note", pa.string()),
        ("parts", pa.list_(pa.int8())),
    ],
)
def test_a_wider_or_another_column_is_kept(column: str, type: pa.DataType) -> None:
    assert after(declared(**{column: type})) == {**after(KEPT), column: type}


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]


@pytest.mark.parametrize("before", INTEGERS)
@pytest.mark.parametrize("now", INTEGERS)
def test_integers_become_longer_and_never_shorter(before: pa.DataType, now: pa.DataType) -> None:
    kept = TableSpec("t", pa.schema([("k", pa.string()), ("n", before)]), ("k",))
    changed = replace(kept, schema=pa.schema([("k", pa.string()), ("n", now)]))
    if INTEGERS.index(now) >= INTEGERS.index(before):
        assert evolved(kept, changed, (), "/lake").schema.equals(changed.schema)
    else:
        with pytest.raises(DeclarationError, match=r"table 't': column 'n' is .* in /lake and .* in the DataFrame"):
            evolved(kept, changed, (), "/lake")


def test_a_column_that_is_gone_stays_and_so_does_the_order_of_columns() -> None:
    assert evolved(KEPT, declared(amount=None, place=None), INDEXES, "/lake") is KEPT
    backwards = replace(KEPT, schema=pa.schema(list(KEPT.schema)[::-1]))
    assert evolved(KEPT, backwards, INDEXES, "/lake") is KEPT


def test_a_column_that_was_never_null_may_be_null() -> None:
    strict = replace(KEPT, schema=pa.schema([field.with_nullable(False) for field in KEPT.schema]))
    assert evolved(strict, KEPT, INDEXES, "/lake").schema.equals(KEPT.schema)
    assert evolved(strict, declared(amount=None), INDEXES, "/lake").schema.field("amount").nullable


def test_the_days_by_which_rows_are_retained_stay_days() -> None:
    by_day = replace(declared(day=pa.timestamp("us")), retain=Retain("day", 30, "30 days"))
    with pytest.raises(DeclarationError, match=r"'day' is DATE in /lake and TIMESTAMP_NTZ .* rows are retained"):
        evolved(KEPT, by_day, INDEXES, "/lake")


def test_the_condition_by_which_rows_are_deleted_stays_as_sql() -> None:
    """What it is compiled to depends on the types of its columns."""
    kept = replace(KEPT, deletes='"price" < 1::FLOAT', deletes_sql="price < 1")
    wider = replace(declared(price=pa.float64()), deletes='"price" < 1::DOUBLE', deletes_sql="price < 1")
    assert evolved(kept, wider, INDEXES, "/lake") == wider
    assert evolved(wider, wider, INDEXES, "/lake") is wider
    for other in (replace(wider, deletes_sql="price < 2"), replace(wider, deletes=None, deletes_sql=None)):
        with pytest.raises(DeclarationError, match=r"with deletes .*; declare it as it is kept, or start on another"):
            evolved(kept, other, INDEXES, "/lake")
    with pytest.raises(DeclarationError, match="with deletes"):
        evolved(replace(kept, deletes_sql=None), wider, INDEXES, "/lake")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"place": pa.int64()}, r"'place' is INT in /lake and BIGINT in the DataFrame.* keeps the table by \(place\), "),
    ({"id": pa.int64()}, r"'id' is INT in .* BIGINT .* by \(id\), in the order of a hash .* CAST it to INT in the"),
    ({"id": None}, "lacks column 'id', which is INT in /lake.* Give the column, or start on another root"),
    ({"at": None}, "lacks column 'at', which is TIMESTAMP in /lake"),
    ({"amount": pa.decimal128(8, 4)}, r"'amount' is DECIMAL\(8,2\) in /lake and DECIMAL\(8,4\)"),
    ({"amount": pa.decimal128(10, 1)}, r"'amount' is DECIMAL\(8,2\) in /lake and DECIMAL\(10,1\)"),
    ({"amount": pa.int64()}, r"'amount' is DECIMAL\(8,2\) in /lake and BIGINT"),
    ({"price": pa.string()}, "'price' is FLOAT in /lake and STRING in the DataFrame"),
    ({"day": pa.timestamp("us", "UTC")}, "'day' is DATE in /lake and TIMESTAMP in the DataFrame"),
    ({"tags": pa.list_(pa.int8())}, "'tags' is ARRAY<STRING> in /lake and ARRAY<TINYINT> in the DataFrame"),
    ({"amount": None, "Amount": pa.decimal128(8, 2)}, "column 'Amount' is called 'amount' in /lake"),
]


@pytest.mark.parametrize(("types", "said"), REFUSED)
def test_any_other_change_is_refused_by_name(types: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as raised:
        evolved(KEPT, declared(**types), INDEXES, "/lake")
    assert str(raised.value).startswith("table 'orders': ")
    assert "or start on another root" in str(raised.value)
