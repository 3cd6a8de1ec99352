"""Rows per second through a user's Python function with state: our operator, in each of its forms, and Spark's own.

The function keeps a count and a sum by key and gives both. The two sides take the very same rows in the same batches.
What is measured of ours is the operator in this process, with the hashing and the sorting of the rows that ingest would
have done: no Spark and no lake. Spark's side is a whole streaming query, since its function cannot be had without one.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.events import SCHEMA, TABLE, VALUES_MAX
from benchmarks.figures import median
from benchmarks.stateful_map_spark import GROWTH, MicroBatch, SparkTotals, why_not
from upriver.engine.batch import Batch
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.stateful import MapInputs, Readable
from upriver.hashing import hash64
from upriver.plan.plan import Per, TableSpec
from upriver.spark.frames import SparkSession
from upriver.spark.functions import declare_stateful_map

EVENTS = TableSpec(TABLE, SCHEMA, ("k",))
TOTALS = pa.schema([("n", pa.int64()), ("total", pa.int64())])
WARM_UP_ROWS = 200
"""Rows of Spark's first micro-batch."""
RUNS = 3
"""Of each of our forms; the median counts."""

Numbers = npt.NDArray[np.int64]


def totals_by_row(key: int, row: Any, state: Any) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    n, total = (0, 0) if state is None else state
    after = n + 1, total + row.v
    return [after], after


def totals_by_key(key: int, rows: pa.RecordBatch, state: Any) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    n, total = (0, 0) if state is None else state
    after = n + rows.num_rows, total + pc.sum(rows["v"]).as_py()
    return [after], after


def totals_by_batch(
    keys: Numbers, rows: pa.RecordBatch, states: pa.RecordBatch
) -> tuple[Numbers, pa.RecordBatch, pa.RecordBatch]:
    count = states.num_rows
    n = states["n"].fill_null(0).to_numpy() + np.bincount(keys, minlength=count)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    total = states["total"].fill_null(0).to_numpy() + np.add.reduceat(rows["v"].to_numpy(), starts)
    after = pa.record_batch({"n": n, "total": total})
    return np.arange(count), after, after


FORMS: Mapping[Per, Callable[..., Any]] = {
    Per.ROW: totals_by_row,
    Per.KEY: totals_by_key,
    Per.BATCH: totals_by_batch,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulCase:
    """keys: uniform, and how many states our forms hold when they are measured alone. rows: of a batch, then.
    spark_rows: of the first micro-batch that counts of both sides; spark_rows_max: of the last one."""

    keys: int
    rows: int
    spark_rows: int
    spark_rows_max: int


CASES = (
    StatefulCase(keys=1_000, rows=200_000, spark_rows=128_000, spark_rows_max=512_000),
    StatefulCase(keys=10_000, rows=50_000, spark_rows=500, spark_rows_max=128_000),
    StatefulCase(keys=1_000_000, rows=10_000, spark_rows=500, spark_rows_max=128_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulMapOptions:
    """What to measure. partitions: of Spark's shuffle. has_spark: whether Spark's side is run. spark_s: about how many
    seconds Spark's micro-batches of a case may take together: a larger one is begun as long as not half of that is used
    up."""

    cases: Sequence[StatefulCase] = CASES
    partitions: int = 2
    has_spark: bool = True
    spark_s: float = 25.0
    seed: int = 1


def measure_stateful_map(
    spark: SparkSession, options: StatefulMapOptions, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure each case; ``say`` is told how it goes. Returns ``note``, which says what was cut short, and ``cases``.

    Of each case: ``keys``; ``spark_rows_per_s``, of its best micro-batch, or ``None`` with ``why``;
    ``upriver_rows_per_s`` of each form in that same batch; ``ratio`` of each form to Spark; ``rows``, which both sides
    were given, and ``micro_batches``, how Spark took them; ``equal``, whether all sums are right on all sides;
    ``alone``, rows per second of our forms with all keys in their state. Where Spark cannot run, our forms take the
    batches that it might have taken.
    """
    return {
        "note": f"Spark was given as many rows as it takes in about {options.spark_s:.0f} s for each number of keys",
        "cases": [_measure_case(spark, case, options, say) for case in options.cases],
    }


def _measure_case(
    spark: SparkSession, case: StatefulCase, options: StatefulMapOptions, say: Callable[[str], None]
) -> dict[str, Any]:
    why = why_not() if options.has_spark else "not asked for"
    rng = np.random.default_rng(options.seed)
    if why is None:
        with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
            fed, taken, found = _spark_side(spark, Path(directory), case, options, rng)
    else:
        fed = [_events(rng, case.keys, rows) for rows in (WARM_UP_ROWS, *_sizes(case))]
        taken, found = [], None
    best = _best(taken)
    ours = {per: _ours(per, fed) for per in FORMS}
    expected = _totals_of(fed)
    rates = {per: fed[best].num_rows / seconds[best] for per, (seconds, _) in ours.items()}
    spark_rate = None if found is None else taken[best].rows_per_s
    say(f"{case.keys:,} keys: Spark {_shown(spark_rate)}, {', '.join(f'{p} {_shown(r)}' for p, r in rates.items())}")
    return {
        "keys": case.keys,
        "spark_rows_per_s": None if spark_rate is None else round(spark_rate),
        "why": why,
        "upriver_rows_per_s": {per: round(rate) for per, rate in rates.items()},
        "ratio": None if spark_rate is None else {per: round(rate / spark_rate, 1) for per, rate in rates.items()},
        "rows": sum(rows.num_rows for rows in fed),
        "micro_batches": [asdict(batch) for batch in taken],
        "equal": found in (None, expected) and all(totals == expected for _, totals in ours.values()),
        "alone": {per: round(rate) for per, rate in _alone(case, rng).items()},
    }


def _shown(rate: float | None) -> str:
    return "not run" if rate is None else f"{rate:,.0f} rows/s"


# Spark's side ------------------------------------------------------------------------------------------------------


def _spark_side(
    spark: SparkSession, directory: Path, case: StatefulCase, options: StatefulMapOptions, rng: np.random.Generator
) -> tuple[list[pa.Table], list[MicroBatch], Mapping[int, tuple[int, int]]]:
    """The rows of each micro-batch, how Spark took them, and its totals."""
    fed, taken = [], []
    with SparkTotals(spark, directory, options.partitions) as query:
        for rows in (WARM_UP_ROWS, *_sizes(case)):
            fed.append(_events(rng, case.keys, rows))
            taken.append(query.take(fed[-1]))
            if sum(batch.seconds for batch in taken[1:]) > options.spark_s / 2:
                break
        return fed, taken, query.totals()


def _sizes(case: StatefulCase) -> Iterator[int]:
    rows = case.spark_rows
    while rows <= case.spark_rows_max:
        yield rows
        rows *= GROWTH


def _best(taken: Sequence[MicroBatch]) -> int:
    """Which micro-batch counts: Spark's fastest, but for the first; the last, if Spark has not run."""
    return max(range(1, len(taken)), key=lambda place: taken[place].rows_per_s) if taken else -1


# Our side ----------------------------------------------------------------------------------------------------------


def _ours(per: Per, fed: Sequence[pa.Table]) -> tuple[list[float], dict[int, tuple[int, int]]]:
    """The seconds that each batch takes, and the last totals given for each key."""
    runs = [_run(_operator(per), fed) for _ in range(RUNS)]
    totals: dict[int, tuple[int, int]] = {}
    for given in runs[0][1]:
        totals.update(_as_dict(given))
    return [median(seconds) for seconds in zip(*(seconds for seconds, _ in runs), strict=True)], totals


def _run(operator: StatefulMap, fed: Sequence[pa.Table]) -> tuple[list[float], list[pa.RecordBatch]]:
    """The seconds that each batch takes, and what it gives."""
    seconds, given = [], []
    for rows in fed:
        started = time.perf_counter()
        given.append(operator.apply(0, _in_order(rows)).rows)
        seconds.append(time.perf_counter() - started)
    return seconds, given


def _alone(case: StatefulCase, rng: np.random.Generator) -> dict[Per, float]:
    """Rows per second of each form once it holds a state for every key."""
    full = _operator(Per.BATCH)
    every = _in_order(pa.table([np.arange(case.keys), np.zeros(case.keys, np.int64)], schema=SCHEMA))
    full.apply(0, every)
    state = full.collect(np.unique(every.hash64))
    batches = [_events(rng, case.keys, case.rows) for _ in range(RUNS)]
    rates = {}
    for per in FORMS:
        operator = _operator(per)
        operator.install(state)
        rates[per] = case.rows / median(_run(operator, batches)[0])
    return rates


INPUTS = MapInputs(((Readable.of_table(EVENTS), ("k",)),))


def _operator(per: Per) -> StatefulMap:
    op = declare_stateful_map("totals", INPUTS, FORMS[per], TOTALS, TOTALS, per=per, timezone="UTC")
    return StatefulMap(op, [SCHEMA], ["k"])


def _in_order(rows: pa.Table) -> Batch:
    """The rows as they come off a lake edge."""
    batch = rows.combine_chunks().to_batches()[0]
    hashes = hash64([batch.column("k")])
    order = np.argsort(hashes, kind="stable")
    return Batch(batch.take(pa.array(order)), hashes[order])


# Rows --------------------------------------------------------------------------------------------------------------


def _events(rng: np.random.Generator, keys: int, rows: int) -> pa.Table:
    return pa.table([rng.integers(0, keys, rows), rng.integers(-VALUES_MAX, VALUES_MAX, rows)], schema=SCHEMA)


def _totals_of(fed: Sequence[pa.Table]) -> dict[int, tuple[int, int]]:
    grouped = pa.concat_tables(fed).group_by("k").aggregate([("v", "count"), ("v", "sum")])
    return _as_dict(grouped.select(["k", "v_count", "v_sum"]))


def _as_dict(rows: pa.RecordBatch | pa.Table) -> dict[int, tuple[int, int]]:
    """The last row of each key."""
    return {k: (n, total) for k, n, total in zip(*(column.to_pylist() for column in rows.columns), strict=True)}
