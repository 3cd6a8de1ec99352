"""UNION, EXCEPT and INTERSECT. Columns go by position; their types become the one that Spark would give them."""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from upriver.dataflow.algebra import Relation
from upriver.dataflow.ops import SetKind, SetOperation
from upriver.dataflow.sql_casts import cast
from upriver.dataflow.sql_clauses import only, read_limit
from upriver.dataflow.sql_operators import CAST_IT
from upriver.dataflow.sql_relations import (
    Output,
    comparable,
    distinct,
    kept,
    projected,
    retyped,
    union,
    with_equal_values,
)
from upriver.dataflow.sql_scalar import column
from upriver.dataflow.sql_scope import Entry, Rows, Scope, bare
from upriver.dataflow.sql_setting import Setting
from upriver.dataflow.sql_topk import first_rows, sort_key
from upriver.dataflow.sql_types import common_type, same_type, spark_name

_KINDS = {exp.Except: SetKind.EXCEPT, exp.Intersect: SetKind.INTERSECT}


def combined(setting: Setting, tree: exp.SetOperation) -> Rows:
    """The rows of a set operation. Raises UnsupportedSql."""
    only(setting.source, tree, {"this", "expression", "distinct", "with_", "order", "limit"})
    if isinstance(tree, exp.Union) and not tree.args.get("distinct"):
        parts = _all_of_union(tree)
    else:
        parts = [tree.this, tree.expression]
    rows = [setting.compile(setting, part) for part in parts]
    relations = _alike(setting, parts, rows)
    place = setting.source.place(tree.expression)
    if tree.args.get("distinct") or not isinstance(tree, exp.Union):
        relations = [comparable(setting.source, relation, tree.expression) for relation in relations]
    relation = _combined(tree, relations, place)
    return ordered(setting, tree, Rows(relation, rows[0].columns))


def ordered(setting: Setting, tree: exp.Expr, rows: Rows) -> Rows:
    """The rows that come first, if the query says so behind its end."""
    nodes, limit = read_limit(setting.source, tree)
    if limit is None:
        return rows
    scope = Scope.of(setting.source, Entry("", rows.columns))
    context = setting.context(rows.relation.schema)
    keys = []
    for node in nodes:
        literal = node.this
        if isinstance(literal, exp.Literal) and not literal.is_string and literal.this.isdigit():
            raise setting.source.unsupported(node, "ORDER BY a position here", "Name the column.")
        keys.append(sort_key(context, node, scope.bind(bare(literal))))
    place = setting.source.place(tree.args["order"])
    return Rows(first_rows(rows.relation, kept(rows.relation), keys, limit, place), rows.columns)


def _all_of_union(tree: exp.Expr) -> list[exp.Expr]:
    """The queries of a chain of UNION ALL."""
    parts = [tree.args["expression"]]
    tree = tree.this
    while _continues(tree):
        parts.append(tree.args["expression"])
        tree = tree.this
    return [tree, *reversed(parts)]


def _continues(tree: exp.Expr) -> bool:
    plain = not any(tree.args.get(part) for part in ("order", "limit", "with_", "by_name", "side", "kind", "on"))
    return isinstance(tree, exp.Union) and not tree.args.get("distinct") and plain


def _alike(setting: Setting, parts: Sequence[exp.Expr], rows: Sequence[Rows]) -> list[Relation]:
    """The relations with the names of the first, and each column of the one type of all."""
    first = rows[0]
    for part, one in zip(parts, rows, strict=True):
        if any(column.end is not None for column in one.columns):
            raise setting.source.unsupported(part, "a window, a STRUCT, in a set operation", "Take its start and end.")
        if len(one.columns) != len(first.columns):
            what = f"{len(one.columns)} columns here, and {len(first.columns)} in the first query"
            raise setting.source.wrong(part, what, "SELECT as many.")
    types = [
        _type(setting, parts, [one.relation.schema.field(one.columns[place].name).type for one in rows])
        for place in range(len(first.columns))
    ]
    names = [column.name for column in first.columns]
    return [_cast(setting, part, one, names, types) for part, one in zip(parts, rows, strict=True)]


def _type(setting: Setting, parts: Sequence[exp.Expr], types: Sequence[pa.DataType]) -> pa.DataType:
    found = types[0]
    for part, type in zip(parts, types, strict=True):
        wider = common_type(found, type)
        if wider is None:
            names = f"{spark_name(found)} with {spark_name(type)}"
            raise setting.source.unsupported(part, f"mixing {names} in one column", CAST_IT)
        found = wider
    return found


def _cast(setting: Setting, part: exp.Expr, rows: Rows, names: Sequence[str], types: Sequence[pa.DataType]) -> Relation:
    schema = rows.relation.schema
    fields = [schema.field(one.name) for one in rows.columns]
    if fields == list(schema) and all(same_type(field.type, type) for field, type in zip(fields, types, strict=True)):
        return retyped(rows.relation, pa.schema(list(zip(names, types, strict=True))))
    context = setting.context(schema)
    values = [
        cast(context, part, column(field.name, field.type), type) for field, type in zip(fields, types, strict=True)
    ]
    return projected(rows.relation, [Output(*pair) for pair in zip(names, values, strict=True)], None)


def _combined(tree: exp.SetOperation, relations: Sequence[Relation], place: int | None) -> Relation:
    kind = _KINDS.get(type(tree))
    if kind is None:
        relation = union(relations, place)
        return distinct(relation, place) if tree.args.get("distinct") else relation
    inputs = tuple(with_equal_values(relation) for relation in relations)
    op = SetOperation(kind, all=not tree.args.get("distinct"))
    return Relation(op, inputs, inputs[0].schema, place)
