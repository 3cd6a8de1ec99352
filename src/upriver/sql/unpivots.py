"""UNPIVOT: each row once for each of some columns, with the column's name and its value.

``UNPIVOT (value FOR name IN (a, b))`` gives two rows of one. A row whose value is NULL is left out, unless INCLUDE
NULLS is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.column_names import quoted
from upriver.plan.relation import Scalar
from upriver.plan.types import duck_name, struct_type
from upriver.sql.generators import Generated, exploded
from upriver.sql.nested_values import struct_sql
from upriver.sql.operators import to_common
from upriver.sql.pushdown import filtered
from upriver.sql.relations import kept, projected
from upriver.sql.scalars import Context, string_sql, typed_name
from upriver.sql.scope import Entry, Scope, ScopeColumn, ScopeRows, Setting, unique

_FORM = "Write UNPIVOT (value FOR name IN (a, b AS c)), or UNION ALL of a SELECT for each column."


@dataclass(frozen=True, slots=True)
class _Turned:
    """Some columns of the rows, one for each title, and the name that their values go by."""

    name: str
    columns: tuple[exp.Column, ...]


def unpivoted(setting: Setting, node: exp.Expr, rows: ScopeRows, alias: str) -> ScopeRows:
    """The rows of UNPIVOT over these rows. alias: of the rows. Raises UnsupportedSql, DeclarationError."""
    name, titles, turned = _read(setting, node)
    scope = Scope.of(setting.source, Entry(alias, rows.columns))
    relation = rows.relation
    context = setting.context(relation.schema, fails=relation.deferred, certain=relation.certain)
    found = [[scope.find(column) for column in one.columns] for one in turned]
    if any(column.end is not None or fields for row in found for column, fields in row):
        raise setting.source.unsupported(node, "UNPIVOT of a part of a column", "Select it in a subquery before.")
    values = [[scope.bind(column.copy()) for column in one.columns] for one in turned]
    by_title = [
        _typed(context, turned, place, context.translate_all([row[place] for row in values]))
        for place in range(len(titles))
    ]
    parts = [[string_sql(one.name), *(part.sql for part in row)] for one, *row in zip(turned, *by_title, strict=True)]
    sql = ", ".join(map(struct_sql, parts))
    type = struct_type([name, *titles], [pa.string(), *(column[0].type for column in by_title)])
    fails = any(part.fails for column in by_title for part in column)
    elements = Scalar(f"[{sql}]", pa.list_(type), fails, nulls=frozenset())
    taken = {field.name.lower() for field in relation.schema}
    names = [unique(f"{title} of unpivot", taken) for title in (name, *titles)]
    place = setting.source.place(node)
    made = exploded(relation, Generated(elements, (name, *titles), False, False), names, place)
    if not node.args.get("include_nulls"):
        some = " OR ".join(f"{quoted(one)} IS NOT NULL" for one in names[1:])
        made = filtered(made, Scalar(f"({some})", pa.bool_(), nulls=frozenset()), place)
    used = {column.name for row in found for column, _ in row}
    others = [column for column in rows.columns if column.name not in used]
    new = [ScopeColumn(title, one) for title, one in zip((name, *titles), names, strict=True)]
    dropped = used - {part for column in others for part in (column.name, column.end)}
    made = projected(made, [one for one in kept(made) if one.name not in dropped], place)
    return replace(rows, relation=made, columns=(*others, *new))


def _read(setting: Setting, node: exp.Expr) -> tuple[str, list[str], list[_Turned]]:
    """The column of names, those of values, and what is turned."""
    source = setting.source
    (titled,), (choice,) = node.expressions, node.args.get("fields") or [None]
    if not isinstance(choice, exp.In) or not choice.expressions:
        raise source.unsupported(node, "this UNPIVOT", _FORM)
    titles = [part.name for part in (titled.expressions if isinstance(titled, exp.Tuple) else [titled])]
    turned = []
    for item in choice.expressions:
        columns = item.this if isinstance(item, exp.PivotAlias) else item
        columns = columns.expressions if isinstance(columns, exp.Tuple) else [columns]
        columns = [column.this if isinstance(column, exp.Paren) else column for column in columns]
        if len(columns) != len(titles) or not all(isinstance(column, exp.Column) for column in columns):
            raise source.unsupported(item, f"UNPIVOT of anything but {len(titles)} columns at a time", _FORM)
        alias = item.args["alias"].name if isinstance(item, exp.PivotAlias) else None
        turned.append(_Turned(alias or "_".join(column.name for column in columns), tuple(columns)))
    return choice.this.name, titles, turned


def _typed(context: Context, turned: Sequence[_Turned], place: int, values: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """The values of one column, in the type that all have."""
    same = to_common(context, turned[0].columns[place], values)
    if duck_name(same[0].type) is None:
        raise context.unsupported(turned[0].columns[place], f"UNPIVOT of {typed_name(same[0])}", _FORM)
    return same
