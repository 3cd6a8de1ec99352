"""Values that are written out in a query: rows of VALUES, distances, fractions."""

import base64
import operator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from upriver.plan.types import is_array, is_decimal, is_floating, is_integer, is_map, is_struct
from upriver.sql.tree import TreeNode

_COMPUTED = {"Add": operator.add, "Subtract": operator.sub, "Multiply": operator.mul}
_LISTS = ("CreateArray", "Array")


def python_value(written: Any, type: pa.DataType) -> Any:
    """A constant, as the walker has written it, as Arrow takes it: dates and times as whole numbers."""
    if written is None:
        return None
    if is_decimal(type):
        return Decimal(written)
    if is_floating(type):
        return float(written)
    if type == pa.binary():
        return base64.b64decode(written)
    if is_array(type):
        return [python_value(one, type.value_type) for one in written]
    if is_map(type):
        keys, values = written
        pairs = zip(keys, values, strict=True)
        return [(python_value(key, type.key_type), python_value(value, type.item_type)) for key, value in pairs]
    if is_struct(type):
        return {field.name: python_value(one, field.type) for field, one in zip(type, written, strict=True)}
    return written


def written(node: TreeNode) -> Any:
    """The value of a literal, or of casts and sums of literals; a list, if it is an array of them. ``None`` for NULL,
    and for anything else."""
    if node.kind == "Literal":
        return None if node.type is None else python_value(node.fields["value"], node.type)
    if node.kind in _LISTS:
        return [written(one) for one in node.children]
    parts = [written(one) for one in node.children]
    if any(isinstance(one, bool | str) or not isinstance(one, int | float | Decimal | list) for one in parts):
        return None
    if node.kind == "Cast" and node.type is not None:
        return _cast(parts[0], node.type)
    if node.kind == "UnaryMinus":
        return -parts[0]
    if node.kind in _COMPUTED and all(isinstance(one, int) for one in parts):
        return _COMPUTED[node.kind](*parts)
    return None


def _cast(value: Any, type: pa.DataType) -> Any:
    """A number as one of another type that holds it."""
    if isinstance(value, list):
        return [None if one is None else _cast(one, type.value_type) for one in value]
    if is_floating(type):
        return float(value)
    if is_decimal(type):
        exact = Decimal(value)
        return exact if exact == round(exact, type.scale) else None
    return int(value) if is_integer(type) and value == int(value) else None


def whole(node: TreeNode) -> int | None:
    """The whole number that is written out; ``None`` for anything else."""
    value = written(node)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
