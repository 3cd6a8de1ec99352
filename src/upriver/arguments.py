"""Numbers and names from users. A wrong value is refused with its purpose in the error, and nothing is guessed."""

import math
import operator
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, SupportsFloat, SupportsIndex

from upriver.errors import DeclarationError

SECONDS_MAX = 1e8
"""The longest wait in seconds, three years: for people the same as forever."""


def whole(what: str, number: SupportsIndex) -> int:
    """A whole number of any integer type. Anything else, including a bool and 2.0, is refused.

    Raises DeclarationError, which names ``what``.
    """
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise DeclarationError(f"{what}={number!r}: give a whole number, not a {type(number).__name__}")
    try:
        return operator.index(number)
    except TypeError as error:  # of a class that has the method for only some of its values, such as an array
        raise DeclarationError(f"{what}={number!r}: give a whole number ({error})") from error


def seconds(what: str, number: SupportsFloat) -> float:
    """Seconds to wait, 0 or more, at most ``SECONDS_MAX``; infinity is that many.

    Raises DeclarationError, which names ``what``.
    """
    if isinstance(number, bool | str | bytes) or not hasattr(number, "__float__"):
        raise DeclarationError(f"{what}={number!r}: give a number of seconds, not a {type(number).__name__}")
    try:
        given = float(number)
    except (TypeError, ValueError, OverflowError) as error:  # an array, a signaling NaN, more than a float can hold
        raise DeclarationError(f"{what}={number!r}: give a number of seconds ({error})") from error
    if math.isnan(given) or given < 0:
        raise DeclarationError(f"{what}={number!r}: give a number of seconds, 0 or more")
    return min(given, SECONDS_MAX)


def at_least(what: str, number: SupportsIndex, least: int) -> int:
    """A whole number, not below ``least``. Raises DeclarationError, which names ``what``."""
    given = whole(what, number)
    if given < least:
        raise DeclarationError(f"{what}={given}: at least {least} is needed")
    return given


def more_than_none(what: str, number: float, unit: str) -> float:
    """A finite number above 0. unit: of what. Raises DeclarationError, which names ``what``."""
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not (math.isfinite(number) and number > 0):
        raise DeclarationError(f"{what}={number!r}: give {unit}, more than 0")
    return number


def names(what: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """One name, or several. Raises DeclarationError, which says ``what`` they are for."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping):
        with suppress(TypeError):  # raised by a Column of Spark's, which looks iterable and is not
            listed = tuple(given)
            if all(isinstance(name, str) for name in listed):
                return listed
    raise DeclarationError(f"{what}={given!r}: give the name of a column, or a list of names")


def as_spelled(given: Iterable[str], columns: Iterable[str]) -> tuple[str, ...]:
    """The given names as the columns spell them: to Spark, case is no difference. A name of no column stays."""
    known = list(columns)
    by_lower = {column.lower(): column for column in known}
    return tuple(name if name in known else by_lower.get(name.lower(), name) for name in given)


def text(what: str, given: str) -> str:
    """A text. Raises DeclarationError, which names ``what``."""
    if not isinstance(given, str):
        raise DeclarationError(f"{what}={given!r}: give a text")
    return given


def some_text(what: str, given: str) -> str:
    """A text that is not empty. Raises DeclarationError, which names ``what``."""
    if not text(what, given):
        raise DeclarationError(f"{what}='': give a text that is not empty")
    return given


def flag(what: str, given: bool) -> bool:
    """True or False, but no other value that merely counts as one. Raises DeclarationError, which names ``what``."""
    if not isinstance(given, bool):
        raise DeclarationError(f"{what}={given!r}: give True or False, not a {type(given).__name__}")
    return given


def class_name(given: object) -> str:
    """The name of a value's type, with its module unless that is Python's own: several packages have a DataFrame."""
    kind = type(given)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def clipped_repr(value: Any, chars_max: int) -> str:
    """A value of the user's in a message, with at most so many characters of it."""
    try:
        text = repr(value)
    except Exception:  # of any class: it is the user's code
        text = f"a {type(value).__name__}"
    return text if len(text) <= chars_max else f"{text[:chars_max]}..."
