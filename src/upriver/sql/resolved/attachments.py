"""What an expression needs beside the columns of its rows: values of subqueries that name nothing around."""

from collections.abc import Iterable

from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation
from upriver.sql.one_row import only_row
from upriver.sql.relations import Output, at_most_one, projected
from upriver.sql.resolved.joins import joined
from upriver.sql.resolved.translation import Translation
from upriver.sql.resolved.tree import Node
from upriver.sql.scalars import column_scalar
from upriver.sql.scope import unique

SUBQUERY = "ScalarSubquery"


def attached(translation: Translation, rows: Relation, nodes: Iterable[Node], again: bool = False) -> Relation:
    """The rows with a column for each part of the expressions that is computed beside them. again: whether those that
    rows beneath have are computed anew."""
    for one in (part for node in nodes for part in node.walk()):
        if one.kind == SUBQUERY and (again or one.meaning not in translation.beside):
            rows, translation.beside[one.meaning] = _with_value(translation, rows, one)
    return rows


def _with_value(translation: Translation, rows: Relation, node: Node) -> tuple[Relation, str]:
    plan = node.fields["plan"]
    value = translation.exact(translation.relation(plan), plan.output)
    if not at_most_one(value):
        value = only_row(value, (), translation.taken, node.place)
    name = unique("value", translation.taken)
    value = projected(value, [Output(name, column_scalar(value.schema.names[0], value.schema.types[0]))], None)
    return joined(translation, JoinKind.LEFT, rows, value, [], node.place), name
