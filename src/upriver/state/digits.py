"""Exact sums: of floats and their products, as digits of 32 bits; of 64- and 128-bit integers, in limbs of 32 bits.

The digit at place p counts for 2**(32 * p); p may be negative. Digits are *balanced*, from -2**31 to 2**31 - 1, so they
are a function of the number alone: zeros further up or down change nothing. So a sum is the same in whichever order,
and in however many batches, its parts were added and taken away.

An integer that must not wrap is summed in limbs. It is little-endian two's complement in one or two 64-bit words, as
Arrow keeps an int64 and a decimal128. A sum splits it into limbs of 32 bits, each in an int64 of its own. Up to 2**31
of them can be added before a limb overflows; the highest limb, which is signed, then still tells by how much a sum has
left its range.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.columns import array_of, cells_of
from upriver.state.vectors import Mask, Positions, Slots, SparseVectors, Weights

Limbs = list[npt.NDArray[np.int64]]
"""The lowest first. *Carried* limbs are below 2**32 and, except for the highest, not negative."""

_LIMB_BITS = 32
_LIMB_MASK = 0xFFFF_FFFF


def split(words: npt.NDArray[Any]) -> Limbs:
    """The carried limbs of numbers of 8 or 16 bytes."""
    count = words.dtype.itemsize // 8
    columns = np.ascontiguousarray(words).view(np.int64).reshape(len(words), count).T
    limbs = [limb for word in columns for limb in (word & _LIMB_MASK, (word >> _LIMB_BITS) & _LIMB_MASK)]
    limbs[-1] = columns[-1] >> _LIMB_BITS
    return limbs


def join(limbs: Limbs, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The inverse of :func:`split`; digits beyond the type's range are lost."""
    words = [high << _LIMB_BITS | low for low, high in zip(limbs[::2], limbs[1::2], strict=True)]
    return np.ascontiguousarray(np.stack(words, axis=1)).view(dtype).reshape(len(limbs[0]))


def add_at(totals: Limbs, places: Positions, values: Limbs, weight: Weights | None) -> None:
    """Add each value, times its weight, to the total at its place, and carry.

    The absolute weights of one call must add up to less than 2**31.
    """
    for total, value in zip(totals, values, strict=True):
        np.add.at(total, places, value if weight is None else value * weight)
    for lower, higher in pairwise(totals):
        higher += lower >> _LIMB_BITS
        lower &= _LIMB_MASK


def outside(limbs: Limbs, least: int, most: int) -> Mask:
    """Which of these carried numbers are below ``least`` or above ``most``."""
    return _less(limbs, _constant(least, len(limbs))) | _less(_constant(most, len(limbs)), limbs)


def to_ints(words: npt.NDArray[Any]) -> list[int]:
    """The numbers as Python's."""
    width = words.dtype.itemsize
    data = words.tobytes()
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width)]


def from_ints(numbers: list[int], width: int) -> npt.NDArray[Any]:
    """The inverse of :func:`to_ints`. width: in bytes, 16."""
    return np.frombuffer(b"".join(number.to_bytes(width, "little", signed=True) for number in numbers), f"V{width}")


def _constant(number: int, count: int) -> Limbs:
    limbs = [np.array([number >> _LIMB_BITS * place & _LIMB_MASK]) for place in range(count - 1)]
    return [*limbs, np.array([number >> _LIMB_BITS * (count - 1)])]


def _less(left: Limbs, right: Limbs) -> Mask:
    """Compare from the lowest limb up: a higher limb overrules."""
    less: Mask = left[0] < right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        less = (a < b) | ((a == b) & less)
    return less


Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BITS = 32
_MASK = 0xFFFF_FFFF
_HALF = 1 << 31

_MANTISSA_BITS = 53
_WEIGHTS_BITS = 28
"""The weights added in one step sum to at most two to the power of this."""

_LEAST_EXPONENT = -960
"""A digit so far down, or further, matters only if it is not zero."""

_PLACE_BITS = 8
_PLACE_BIAS = 128
"""The lowest bits of a saved digit are its place plus this."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Numbers side by side: each column of ``rows`` is a number, whose digit in the first row is at ``place``."""

    rows: Longs
    place: int

    @classmethod
    def of(cls, numbers: Longs) -> Self:
        """Whole numbers."""
        return cls(_balanced(np.stack([numbers & _MASK, numbers >> _BITS, np.zeros_like(numbers)])), 0)

    def times(self, other: "Digits") -> "Digits":
        """Products, column by column."""
        height = len(other.rows)
        rows = np.zeros((len(self.rows) + height + 1, self.rows.shape[1]), np.int64)
        for place, row in enumerate(self.rows):
            part = row * other.rows
            rows[place : place + height] += part & _MASK
            rows[place + 1 : place + height + 1] += part >> _BITS
        return Digits(_balanced(rows), self.place + other.place)

    def minus(self, other: "Digits") -> "Digits":
        """Differences, column by column."""
        place = min(self.place, other.place)
        top = max(self.place + len(self.rows), other.place + len(other.rows))
        rows = np.zeros((top + 1 - place, self.rows.shape[1]), np.int64)
        rows[self.place - place :][: len(self.rows)] += self.rows
        rows[other.place - place :][: len(other.rows)] -= other.rows
        return Digits(_balanced(rows), place)

    def divided(self, divisors: Floats | None = None) -> Floats:
        """The numbers as the nearest floats, infinite beyond the greatest; or divided, precise to the last bits."""
        count = self.rows.shape[1]
        if not len(self.rows):
            return np.zeros(count)
        top = len(self.rows) - 1 - np.argmax(self.rows[::-1] != 0, axis=0)
        # A part further up is never nearer to zero than one further down, so a sum leaves exactly what it has rounded
        # off.
        high, low, rest = np.zeros(count), np.zeros(count), np.zeros(count)
        for step in range(len(self.rows)):
            digits = np.where(top >= step, self.rows[np.maximum(top - step, 0), np.arange(count)], 0)
            part = np.ldexp(digits.astype(np.float64), max(-_BITS * step, _LEAST_EXPONENT))
            high, part = _sum_and_error(high, part)
            low, part = _sum_and_error(low, part)
            rest += part
        # An odd last bit stands for everything below it, so the last sum is rounded as if it had all digits.
        even = (low.view(np.int64) & 1 == 0) & (rest != 0)
        low = np.where(even, np.nextafter(low, np.copysign(np.inf, rest)), low)
        with np.errstate(all="ignore"):
            fraction = high + low if divisors is None else (high + low) / divisors
            numbers: Floats = np.ldexp(fraction, _BITS * (self.place + top))
        return numbers


class ExactSums:
    """An exact sum for each slot."""

    __slots__ = ("_digits",)

    def __init__(self) -> None:
        self._digits: SparseVectors[int] = SparseVectors()
        """By place."""

    @property
    def nbytes(self) -> int:
        return self._digits.nbytes

    def resize(self, size: int) -> None:
        self._digits.resize(size)

    def add(self, slots: Slots, mantissas: Longs, exponents: Longs, weight: Weights | None) -> None:
        """Add mantissa * 2**exponent, so many times, to the sum of each slot.

        Mantissas are between -2**55 and 2**55.
        """
        if weight is not None and np.abs(weight.astype(np.float64)).sum() > 1 << _WEIGHTS_BITS:
            bits = _WEIGHTS_BITS - len(slots).bit_length()
            self.add(slots, mantissas, exponents, weight & (1 << bits) - 1)
            self.add(slots, mantissas, exponents + bits, weight >> bits)
            return
        parts, places = _parts_and_places(mantissas, exponents)
        touched, columns = np.unique(slots, return_inverse=True)
        if not len(touched):
            return
        first = int(places.min())
        rows = np.zeros((int(places.max()) - first + len(parts), len(touched)), np.int64)
        at = (places - first) * len(touched) + columns
        for part in parts if weight is None else parts * weight:
            np.add.at(rows.reshape(-1), at, part)
            at += len(touched)
        self._add_rows(touched, rows, first)

    def digits(self, slots: Slots) -> Digits:
        """The sums of these slots."""
        found = {place: cells[slots] for place, cells in self._digits.written()}
        found = {place: row for place, row in found.items() if row.any()}
        if not found:
            return Digits(np.zeros((0, len(slots)), np.int64), 0)
        first, last = min(found), max(found)
        rows = np.zeros((last + 1 - first, len(slots)), np.int64)
        for place, row in found.items():
            rows[place - first] = row
        return Digits(rows, first)

    def state(self, slots: Slots) -> pa.Array:
        """The sums of these slots, each as a list of its digits that are not zero, each with its place."""
        digits = self.digits(slots)
        columns, rows = np.nonzero(digits.rows.T)
        words = digits.rows[rows, columns] << _PLACE_BITS | rows + digits.place + _PLACE_BIAS
        offsets = pa.array(np.searchsorted(columns, np.arange(len(slots) + 1)))
        return pa.LargeListArray.from_arrays(offsets, array_of(pa.int64(), words))

    def install(self, slots: Slots, state: pa.Array) -> None:
        """Install the :meth:`state` of these slots, whose sums are zero."""
        each = np.repeat(slots, state.value_lengths().to_numpy(zero_copy_only=False))
        words = cells_of(state.flatten())
        places = (words & (1 << _PLACE_BITS) - 1) - _PLACE_BIAS
        for place in np.unique(places).tolist():
            here = places == place
            self._digits.cells(place)[each[here]] = words[here] >> _PLACE_BITS

    def _add_rows(self, slots: Slots, rows: Longs, place: int) -> None:
        """Add numbers in rows of digits, the first one's at ``place``, to the sums of these slots, each named once."""
        carry = np.zeros(len(slots), np.int64)
        for row in rows:
            carry = self._add_row(slots, row + carry, place)
            place += 1
        while carry.any():
            carry = self._add_row(slots, carry, place)
            place += 1

    def _add_row(self, slots: Slots, row: Longs, place: int) -> Longs:
        """Add to one digit of each sum; returns the carry."""
        if not row.any():
            return row
        cells = self._digits.cells(place)
        total = cells[slots] + row
        carry = total + _HALF >> _BITS
        cells[slots] = total - (carry << _BITS)
        return carry


class RunSums:
    """Exact sums of any runs of neighbours among some floats."""

    __slots__ = ("_place", "_sums")

    def __init__(self, count: int, parts: Iterable[tuple[Longs, Longs]]) -> None:
        """count: of the floats. parts: mantissas and exponents, as :meth:`ExactSums.add` has them; each float is the
        sum of its parts."""
        split = [_in_rows(mantissas, exponents) for mantissas, exponents in parts]
        self._place = min(digits.place for digits in split)
        top = max(digits.place + len(digits.rows) for digits in split)
        self._sums = np.zeros((top - self._place, count + 1), np.int64)
        """By digit: the sum of all floats before each place, not carried."""
        for digits in split:
            self._sums[digits.place - self._place :, 1:][: len(digits.rows)] += digits.rows
        np.cumsum(self._sums, axis=1, out=self._sums)

    def digits(self, starts: Positions, ends: Positions) -> Digits:
        """The sum of each run. starts: of the runs. ends: behind their last float."""
        rows = np.zeros((len(self._sums) + 2, len(starts)), np.int64)
        rows[:-2] = self._sums[:, ends] - self._sums[:, starts]
        return Digits(_balanced(rows), self._place)


def _in_rows(mantissas: Longs, exponents: Longs) -> Digits:
    """Each mantissa * 2**exponent in a column of its own, not balanced."""
    parts, places = _parts_and_places(mantissas, exponents)
    first, last = (int(places.min()), int(places.max())) if len(places) else (0, 0)
    rows = np.zeros((last - first + len(parts), len(mantissas)), np.int64)
    columns = np.arange(len(mantissas))
    for step, part in enumerate(parts):
        rows[places - first + step, columns] = part
    return Digits(rows, first)


def _parts_and_places(mantissas: Longs, exponents: Longs) -> tuple[Longs, Longs]:
    """Three digits for each mantissa * 2**exponent, the lowest first, and the place of that one."""
    shifts = exponents & _BITS - 1
    low, high = (mantissas & _MASK) << shifts, (mantissas >> _BITS) << shifts
    return np.stack([low & _MASK, (low >> _BITS) + (high & _MASK), high >> _BITS]), exponents >> 5


def parts_of(numbers: Floats) -> tuple[Longs, Longs]:
    """The mantissa and the exponent of each float, all of them finite."""
    fractions, exponents = np.frexp(numbers)
    return np.ldexp(fractions, _MANTISSA_BITS).astype(np.int64), exponents.astype(np.int64) - _MANTISSA_BITS


def _sum_and_error(larger: Floats, smaller: Floats) -> tuple[Floats, Floats]:
    """The rounded sum, and the exact sum less the rounded one. larger: or zero."""
    total = larger + smaller
    return total, smaller - (total - larger)


def _balanced(rows: Longs) -> Longs:
    """Carry in place, from the first row up. The last row must have room."""
    for row, above in pairwise(rows):
        carry = row + _HALF >> _BITS
        row -= carry << _BITS
        above += carry
    return rows
