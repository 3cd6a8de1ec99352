"""Stars in SELECT: the columns that ``*``, ``alias.*`` and ``struct.*`` stand for, with ``EXCEPT (columns)``."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from sqlglot import exp

from upriver.plan.types import is_struct
from upriver.sql.clauses import SelectItem
from upriver.sql.scope import Scope, ScopeColumn, as_node


def is_star(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Column) else node, exp.Star)


def star_items(scope: Scope, schema: pa.Schema, star: exp.Expr) -> Iterator[SelectItem]:
    """The outputs of a star, bound. schema: of the rows beneath. Raises UnsupportedSql, DeclarationError."""
    args = (star.this if isinstance(star, exp.Column) else star).args
    if any(value for part, value in args.items() if part != "except_"):
        raise scope.source.unsupported(star, "a star with more than EXCEPT", "List the columns.")
    struct = _struct(scope, schema, star)
    if struct is None:
        columns = scope.starred(star)
        left_out = [_left_out(scope, columns, node) for node in args.get("except_") or ()]
        for column in columns:
            if column not in left_out:
                window = None if column.end is None else column
                yield SelectItem(as_node(column.name, star), column.title, window=window)
        return
    dropped = {node.name.lower() for node in args.get("except_") or ()}
    for field in schema.field(struct.name).type:
        if field.name.lower() not in dropped:
            name = exp.to_identifier(field.name, quoted=True)
            yield SelectItem(exp.Dot(this=as_node(struct.name, star), expression=name), field.name)


def _left_out(scope: Scope, columns: Sequence[ScopeColumn], node: exp.Expr) -> ScopeColumn:
    """The column of a star that EXCEPT names."""
    *owner, title = node.parts if isinstance(node, exp.Column) else [node]
    owned = columns if not owner else scope.columns_of(owner[-1].name)
    found = [column for column in columns if column in owned and column.is_titled(title.name)]
    if len(owner) > 1 or (owner and not scope.names_entry(owner[-1].name)):
        raise scope.source.unsupported(node, "EXCEPT of a part of a column", "List the columns.")
    if len(found) != 1:
        what = f"EXCEPT of {node.name!r}, which is {len(found) or 'none'} of the star's columns"
        raise scope.source.wrong(node, what, "Name those that it has.")
    return found[0]


def _struct(scope: Scope, schema: pa.Schema, star: exp.Expr) -> ScopeColumn | None:
    """The STRUCT whose star it is, if it is not that of an item of FROM."""
    if not isinstance(star, exp.Column) or (len(star.parts) == 2 and scope.names_entry(star.table)):
        return None
    *owner, last = (part.copy() for part in star.parts[:-1])
    column, fields = scope.find(exp.Column(this=last, table=owner[-1] if owner else None))
    if len(owner) > 1 or fields or column.end is not None or not is_struct(schema.field(column.name).type):
        raise scope.source.unsupported(star, "the star of a part of a column", "Name the fields: st.f.g.")
    return column
