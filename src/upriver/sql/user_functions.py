"""The functions in Python that a view calls: declared with the app, or registered in the user's session.

One of the session comes with Spark's plan, as PySpark has pickled it. A worker is the first to unpickle it.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence

import pyarrow as pa

from upriver.plan.plan import DECLARED_CALL, FunctionForm, UserFunction
from upriver.plan.relation import Scalar
from upriver.plan.types import duck_name, is_nested, is_null, spark_name
from upriver.sql.functions.arithmetic import CAST_IT
from upriver.sql.functions.scalars import Context
from upriver.sql.functions.signatures import call_of_users
from upriver.sql.tree import TreeNode

_FORMS = {100: FunctionForm.ROW, 101: FunctionForm.ROW, 200: FunctionForm.PANDAS, 250: FunctionForm.ARROW}
"""By what PySpark calls a function's kind: plain, plain by Arrow, pandas, Arrow."""
_DECLARE_IT = "Declare it: app.function(name, f, ...)."


class UserFunctions:
    """The functions of one view. declared: with the app, by name in lower case."""

    def __init__(self, declared: Mapping[str, UserFunction]) -> None:
        self._declared = declared
        self._called: dict[str, UserFunction] = {}

    @property
    def called(self) -> tuple[UserFunction, ...]:
        """Those that an expression has called so far, each once."""
        return tuple(self._called.values())

    def call(self, context: Context, node: TreeNode, operands: Sequence[Scalar]) -> Scalar:
        """The value of a call. node: Spark's PythonUDF. Raises UnsupportedSql, DeclarationError."""
        name, pickled = str(node.fields["name"]), b64decode(node.fields["func"])
        declared = self._declared.get(name.lower())
        if declared is not None and (not pickled or DECLARED_CALL.encode() in pickled):
            function = declared
        else:
            function = _of_session(context, node, name, pickled, operands)
        self._called[function.sql_name] = function
        return call_of_users(context, node.place, function, operands)


def _of_session(
    context: Context, node: TreeNode, name: str, pickled: bytes, operands: Sequence[Scalar]
) -> UserFunction:
    form = _FORMS.get(node.fields["evalType"])
    if form is None:
        what = f"the function {name}(), of iterators or of groups,"
        raise context.unsupported(node.place, what, "A view calls functions of single values, of Arrow or of pandas.")
    if not pickled:
        what = f"the function {name}(), larger than a MiB or with broadcast variables,"
        raise context.unsupported(node.place, what, _DECLARE_IT)
    if not operands:
        what = f"the function {name}(), of no operands,"
        raise context.unsupported(node.place, what, "It is a constant: write its value.")
    for type in (*(operand.type for operand in operands), node.type):
        if type is None or is_null(type) or not _is_passed(type, form):
            what = f"{'this type' if type is None else spark_name(type)}, which {name}() takes or gives,"
            is_declarable = type is not None and pa.types.is_timestamp(type)
            raise context.unsupported(node.place, what, _DECLARE_IT if is_declarable else CAST_IT)
    assert node.type is not None
    return UserFunction(name, tuple(operand.type for operand in operands), node.type, form, pickled)


def _is_passed(type: pa.DataType, form: FunctionForm) -> bool:
    """Whether a function gets the same value of this type from Spark and from a worker. Spark takes the zone away."""
    if pa.types.is_timestamp(type) and type.tz is not None and form is not FunctionForm.ARROW:
        return False
    return duck_name(type) is not None and not is_nested(type)
