"""Generators: explode and its kin."""

import pyarrow as pa

from upriver.plan.relation import Relation
from upriver.plan.source import ELSEWHERE
from upriver.sql.generators import Generated, exploded
from upriver.sql.resolved.translation import Rule, Translation
from upriver.sql.resolved.tree import Node


def _generate(translation: Translation, node: Node) -> Relation:
    below = translation.relation(node.children[0])
    generator = node.fields["generator"]
    if generator.kind not in ("Explode", "PosExplode") or not pa.types.is_list(generator.children[0].type or pa.null()):
        raise translation.source.unsupported(node.place, generator.name, ELSEWHERE)
    value = translation.over(below).of(generator.children[0])
    names = [translation.name(one) for one in node.fields["generatorOutput"]]
    return exploded(
        below,
        Generated(value, tuple(names), generator.kind == "PosExplode", bool(node.fields["outer"])),
        names,
        node.place,
    )


RULES: dict[str, Rule] = {
    "Generate": _generate,
}
