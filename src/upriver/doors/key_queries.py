"""Queries that are one lookup: plain columns of one view, whose key has a parameter for each of its columns.

The parameters are whole numbers and texts, which DuckDB compares as a lookup does: by their bytes. All other queries
are evaluated by DuckDB, and these too when a value does not fit its column.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pyarrow as pa
from sqlglot import exp

from upriver.doors.queries import ViewQuery, parameter_number
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.protocol.lookups import ViewRoute

_WHOLE: Mapping[exp.DType, int] = {
    exp.DType.TINYINT: 8,
    exp.DType.SMALLINT: 16,
    exp.DType.INT: 32,
    exp.DType.BIGINT: 64,
}
"""Types of whole numbers, and how many bits each has."""
_TEXTS = (exp.DType.TEXT, exp.DType.VARCHAR)
_COLUMNS: Mapping[pa.DataType, exp.DType] = {
    pa.int8(): exp.DType.TINYINT,
    pa.int16(): exp.DType.SMALLINT,
    pa.int32(): exp.DType.INT,
    pa.int64(): exp.DType.BIGINT,
    pa.string(): exp.DType.TEXT,
}
"""Types of key columns."""

_Admits = Callable[[Any], bool]
"""Whether a value is one of a type."""


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """columns: the places of the answer's columns in the view. parameters: for each column of the key, the place of its
    value among the query's parameters, and the types through which the query casts it."""

    view: str
    route: ViewRoute
    columns: tuple[int, ...]
    parameters: tuple[tuple[int, tuple[_Admits, ...]], ...]

    @classmethod
    def of(cls, query: ViewQuery) -> Self | None:
        """``None`` if the query is none."""
        tree, routes = query.tree, query.routes
        if not isinstance(tree, exp.Select) or len(routes) != 1:
            return None
        ((view, route),) = routes.items()
        source, where = tree.args.get("from_"), tree.args.get("where")
        table = None if source is None else source.this
        others = {name for name, part in tree.args.items() if part} - {"kind", "expressions", "from_", "where"}
        if others or where is None or not isinstance(table, exp.Table) or route.key_schema == EVERYTHING_KEY:
            return None
        if table.name != view or {name for name, part in table.args.items() if part} - {"this", "alias"}:
            return None
        if table.args.get("alias") is not None and table.args["alias"].args.get("columns"):
            return None
        names = _Names(table.alias_or_name.lower(), {name.lower(): name for name in route.schema.names})
        columns = _selected(tree.expressions, names, route)
        parameters = _parameters(where.this, names, route)
        return None if columns is None or parameters is None else cls(view, route, columns, parameters)

    def key(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """The key that these parameters name; ``None`` if one of them does not fit its column."""
        key = tuple(values[place] for place, _ in self.parameters)
        for value, (_, admits) in zip(key, self.parameters, strict=True):
            if value is not None and not all(admit(value) for admit in admits):
                return None
        return key

    def fits(self, answer: pa.Schema) -> bool:
        """Whether the view's columns are of the types that DuckDB gives the answer."""
        return all(
            self.route.schema.field(place).type == type for place, type in zip(self.columns, answer.types, strict=True)
        )


@dataclass(frozen=True, slots=True)
class _Names:
    """table: of the view in the query, in lower case. columns: of the view, by their names in lower case."""

    table: str
    columns: Mapping[str, str]

    def column(self, node: exp.Expr) -> str | None:
        """The column of the view that an expression is; ``None`` for another one."""
        if not isinstance(node, exp.Column) or (node.table and node.table.lower() != self.table):
            return None
        return self.columns.get(node.name.lower())


def _selected(expressions: Sequence[exp.Expr], names: _Names, route: ViewRoute) -> tuple[int, ...] | None:
    found: list[int] = []
    for each in expressions:
        node = each.this if isinstance(each, exp.Alias) else each
        if _is_all(node, names):
            found += range(len(route.schema))
        elif (column := names.column(node)) is not None:
            found.append(route.schema.get_field_index(column))
        else:
            return None
    return tuple(found)


def _is_all(node: exp.Expr, names: _Names) -> bool:
    """Whether it stands for all columns of the view."""
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        return node.table.lower() == names.table and not any(node.this.args.values())
    return isinstance(node, exp.Star) and not any(node.args.values())


def _parameters(
    condition: exp.Expr, names: _Names, route: ViewRoute
) -> tuple[tuple[int, tuple[_Admits, ...]], ...] | None:
    found: dict[str, tuple[int, tuple[_Admits, ...]]] = {}
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        equal = part.unnest()
        if not isinstance(equal, exp.EQ):
            return None
        sides = (equal.left, equal.right) if names.column(equal.left) is not None else (equal.right, equal.left)
        column, value = names.column(sides[0]), sides[1].unnest()
        if column is None or column not in route.key or column in found:
            return None
        types: list[object] = [_COLUMNS.get(route.schema.field(column).type)]
        while isinstance(value, exp.Cast) and not value.args.get("format"):
            types.append(value.to.this if not value.to.expressions else None)
            value = value.this.unnest()
        number = parameter_number(value)
        known = [admits for type in types if (admits := _admits(type)) is not None]
        if number is None or len(known) < len(types):
            return None
        found[column] = number - 1, tuple(known)
    return tuple(found[name] for name in route.key) if len(found) == len(route.key) else None


def _admits(type: object) -> _Admits | None:
    """Which values a type has, and a cast to it leaves as they are; ``None`` for any other type."""
    if type in _TEXTS:
        return lambda value: isinstance(value, str)
    bits = _WHOLE.get(type) if isinstance(type, exp.DType) else None
    return None if bits is None else partial(_is_whole, bits)


def _is_whole(bits: int, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits - 1) <= value < 1 << bits - 1
