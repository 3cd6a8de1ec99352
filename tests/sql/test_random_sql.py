"""The oracle: any query over any tables, as text, on several workers while keys move, is what DuckDB says it is."""

from random import Random

import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb
from hypothesis import given, note, settings
from hypothesis import strategies as st
from query_kit import same_rows
from random_sql import RandomView, random_views
from random_tables import START, RandomRows, RandomTable, random_tables
from random_wide_sql import WideGrammar, at_instant
from soak import examples
from state_kit import MANY, Row, plain_rows

from simulator.dataflow_world import DataflowWorld
from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan
from upriver.sql.queries import declare_view

EVALUATOR = Evaluator()
VIEWS_MAX, EPOCHS = 3, 2
TICKS = (0, 240_000_000, 300_000_001, 3_660_000_000, 86_400_000_000)
"""By how many microseconds the clock may move in an epoch."""
LOTS = st.randoms(use_true_random=False)
SEEDS = st.integers(0, 2**32)


@settings(MANY, max_examples=examples(60))
@given(rng=LOTS, seed=SEEDS)
def test_any_query_is_what_duckdb_says_while_keys_move(rng: Random, seed: int) -> None:
    assert_equals_duckdb(rng, seed)


@pytest.mark.long
@settings(MANY, derandomize=False, max_examples=5000, print_blob=True)
@given(rng=LOTS, seed=SEEDS)
def test_any_query_is_what_duckdb_says_thousands_of_times(rng: Random, seed: int) -> None:
    assert_equals_duckdb(rng, seed)


def assert_equals_duckdb(rng: Random, seed: int) -> None:
    """rng: by which tables, views and rows are drawn; seed: of what happens to them."""
    tables = random_tables(rng)
    views = random_views(tables, rng, rng.randint(1, VIEWS_MAX), grammar=WideGrammar)
    for view in views:
        note(f"view {view.name}, key {view.key}: {view.query.spark}")
    view = views[-1]
    plan = planned(views, tables)
    world = DataflowWorld(plan, {table.spec.name: table.spec for table in tables}, EVALUATOR, Random(seed))
    rows = RandomRows(tables, rng)
    clock = int(START.timestamp() * 1e6)
    for drawn in rows.epochs(EPOCHS):
        clock += rng.choice(TICKS)
        note(f"rows: { {name: plain_rows(batch) for name, batch in drawn.items()} }")
        world.run_epoch(drawn, clock if plan.is_clocked else None)
        found, wanted = world.scan(), by_duckdb(at_instant(view.query.duck, clock), **current(tables, rows))
        expected = plain_rows(wanted.rename_columns(found.schema.names).cast(found.schema))
        assert same_rows(plain_rows(found), expected)
        assert same_rows(looked_up(world, plan, found), expected)


def planned(views: list[RandomView], tables: list[RandomTable]) -> DataflowPlan:
    """The plan of the last view, which may read the others."""
    *others, view = views
    specs = {table.spec.name: table.spec for table in tables}
    texts = {other.name: other.query.spark for other in others}
    return declare_view(view.name, view.query.spark, view.key, specs, texts, LocalTyper(specs))


def current(tables: list[RandomTable], rows: RandomRows) -> dict[str, pa.Table]:
    """What the tables come to, with times as DuckDB has them without a zone."""
    by_name = {}
    for table in tables:
        versions = rows.all[table.spec.name]
        types = [pa.timestamp("us") if pa.types.is_timestamp(type) else type for type in versions.schema.types]
        plain = versions.cast(pa.schema(list(zip(versions.schema.names, types, strict=True))))
        by_name[table.spec.name] = by_duckdb(table.current_sql("versions"), versions=plain)
    return by_name


def looked_up(world: DataflowWorld, plan: DataflowPlan, rows: pa.Table) -> list[Row]:
    """What is found by the keys of these rows."""
    keys = rows.select(list(plan.key)).group_by(list(plan.key)).aggregate([]).combine_chunks()
    return [row for batch in keys.to_batches() for row in plain_rows(world.lookup(batch))]
