"""Queries from Python: values of parameters go to the driver as they are, and the answer comes back as it is."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from doors_kit import KeptRows

from upriver.client.queries import (
    PARAMETER_BYTES_MAX,
    Parameters,
    answer_as_batch,
    answer_of,
    parameters_from_json,
    query_fields,
)
from upriver.doors.column_titles import with_spark_names
from upriver.doors.execution import execute
from upriver.doors.parameters import with_values
from upriver.doors.queries import ViewQuery
from upriver.errors import DeclarationError, ProtocolError, RowError, UnsupportedSql, UserError
from upriver.net.wire import decode_json, encode_json

MB = 1 << 20
AT = datetime.datetime(2026, 3, 1, 12, 30, 0, 250, tzinfo=datetime.UTC)
LOCAL = datetime.datetime(2026, 3, 1, 12, 30)


def asked(sql: str, parameters: Parameters | None = None, rows: KeptRows | None = None) -> list[dict[str, Any]]:
    """The answer, through all that lies between a client and the driver."""
    fields = decode_json(encode_json(query_fields(sql, parameters)))
    tree = with_values(str(fields["sql"]), parameters_from_json(fields["parameters"]))
    rows = rows or KeptRows()
    found = execute(ViewQuery.of(with_spark_names(tree), rows.routes()), rows)
    answer = answer_of(answer_as_batch(found))
    assert answer.schema.equals(found.schema, check_metadata=True)
    answered: list[dict[str, Any]] = answer.to_pylist()
    return answered


def test_an_answer_of_more_than_one_batch_is_refused_as_a_whole() -> None:
    """Arrow would make several batches of it, and only the first would go to the client."""
    texts = pa.array(["x" * MB] * 16)
    with pytest.raises(UserError, match=r"the answer has 2,[0-9,]+ bytes, of 2,147,483,647: ask for fewer rows"):
        answer_as_batch(pa.table({"text": pa.chunked_array([texts] * 128)}))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -7, 1 << 40, -(1 << 63), 1 << 70, 0.5, -1e300, float("inf"), "", "it's ?", "a\\b\n"),
        *(b"", b"\x00\xff'", datetime.date(2026, 2, 28), AT, LOCAL, Decimal("12.50"), Decimal("-0.001")),
        *([1, 2], [], ["a", None], [[1], [2, 3]]),
    ],
)
def test_a_value_comes_back_as_it_went(value: Any) -> None:
    for sql, parameters in (("SELECT ? AS v", [value]), ("SELECT :x AS v", {"x": value})):
        ((name, found),) = asked(sql, parameters)[0].items()
        assert name == "v"
        assert found == value
        assert isinstance(found, bool) == isinstance(value, bool)


def test_not_a_number_and_numpys_values_are_parameters() -> None:
    (row,) = asked("SELECT ? AS a, ? AS b, ? AS c", [float("nan"), np.int32(3), pa.scalar("x", pa.large_string())])
    assert (np.isnan(row["a"]), row["b"], row["c"]) == (True, 3, "x")


def test_keys_that_parameters_name_are_looked_up() -> None:
    for sql, parameters in (
        ("SELECT * FROM totals WHERE customer = ?", ["ada"]),
        ("SELECT * FROM totals WHERE customer = :who", {"who": "ada"}),
        ("SELECT * FROM totals WHERE customer IN (?)", [["ada"]]),
        ("SELECT * FROM totals WHERE customer IN (?, ?)", ["ada", "ada"]),
    ):
        rows = KeptRows()
        assert [row["customer"] for row in asked(sql, parameters, rows)] == ["ada"]
        assert rows.read == {"totals": {("ada",)}}


def test_a_list_in_parentheses_stands_for_its_elements() -> None:
    named = {
        row["customer"]
        for row in asked("SELECT customer FROM totals WHERE customer IN (:names)", {"names": ["ada", "bob"]})
    }
    assert named == {"ada", "bob"}
    assert asked("SELECT customer FROM totals WHERE customer IN (?)", [[]]) == []
    assert asked("SELECT customer FROM totals WHERE customer IN (?) LIMIT ?", [["ada", "bob"], 1]) != []


def test_a_mark_within_a_text_or_a_comment_is_none() -> None:
    sql = "SELECT '?' AS a, ':x' AS b, \"it's ?\" AS c, ? AS d -- ? :y\n/* ? */"
    assert asked(sql, ["one"]) == [{"a": "?", "b": ":x", "c": "it's ?", "d": "one"}]


def test_a_value_is_never_sql() -> None:
    harm = "' OR 1 = 1; DROP TABLE totals --"
    assert asked("SELECT * FROM totals WHERE customer = ?", [harm]) == []
    assert asked("SELECT :x AS v", {"x": harm}) == [{"v": harm}]


@pytest.mark.parametrize(
    ("sql", "parameters", "said"),
    [
        ("SELECT ?", None, "the query has 1 parameters as ?, and 0 values are given"),
        ("SELECT ?", {"a": 1}, "the query has parameters as ?: give their values as a list"),
        ("SELECT 1 FROM totals WHERE customer = ?", [["ada"]], "a list is compared with a value: write k IN (?)"),
        ("SELECT ?, ?", [1], "2 parameters as ?, and 1 values"),
        ("SELECT 1", [1], "a value is given for '1', and the query has no such parameter"),
        ("SELECT :a", {"b": 1}, "no value is given for the parameter :a"),
        ("SELECT :a", {"a": 1, "b": 2}, "a value is given for 'b', and the query has no such parameter"),
        ("SELECT ?", ["x" * PARAMETER_BYTES_MAX], "at most 4 MiB are taken"),
        ("SELECT ?", [object()], "parameter 1=<object object"),
        ("SELECT ?", [[1, "a"]], "no column can have this value"),
        ("SELECT ?", [{"a": 1}], "a parameter of type struct<a: int64>: give a number"),
        ("SELECT ?", [datetime.timedelta(1)], "a parameter of type duration"),
        ("SELECT ?", "ada", "parameters='ada': give a list for ?, or a dict by name for :name"),
        ("SELECT ?", 5, "parameters=5: give a list"),
        (5, [], "sql=5: give a text"),
    ],
)
def test_wrong_parameters_are_refused(sql: Any, parameters: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        asked(sql, parameters)
    assert said in str(refused.value)


KEYS = ("1", "1.0", "01", "-1", "-01", "1.50", "1.5", "true", "t", "2024-01-05", "2024-1-5")


@pytest.mark.parametrize("value", [1.0, Decimal("1.5"), -1, True, datetime.date(2024, 1, 5), "1.5", 1])
def test_a_lookup_finds_all_keys_that_a_scan_finds(value: Any) -> None:
    """A number is equal to several texts."""
    rows = KeptRows({"texts": pa.table({"k": KEYS})}, {"texts": ("k",)})
    for condition in ("k = ?", "k IN (?)"):
        try:
            scanned = asked(f"SELECT k FROM texts WHERE {condition} OR k IS NULL AND k = 'x'", [value], rows)
        except RowError:
            continue  # not all texts are numbers
        assert asked(f"SELECT k FROM texts WHERE {condition}", [value], rows) == scanned


def test_large_integers_are_compared_with_a_double_as_doubles() -> None:
    rows = KeptRows({"numbers": pa.table({"k": [1 << 53, (1 << 53) + 1]})}, {"numbers": ("k",)})
    assert len(asked("SELECT k FROM numbers WHERE k = ?", [float(1 << 53)], rows)) == 2
    assert len(asked("SELECT k FROM numbers WHERE k = ?", [1 << 53], rows)) == 1


def test_a_backslash_escapes_in_a_pattern_as_in_spark() -> None:
    rows = KeptRows({"texts": pa.table({"k": ["50%", "50 percent", "a_b", "axb"]})}, {"texts": ("k",)})
    assert asked("SELECT k FROM texts WHERE k LIKE ?", ["50\\%"], rows) == [{"k": "50%"}]
    assert asked("SELECT k FROM texts WHERE k LIKE 'a\\\\_b'", None, rows) == [{"k": "a_b"}]
    assert asked("SELECT k FROM texts WHERE k NOT LIKE '50%'", None, rows) == [{"k": "a_b"}, {"k": "axb"}]
    assert asked("SELECT k FROM texts WHERE k LIKE 'a!_b' ESCAPE '!'", None, rows) == [{"k": "a_b"}]


def test_marks_and_names_do_not_go_together() -> None:
    with pytest.raises(UnsupportedSql, match="use one of both"):
        asked("SELECT ?, :a", [1])


def test_a_malformed_query_is_said_to_be() -> None:
    for sql in ("SELECT 'a", "SELECT ? FROM", "SELEC ?"):
        with pytest.raises(UnsupportedSql):
            asked(sql, ["x"])


def test_what_is_no_row_of_parameters_and_no_answer_is_refused() -> None:
    for given in (None, 5, "%%", "YWJj"):
        with pytest.raises(ProtocolError):
            parameters_from_json(given)
    for batch in (None, pa.record_batch({"stream": pa.array([b""], pa.large_binary())}), pa.record_batch({"n": [1]})):
        with pytest.raises(ProtocolError):
            answer_of(batch)
