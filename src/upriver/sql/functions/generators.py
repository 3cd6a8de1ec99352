"""Generators: functions that make several rows of one, such as explode().

They stand in LATERAL VIEW, in FROM behind LATERAL, in FROM by themselves, and in SELECT. Each is an operator behind the
rows that it is applied to (:class:`upriver.plan.plan.ExplodeOp`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.plan.plan import ExplodeOp
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import Place
from upriver.plan.types import (
    array_type,
    duck_name,
    is_array,
    is_map,
    is_null,
    parts_of,
    same_type,
    struct_type,
)
from upriver.sql.functions.nested_values import each
from upriver.sql.functions.scalars import Context, null, strict, typed_name


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


# In SELECT ------------------------------------------------------------------------------------------------------------
