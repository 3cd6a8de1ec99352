"""Dataflow plans go through JSON as they are."""

import json
from typing import Any

import pyarrow as pa
import pytest
from dataflow_kit import INT, LONG, QUERIES, SALES, TABLES
from hypothesis import given
from random_relations import relations
from relation_kit import scan

from upriver.plan.plan import (
    AggregateCall,
    Band,
    DataflowPlan,
    FrameUnit,
    JoinKind,
    JoinOp,
    LatestOp,
    Node,
    Op,
    Order,
    Per,
    Ranking,
    RegionPlan,
    Replicated,
    Scan,
    SetKind,
    SetOperationOp,
    StatefulMapOp,
    TopKOp,
    WindowCall,
    WindowFrame,
    WindowOp,
)
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation
from upriver.protocol.plans import plan_from_json, plan_to_json

MAP = StatefulMapOp(
    ("shop",),
    b"\x00\xff any bytes",
    Per.KEY,
    pa.schema([("s", pa.binary())]),
    pa.schema([("shop", INT), ("total", LONG)]),
)
OPS: list[Op] = [
    Scan("a table"),
    JoinOp(
        JoinKind.ANTI,
        ("a", "b"),
        ("x", "y"),
        (True, False),
        '"a" < "y"',
        (Band("a", "y", True),),
        ("y",),
        True,
        Replicated(1, ("t",)),
    ),
    TopKOp((), (Order("a", True, False), Order("b", False, True)), 3, Ranking.DENSE_RANK, "nth"),
    WindowOp(
        ("k",),
        (Order("a", True, False),),
        (
            WindowCall("sum", "x", "s", LONG, WindowFrame(FrameUnit.RANGE, None, -3), where="b"),
            WindowCall("lag", "x", "l", INT, number=-1, default="d", ignores_nulls=True),
            WindowCall("max_by", None, "m", INT, aggregate=AggregateCall("max_by", "x", "", INT, others=("d",))),
        ),
    ),
    SetOperationOp(SetKind.INTERSECT, True),
    LatestOp(("a",), (), None),
    MAP,
]


def by_wire(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("op", OPS, ids=[type(op).__name__ for op in OPS])
def test_an_operator_goes_through_json(op: Op) -> None:
    region = RegionPlan("v", (), (Node(op, (), pa.schema([])),), None, "for a test")
    plan = DataflowPlan("v", "", (), pa.schema([]), (region,))
    read = plan_from_json(by_wire(plan_to_json(plan))).regions[0].nodes[0].op
    assert read == op
    assert repr(read) == repr(op)


@pytest.mark.parametrize("name", QUERIES)
def test_a_plan_goes_through_json(name: str) -> None:
    plan = QUERIES[name].plan("v")
    assert plan_from_json(by_wire(plan_to_json(plan))) == plan


@given(relation=relations(3))
def test_any_plan_goes_through_json(relation: Relation) -> None:
    plan = DataflowPlan("v", "SELECT", ("c",), relation.schema, plan_regions("v", relation, ("c",), TABLES))
    assert plan_from_json(by_wire(plan_to_json(plan))) == plan


def test_a_stateful_map_goes_through_json_with_its_plan() -> None:
    relation = Relation(MAP, (scan(SALES),), MAP.output)
    plan = DataflowPlan("v", "", ("shop",), MAP.output, plan_regions("v", relation, ("shop",), TABLES))
    assert plan_from_json(by_wire(plan_to_json(plan))) == plan
