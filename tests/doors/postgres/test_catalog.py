"""What BI tools ask of PostgreSQL's catalog, and how they write their queries: one of each kind."""

import pytest
from postgres_kit import framed, said, trusted_session

SEARCH_PATH = "string_to_array(current_setting('search_path'), ',')"
ASKED = {
    # DBeaver: words that it shows in another colour
    "SELECT count(word), bool_and(catcode IN ('R', 'T', 'C')) FROM pg_catalog.pg_get_keywords() "
    "WHERE word <> ALL ('{select,from,NULL}'::text[]) OR word IN ('select')": ["1", "t"],
    "SELECT relname FROM pg_class WHERE relkind = ANY('{v,m}') AND relname ~ '^tot'": ["totals"],
    # Grafana: tables on the search path, with a value in FROM; names in quotes only where they need them
    "SELECT count(*) FROM information_schema.tables WHERE quote_ident(table_schema) IN (SELECT trim(s[i]) "
    f"FROM generate_series(1, array_upper({SEARCH_PATH}, 1)) AS i, {SEARCH_PATH} s)": ["3"],
    "SELECT quote_ident('totals'), quote_ident('Routes'), quote_ident('order'), parse_ident('public.\"Routes\"')": [
        *("totals", '"Routes"', '"order"', "{public,Routes}")
    ],
    "SELECT unnest(current_schemas(false)), current_role": ["public", "upriver"],
    "SELECT * FROM current_database() AS d, now() AS n WHERE n > '2020-01-01' AND d = 'upriver' LIMIT 0": [],
    # Metabase: keywords as names
    "WITH p AS (SELECT has_table_privilege(current_user, 'totals', 'select') AS select, true AS update, 1 AS table) "
    "SELECT p.select, p.update, p.table FROM p": ["t", "t", "1"],
    # psycopg, SQLAlchemy, Npgsql: types by name and by OID
    "SELECT oid, oid::regtype::text, typname FROM pg_type WHERE oid = to_regtype('bigint')": ["20", "bigint", "int8"],
    "SELECT 'int4'::regtype::oid, max(n)::int::regtype = 'integer'::regtype, 'nothing'::regtype::oid "
    "FROM (VALUES (23)) t(n)": [
        "23",
        "t",
        "0",
    ],
    "SELECT indkey, indoption, (SELECT count(*) FROM unnest(indkey)) FROM pg_index "
    "WHERE indrelid = 'public.\"Routes\"'::regclass": ["1 2", "0 0", "2"],
    "SELECT proallargtypes::regtype[] FROM pg_proc LIMIT 0": [],
    # asyncpg, ADBC: types by their OIDs, and by their functions
    "SELECT typreceive FROM pg_type WHERE oid = ANY('{1700}'::oid[]) AND typsend != 0 AND typreceive::text != 'x'": [
        "numeric_recv"
    ],
    # Npgsql: arrays by the function that reads them
    "SELECT typ.oid, typelem FROM pg_type typ LEFT JOIN pg_proc AS proc ON proc.oid = typ.typreceive "
    "WHERE proc.proname = 'array_recv' AND typname = '_int4'": ["1007", "23"],
    "SELECT cast('{1,2}' AS oid[])": ["{1,2}"],
    # pgAdmin, DataGrip: columns of every table, names of relations, functions about them
    "SELECT xmin, tableoid, oid::regclass, relname FROM pg_class WHERE oid = 'totals'::text::regclass": [
        *("0", "0", "totals", "totals")
    ],
    "SELECT to_regclass('totals') IS NULL, to_regclass('nothing') IS NULL": ["f", "t"],
    "SELECT pg_get_indexdef(indexrelid, 1, true), pg_get_viewdef(indrelid) FROM pg_index "
    "WHERE indexrelid = 'totals_key'::regclass": ["customer", "SELECT customer, n, total FROM events"],
    "SELECT count(*) FROM pg_stat_activity a, pg_cast, pg_operator, aclexplode(NULL) x": ["0"],
    "SELECT coalesce(rolconfig, '{}'), coalesce(rolname, '{}') FROM pg_roles": ["{}", "upriver"],
    # DataGrip: how old transactions are
    "SELECT age(datfrozenxid), age('5'::varchar::xid), txid_current()::varchar::bigint FROM pg_database": [
        "0",
        "0",
        "0",
    ],
    # pgAdmin: rights, statistics and settings, by functions that give rows
    "SELECT count(*) FROM pg_show_all_settings() s, pg_stat_user_functions f, "
    "(SELECT (aclexplode(relacl)).grantee FROM pg_class) a": ["0"],
    # pgAdmin: columns of an index, numbered; types that there are not
    "SELECT indkey[0], indkey[n], indkey[0:n], indoption[n - 1], n FROM (SELECT *, unnest(ARRAY(SELECT "
    "pg_catalog.generate_series(1, 1))) AS n FROM pg_index WHERE indrelid = 'public.\"Routes\"'::regclass) i": [
        "1",
        "2",
        "1 2",
        "0",
        "1",
    ],
    "SELECT format_type(NULL, NULL) IS NULL, format_type(0, NULL), 99::regtype": ["t", "-", "???"],
    # Beekeeper Studio: columns of a key, one after the other
    "SELECT pos FROM pg_index i CROSS JOIN LATERAL generate_subscripts(i.indkey, 1) AS pos WHERE pos > 1": ["2"],
    # functions that DuckDB calls otherwise
    "SELECT substring('a=1' FROM 'a=(.*)'), encode('\\xff'::bytea, 'hex'), format('%I.%s%%', 'A', 1), pg_typeof(1)": [
        *("1", "ff", '"A".1%', "integer")
    ],
    "SELECT json_agg(n), json_build_object('a', 1), every(n > 0), array_length(ARRAY[]::int[], 1) IS NULL FROM totals "
    "WHERE customer = 'ada'": ["[2]", '{"a":1}', "t", "t"],
    "SELECT ARRAY['a', NULL, 'NULL', '']": ['{a,NULL,"NULL",""}'],
}


def rows_of(text: str) -> list[list[str]]:
    answers = said(trusted_session(), framed(b"Q", text.encode() + b"\0"))
    assert b"E" not in [kind for kind, _ in answers], answers
    return [values_of(body) for kind, body in answers if kind == b"D"]


def values_of(row: bytes) -> list[str]:
    found, place = [], 2
    for _ in range(int.from_bytes(row[:2])):
        size = int.from_bytes(row[place : place + 4])
        found.append(row[place + 4 : place + 4 + size].decode())
        place += 4 + size
    return found


@pytest.mark.parametrize(("text", "expected"), ASKED.items(), ids=[text[:50] for text in ASKED])
def test_what_tools_ask_is_answered(text: str, expected: list[str]) -> None:
    assert rows_of(text) == ([expected] if expected else [])


def test_all_settings_are_shown() -> None:
    assert ["server_encoding", "UTF8"] in [row[:2] for row in rows_of("SHOW ALL") if len(row) == 3]


@pytest.mark.parametrize("text", ["SELECT * FROM read_csv('/etc/hosts')", "SELECT * FROM duckdb_settings() s"])
def test_functions_that_read_files_or_settings_stay_refused(text: str) -> None:
    answers = said(trusted_session(), framed(b"Q", text.encode() + b"\0"))
    assert any(b"a query reads views" in body for kind, body in answers if kind == b"E")
