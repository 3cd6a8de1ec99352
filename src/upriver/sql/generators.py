"""Generators: explode and its kin, in LATERAL VIEW, in SELECT, and in FROM."""

from collections.abc import Mapping

from upriver.plan.relation import Relation
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_map, is_struct, is_untyped
from upriver.sql.attachments import attached
from upriver.sql.expressions import Expressions
from upriver.sql.functions.generators import Generated, as_one_column, exploded, list_of, stacked
from upriver.sql.functions.scalars import typed_name
from upriver.sql.literals import whole
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode

_EXPLODED = {"Explode": False, "PosExplode": True}
"""Whether the place in the list comes first."""
_KNOWN = "Take explode(), posexplode(), inline() or stack(), or join ON an equality."


def _generated(translation: Translation, node: TreeNode) -> Relation:
    generator = node.fields["generator"]
    rows = attached(translation, translation.relation(node.children[0]), [generator])
    names = [translation.name(one) for one in node.fields["generatorOutput"]]
    call = generated(generator, names, bool(node.fields["outer"]), translation.over(rows))
    return exploded(rows, call, names, node.place)


def generated(generator: TreeNode, names: list[str], keeps_empty: bool, over: Expressions) -> Generated:
    """What a generator gives for each row, in columns of these names. Raises UnsupportedSql."""
    kind, context, place = generator.kind, over.context, generator.place
    if kind == "Stack":
        count, *values = generator.children
        return stacked(context, place, whole(count), [over.of(one) for one in values], keeps_empty)
    if kind not in _EXPLODED and kind != "Inline":
        raise context.unsupported(place, f"the function {generator.name}()", _KNOWN)
    given = over.of(generator.children[0])
    if is_untyped(given.type):
        raise context.unsupported(place, f"{generator.name}() of {typed_name(given)}", "Give it a type: CAST(...).")
    elements = list_of(context, place, given)
    if kind != "Inline" and not is_map(given.type) and is_struct(elements.type.value_type):
        elements = as_one_column(elements)
    has_place = _EXPLODED.get(kind, False)
    width = elements.type.value_type.num_fields if is_struct(elements.type.value_type) else 1
    if width + has_place != len(names):
        raise context.unsupported(place, f"{generator.name}() with {len(names)} columns", ELSEWHERE)
    return Generated(elements, tuple(names), has_place, keeps_empty)


RULES: Mapping[str, Rule] = {"Generate": _generated}
