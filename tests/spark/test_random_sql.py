"""The oracle on Spark: a few queries at random, others in each run, in one app that is rescaled while rows come.

Views that keep every key are read whole; of partial ones all keys that have ever been there are looked up.
"""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from query_kit import same_rows
from random_spark_kit import Verdict, compare
from random_spark_sql import WideGrammar
from random_sql import RandomView, random_views
from random_tables import GONE, SEQ, RandomRows, RandomTable, random_tables
from state_kit import plain_rows

from upriver import App
from upriver.engine.expressions import Evaluator

SEEDS = 2**32
VIEWS = 5
WAIT_S = 300.0  # a machine that others use, too, may take longer than people wait
ROUNDS, VIEWS_OF_A_ROUND = 60, 12
ALLOWED = frozenset({Verdict.EQUAL, Verdict.BOTH_FAIL, Verdict.SPARK_FAILS})
"""Of a row that nothing reads, Spark may compute what the view does not."""
RESCALES = (("icadd", 4), ("redistribute", 2))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Another one in each run, unless ``--sql-seed`` names it."""
    given: int | None = request.config.getoption("--sql-seed")
    return Random().randrange(SEEDS) if given is None else given


@pytest.mark.spark
@pytest.mark.long
def test_any_query_is_what_spark_says_of_it_many_times(spark: Any, seed: int) -> None:
    evaluator = Evaluator()
    for round_seed in range(seed, seed + ROUNDS):
        for found in compare(spark, round_seed, VIEWS_OF_A_ROUND, evaluator):
            assert found.verdict in ALLOWED, f"seed {round_seed}, {found.verdict}: {found.view}\n{found.detail}"


@pytest.mark.spark
def test_queries_by_lot_equal_spark_sql_after_retractions_and_rescales(spark: Any, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    tables = tables_one_of_them_upserted(rng)
    views, rows = random_views(tables, rng, VIEWS, grammar=WideGrammar), RandomRows(tables, rng)
    queries = "\n".join(f"{view.name}, key {view.key}: {view.query.spark}" for view in views)
    print(f"again with --sql-seed {seed}\n{queries}")
    epochs = rows.epochs(1 + len(RESCALES))
    with App(spark, root=str(tmp_path / "lake"), workers=2, vnodes=16) as app:
        for table in tables:
            declare(app, spark, table, tmp_path)
        for view in views:
            app.view(view.name, view.query.spark, key=view.key)
        publish(next(epochs), tmp_path)
        app.start()
        app.wait(timeout=WAIT_S)
        queries_of = {view.name: view.query.spark for view in views}
        keys = keys_of(views, by_spark(spark, tables, rows, queries_of))
        for view in views:
            answer(spark, app, view, keys[view.name])  # from now on partial views keep these
        for (strategy, workers), drawn in zip(RESCALES, epochs, strict=True):
            rescale = app.rescale(workers, strategy=strategy)
            publish(drawn, tmp_path)
            assert rescale.wait(timeout=WAIT_S)["outcome"] == "finished"
        app.wait(timeout=WAIT_S)
        expected = by_spark(spark, tables, rows, queries_of)
        later = keys_of(views, expected)
        found = {
            view.name: answer(spark, app, view, pa.concat_tables([keys[view.name], later[view.name]])) for view in views
        }
        plain = {name: plain_rows(versions) for name, versions in rows.all.items()}
        different = [name for name in found if not are_equal(found[name], expected[name])]
        assert not different, f"{different} differ over {plain}"


def tables_one_of_them_upserted(rng: Random) -> list[RandomTable]:
    while True:
        tables = random_tables(rng)
        if any(table.spec.primary_key for table in tables):
            return tables


def declare(app: App, spark: Any, table: RandomTable, directory: Path) -> None:
    """A stream of the files of the table, one in each micro-batch."""
    spec = table.spec
    files = directory / spec.name
    files.mkdir()
    stream = spark.readStream.schema(table.ddl).option("maxFilesPerTrigger", 1).parquet(str(files))
    deletes = GONE if spec.deletes else None
    app.table(spec.name, stream, spec.key, primary_key=spec.primary_key, order_by=SEQ, deletes=deletes)


def publish(drawn: Mapping[str, pa.RecordBatch], directory: Path) -> None:
    """A file more for each of these tables."""
    for name, batch in drawn.items():
        files = directory / name
        half = files / "_half"
        pq.write_table(pa.Table.from_batches([batch]), half)
        half.rename(files / f"{len(list(files.iterdir()))}.parquet")


def by_spark(spark: Any, tables: list[RandomTable], rows: RandomRows, queries: Mapping[str, str]) -> dict[str, Any]:
    """What Spark SQL says of all rows: by view, in order, a DataFrame."""
    for table in tables:
        name = table.spec.name
        spark.createDataFrame(rows.all[name], table.ddl).createOrReplaceTempView(f"{name}_rows")
        spark.sql(table.current_sql(f"{name}_rows")).createOrReplaceTempView(name)
    answers = {}
    for name, query in queries.items():
        answers[name] = spark.sql(query)
        answers[name].createOrReplaceTempView(name)
    return answers


def keys_of(views: list[RandomView], answers: Mapping[str, Any]) -> dict[str, pa.Table]:
    """By view, the keys that it has."""
    return {view.name: answers[view.name].select(*view.key).distinct().toArrow() for view in views}


def answer(spark: Any, app: App, view: RandomView, keys: pa.Table) -> Any:
    """What the app has of a view, as a DataFrame: of a partial one, the rows of these keys."""
    if "state: partial" in app.explain(view.name):
        return spark.createDataFrame(app.lookup(view.name, keys, timeout=WAIT_S))
    return app.read(view.name)


def are_equal(found: Any, expected: Any) -> bool:
    same_types = found.schema.simpleString() == expected.schema.simpleString()
    return same_types and same_rows(*([tuple(row) for row in rows.collect()] for rows in (found, expected)))
