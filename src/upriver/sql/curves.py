"""What Spark has measured of its approx_count_distinct, put into the plan: workers have no Spark to ask."""

from collections.abc import Callable
from dataclasses import replace

from upriver.plan.plan import AggregateCall, AggregateOp, WindowCall, WindowOp, register_bits
from upriver.plan.relation import Relation

Curve = Callable[[int], tuple[float, ...]]
"""The ``curve`` of an AggregateCall, for so many bits."""


def with_curves(relation: Relation, curve: Curve) -> Relation:
    """The tree with the curve in each approx_count_distinct."""
    done: dict[int, Relation] = {}

    def rewritten(part: Relation) -> Relation:
        if id(part) not in done:
            inputs = tuple(map(rewritten, part.inputs))
            op = part.op
            if isinstance(op, AggregateOp) and any(map(_needs_curve, op.plan.calls)):
                op = AggregateOp(replace(op.plan, calls=tuple(_with_curve(call, curve) for call in op.plan.calls)))
            elif isinstance(op, WindowOp):
                op = replace(op, calls=tuple(_over_curve(call, curve) for call in op.calls))
            same = op == part.op and all(new is old for new, old in zip(inputs, part.inputs, strict=True))
            done[id(part)] = part if same else replace(part, op=op, inputs=inputs)
        return done[id(part)]

    return rewritten(relation)


def _over_curve(call: WindowCall, curve: Curve) -> WindowCall:
    of = call.aggregate
    return call if of is None or not _needs_curve(of) else replace(call, aggregate=_with_curve(of, curve))


def _with_curve(call: AggregateCall, curve: Curve) -> AggregateCall:
    return replace(call, curve=curve(register_bits(call.fraction))) if _needs_curve(call) else call


def _needs_curve(call: AggregateCall) -> bool:
    return call.function == "approx_count_distinct"
