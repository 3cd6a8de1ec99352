"""Every function over awkward values in every position: a row is set aside exactly if Spark would raise on it.

Rows that we set aside are taken from Spark, which must answer then, and as we do; and given back one by one, on which
it must raise.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from guards_kit import BEYOND, kept
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from random_guards import draws, guarded, rows
from sql_kit import generating_code, optimizing

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError

pytestmark = pytest.mark.spark

QUERIES, QUERIES_SOAKED = 25, 800
GIVEN_BACK, GIVEN_BACK_SOAKED = 6, 400
"""Queries in whose answer Spark is asked for a row that was set aside."""
BATCH = 20
"""Queries of one Spark job."""
FROM_SEVERAL_ROWS = -1
"""In place of a row: several rows together are at fault."""


@dataclass(frozen=True)
class Case:
    """beyond: of the rows that were set aside, those that only Spark can compute."""

    number: int
    sql: str
    rows: pa.Table | None
    aside: Sequence[int]
    beyond: Sequence[int] = ()

    @property
    def name(self) -> str:
        return f"rows_{self.number}"

    @property
    def raising(self) -> Sequence[int]:
        """The rows that were set aside and on which Spark must raise."""
        return [row for row in self.aside if row not in self.beyond]

    def over(self, name: str) -> str:
        return self.sql.replace("rows_", name)


def cases(seed: int, count: int) -> Iterator[Case]:
    rng, evaluator = Random(seed), Evaluator()
    for number, (construct, position) in enumerate(islice(draws(rng), count)):
        sql = guarded(rng, construct, position)
        others = rows() if "EXISTS" in sql else pa.record_batch({"r": rows().column(0)})
        tables = {"rows_": rows(), "other": others} if "other" in sql else {"rows_": rows()}
        try:
            found = kept(sql, "r", tables, evaluator, sets_aside=True)
        except RowError as error:
            together = [FROM_SEVERAL_ROWS]
            yield Case(number, sql, None, together, together if BEYOND.search(str(error)) else ())
        else:
            yield Case(number, sql, found.rows, found.aside["rows_"], found.beyond["rows_"])
    evaluator.close()


def answers(spark: Any, batch: Sequence[Case]) -> list[tuple[int, Counter[str], Counter[str]]]:
    """Of each case its number, our rows and Spark's, as texts, in one job."""
    parts = []
    for case in batch:
        assert case.rows is not None
        ours = case.rows.combine_chunks()
        spark.createDataFrame(ours, from_arrow_schema(ours.schema, prefer_timestamp_ntz=True)).createOrReplaceTempView(
            f"ours_{case.number}"
        )
        good = f"r NOT IN ({', '.join(map(str, case.aside))})" if case.aside else "TRUE"
        spark.sql(f"SELECT * FROM rows_ WHERE {good}").createOrReplaceTempView(case.name)
        spark.sql(case.over(case.name)).createOrReplaceTempView(f"theirs_{case.number}")  # struct( makes >> unreadable
        for side, name in enumerate(("ours", "theirs")):
            source = f"{name}_{case.number}"
            parts.append(f"SELECT {case.number} AS q, {side} AS side, to_json(struct(*)) AS row FROM {source}")
    found: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for one in spark.sql(" UNION ALL ".join(parts)).toArrow().to_pylist():
        found[one["q"], one["side"]][one["row"]] += 1
    return [(case.number, found[case.number, 0], found[case.number, 1]) for case in batch]


def wrong(spark: Any, batch: Sequence[Case]) -> list[str]:
    """What is wrong with our answers, each with its query."""
    try:
        found = answers(spark, batch)
    except PySparkException as error:
        if len(batch) > 1:
            half = len(batch) // 2
            return [*wrong(spark, batch[:half]), *wrong(spark, batch[half:])]
        return [f"Spark raises: {batch[0].sql} without {batch[0].aside}: {str(error).splitlines()[0]}"]
    sqls = {case.number: case.sql for case in batch}
    return [
        f"{sqls[number]}: only ours {(ours - theirs).most_common(2)}, only Spark's {(theirs - ours).most_common(2)}"
        for number, ours, theirs in found
        if ours != theirs
    ]


def raises(spark: Any, case: Case, row: int) -> bool:
    """Whether Spark raises if this row is there, too."""
    others = ", ".join(str(other) for other in case.aside if other != row)
    good = f"r NOT IN ({others})" if others and row != FROM_SEVERAL_ROWS else "TRUE"
    spark.sql(f"SELECT * FROM rows_ WHERE {good}").createOrReplaceTempView(case.name)
    try:
        spark.sql(case.over(case.name)).toArrow()
    except PySparkException:
        return True
    return False


def test_rows_are_set_aside_exactly_where_spark_raises(spark: Any, request: pytest.FixtureRequest) -> None:
    soaks = request.config.getoption("--soak")
    given: int | None = request.config.getoption("--sql-seed")
    seed = given if given is not None else Random().randrange(10**6) if soaks else 1
    schema = from_arrow_schema(rows().schema, prefer_timestamp_ntz=True)
    made = list(cases(seed, QUERIES_SOAKED if soaks else QUERIES))
    answered = [case for case in made if case.rows is not None]
    failing = [case for case in made if case.raising][: GIVEN_BACK_SOAKED if soaks else GIVEN_BACK]
    rng = Random(seed)
    with optimizing(spark), generating_code(spark):
        spark.createDataFrame(pa.Table.from_batches([rows()]), schema).createOrReplaceTempView("rows_")
        spark.sql("SELECT * FROM rows_").createOrReplaceTempView("other")
        found = [text for at in range(0, len(answered), BATCH) for text in wrong(spark, answered[at : at + BATCH])]
        for case in failing:
            row = rng.choice(case.raising)
            found += [] if raises(spark, case, row) else [f"Spark answers: {case.sql} with row {row}"]
    assert not found, f"seed {seed}: {len(found)} of {len(made)}\n" + "\n".join(found[:40])
