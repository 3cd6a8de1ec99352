"""What an expression needs beside the columns of its rows: values of subqueries that name nothing around, tests of the
clock, and values of the clock."""

from collections.abc import Iterable

import pyarrow as pa

from upriver.plan.clock import ClockColumn, ClockOp, ClockTest
from upriver.plan.column_names import unique
from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation
from upriver.plan.types import is_date, is_integer
from upriver.sql.clock import (
    ClockComparison,
    ClockValue,
    comparison_of,
    names_clock,
    shown_value,
)
from upriver.sql.clock_columns import clocked, with_clock_column
from upriver.sql.expressions import CLOCKS, is_never_null
from upriver.sql.functions.casts import cast
from upriver.sql.functions.logic import connect
from upriver.sql.functions.scalars import column_scalar
from upriver.sql.joins import joined
from upriver.sql.one_row import only_row
from upriver.sql.relations import Output, at_most_one, projected, with_values
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode, changed
from upriver.zones import zone_name

SUBQUERY = "ScalarSubquery"


def attached(translation: Translation, rows: Relation, nodes: Iterable[TreeNode]) -> Relation:
    """The rows with a column for each part of the expressions that is computed beside them. Columns that the rows have
    already are used again."""
    listed = list(nodes)
    for one in (part for node in listed for part in node.walk()):
        if one.kind == SUBQUERY and translation.beside.get(one.meaning) not in rows.schema.names:
            rows, translation.beside[one.meaning] = _with_value(translation, rows, one)
    for one in listed:
        if names_clock(one):
            rows = _with_clock(translation, rows, one)
    return rows


def with_columns(translation: Translation, rows: Relation, node: TreeNode) -> TreeNode:
    """An expression with columns of these rows in the places of what is attached to them."""
    made: dict[str, TreeNode] = {}

    def column(one: TreeNode) -> TreeNode | None:
        name = translation.beside.get(one.meaning)
        if name is None or name not in rows.schema.names:
            return None
        if name not in made:
            made[name] = translation.of_name(name, rows.schema.field(name).type)
        return made[name]

    return changed(node, column)


def _with_value(translation: Translation, rows: Relation, node: TreeNode) -> tuple[Relation, str]:
    plan = node.fields["plan"]
    value = translation.exact(translation.relation(plan), plan.output)
    if not at_most_one(value):
        value = only_row(value, (), translation.taken, node.place)
    name = unique("value", translation.taken)
    value = projected(value, [Output(name, column_scalar(value.schema.names[0], value.schema.types[0]))], None)
    return joined(translation, JoinKind.LEFT, rows, value, [], node.place), name


# The clock -----------------------------------------------------------------------------------------------------------


def _with_clock(translation: Translation, rows: Relation, node: TreeNode) -> Relation:
    """The rows with tests and values of the clock for an expression: with the largest parts of it that are such."""
    if not names_clock(node) or translation.beside.get(node.meaning) in rows.schema.names:
        return rows
    if node.kind in ("IsNotNull", "IsNull") and is_never_null(node.children[0]):
        return rows
    compared = comparison_of(node, translation.zone)
    if compared is not None and _can_be_computed(translation, rows, compared.value):
        rows, translation.beside[node.meaning] = _with_test(translation, rows, node, compared)
        return rows
    if node.kind == "In":
        found = _with_tests(translation, rows, node)
        if found is not None:
            return found
    value = None if node.kind == "Alias" else shown_value(node, translation.zone)
    if value is not None:
        rows, translation.beside[node.meaning] = _with_column(translation, rows, node, value)
        return rows
    if node.kind in CLOCKS:
        return _with_cast(translation, rows, node)
    for one in node.children:
        rows = _with_clock(translation, rows, one)
    return rows


def _can_be_computed(translation: Translation, rows: Relation, node: TreeNode) -> bool:
    """Whether a value is of the columns of these rows alone, and no part of a lambda."""
    if any(one.kind == "NamedLambdaVariable" for one in node.walk()):
        return False
    return translation.names_in(node) <= set(rows.schema.names)


def _with_test(
    translation: Translation, rows: Relation, node: TreeNode, compared: ClockComparison
) -> tuple[Relation, str]:
    over = translation.over(rows)
    value = over.of(compared.value)
    if is_integer(value.type):
        value = cast(over.context, node.place, value, pa.int64())
    rows, (column,) = with_values(rows, [Output("compared", value)], translation.taken)
    output = unique("passes", translation.taken)
    zone, steps = zone_name(translation.zone), compared.clock.steps
    test = ClockTest(column, compared.comparison, steps, zone, output, _worded(translation, compared.written))
    return clocked(rows, ClockOp((test,)), node.place), output


def _with_tests(translation: Translation, rows: Relation, node: TreeNode) -> Relation | None:
    """``value IN (...)`` as a column, if each comparison with the clock is a test; else ``None``."""
    value, *items = node.children
    equal = [TreeNode("EqualTo", {}, (value, one), pa.bool_(), place=node.place, end=node.end) for one in items]
    tests = {one.meaning: comparison_of(one, translation.zone) for one in equal if names_clock(one)}
    for test in tests.values():
        if test is None or not _can_be_computed(translation, rows, test.value):
            return None
    for one in equal:
        rows = _with_clock(translation, rows, one)
    found = connect("OR", translation.over(rows).all(equal))
    rows, (name,) = with_values(rows, [Output("found", found)], translation.taken)
    translation.beside[node.meaning] = name
    return rows


def _with_column(translation: Translation, rows: Relation, node: TreeNode, value: ClockValue) -> tuple[Relation, str]:
    text = _worded(translation, node)
    column = ClockColumn(value.steps, zone_name(translation.zone), value.type, text, text)
    return with_clock_column(rows, column, translation.taken, node.place)


def _with_cast(translation: Translation, rows: Relation, node: TreeNode) -> Relation:
    """The rows with a date or a wall clock that goes back in this time zone, when its clocks are put back: computed
    from the instant."""
    assert node.type is not None
    type = pa.timestamp("us", tz=translation.zone)
    rows, now = _with_column(translation, rows, node, ClockValue(type, ()))
    context = translation.over(rows).context
    value = cast(context, node.place, translation.column(rows, now), node.type)
    rows, (name,) = with_values(rows, [Output(node.name, value)], translation.taken)
    translation.beside[node.meaning] = name
    return rows


def _worded(translation: Translation, node: TreeNode) -> str:
    """A function of the clock, for ``explain``: as the SQL has it, without casts that Spark has added to compare it."""
    if node.kind != "Cast" or node.type is None:
        return translation.worded(node)
    text = _worded(translation, node.children[0])
    is_day = is_date(node.type) and node.children[0].type != node.type
    return f"to_date({text})" if is_day else text
