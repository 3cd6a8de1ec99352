"""Latest over a table that retains rows by a time, against a loop over the versions."""

from collections import Counter

import pyarrow as pa
from duckdb_kit import DuckDbEvaluator
from fleet_kit import Fleet, changes_batch
from hypothesis import given
from hypothesis import strategies as st
from state_kit import EAGER, MANY

from upriver.engine.operators.latest import Latest
from upriver.hashing import hash64
from upriver.plan import plan as ops

SCHEMA = pa.schema([("k", pa.int8()), ("v", pa.int32()), ("at", pa.int64()), ("op", pa.string())])
OP = ops.LatestOp(("k",), ("v",), "\"op\" = 'D'", "at")
Version = tuple[int, int, int | None, str]
VERSIONS = st.tuples(st.integers(0, 3), st.integers(0, 4), st.none() | st.integers(0, 30), st.sampled_from("UUD"))


def fleet() -> Fleet:
    return Fleet(SCHEMA, ["k"], lambda: Latest(OP, SCHEMA, ["k"], DuckDbEvaluator(), hash64, EAGER))


def right(versions: list[Version], cut: int) -> Counter[Version]:
    """Of each key the last of the highest versions, unless it is a deletion or too old."""
    highest: dict[int, Version] = {}
    for version in versions:
        if version[0] not in highest or version[1] >= highest[version[0]][1]:
            highest[version[0]] = version
    rows = (row for row in highest.values() if row[3] != "D" and (row[2] is None or row[2] > cut))
    return Counter(rows)


@MANY
@given(st.data())
def test_the_highest_version_is_the_row_unless_it_is_too_old(data: st.DataObject) -> None:
    """Several epochs may come as one batch, as they do to a region that lags."""
    workers, versions, cut = fleet(), list[Version](), -1
    waiting: list[tuple[Version, int]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        came = data.draw(st.lists(VERSIONS, max_size=6))
        times = [at for *_, at, _ in [*versions, *came] if at is not None]
        before, cut = cut, max(cut, max(times, default=0) - 10)
        waiting += [(version, int(version[2] is None or version[2] > cut)) for version in came]
        waiting += [(version, -1) for version in versions if version[2] is not None and before < version[2] <= cut]
        versions += came
        if data.draw(st.booleans()):
            workers.apply(waiting)
            waiting = []
            workers.check(right(versions, cut))
            if data.draw(st.booleans()):
                workers.move_some(data)
    workers.apply(waiting)
    workers.check(right(versions, cut))


def test_no_older_version_comes_back() -> None:
    workers = fleet()
    workers.apply([((1, 1, 20, "U"), 1), ((1, 2, 5, "U"), 1)])
    workers.apply([((1, 2, 5, "U"), -1)])
    workers.check(Counter())
    workers.apply([((1, 1, 25, "U"), 1)])
    workers.check(Counter())
    workers.apply([((1, 2, 26, "U"), 1)])
    workers.check(Counter({(1, 2, 26, "U"): 1}))


def test_a_version_that_was_never_here_leaves_nothing_behind() -> None:
    operator = Latest(OP, SCHEMA, ["k"], DuckDbEvaluator())
    assert not len(operator.apply(0, changes_batch(SCHEMA, ["k"], [((1, 1, 2, "U"), -1)])))
    assert operator.held == 0
