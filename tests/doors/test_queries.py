"""Queries over views: the keys that are looked up, the answers, and what is refused."""

import datetime
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from doors_kit import KEYS, NO_TEXTS, ODD_ROWS, KeptRows
from sqlglot import exp

from upriver.doors import execution
from upriver.doors.execution import HeldAnswers, batches_of, describe, execute
from upriver.doors.queries import ViewQuery
from upriver.doors.query_processes import QueryProcesses
from upriver.doors.query_program import QUERY_BYTES_MAX, QUERY_ROWS_MAX, Engines, QueryFault, QueryTask, not_utf8
from upriver.doors.shares import Bounds
from upriver.errors import Busy, DeclarationError, RowError, UnknownView, UnsupportedSql

NAMED: list[tuple[str, str, set[tuple[Any, ...]] | None]] = [
    ("totals", "SELECT * FROM totals WHERE customer = 'ada'", {("ada",)}),
    ("totals", "SELECT * FROM public.TOTALS t WHERE 'ada' = t.CUSTOMER AND n > 1", {("ada",)}),
    ("totals", "SELECT * FROM totals WHERE customer IN ('ada', 'bob', 'ada')", {("ada",), ("bob",)}),
    ("totals", "SELECT * FROM totals WHERE customer = 'ada' OR customer IS NULL", {("ada",), (None,)}),
    ("totals", "SELECT * FROM totals WHERE customer = ANY(ARRAY['ada', 'bob'])", {("ada",), ("bob",)}),
    ("totals", "SELECT * FROM totals WHERE (customer = 'ada') AND (n = 2 OR n = 3)", {("ada",)}),
    ("totals", "SELECT * FROM totals WHERE customer = 'a' || 'da'", None),
    ("totals", "SELECT * FROM totals WHERE customer = 'ada' OR n = 1", None),
    ("totals", "SELECT * FROM totals WHERE customer <> 'ada'", None),
    ("totals", "SELECT * FROM totals WHERE NOT (customer = 'ada')", None),
    (
        "totals",
        "SELECT * FROM totals WHERE customer = 'ada' UNION SELECT * FROM totals WHERE customer = 'bob'",
        {("ada",), ("bob",)},
    ),
    ("totals", "SELECT * FROM totals WHERE customer = 'ada' UNION ALL SELECT * FROM totals", None),
    ("totals", "WITH t AS (SELECT * FROM totals WHERE customer = 'ada') SELECT * FROM t WHERE n = 2", {("ada",)}),
    ("Routes", "SELECT * FROM routes WHERE origin = 'JFK'", None),
    ("Routes", "SELECT * FROM routes WHERE origin = 'JFK' AND dest IN (1, 2)", {("JFK", 1), ("JFK", 2)}),
    ("Routes", "SELECT * FROM routes WHERE (dest, origin) IN ((1, 'JFK'), (1, 'LAX'))", {("JFK", 1), ("LAX", 1)}),
    ("Routes", "SELECT * FROM routes WHERE origin = 'LAX' AND dest IS NULL", {("LAX", None)}),
    ("everything", "SELECT sum(n) FROM everything", {(0,)}),
    ("totals", "SELECT * FROM totals t JOIN routes r ON t.customer = r.origin WHERE t.customer = 'ada'", {("ada",)}),
    ("totals", "SELECT * FROM routes r LEFT JOIN totals t ON t.customer = r.origin WHERE t.customer IS NULL", None),
]


@pytest.mark.smoke
def test_the_first_rows_are_those_with_nulls_if_these_go_first() -> None:
    """Of the oldest DuckDB that is taken, too: earlier ones left the others out."""
    with duckdb.connect() as connection:
        connection.register("rows", pa.table({"n": pa.array([3, None, 1, 2], pa.int64())}))
        found = connection.execute("SELECT n FROM rows ORDER BY n NULLS FIRST LIMIT 2").fetchall()
    assert found == [(None,), (1,)]


@pytest.mark.parametrize(("view", "text", "keys"), NAMED, ids=[text for _, text, _ in NAMED])
def test_keys_of_the_where_are_looked_up_and_the_answer_is_that_of_all_rows(
    view: str, text: str, keys: set[tuple[Any, ...]] | None
) -> None:
    rows = KeptRows()
    query = ViewQuery.parse(text, "postgres", rows.routes())
    found = execute(query, rows)
    assert rows.read[view] == keys
    by_scan = KeptRows(
        keys={name: ("n",) if name == "everything" else ("total",) for name in KEYS} | {"Routes": ("at",)}
    )
    expected = execute(ViewQuery.parse(text, "postgres", by_scan.routes()), by_scan)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_parameters_name_keys_too() -> None:
    rows = KeptRows()
    text = "SELECT n FROM totals WHERE customer = ANY($1) AND n < $2 ORDER BY n LIMIT $3"
    query = ViewQuery.parse(text, "postgres", rows.routes())
    assert query.parameter_types() == {1: "VARCHAR[]", 2: "BIGINT", 3: "BIGINT"}
    assert execute(query, rows, [["ada", "bob"], 2, 10]).to_pylist() == [{"n": 1}]
    assert rows.read["totals"] == {("ada",), ("bob",)}


def test_values_have_the_types_of_the_view_and_times_its_zone() -> None:
    rows = KeptRows()
    text = "SELECT *, at::varchar AS text FROM routes WHERE origin = 'JFK' AND dest = 1 AND at = '2024-01-01 13:00'"
    found = execute(
        ViewQuery.parse(text.replace("at", '"at"').replace('d"at"', "dat"), "postgres", rows.routes()), rows
    )
    assert found.schema.field("at").type == pa.timestamp("us", "Europe/Berlin")
    assert found["at"].to_pylist()[0] == datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)
    assert found["text"].to_pylist() == ["2024-01-01 13:00:00+01"]
    totals = execute(ViewQuery.parse("SELECT total FROM totals WHERE customer = 'ada'", "spark", rows.routes()), rows)
    assert totals["total"].to_pylist() == [Decimal("17.50")]


def test_the_command_line_takes_spark_sql() -> None:
    rows = KeptRows()
    text = "SELECT `origin`, size(`delays`) AS n FROM `routes` WHERE origin IN ('JFK') AND dest = 2 ORDER BY dest DESC"
    assert execute(ViewQuery.parse(text, "spark", rows.routes()), rows).to_pylist() == [{"origin": "JFK", "n": 0}]


POSTGRES_TITLES = {
    "count(*)": "count",
    "sum(n)": "sum",
    "max(n) + 1": "?column?",
    "1": "?column?",
    "'x'": "?column?",
    "upper(max(customer))": "upper",
    "max(n)::text": "max",
    "'1'::int": "int4",
    "CASE WHEN count(*) > 1 THEN 1 END": "case",
    "(SELECT max(n) FROM totals)": "max",
    "EXISTS (SELECT 1)": "exists",
    "count(DISTINCT n) FILTER (WHERE n > 0)": "count",
    "row_number() OVER ()": "row_number",
    "(max(ARRAY[n]))[1]": "max",
    "max(n) IS NULL": "?column?",
    "now()": "now",
}
SPARK_TITLES = {
    "count(*)": "count(1)",
    "sum(totals.n)": "sum(n)",
    "max(n) + 1 * 2": "(max(n) + (1 * 2))",
    "1": "1",
    "'x'": "x",
    "coalesce(max(customer), 'z')": "coalesce(max(customer), z)",
    "cast(max(n) AS string)": "CAST(max(n) AS STRING)",
    "count(DISTINCT n)": "count(DISTINCT n)",
}


@pytest.mark.parametrize(("dialect", "titles"), [("postgres", POSTGRES_TITLES), ("spark", SPARK_TITLES)])
def test_columns_that_the_query_does_not_name_are_called_as_its_dialect_calls_them(
    dialect: str, titles: dict[str, str]
) -> None:
    rows = KeptRows()
    found = execute(ViewQuery.parse(f"SELECT {', '.join(titles)} FROM totals", dialect, rows.routes()), rows)
    assert dict(zip(titles, found.column_names, strict=True)) == titles


def test_names_that_postgresql_gives_can_be_used() -> None:
    rows = KeptRows()
    text = "SELECT count, column1 FROM (SELECT count(*) FROM totals) t, (VALUES (7)) v"
    assert execute(ViewQuery.parse(text, "postgres", rows.routes()), rows).to_pylist() == [{"count": 4, "column1": 7}]
    text = "SELECT n % 2, count(*) FROM totals GROUP BY 1 ORDER BY count DESC, 1"
    assert execute(ViewQuery.parse(text, "postgres", rows.routes()), rows)["count"].to_pylist() == [2, 2]


@pytest.mark.parametrize(
    ("dialect", "expression", "expected"),
    [
        ("postgres", "7 / 2", 3),
        ("postgres", "-7 / 2", -3),
        ("postgres", "7 / 2.0", 3.5),
        ("postgres", "interval '2 hours' / 2 = interval '1 hour'", True),
        ("spark", "7 / 2", 3.5),
        ("spark", "7 DIV 2", 3),
        ("spark", "try_cast('x' AS int)", None),
    ],
)
def test_division_and_casts_are_those_of_the_dialect(dialect: str, expression: str, expected: Any) -> None:
    rows = KeptRows()
    found = execute(ViewQuery.parse(f"SELECT {expression} AS x", dialect, rows.routes()), rows)
    assert found["x"].to_pylist() == [expected]


@pytest.mark.parametrize("dialect", ["postgres", "spark"])
@pytest.mark.parametrize("expression", ["1 / (n - 2)", "1.5 / (n - 2)", "1 % (n - 2)"])
def test_a_division_by_zero_is_an_error(dialect: str, expression: str) -> None:
    rows = KeptRows()
    with pytest.raises(RowError, match="division by zero"):
        execute(ViewQuery.parse(f"SELECT {expression} FROM totals", dialect, rows.routes()), rows)


def test_a_query_is_described_without_its_rows() -> None:
    rows = KeptRows()
    query = ViewQuery.parse("SELECT total, count(*) AS c FROM totals GROUP BY total", "postgres", rows.routes())
    assert describe(query).names == ["total", "c"]
    assert describe(query).types == [pa.decimal128(10, 2), pa.int64()]
    assert rows.read == {}


def test_first_rows_are_enough_for_a_limit() -> None:
    many = pa.table({"k": pa.array(range(100_000), pa.int64())})
    rows = KeptRows({"many": many}, {"many": ("k",)})
    read: list[int] = []
    plain = ViewQuery.parse("SELECT k FROM many LIMIT 3 OFFSET 1", "postgres", rows.routes())
    assert [access.enough for access in plain.accesses] == [4]
    assert execute(plain, rows).num_rows == 3
    for text in ("SELECT max(k) FROM many LIMIT 3", "SELECT k FROM many ORDER BY k LIMIT 3", "SELECT k FROM many"):
        (access,) = ViewQuery.parse(text, "postgres", rows.routes()).accesses
        read.append(0 if access.enough is None else access.enough)
    assert read == [0, 0, 0]


def test_too_many_rows_name_the_way_out() -> None:
    many = pa.table({"k": pa.array(range(QUERY_ROWS_MAX + 1), pa.int32())})
    rows = KeptRows({"many": many}, {"many": ("k",)})
    with pytest.raises(DeclarationError, match=r"more than 1,000,000 rows.*Name keys.*app\.read\('many'\)"):
        execute(ViewQuery.parse("SELECT count(*) FROM many", "postgres", rows.routes()), rows)
    text = f"SELECT * FROM generate_series(1, {QUERY_ROWS_MAX + 1})"
    with pytest.raises(DeclarationError, match="add a LIMIT"):
        execute(ViewQuery.parse(text, "postgres", rows.routes()), rows)
    text = "SELECT * FROM many WHERE k = ANY($1)"
    with pytest.raises(DeclarationError, match="more than 100,000 keys"):
        execute(ViewQuery.parse(text, "postgres", rows.routes()), rows, [list(range(execution.QUERY_KEYS_MAX + 1))])


REFUSED = [
    ("INSERT INTO totals VALUES ('a', 1, 2)", UnsupportedSql, "INSERT: views are only read here"),
    ("WITH x AS (DELETE FROM totals RETURNING *) SELECT * FROM x", UnsupportedSql, "DELETE: views are only read"),
    (f"SELECT {'1 + ' * 2_000}1", UnsupportedSql, "nested too deeply"),
    ("SELECT * INTO copy FROM totals", UnsupportedSql, "views are only read"),
    ("COPY totals TO 'file'", UnsupportedSql, "views are only read"),
    ("SET threads = 1", UnsupportedSql, "views are only read"),
    ("ATTACH 'file'", UnsupportedSql, "cannot be parsed"),
    ("PRAGMA threads = 1", UnsupportedSql, "views are only read"),
    ("CREATE TABLE t AS SELECT 1", UnsupportedSql, "CREATE: views are only read"),
    ("SELECT 1; SELECT 2", UnsupportedSql, "2 statements are given"),
    ("SELEC 1", UnsupportedSql, "cannot be parsed|views are only read"),
    ("SELECT * FROM read_csv('/etc/hosts')", UnsupportedSql, "^read_csv.* in FROM: a query reads views"),
    ("SELECT * FROM read_text('/etc/hosts')", UnsupportedSql, "read_text"),
    ("SELECT * FROM '/etc/hosts'", UnknownView, "/etc/hosts"),
    ("SELECT * FROM other.totals", UnknownView, "other.totals"),
    ("SELECT * FROM duckdb_settings()", UnsupportedSql, "duckdb_settings"),
    ("SELECT * FROM nothing", UnknownView, "there are: Routes, everything, totals"),
    ("SELECT * FROM events", UnknownView, "it is a table, .* These read it: Routes, everything, totals"),
    ("SELECT nothing FROM totals", UnsupportedSql, "^no column 'nothing'; view 'totals' has customer, n"),
    ("SELECT customr FROM totals", UnsupportedSql, "^no column 'customr'; did you mean 'customer'[?]; view"),
    ("SELECT t.m FROM totals t", UnsupportedSql, "^no column 'm' in 't'; view 'totals' has"),
    ("WITH c AS (SELECT n AS total FROM totals) SELECT totl FROM c", UnsupportedSql, "did you mean 'total'[?]"),
    ("SELECT customer::int FROM totals WHERE customer = 'ada'", RowError, "ada"),
    (f"SELECT {'(' * 5000}1{')' * 5000}", UnsupportedSql, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "error", "said"), REFUSED, ids=[text[:60] for text, _, _ in REFUSED])
def test_everything_but_reading_views_is_refused(text: str, error: type[Exception], said: str) -> None:
    rows = KeptRows()
    with pytest.raises(error, match=said.replace("(", r"\(")):
        execute(ViewQuery.parse(text, "postgres", rows.routes()), rows)
    assert set(rows.read) <= {"totals"}


@pytest.mark.parametrize(
    ("value", "said"), [("1 / (i - 150000)", "division by zero"), ("CAST('x' || i AS INT)", "Conversion Error")]
)
def test_an_error_in_a_late_row_is_told_as_in_an_early_one(value: str, said: str) -> None:
    rows = KeptRows()
    late = f"CASE WHEN i >= 150000 THEN {value} END"
    query = ViewQuery.parse(f"SELECT {late} FROM generate_series(1, 200000) AS t(i)", "postgres", rows.routes())
    with pytest.raises(RowError, match=said):
        execute(query, rows)


@pytest.fixture(scope="module")
def few_bytes() -> Iterator[QueryProcesses]:
    processes = QueryProcesses(128 << 20)
    yield processes
    processes.close()


def doubled(first: str, more: str) -> str:
    """A query that puts a value into itself 28 times."""
    steps = "".join(f", t{step} AS (SELECT {more} AS a FROM t{step - 1})" for step in range(1, 29))
    return f"WITH t0 AS (SELECT {first} AS a FROM generate_series(1, 3000) r(i)){steps} SELECT max(a) AS x FROM t28"


LARGE = [
    doubled("'x' || i", "a || a"),
    doubled("'x' || i", "replace(a, 'x', 'xx')"),
    doubled("'\"\"' || i", "to_json(a)::text"),
    doubled("i", "ARRAY[a, a]"),
    "SELECT string_agg('x' || i, 'y') AS x FROM generate_series(1, 100000000) r(i)",
    "SELECT array_agg(a.i + b.i) AS x FROM generate_series(1, 30000) a(i), generate_series(1, 30000) b(i)",
    "SELECT repeat('x', 2000000000) AS x",
    "SELECT printf('%999999999d', n) AS x FROM totals",
]
"""Queries that make large values of small ones, or many rows of few."""


@pytest.mark.parametrize("text", LARGE, ids=[text[:40] + text[-60:-24] for text in LARGE])
def test_a_query_takes_no_more_memory_than_it_may(text: str, few_bytes: QueryProcesses) -> None:
    rows = KeptRows()
    with pytest.raises(DeclarationError, match="needs more than 128 MiB of memory: read fewer rows"):
        execute(ViewQuery.parse(text, "postgres", rows.routes()), rows, processes=few_bytes)
    small = "SELECT repeat('ab', 3) || printf('%03d', n) AS x FROM everything"
    found = execute(ViewQuery.parse(small, "postgres", rows.routes()), rows)
    assert found["x"].to_pylist() == ["ababab010", "ababab020"]


def test_all_views_of_a_query_share_its_bytes() -> None:
    large = pa.table({"k": pa.array(["x" * (QUERY_BYTES_MAX * 2 // 3)])})
    rows = KeptRows({"one": large, "other": large}, {"one": ("k",), "other": ("k",)})
    assert execute(ViewQuery.parse("SELECT count(*) FROM one", "postgres", rows.routes()), rows).num_rows == 1
    with pytest.raises(DeclarationError, match=r"the views of the query more than 256 MiB.* Name keys"):
        execute(ViewQuery.parse("SELECT count(*) FROM one, other", "postgres", rows.routes()), rows)


def test_large_answers_that_wait_for_their_callers_are_bounded() -> None:
    answers = HeldAnswers(Bounds(3_000_000, 3_000_000, 3_000_000))
    large = [pa.table({"x": pa.array(range(150_000), pa.int64())}) for _ in range(3)]
    kept = [answers.held(each) for each in large[:2]]
    with pytest.raises(Busy, match="answers of this caller of 2 MiB wait until they are read, and 2 MiB are the most"):
        answers.held(large[2])
    reading = batches_of(kept.pop())
    large = large[2:]
    assert next(reading).num_rows == 150_000
    with pytest.raises(Busy, match="try again soon"):
        answers.held(large[0])
    assert list(reading) == []
    assert answers.held(large[0]) is large[0]


def test_a_long_chain_of_alternatives_names_keys() -> None:
    rows = KeptRows()
    text = " OR ".join(f"customer = 'ada{number}'" for number in range(1_500))
    execute(ViewQuery.parse(f"SELECT * FROM totals WHERE {text}", "postgres", rows.routes()), rows)
    assert len(rows.read["totals"] or ()) == 1_500


def test_duckdb_has_no_way_to_files_settings_or_variables() -> None:
    rows = KeptRows()
    secret = pa.table({"x": [1]})
    assert secret.num_rows == 1
    for text in (
        "SELECT * FROM read_text('/etc/hosts')",
        "SET threads = 9",
        "SELECT * FROM secret",
        "SELECT * FROM glob('*')",
    ):
        with (
            Engines().cursor("UTC") as duck,
            pytest.raises(Exception, match=r"disabled|locked|does not exist"),
        ):
            duck.execute(text)
    assert rows.read == {}


@pytest.mark.parametrize("dialect", ["spark", "postgres"])
def test_a_text_that_is_no_number_is_not_rounded_to_one(dialect: str) -> None:
    routes = KeptRows().routes()
    with pytest.raises(RowError, match=r"'1.5' is no value of type"):
        ViewQuery.parse("SELECT n FROM totals WHERE n IN ('1', '1.5')", dialect, routes)
    query = ViewQuery.parse("SELECT n FROM totals WHERE total = '17.501'", dialect, routes)
    assert "total = 17.501" in query.sql
    with pytest.raises(UnsupportedSql, match="too many digits"):
        ViewQuery.parse(f"SELECT n FROM totals WHERE total = 1.{'1' * 38}", dialect, routes)


def test_a_decimal_without_digits_is_sparks() -> None:
    assert "DECIMAL(10, 0)" in ViewQuery.parse("SELECT CAST(1.6 AS DECIMAL)", "spark", {}).sql


@pytest.mark.parametrize("dialect", ["spark", "postgres"])
@pytest.mark.parametrize(
    ("expression", "column"),
    [
        ("k", "k"),
        ("l", "l"),
        ("s.g", "s"),
        ("m", "m"),
        ("upper(k)", "k"),
        ("*", "k"),
        ("odd", "k"),
        (None, 'it\'s "odd"'),
    ],
)
def test_a_query_that_reads_a_text_that_is_not_utf_8_is_told_where(
    dialect: str, expression: str | None, column: str
) -> None:
    named = f"view 'odd', column {column!r}: it has a text that is not UTF-8, which a query cannot read"
    for where in ("n = 2", "n + 0 = 2"):  # by a lookup, and by a scan
        selected = expression or exp.column(column, quoted=True).sql(dialect)
        query = ViewQuery.parse(f"SELECT {selected} FROM odd WHERE {where}", dialect, ODD_ROWS.routes())
        with pytest.raises(RowError, match=re.escape(named)):
            execute(query, ODD_ROWS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT count(*) AS x FROM odd", [3]),
        ("SELECT n AS x FROM odd WHERE b IS NOT NULL AND n > 1", [2]),
        ("SELECT max(a.n) AS x FROM odd AS a JOIN odd AS b ON a.n = b.n", [3]),
        ("SELECT n AS x FROM (SELECT * FROM odd) WHERE n > 2", [3]),
        ("SELECT k AS x FROM odd WHERE n = 1", ["ok"]),
    ],
)
def test_a_query_that_does_not_read_it_is_answered(text: str, expected: list[Any]) -> None:
    assert execute(ViewQuery.parse(text, "postgres", ODD_ROWS.routes()), ODD_ROWS)["x"].to_pylist() == expected


def test_a_number_too_long_for_its_type_is_no_text() -> None:
    long = pa.array([Decimal(10)], pa.decimal128(38, 0)).view(pa.decimal128(1, 0))
    assert not_utf8(pa.table({"long": long, "k": NO_TEXTS.slice(0, 1)})) == []


@pytest.mark.parametrize("value", ["md5_number('x')", "5::UHUGEINT", "['01'::BIT]", "{'a': [{'b': 1::BIGNUM}]}"])
def test_a_type_that_answers_cannot_have_is_refused(value: str) -> None:
    task = QueryTask(f"SELECT {value} AS x, {{'BIT': 1}} AS y", {}, "UTC", (), ())
    with pytest.raises(QueryFault, match=r"column 'x' of the answer has the type .*: cast it to VARCHAR"):
        Engines().answer(task, {})


@pytest.mark.parametrize("dialect", ["spark", "postgres"])
def test_half_a_character_is_no_query(dialect: str) -> None:
    with pytest.raises(UnsupportedSql, match="half a character of UTF-16 is at 8"):
        ViewQuery.parse("SELECT '\ud800'", dialect, KeptRows().routes())
