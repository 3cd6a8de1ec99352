"""The allow list of queries: every function that DuckDB knows, in every place, and every node of a tree."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from doors_kit import KeptRows

from upriver.doors.execution import DoorTables, describe, execute
from upriver.doors.postgres.catalog import MACROS
from upriver.doors.queries import ViewQuery
from upriver.doors.query_grammar import (
    CLOCK_AND_CHANCE,
    FUNCTIONS,
    SERIALIZED,
    TABLE_FUNCTIONS,
    QueryRefused,
    check_tree,
)
from upriver.doors.query_program import Engines, QueryFault, QueryTask
from upriver.errors import UnsupportedSql

TABLES = {"v": ("a", "b", "l")}
"""What the queries of this file read, with its columns."""


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with Engines().cursor("UTC") as cursor:
        yield cursor


def trees(duck: duckdb.DuckDBPyConnection, texts: list[str]) -> list[Any]:
    """The trees of many texts."""
    each = SERIALIZED.replace("$1", "text") + " FROM (SELECT unnest($1) AS text)"
    return [json.loads(tree) for (tree,) in duck.execute(each, [texts]).fetchall()]


def refusal(tree: Any) -> str | None:
    """Why a tree is refused; ``None`` if it is allowed."""
    try:
        check_tree(tree, TABLES, TABLES["v"], ())
    except QueryRefused as refused:
        return str(refused)
    return None


# Functions

SCALAR_PLACES = {
    "SELECT {} FROM v": "the select list",
    "SELECT 1 + abs({}) FROM v": "the select list",
    "SELECT DISTINCT ON ({}) a FROM v": "DISTINCT ON",
    "SELECT a FROM v WHERE a = 1 OR NOT a IN (1, {})": "WHERE",
    "SELECT a FROM v WHERE a BETWEEN 1 AND {}": "WHERE",
    "SELECT a FROM v JOIN v AS w ON {}": "ON",
    "SELECT a FROM v GROUP BY a, {}": "GROUP BY",
    "SELECT a FROM v GROUP BY GROUPING SETS ((a), ({}))": "GROUP BY",
    "SELECT a FROM v GROUP BY a HAVING {} > 1": "HAVING",
    "SELECT a FROM v QUALIFY {} > 1": "QUALIFY",
    "SELECT a FROM v ORDER BY {}": "ORDER BY",
    "SELECT a FROM v LIMIT {}": "LIMIT",
    "SELECT a FROM v LIMIT 1 OFFSET {}": "OFFSET",
    "SELECT CASE WHEN a THEN {} END FROM v": "the select list",
    "SELECT {}::VARCHAR FROM v": "the select list",
    "SELECT sum(a) FILTER (WHERE {}) FROM v": "FILTER",
    "SELECT string_agg(a, ',' ORDER BY {}) FROM v": "ORDER BY",
    "SELECT sum(a) OVER (PARTITION BY {}) FROM v": "the select list",
    "SELECT sum(a) OVER (ORDER BY a ROWS BETWEEN {} PRECEDING AND CURRENT ROW) FROM v": "the select list",
    "SELECT list_transform(l, lambda x: {}) FROM v": "the select list",
    "SELECT [x FOR x IN l IF {}] FROM v": "the select list",
    "SELECT l[{}] FROM v": "the select list",
    "SELECT {{'f': {}}} FROM v": "the select list",
    "SELECT * REPLACE ({} AS a) FROM v": "the select list",
    "VALUES (1), ({})": "FROM",
    "SELECT * FROM unnest([{}])": "FROM",
    "SELECT * FROM v, LATERAL (SELECT {}) AS w": "the select list of the subquery in FROM",
    "SELECT (SELECT max({}) FROM v)": "the select list of the subquery in the select list",
    "SELECT a FROM v WHERE EXISTS (SELECT 1 FROM v WHERE {})": "WHERE",
    "WITH c AS (SELECT {} FROM v) SELECT 1": "the select list of the subquery in WITH c",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT {} FROM c) SELECT n FROM c": "the select list",
    "SELECT a FROM v UNION ALL SELECT {} FROM v": "the select list",
    "SELECT * FROM (SELECT a, b FROM v) PIVOT (max({}) FOR b IN (1, 2))": "FROM",
}
"""Where an expression may stand, and what an error calls the place."""
ROW_PLACES = {
    "SELECT * FROM {}": "FROM",
    "SELECT * FROM {} AS f(x)": "FROM",
    "SELECT * FROM v, {}": "FROM",
    "SELECT * FROM v, LATERAL {}": "FROM",
    "SELECT * FROM v LEFT JOIN LATERAL {} ON true": "FROM",
    "SELECT * FROM v CROSS JOIN {}": "FROM",
    "SELECT * FROM v JOIN {} AS f ON v.a = f.a": "FROM",
    "SELECT * FROM (SELECT * FROM {})": "FROM of the subquery in FROM",
    "SELECT (SELECT count(*) FROM {})": "FROM of the subquery in the select list",
    "SELECT a FROM v WHERE a IN (SELECT a FROM {})": "FROM of the subquery in WHERE",
    "SELECT a FROM v WHERE EXISTS (FROM {})": "FROM of the subquery in WHERE",
    "SELECT * FROM unnest((SELECT list(a) FROM {}))": "FROM of the subquery in FROM",
    "WITH c AS (SELECT * FROM {}) SELECT 1": "FROM of the subquery in WITH c",
    "SELECT a FROM v UNION SELECT a FROM {}": "FROM",
    "SELECT a FROM v ORDER BY (SELECT max(a) FROM {})": "FROM of the subquery in ORDER BY",
    "SELECT * FROM {} PIVOT (max(a) FOR b IN (1, 2))": "FROM",
}
"""Where rows may come from."""


def known_functions(duck: duckdb.DuckDBPyConnection) -> set[str]:
    """The names of all functions that this DuckDB has, tables of functions among them."""
    return {name for (name,) in duck.execute("SELECT DISTINCT lower(function_name) FROM duckdb_functions()").fetchall()}


def called(name: str) -> str:
    return f'"{name}"(1)'


@pytest.mark.parametrize("place", SCALAR_PLACES)
def test_each_function_that_is_not_allowed_is_refused_in_each_place_of_an_expression(
    duck: duckdb.DuckDBPyConnection, place: str
) -> None:
    names = sorted(known_functions(duck) - FUNCTIONS)
    assert {"pg_sleep", "write_log", "current_setting", "query", "read_csv", "duckdb_settings", "nextval"} <= set(names)
    for name, tree in zip(names, trees(duck, [place.format(called(name)) for name in names]), strict=True):
        said = refusal(tree)
        assert said is not None, name
        assert said.lower().startswith(f"function {name!r} in {SCALAR_PLACES[place].lower()}"), said
    (allowed,) = trees(duck, [place.format(called("abs"))])
    assert refusal(allowed) is None


@pytest.mark.parametrize("place", ROW_PLACES)
def test_each_function_that_is_not_allowed_is_refused_in_each_place_of_rows(
    duck: duckdb.DuckDBPyConnection, place: str
) -> None:
    names = sorted(known_functions(duck) - set(TABLE_FUNCTIONS))
    for name, tree in zip(names, trees(duck, [place.format(called(name)) for name in names]), strict=True):
        said = refusal(tree)
        assert said is not None, name
        assert said.startswith(f"{name}(...) in {ROW_PLACES[place]}"), said
    for tree in trees(duck, [place.format(called(name)) for name in TABLE_FUNCTIONS]):
        assert refusal(tree) is None


def test_the_allowed_functions_read_nothing_but_their_arguments(duck: duckdb.DuckDBPyConnection) -> None:
    rows = duck.execute(
        "SELECT lower(function_name), function_type, stability, has_side_effects, macro_definition "
        "FROM duckdb_functions()"
    ).fetchall()
    seen: set[str] = set()
    for name, kind, stability, has_side_effects, definition in rows:
        if name not in FUNCTIONS or (kind in ("table", "table_macro") and name != "unnest"):
            continue
        seen.add(name)
        if kind in ("scalar", "aggregate", "window") and name not in CLOCK_AND_CHANCE | {
            "error",
            "make_timestamptz",
        }:  # of a zone
            assert stability == "CONSISTENT", name
            assert not has_side_effects, name
        if kind == "macro":
            (tree,) = trees(duck, [f"SELECT {definition}"])
            assert refusal(tree) is None, name
    assert len(seen) > 500
    for reads in ("current", "setting", "duckdb", "pragma", "read_", "getenv", "variable", "file", "sleep"):
        assert [name for name in FUNCTIONS - CLOCK_AND_CHANCE if reads in name] == []


def test_macros_are_functions_of_their_door_alone() -> None:
    engines = Engines()
    text = "SELECT postgres_version() AS v"
    assert engines.answer(QueryTask(text, {}, "UTC", MACROS, ()), {})["v"].to_pylist()[0].startswith("PostgreSQL")
    with pytest.raises(QueryFault, match="function 'postgres_version' in the select list"):
        engines.answer(QueryTask(text, {}, "UTC", (), ()), {})
    with pytest.raises(QueryFault, match="function 'duckdb_settings'"):
        engines.answer(QueryTask("SELECT duckdb_settings()", {}, "UTC", MACROS, ()), {})


# Nodes

ALLOWED = (
    *SCALAR_PLACES,
    "SELECT a, grouping(a), rank() OVER w FROM v WINDOW w AS (PARTITION BY a ORDER BY b DESC NULLS LAST)",
    "SELECT a IS NULL, a IS NOT DISTINCT FROM b, coalesce(a, b), TRY(a), a -> 'x', a ILIKE 'x' FROM v",
    "SELECT a = ANY (SELECT a FROM v), a::DECIMAL(3, 2), a::STRUCT(x INT, y VARCHAR[]), a::INT[3] FROM v",
    "SELECT * EXCLUDE (a), v.*, COLUMNS('b'), COLUMNS(c -> c LIKE 'a%'), $1, INTERVAL 1 DAY, a COLLATE nocase FROM v",
    "SELECT lag(a, 1, 2 IGNORE NULLS) OVER (ORDER BY b), l[1:2], [1, 2], MAP {{'a': 1}}, (1, 2), 1e3, NULL FROM v",
    "WITH c(n) AS MATERIALIZED (SELECT 1), d AS (SELECT n FROM c) SELECT n FROM d ASOF JOIN v ON n >= a",
    "SELECT a FROM v WHERE a IN (SELECT a FROM v) AND a > ALL (SELECT 1)",
    "SELECT * FROM v UNPIVOT (x FOR y IN (a, b))",
    "SELECT a FROM v TABLESAMPLE reservoir(10%)",
    "SELECT a FROM v EXCEPT ALL (SELECT a FROM v ORDER BY a LIMIT 10%)",
    "SELECT current_date, current_timestamp, localtime",
    "SELECT x.user, user FROM (SELECT 1) AS x(user)",
)
"""Queries that together have most kinds of nodes."""
REFUSED = {
    "SELECT 1; SELECT 2": "a query is one SELECT",
    "SELECT 1 FRM v": "Parser Error",
    "ATTACH 'x'": "Only SELECT statements",
    "COPY v TO 'x'": "Only SELECT statements",
    "DESCRIBE v": "SHOW_REF in FROM",
    "SUMMARIZE v": "SHOW_REF in FROM",
    "SELECT * FROM (SHOW TABLES)": "SHOW_REF in FROM",
    "SELECT * FROM (DESCRIBE SELECT 1)": "SHOW_REF in FROM",
    "SELECT * FROM v AT (VERSION => 1)": "at_clause of BASE_TABLE in FROM",
    "TABLE duckdb_tables": "table 'duckdb_tables' in FROM",
    "SELECT * FROM 'file.csv'": "table 'file.csv' in FROM",
    "SELECT * FROM information_schema.tables": "table 'information_schema.tables' in FROM",
    "SELECT * FROM other.v": "table 'other.v' in FROM",
    "SELECT * FROM c, (WITH c AS (SELECT 1) SELECT * FROM c) AS d": "table 'c' in FROM",
    "WITH duckdb_views AS (SELECT * FROM duckdb_views) SELECT 1": "table 'duckdb_views' in FROM of the subquery",
    "WITH c AS (SELECT * FROM d), d AS (SELECT 1) SELECT 1": "table 'd' in FROM of the subquery in WITH c",
    "SELECT system.main.abs(1)": "function 'system.main.abs' in the select list",
    "SELECT pg_catalog.abs(1)": "function 'pg_catalog.abs' in the select list",
    "SELECT uper('x')": "no such function here; did you mean 'upper'",
    **{
        f"SELECT {name}": f"function '{name}' in the select list" for name in ("user", "current_schema", "session_user")
    },
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_statements_tables_and_schemas_are_refused(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    (tree,) = trees(duck, [text])
    said = refusal(tree)
    assert said is not None
    assert REFUSED[text] in said


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a query's tree."""
    if isinstance(tree, dict):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(part)


@pytest.mark.parametrize("text", ALLOWED, ids=[text[:60] for text in ALLOWED])
def test_a_field_or_a_kind_that_is_not_known_is_refused_wherever_it_stands(
    duck: duckdb.DuckDBPyConnection, text: str
) -> None:
    (tree,) = trees(duck, [text.format(1)])
    assert refusal(tree) is None
    count = sum(1 for _ in nodes(tree["statements"]))
    assert count > 3
    for place in range(count):
        with_field = copy.deepcopy(tree)
        list(nodes(with_field["statements"]))[place]["surprise"] = True
        assert refusal(with_field) is not None, place
        of_kind = copy.deepcopy(tree)
        node = list(nodes(of_kind["statements"]))[place]
        tag = "class" if "class" in node else "type"
        node[tag] = "SURPRISE"
        assert refusal(of_kind) is not None, place


# Doors

READS = (
    "SELECT * FROM totals, LATERAL duckdb_settings()",
    "SELECT * FROM totals, LATERAL query('SELECT 1') AS q",
    "SELECT customer FROM totals WHERE customer = 'ada' AND write_log('x') IS NULL",
    "SELECT pg_sleep(40) FROM totals",
    "SELECT * FROM totals WHERE customer IN (SELECT current_setting('home_directory'))",
)


@pytest.mark.parametrize("text", READS)
@pytest.mark.parametrize("dialect", ["spark", "postgres"])
def test_a_refused_query_reads_no_view(text: str, dialect: str) -> None:
    rows = KeptRows()
    query = ViewQuery.parse(text, dialect, rows.routes())
    refused = r"no such function here|the functions that FROM takes"
    with pytest.raises(UnsupportedSql, match=refused):
        execute(query, rows)
    with pytest.raises(UnsupportedSql, match=refused):
        describe(query)
    assert rows.read == {}


def test_a_door_s_own_tables_are_read() -> None:
    rows = KeptRows()
    query = ViewQuery.of(ViewQuery.parse("SELECT 1", "postgres", rows.routes()).tree, rows.routes())
    added = DoorTables({"postgres_pg_am": pa.table({"amname": ["heap"]})})
    assert execute(query, rows, added=added).num_rows == 1
    tables = {"postgres_pg_am": pa.table({"amname": ["heap"]})}
    task = QueryTask("SELECT amname FROM postgres_pg_am", {}, "UTC", (), tuple(tables))
    assert Engines().answer(task, tables).to_pylist() == [{"amname": "heap"}]
