"""No value that Spark can hold is too awkward to be read, compared, printed or told in a message."""

import json

import numpy as np
import pyarrow as pa
import pytest
from awkward_kit import DAYS_MAX, FAR_DAYS, awkward, dates, text, times

from upriver.client.keys import key_batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.plain_rows import RowReader, shown
from upriver.engine.row_text import (
    ROW_CHARS_MAX,
    VALUE_CHARS_MAX,
    date_text,
    error_text,
    readable,
    row_text,
    value_text,
)
from upriver.errors import KeyTypeError, RowError
from upriver.ids import Epoch
from upriver.lake.rejected import _identities
from upriver.plan.plan import Projection
from upriver.state.columns import exact, exact_list, same
from upriver.text import render_table


def rows() -> pa.RecordBatch:
    return awkward().combine_chunks().to_batches()[0]


def test_every_value_has_an_exact_form_with_the_same_bytes() -> None:
    for name, column in zip(rows().schema.names, rows().columns, strict=True):
        for part in (column, column.slice(3, 4), column.slice(10)):
            assert len(exact_list(part)) == len(part), name
            assert exact(part).view(part.type).equals(part) or name in ("f", "x", "m", "r"), name
    assert exact_list(dates([DAYS_MAX, None])) == [DAYS_MAX, None]
    assert exact_list(text([b"\xff"])) == [b"\xff"]


def test_every_value_can_be_told_on_one_line_of_bounded_length() -> None:
    batch = rows()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for place in range(len(column)):
            said = value_text(column.slice(place))
            assert len(said) <= VALUE_CHARS_MAX + 3, name
            assert said.isprintable(), name
    for place in range(batch.num_rows):
        said = row_text(batch, place)
        assert said.isprintable()
        assert said.startswith(f"id = {place}, v = {place % 3}, y = ")
        assert len(said) <= ROW_CHARS_MAX + 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dates([2_932_897]), "+10000-01-01"),
        (dates([-719_529]), "-0001-12-31"),
        (dates([-719_528]), "0000-01-01"),
        (dates([DAYS_MAX]), "+5881580-07-11"),
        (dates([0]), "1970-01-01"),
        (times([1_500_000], "+05:30"), "1970-01-01 00:00:01.5+00:00"),
        (times([2**63 - 1]), "+294247-01-10 04:00:54.775807"),
        (text([b"a\xff\n\x1b[m"]), r"a\xff\n\x1b[m"),
        (text([b"x" * 200]), "x" * VALUE_CHARS_MAX + "..."),
        (text([None]), "NULL"),
        (pa.array([2**63 - 1], pa.int64()).view(pa.duration("us")), "9223372036854775807"),
        (pa.array([5], pa.int64()).view(pa.time64("ns")), "5"),
        (pa.ListArray.from_arrays([0, 2], dates([2_932_897, None])), "[+10000-01-01, NULL]"),
        (pa.array([[1] * 100]), "[" + "1, " * 19 + "1,..."),
        (pa.array([{"a": 1, "b": None}]), "{a: 1, b: NULL}"),
        (pa.MapArray.from_arrays([0, 1], text([b"\xff"]), dates([DAYS_MAX])), r"{\xff: +5881580-07-11}"),
    ],
)
def test_values_are_told_as_spark_tells_them(values: pa.Array, said: str) -> None:
    assert value_text(values) == said


def test_dates_are_those_of_numpy() -> None:
    for days in [*FAR_DAYS, *range(-800_000, 3_000_000, 9973)]:
        if 0 <= days + 719_162 < 3_652_059:
            assert date_text(days) == str(np.datetime64(days, "D"))


def test_what_python_does_not_have_is_read_as_text() -> None:
    read = {name: readable(column) for name, column in zip(awkward().column_names, awkward().columns, strict=True)}
    assert read["k"][:2] == [r"a\xffb", "ok"]
    assert read["d"][:2] == ["+10000-01-01", "-0001-12-31"]
    assert str(read["d"][7]) == "1970-01-01"
    assert all(len(values) == 10 for values in read.values())
    json.dumps(read, default=str)
    assert render_table(awkward()).count("\n") >= 11


def test_a_function_of_rows_is_not_called_with_what_python_does_not_have() -> None:
    batch = rows().select(["id", "k", "d"])
    with pytest.raises(RowError, match=r"column k has a value that Python does not have, in the row \(id = 0, k = a"):
        list(RowReader(batch.schema, "row").read(batch))
    assert [row.id for row in RowReader(batch.schema, "row").read(batch.slice(7, 1))] == [7]


def test_rejected_rows_have_identities_whatever_their_values() -> None:
    assert len(set(_identities(Epoch(1), "v", rows()))) == 10


def test_nested_values_are_compared() -> None:
    batch = rows()
    for name in ("a", "m", "r"):
        column = batch.column(name)
        assert same(column, column).all()
        assert not same(column.slice(0, 9), column.slice(1)).all()


def test_what_a_users_exception_says_can_be_told() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert error_text(Silent()) == "Silent: it cannot be told"
    assert error_text(ValueError("a\n\ud800")) == r"ValueError: a\n\ud800"
    assert len(error_text(ValueError("x" * 10**6))) < 2000


# Expressions over such values: DuckDB breaks on some


def test_a_key_or_a_value_that_cannot_be_told_is_told_by_its_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Silent()) == "a Silent"
    with pytest.raises(KeyTypeError, match="given was a Silent of type Silent"):
        key_batch("v", pa.schema([("k", pa.int32())]), [Silent()])


def test_texts_are_looked_at_where_they_are() -> None:
    """A slice begins in the middle of its buffers."""
    batch = pa.record_batch({"k": text([b"\xff", b"ok", "ß".encode(), None, b"", b"\xc3"])})
    upper = Projection(('spark_upper("k")',), pa.schema([("u", pa.string())]))
    assert Evaluator().project(batch.slice(1, 4), upper).to_pydict() == {"u": ["OK", "SS", None, ""]}
    for bad in (batch.slice(0, 2), batch.slice(5), batch):
        with pytest.raises(RowError, match="the text in k is no UTF-8"):
            Evaluator().project(bad, upper)


def test_a_text_that_is_no_utf8_is_a_row_at_fault_where_it_matters() -> None:
    batch = pa.record_batch({"k": text([b"ok", b"a\xffb"])})
    evaluator = Evaluator()
    upper = Projection(('spark_upper("k")',), pa.schema([("u", pa.string())]))
    with pytest.raises(RowError, match=r"column u: the text in k is no UTF-8 \(row: k = a\\xffb\)"):
        evaluator.project(batch, upper)
    assert evaluator.project(batch.slice(0, 1), upper).to_pydict() == {"u": ["OK"]}
    for alike, expected in (
        ("\"k\" = 'ok'", [True, False]),
        ("\"k\" < 'b'", [False, True]),
        ('strlen("k")', [2, 3]),
        ("CASE WHEN \"k\" IN ('ok') THEN 1 ELSE 0 END", [1, 0]),
    ):
        type = pa.bool_() if expected[1] in (True, False) and isinstance(expected[1], bool) else pa.int32()
        assert (
            evaluator.project(batch, Projection((alike,), pa.schema([("e", type)]))).column(0).to_pylist() == expected
        )
    joined = Projection(("\"k\" || 'x'",), pa.schema([("e", pa.string())]))
    assert exact_list(evaluator.project(batch, joined).column(0)) == [b"okx", b"a\xffbx"]


def test_an_evaluator_goes_on_after_duckdb_broke() -> None:
    """An expression that our translation never makes, on which DuckDB ends for good."""
    batch = pa.record_batch({"n": times([0, -(2**63)])})
    evaluator = Evaluator()
    told = Projection(('list_transform(["n"], lambda v: CAST(v AS VARCHAR))[1]',), pa.schema([("e", pa.string())]))
    evaluator.without_row_text()
    broken = Projection(("coalesce(\"n\"::VARCHAR, '')",), pa.schema([("e", pa.string())]))
    for projection in (broken, told):
        with pytest.raises(RowError, match=r"row: n = -290308-12-21"):
            evaluator.project(batch, projection)
    assert evaluator.project(batch.slice(0, 1), told).to_pydict() == {"e": ["1970-01-01 00:00:00"]}


def test_points_in_time_at_the_ends_are_compared_and_not_computed_with() -> None:
    evaluator = Evaluator()
    batch = pa.record_batch({"d": dates([0, DAYS_MAX, -DAYS_MAX]), "n": times([0, 2**63 - 1, -(2**63)])})
    later = Projection(("\"d\" > DATE '2024-01-01'", "\"n\" < TIMESTAMP '2024-01-01 00:00:00'"),
                       pa.schema([("d", pa.bool_()), ("n", pa.bool_())]))  # fmt: skip
    assert evaluator.project(batch, later).to_pydict() == {"d": [False, True, False], "n": [True, False, True]}
    for name in ("d", "n"):
        year = Projection((f'CAST(year("{name}") AS INTEGER)',), pa.schema([("e", pa.int32())]))
        with pytest.raises(RowError, match=f"in {name} is too far to compute with"):
            evaluator.project(batch, year)
        assert evaluator.project(batch.slice(0, 1), year).to_pydict() == {"e": [1970]}


def test_a_far_point_in_time_is_in_the_way_only_of_what_computes_with_it() -> None:
    batch = pa.record_batch({"d": dates([DAYS_MAX]), "e": dates([0]), "k": text([b"a\xffb"]), "s": ["abc"]})
    texts = ('greatest("d", "e")', 'CAST(year("e") AS INTEGER)', "coalesce(\"k\", 'x')", 'upper("s")')
    names = ("greatest", "year", "coalesce", "upper")
    schema = pa.schema(list(zip(names, (pa.date32(), pa.int32(), pa.string(), pa.string()), strict=True)))
    found = Evaluator().project(batch, Projection(texts, schema))
    assert [exact_list(column) for column in found.columns] == [[DAYS_MAX], [1970], [b"a\xffb"], [b"ABC"]]
