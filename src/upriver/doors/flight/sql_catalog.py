"""What Flight SQL tells of an app: catalogs, schemas, views and their columns, and what the server can do.

The views are in one schema of one catalog, under the names that the PostgreSQL door gives both.
"""

import fnmatch
import glob
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from upriver.doors.flight.protobuf import ProtobufMessage
from upriver.doors.queries import QUERY_CHARS_MAX
from upriver.errors import DeclarationError
from upriver.protocol.lookups import ViewRoute
from upriver.runtime.metrics import installed_version

CATALOG, DB_SCHEMA, TABLE_TYPE = "upriver", "public", "VIEW"
PATTERN_CHARS_MAX = 1_000
"""Characters of a pattern of names."""
REMARKS = "ARROW:FLIGHT:SQL:REMARKS"
"""The metadata of a column of the key say so under this name."""

Routes = Mapping[str, ViewRoute]


def _required(*names: str, type: pa.DataType | None = None) -> list[pa.Field]:
    return [pa.field(name, type or pa.string(), nullable=False) for name in names]


def _optional(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string()) for name in names]


_CATALOGS = pa.schema(_required("catalog_name"))
_DB_SCHEMAS = pa.schema([*_optional("catalog_name"), *_required("db_schema_name")])
_TABLES = pa.schema([*_optional("catalog_name", "db_schema_name"), *_required("table_name", "table_type")])
_TABLES_WITH_SCHEMA = pa.schema([*_TABLES, *_required("table_schema", type=pa.binary())])
_TABLE_TYPES = pa.schema(_required("table_type"))
_PRIMARY_KEYS = pa.schema(
    [
        *_optional("catalog_name", "db_schema_name"),
        *_required("table_name", "column_name"),
        *_optional("key_name"),
        *_required("key_sequence", type=pa.int32()),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        *_optional("pk_catalog_name", "pk_db_schema_name"),
        *_required("pk_table_name", "pk_column_name"),
        *_optional("fk_catalog_name", "fk_db_schema_name"),
        *_required("fk_table_name", "fk_column_name"),
        *_required("key_sequence", type=pa.int32()),
        *_optional("fk_key_name", "pk_key_name"),
        *_required("update_rule", "delete_rule", type=pa.uint8()),
    ]
)


def _catalogs(command: ProtobufMessage, routes: Routes) -> pa.Table:
    return _table(_CATALOGS, [(CATALOG,)])


def _db_schemas(command: ProtobufMessage, routes: Routes) -> pa.Table:
    found = command.optional_text(1) in (None, CATALOG) and _is_like(DB_SCHEMA, command.optional_text(2))
    return _table(_DB_SCHEMAS, [(CATALOG, DB_SCHEMA)] if found else [])


def _tables(command: ProtobufMessage, routes: Routes) -> pa.Table:
    found = command.optional_text(1) in (None, CATALOG) and _is_like(DB_SCHEMA, command.optional_text(2))
    types = command.texts(4)
    if types and TABLE_TYPE not in types:
        found = False
    has_schemas, pattern = bool(command.number(5)), command.optional_text(3)
    rows = [
        (CATALOG, DB_SCHEMA, name, TABLE_TYPE, *([_described(name, routes[name])] if has_schemas else []))
        for name in sorted(routes)
        if found and _is_like(name, pattern)
    ]
    return _table(_TABLES_WITH_SCHEMA if has_schemas else _TABLES, rows)


def _described(view: str, route: ViewRoute) -> bytes:
    """A view's schema, as an IPC message; the columns of its key are marked as such."""
    fields = [
        field.with_metadata({REMARKS: f"column {route.key.index(field.name) + 1} of {len(route.key)} of the key"})
        if field.name in route.key
        else field
        for field in route.schema
    ]
    return bytes(pa.schema(fields).serialize())


def _table_types(command: ProtobufMessage, routes: Routes) -> pa.Table:
    return _table(_TABLE_TYPES, [(TABLE_TYPE,)])


def _no_primary_keys(command: ProtobufMessage, routes: Routes) -> pa.Table:
    """A view may have many rows of one key, so its key is no primary key."""
    return _PRIMARY_KEYS.empty_table()


def _no_foreign_keys(command: ProtobufMessage, routes: Routes) -> pa.Table:
    return _FOREIGN_KEYS.empty_table()


# What the server can do

SqlInfo = str | bool | int | list[str] | dict[int, list[int]]
"""Whole numbers are 32 bits wide, but for those of ``_WIDE``."""
_WIDE = (503, 505, 507, *range(541, 556), *range(557, 563))
_INFO: Mapping[int, SqlInfo] = MappingProxyType(
    {
        **dict.fromkeys((5, 9, 10, 11), False),  # Substrait, CancelQuery, bulk ingestion, also in transactions
        **dict.fromkeys((100, 101), 0),  # no timeouts that a caller could set
        **dict.fromkeys((500, 501, 502), False),  # CREATE CATALOG, SCHEMA, TABLE
        **{number: [] for number in range(508, 513)},  # words and functions beyond the standard's: not listed
        **dict.fromkeys((519, 524, 527, 536, 537), False),  # columns without NULL, FOR UPDATE, procedures
        **dict.fromkeys((515, 516, 518, 520, 521, 523, 532, 539), True),  # names with AS, ORDER BY of any expression
        **dict.fromkeys((533, 534, 535), 0),  # schemas and catalogs in other statements
        **dict.fromkeys(range(541, 563), 0),  # no limits of their own
        **dict.fromkeys((556, 563, 565, 566, 572, 573, 574, 575, 576), False),  # transactions, savepoints, batches
        **dict.fromkeys((568, 570, 571), 0),
        0: "Upriver",
        1: installed_version(),
        2: pa.__version__,
        3: True,  # read only
        4: True,  # SQL
        8: 0,  # no transactions by actions
        503: 1,  # names are the same in upper and lower case
        504: '"',
        505: 1,
        506: True,  # each view may be selected
        507: 0,  # NULL sorts high
        514: "",
        517: {},  # no CONVERT
        522: 3,  # GROUP BY of columns that are not selected, too
        525: 3,  # minimum and core grammar
        526: 1,  # SQL92, entry level
        528: 6,  # outer joins, also full ones
        529: "schema",
        530: "procedure",
        531: "catalog",
        538: 15,  # subqueries in comparisons, EXISTS, IN, ANY
        540: 3,  # UNION, UNION ALL
        557: QUERY_CHARS_MAX,
        564: 1,  # no isolation level
        567: 2,  # rows are read forward only
        569: 2,
    }
)
"""By the numbers of ``SqlInfo`` in FlightSql.proto."""

_INFO_FIELDS = (
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
)
_INFO_SCHEMA = pa.schema(
    [
        *_required("info_name", type=pa.uint32()),
        pa.field("value", pa.dense_union(list(_INFO_FIELDS)), nullable=False),
    ]
)


def _sql_info(command: ProtobufMessage, routes: Routes) -> pa.Table:
    """Of the numbers that are asked for, those that are known."""
    wanted = command.numbers(1) or list(_INFO)
    known = [number for number in dict.fromkeys(wanted) if number in _INFO]
    children: list[list[SqlInfo]] = [[] for _ in _INFO_FIELDS]
    kinds, offsets = [], []
    for number in known:
        kind = _kind_of(number)
        kinds.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(_INFO[number])
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(values, field.type) for values, field in zip(children, _INFO_FIELDS, strict=True)],
        [field.name for field in _INFO_FIELDS],
    )
    return pa.table([pa.array(known, pa.uint32()), values], schema=_INFO_SCHEMA)


def _kind_of(number: int) -> int:
    """The place of a value among the types of the union."""
    value = _INFO[number]
    if isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return 2 if number in _WIDE else 3
    return 0 if isinstance(value, str) else 4 if isinstance(value, list) else 5


CATALOG_COMMANDS: Mapping[str, Callable[[ProtobufMessage, Routes], pa.Table]] = {
    "CommandGetSqlInfo": _sql_info,
    "CommandGetCatalogs": _catalogs,
    "CommandGetDbSchemas": _db_schemas,
    "CommandGetTables": _tables,
    "CommandGetTableTypes": _table_types,
    "CommandGetPrimaryKeys": _no_primary_keys,
    "CommandGetExportedKeys": _no_foreign_keys,
    "CommandGetImportedKeys": _no_foreign_keys,
    "CommandGetCrossReference": _no_foreign_keys,
}
"""The rows of a command about the catalog, by its name."""


def _table(schema: pa.Schema, rows: Sequence[Sequence[object]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema)


def _is_like(name: str, pattern: str | None) -> bool:
    """Whether a name fits a pattern in which % stands for any text, and _ for any character."""
    if pattern is None:
        return True
    if len(pattern) > PATTERN_CHARS_MAX:
        raise DeclarationError(f"a pattern of {len(pattern):,} characters: at most {PATTERN_CHARS_MAX:,} are taken")
    shell = "".join({"%": "*", "_": "?"}.get(character, glob.escape(character)) for character in pattern)
    return re.match(fnmatch.translate(shell), name) is not None
