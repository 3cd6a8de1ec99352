"""Groups: aggregates, grouping sets, PIVOT and sessions."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from upriver.plan.column_names import quoted
from upriver.plan.plan import AggregateCall, AggregateOp, AggregatePlan
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE
from upriver.sql.aggregates import AGGREGATES, Call, _all_of, of_one_row
from upriver.sql.aggregates import _call as _planned
from upriver.sql.one_row import of_everything
from upriver.sql.relations import Output, projected, union
from upriver.sql.resolved.attachments import SUBQUERY, attached
from upriver.sql.resolved.expressions import Expressions
from upriver.sql.resolved.translation import Rule, Translation
from upriver.sql.resolved.tree import Node
from upriver.sql.scalars import column_scalar, group_value
from upriver.sql.scope import unique


def _expand(translation: Translation, node: Node) -> Relation:
    below = translation.relation(node.children[0])
    over = translation.over(below)
    copies = []
    for listed in node.fields["projections"]:
        outputs = {
            translation.name(one): Output(translation.name(one), over.of(value))
            for one, value in zip(node.fields["output"], listed, strict=True)
        }
        copies.append(projected(below, list(outputs.values()), node.place))
    return union(copies, node.place)


def _aggregate(translation: Translation, node: Node) -> Relation:
    grouping, listed = node.fields["groupingExpressions"], node.fields["aggregateExpressions"]
    calls = [one for part in listed for one in part.walk() if one.kind == "AggregateExpression"]
    below = attached(translation, translation.relation(node.children[0]), [*grouping, *listed])
    over = translation.over(below)
    inputs: dict[str, Scalar] = {}
    keys: dict[str, str] = {}
    for one in grouping:
        if one.meaning in keys:
            continue
        is_plain = one.kind == "AttributeReference"
        value = group_value(over.of(one))
        name = (
            translation.name(one)
            if is_plain and value.sql == quoted(translation.name_of(one.id))
            else unique("group", translation.taken)
        )
        inputs[name], keys[one.meaning] = value, name
    found: dict[AggregateCall, AggregateCall] = {}
    results: dict[str, Scalar] = {}
    for one in calls:
        call = aggregate_call(translation, one, over)
        where = None if call.where is None else _argument(translation, inputs, call.where, keys)
        columns = (
            []
            if call.argument is None
            else [
                _argument(translation, inputs, _guarded(value, call.where), keys)
                for value in (call.argument, *call.others)
            ]
        )
        made = AggregateCall(
            call.function,
            columns[0] if columns else None,
            "",
            call.type,
            call.distinct,
            where,
            tuple(columns[1:]),
            call.fraction,
            call.between,
            fractions=call.fractions,
        )
        if made not in found:
            found[made] = replace(made, output=unique(one.children[0].name, translation.taken))
        results[one.meaning] = column_scalar(found[made].output, call.type)
    made_calls = of_one_row(tuple(found.values()))
    outputs = [Output(name, value) for name, value in inputs.items()]
    if not keys:
        rows = of_everything(below, outputs, made_calls, {}, translation.taken, node.place)
    else:
        source = projected(below, outputs, node.place)
        plan = AggregatePlan(tuple(keys.values()), made_calls)
        fields = [source.schema.field(name) for name in plan.group] + [
            pa.field(call.output, call.type) for call in made_calls
        ]
        rows = Relation(AggregateOp(plan), (source,), pa.schema(fields), node.place)

    def leaf(part: Node) -> Scalar | None:
        text = part.meaning
        if text in keys:
            return translation.column(rows, keys[text])
        if text in results:
            return results[text]
        name = translation.beside.get(part.meaning) if part.kind == SUBQUERY else None
        return None if name is None or name not in rows.schema.names else translation.column(rows, name)

    rows = attached(translation, rows, listed, again=True)
    return projected(
        rows,
        translation.outputs(listed, Expressions(translation.source, translation.zone, leaf, translation.functions)),
        node.place,
    )


def _argument(translation: Translation, inputs: dict[str, Scalar], value: Scalar, keys: Mapping[str, str]) -> str:
    for name, known in inputs.items():
        if name not in keys.values() and known.sql == value.sql and known.type == value.type:
            return name
    name = unique("argument", translation.taken)
    inputs[name] = value
    return name


def aggregate_call(translation: Translation, node: Node, over: Expressions) -> Call:
    """An AggregateExpression."""
    function, where = node.children[0], node.fields["filter"]
    operands, name, is_distinct = function.children, function.name, node.fields["isDistinct"]
    if function.kind == "Count":
        values = [group_value(over.of(one)) for one in operands]
        if not is_distinct and all(one.constant is not None or not one.null_by for one in values):
            call = Call("count_star", None, pa.int64())
        elif is_distinct:
            call = Call("count", values[0], pa.int64(), True, others=tuple(values[1:]))
        else:
            call = Call("count", values[0] if len(values) == 1 else _all_of(values), pa.int64())
    elif name in AGGREGATES and len(operands) == 1:
        call = _planned(over.context, node.place, name, over.of(operands[0]), is_distinct)
    else:
        raise translation.source.unsupported(node.place, f"the aggregate {name}()", ELSEWHERE)
    if node.type is not None and call.type != node.type:
        raise translation.source.unsupported(node.place, f"{name}(): {call.type} for {node.type}", ELSEWHERE)
    return call if where is None else replace(call, where=over.of(where))


def _guarded(value: Scalar, where: Scalar | None) -> Scalar:
    """The argument of an aggregate, computed only where its FILTER is true."""
    if where is None or not value.fails:
        return value
    return replace(value, sql=f"CASE WHEN {where.sql} THEN {value.sql} END")


RULES: dict[str, Rule] = {
    "Expand": _expand,
    "Aggregate": _aggregate,
}
