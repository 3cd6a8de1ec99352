"""``pg_catalog`` and ``information_schema``, as far as clients ask for them, made from an app's views.

A view is a materialized view with an index of its key. A catalog's table is an Arrow table that is made when a query
reads it; many have no rows. Functions that only PostgreSQL has are macros of DuckDB, or are replaced in the query.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from upriver.doors.postgres.catalog_columns import COLUMN_NAMES, COLUMNS, RESERVED, RESERVED_BUT_FUNCTIONS
from upriver.doors.postgres.functions import counted_from_one, own_function, with_column_names
from upriver.doors.postgres.types import INT2_VECTOR, OID_VECTOR, TYPES, elements_of_text, field_of, is_array
from upriver.doors.query_grammar import TABLE_FUNCTIONS
from upriver.protocol.lookups import ViewRoute

SERVER_VERSION, SERVER_VERSION_NUMBER = "15.0", "150000"
"""The version whose catalog this resembles."""
DATABASE, OWNER = "upriver", "upriver"
PG_CATALOG, PUBLIC, INFORMATION_SCHEMA = 11, 2200, 13000
"""OIDs of the schemas."""
_OWNER_OID = 10
_OWN_OID_MIN = 16_384
"""OIDs below are PostgreSQL's own."""

_TYPES = {"oid": pa.uint32(), "int": pa.int32(), "text": pa.string(), "bool": pa.bool_(), "real": pa.float32()}
_TYPES |= {"ints": pa.list_(pa.int32()), "texts": pa.list_(pa.string()), "int2s": INT2_VECTOR, "oids": OID_VECTOR}
_DEFAULTS: Mapping[str, Any] = {"oid": 0, "int": 0, "bool": False, "real": 0.0}

SETTINGS: Mapping[str, str] = {
    "server_version": SERVER_VERSION,
    "server_version_num": SERVER_VERSION_NUMBER,
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "transaction_isolation": "repeatable read",
    "default_transaction_isolation": "repeatable read",
    "transaction_read_only": "on",
    "default_transaction_read_only": "on",
    "search_path": '"$user", public',
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "is_superuser": "off",
    "session_authorization": OWNER,
    "application_name": "",
    "extra_float_digits": "1",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "lc_collate": "C.UTF-8",
    "lc_ctype": "C.UTF-8",
    "statement_timeout": "0",
    "bytea_output": "hex",
}
"""What SHOW and current_setting tell, unless a session has set it."""


def oid_of(name: str) -> int:
    """The OID of a view, or of its index: the same at each start."""
    return _OWN_OID_MIN + zlib.crc32(name.encode()) % (1 << 30)


def index_of(view: str) -> str:
    """The name of the index that stands for a view's key."""
    return f"{view}_key"


def _row(table: str, **values: Any) -> dict[str, Any]:
    """A row with the usual value in all other columns."""
    row = {name: _DEFAULTS.get(type) for name, type in _columns(table)}
    return row | values


def _columns(table: str) -> list[tuple[str, str]]:
    return [(name, type or "text") for name, _, type in (each.partition(":") for each in COLUMNS[table].split())]


_Views = Mapping[str, ViewRoute]


def _namespaces(views: _Views) -> Iterator[dict[str, Any]]:
    for oid, name in ((PG_CATALOG, "pg_catalog"), (PUBLIC, "public"), (INFORMATION_SCHEMA, "information_schema")):
        yield _row("pg_namespace", oid=oid, nspname=name, nspowner=_OWNER_OID)


def _classes(views: _Views) -> Iterator[dict[str, Any]]:
    usual = {"relnamespace": PUBLIC, "relowner": _OWNER_OID, "relpersistence": "p", "relreplident": "n"}
    usual |= {"relispopulated": True, "reltuples": -1.0}
    for name, route in views.items():
        columns = len(route.schema)
        known = {"relkind": "m", "relnatts": columns, "relhasindex": bool(route.key), "relam": 2}
        yield _row("pg_class", oid=oid_of(name), relname=name, **usual, **known)
        if route.key:
            index = index_of(name)
            known = {"relkind": "i", "relnatts": len(route.key), "relam": 405}
            yield _row("pg_class", oid=oid_of(index), relname=index, **usual, **known)
    yield _row("pg_class", oid=1259, relname="pg_class", **usual | {"relnamespace": PG_CATALOG, "relkind": "r"})


def _attributes(views: _Views) -> Iterator[dict[str, Any]]:
    for name, route in views.items():
        for relation, fields in (
            (name, list(route.schema)),
            (index_of(name), [route.schema.field(k) for k in route.key]),
        ):
            for number, field in enumerate(fields, start=1):
                shown = field_of(field)
                yield _row(
                    "pg_attribute",
                    attrelid=oid_of(relation),
                    attname=field.name,
                    atttypid=shown.oid,
                    attlen=shown.size,
                    attnum=number,
                    attndims=int(is_array(field.type)),
                    atttypmod=shown.modifier,
                    attstattarget=-1,
                    attislocal=True,
                    attidentity="",
                    attgenerated="",
                    attcompression="",
                    attstorage="x" if shown.size < 0 else "p",
                    attalign="i",
                )


def _types(views: _Views) -> Iterator[dict[str, Any]]:
    usual = {"typnamespace": PG_CATALOG, "typowner": _OWNER_OID, "typtype": "b", "typisdefined": True, "typdelim": ","}
    usual |= {"typtypmod": -1, "typalign": "i", "typstorage": "p"}
    for type in TYPES:
        known = {"typname": type.name, "typlen": type.size, "typcategory": type.category, "typarray": type.array}
        functions = _type_functions(f"{type.name}_" if type.name in _UNDERSCORED else type.name)
        yield _row("pg_type", oid=type.oid, **usual, **known, **functions)
        if type.array:
            known = {"typname": f"_{type.name}", "typlen": -1, "typcategory": "A", "typelem": type.oid}
            functions = _type_functions("array_")
            yield _row("pg_type", oid=type.array, **usual, **known, **functions, typsubscript="array_subscript_handler")


_UNDERSCORED = ("numeric", "date", "time", "timestamp", "timestamptz", "interval", "json", "jsonb", "uuid")
"""Types whose functions have an underscore in their names."""


def _type_functions(stem: str) -> dict[str, str]:
    return {"typinput": f"{stem}in", "typoutput": f"{stem}out", "typreceive": f"{stem}recv", "typsend": f"{stem}send"}


def _functions(views: _Views) -> Iterator[dict[str, Any]]:
    """Those that types have: clients tell arrays by theirs."""
    names = {
        name: None for row in _types(views) for column, name in row.items() if column in _FUNCTION_COLUMNS and name
    }
    known = {"pronamespace": PG_CATALOG, "proowner": _OWNER_OID, "prokind": "f", "provolatile": "i", "pronargs": 1}
    for number, name in enumerate(names, start=1):
        yield _row("pg_proc", oid=number, proname=name, prosrc=name, proisstrict=True, **known)


def _index_text(view: str, route: ViewRoute) -> str:
    columns = ", ".join(_identifier(name) for name in route.key)
    return f"CREATE INDEX {_identifier(index_of(view))} ON public.{_identifier(view)} USING hash ({columns})"


def _identifier(name: str) -> str:
    is_plain = name.isascii() and name.islower() and name.isidentifier()
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def _indexes(views: _Views) -> Iterator[dict[str, Any]]:
    for name, route in views.items():
        if route.key:
            numbers = [route.schema.names.index(column) + 1 for column in route.key]
            known = {"indnatts": len(numbers), "indnkeyatts": len(numbers), "indkey": numbers}
            zeros = [0] * len(numbers)
            known |= {"indoption": zeros, "indclass": zeros, "indcollation": zeros, "indimmediate": True}
            known |= {"indisvalid": True, "indisready": True, "indislive": True, "indexdef": _index_text(name, route)}
            yield _row("pg_index", indexrelid=oid_of(index_of(name)), indrelid=oid_of(name), **known)


def _databases(views: _Views) -> Iterator[dict[str, Any]]:
    known = {"datname": DATABASE, "datdba": _OWNER_OID, "encoding": 6, "datallowconn": True, "datconnlimit": -1}
    yield _row("pg_database", oid=5, **known, datcollate="C.UTF-8", datctype="C.UTF-8", datlocprovider="c")


def _roles(views: _Views) -> Iterator[dict[str, Any]]:
    yield _row("pg_roles", oid=_OWNER_OID, rolname=OWNER, rolinherit=True, rolcanlogin=True, rolconnlimit=-1)


def _users(views: _Views) -> Iterator[dict[str, Any]]:
    yield _row("pg_user", usename=OWNER, usesysid=_OWNER_OID)


def _keywords(views: _Views) -> Iterator[dict[str, Any]]:
    kinds = (
        ("R", "reserved", RESERVED),
        ("T", "reserved (can be function or type name)", RESERVED_BUT_FUNCTIONS),
        ("C", "unreserved (cannot be function or type name)", COLUMN_NAMES),
    )
    for code, meaning, words in kinds:
        for word in words.split():
            known = {"catcode": code, "catdesc": meaning, "barelabel": False, "baredesc": "requires AS"}
            yield _row("pg_get_keywords", word=word, **known)


def _access_methods(views: _Views) -> Iterator[dict[str, Any]]:
    yield _row("pg_am", oid=2, amname="heap", amtype="t")
    yield _row("pg_am", oid=405, amname="hash", amtype="i")


def _settings(views: _Views) -> Iterator[dict[str, Any]]:
    for name, value in SETTINGS.items():
        yield _row("pg_settings", name=name, setting=value, vartype="string", context="internal", source="default")


def _matviews(views: _Views) -> Iterator[dict[str, Any]]:
    for name, route in views.items():
        known = {"matviewname": name, "matviewowner": OWNER, "hasindexes": bool(route.key), "ispopulated": True}
        yield _row("pg_matviews", schemaname="public", **known)


def _index_list(views: _Views) -> Iterator[dict[str, Any]]:
    for name, route in views.items():
        if route.key:
            known = {"tablename": name, "indexname": index_of(name), "indexdef": _index_text(name, route)}
            yield _row("pg_indexes", schemaname="public", **known)


def _schemata(views: _Views) -> Iterator[dict[str, Any]]:
    for name in ("pg_catalog", "public", "information_schema"):
        yield _row("information_schema.schemata", catalog_name=DATABASE, schema_name=name, schema_owner=OWNER)


def _tables(views: _Views) -> Iterator[dict[str, Any]]:
    for name in views:
        known = {"table_type": "VIEW", "is_insertable_into": "NO", "is_typed": "NO"}
        yield _row("information_schema.tables", **_in_public(name), **known)


def _views(views: _Views) -> Iterator[dict[str, Any]]:
    for name in views:
        yield _row("information_schema.views", **_in_public(name), check_option="NONE", is_updatable="NO")


def _in_public(view: str) -> dict[str, str]:
    return {"table_catalog": DATABASE, "table_schema": "public", "table_name": view}


def _information_columns(views: _Views) -> Iterator[dict[str, Any]]:
    by_oid = {type.oid: type for type in TYPES}
    for name, route in views.items():
        for number, field in enumerate(route.schema, start=1):
            type = by_oid.get(field_of(field).oid)
            known: dict[str, Any] = {"column_name": field.name, "ordinal_position": number, "is_nullable": "YES"}
            known |= {"data_type": "ARRAY" if type is None else type.shown, "is_updatable": "NO", "is_identity": "NO"}
            known |= {"udt_catalog": DATABASE, "udt_schema": "pg_catalog", "is_generated": "NEVER"}
            known["udt_name"] = f"_{_element_name(field)}" if type is None else type.name
            empty = dict.fromkeys(("character_maximum_length", "character_octet_length", "datetime_precision"))
            is_decimal = pa.types.is_decimal(field.type)
            empty |= {"numeric_precision": field.type.precision if is_decimal else None}
            empty |= {"numeric_scale": field.type.scale if is_decimal else None, "numeric_precision_radix": None}
            yield _row("information_schema.columns", **_in_public(name), **known, **empty)


def _element_name(field: pa.Field) -> str:
    array = field_of(field).oid
    return next(type.name for type in TYPES if type.array == array)


_ROWS: Mapping[str, Callable[[_Views], Iterator[dict[str, Any]]]] = {
    "pg_namespace": _namespaces,
    "pg_class": _classes,
    "pg_attribute": _attributes,
    "pg_type": _types,
    "pg_proc": _functions,
    "pg_index": _indexes,
    "pg_database": _databases,
    "pg_roles": _roles,
    "pg_user": _users,
    "pg_get_keywords": _keywords,
    "pg_am": _access_methods,
    **dict.fromkeys(("pg_settings", "pg_show_all_settings"), _settings),
    "pg_matviews": _matviews,
    "pg_indexes": _index_list,
    "information_schema.schemata": _schemata,
    "information_schema.tables": _tables,
    "information_schema.views": _views,
    "information_schema.columns": _information_columns,
}


def catalog_table(name: str, views: _Views, definitions: Callable[[], Mapping[str, str]]) -> pa.Table:
    """A table of the catalog, as of now. name: one of ``CATALOG_NAMES``. definitions: gives the SQL of the views."""
    schema = pa.schema([(column, _TYPES[type]) for column, type in _columns(name)])
    rows = list(_ROWS[name](views)) if name in _ROWS else []
    if name in _DEFINITION_COLUMNS:
        named, column = _DEFINITION_COLUMNS[name]
        sql = definitions()
        rows = [{**row, column: sql.get(row[named])} for row in rows]
    return pa.Table.from_pylist(rows, schema)


def column_types(tables: Iterable[pa.Table]) -> dict[str, str]:
    """DuckDB's types of the plain columns of tables of the catalog, by name."""
    return {
        field.name: _DUCK_TYPES[field.type] for table in tables for field in table.schema if field.type in _DUCK_TYPES
    }


_DUCK_TYPES = {pa.uint32(): "UINTEGER", pa.int32(): "INTEGER", pa.string(): "VARCHAR", pa.bool_(): "BOOLEAN"}
_DEFINITION_COLUMNS: Mapping[str, tuple[str, str]] = {
    "pg_matviews": ("matviewname", "definition"),
    "information_schema.views": ("table_name", "view_definition"),
}
"""By table: its column that names the view, and the one that has the view's SQL."""


CATALOG_NAMES = frozenset(COLUMNS)
_SCHEMAS = ("pg_catalog", "information_schema")

# Queries of the catalog

_KEYWORDS_LISTED = ", ".join(f"'{word}'" for word in f"{RESERVED} {RESERVED_BUT_FUNCTIONS} {COLUMN_NAMES}".split())
_VISIBLE = (
    *("table", "type", "function", "operator", "opclass", "opfamily", "collation", "conversion", "statistics_obj"),
    *("ts_config", "ts_dict", "ts_parser", "ts_template"),
)
"""Kinds of objects that pg_..._is_visible asks of."""
_PRIVILEGES = (
    *("table", "schema", "database", "function", "language", "sequence", "server", "tablespace", "type"),
    *("foreign_data_wrapper", "parameter"),
)
"""Kinds of objects that has_..._privilege asks of."""
_ADVISORY = ("lock", "lock_shared", "xact_lock", "xact_lock_shared")
"""Kinds of locks that an application takes; nothing here waits for one."""
_MACROS = (
    "pg_get_userbyid(a) AS 'upriver'",
    "pg_get_expr(a, b) AS NULL::VARCHAR, (a, b, c) AS NULL::VARCHAR",
    "pg_get_constraintdef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_ruledef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_triggerdef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_statisticsobjdef_columns(a) AS NULL::VARCHAR",
    "pg_get_partkeydef(a) AS NULL::VARCHAR",
    "pg_get_function_result(a) AS NULL::VARCHAR",
    "pg_get_function_arguments(a) AS NULL::VARCHAR",
    "pg_get_function_identity_arguments(a) AS NULL::VARCHAR",
    "pg_get_serial_sequence(a, b) AS NULL::VARCHAR",
    "pg_relation_is_publishable(a) AS false",
    "obj_description(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "col_description(a, b) AS NULL::VARCHAR",
    "shobj_description(a, b) AS NULL::VARCHAR",
    "pg_encoding_to_char(a) AS 'UTF8'",
    "has_column_privilege(a, b, c) AS true, (a, b, c, d) AS true",
    "has_any_column_privilege(a, b) AS true, (a, b, c) AS true",
    "pg_has_role(a, b) AS true, (a, b, c) AS true",
    "pg_relation_size(a) AS 0::BIGINT, (a, b) AS 0::BIGINT",
    "pg_table_size(a) AS 0::BIGINT",
    "pg_total_relation_size(a) AS 0::BIGINT",
    "pg_database_size(a) AS 0::BIGINT",
    "pg_size_pretty(a) AS a::VARCHAR || ' bytes'",
    "pg_tablespace_location(a) AS ''",
    "pg_backend_pid() AS 0",
    "pg_is_in_recovery() AS false",
    "pg_my_temp_schema() AS 0",
    "pg_is_other_temp_schema(a) AS false",
    "pg_postmaster_start_time() AS NULL::TIMESTAMPTZ",
    "txid_current() AS 0::BIGINT",
    "inet_server_addr() AS NULL::VARCHAR",
    "inet_server_port() AS NULL::INTEGER",
    "inet_client_addr() AS NULL::VARCHAR",
    "set_config(a, b, c) AS b",
    f"quote_ident(a) AS CASE WHEN regexp_full_match(a, '[a-z_][a-z0-9_$]*') AND a NOT IN ({_KEYWORDS_LISTED}) THEN a "
    """ELSE '"' || replace(a, '"', '""') || '"' END""",
    "quote_literal(a) AS '''' || replace(a::VARCHAR, '''', '''''') || ''''",
    """parse_ident(a) AS list_transform(regexp_extract_all(a, '"(?:[^"]|"")*"|[^.]+'), """
    """lambda x: CASE WHEN x[1] = '"' THEN replace(x[2:-2], '""', '"') ELSE lower(trim(x)) END)""",
    "pg_get_function_sqlbody(a) AS NULL::VARCHAR",
    "pg_get_function_arg_default(a, b) AS NULL::VARCHAR",
    "pg_get_functiondef(a) AS NULL::VARCHAR",
    "pg_get_partition_constraintdef(a) AS NULL::VARCHAR",
    "pg_get_statisticsobjdef(a) AS NULL::VARCHAR",
    "pg_get_statisticsobjdef_expressions(a) AS NULL::VARCHAR[]",
    "pg_get_replica_identity_index(a) AS NULL::BIGINT",
    "pg_char_to_encoding(a) AS CASE WHEN upper(a) IN ('UTF8', 'UTF-8') THEN 6 ELSE -1 END",
    "pg_client_encoding() AS 'UTF8'",
    "getdatabaseencoding() AS 'UTF8'",
    "pg_partition_ancestors(a) AS a::BIGINT",
    "pg_stat_get_numscans(a) AS 0::BIGINT",
    "pg_indexes_size(a) AS 0::BIGINT",
    "pg_tablespace_size(a) AS 0::BIGINT",
    "pg_describe_object(a, b, c) AS NULL::VARCHAR",
    "pg_blocking_pids(a) AS []::INTEGER[]",
    "pg_conf_load_time() AS NULL::TIMESTAMPTZ",
    "pg_last_xact_replay_timestamp() AS NULL::TIMESTAMPTZ",
    "pg_is_wal_replay_paused() AS false",
    "pg_cancel_backend(a) AS false",
    "pg_terminate_backend(a) AS false",
    "txid_current_if_assigned() AS NULL::BIGINT",
    "acldefault(a, b) AS NULL::VARCHAR[]",
    "aclexplode(a) AS unnest([]::STRUCT(grantor BIGINT, grantee BIGINT, privilege_type VARCHAR, is_grantable BOOL)[])",
    "mxid_age(a) AS CASE WHEN a IS NOT NULL THEN 0 END",
    *(f"{name}() AS 1::BIGINT" for name in ("pg_current_xact_id", "txid_snapshot_xmin", "txid_snapshot_xmax")),
    *(f"{name}() AS '1:1:'" for name in ("pg_current_snapshot", "txid_current_snapshot")),
    "pg_current_xact_id_if_assigned() AS NULL::BIGINT",
    *(f"{name}(a) AS 'committed'" for name in ("pg_xact_status", "txid_status")),
    *(f"pg_try_advisory_{kind}(a) AS true, (a, b) AS true" for kind in _ADVISORY),
    *(f"pg_advisory_{kind}(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR" for kind in _ADVISORY),
    *(f"pg_advisory_{kind}(a) AS true, (a, b) AS true" for kind in ("unlock", "unlock_shared")),
    "pg_advisory_unlock_all() AS NULL::VARCHAR",
    "pg_column_is_updatable(a, b, c) AS false",
    "pg_relation_is_updatable(a, b) AS 0",
    "pg_column_size(a) AS 0",
    "pg_column_compression(a) AS NULL::VARCHAR",
    "pg_index_column_has_property(a, b, c) AS false",
    *(f"{name}(a, b) AS false" for name in ("pg_index_has_property", "pg_indexam_has_property")),
    *(f"pg_stat_get_{kind}(a) AS 0::BIGINT" for kind in ("live_tuples", "dead_tuples", "db_numbackends")),
    "pg_relation_filenode(a) AS 0::BIGINT",
    *(f"{name}(a) AS NULL::VARCHAR" for name in ("pg_relation_filepath", "oidvectortypes", "to_regproc")),
    *(f"{name}(a) AS NULL::VARCHAR" for name in ("to_regprocedure", "to_regoper", "to_regoperator", "to_regcollation")),
    "pg_sequence_last_value(a) AS NULL::BIGINT",
    f"to_regnamespace(a) AS CASE lower(a) WHEN 'public' THEN {PUBLIC} WHEN 'pg_catalog' THEN {PG_CATALOG} "
    f"WHEN 'information_schema' THEN {INFORMATION_SCHEMA} END",
    f"to_regrole(a) AS CASE lower(a) WHEN '{OWNER}' THEN {_OWNER_OID} END",
    "row_security_active(a) AS false",
    "pg_jit_available() AS false",
    *(f"{name}() AS NULL::VARCHAR" for name in ("pg_current_wal_lsn", "pg_last_wal_receive_lsn", "current_query")),
    *(f"{name}() AS NULL::VARCHAR" for name in ("pg_last_wal_replay_lsn", "pg_current_logfile")),
    "inet_client_port() AS NULL::INTEGER",
    "quote_nullable(a) AS coalesce(chr(39) || replace(a::VARCHAR, chr(39), chr(39) || chr(39)) || chr(39), 'NULL')",
    "clock_timestamp() AS now()",
    "statement_timestamp() AS now()",
    *(f"pg_{kind}_is_visible(a) AS true" for kind in _VISIBLE),
    *(f"has_{kind}_privilege(a, b) AS true, (a, b, c) AS true" for kind in _PRIVILEGES),
    "_pg_expandarray(a) AS unnest([{'x': a[i], 'n': i} for i in range(1, len(a) + 1)])",
    "array_remove(a, b) AS list_filter(a, lambda x: x IS DISTINCT FROM b)",
    "array_upper(a, b) AS nullif(len(a), 0)",
    "array_lower(a, b) AS CASE WHEN len(a) > 0 THEN 1 END",
    "current_schema() AS 'public'",
    "current_schemas(a) AS CASE WHEN a THEN ['pg_catalog', 'public'] ELSE ['public'] END",
    f"current_database() AS '{DATABASE}'",
    f"current_user() AS '{OWNER}'",
    f"version() AS 'PostgreSQL {SERVER_VERSION} (Upriver)'",
)


def _format_type() -> str:
    """The macro that names a type by its OID."""
    numeric = "((b - 4) >> 16)::VARCHAR || ',' || ((b - 4) & 65535)::VARCHAR"
    numeric = f"WHEN 1700 THEN CASE WHEN b IS NULL OR b < 4 THEN 'numeric' ELSE 'numeric(' || {numeric} || ')' END"
    names = " ".join(f"WHEN {type.oid} THEN '{type.shown}'" for type in TYPES if type.name != "numeric")
    arrays = " ".join(f"WHEN {type.array} THEN '{type.shown}[]'" for type in TYPES if type.array)
    others = "WHEN 0 THEN '-' ELSE CASE WHEN a > 0 THEN '???' END"
    return f"format_type(a, b) AS CASE a {numeric} {names} {arrays} {others} END"


def _to_regtype() -> str:
    """The macro that gives a type's OID by its name."""
    names = " ".join(f"WHEN '{name}' THEN {oid}" for name, oid in _TYPE_OIDS.items())
    return f"to_regtype(a) AS CASE lower(a::VARCHAR) {names} END"


_TYPE_OIDS: Mapping[str, int] = {
    **{f"{type.shown}[]": type.array for type in TYPES if type.array},
    **{f"{type.name}[]": type.array for type in TYPES if type.array},
    **{type.shown: type.oid for type in TYPES},
    **{type.name: type.oid for type in TYPES},
}
"""OIDs by both names that a type has."""


def _current_setting() -> str:
    values = " ".join(f"WHEN '{name.lower()}' THEN '{value}'" for name, value in SETTINGS.items())
    chosen = f"CASE lower(a) {values} ELSE '' END"
    return f"current_setting(a) AS {chosen}, (a, b) AS {chosen}"


def _pg_typeof() -> str:
    """The macro that names the type of a value."""
    names = " ".join(f"WHEN '{type.duck}' THEN '{type.shown}'" for type in TYPES[:15] if "(" not in type.duck)
    times = "WHEN 'TIMESTAMP WITH TIME ZONE' THEN 'timestamp with time zone'"
    return f"""pg_typeof(a) AS CASE typeof(a) {names} {times} WHEN '"NULL"' THEN 'unknown' ELSE lower(typeof(a)) END"""


_DEFINED = (*_MACROS, _format_type(), _to_regtype(), _current_setting(), _pg_typeof())
PREFIX = "postgres_"
"""Of the macros' names, which DuckDB may have, too, with another meaning."""
MACROS = tuple(f"CREATE MACRO {PREFIX}{macro[: macro.index('(')]}{macro[macro.index('(') :]}" for macro in _DEFINED)
"""Statements of DuckDB that define them."""
_NAMES = frozenset(macro[: macro.index("(")] for macro in _DEFINED)
_WORDS: Mapping[type[exp.Expr], str] = {
    exp.CurrentSchema: "current_schema",
    exp.CurrentDatabase: "current_database",
    exp.CurrentCatalog: "current_database",
    exp.CurrentUser: "current_user",
    exp.SessionUser: "current_user",
    exp.CurrentVersion: "version",
}
_USERS = ("user", "current_role")
"""Words for the user that look like columns."""
_RENAMED: Mapping[str, str] = {
    **dict.fromkeys(("json_build_object", "jsonb_build_object"), "json_object"),
    **dict.fromkeys(("json_build_array", "jsonb_build_array"), "json_array"),
    **dict.fromkeys(("json_agg", "jsonb_agg"), "json_group_array"),
    **dict.fromkeys(("json_object_agg", "jsonb_object_agg"), "json_group_object"),
    "to_jsonb": "to_json",
    "every": "bool_and",
    "date_bin": "time_bucket",
}
"""DuckDB's names of PostgreSQL's functions."""
_SYSTEM_COLUMNS = frozenset(("tableoid", "xmin", "xmax", "cmin", "cmax", "ctid"))
"""Columns that every table of PostgreSQL has, and that no star shows."""
_LIST_COLUMNS = frozenset(
    name for table in COLUMNS for name, type in _columns(table) if type in ("texts", "ints", "int2s", "oids")
)
"""Columns of the catalog that are arrays."""
_VECTOR_COLUMNS = frozenset(name for table in COLUMNS for name, type in _columns(table) if type in ("int2s", "oids"))
"""Those of them that are vectors, whose elements PostgreSQL counts from 0."""
_NAMED_TYPES = {
    **dict.fromkeys(("text", "name", "char", "varchar", "bpchar"), "VARCHAR"),
    "oid": "UINTEGER",
    **dict.fromkeys(("xid", "xid8", "cid"), "BIGINT"),
    **dict.fromkeys(("aclitem", "inet", "cidr", "pg_lsn", "xml", "citext"), "VARCHAR"),
    "int4": "INTEGER",
    "int8": "BIGINT",
    "int2": "SMALLINT",
    "bool": "BOOLEAN",
    "json": "VARCHAR",
    **dict.fromkeys(("jsonb", "cardinal_number", "sql_identifier", "character_data", "yes_or_no"), "VARCHAR"),
}
"""DuckDB's types for the catalog's own."""


def adapted(
    tree: exp.Expr, views: _Views, definitions: Callable[[], Mapping[str, str]]
) -> tuple[exp.Expr, dict[str, pa.Table]]:
    """The query as DuckDB can evaluate it, and the tables of the catalog that it reads, by the names there.
    definitions: gives the SQL of the views, if a table has it."""
    for node in reversed(list(tree.walk())):  # what is inside comes first
        if (new := _adapted_node(node, views)) is not node:
            tree = new if node is tree else tree
            node.replace(new)
    tree = with_column_names(tree)
    tables: dict[str, pa.Table] = {}
    for table in tree.find_all(exp.Table):
        schema, name = table.db.lower(), table.name.lower()
        if not isinstance(table.this, exp.Identifier):
            name = _function_name(table)
            if name not in CATALOG_NAMES:
                _name_values(table, name)
                continue
        full = f"information_schema.{name}" if schema == "information_schema" else name
        if full not in CATALOG_NAMES or schema not in ("", "pg_catalog", "information_schema"):
            continue
        if not schema and any(name == view.lower() for view in views):
            continue
        own = PREFIX + full.replace(".", "_")
        tables[own] = catalog_table(full, views, definitions)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
        table.set("this", exp.to_identifier(own))
        table.set("db", None)
        table.set("catalog", None)
    return tree, tables


def _function_name(table: exp.Table) -> str:
    call = table.this
    name = call.name if isinstance(call, exp.Anonymous) else call.sql_name() if isinstance(call, exp.Func) else ""
    return str(name).lower().removeprefix(PREFIX)


def _name_values(table: exp.Table, name: str) -> None:
    """Of a function in FROM: PostgreSQL calls its only column as it calls the table. A function that gives no rows, but
    a value, is a row there."""
    table.set("db", None)
    alias = table.args.get("alias")
    is_unknown = isinstance(table.this, exp.Anonymous) and not table.this.name.startswith(PREFIX)
    if name not in _ROW_FUNCTIONS and not is_unknown and not name.startswith("read_"):
        title = exp.to_identifier(alias.this.name if alias is not None and alias.this else name)
        value = exp.select(exp.alias_(table.this.copy(), title.copy()))
        named = exp.TableAlias(this=title, columns=alias.columns if alias is not None else [])
        table.replace(exp.Subquery(this=value, alias=named))
    elif alias is not None and not alias.columns:
        alias.set("columns", [alias.this.copy()])


_ROW_FUNCTIONS = (*TABLE_FUNCTIONS, "generate_subscripts", "explodinggenerateseries", "generateseries", "")
"""Functions that give rows, by the names that sqlglot has, too."""


def _adapted_node(node: exp.Expr, views: _Views) -> exp.Expr:
    above = node.parent
    if isinstance(node, exp.Dot) and isinstance(node.this, exp.Identifier) and node.this.name.lower() in _SCHEMAS:
        node = node.expression
    node = own_function(node, above, PREFIX)
    if isinstance(node, exp.Operator):
        return _operator(node)
    if isinstance(node, exp.Collate):
        inner: exp.Expr = node.this
        return inner
    if isinstance(node, exp.Cast):
        return _cast(node, views)
    if isinstance(node, exp.Anonymous) and node.name.lower() == "to_regclass" and node.expressions:
        known = _cast(exp.cast(node.expressions[0], "regclass", dialect="postgres"), views)
        return exp.Nullif(this=known, expression=exp.Literal.number(0))
    if isinstance(node, exp.Anonymous):
        return _call(node)
    if isinstance(node, exp.Column) and not node.table and node.name.lower() in _USERS and not node.this.quoted:
        return _macro("current_user")
    if isinstance(node, exp.Column) and node.name.lower() in _SYSTEM_COLUMNS and not _is_of_view(node, views):
        hidden = exp.cast(exp.Literal.number(0), "BIGINT")
        return exp.alias_(hidden, node.name) if isinstance(node.parent, exp.Select) else hidden
    if isinstance(node, exp.Bracket) and node.this.name.lower() in _VECTOR_COLUMNS and len(node.expressions) == 1:
        return exp.Bracket(this=node.this, expressions=[counted_from_one(node.expressions[0])])
    if isinstance(node, exp.EQ | exp.NEQ | exp.GT) and (compared := _function_compared(node)) is not None:
        return compared
    if isinstance(node, exp.Any | exp.All) and (elements := _elements(node.this.unnest())) is not None:
        return type(node)(this=exp.Paren(this=elements))
    if isinstance(node, exp.Coalesce) and node.this.name.lower() in _LIST_COLUMNS:
        return exp.Coalesce(this=node.this, expressions=[_elements(each) or each for each in node.expressions])
    if isinstance(node, exp.JSONArrayAgg):
        return exp.Anonymous(this="json_group_array", expressions=[node.this])
    if isinstance(node, exp.ArraySize) and node.args.get("expression") is not None:
        return _macro("array_upper", [node.this, node.expression])
    if isinstance(node, exp.CurrentSchemas):
        return _macro("current_schemas", [node.this or exp.true()])
    if (word := _WORDS.get(type(node))) is not None:
        return _macro(word)
    return node


_FUNCTION_COLUMNS = frozenset(
    ("typinput", "typoutput", "typreceive", "typsend", "typmodin", "typmodout", "typanalyze", "typsubscript")
)
"""Columns of the catalog that name a function, which is a number in a comparison."""


def _function_compared(node: exp.Binary) -> exp.Expr | None:
    """``typreceive <> 0``: whether there is such a function; ``pg_proc.oid = typreceive``: whether it is that of this
    name. ``None`` for another comparison."""
    column, number = node.this, node.expression
    if isinstance(number, exp.Column) and number.name.lower() in _FUNCTION_COLUMNS:
        column, number = number, column
    if not isinstance(column, exp.Column) or column.name.lower() not in _FUNCTION_COLUMNS:
        return None
    if isinstance(number, exp.Column) and number.name.lower() == "oid":
        named = exp.column("proname", table=number.args.get("table"))
        return type(node)(this=named, expression=column)
    if not isinstance(number, exp.Literal) or number.name != "0":
        return None
    is_missing = exp.Is(this=column, expression=exp.Null())
    return exp.Paren(this=is_missing if isinstance(node, exp.EQ) else exp.Not(this=is_missing))


def _is_of_view(column: exp.Column, views: _Views) -> bool:
    return any(column.name.lower() in map(str.lower, route.schema.names) for route in views.values())


def _elements(value: exp.Expr) -> exp.Expr | None:
    """The array that a text such as ``'{a,NULL}'`` is; ``None`` for another value."""
    if not isinstance(value, exp.Literal) or not value.is_string or not value.name.startswith("{"):
        return None
    try:
        texts = elements_of_text(value.name)
    except ValueError:
        return None
    is_whole = all(text is None or re.fullmatch(r"-?\d{1,18}", text) for text in texts)
    literal = exp.Literal.number if is_whole else exp.Literal.string
    return exp.Array(expressions=[exp.Null() if text is None else literal(text) for text in texts])


def _macro(name: str, arguments: Sequence[exp.Expr] = ()) -> exp.Anonymous:
    return exp.Anonymous(this=PREFIX + name, expressions=list(arguments))


def _call(node: exp.Anonymous) -> exp.Expr:
    name = node.name.lower()
    if name == "pg_get_indexdef" and node.expressions:
        return _index_definition(*node.expressions[:2])
    if name == "pg_get_viewdef" and node.expressions:
        return _view_definition(node.expressions[0])
    if name in _RENAMED:
        return exp.Anonymous(this=_RENAMED[name], expressions=node.expressions)
    return _macro(name, node.expressions) if name in _NAMES else node


def _inner(table: str, *columns: str) -> exp.Subquery:
    """Columns of a catalog table, renamed, so that no column of the query around is taken for one of them."""
    named = [exp.alias_(exp.column(column), f"upriver_{column}") for column in columns]
    return exp.select(*named).from_(table).subquery("upriver_inner")


def _equal(column: str, value: exp.Expr) -> exp.Expr:
    return exp.EQ(this=exp.cast(exp.column(column), "VARCHAR"), expression=exp.cast(value.copy(), "VARCHAR"))


def _name_of_relation(oid: exp.Expr) -> exp.Subquery:
    found = exp.select("max(upriver_relname)").from_(_inner("pg_class", "oid", "relname"))
    return exp.Subquery(this=found.where(_equal("upriver_oid", oid)))


def _view_definition(view: exp.Expr) -> exp.Expr:
    """The SQL of a view, by its OID or its name."""
    found = exp.select("max(upriver_definition)").from_(_inner("pg_matviews", "matviewname", "definition"))
    is_it = [_equal("upriver_matviewname", each) for each in (_name_of_relation(view), view)]
    return exp.Subquery(this=found.where(exp.or_(*is_it)))


def _index_definition(index: exp.Expr, column: exp.Expr | None = None) -> exp.Expr:
    """The text of an index, or the name of one of its columns."""
    texts = exp.select("max(upriver_indexdef)").from_(_inner("pg_index", "indexrelid", "indexdef"))
    whole = exp.Subquery(this=texts.where(_equal("upriver_indexrelid", index)))
    if column is None:
        return whole
    names = exp.select("max(upriver_attname)").from_(_inner("pg_attribute", "attrelid", "attnum", "attname"))
    names = names.where(_equal("upriver_attrelid", index)).where(_equal("upriver_attnum", column))
    is_whole = exp.EQ(this=column.copy(), expression=exp.Literal.number(0))
    return exp.Case(ifs=[exp.If(this=is_whole, true=whole)], default=exp.Subquery(this=names))


_OPERATORS: Mapping[str, type[exp.Binary]] = {"=": exp.EQ, "<>": exp.NEQ, "+": exp.Add, "~~": exp.Like}


def _operator(node: exp.Operator) -> exp.Expr:
    """``a OPERATOR(pg_catalog.~) b``."""
    symbol = str(node.args.get("operator")).rpartition(".")[2]
    left, right = node.this, node.expression
    if symbol in ("~", "!~"):
        right = right.this if isinstance(right, exp.Collate) else right
        found = exp.RegexpLike(this=left, expression=right)
        return exp.Not(this=found) if symbol == "!~" else found
    return _OPERATORS[symbol](this=left, expression=right) if symbol in _OPERATORS else node


def _relation_reference(value: exp.Expr, views: _Views) -> exp.Expr:
    """The OID of a relation by its name, and the name by its OID."""
    is_text = isinstance(value, exp.Parameter | exp.Placeholder)
    while isinstance(value, exp.Paren | exp.Cast):
        is_text = is_text or (isinstance(value, exp.Cast) and value.to.is_type(*exp.DataType.TEXT_TYPES))
        value = value.this
    if isinstance(value, exp.Literal) and value.is_string:
        given = value.name.rpartition(".")[2].strip('"').lower()
        named = {each.lower(): oid_of(each) for view in views for each in (view, index_of(view))}
        return exp.Literal.number((named | {"pg_class": 1259}).get(given, 0))
    if not is_text:
        return _name_of_relation(value)
    text = exp.cast(value, "VARCHAR")
    bare = exp.func("replace", exp.func("replace", text, exp.Literal.string('"'), exp.Literal.string("")), *_NO_SCHEMA)
    found = exp.select("max(upriver_oid)").from_(_inner("pg_class", "oid", "relname"))
    is_named = exp.EQ(this=exp.func("lower", exp.column("upriver_relname")), expression=exp.func("lower", bare))
    return exp.Subquery(this=found.where(exp.or_(_equal("upriver_oid", text), is_named)))


_NO_SCHEMA = (exp.Literal.string("public."), exp.Literal.string(""))


def _type_reference(node: exp.Cast) -> exp.Expr:
    """The name of a type by its OID; of a literal the OID, unless it is compared with such a name."""
    if not isinstance(node.this, exp.Literal) or not node.this.is_string:
        return _macro("format_type", [node.this, exp.Null()])
    oid = _TYPE_OIDS.get(node.this.name.lower().removeprefix("pg_catalog."), 0)
    compared = node.parent.args.values() if isinstance(node.parent, exp.EQ | exp.NEQ) else ()
    if any(_is_type_name(each) for each in compared):
        return _macro("format_type", [exp.Literal.number(oid), exp.Null()])
    return exp.Literal.number(oid)


def _is_type_name(value: object) -> bool:
    """Whether it is the name of a type by its OID, or will be."""
    if isinstance(value, exp.Cast):
        return value.to.sql("postgres").lower() == "regtype" and not isinstance(value.this, exp.Literal)
    return isinstance(value, exp.Anonymous) and value.name == f"{PREFIX}format_type"


_HEXADECIMAL = re.compile(r"\\x(?:[0-9A-Fa-f]{2})*")
"""PostgreSQL's form of bytes."""


def _cast(node: exp.Cast, views: _Views) -> exp.Expr:
    """A cast to a type that only the catalog has."""
    full = node.to.sql("postgres").lower()
    name = full.removesuffix("[]").rpartition(".")[2].strip('"')
    if full.endswith("[]"):
        element = _NAMED_TYPES.get(name)
        to = node.to if element is None else exp.DataType.build(f"{element}[]", "duckdb")
        return exp.Cast(this=_elements(node.this) or node.this, to=to)
    if name == "regtype":
        return _type_reference(node)
    if name == "regclass":
        return _relation_reference(node.this, views)
    if full == "bytea" and isinstance(node.this, exp.Literal) and _HEXADECIMAL.fullmatch(node.this.name):
        return exp.Anonymous(this="unhex", expressions=[exp.Literal.string(node.this.name[2:])])
    if name in _NAMED_TYPES or name.startswith("reg"):  # regtype, regproc and the like are names
        return exp.Cast(this=node.this, to=exp.DataType.build(_NAMED_TYPES.get(name, "VARCHAR"), dialect="duckdb"))
    return node
