"""``pg_catalog`` and ``information_schema``, as far as clients ask for them, made from an app's views.

A view is a materialized view with an index of its key. A catalog's table is an Arrow table that is made when a query
reads it; many have no rows. Functions that only PostgreSQL has are macros of DuckDB, or are replaced in the query.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from upriver.doors.postgres.types import TYPES, field_of, is_array
from upriver.net.lookups import ViewRoute

SERVER_VERSION, SERVER_VERSION_NUMBER = "15.0", "150000"
"""The version whose catalog this resembles."""
DATABASE, OWNER = "upriver", "upriver"
PG_CATALOG, PUBLIC, INFORMATION_SCHEMA = 11, 2200, 13000
"""OIDs of the schemas."""
_OWNER_OID = 10
_OWN_OID_MIN = 16_384
"""OIDs below are PostgreSQL's own."""

_TYPES = {"oid": pa.int64(), "int": pa.int32(), "text": pa.string(), "bool": pa.bool_(), "real": pa.float32()}
_TYPES |= {"ints": pa.list_(pa.int32()), "texts": pa.list_(pa.string())}
_DEFAULTS: Mapping[str, Any] = {"oid": 0, "int": 0, "bool": False, "real": 0.0}

_COLUMNS = {
    "pg_namespace": "oid:oid nspname nspowner:oid nspacl:texts",
    "pg_class": "oid:oid relname relnamespace:oid reltype:oid reloftype:oid relowner:oid relam:oid relfilenode:oid "
    "reltablespace:oid relpages:int reltuples:real relallvisible:int reltoastrelid:oid relhasindex:bool "
    "relisshared:bool relpersistence relkind relnatts:int relchecks:int relhasrules:bool relhastriggers:bool "
    "relhassubclass:bool relrowsecurity:bool relforcerowsecurity:bool relispopulated:bool relreplident "
    "relispartition:bool relrewrite:oid relfrozenxid:oid relminmxid:oid relacl:texts reloptions:texts relpartbound "
    "relhasoids:bool",
    "pg_attribute": "attrelid:oid attname atttypid:oid attstattarget:int attlen:int attnum:int attndims:int "
    "attcacheoff:int atttypmod:int attbyval:bool attalign attstorage attcompression attnotnull:bool atthasdef:bool "
    "atthasmissing:bool attidentity attgenerated attisdropped:bool attislocal:bool attinhcount:int attcollation:oid "
    "attacl:texts attoptions:texts attfdwoptions:texts attmissingval",
    "pg_type": "oid:oid typname typnamespace:oid typowner:oid typlen:int typbyval:bool typtype typcategory "
    "typispreferred:bool typisdefined:bool typdelim typrelid:oid typsubscript typelem:oid typarray:oid typinput "
    "typoutput typreceive typsend typmodin typmodout typanalyze typalign typstorage typnotnull:bool typbasetype:oid "
    "typtypmod:int typndims:int typcollation:oid typdefaultbin typdefault typacl:texts",
    "pg_index": "indexrelid:oid indrelid:oid indnatts:int indnkeyatts:int indisunique:bool indnullsnotdistinct:bool "
    "indisprimary:bool indisexclusion:bool indimmediate:bool indisclustered:bool indisvalid:bool indcheckxmin:bool "
    "indisready:bool indislive:bool indisreplident:bool indkey:ints indcollation:ints indclass:ints indoption:ints "
    "indexprs indpred indexdef",
    "pg_database": "oid:oid datname datdba:oid encoding:int datlocprovider datistemplate:bool datallowconn:bool "
    "datconnlimit:int datfrozenxid:oid datminmxid:oid dattablespace:oid datcollate datctype daticulocale datacl:texts",
    "pg_roles": "oid:oid rolname rolsuper:bool rolinherit:bool rolcreaterole:bool rolcreatedb:bool rolcanlogin:bool "
    "rolreplication:bool rolconnlimit:int rolpassword rolvaliduntil rolbypassrls:bool rolconfig:texts",
    "pg_am": "oid:oid amname amhandler:oid amtype",
    "pg_settings": "name setting unit category short_desc context vartype source min_val max_val enumvals:texts "
    "boot_val reset_val",
    "pg_matviews": "schemaname matviewname matviewowner tablespace hasindexes:bool ispopulated:bool definition",
    "pg_indexes": "schemaname tablename indexname tablespace indexdef",
    "information_schema.schemata": "catalog_name schema_name schema_owner",
    "information_schema.tables": "table_catalog table_schema table_name table_type self_referencing_column_name "
    "is_insertable_into is_typed commit_action",
    "information_schema.views": "table_catalog table_schema table_name view_definition check_option is_updatable",
    "information_schema.columns": "table_catalog table_schema table_name column_name ordinal_position:int "
    "column_default is_nullable data_type character_maximum_length:int character_octet_length:int "
    "numeric_precision:int numeric_precision_radix:int numeric_scale:int datetime_precision:int interval_type "
    "character_set_name collation_name domain_name udt_catalog udt_schema udt_name is_identity identity_generation "
    "is_generated generation_expression is_updatable",
    # Without rows:
    "pg_attrdef": "oid:oid adrelid:oid adnum:int adbin",
    "pg_auth_members": "roleid:oid member:oid grantor:oid admin_option:bool",
    "pg_collation": "oid:oid collname collnamespace:oid collprovider collcollate collctype collisdeterministic:bool",
    "pg_constraint": "oid:oid conname connamespace:oid contype condeferrable:bool condeferred:bool convalidated:bool "
    "conrelid:oid contypid:oid conindid:oid conparentid:oid confrelid:oid confupdtype confdeltype confmatchtype "
    "conislocal:bool coninhcount:int connoinherit:bool conkey:ints confkey:ints conbin",
    "pg_depend": "classid:oid objid:oid objsubid:int refclassid:oid refobjid:oid refobjsubid:int deptype",
    "pg_description": "objoid:oid classoid:oid objsubid:int description",
    "pg_enum": "oid:oid enumtypid:oid enumsortorder:real enumlabel",
    "pg_extension": "oid:oid extname extowner:oid extnamespace:oid extrelocatable:bool extversion",
    "pg_foreign_server": "oid:oid srvname srvowner:oid srvfdw:oid srvtype srvversion srvacl:texts srvoptions:texts",
    "pg_foreign_table": "ftrelid:oid ftserver:oid ftoptions:texts",
    "pg_inherits": "inhrelid:oid inhparent:oid inhseqno:int inhdetachpending:bool",
    "pg_language": "oid:oid lanname lanowner:oid",
    "pg_policy": "oid:oid polname polrelid:oid polcmd polpermissive:bool polroles:ints polqual polwithcheck",
    "pg_proc": "oid:oid proname pronamespace:oid proowner:oid prolang:oid prokind proretset:bool prorettype:oid "
    "proargtypes:ints proallargtypes:ints proargmodes:texts proargnames:texts pronargs:int prosrc provolatile "
    "proisstrict:bool prosecdef:bool proparallel proacl:texts proleakproof:bool",
    "pg_publication": "oid:oid pubname puballtables:bool",
    "pg_publication_namespace": "oid:oid pnpubid:oid pnnspid:oid",
    "pg_publication_rel": "oid:oid prpubid:oid prrelid:oid prqual prattrs:ints",
    "pg_range": "rngtypid:oid rngsubtype:oid rngmultitypid:oid",
    "pg_rewrite": "oid:oid rulename ev_class:oid ev_type ev_enabled is_instead:bool",
    "pg_sequence": "seqrelid:oid seqtypid:oid seqstart:int seqincrement:int",
    "pg_shdescription": "objoid:oid classoid:oid description",
    "pg_statistic_ext": "oid:oid stxrelid:oid stxname stxnamespace:oid stxkeys:ints stxkind:texts stxstattarget:int",
    "pg_stat_user_tables": "relid:oid schemaname relname n_live_tup:int",
    "pg_tables": "schemaname tablename tableowner tablespace hasindexes:bool hasrules:bool hastriggers:bool",
    "pg_tablespace": "oid:oid spcname spcowner:oid",
    "pg_trigger": "oid:oid tgrelid:oid tgparentid:oid tgname tgfoid:oid tgtype:int tgenabled tgisinternal:bool "
    "tgconstraint:oid",
    "pg_views": "schemaname viewname viewowner definition",
    "information_schema.constraint_column_usage": "table_schema table_name column_name constraint_schema "
    "constraint_name",
    "information_schema.key_column_usage": "constraint_schema constraint_name table_schema table_name column_name "
    "ordinal_position:int position_in_unique_constraint:int",
    "information_schema.referential_constraints": "constraint_schema constraint_name unique_constraint_schema "
    "unique_constraint_name match_option update_rule delete_rule",
    "information_schema.routines": "routine_schema routine_name routine_type data_type",
    "information_schema.table_constraints": "constraint_schema constraint_name table_schema table_name constraint_type",
}
"""Names and types of the columns of each table; a column without a type is text."""

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
    return [(name, type or "text") for name, _, type in (each.partition(":") for each in _COLUMNS[table].split())]


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
        functions = {"typinput": f"{type.name}in", "typoutput": f"{type.name}out", "typreceive": f"{type.name}recv"}
        yield _row("pg_type", oid=type.oid, **usual, **known, **functions)
        if type.array:
            known = {"typname": f"_{type.name}", "typlen": -1, "typcategory": "A", "typelem": type.oid}
            functions = {"typinput": "array_in", "typoutput": "array_out", "typreceive": "array_recv"}
            yield _row("pg_type", oid=type.array, **usual, **known, **functions, typsubscript="array_subscript_handler")


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
    "pg_index": _indexes,
    "pg_database": _databases,
    "pg_roles": _roles,
    "pg_user": _roles,
    "pg_am": _access_methods,
    "pg_settings": _settings,
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


_DEFINITION_COLUMNS: Mapping[str, tuple[str, str]] = {
    "pg_matviews": ("matviewname", "definition"),
    "information_schema.views": ("table_name", "view_definition"),
}
"""By table: its column that names the view, and the one that has the view's SQL."""


CATALOG_NAMES = frozenset(_COLUMNS)
_SCHEMAS = ("pg_catalog", "information_schema")

# Queries of the catalog

_MACROS = (
    "pg_table_is_visible(a) AS true",
    "pg_type_is_visible(a) AS true",
    "pg_function_is_visible(a) AS true",
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
    "has_table_privilege(a, b) AS true, (a, b, c) AS true",
    "has_schema_privilege(a, b) AS true, (a, b, c) AS true",
    "has_database_privilege(a, b) AS true, (a, b, c) AS true",
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
    "quote_ident(a) AS '\"' || replace(a, '\"', '\"\"') || '\"'",
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
    return f"format_type(a, b) AS CASE a {numeric} {names} {arrays} ELSE '???' END"


def _current_setting() -> str:
    values = " ".join(f"WHEN '{name.lower()}' THEN '{value}'" for name, value in SETTINGS.items())
    chosen = f"CASE lower(a) {values} ELSE '' END"
    return f"current_setting(a) AS {chosen}, (a, b) AS {chosen}"


PREFIX = "postgres_"
"""Of the macros' names, which DuckDB may have, too, with another meaning."""
MACROS = tuple(
    f"CREATE MACRO {PREFIX}{macro[: macro.index('(')]}{macro[macro.index('(') :]}"
    for macro in (*_MACROS, _format_type(), _current_setting())
)
"""Statements of DuckDB that define them."""
_NAMES = frozenset(macro[: macro.index("(")] for macro in (*_MACROS, _format_type(), _current_setting()))
_WORDS: Mapping[type[exp.Expr], str] = {
    exp.CurrentSchema: "current_schema",
    exp.CurrentDatabase: "current_database",
    exp.CurrentCatalog: "current_database",
    exp.CurrentUser: "current_user",
    exp.SessionUser: "current_user",
    exp.CurrentVersion: "version",
}
_NAMED_TYPES = {
    **dict.fromkeys(("text", "name", "char", "varchar", "bpchar", "regtype", "regproc", "regnamespace"), "VARCHAR"),
    "oid": "BIGINT",
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
    tables: dict[str, pa.Table] = {}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            _name_values(table)
            continue
        schema, name = table.db.lower(), table.name.lower()
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


def _name_values(table: exp.Table) -> None:
    """Of a function in FROM: PostgreSQL calls its only column as it calls the table."""
    table.set("db", None)
    alias = table.args.get("alias")
    if alias is not None and not alias.columns:
        alias.set("columns", [alias.this.copy()])


def _adapted_node(node: exp.Expr, views: _Views) -> exp.Expr:
    if isinstance(node, exp.Dot) and isinstance(node.this, exp.Identifier) and node.this.name.lower() in _SCHEMAS:
        node = node.expression
    if isinstance(node, exp.Operator):
        return _operator(node)
    if isinstance(node, exp.Collate):
        inner: exp.Expr = node.this
        return inner
    if isinstance(node, exp.Cast):
        return _cast(node, views)
    if isinstance(node, exp.Anonymous):
        return _call(node)
    if isinstance(node, exp.Column) and not node.table and node.name.lower() == "user" and not node.this.quoted:
        return _macro("current_user")
    if (word := _WORDS.get(type(node))) is not None:
        return _macro(word)
    return node


def _macro(name: str, arguments: Sequence[exp.Expr] = ()) -> exp.Anonymous:
    return exp.Anonymous(this=PREFIX + name, expressions=list(arguments))


def _call(node: exp.Anonymous) -> exp.Expr:
    name = node.name.lower()
    if name == "pg_get_indexdef" and node.expressions:
        return _index_definition(*node.expressions[:2])
    if name == "pg_get_viewdef" and node.expressions:
        return _view_definition(node.expressions[0])
    return _macro(name, node.expressions) if name in _NAMES else node


def _view_definition(view: exp.Expr) -> exp.Expr:
    """The SQL of a view, by its OID or its name."""
    name = exp.select("max(relname)").from_("pg_class")
    name = name.where(
        exp.EQ(this=exp.cast(exp.column("oid", "pg_class"), "VARCHAR"), expression=exp.cast(view, "VARCHAR"))
    )
    is_it = [
        exp.EQ(this=exp.column("matviewname"), expression=each)
        for each in (exp.Subquery(this=name), exp.cast(view.copy(), "VARCHAR"))
    ]
    return exp.Subquery(this=exp.select("max(definition)").from_("pg_matviews").where(exp.or_(*is_it)))


def _index_definition(index: exp.Expr, column: exp.Expr | None = None) -> exp.Expr:
    """The text of an index, or the name of one of its columns."""
    texts = exp.select("max(indexdef)").from_("pg_index")
    whole = exp.Subquery(this=texts.where(exp.EQ(this=exp.column("indexrelid"), expression=index.copy())))
    if column is None:
        return whole
    names = exp.select("max(attname)").from_("pg_attribute")
    names = names.where(exp.EQ(this=exp.column("attrelid"), expression=index.copy()))
    names = names.where(exp.EQ(this=exp.column("attnum"), expression=column.copy()))
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


_HEXADECIMAL = re.compile(r"\\x(?:[0-9A-Fa-f]{2})*")
"""PostgreSQL's form of bytes."""


def _cast(node: exp.Cast, views: _Views) -> exp.Expr:
    """A cast to a type that only the catalog has."""
    full = node.to.sql("postgres").lower()
    name = full.removesuffix("[]").rpartition(".")[2].strip('"')
    if full.endswith("[]"):
        element = _NAMED_TYPES.get(name)
        return node if element is None else exp.Cast(this=node.this, to=exp.DataType.build(f"{element}[]", "duckdb"))
    if name == "regclass":
        if isinstance(node.this, exp.Literal) and node.this.is_string:
            given = node.this.name.rpartition(".")[2].strip('"').lower()
            named = {view.lower(): oid_of(view) for view in views} | {"pg_class": 1259}
            return exp.Literal.number(named.get(given, 0))
        relation = exp.select("max(relname)").from_("pg_class")
        return exp.Subquery(this=relation.where(exp.EQ(this=exp.column("oid", "pg_class"), expression=node.this)))
    if full == "bytea" and isinstance(node.this, exp.Literal) and _HEXADECIMAL.fullmatch(node.this.name):
        return exp.Anonymous(this="unhex", expressions=[exp.Literal.string(node.this.name[2:])])
    if name in _NAMED_TYPES:
        return exp.Cast(this=node.this, to=exp.DataType.build(_NAMED_TYPES[name], dialect="duckdb"))
    return node
