"""The evaluator: what it copies, what order it keeps, what it says of a row that fails."""

import pickle
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from sql_kit import local_plan, parts_of, spec

from upriver.engine.expressions import GUARD, STATEMENTS_MAX, Evaluator
from upriver.errors import ProtocolError, RowError
from upriver.plan.plan import Projection
from upriver.protocol.plans import plan_from_json, plan_to_json

NUMBERS = pa.schema([("a", pa.int32()), ("b", pa.int32())])
ODD_NAMES = [
    "order",
    "two words",
    'a "quote"',
    "o'clock",
    "größe",
    "Select",
    "c0",
    "100%",
    "{0}",
    "日本",
    "a.b",
    "`tick`",
    " ",
]


@pytest.fixture
def evaluator() -> Evaluator:
    return Evaluator()


def numbers(a: Sequence[int | None], b: Sequence[int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(a, pa.int32()), pa.array(b, pa.int32())], schema=NUMBERS)


def projection(type: pa.DataType, *expressions: str) -> Projection:
    return Projection(expressions, pa.schema([(f"e{number}", type) for number in range(len(expressions))]))


def test_a_plain_column_is_not_copied(evaluator: Evaluator) -> None:
    rows = numbers([1, 2], [3, None])
    out = evaluator.project(rows, Projection(('"b"', '"a" + 1'), pa.schema([("x", pa.int32()), ("y", pa.int32())])))
    assert out.schema.names == ["x", "y"]
    assert out.to_pydict() == {"x": [3, None], "y": [2, 3]}
    assert [buffer and buffer.address for buffer in out.column("x").buffers()] == [
        buffer and buffer.address for buffer in rows.column("b").buffers()
    ]


def test_the_result_has_exactly_the_schema_asked_for(evaluator: Evaluator) -> None:
    types = [pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(12, 3), pa.string(), pa.bool_()]
    schema = pa.schema([pa.field(f"e{number}", type) for number, type in enumerate(types)])
    out = evaluator.project(numbers([1, None], [0, 0]), Projection(tuple('("a")' for _ in types), schema))
    assert out.schema.equals(schema, check_metadata=True)
    assert out.to_pylist()[0] == dict(zip(schema.names, (1, 1, 1.0, 1.0, Decimal("1.000"), "1", True), strict=True))
    assert set(out.to_pylist()[1].values()) == {None}


def test_rows_keep_their_order(evaluator: Evaluator) -> None:
    count = 300_000
    shuffled = np.random.default_rng(7).permutation(count).astype(np.int32)
    rows = pa.record_batch({"a": shuffled, "s": pa.array(shuffled).cast(pa.string())})
    out = evaluator.project(rows, projection(pa.int64(), 'CAST("a" AS BIGINT) * 2', 'CAST("s" AS BIGINT) + 1'))
    assert out.num_rows == count
    assert np.array_equal(out.column(0).to_numpy(), shuffled.astype(np.int64) * 2)
    assert np.array_equal(out.column(1).to_numpy(), shuffled.astype(np.int64) + 1)
    assert np.array_equal(evaluator.mask(rows, '"a" % 3 = 0'), shuffled % 3 == 0)


def test_a_null_predicate_is_false(evaluator: Evaluator) -> None:
    mask = evaluator.mask(numbers([1, None, 3], [0, 0, 0]), '"a" > 1')
    assert mask.dtype == np.bool_
    assert mask.tolist() == [False, False, True]


def test_a_slice_is_read_from_its_offset(evaluator: Evaluator) -> None:
    schema = pa.schema([("a", pa.int32()), ("s", pa.string()), ("b", pa.bool_()), ("d", pa.decimal128(5, 1))])
    columns = [
        pa.array([None if n % 5 == 0 else n for n in range(100)], pa.int32()),
        pa.array([None if n % 7 == 0 else str(n) for n in range(100)]),
        pa.array([None if n % 3 == 0 else n % 2 == 0 for n in range(100)]),
        pa.array([Decimal(n) for n in range(100)], pa.decimal128(5, 1)),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    computed = Projection(('"a" + 0', "\"s\" || ''", 'NOT "b"', '-"d"'), schema)
    expected = evaluator.project(whole, computed).slice(13, 70)
    assert evaluator.project(whole.slice(13, 70), computed).equals(expected)


def test_no_rows_give_no_rows(evaluator: Evaluator) -> None:
    out = evaluator.project(numbers([], []), projection(pa.int32(), '"a"', '1 // "a"'))
    assert (out.num_rows, out.num_columns) == (0, 2)
    assert evaluator.mask(numbers([], []), '"a" > 1').tolist() == []


def test_a_constant_is_repeated_for_each_row(evaluator: Evaluator) -> None:
    out = evaluator.project(numbers([1, 2, 3], [1, 2, 3]), projection(pa.int32(), "7"))
    assert out.to_pydict() == {"e0": [7, 7, 7]}
    assert evaluator.mask(numbers([1, 2], [1, 2]), "TRUE").tolist() == [True, True]


def test_any_column_name_will_do(evaluator: Evaluator) -> None:
    schema = pa.schema([("k", pa.string()), *((name, pa.int32()) for name in ODD_NAMES)])
    escaped = [name.replace("`", "``") for name in ODD_NAMES]
    listed = ", ".join(f"`{name}` + {place} AS `{name}`" for place, name in enumerate(escaped))
    sql = f"SELECT k, {listed}, 'it is \"order\"' AS text FROM t WHERE `two words` > 0"
    made = parts_of(local_plan(sql, "k", spec("t", schema)))
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["x"]), *(pa.array([10 * place], pa.int32()) for place in range(len(ODD_NAMES)))], schema=schema
    )
    assert made.filter is not None
    assert evaluator.mask(rows, made.filter).tolist() == [True]
    out = evaluator.project(rows, made.project)
    assert out.schema.names == ["k", *ODD_NAMES, "text"]
    assert list(out.to_pylist()[0].values()) == ["x", *(11 * place for place in range(len(ODD_NAMES))), 'it is "order"']


def test_timestamps_pass_as_their_instants(evaluator: Evaluator) -> None:
    zone = pa.timestamp("us", tz="Europe/Paris")
    instants = [datetime(2024, 7, 1, 12, tzinfo=UTC), None]
    rows = pa.record_batch({"t": pa.array(instants, zone)})
    out = evaluator.project(rows, projection(zone, '"t"', "coalesce(\"t\", TIMESTAMP '2024-07-01 10:00:00')"))
    assert out.column(0).equals(rows.column(0))
    assert out.column(1).equals(pa.array([instants[0], datetime(2024, 7, 1, 10, tzinfo=UTC)], zone))


def test_a_failing_row_is_shown(evaluator: Evaluator) -> None:
    a, b = list(range(1, 30_001)), [1] * 30_000
    b[17_321] = b[17_400] = 0
    with pytest.raises(RowError) as raised:
        evaluator.project(numbers(a, b), projection(pa.int64(), 'spark_div("a", "b")'))
    assert str(raised.value) == f"column e0: Division by zero (row: a = 17322, b = 0). {GUARD}"
    with pytest.raises(RowError, match=r"a condition: Overflow in addition of INT .*\(row: a = 2147483647\)"):
        evaluator.mask(numbers([1, 2**31 - 1], [0, 0]), '"a" + 1 > 0')
    text = pa.record_batch({"s": ["1", "x" * 500]})
    parsed = projection(pa.int32(), 'CAST(spark_integer_of_text("s") AS INTEGER)')
    with pytest.raises(RowError, match=r"^column e0: The text 'x{10,}.* cannot be cast .* \(row: s = x{60}\.\.\.\)"):
        evaluator.project(text, parsed)


def test_an_evaluator_goes_on_after_a_failure(evaluator: Evaluator) -> None:
    half = projection(pa.int64(), 'spark_div(10, "a")')
    for _ in range(3):
        with pytest.raises(RowError):
            evaluator.project(numbers([0], [0]), half)
        assert evaluator.project(numbers([5], [0]), half).to_pydict() == {"e0": [2]}


@pytest.mark.parametrize(
    "expression", ['"nowhere"', '"nowhere" + 1', "no_such_function(1)", "((", "'a' + DATE '2024-01-01'"]
)
def test_a_plan_that_cannot_be_evaluated_is_our_fault(evaluator: Evaluator, expression: str) -> None:
    with pytest.raises(ProtocolError):
        evaluator.project(numbers([1], [1]), projection(pa.int32(), expression))


def test_more_statements_than_are_kept(evaluator: Evaluator) -> None:
    rows = numbers([1], [1])
    for extra in [*range(STATEMENTS_MAX + 20), 0, 5]:
        assert evaluator.project(rows, projection(pa.int32(), f'"a" + {extra}')).to_pydict() == {"e0": [1 + extra]}


@pytest.mark.parametrize(
    "query", ["SELECT * FROM read_csv('/etc/hosts')", "COPY (SELECT 1) TO 'out.csv'", "INSTALL httpfs"]
)
def test_duckdb_reaches_nothing_outside(evaluator: Evaluator, query: str) -> None:
    with pytest.raises(duckdb.Error, match=r"disabled|configuration"):
        evaluator._engine.duck.execute(query)
    with pytest.raises(duckdb.Error, match="locked"):
        evaluator._engine.duck.execute("SET enable_external_access = true")


def test_two_evaluators_share_nothing() -> None:
    first, second = Evaluator(), Evaluator()
    rows = numbers([1, 2], [3, 4])
    sums = projection(pa.int32(), '"a" + "b"')
    assert first.project(rows, sums).equals(second.project(rows, sums))
    first.close()
    assert second.project(rows, sums).to_pydict() == {"e0": [4, 6]}


def test_a_plan_survives_json_and_pickle(evaluator: Evaluator) -> None:
    schema = pa.schema([("k", pa.string()), ("d", pa.date32()), ("m", pa.decimal128(9, 2))])
    sql = "SELECT k, year(d) AS y, sum(m) AS s, max(m) - min(m) AS r FROM t WHERE d > '2000-01-01' GROUP BY k, year(d)"
    plan = local_plan(sql, "k", spec("t", schema))
    for copy in (plan_from_json(plan_to_json(plan)), pickle.loads(pickle.dumps(plan))):
        assert copy == plan
        rows = pa.RecordBatch.from_arrays(
            [pa.array(["x"]), pa.array([date(2024, 1, 1)]), pa.array([Decimal(1)], pa.decimal128(9, 2))], schema=schema
        )
        out: dict[str, Any] = evaluator.project(rows, parts_of(copy).project).to_pydict()
        assert list(out.values()) == [["x"], [2024], [Decimal("1.00")]]
