"""Functions of JSON texts."""

import pyarrow as pa

from upriver.engine.json_parts import read_path
from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.sql.functions.scalars import Context, opaque, string_sql
from upriver.sql.functions.signatures import Function, OperandKind, Operands, take


def _part(context: Context, place: Place, operands: Operands) -> Scalar:
    """``get_json_object(text, path)``."""
    path = operands[1].constant
    if not isinstance(path, str) or read_path(path) is None:
        raise context.unsupported(
            place, "this path of JSON", "Write one in quotes, such as '$.a[0].b' or '$['a b'][*]'."
        )
    text = take(context, place, OperandKind.STRING, operands[0])
    return opaque(Scalar(f"kernel_json_part({text.sql}, {string_sql(path)})", pa.string(), fails=True))


_PATHS = ("$", "$.a", "$['b c']", "$.a[1]", "$.a[*]", "$[*].a", "$[*].a[*]", "$.a[*].b", "$[0]", "$.a.b[*][*]", "$.é")

JSON: tuple[Function, ...] = (
    Function(
        "get_json_object",
        (OperandKind.STRING, OperandKind.WRITTEN),
        _part,
        "STRING",
        nulls="also without such a part, where it is null, and where the text is no JSON",
        samples="; ".join(f'get_json_object(documents, "{path}")' for path in _PATHS),
    ),
)
"""Of JSON."""
