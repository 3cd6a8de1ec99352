"""The text of a TIMESTAMP or TIMESTAMP_NTZ as Spark reads it: SparkDateTimeUtils.parseTimestampString, over columns.

A day may lack its day or its month, a clock its seconds or its minutes. Digits of a fraction beyond six are cut. Behind
the seconds may stand a time zone, by any name or offset that Java takes.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.row_text import value_text
from upriver.engine.zone_offsets import Micros, instants_of
from upriver.zones import zone_of_text

Mask = npt.NDArray[np.bool_]
_BLANK = r"[\x00-\x20\x7F]*"
_SPACES = "".join(map(chr, range(0x21)))
_SECONDS = r"(?P<s>[0-9]{1,2})(?:\.(?P<us>[0-9]*))?(?P<zone>[^0-9](?s:.*?))??"
_CLOCK = rf"(?P<h>[0-9]{{1,2}})(?::(?P<mi>[0-9]{{1,2}})(?::{_SECONDS})?)?"
_MOMENT = (
    rf"^{_BLANK}(?P<sign>[+-]?)(?P<y>[0-9]{{4,6}})(?:-(?P<mo>[0-9]{{1,2}})(?:-(?P<d>[0-9]{{1,2}})"
    rf"(?:[ T]{_CLOCK})?)?)?{_BLANK}$"
)
_ONLY_CLOCK = rf"^(?:T|{_BLANK}){_CLOCK}{_BLANK}$"
_PLAIN_NUMBER = rf"^{_BLANK}[0-9]{{1,2}}{_BLANK}$"
"""A clock without a colon needs its T."""
_SECOND, _DAY_S = 1_000_000, 86_400
_FIRST_S, _LAST_S = -(2**63) // _SECOND, (2**63 - 1) // _SECOND
"""The seconds in which Spark's range begins and ends."""
_SPARE_S = 3 * _DAY_S
"""Near the ends of the range DuckDB has no values, or the wall clock does not fit 64 bits."""
_CYCLE_DAYS, _CYCLE_YEARS = 146_097, 400


class NotAMoment(ValueError):
    """A text has no value as this type. why: what is said of it."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"The text {text} {why}")
        self.why = why


@dataclass(frozen=True, slots=True)
class _Read:
    """What texts say. seconds, micros: of their wall clock. zones: what stands behind it, empty for nothing.

    good: which texts have the form and a wall clock that exists. is_clock_alone: which lack a date.
    """

    seconds: Micros
    micros: Micros
    zones: pa.Array
    good: Mask
    is_clock_alone: Mask


def instants_in(texts: pa.Array, zone: str, tolerant: bool) -> pa.Array:
    """The instants of texts, those without a time zone in this one, as TIMESTAMP without one, in UTC.

    A text that Spark cannot read becomes NULL if tolerant. Else, and for one that Spark can read and this cannot,
    raises NotAMoment.
    """
    read = _read(texts)
    names = read.zones.dictionary_encode()
    offsets = [zone_of_text(one) if one else zone for one in names.dictionary.to_pylist()]
    codes = names.indices.to_numpy()
    good = read.good & np.array([one is not None for one in offsets], np.bool_)[codes]
    _raise_if(good & read.is_clock_alone, texts, "lacks a date, and Spark adds the current one")
    shifts = np.array([one if isinstance(one, int) else 0 for one in offsets], np.int64)[codes]
    seconds = read.seconds - shifts
    good &= (seconds >= _FIRST_S - _DAY_S) & (seconds <= _LAST_S + _DAY_S)
    values = np.where(good, seconds, 0) * _SECOND + read.micros
    _raise_if(good & _is_at_an_end(seconds), texts, "is too far to compute with")
    regions = np.array([isinstance(one, str) and one != "UTC" for one in offsets], np.bool_)
    for code in np.unique(codes[good & regions[codes]]).tolist():
        here = np.flatnonzero(good & (codes == code))
        values[here] = instants_of(values[here], str(offsets[code]))
    return _made(values, good, texts, "TIMESTAMP", tolerant)


def clocks_in(texts: pa.Array, tolerant: bool) -> pa.Array:
    """The wall clocks of texts, whatever their time zone, as :func:`instants_in`."""
    read = _read(texts)
    zones = read.zones.dictionary_encode()
    known = np.array([not one or zone_of_text(one) is not None for one in zones.dictionary.to_pylist()], np.bool_)
    good = read.good & ~read.is_clock_alone & known[zones.indices.to_numpy()]
    good &= (read.seconds >= _FIRST_S) & (read.seconds <= _LAST_S)
    _raise_if(good & _is_at_an_end(read.seconds), texts, "is too far to compute with")
    values = np.where(good, read.seconds, 0) * _SECOND + read.micros
    return _made(values, good, texts, "TIMESTAMP_NTZ", tolerant)


def _is_at_an_end(seconds: Micros) -> Mask:
    found: Mask = (seconds < _FIRST_S + _SPARE_S) | (seconds > _LAST_S - _SPARE_S)
    return found


def _made(values: Micros, good: Mask, texts: pa.Array, type: str, tolerant: bool) -> pa.Array:
    if not tolerant:
        there: Mask = texts.is_valid().to_numpy(zero_copy_only=False)
        _raise_if(there & ~good, texts, f"cannot be cast to {type}")
    return pa.array(values, pa.int64(), mask=~good).view(pa.timestamp("us"))


def _raise_if(at: Mask, texts: pa.Array, why: str) -> None:
    if at.any():
        raise NotAMoment(value_text(texts.slice(int(at.argmax()), 1)), why)


def _read(texts: pa.Array) -> _Read:
    with_date = pc.extract_regex(texts, _MOMENT)
    has_date: Mask = with_date.is_valid().to_numpy(zero_copy_only=False)
    rest = pc.if_else(pa.array(has_date), None, texts)
    alone = pc.extract_regex(rest, _ONLY_CLOCK)
    is_alone: Mask = alone.is_valid().to_numpy(zero_copy_only=False)
    is_alone &= ~pc.fill_null(pc.match_substring_regex(texts, _PLAIN_NUMBER), False).to_numpy(zero_copy_only=False)

    def part(name: str) -> pa.Array:
        found = with_date.field(name)
        return pc.if_else(pa.array(is_alone), alone.field(name), found) if is_alone.any() else found

    number = partial(_numbers, good=has_date | is_alone)
    sign = np.where(pc.equal(with_date.field("sign"), "-").to_numpy(zero_copy_only=False), -1, 1)
    year, month, day = (number(with_date.field(name), missing) for name, missing in (("y", 1970), ("mo", 1), ("d", 1)))
    hour, minute, second = (number(part(name), 0) for name in ("h", "mi", "s"))
    micros = number(pc.utf8_rpad(pc.utf8_slice_codeunits(part("us"), 0, 6), 6, "0"), 0)
    days, is_day = _days(sign * year, month, day)
    good = (has_date | is_alone) & is_day & (hour < 24) & (minute < 60) & (second < 60)
    seconds = days * _DAY_S + hour * 3600 + minute * 60 + second
    zones = pc.if_else(pa.array(good), pc.utf8_trim(part("zone"), _SPACES), "")
    return _Read(seconds, micros, zones, good, is_alone)


def _numbers(digits: pa.Array, missing: int, good: Mask) -> Micros:
    there = pc.and_(pa.array(good), pc.not_equal(digits, ""))
    found: Micros = pc.cast(pc.if_else(there, digits, str(missing)), pa.int64()).to_numpy()
    return found


def _days(year: Micros, month: Micros, day: Micros) -> tuple[Micros, Mask]:
    """Days since 1970 in the Gregorian calendar, which has a year 0, and whether there is such a day."""
    cycles, of_cycle = np.divmod(year - 1970, _CYCLE_YEARS)
    months = of_cycle * 12 + np.clip(month, 1, 12) - 1
    starts = (months.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64)
    ends = ((months + 1).astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64)
    is_day = (month >= 1) & (month <= 12) & (day >= 1) & (day <= ends - starts)
    return cycles * _CYCLE_DAYS + starts + day - 1, is_day
