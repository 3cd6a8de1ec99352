"""Arithmetic of wide decimals is that of Python's decimals."""

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.expressions import Evaluator
from upriver.engine.wide_decimals import OPERATIONS, computed, low_bits
from upriver.errors import RowError
from upriver.plan.plan import Projection
from upriver.plan.types import adjusted_decimal, decimal_kernel

EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
COUNT = 12
Exact = Callable[[Decimal, Decimal], Decimal | None]


def decimals(digits: int, places: int, count: int, rng: Random) -> list[Decimal | None]:
    """Numbers of any length, halves, powers of ten and their neighbours, the greatest, 0, and NULL."""
    found: list[Decimal | None] = []
    for _ in range(count):
        shorter = rng.randrange(1, digits + 1)
        unit = rng.choice(
            [
                rng.randrange(10**digits),
                rng.randrange(10**shorter),
                10**shorter - 1,
                10 ** (shorter - 1) + rng.randrange(2),
                5 * 10 ** (shorter - 1) - rng.randrange(2),
                10**digits - 1 - rng.randrange(3),
                rng.randrange(4),
            ]
        )
        number = Decimal(rng.choice((unit, -unit))).scaleb(-places, EXACT)
        found.append(None if rng.random() < 0.06 else number)
    return found


def rest(left: Decimal, right: Decimal) -> Decimal | None:
    quotient = whole(left, right)
    return None if quotient is None else EXACT.subtract(left, EXACT.multiply(quotient, right))


def whole(left: Decimal, right: Decimal) -> Decimal | None:
    """Java refuses a quotient of more than 39 digits, unless zeros end it."""
    if not right:
        return None
    quotient = EXACT.divide_int(left, right)
    return quotient if len(quotient.normalize(EXACT).as_tuple().digits) <= 39 else None


MODELS: dict[str, Exact] = {
    "add": EXACT.add,
    "subtract": EXACT.subtract,
    "multiply": EXACT.multiply,
    "divide": lambda left, right: EXACT.divide(left, right) if right else None,
    "remainder": rest,
    "div": whole,
}


def result_type(operation: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(left.scale, right.scale)
    digits = [type.precision - type.scale for type in (left, right)]
    match operation:
        case "multiply":
            return adjusted_decimal(left.precision + right.precision + 1, left.scale + right.scale)
        case "divide":
            places = max(6, left.scale + right.precision + 1)
            return adjusted_decimal(digits[0] + right.scale + places, places)
        case "remainder":
            return adjusted_decimal(min(digits) + scale, scale)
        case "div":
            return pa.decimal128(38, 0)
        case _:
            return adjusted_decimal(max(digits) + scale + 1, scale)


def fitted(value: Decimal | None, type: pa.DataType) -> Decimal | None:
    if value is None:
        return None
    rounded = value.quantize(Decimal(1).scaleb(-type.scale), context=EXACT)
    return rounded if len(rounded.as_tuple().digits) <= type.precision else None


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    precision = draw(st.sampled_from([38, 38, *range(1, 39)]))
    return precision, draw(st.sampled_from([0, precision, *range(precision + 1)]))


@pytest.mark.parametrize("operation", OPERATIONS)
@given(left=sizes(), right=sizes(), seed=st.integers(0, 2**32))
def test_wide_decimals_are_exact_and_rounded_half_up(
    operation: str, left: tuple[int, int], right: tuple[int, int], seed: int
) -> None:
    rng = Random(seed)
    columns = [decimals(*size, COUNT, rng) for size in (left, right)]
    ones, others = (pa.array(column, pa.decimal128(*size)) for column, size in zip(columns, (left, right), strict=True))
    type = result_type(operation, ones.type, others.type)
    expected = [
        None if one is None or other is None else fitted(MODELS[operation](one, other), type)
        for one, other in zip(*columns, strict=True)
    ]
    assert computed(OPERATIONS[operation], ones, others, type, tolerant=True).to_pylist() == expected
    missing = [value is None for value in expected]
    for place, (one, other) in enumerate(zip(*columns, strict=True)):
        if missing[place] and one is not None and other is not None:
            by_zero = not other and operation in ("divide", "remainder", "div")
            with pytest.raises(ValueError, match="Division by zero" if by_zero else "does not fit"):
                computed(OPERATIONS[operation], ones[place : place + 1], others[place : place + 1], type, False)
            break


def test_whole_quotients_lose_their_upper_bits() -> None:
    values = pa.array([Decimal(2**63), None, Decimal(-(10**38) + 1), Decimal(-7)], pa.decimal128(38, 0))
    low = [((int(value) + 2**63) % 2**64) - 2**63 if value is not None else None for value in values.to_pylist()]
    assert low_bits(values).to_pylist() == low


def test_sql_calls_kernels_by_the_types_of_their_operands() -> None:
    left, right, type = pa.decimal128(15, 2), pa.decimal128(38, 0), pa.decimal128(38, 6)
    name = decimal_kernel("divide", left, right, type)
    rows = pa.record_batch(
        {"a": pa.array([Decimal("1.00"), None], left), "b": pa.array([Decimal(3), Decimal(0)], right)}
    )
    evaluator = Evaluator()
    for _ in range(2):  # the second time by a statement that is kept
        one = evaluator.project(rows, Projection((f'{name}("a", "b")',), pa.schema([("x", type)])))
        assert one.column(0).to_pylist() == [Decimal("0.333333"), None]
    failing = rows.set_column(0, "a", pa.array([Decimal(1), Decimal(2)], left))
    with pytest.raises(RowError, match=r"Division by zero \(row: a = 2.00, b = 0\)"):
        evaluator.project(failing, Projection((f'{name}("a", "b")',), pa.schema([("x", type)])))
    tolerant = evaluator.project(failing, Projection((f'{name}_or_null("a", "b")',), pa.schema([("x", type)])))
    assert tolerant.column(0).to_pylist() == [Decimal("0.333333"), None]
    evaluator.close()
