"""Structs, arrays and maps as DuckDB SQL: their parts, and forms of them that are made anew part by part.

In DuckDB's types, fields of structs are numbered (:func:`upriver.plan.types.duck_name`). The variable of each lambda
has a name of its own: a lambda's body may hold others.
"""

import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from upriver.plan.types import field_name, is_array, is_map, is_struct, parts_of

ELEMENTS_MAX = 1_000_000
"""Elements of a list that a function makes of one row: a few megabytes."""
TOO_MANY = f"error('A list of more than {ELEMENTS_MAX:,} elements')"
"""DuckDB SQL of the error."""
_VARIABLE = re.compile(r"\be_(\d+)\b")

Leaf = Callable[[str, pa.DataType], str]
"""DuckDB SQL of a value that is not nested, from that of another, and its type."""


def fresh(*texts: str) -> str:
    """The name of a variable that is in none of these texts."""
    used = [int(number) for text in texts for number in _VARIABLE.findall(text)]
    return f"e_{max(used, default=0) + 1}"


def each(array: str, body: Callable[[str], str], *captured: str) -> str:
    """An array with a value for each element. captured: what the body names besides the element."""
    name = fresh(array, *captured)
    return f"list_transform({array}, lambda {name}: {body(name)})"


def once(value: str, body: Callable[[str], str], *captured: str) -> str:
    """A text that names the value several times, and computes it once."""
    return f"{each(f'[{value}]', body, *captured)}[1]"


def field_sql(struct: str, place: int) -> str:
    """A field of a struct; NULL if the struct is."""
    return f"({struct}).{field_name(place)}"


def struct_sql(parts: Sequence[str]) -> str:
    """The struct of these fields."""
    named = ", ".join(f"'{field_name(place)}': {part}" for place, part in enumerate(parts))
    return f"{{{named}}}"


def remade(value: str, type: pa.DataType, leaf: Leaf) -> str:
    """The same value with other leaves; a NULL on the way stays one."""
    if is_array(type):
        return each(value, lambda element: remade(element, type.value_type, leaf))
    if is_map(type):
        key, item = parts_of(type)
        keys = each(f"map_keys({value})", lambda one: remade(one, key, leaf))
        return f"MAP({keys}, {each(f'map_values({value})', lambda one: remade(one, item, leaf))})"
    if not is_struct(type):
        return leaf(value, type)

    def struct(given: str) -> str:
        parts = [remade(field_sql(given, place), part, leaf) for place, part in enumerate(parts_of(type))]
        return f"CASE WHEN {given} IS NOT NULL THEN {struct_sql(parts)} END"

    return once(value, struct)


def order_form(value: str, type: pa.DataType) -> str:
    """A value that DuckDB sorts as Spark sorts the given one: NULL before all others, in structs and arrays too."""
    if is_array(type):
        return each(value, lambda one: f"{{'n': {one} IS NOT NULL, 'v': {order_form(one, type.value_type)}}}")
    if not is_struct(type):
        return value

    def struct(given: str) -> str:
        parts = [
            f"'n{place}': {field_sql(given, place)} IS NOT NULL, "
            f"'v{place}': {order_form(field_sql(given, place), part)}"
            for place, part in enumerate(parts_of(type))
        ]
        return f"CASE WHEN {given} IS NOT NULL THEN {{{', '.join(parts)}}} END"

    return once(value, struct)
