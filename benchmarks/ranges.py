"""A join by a range, with its sorted index and without: how many pairs are compared, and how long it takes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.join import Join
from upriver.plan.plan import Band, JoinKind, JoinOp
from upriver.text import render_rows

_TRADES = pa.schema([("k", pa.int32()), ("at", pa.int64())])
_PROMOTIONS = pa.schema([("p", pa.int32()), ("start", pa.int64()), ("stop", pa.int64())])
_JOIN = JoinOp(
    JoinKind.INNER,
    ("k",),
    ("p",),
    (False,),
    '("at" >= "start") AND ("at" <= "stop")',
    (Band("at", "start", False), Band("at", "stop", True)),
)


@dataclass(frozen=True)
class RangesOptions:
    """rows: of each side, all of one key. length: of an interval; the points are 10 apart on average."""

    rows: int
    length: int
    seed: int


class _Counting(Evaluator):
    """Counts the pairs on which the condition is evaluated."""

    pairs = 0

    def mask(self, rows: pa.RecordBatch, predicate: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        self.pairs += rows.num_rows
        return super().mask(rows, predicate)


def measure_ranges(options: RangesOptions) -> dict[str, Any]:
    """Both ways, over the same rows: the promotions come first, then the trades."""
    random = np.random.default_rng(options.seed)
    points, starts = random.integers(0, 10 * options.rows, (2, options.rows))
    sides = {1: [starts, starts + options.length], 0: [points]}
    ways = {"sorted index": _JOIN, "all pairs": replace(_JOIN, bands=())}
    found = {way: _measured(op, sides) for way, op in ways.items()}
    right = len({figures["result_rows"] for figures in found.values()}) == 1
    return {"rows": options.rows, "ways": found, "right": right}


def _measured(op: JoinOp, sides: Mapping[int, list[Any]]) -> dict[str, Any]:
    evaluator = _Counting()
    join, made = Join(op, _TRADES, _PROMOTIONS, ["k"], ["p"], evaluator), 0
    start = time.process_time()
    for port, columns in sides.items():
        size = len(columns[0])
        arrays = [pa.array(np.zeros(size, np.int32)), *map(pa.array, columns)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=(_TRADES, _PROMOTIONS)[port])
        made += len(join.apply(port, Batch(rows, np.zeros(size, np.uint64))))
    return {"pairs": evaluator.pairs, "result_rows": made, "cpu_s": round(time.process_time() - start, 3)}


def render_ranges(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    ways = measured["ways"]
    rows = [
        [way, *(f"{figures[name]:,}" for name in ("pairs", "result_rows", "cpu_s"))] for way, figures in ways.items()
    ]
    ratio = ways["all pairs"]["cpu_s"] / max(ways["sorted index"]["cpu_s"], 0.001)
    table = render_rows(["", "pairs compared", "rows of the result", "CPU s"], rows, [False, True, True, True])
    return f"\n{table}\nall pairs take {ratio:,.0f} times as long"
