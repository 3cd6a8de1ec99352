"""Bounds of single values that a query computes: DuckDB counts memory by blocks of rows, and not what one call of a
function makes."""

from collections.abc import Mapping
from types import MappingProxyType

from sqlglot import exp

from upriver.errors import UnsupportedSql

VALUE_BYTES_MAX = 65_536
"""Bytes of a text that a function repeats or pads."""
VALUES_MAX = 65_536
"""Elements of an array that a function counts up."""
_UNBOUNDED: Mapping[str, str] = MappingProxyType(
    {
        "format": "use || and lpad()",
        "printf": "use || and lpad()",
        "bar": "use repeat()",
        "list_resize": "name the elements",
        "array_resize": "name the elements",
    }
)
"""Functions that make values of any size from a few characters, in ways that no argument shows; and what to use."""


def with_bounded_values(tree: exp.Expr) -> exp.Expr:
    """The query in which no function makes a large value of a small one: it fails before it does. Raises UnsupportedSql
    for functions that cannot be bounded."""
    for node in reversed(list(tree.walk())):
        if isinstance(node, exp.Repeat):
            size = exp.Mul(this=exp.Anonymous(this="strlen", expressions=[_text(node.this)]), expression=_count(node))
            node.set("times", _checked(node.args["times"], size, "repeat()"))
        elif isinstance(node, exp.Pad):
            length = _checked(node.expression, node.expression.copy(), "lpad() or rpad()")
            node.set("expression", exp.cast(length, exp.DType.INT))
        elif isinstance(node, exp.Space):
            node.set("this", _checked(node.this, node.this.copy(), "space()"))
        elif _is_counted(node):
            _check_counted(node)
        elif (name := _name(node)) in _UNBOUNDED:
            raise UnsupportedSql(f"{name}() makes texts or arrays without a bound: {_UNBOUNDED[name]}")
    return tree


def _text(value: exp.Expr) -> exp.Expr:
    return exp.cast(value.copy(), exp.DType.TEXT)


def _count(node: exp.Repeat) -> exp.Expr:
    return exp.cast(node.args["times"].copy(), exp.DType.DOUBLE)


def _checked(argument: exp.Expr, size: exp.Expr, what: str) -> exp.Expr:
    """The argument, which fails if the value would be too large. It fails by itself, and not around the call, since
    DuckDB computes calls with constants at once."""
    why = exp.Literal.string(f"{what}: a text of more than {VALUE_BYTES_MAX:,} bytes")
    too_large = exp.GT(this=exp.Paren(this=size), expression=exp.Literal.number(VALUE_BYTES_MAX))
    fails = exp.cast(exp.Anonymous(this="error", expressions=[why]), exp.DType.BIGINT)
    return exp.Case(ifs=[exp.If(this=too_large, true=fails)], default=argument.copy())


def _name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return node.sql_name().lower() if isinstance(node, exp.Format) else ""


def _is_counted(node: exp.Expr) -> bool:
    """Whether it counts up an array, and not rows of FROM, which are bounded otherwise."""
    is_call = isinstance(node, exp.GenerateSeries | exp.ExplodingGenerateSeries) or _name(node) in ("range", "sequence")
    return is_call and not isinstance(node.parent, exp.Table)


def _check_counted(node: exp.Expr) -> None:
    numbers = [_whole(value) for value in node.iter_expressions()]
    if None in numbers or not numbers:
        raise UnsupportedSql(f"{node.sql()}: an array is counted up between whole numbers only; FROM takes any")
    first, last, step = (*numbers, 1)[:3] if len(numbers) > 1 else (0, numbers[0], 1)
    assert first is not None
    assert last is not None
    if step and abs(last - first) // abs(step) >= VALUES_MAX:
        raise UnsupportedSql(f"{node.sql()}: an array of more than {VALUES_MAX:,} elements")


def _whole(value: exp.Expr) -> int | None:
    """The whole number that is written there."""
    if isinstance(value, exp.Neg) and (number := _whole(value.this)) is not None:
        return -number
    return int(value.name) if isinstance(value, exp.Literal) and value.is_int else None
