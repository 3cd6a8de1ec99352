"""Two relations become one: what of ON is their key, what is asked of one side alone, and what of pairs of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation
from upriver.plan.ops import Join, JoinKind
from upriver.plan.sql_source import ELSEWHERE
from upriver.plan.sql_types import is_null
from upriver.sql.sql_conditions import Condition, restricted
from upriver.sql.sql_logic import conjunction
from upriver.sql.sql_operators import to_comparable
from upriver.sql.sql_pushdown import LEFT_MATCHED, RIGHT_MATCHED, matchable
from upriver.sql.sql_relations import Output, with_values
from upriver.sql.sql_scalar import Context, typed_name
from upriver.sql.sql_scope import names_in, worded

_NEEDED = "Say which columns are equal: ... JOIN ... ON a.x = b.y AND ..."


@dataclass(frozen=True, slots=True)
class _Equality:
    """One pair of the key, both of one type."""

    left: Output
    right: Output
    null_safe: bool


def equates(condition: Condition, left: pa.Schema, right: pa.Schema) -> bool:
    """Whether the condition is an equality between a value of one side and one of the other."""
    return _sides(condition.node, left, right) is not None


def join(
    context: Context,
    kind: JoinKind,
    left: Relation,
    right: Relation,
    on: Sequence[Condition],
    node: exp.Expr,
    taken: set[str],
) -> Relation:
    """The join of two relations that have no column name in common; it may have computed columns besides theirs.

    context: of the columns of both. node: what is joined, for its place. taken: names that no computed column may have,
    lower case; theirs are added. Raises UnsupportedSql if no condition is an equality between the two.
    """
    source = context.source
    keys = [_equality(context, condition, left.schema, right.schema) for condition in on]
    equalities = [key for key in keys if key is not None]
    if not equalities:
        raise without_equality(context, node)
    rest = [condition for condition, key in zip(on, keys, strict=True) if key is None]
    place = source.place(node)
    of_left = [one for one in rest if kind in LEFT_MATCHED and _asks_only(one, left)]
    of_right = [one for one in rest if kind in RIGHT_MATCHED and _asks_only(one, right)]
    of_pairs = [one.value for one in rest if one not in of_left and one not in of_right]
    left, left_key = _keyed(restricted(left, of_left, place), [key.left for key in equalities], taken)
    right, right_key = _keyed(restricted(right, of_right, place), [key.right for key in equalities], taken)
    null_safe = tuple(key.null_safe for key in equalities)
    for one, other, is_safe in zip(left_key, right_key, null_safe, strict=True):
        left = left if is_safe or kind not in LEFT_MATCHED else matchable(left, one, place)
        right = right if is_safe or kind not in RIGHT_MATCHED else matchable(right, other, place)
    op = Join(kind, left_key, right_key, null_safe, conjunction(of_pairs) if of_pairs else None)
    both = kind not in (JoinKind.SEMI, JoinKind.ANTI)
    schema = pa.schema([*left.schema, *(right.schema if both else ())])
    return Relation(op, (left, right), schema, place, asks=tuple(of_pairs))


def without_equality(context: Context, node: exp.Expr) -> Exception:
    """The error for what would be joined with everything else."""
    return context.unsupported(node, "a join without an equality between its sides", _NEEDED)


def _sides(node: exp.Expr, left: pa.Schema, right: pa.Schema) -> tuple[exp.Expr, exp.Expr] | None:
    """The operands of an equality: that of the left side first."""
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    for one, other in ((node.this, node.expression), (node.expression, node.this)):
        ones, others = names_in(one), names_in(other)
        if ones and others and ones <= set(left.names) and others <= set(right.names):
            return one, other
    return None


def _equality(context: Context, condition: Condition, left: pa.Schema, right: pa.Schema) -> _Equality | None:
    sides = _sides(condition.node, left, right)
    if sides is None:
        return None
    one, other = to_comparable(context, condition.node, context.translate_all(sides))
    if is_null(one.type):
        raise context.unsupported(condition.node, f"a join on {typed_name(one)}", ELSEWHERE)
    left, right = Output(worded(sides[0]), one), Output(worded(sides[1]), other)
    return _Equality(left, right, isinstance(condition.node, exp.NullSafeEQ))


def _asks_only(condition: Condition, side: Relation) -> bool:
    return bool(condition.names) and condition.names <= set(side.schema.names)


def _keyed(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, tuple[str, ...]]:
    """The relation with a column for each value of the key, and their names; what is a column already stays it."""
    relation, names = with_values(relation, values, taken)
    return relation, tuple(names)
