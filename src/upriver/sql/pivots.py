"""PIVOT: groups by all other columns, with a column for each value and aggregate.

Where all aggregates are numbers or truths, Spark groups twice: by the value, too, and then it takes for each value what
its group has, or NULL. Here both are one aggregate, with a FILTER for each value. Of other types Spark itself makes one
aggregate of IF for each value, without ``pivotfirst``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import pyarrow as pa

from upriver.plan.column_names import unique
from upriver.plan.relation import Relation, Scalar
from upriver.plan.types import is_floating
from upriver.sql.attachments import attached
from upriver.sql.expressions import Expressions
from upriver.sql.functions.aggregates import Call
from upriver.sql.functions.scalars import FALSE
from upriver.sql.groups import CALL, Groups
from upriver.sql.relations import Output, projected
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode, changed

_FIRST = "PivotFirst"


def is_pivot(node: TreeNode) -> bool:
    """Whether an Aggregate is the second one of PIVOT."""
    return any(map(_call, node.fields["aggregateExpressions"]))


def _call(listed: TreeNode) -> TreeNode | None:
    """The ``pivotfirst`` that an output is."""
    child = listed.children[0] if listed.kind == "Alias" else listed
    function = child.children[0] if child.kind == CALL else child
    return function if function.kind == _FIRST else None


@dataclass(frozen=True, slots=True)
class _Grouped:
    """The first Aggregate. rows: beneath it. given: its outputs, by id. key: the expression of the values. others: the
    other grouping expressions, in the order of the second one."""

    rows: TreeNode
    given: Mapping[int, TreeNode]
    key: TreeNode
    others: Sequence[TreeNode]


def pivoted(translation: Translation, node: TreeNode) -> Relation:
    """The rows of PIVOT. Each element of the arrays that Spark makes is a column."""
    listed = node.fields["aggregateExpressions"]
    pivots = [(one, function) for one in listed if (function := _call(one)) is not None]
    first = _grouped(node, [function for _, function in pivots])
    if first is None:
        return _of_two(translation, node, pivots)
    calls = [part for one in first.given.values() for part in one.walk() if part.kind == CALL]
    rows = attached(translation, translation.relation(first.rows), [first.key, *first.others, *calls])
    groups, over = Groups(translation, rows, first.others, node.place), translation.over(rows)
    found: list[tuple[str, TreeNode, TreeNode]] = []
    for one, function in pivots:
        value = first.given[function.fields["valueColumn"].id]
        for test, name in _columns(translation, one, function, over, first.key):
            there = groups.column_of(Call("count_star", None, pa.int64(), where=test), node)
            found.append((name, there, _tested(groups, value, test)))
    made = groups.relation()
    result = translation.over(made)
    outputs = [
        Output(translation.name(one), result.of(groups.over_groups(first.given[one.id])))
        for one in listed
        if one.is_column
    ]
    for name, there, value in found:
        some, given = result.of(there), result.of(value)
        outputs.append(Output(name, Scalar(f"CASE WHEN {some.sql} > 0 THEN {given.sql} END", given.type, given.fails)))
    return projected(made, outputs, node.place)


def _grouped(node: TreeNode, functions: Sequence[TreeNode]) -> _Grouped | None:
    """``None`` if the two cannot be one."""
    (below,) = node.children
    keys = {function.fields["pivotColumn"].id for function in functions}
    if below.kind != "Aggregate" or is_pivot(below) or len(keys) > 1:
        return None
    given = {one.id: one.children[0] if one.kind == "Alias" else one for one in below.fields["aggregateExpressions"]}
    grouping = {one.meaning: one for one in below.fields["groupingExpressions"]}
    asked = [*node.fields["groupingExpressions"], functions[0].fields["pivotColumn"]]
    if not all(one.is_column and one.id in given and given[one.id].meaning in grouping for one in asked):
        return None
    *others, key = (given[one.id] for one in asked)
    if {key.meaning, *(one.meaning for one in others)} != grouping.keys() or key.meaning in {o.meaning for o in others}:
        return None
    values = [changed(given[function.fields["valueColumn"].id], _without_calls) for function in functions]
    if any(part.meaning == key.meaning for one in values for part in one.walk()):
        return None
    return _Grouped(below.children[0], given, key, others)


def _without_calls(node: TreeNode) -> TreeNode | None:
    return TreeNode("Literal", {"value": None, "dataType": "void"}) if node.kind == CALL else None


def _tested(groups: Groups, value: TreeNode, test: Scalar) -> TreeNode:
    return changed(value, lambda part: groups.column(part, test) if part.kind == CALL else None)


def _columns(
    translation: Translation, listed: TreeNode, function: TreeNode, over: Expressions, key: TreeNode
) -> list[tuple[Scalar, str]]:
    """For each value of a ``pivotfirst``: the test that a row has it, and the name of its column. key: the expression
    that has the value."""
    values: list[Any] = function.fields["pivotColumnValues"]
    column = function.fields["pivotColumn"]
    found = []
    for place, value in enumerate(values):
        name = unique(f"{listed.fields['name']} {place}", translation.taken)
        for flag in (True, False):
            translation.beside[_element(translation, listed, place, flag).meaning] = name
        is_nan = is_floating(column.type) and value is not None and isnan(float(value))  # which Spark does not find
        found.append((FALSE if is_nan else _equal(over, key, column, value), name))
    return found


def _equal(over: Expressions, key: TreeNode, column: TreeNode, value: Any) -> Scalar:
    constant = TreeNode(
        "Literal", {"value": value, "dataType": column.fields["dataType"]}, type=column.type, name="literal"
    )
    test = TreeNode("EqualNullSafe", {"left": key, "right": constant}, (key, constant), pa.bool_(), place=key.place)
    return over.of(test)


def _element(translation: Translation, listed: TreeNode, place: int, fails: bool) -> TreeNode:
    """The element of Spark's array, as a projection above names it."""
    column = TreeNode("AttributeReference", {"name": listed.fields["name"], "exprId": listed.id})
    ordinal = TreeNode("Literal", {"value": place, "dataType": "integer"})
    fields = {"child": column, "ordinal": ordinal, "failOnError": fails}
    return TreeNode("GetArrayItem", fields, (column, ordinal))


def _of_two(translation: Translation, node: TreeNode, pivots: Sequence[tuple[TreeNode, TreeNode]]) -> Relation:
    """The second of two aggregates. Each group of the first has one row for a value."""
    listed = node.fields["aggregateExpressions"]
    rows = translation.relation(node.children[0])
    groups, over = Groups(translation, rows, node.fields["groupingExpressions"], node.place), translation.over(rows)
    found: list[tuple[str, TreeNode]] = []
    for one, function in pivots:
        value = over.of(function.fields["valueColumn"])
        for test, name in _columns(translation, one, function, over, function.fields["pivotColumn"]):
            found.append((name, groups.column_of(Call("any_value", value, value.type, where=test), node)))
    made = groups.relation()
    result = translation.over(made)
    outputs = [Output(translation.name(one), result.of(groups.over_groups(one))) for one in listed if one.is_column]
    outputs += [Output(name, result.of(column)) for name, column in found]
    return projected(made, outputs, node.place)
