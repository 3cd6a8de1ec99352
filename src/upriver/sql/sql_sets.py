"""UNION, EXCEPT and INTERSECT. Columns go by position; their types become the one that Spark would give them."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation
from upriver.plan.ops import SetKind, SetOperation
from upriver.plan.sql_types import common_type, is_null, same_type, spark_name
from upriver.sql.sql_casts import cast
from upriver.sql.sql_clauses import only, read_limit
from upriver.sql.sql_operators import CAST_IT
from upriver.sql.sql_relations import (
    Output,
    comparable,
    distinct,
    kept,
    projected,
    retyped,
    union,
    with_equal_values,
)
from upriver.sql.sql_scalar import column_scalar, null
from upriver.sql.sql_scope import Entry, Rows, Scope, bare
from upriver.sql.sql_setting import Setting
from upriver.sql.sql_topk import first_rows, sort_key

_KINDS = {exp.Except: SetKind.EXCEPT, exp.Intersect: SetKind.INTERSECT}


def combined(setting: Setting, tree: exp.SetOperation) -> Rows:
    """The rows of a set operation. Raises UnsupportedSql."""
    only(setting.source, tree, {"this", "expression", "distinct", "with_", "order", "limit"})
    if isinstance(tree, exp.Union) and not tree.args.get("distinct"):
        parts = _all_of_union(tree)
    else:
        parts = [tree.this, tree.expression]
    rows = [setting.compile(replace(setting, untyped=True), part) for part in parts]
    types = _types(setting, parts, rows)
    names = [column.name for column in rows[0].columns]
    relations = [_cast(setting, part, one, names, types) for part, one in zip(parts, rows, strict=True)]
    place = setting.source.place(tree.expression)
    if tree.args.get("distinct") or not isinstance(tree, exp.Union):
        relations = [comparable(setting.source, relation, tree.expression) for relation in relations]
    untyped = [all(one.columns[place].untyped for one in rows) for place in range(len(types))]
    columns = [replace(column, untyped=void) for column, void in zip(rows[0].columns, untyped, strict=True)]
    return ordered(setting, tree, Rows(_combined(tree, relations, place), tuple(columns)))


def ordered(setting: Setting, tree: exp.Expr, rows: Rows) -> Rows:
    """The rows that come first, if the query says so behind its end."""
    nodes, limit = read_limit(setting.source, tree)
    if limit is None:
        return rows
    scope = Scope.of(setting.source, Entry("", rows.columns))
    context = setting.context(rows.relation.schema, fails=rows.relation.deferred)
    keys = []
    for node in nodes:
        literal = node.this
        if isinstance(literal, exp.Literal) and not literal.is_string and literal.this.isdigit():
            raise setting.source.unsupported(node, "ORDER BY a position here", "Name the column.")
        keys.append(sort_key(context, node, scope.bind(bare(literal))))
    place = setting.source.place(tree.args["order"])
    return Rows(first_rows(rows.relation, kept(rows.relation), keys, {}, limit, place), rows.columns)


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


def _types(setting: Setting, parts: Sequence[exp.Expr], rows: Sequence[Rows]) -> list[pa.DataType]:
    """Of each column the one type of all queries."""
    first = rows[0]
    for part, one in zip(parts, rows, strict=True):
        if any(column.end is not None for column in one.columns):
            raise setting.source.unsupported(part, "a window, a STRUCT, in a set operation", "Take its start and end.")
        if len(one.columns) != len(first.columns):
            what = f"{len(one.columns)} columns here, and {len(first.columns)} in the first query"
            raise setting.source.wrong(part, what, "SELECT as many.")
    return [_type(setting, parts, rows, place) for place in range(len(first.columns))]


def _type(setting: Setting, parts: Sequence[exp.Expr], rows: Sequence[Rows], place: int) -> pa.DataType:
    found = pa.null()
    for part, one in zip(parts, rows, strict=True):
        column = one.columns[place]
        type = pa.null() if column.untyped else one.relation.schema.field(column.name).type
        wider = common_type(found, type)
        if wider is None:
            names = f"{spark_name(found)} with {spark_name(type)}"
            raise setting.source.unsupported(part, f"mixing {names} in one column", CAST_IT)
        found = wider
    if is_null(found) and not setting.untyped:
        raise setting.source.unsupported(
            rows[0].columns[place].node, "a column of nothing but NULL", "Give it a type: CAST(NULL AS ...)."
        )
    return pa.bool_() if is_null(found) else found


def _cast(setting: Setting, part: exp.Expr, rows: Rows, names: Sequence[str], types: Sequence[pa.DataType]) -> Relation:
    """The rows with these names and types."""
    schema = rows.relation.schema
    same = all(same_type(schema.field(one.name).type, type) for one, type in zip(rows.columns, types, strict=True))
    if same and [one.name for one in rows.columns] == schema.names:
        return retyped(rows.relation, pa.schema(list(zip(names, types, strict=True))))
    context = setting.context(schema, fails=rows.relation.deferred)
    values = [
        null(type) if one.untyped else cast(context, part, column_scalar(one.name, schema.field(one.name).type), type)
        for one, type in zip(rows.columns, types, strict=True)
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
