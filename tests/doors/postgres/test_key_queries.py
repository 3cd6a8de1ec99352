"""Prepared queries of plain columns by a whole key are lookups: no process of DuckDB, the same answer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from doors_kit import KEYS, ODD, TABLES, KeptRows

from upriver.doors.cancellation import Cancellation
from upriver.doors.execution import execute
from upriver.doors.parameters import with_parameters
from upriver.doors.postgres.cursors import SessionCursors
from upriver.doors.postgres.statements import PreparedQuery, SessionSettings, split
from upriver.doors.queries import ViewQuery, parsed
from upriver.doors.query_processes import PROCESSES, QUERIES_MAX
from upriver.doors.shares import QueryCaller
from upriver.errors import QueryCancelled, RowError

SMALL = pa.table({"k": pa.array([1, 2, None], pa.int8()), "v": pa.array([1.5, None, 2.5])})
ALIKE = pa.table({"k": pa.array(["a", "a", "b"]), "at": pa.array([3, 1, 2], pa.int64())})
ROWS = KeptRows(
    {**TABLES, "small": SMALL, "alike": ALIKE, "odd": ODD}, {**KEYS, "small": ("k",), "alike": ("k",), "odd": ("n",)}
)


def prepared(text: str, oids: Sequence[int] = ()) -> PreparedQuery:
    (statement,) = split(text)
    query = PreparedQuery(statement, ROWS, SessionSettings(), SessionCursors(), oids)
    query.schema(Cancellation())
    return query


@pytest.fixture
def no_place() -> Iterator[None]:
    """All places for processes are taken."""
    with ExitStack() as taken:
        for number in range(QUERIES_MAX):
            taken.enter_context(PROCESSES.process(Cancellation(caller=QueryCaller(str(number)))))
        yield


def answer(query: PreparedQuery, values: Sequence[Any]) -> pa.Table:
    found = query.run(values, Cancellation()).rows
    assert found is not None
    return found


def test_a_lookup_reads_no_text_that_is_not_utf_8() -> None:
    text, error = "SELECT n, k FROM odd WHERE n = $1", "view 'odd', column 'k': it has a text that is not UTF-8"
    with pytest.raises(RowError, match=error):
        answer(prepared(text, [20]), [2])
    with pytest.raises(RowError, match=error):
        evaluated(text, [2])
    assert answer(prepared("SELECT n FROM odd WHERE n = $1", [20]), [2])["n"].to_pylist() == [2]
    assert answer(prepared(text, [20]), [1])["k"].to_pylist() == ["ok"]


def evaluated(text: str, values: Sequence[Any]) -> pa.Table:
    """The answer of DuckDB."""
    (statement,) = split(text)
    return execute(ViewQuery.of(with_parameters(parsed(statement, "postgres")), ROWS.routes()), ROWS, values)


INT4, INT8, TEXT = 23, 20, 25
BY_KEY: list[tuple[str, Sequence[int], list[Any]]] = [
    ("SELECT * FROM totals WHERE customer = $1", (), ["ada"]),
    ("SELECT total, n AS m, N FROM public.totals t WHERE $1::varchar = T.customer", (), ["bob"]),
    ("SELECT t.* FROM totals AS t WHERE (t.customer = $1)", (TEXT,), ["nobody"]),
    ("SELECT at, delays FROM routes WHERE dest = $2 AND origin = $1", (), ["JFK", 2]),
    ("SELECT * FROM routes WHERE origin = $1 AND dest = $2::int", (TEXT, INT8), ["JFK", 1]),
    ("SELECT v FROM small WHERE k = $1", (INT4,), [-128]),
    ("SELECT v FROM small WHERE k = $1", (INT4,), [2]),
    ("SELECT at, k FROM alike WHERE k = $1", (), ["a"]),
    ("SELECT n FROM totals WHERE customer = $1", (), [None]),
    ("SELECT at FROM routes WHERE origin = $1 AND dest = $2", (), ["LAX", None]),
]


@pytest.mark.parametrize(("text", "oids", "values"), BY_KEY)
def test_a_query_by_its_key_is_a_lookup(
    text: str, oids: Sequence[int], values: list[Any], request: pytest.FixtureRequest
) -> None:
    query, expected = prepared(text, oids), evaluated(text, values)
    request.getfixturevalue("no_place")
    found = answer(query, values)
    assert found.schema.equals(query.schema(Cancellation()))
    assert found.to_pylist() == [
        dict(zip(found.schema.names, row.values(), strict=True)) for row in expected.to_pylist()
    ]


OTHERS: list[tuple[str, Sequence[int], list[Any]]] = [
    ("SELECT n + 1 FROM totals WHERE customer = $1", (), ["ada"]),
    ("SELECT DISTINCT n FROM totals WHERE customer = $1", (), ["ada"]),
    ("SELECT n FROM totals WHERE customer = $1 LIMIT 0", (), ["ada"]),
    ("SELECT n FROM totals WHERE customer = $1 ORDER BY 1", (), ["ada"]),
    ("SELECT n FROM totals WHERE customer = $1 AND n > $2", (), ["ada", 3]),
    ("SELECT n FROM totals WHERE customer = $1 OR n = $2", (), ["ada", 1]),
    ("SELECT n FROM totals WHERE NOT customer = $1", (), ["ada"]),
    ("SELECT n FROM totals WHERE customer = $1 AND customer = $2", (), ["ada", "bob"]),
    ("SELECT n FROM totals WHERE customer = lower($1)", (), ["ADA"]),
    ("SELECT n FROM totals WHERE customer IS NOT DISTINCT FROM $1", (), [None]),
    ("SELECT n FROM totals WHERE customer = $1::char(2)", (), ["ada"]),
    ("SELECT $2 FROM totals WHERE customer = $1", (), ["ada", "x"]),
    ("SELECT a.n FROM totals a, totals b WHERE a.customer = $1", (), ["ada"]),
    ("SELECT n FROM (SELECT * FROM totals) totals WHERE customer = $1", (), ["ada"]),
    ("SELECT max(n) FROM totals WHERE customer = $1", (), ["ada"]),
    ("SELECT at FROM routes WHERE origin = $1", (), ["JFK"]),
    ("SELECT n FROM everything", (), []),
    ("SELECT v FROM small WHERE k = $1", (INT4,), [300]),
    ("SELECT v FROM small WHERE k = $1::bigint", (INT8,), [2**40]),
    ("SELECT at FROM routes WHERE origin = $1 AND dest = $2", (TEXT, 701), ["JFK", 1.0]),
]


@pytest.mark.parametrize(("text", "oids", "values"), OTHERS)
def test_any_other_query_waits_for_a_process(
    text: str, oids: Sequence[int], values: list[Any], request: pytest.FixtureRequest
) -> None:
    query = prepared(text, oids)
    request.getfixturevalue("no_place")
    with pytest.raises(QueryCancelled):
        query.run(values, Cancellation(has_gone=lambda: True))
