"""Generators: functions that make several rows of one, such as explode().

They stand in LATERAL VIEW, in FROM behind LATERAL, in FROM by themselves, and in SELECT. Each is an operator behind the
rows that it is applied to (:class:`upriver.plan.plan.ExplodeOp`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.types as kinds
from sqlglot import exp

from upriver.plan.plan import ExplodeOp
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import Place
from upriver.plan.types import (
    array_type,
    duck_name,
    is_array,
    is_map,
    is_null,
    is_untyped,
    parts_of,
    same_type,
    struct_type,
)
from upriver.sql.aggregates import has_aggregate
from upriver.sql.detached import detach
from upriver.sql.nested_values import each
from upriver.sql.scalars import Context, construct, null, strict, typed_name
from upriver.sql.scope import Scope, ScopeColumn, Setting, unique
from upriver.sql.scope import place as put_at

_SUBQUERY = "Explode in a subquery: FROM (SELECT explode(x) AS e, ... FROM t)."


@dataclass(frozen=True, slots=True)
class Generated:
    """What a generator gives for each row. elements: the list of it. titles: of its columns; the first is that of the
    place in the list, if it ``has_place``. keeps_empty: whether a row without elements stays."""

    elements: Scalar
    titles: tuple[str, ...]
    has_place: bool
    keeps_empty: bool

    def op(self, names: Sequence[str]) -> ExplodeOp:
        """names: of the columns."""
        first = int(self.has_place)
        type = self.elements.type.value_type
        return ExplodeOp(
            self.elements.sql, type, tuple(names[first:]), names[0] if self.has_place else None, self.keeps_empty
        )


def generated(context: Context, node: exp.Expr, keeps_empty: bool) -> Generated:
    """A bound call of a generator. Raises UnsupportedSql."""
    name = node.name.lower() if isinstance(node, exp.Anonymous) else ""
    if name not in GENERATORS:
        instead = "Take explode(), posexplode(), inline() or stack(), or join ON an equality."
        raise context.unsupported(node, construct(node), instead)
    context.only(node, "this", "expressions")
    keeps_empty = keeps_empty or name.endswith("_outer")
    if name == "stack":
        return _stack(context, node, keeps_empty)
    if len(node.expressions) != 1:
        raise context.unsupported(node, f"{name}() of {len(node.expressions)} operands", "Give it one list.")
    given = context.translate(node.expressions[0])
    if is_untyped(given.type):
        raise context.unsupported(node, f"{name}() of {typed_name(given)}", "Give it a type: CAST(... AS ...).")
    elements = list_of(context, node, given)
    type = elements.type.value_type
    if name.startswith("inline"):
        if not kinds.is_struct(type):
            raise context.unsupported(node, f"{name}() of no ARRAY of STRUCTs", "Take explode().")
        return Generated(elements, tuple(field.name for field in type), False, keeps_empty)
    is_map = kinds.is_struct(type) and kinds.is_map(given.type)
    if kinds.is_struct(type) and not is_map:
        elements = as_one_column(elements)
    titles = ("key", "value") if is_map else ("col",)
    has_place = name.startswith("posexplode")
    return Generated(elements, (*(["pos"] if has_place else []), *titles), has_place, keeps_empty)


def list_of(context: Context, place: Place, value: Scalar) -> Scalar:
    """A list: of entries, key and value, if it is a map. Raises UnsupportedSql for other values."""
    if is_array(value.type):
        return value
    if is_map(value.type):
        entries = each(f"map_entries({value.sql})", lambda one: f"{{'f0': {one}.key, 'f1': {one}.value}}")
        return strict(entries, array_type(struct_type(["key", "value"], parts_of(value.type))), (value,))
    what = f"{typed_name(value)} where an ARRAY or a MAP is wanted"
    raise context.unsupported(place, what, "Give it a column of type ARRAY or MAP, split(s, ',') or sequence(a, b).")


def as_one_column(elements: Scalar) -> Scalar:
    """A list of structs as one whose elements have the struct as their only field."""
    type = array_type(struct_type(["col"], [elements.type.value_type]))
    return replace(elements, sql=each(elements.sql, lambda one: f"{{'f0': {one}}}"), type=type)


def _stack(context: Context, node: exp.Expr, keeps_empty: bool) -> Generated:
    count = context.translate(node.expressions[0]).constant if node.expressions else None
    return stacked(context, node, count, context.translate_all(node.expressions[1:]), keeps_empty)


def stacked(context: Context, place: Place, count: object, given: Sequence[Scalar], keeps_empty: bool) -> Generated:
    """``stack(n, a, b, ...)``: the values in n rows."""
    if not isinstance(count, int) or not 1 <= count <= len(given):
        raise context.unsupported(place, "stack() without a number of rows", "Write it: stack(2, a, b, c, d).")
    values = list(given)
    width = -(-len(values) // count)
    values += [null(pa.null())] * (count * width - len(values))
    types = []
    for column in range(width):
        typed = [value for value in values[column::width] if not is_null(value.type)]
        if not typed or duck_name(typed[0].type) is None or any(not same_type(v.type, typed[0].type) for v in typed):
            named = ", ".join(dict.fromkeys(map(typed_name, typed))) or "NULL"
            raise context.unsupported(place, f"stack() with a column of {named}", "CAST its values to one type.")
        types.append(typed[0].type)
    texts = [
        f"'f{number % width}': {(null(types[number % width]) if is_null(value.type) else value).sql}"
        for number, value in enumerate(values)
    ]
    rows = [", ".join(texts[start : start + width]) for start in range(0, len(texts), width)]
    sql = f"[{', '.join(f'{{{row}}}' for row in rows)}]"
    type = pa.struct([(f"f{number}", type) for number, type in enumerate(types)])
    fails = any(value.fails for value in values)
    titles = tuple(f"col{number}" for number in range(width))
    return Generated(Scalar(sql, pa.list_(type), fails, nulls=frozenset()), titles, False, keeps_empty)


def exploded(relation: Relation, call: Generated, names: Sequence[str], place: int | None) -> Relation:
    """The rows, each once for each of its elements. names: of the new columns."""
    op = call.op(names)
    schema = pa.schema([*relation.schema, *op.fields])
    return Relation(op, (relation,), schema, place, asks=(call.elements,))


GENERATORS = frozenset({"stack"}) | {
    name + outer for name in ("explode", "posexplode", "inline") for outer in ("", "_outer")
}


# In SELECT ------------------------------------------------------------------------------------------------------------


def is_generator(node: exp.Expr) -> bool:
    """Whether it is a call of a generator."""
    return isinstance(node, exp.Anonymous) and node.name.lower() in GENERATORS


def explode_items(
    setting: Setting, relation: Relation, scope: Scope, select: exp.Select, taken: set[str]
) -> tuple[Relation, Scope]:
    """The rows, each once for each element that a generator in the SELECT gives; the call becomes names."""
    items = [item for item in select.expressions if is_generator(_unnamed(item))]
    if not items:
        return relation, scope
    if len(items) > 1:
        raise setting.source.unsupported(items[1], "a second generator in one SELECT", "Use LATERAL VIEW for both.")
    (item,) = items
    node = _unnamed(item)
    if _is_more(select):
        what = f"{node.name}() in a SELECT that groups rows or has window functions"
        raise setting.source.unsupported(node, what, _SUBQUERY)
    relation, bound = setting.attach(setting, relation, scope, scope.bind(detach(node.copy())), taken, None)
    context = setting.context(relation.schema, fails=relation.deferred, certain=relation.certain)
    call = generated(context, bound, False)
    names = [unique(f"{title} of {node.name.lower()}", taken) for title in call.titles]
    titles = _given(item) or list(call.titles)
    if len(titles) != len(names):
        raise setting.source.wrong(item, f"{len(titles)} names for {len(names)} columns", "Name each.")
    relation = exploded(relation, call, names, setting.source.place(node))
    columns = []
    for name, title in zip(names, titles, strict=True):
        scope = scope.hiding(ScopeColumn(name, name))
        column = exp.column(exp.to_identifier(name, quoted=True))
        put_at(column, node)
        columns.append(exp.alias_(column, title, quoted=True, copy=False))
    at = select.expressions.index(item)
    select.set("expressions", [*select.expressions[:at], *columns, *select.expressions[at + 1 :]])
    return relation, scope


def _is_more(select: exp.Select) -> bool:
    grouped = select.args.get("group") is not None or select.args.get("having") is not None
    return grouped or any(has_aggregate(item) or item.find(exp.Window) for item in select.expressions)


def _unnamed(item: exp.Expr) -> exp.Expr:
    unnamed: exp.Expr = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
    return unnamed


def _given(item: exp.Expr) -> list[str]:
    """The names that the query gives the columns."""
    if isinstance(item, exp.Aliases):
        return [name.name for name in item.expressions]
    return [item.alias] if isinstance(item, exp.Alias) else []
