"""The benchmark of TPC-H's shapes: its rows fit together, and every query is a view of them."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.shop_queries import QUERIES, TABLE_KEYS
from benchmarks.shop_rows import ShopSpec, write_rows
from benchmarks.tpch_command import render_tpch
from simulator.dataflow_world import DataflowWorld
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import TableSpec
from upriver.sql.views import declare_view

SPEC = ShopSpec(0.001)
MAY_BE_EMPTY = frozenset({"in groups", "idle", "six tables"})
"""At so small a scale."""


@cache
def rows() -> dict[str, pa.Table]:
    return {**SPEC.fixed(), **SPEC.sold(0, SPEC.orders)}


def values(table: str, column: str) -> set[int]:
    return set(rows()[table].column(column).to_pylist())


def test_every_line_is_of_an_order_a_part_and_one_of_its_suppliers() -> None:
    assert values("line", "l_order") <= values("sale", "o_id")
    pairs = set(zip(*(rows()["offer"].column(name).to_pylist() for name in ("f_part", "f_supplier")), strict=True))
    sold = set(zip(*(rows()["line"].column(name).to_pylist() for name in ("l_part", "l_supplier")), strict=True))
    assert sold <= pairs


def test_some_customers_never_order_and_orders_have_four_lines_on_average() -> None:
    assert len(values("customer", "c_id") - values("sale", "o_customer")) > 0
    assert 3.8 < rows()["line"].num_rows / rows()["sale"].num_rows < 4.2
    assert pc.min(rows()["line"].column("l_price")).as_py() > 0


def test_later_orders_are_others_and_a_file_is_whole(tmp_path: Path) -> None:
    later = SPEC.sold(SPEC.orders, 10)
    assert not set(later["sale"].column("o_id").to_pylist()) & values("sale", "o_id")
    write_rows(tmp_path, 3, later)
    assert pq.read_table(tmp_path / "sale" / "000003.parquet").equals(later["sale"])


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    opened = Evaluator()
    yield opened
    opened.close()


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_a_view_with_rows(name: str, evaluator: Evaluator) -> None:
    query = QUERIES[name]
    tables = {table: TableSpec(table, rows()[table].schema, (TABLE_KEYS[table],)) for table in query.tables}
    plan = declare_view("v", query.sql, query.key, tables, {}, SharedAnalyser(tables))
    world = DataflowWorld(plan, tables, evaluator, Random(0), workers=1, moves_odds=0.0)
    world.run_epoch({table: rows()[table].combine_chunks().to_batches()[0] for table in query.tables})
    assert world.scan().num_rows or name in MAY_BE_EMPTY


def test_what_a_person_reads_names_the_query() -> None:
    assert "sums" in render_tpch({"queries": {"sums": {"shape": 1, "load_s": 0.5, "equal": True}}})
