"""The allow list of queries: every function that DuckDB knows, in every place, and every node of a tree."""

import copy
import json
from collections.abc import Collection, Iterator
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

NOTABLE = {"pg_sleep", "write_log", "current_setting", "query", "read_csv", "duckdb_settings", "nextval"}
SOME_OF = 25
"""One in so many functions is called in each place; in one place, every one."""
EXPRESSION, LATERAL = "SELECT {} FROM v", "SELECT * FROM v, LATERAL {}"
SCALAR_PLACES = {
    EXPRESSION: "the select list",
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
    LATERAL: "FROM",
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


def refused_names(duck: duckdb.DuckDBPyConnection, allowed: Collection[str], *, is_every_one: bool) -> list[str]:
    """Names of functions that are not allowed; some of them, unless every one is wanted."""
    names = sorted(known_functions(duck) - set(allowed))
    assert set(names) >= NOTABLE
    return names if is_every_one else sorted(NOTABLE | set(names[::SOME_OF]))


def called(name: str) -> str:
    return f'"{name}"(1)'


@pytest.mark.parametrize("place", SCALAR_PLACES)
def test_functions_that_are_not_allowed_are_refused_in_each_place_of_an_expression(
    duck: duckdb.DuckDBPyConnection, place: str
) -> None:
    names = refused_names(duck, FUNCTIONS, is_every_one=place == EXPRESSION)
    for name, tree in zip(names, trees(duck, [place.format(called(name)) for name in names]), strict=True):
        said = refusal(tree)
        assert said is not None, name
        assert said.lower().startswith(f"function {name!r} in {SCALAR_PLACES[place].lower()}"), said
    (allowed,) = trees(duck, [place.format(called("abs"))])
    assert refusal(allowed) is None


@pytest.mark.parametrize("place", ROW_PLACES)
def test_functions_that_are_not_allowed_are_refused_in_each_place_of_rows(
    duck: duckdb.DuckDBPyConnection, place: str
) -> None:
    names = refused_names(duck, TABLE_FUNCTIONS, is_every_one=place == LATERAL)
    for name, tree in zip(names, trees(duck, [place.format(called(name)) for name in names]), strict=True):
        said = refusal(tree)
        assert said is not None, name
        assert said.startswith(f"{name}(...) in {ROW_PLACES[place]}"), said
    for tree in trees(duck, [place.format(called(name)) for name in TABLE_FUNCTIONS]):
        assert refusal(tree) is None


def test_the_allowed_functions_read_nothing_but_their_arguments(duck: duckdb.DuckDBPyConnection) -> None:
    rows = duck.execute(
        "SELECT lower(function_name), function_type, stability, has_side_effects, macro_definition, "
        "parameter_types::VARCHAR FROM duckdb_functions()"
    ).fetchall()
    seen: set[str] = set()
    for name, kind, stability, has_side_effects, definition, types in rows:
        if name not in FUNCTIONS or (kind in ("table", "table_macro") and name != "unnest"):
            continue
        seen.add(name)
        if kind in ("scalar", "aggregate", "window") and name not in CLOCK_AND_CHANCE | {"error"}:
            reads_zone = "TIME ZONE" in types or "TZ" in types or name in ("make_timestamptz", "timezone")
            assert stability == "CONSISTENT" or (reads_zone and stability == "CONSISTENT_WITHIN_QUERY"), name
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
    "ATTACH 'x'": "a query is one SELECT",
    "COPY v TO 'x'": "a query is one SELECT",
    "PIVOT v ON b USING max(a)": "PIVOT in it names its columns by IN",
    "SELECT * FROM v PIVOT (max(a) FOR b IN kinds)": "pivot_enum of pivots in FROM",
    'SELECT "="(a, 1) FROM v': "function '=' in the select list",
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
    "WITH RECURSIVE c AS (SELECT 1 UNION ALL SELECT * FROM d) SELECT 1": "table 'd' in FROM of the subquery in WITH c",
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


OWN_NAMES = (
    "WITH RECURSIVE {0} AS (SELECT * FROM {0} UNION ALL SELECT * FROM {0} WHERE false) SELECT * FROM {0}",
    "WITH RECURSIVE {0}(a) AS (SELECT (SELECT count(*) FROM {0}) UNION SELECT a FROM {0}) SELECT * FROM {0}",
    "WITH RECURSIVE {0}(a, b) USING KEY (a) AS (SELECT 1, (SELECT count(*) FROM {0}) UNION SELECT a, b FROM {0}) "
    "SELECT * FROM {0}",
    "WITH RECURSIVE {0}(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM {0} WHERE a < 3) SELECT * FROM {0}",
    "WITH RECURSIVE c AS (SELECT * FROM {0} UNION ALL SELECT * FROM c), {0} AS (SELECT 1) SELECT * FROM c",
    "WITH {0} AS (SELECT * FROM {0}) SELECT * FROM {0}",
    "WITH {0} AS (SELECT 1 AS x) SELECT * FROM (WITH {0} AS (SELECT x + 1 AS x FROM {0}) SELECT * FROM {0})",
    "WITH {0} AS (SELECT 1 AS x) SELECT * FROM (WITH c AS (SELECT * FROM {0}), {0} AS (SELECT 2) SELECT * FROM c)",
    "WITH {0} AS (SELECT 1) SELECT (SELECT count(*) FROM {0}) AS n FROM v WHERE EXISTS (SELECT 1 FROM {0})",
    "WITH {0} AS (SELECT 1) SELECT * FROM main.{0}",
    "SELECT * FROM (WITH {0} AS (SELECT 1) SELECT * FROM {0}) JOIN {0} ON true",
    "(WITH {0} AS (SELECT 1) SELECT * FROM {0}) UNION SELECT count(*) FROM {0}",
    "SELECT a FROM v AS {0} WHERE EXISTS (SELECT 1 FROM {0})",
    "SELECT a FROM v AS {0}, LATERAL (SELECT count(*) FROM {0})",
)
"""Queries that call a table of their own by some name, and may read another one of that name."""


@pytest.mark.parametrize("text", OWN_NAMES)
def test_a_table_of_a_query_lets_it_read_no_table_of_duckdb_s_of_the_same_name(text: str) -> None:
    answers = []
    for name in ("duckdb_views", "pg_class", "unknown"):
        task, views = QueryTask(text.format(name), {}, "UTC", (), ("v",)), {"v": pa.table({"a": [1, 2]})}
        try:
            answers.append(str(Engines().answer(task, views).to_pylist()))
        except QueryFault as fault:
            answers.append(str(fault).replace(name, "unknown"))
    assert len(set(answers)) == 1, answers


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
