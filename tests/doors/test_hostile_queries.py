"""Queries that would take the driver's time or memory without an end: each is refused soon, or answered."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from doors_kit import KeptRows
from sqlglot.dialects.dialect import Dialect
from sqlglot.parser import Parser

from upriver.doors import queries
from upriver.doors.cancellation import Cancellation
from upriver.doors.execution import LONG_CHARS, execute, parse_turn
from upriver.doors.flight.sql_schemas import QuerySchemas
from upriver.doors.flight.sql_statements import FlightStatement, PreparedStatement
from upriver.doors.postgres.copies import copied_query
from upriver.doors.postgres.cursors import CursorStep, Declaration, SessionCursors
from upriver.doors.postgres.messages import WireError
from upriver.doors.postgres.statements import PreparedQuery, SessionSettings, split
from upriver.doors.queries import ViewQuery, parsed
from upriver.doors.shares import QueryCaller
from upriver.errors import QueryCancelled, UnsupportedSql

DIALECTS = pytest.mark.parametrize("dialect", ["spark", "postgres"])
CPU_S_MAX = 20
"""Seconds of the processor for all texts below; less than 5 are used, and a fault takes minutes at least."""


def over_spark(text: str, rows: KeptRows) -> None:
    execute(ViewQuery.parse(text, "spark", rows.routes()), rows)


def over_postgres(text: str, rows: KeptRows) -> None:
    PreparedQuery(text, rows, SessionSettings(), SessionCursors()).run((), Cancellation())


def over_flight(text: str, rows: KeptRows) -> None:
    PreparedStatement(FlightStatement(text), rows, QuerySchemas(), Cancellation()).stream()


DOORS = pytest.mark.parametrize("ask", [over_spark, over_postgres, over_flight])

HOSTILE_TEXTS: list[tuple[Callable[[str], object], str]] = [
    *((lambda text: parsed(text, "spark"), part * 100_000 + "x") for part in ("-- ", "/**/", "--\n", "( ", " (/**/")),
    (lambda text: parsed(text, "spark"), "-" * 60 + "\nSELEC 1"),
    *((copied_query, f"COPY {part * 100_000} x") for part in ('"', '""', '"a"', "a", "a ", "(", ") ", ") TO ", "\n")),
    (copied_query, f"COPY a{' ' * 100_000}x"),
    *((Declaration.of, f"DECLARE {part * 100_000} x") for part in ('"', '"a"', "a ", " ", "a SCROLL ")),
    *((CursorStep.of, f"FETCH {part * 100_000} x") for part in ('"', " ", "1 ", "FROM ")),
    *(
        (split, f"SELECT {part * 100_000}!")
        for part in ("?", "$1", "$a$", "'", '"', "/*", "AS ", "::", ";", "e'", "--")
    ),
]
"""Texts that regular expressions read, and a function that reads each with them."""


def read_hostile_texts() -> None:
    """Read each text, in a process that ends if this takes too long: an expression that hangs lets no thread run."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    for read, text in HOSTILE_TEXTS:
        try:
            read(text)
        except (UnsupportedSql, WireError):
            continue


def test_no_text_keeps_a_regular_expression_busy() -> None:
    program = "import sys; sys.path[:0] = {!r}; from test_hostile_queries import read_hostile_texts as r; r()"
    paths = [str(Path(__file__).parent), *sys.path]
    ended = subprocess.run([sys.executable, "-c", program.format(paths)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr}"


NESTED = [
    *("date", "decimal", "struct", "varchar", "int", "char", "timestamp", "enum", "union", "object", "vector", "json"),
    *("date_add", "upper", "abs", "map", "array", "list", "nested", "nullable", "interval", "time", "row"),
]


@DIALECTS
@pytest.mark.parametrize("before", [*(f"{name}(" for name in NESTED), "decimal(1, ", "array[", "1 IN (", "(SELECT "])
def test_a_query_takes_so_many_steps_as_it_has_words(
    before: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    advance = Parser._advance

    def counted(parser: Parser, times: int = 1) -> None:
        nonlocal steps
        steps += 1
        advance(parser, times)

    monkeypatch.setattr(Parser, "_advance", counted)
    text = f"SELECT {before * 30}1{(']' if '[' in before else ')') * 30}"
    try:
        parsed(text, dialect)
    except UnsupportedSql as error:
        assert "nested too deeply" in str(error) or "cannot be parsed" in str(error)  # noqa: PT017
    most = 4 * queries.PARSE_STEPS_MAX  # sqlglot also parses names of types that it adds itself
    assert 0 < steps <= most * (len(Dialect.get_or_raise(dialect).tokenize(text)) + 1)


@DIALECTS
def test_names_of_types_may_be_nested_in_a_few_brackets(dialect: str) -> None:
    assert parsed("SELECT date(date(date(date('2024-01-01'))))", dialect).sql()
    with pytest.raises(UnsupportedSql, match="names of types, or LATERAL, are nested too deeply in brackets"):
        parsed(f"SELECT {'date(' * 40}'2024-01-01'{')' * 40}", dialect)


def listed(part: str, count: int, between: str = ", ") -> str:
    return between.join(part.format(number) for number in range(count))


@DIALECTS
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"WITH {listed('a{} AS (SELECT 1)', 101)} SELECT 1", "more than 100 CTEs in WITH"),
        (f"SELECT 1 FROM {listed('unnest([1]) AS a{}', 101)}", "more than 100 tables and subqueries in one FROM"),
        (f"SELECT 1 FROM {listed('totals AS a{}', 101)}", "more than 100 tables and subqueries in one FROM"),
        (f"SELECT {listed('(SELECT 1 FROM totals, totals)', 500)}", "more than 1,000 SELECTs and tables that they"),
        (f"SELECT {listed('n', 50_001)}", "more than 100,000 nodes"),
        (f"SELECT {'+' * 200_000}", "at most 200,000 are taken"),
    ],
    ids=["ctes", "functions", "tables", "selects", "nodes", "tokens"],
)
def test_what_takes_much_memory_is_refused_before(text: str, said: str, dialect: str) -> None:
    with pytest.raises(UnsupportedSql, match=said):
        parsed(text, dialect)


def test_as_many_ctes_and_tables_as_a_query_may_have_are_read() -> None:
    text = (
        f"WITH {listed('a{} AS (SELECT 1 AS x)', 100)} SELECT sum(x) AS x FROM {listed('a{}', 100, ' NATURAL JOIN ')}"
    )
    assert execute(ViewQuery.parse(text, "postgres", {}), KeptRows()).to_pylist() == [{"x": 1}]


CHAINS = {
    "sum": ("n", "+n"),
    "texts": ("'a'", "||'a'"),
    "casts": ("n", "::float"),
    "zones": ("now()", " AT TIME ZONE 'UTC'"),
    "fields": ("n", ".b"),
    "like": ("'a'", " LIKE 'a'"),
    "is": ("n", " IS NULL"),
    "json": ("'{}'::json", "->'a'"),
    "collations": ("'a'", ' COLLATE "C"'),
    "numerics": ("customer", "::numeric::text"),
}
"""A value, and what can be put behind it again and again."""


@DOORS
@pytest.mark.parametrize("chain", CHAINS)
def test_a_long_chain_is_answered_or_refused(chain: str, ask: Callable[[str, KeptRows], None]) -> None:
    first, more = CHAINS[chain]
    for count in (70, 140, 330):
        try:
            ask(f"SELECT {first}{more * count} FROM totals", KeptRows())
        except UnsupportedSql as error:
            assert len(str(error)) < 3_000  # noqa: PT017
        except Exception as error:
            assert type(error).__name__ in ("RowError", "WireError"), repr(error)  # noqa: PT017


@DOORS
@pytest.mark.parametrize("before", ["- ", "NOT "])
def test_signs_before_a_value_are_counted_as_levels(before: str, ask: Callable[[str, KeptRows], None]) -> None:
    with pytest.raises(UnsupportedSql, match="nested too deeply"):
        ask(f"SELECT {before * 330}n FROM totals", KeptRows())


def test_a_sum_of_many_terms_has_the_name_that_spark_gives() -> None:
    rows = KeptRows()
    found = execute(ViewQuery.parse(f"SELECT {listed('n', 140, ' + ')} FROM totals", "spark", rows.routes()), rows)
    assert found.schema.names == ["(" * 139 + "n" + " + n)" * 139]
    with pytest.raises(UnsupportedSql, match="nested too deeply: more than 150 levels"):
        parsed(f"SELECT {listed('n', 200, ' + ')} FROM totals", "spark")


def test_a_host_parses_one_long_query_at_a_time_and_others_need_not_wait() -> None:
    long, here = " " * LONG_CHARS, QueryCaller("host", "a")
    with parse_turn(long, Cancellation(caller=here)):
        for caller in (here, QueryCaller("host", "b")):
            has_gone = Cancellation(lambda: True, caller)
            with pytest.raises(QueryCancelled), parse_turn(long, has_gone):
                raise AssertionError("two long queries of one host are parsed at a time")
            with parse_turn("SELECT 1", has_gone):
                pass
        with parse_turn(long, Cancellation(caller=QueryCaller("another host"))):
            pass
    with parse_turn(long, Cancellation(caller=here)):
        pass


def test_long_texts_wait_for_their_turn_at_the_doors() -> None:
    text, has_gone = f"SELECT n FROM totals {' ' * LONG_CHARS}n", Cancellation(lambda: True)
    with parse_turn(text, Cancellation()):
        with pytest.raises(QueryCancelled):
            PreparedQuery(text, KeptRows(), SessionSettings(), SessionCursors(), (), has_gone)
        with pytest.raises(QueryCancelled):
            PreparedStatement(FlightStatement(text), KeptRows(), QuerySchemas(), has_gone)
