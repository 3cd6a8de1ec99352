"""Views kept without Spark over rows some of which are bad: what they give, and which rows are set aside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from expression_kit import BEYOND
from sql_kit import local_plan, spec

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import TableSpec


@dataclass(frozen=True)
class Kept:
    """rows: the view's. aside: by table, the first column's value of each row that was set aside, ascending. beyond:
    of these, the rows that only Spark can compute."""

    rows: pa.Table
    aside: Mapping[str, Sequence[int]]
    beyond: Mapping[str, Sequence[int]]


def kept(
    sql: str, key: str | Sequence[str], tables: Mapping[str, pa.RecordBatch], evaluator: Evaluator, sets_aside: bool
) -> Kept:
    """The view over these tables, whose first columns number their rows. Raises RowError for a bad row, unless it is
    set aside."""
    specs: dict[str, TableSpec] = {name: spec(name, rows.schema) for name, rows in tables.items()}
    plan = local_plan(sql, key, *specs.values())
    world = DataflowWorld(
        plan, specs, evaluator, Random(1), workers=1, moves_odds=0, sets_aside=specs if sets_aside else ()
    )
    world.run_epoch(tables)
    aside: dict[str, set[int]] = {name: set() for name in specs}
    beyond: dict[str, set[int]] = {name: set() for name in specs}
    for one in world.set_aside:
        for number, error in zip(one.rows.column(0).to_pylist(), one.errors, strict=True):
            aside[one.table].add(number)
            if BEYOND.search(error):
                beyond[one.table].add(number)
    return Kept(world.scan(), *({name: sorted(of[name]) for name in specs} for of in (aside, beyond)))
