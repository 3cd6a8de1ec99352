"""Whole numbers of 64 and 128 bits that must not wrap: sums in limbs of 32 bits.

A number is little-endian two's complement in one or two 64-bit words, as Arrow keeps an int64 and a decimal128. For
adding up it is split into limbs of 32 bits, each in an int64 of its own: up to 2**31 of them can be added before one
overflows, and the highest, which is signed, then still tells by how much a sum has left its range.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from upriver.state.vectors import Mask, Positions, Weights

Limbs = list[npt.NDArray[np.int64]]
"""The lowest first. *Carried* limbs are below 2**32 and not negative, but for the highest."""

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
    """The inverse of :func:`split`; what lies beyond the type's range is lost."""
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
    """Compare from the lowest limb up: a higher one overrules."""
    less: Mask = left[0] < right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        less = (a < b) | ((a == b) & less)
    return less
