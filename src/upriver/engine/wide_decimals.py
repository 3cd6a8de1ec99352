"""Arithmetic of decimals whose exact results may have more digits than DuckDB keeps, over whole columns.

A number is counted in units of its last digit, and has 256 bits: Arrow computes with those, whatever precision a column
is labelled with. Results are rounded half up, away from zero, as Spark rounds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.plan.types import DECIMAL_DIGITS_MAX
from upriver.state.columns import array_of, cell_type, cells_of, validity
from upriver.state.digits import Limbs
from upriver.state.vectors import Mask

Words = npt.NDArray[np.int64]
"""Numbers in rows of 64-bit words, the lowest first; the highest has the sign."""
Digits = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SCALA_DIGITS = 34
"""Digits to which Spark has Scala round a number whose sign it turns."""
JAVA_DIGITS = 39
"""The most digits of a quotient without places."""
_BITS_DIGITS_MAX = 76
"""The greatest power of ten in 256 bits."""
_MANTISSA_BITS = 53
"""Of a float."""
_STEPS_MAX = 12
"""Steps of a division. Each takes off about 50 bits, of 256."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Two columns of decimals. absent: where one of them is NULL; both are 1 there, or any other number but 0."""

    left: pa.Array
    left_scale: int
    right: pa.Array
    right_scale: int
    absent: Mask

    @staticmethod
    def of(left: pa.Array, right: pa.Array) -> "Operands":
        absent = ~(validity(left) & validity(right))
        scales = left.type.scale, right.type.scale
        return Operands(_widened(left, absent), scales[0], _widened(right, absent), scales[1], absent)

    @property
    def negative(self) -> Mask:
        """Where a product or a quotient is."""
        found: Mask = is_negative(self.left) ^ is_negative(self.right)
        return found


@dataclass(frozen=True, slots=True)
class Result:
    """Absolute values, in units of a type's last digit, their signs, and where there is none, by its reason."""

    values: pa.Array
    negative: Mask
    lost: Mask
    """Where the number has more digits than there are, and ``values`` are wrong."""
    by_zero: Mask | None = None


class Operation(Protocol):
    def __call__(self, operands: Operands, scale: int) -> Result:
        """scale: of the result."""
        ...


def add(operands: Operands, scale: int) -> Result:
    return _sum(operands, operands.right, scale)


def subtract(operands: Operands, scale: int) -> Result:
    return _sum(operands, pc.negate(operands.right), scale)


def _sum(operands: Operands, right: pa.Array, scale: int) -> Result:
    places = max(operands.left_scale, operands.right_scale)
    terms = (
        _shifted(operands.left, places - operands.left_scale),
        _shifted(right, places - operands.right_scale),
    )
    total = pc.add(*(_labelled(term, _BITS_DIGITS_MAX - 1) for term in terms))
    values = _rounded(pc.abs(total), places - scale)
    return Result(values, is_negative(total), np.zeros(len(values), np.bool_))


def multiply(operands: Operands, scale: int) -> Result:
    product = pc.abs(_product(operands.left, operands.right))
    values = _rounded(product, operands.left_scale + operands.right_scale - scale)
    return Result(values, operands.negative, np.zeros(len(values), np.bool_))


def divide(operands: Operands, scale: int) -> Result:
    dividend, divisor, by_zero = _divisible(operands)
    values, lost = quotients(dividend, divisor, scale - operands.left_scale + operands.right_scale)
    return Result(values, operands.negative, lost, by_zero)


def remainder(operands: Operands, scale: int) -> Result:
    """The sign is the left operand's. scale: the greater one of the operands'."""
    (_, rest), lost, by_zero = _whole_division(operands)
    return Result(rest, is_negative(operands.left), lost, by_zero)


def whole_quotient(operands: Operands, scale: int) -> Result:
    """Without places. scale: 0."""
    (quotient, _), lost, by_zero = _whole_division(operands)
    return Result(quotient, operands.negative, lost, by_zero)


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "add": add,
        "subtract": subtract,
        "multiply": multiply,
        "divide": divide,
        "remainder": remainder,
        "div": whole_quotient,
    }
)
"""By name."""


def computed(operation: Operation, left: pa.Array, right: pa.Array, type: pa.DataType, tolerant: bool) -> pa.Array:
    """The operation's results, of a decimal type. tolerant: with NULL where it fails.

    Raises ValueError for a result that does not fit its type, and for a division by zero.
    """
    operands = Operands.of(left, right)
    result = operation(operands, type.scale)
    lost = (result.lost | at_least_power(result.values, type.precision)) & ~operands.absent
    by_zero = np.zeros(len(lost), np.bool_) if result.by_zero is None else result.by_zero & ~operands.absent
    if not tolerant:
        if by_zero.any():
            raise ValueError("Division by zero")
        if lost.any():
            raise ValueError(f"The result does not fit in DECIMAL({type.precision},{type.scale})")
    return narrowed(result.values, result.negative, type, operands.absent | lost | by_zero)


def with_sign(change: str, values: pa.Array, tolerant: bool) -> pa.Array:
    """``negate`` or ``abs``. Spark has Scala turn the sign of a number, which rounds it to 34 digits, halves to even.

    Raises ValueError for a result that does not fit its type; if ``tolerant``, it is NULL.
    """
    type, absent = values.type, ~validity(values)
    wide = _widened(values, absent)
    negative = is_negative(wide)
    turned = negative if change == "abs" else np.ones(len(values), np.bool_)
    found = _rounded_even(pc.abs(wide), SCALA_DIGITS, turned)
    lost = at_least_power(found, type.precision) & ~absent
    if not tolerant and lost.any():
        raise ValueError(f"The result does not fit in DECIMAL({type.precision},{type.scale})")
    return narrowed(found, turned & ~negative, type, absent | lost)


def low_bits(values: pa.Array) -> pa.Array:
    """Decimals without places as BIGINT: their lowest 64 bits, as Java takes them."""
    words = np.ascontiguousarray(cells_of(values)).view(np.int64).reshape(len(values), 2)
    return array_of(pa.int64(), words[:, 0].copy(), validity(values) if values.null_count else None)


# Quotients


def quotients(dividend: pa.Array, divisor: pa.Array, shift: int) -> tuple[pa.Array, Mask]:
    """dividend * 10**shift / divisor, rounded half up; and where that has more digits than there are.

    Neither is negative, and the divisor is not 0; both have 38 digits. shift: 0 to 76.
    """
    first = min(shift, DECIMAL_DIGITS_MAX)
    values, rest = _divided(_shifted(dividend, first), divisor)
    lost = at_least_power(values, DECIMAL_DIGITS_MAX)
    if shift > first:
        more, rest = _divided(_shifted(rest, shift - first), divisor)
        values = _sum_of(_product(values, _powers_at(np.full(len(values), shift - first))), more)
    half = pc.greater_equal(_sum_of(rest, rest), _labelled(divisor, _BITS_DIGITS_MAX))
    return _sum_of(values, _ones(_flags(half))), lost


def _divisible(operands: Operands) -> tuple[pa.Array, pa.Array, Mask]:
    """The absolute values of both, and where the right one is 0; it is 1 there."""
    divisor = pc.abs(operands.right)
    by_zero: Mask = np.asarray(~_words(divisor).any(axis=1))
    if by_zero.any():
        words = _words(divisor).copy()
        words[by_zero, 0] = 1
        divisor = _array(words)
    return pc.abs(operands.left), divisor, by_zero


def _whole_division(operands: Operands) -> tuple[tuple[pa.Array, pa.Array], Mask, Mask]:
    """The quotient without places and the rest, in units of the greater scale; where Java refuses so long a quotient;
    and where the divisor is 0."""
    dividend, divisor, by_zero = _divisible(operands)
    shift = operands.right_scale - operands.left_scale
    if shift < 0:
        divisor = _shifted(divisor, -shift)
    quotient, rest = _divided(_shifted(dividend, max(shift, 0)), divisor)
    return (quotient, rest), _has_more_digits(quotient, JAVA_DIGITS), by_zero


def _has_more_digits(values: pa.Array, most: int) -> Mask:
    """Which numbers have more digits than so many, without zeros at their end."""
    found = np.zeros(len(values), np.bool_)
    beyond = digits(values) - most
    for count in np.unique(beyond[beyond > 0]).tolist():
        whole = _shifted(_cut(values, count), count)
        found |= (beyond == count) & (_words(whole) != _words(values)).any(axis=1)
    return found


def _divided(dividend: pa.Array, divisor: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The quotient without places, and the rest, of numbers that are not negative; the divisor is not 0.

    Arrow's own division of 256 bits gives wrong digits at times. Here each step divides what is left as floats, and so
    takes about 50 bits off it.
    """
    quotient, rest, step = _constant(0, len(dividend)), dividend, _floats(divisor)
    for _ in range(_STEPS_MAX):
        parts = _whole(np.rint(_floats(rest) / step))
        quotient = _sum_of(quotient, parts)
        rest = _difference(rest, _product(parts, divisor))
        if not (np.abs(_floats(rest)) > 0.75 * step).any():
            break
    else:
        raise AssertionError("a division needs no more steps")
    below = is_negative(rest)
    if below.any():
        quotient = _difference(quotient, _ones(below))
        rest = _sum_of(rest, _array(np.where(below[:, np.newaxis], _words(divisor), 0)))
    return quotient, rest


def _floats(values: pa.Array) -> Floats:
    """The nearest floats, or their neighbours."""
    negative = is_negative(values)
    words = _words(_signed(values, negative)).view(np.uint64)
    found = words[:, 3].astype(np.float64)
    for place in (2, 1, 0):
        found = found * 2.0**64 + words[:, place]
    return np.where(negative, -found, found)


def _whole(floats: Floats) -> pa.Array:
    """Whole numbers, from floats."""
    fractions, exponents = np.frexp(np.abs(floats))
    mantissas = np.ldexp(fractions, _MANTISSA_BITS).astype(np.uint64)
    shifts = exponents.astype(np.int64) - _MANTISSA_BITS
    mantissas >>= np.maximum(-shifts, 0).astype(np.uint64)
    places, bits = np.divmod(np.maximum(shifts, 0), 64)
    words = np.zeros((len(floats), 5), np.uint64)
    rows = np.arange(len(floats))
    words[rows, places] = mantissas << bits.astype(np.uint64)
    words[rows, places + 1] = (mantissas >> np.uint64(1)) >> (63 - bits).astype(np.uint64)
    return _signed(_array(words[:, :4].view(np.int64)), floats < 0)


# Rounding


def _rounded(values: pa.Array, places: int) -> pa.Array:
    """The values, which are not negative, without their last places, rounded half up."""
    if places == 0:
        return values
    return _cut(_sum_of(values, _constant(5 * 10 ** (places - 1), len(values))), places)


def _rounded_even(values: pa.Array, most: int, places: Mask) -> pa.Array:
    """The values, which are not negative, at these places rounded to so many digits, halves to even."""
    beyond = np.where(places, digits(values) - most, 0)
    for count in np.unique(beyond[beyond > 0]).tolist():
        quotient, rest = _divided(values, _constant(10**count, len(values)))
        rest, half = _labelled(rest, _BITS_DIGITS_MAX), _constant(10**count // 2, len(values))
        odd = _words(quotient)[:, 0] % 2 == 1
        up = _flags(pc.greater(rest, half)) | (_flags(pc.equal(rest, half)) & odd)
        rounded = _words(_shifted(_sum_of(quotient, _ones(up)), count))
        values = _array(np.where((beyond == count)[:, np.newaxis], rounded, _words(values)))
    return values


def digits(values: pa.Array) -> Digits:
    """How many digits the numbers have, which are not negative; of 0 none."""
    guesses = np.log10(np.maximum(_floats(values), 1.0)).astype(np.int64)
    guesses = np.minimum(guesses, _BITS_DIGITS_MAX - 1)
    values = _labelled(values, _BITS_DIGITS_MAX)
    less, more = (_labelled(_powers_at(guesses + step), _BITS_DIGITS_MAX) for step in (0, 1))
    found: Digits = guesses + _flags(pc.greater_equal(values, less)) + _flags(pc.greater_equal(values, more))
    return found


def at_least_power(values: pa.Array, exponent: int) -> Mask:
    """Which numbers, which are not negative, have more than ``exponent`` digits."""
    power = _constant(10**exponent, len(values))
    return _flags(pc.greater_equal(_labelled(values, _BITS_DIGITS_MAX), power))


# Numbers of 256 bits


def widened(cells: npt.NDArray[Any]) -> pa.Array:
    """Numbers, from as many 64-bit words as Arrow keeps each of them in: a BIGINT has one, a decimal two."""
    count = cells.dtype.itemsize // 8
    words = np.ascontiguousarray(cells).view(np.int64).reshape(len(cells), count)
    return _array(np.concatenate([words, np.repeat(words[:, -1:] >> 63, 4 - count, axis=1)], axis=1))


def _widened(values: pa.Array, absent: Mask) -> pa.Array:
    cells = cells_of(values)
    if absent.any():
        words = np.ascontiguousarray(cells).view(np.int64).reshape(len(cells), 2).copy()
        words[absent] = (1, 0)
        cells = words.view(cells.dtype)
    return widened(cells)


def narrowed(values: pa.Array, negative: Mask, type: pa.DataType, absent: Mask) -> pa.Array:
    """The numbers, with their signs, as decimals; NULL where they are absent."""
    words = _words(_signed(values, negative))[:, :2]
    cells = np.ascontiguousarray(words).view(cell_type(type)).reshape(len(words))
    return array_of(type, cells, ~absent if absent.any() else None)


def _signed(values: pa.Array, negative: Mask) -> pa.Array:
    if not negative.any():
        return values
    return _array(np.where(negative[:, np.newaxis], _words(pc.negate(values)), _words(values)))


def _array(words: Words) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(words))
    return pa.Array.from_buffers(pa.decimal256(DECIMAL_DIGITS_MAX), len(words), [None, buffer])


def _words(values: pa.Array) -> Words:
    _, buffer = values.buffers()
    return np.frombuffer(buffer, np.int64).reshape(-1, 4)[values.offset : values.offset + len(values)]


def _labelled(values: pa.Array, precision: int, scale: int = 0) -> pa.Array:
    """The same bits, with this type."""
    return values.view(pa.decimal256(precision, scale))


def is_negative(values: pa.Array) -> Mask:
    found: Mask = _words(values)[:, 3] < 0
    return found


def equal_bits(left: pa.Array, right: pa.Array) -> Mask:
    """Which numbers are the same."""
    found: Mask = (_words(left) == _words(right)).all(axis=1)
    return found


def joined(limbs: Limbs) -> pa.Array:
    """The numbers of four carried limbs, and the highest may have more than 32 bits."""
    low, high = (limbs[place] | limbs[place + 1] << 32 for place in (0, 2))
    above = limbs[3] >> 32
    return _array(np.stack([low, high, above, above >> 63], axis=1))


def _flags(truths: pa.Array) -> Mask:
    found: Mask = truths.to_numpy(zero_copy_only=False)
    return found


def _ones(truths: Mask) -> pa.Array:
    words = np.zeros((len(truths), 4), np.int64)
    words[:, 0] = truths
    return _array(words)


def _product(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.multiply(_labelled(left, DECIMAL_DIGITS_MAX), _labelled(right, DECIMAL_DIGITS_MAX - 1))


def _sum_of(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.add(_labelled(left, _BITS_DIGITS_MAX - 1), _labelled(right, _BITS_DIGITS_MAX - 1))


def _difference(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.subtract(_labelled(left, _BITS_DIGITS_MAX - 1), _labelled(right, _BITS_DIGITS_MAX - 1))


def _shifted(values: pa.Array, places: int) -> pa.Array:
    """Times ten to the power of places, which are 38 at most."""
    return _product(values, _constant(10**places, len(values))) if places else values


def _cut(values: pa.Array, places: int) -> pa.Array:
    """Numbers that are not negative, without their last places."""
    return _divided(values, _constant(10**places, len(values)))[0] if places else values


def _numbers(numbers: list[int]) -> pa.Array:
    data = b"".join(number.to_bytes(32, "little") for number in numbers)
    return pa.Array.from_buffers(pa.decimal256(DECIMAL_DIGITS_MAX), len(numbers), [None, pa.py_buffer(data)])


_POWERS = _numbers([10**exponent for exponent in range(_BITS_DIGITS_MAX + 1)])


def _powers_at(exponents: Digits) -> pa.Array:
    return _POWERS.take(pa.array(exponents))


def _constant(number: int, count: int) -> pa.Array:
    return _labelled(_numbers([number]).take(pa.array(np.zeros(count, np.int64))), _BITS_DIGITS_MAX)
