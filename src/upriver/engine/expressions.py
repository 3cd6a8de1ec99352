"""Evaluates the expressions of plans over batches of rows, vectorised, with DuckDB as the library.

Each projection and each predicate becomes a prepared statement over a source that holds the current batch, so a call
costs a fraction of a millisecond. DuckDB's optimizer is off: it may reorder and fold expressions, and a scan with a
SELECT list leaves nothing to optimise.

If DuckDB's own function means something else than Spark's, a macro has Spark's meaning. Every Evaluator defines these
macros, and generated SQL may call them. A macro gives NULL for a NULL operand, as Spark's function does, and is strict
about its operands' types: the translator casts operands to the types named here.
"""

import copy
import re
import unicodedata
from collections.abc import Sequence
from itertools import count
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.row_text import escaped, value_text
from upriver.errors import ProtocolError, RowError
from upriver.plan.column_names import plain_column
from upriver.plan.plan import Projection
from upriver.plan.types import duck_name, is_instant, spark_name
from upriver.state.columns import exact

_BLANK = r"[\x00-\x20\x7F]*"  # what Spark trims from text before it parses it
_DIGITS = "[+-]?[0-9]+"
_DECIMAL = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_SPACE = r"[\x00-\x20]*"
_PLAIN = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?0*[0-9]{1,9})?"
_HUGE_ZERO = r"[+-]?0*\.?0*[eE][+]?0*[0-9]{2,9}"
"""A zero with so many digits before its point, for Java, that Spark refuses it, or nearly so."""
_DAY = r"([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T](?s:.)*)?)?)?"
# The digits that Java's decimals are written with, besides those of ASCII.
_FOREIGN_DIGITS = "".join(letter for letter in map(chr, range(0x80, 0x10000)) if unicodedata.category(letter) == "Nd")
_DIGITS_MEANT = "".join(str(unicodedata.digit(letter)) for letter in _FOREIGN_DIGITS)


def _malformed(value: str, type: str) -> str:
    return f"error('The text ''' || {value} || ''' cannot be cast to {type}')"


def _part(number: int) -> str:
    return f"CAST(coalesce(nullif(regexp_extract(s, '{_BLANK}{_DAY}', {number}), ''), '1') AS BIGINT)"


_NUMBERS = {
    "spark_divide(a, b)": "CASE WHEN b = 0 AND a IS NOT NULL THEN error('Division by zero') ELSE a / b END",
    "spark_try_divide(a, b)": "CASE WHEN b = 0 THEN NULL ELSE a / b END",
    "spark_div(a, b)": "CASE WHEN b = 0 AND a IS NOT NULL THEN error('Division by zero') ELSE a // b END",
    # Integers: the least one % -1 is 0 for Spark and an overflow for DuckDB.
    "spark_mod(a, b)": """CASE WHEN b = 0 AND a IS NOT NULL THEN error('Division by zero')
        WHEN b = -1 THEN a - a ELSE a % b END""",
    "spark_fmod(a, b)": "CASE WHEN b = 0 AND a IS NOT NULL THEN error('Division by zero') ELSE a % b END",
    # Of whole numbers, rounded half up, away from zero.
    "spark_quotient(a, b)": """CASE WHEN b = 0 AND a IS NOT NULL THEN error('Division by zero')
        WHEN (a < 0) = (b < 0) THEN (2 * abs(a) + abs(b)) // (2 * abs(b))
        ELSE -((2 * abs(a) + abs(b)) // (2 * abs(b))) END""",
    "spark_signum(x)": """CASE WHEN x > 0 AND NOT isnan(x) THEN CAST(1 AS DOUBLE)
        WHEN x < 0 THEN CAST(-1 AS DOUBLE) ELSE x END""",
    "spark_pmod(a, b)": "CASE WHEN a % b < 0 THEN a % b + b ELSE a % b END",
    # 2^63 is not a BIGINT, but Spark lets this one double through.
    "spark_double_to_bigint(x)": """CASE WHEN x = 9.223372036854775808e18 THEN 9223372036854775807
        ELSE CAST(trunc(x) AS BIGINT) END""",
    "spark_floor(x)": "CASE WHEN isnan(x) THEN CAST(0 AS BIGINT) ELSE spark_double_to_bigint(floor(x)) END",
    "spark_ceil(x)": "CASE WHEN isnan(x) THEN CAST(0 AS BIGINT) ELSE spark_double_to_bigint(ceil(x)) END",
    # One group for 0.0 and -0.0, and one for all NaN.
    "spark_group(x)": "CASE WHEN isnan(x) THEN CAST('NaN' AS DOUBLE) ELSE x + CAST(0 AS DOUBLE) END",
}


def _shifts(bits: int) -> dict[str, str]:
    """Shifts an integer of so many bits as Java does: only the last bits of the distance count, and overflow is
    lost."""
    places = f"(CAST(1 AS HUGEINT) << CAST(n & {bits - 1} AS HUGEINT))"
    unsigned = f"((CAST(a AS HUGEINT) + {2**bits}) % {2**bits})"

    def wrapped(sql: str) -> str:
        return f"(({sql} + {2 ** (bits - 1)}) % {2**bits} + {2**bits}) % {2**bits} - {2 ** (bits - 1)}"

    return {
        f"spark_shiftleft{bits}(a, n)": wrapped(f"CAST(a AS HUGEINT) * {places}"),
        f"spark_shiftright{bits}(a, n)": f"CAST(a AS HUGEINT) >> CAST(n & {bits - 1} AS HUGEINT)",
        f"spark_shiftrightunsigned{bits}(a, n)": wrapped(f"({unsigned} // {places})"),
    }


_STRINGS = {
    # p: 1 is the first character, so is 0; negative counts from the end. A part before the first character is cut off.
    "spark_substring_from(s, start, n)": """CASE WHEN n <= 0 OR start + n <= 0 THEN ''
        WHEN start < 0 THEN substring(s, 1, start + n) ELSE substring(s, start + 1, n) END""",
    "spark_substring(s, p, n)": """CASE WHEN s IS NULL OR p IS NULL OR n IS NULL THEN NULL
        ELSE spark_substring_from(s, CASE WHEN p > 0 THEN p - 1 WHEN p < 0 THEN length(s) + p ELSE 0 END, n) END""",
    "spark_right(s, n)": "CASE WHEN s IS NOT NULL AND n <= 0 THEN '' ELSE right(s, n) END",
    "spark_lpad(s, n, p)": """CASE WHEN s IS NULL OR n IS NULL OR p IS NULL THEN NULL WHEN n <= 0 THEN ''
        WHEN length(s) >= n THEN left(s, n) WHEN p = '' THEN s ELSE lpad(s, n, p) END""",
    "spark_rpad(s, n, p)": """CASE WHEN s IS NULL OR n IS NULL OR p IS NULL THEN NULL WHEN n <= 0 THEN ''
        WHEN length(s) >= n THEN left(s, n) WHEN p = '' THEN s ELSE rpad(s, n, p) END""",
    # By code points; DuckDB alone would keep a letter and its accents together.
    "spark_reverse(s)": "array_to_string(list_reverse(regexp_extract_all(s, '(?s).')), '')",
    "spark_split_part(s, d, n)": """CASE WHEN n = 0 AND s IS NOT NULL AND d IS NOT NULL
        THEN error('The index 0 of split_part() is invalid')
        WHEN d = '' THEN CASE WHEN n = 1 OR n = -1 THEN s WHEN s IS NOT NULL AND n IS NOT NULL THEN '' END
        ELSE split_part(s, d, n) END""",
}

_TEXTS = {
    "spark_integer_of_text(s)": f"""CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '{_BLANK}{_DIGITS}{_BLANK}') THEN regexp_extract(s, '{_DIGITS}')
        ELSE {_malformed("s", "an integer")} END""",
    "spark_double_of_text(s)": f"""CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '{_BLANK}{_DECIMAL}[dDfF]?{_BLANK}')
        THEN CAST(regexp_extract(s, '{_DECIMAL}') AS DOUBLE)
        WHEN regexp_full_match(s, '{_BLANK}[+]?(?i:inf|infinity){_BLANK}') THEN CAST('Infinity' AS DOUBLE)
        WHEN regexp_full_match(s, '{_BLANK}-(?i:inf|infinity){_BLANK}') THEN CAST('-Infinity' AS DOUBLE)
        WHEN regexp_full_match(s, '{_BLANK}(?:(?i:nan)|[+-]NaN){_BLANK}') THEN CAST('NaN' AS DOUBLE)
        ELSE {_malformed("s", "DOUBLE")} END""",
    "spark_ascii_digits(s)": f"""CASE WHEN strlen(s) > length(s)
        THEN translate(s, '{_FOREIGN_DIGITS}', '{_DIGITS_MEANT}') ELSE s END""",
    "spark_decimal_of_ascii(s)": f"""CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '{_SPACE}{_HUGE_ZERO}{_SPACE}')
        AND CAST(regexp_extract(s, '[eE]([+]?[0-9]+)', 1) AS BIGINT) - length(regexp_extract(s, '[.](0*)', 1)) > 37
        THEN {_malformed("s", "DECIMAL")}
        WHEN regexp_full_match(s, '{_SPACE}{_PLAIN}{_SPACE}') THEN regexp_extract(s, '{_PLAIN}')
        ELSE {_malformed("s", "DECIMAL")} END""",
    "spark_decimal_text(s)": "spark_decimal_of_ascii(spark_ascii_digits(s))",
    "spark_date_of_text(s)": f"""CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}') THEN CAST(s AS DATE)
        WHEN regexp_full_match(s, '{_BLANK}{_DAY}{_BLANK}') THEN make_date({_part(1)}, {_part(2)}, {_part(3)})
        ELSE {_malformed("s", "DATE")} END""",
    "spark_trimmed(s)": r"regexp_replace(s, '^[\x00-\x20\x7F]+|[\x00-\x20\x7F]+$', '', 'g')",
    "spark_boolean_of_text(s)": f"""CASE lower(spark_trimmed(s))
        WHEN 't' THEN TRUE WHEN 'true' THEN TRUE WHEN 'y' THEN TRUE WHEN 'yes' THEN TRUE WHEN '1' THEN TRUE
        WHEN 'f' THEN FALSE WHEN 'false' THEN FALSE WHEN 'n' THEN FALSE WHEN 'no' THEN FALSE WHEN '0' THEN FALSE
        ELSE CASE WHEN s IS NOT NULL THEN {_malformed("s", "BOOLEAN")} END END""",
}

_TIMES = {
    # Outside the years 0 to 9999 Spark's text has a sign, and DuckDB's an era.
    "spark_text_of_year(y)": """CASE WHEN y > 9999 THEN '+' || CAST(y AS VARCHAR) WHEN y < -999 THEN CAST(y AS VARCHAR)
        WHEN y < 0 THEN '-' || lpad(CAST(-y AS VARCHAR), 4, '0') ELSE lpad(CAST(y AS VARCHAR), 4, '0') END""",
    "spark_text_of_far_date(d)": """spark_text_of_year(year(d)) || '-' || lpad(CAST(month(d) AS VARCHAR), 2, '0')
        || '-' || lpad(CAST(day(d) AS VARCHAR), 2, '0')""",
    "spark_text_of_date(d)": """CASE WHEN year(d) BETWEEN 1 AND 9999 THEN CAST(d AS VARCHAR)
        ELSE spark_text_of_far_date(d) END""",
    "spark_text_of_timestamp(t)": """CASE WHEN year(t) BETWEEN 1 AND 9999 THEN CAST(t AS VARCHAR)
        ELSE spark_text_of_far_date(t) || ' ' || CAST(CAST(t AS TIME) AS VARCHAR) END""",
    # DuckDB's infinite dates are Spark's ends of the range: an expression may return them, but not compute with them.
    "spark_epoch_day(n)": """CASE WHEN n = 2147483647 THEN DATE 'infinity' WHEN n = -2147483647 THEN DATE '-infinity'
        ELSE DATE '1970-01-01' + n END""",
    "spark_day(d)": """CASE WHEN d > DATE '-infinity' AND d < DATE 'infinity' THEN d WHEN d IS NOT NULL
        THEN error('A DATE at the end of its range cannot be computed with') END""",
    "spark_formatted(t, form)": """CASE WHEN year(t) < 1 OR year(t) > 9999
        THEN error('A timestamp outside the years 1 to 9999 cannot be formatted') ELSE strftime(t, form) END""",
    # Whole units since 1970, rounded down also before it.
    "spark_units(us, unit)": "(us - (us % unit + unit) % unit) // unit",
    "spark_unix_seconds(t)": "spark_units(epoch_us(t), 1000000)",
    "spark_unix_millis(t)": "spark_units(epoch_us(t), 1000)",
}

# Letters whose upper case has several letters, and pairs that Spark's Unicode has and DuckDB's has not.
_UNFOLDED = "".join(
    letter
    for letters in (range(0xDF, 0x588), range(0x1E96, 0x2000), range(0xFB00, 0xFB18))
    for letter in map(chr, letters)
    if len(letter.upper()) > 1
)
_NEW_LOWER = (
    "\u019b\u0264\u1c8a\ua7cd\ua7cf\ua7d3\ua7d5\ua7db"
    + "".join(map(chr, range(0x10D70, 0x10D86)))
    + "".join(map(chr, range(0x16EBB, 0x16ED4)))
)
_NEW_UPPER = (
    "\ua7dc\ua7cb\u1c89\ua7cc\ua7ce\ua7d2\ua7d4\ua7da"
    + "".join(map(chr, range(0x10D50, 0x10D66)))
    + "".join(map(chr, range(0x16EA0, 0x16EB9)))
)
# A capital sigma after a letter and before none becomes a final one; marks and the like do not count (Unicode 3.13).
_CASED = (
    r"\p{Lu}\p{Lt}\x{AA}\x{BA}\x{2160}-\x{217F}\x{24B6}-\x{24E9}"
    r"\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}"
    # Of a newer Unicode than DuckDB's.
    r"\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CF}\x{A7D2}\x{A7D4}\x{A7DA}-\x{A7DC}\x{10D50}-\x{10D65}\x{10D70}-\x{10D85}"
    r"\x{16EA0}-\x{16EB8}\x{16EBB}-\x{16ED3}"
)
_IGNORED = (
    r"\p{Me}\p{Cf}\p{Lm}\p{Sk}:.\x27\x{B7}\x{387}\x{55F}\x{5F4}\x{2018}\x{2019}\x{2024}\x{2027}"
    r"\x{FE13}\x{FE52}\x{FE55}\x{FF07}\x{FF0E}\x{FF1A}"
    r"\x{897}\x{1ACF}-\x{1ADD}\x{1AE0}-\x{1AEB}\x{A7F1}\x{10D4E}\x{10D69}-\x{10D6D}\x{10D6F}\x{10EC5}"
    r"\x{10EFA}-\x{10EFC}\x{113BB}-\x{113C0}\x{113CE}\x{113D0}\x{113D2}\x{113E1}\x{113E2}\x{11B60}"
    r"\x{11B62}-\x{11B64}\x{11B66}\x{11DD9}\x{11F5A}\x{1611E}-\x{16129}\x{1612D}-\x{1612F}\x{16D40}-\x{16D42}"
    r"\x{16D6B}\x{16D6C}\x{16FF2}\x{16FF3}\x{1E5EE}\x{1E5EF}\x{1E6E3}\x{1E6E6}\x{1E6EE}\x{1E6EF}\x{1E6F5}"
    r"\x{1E6FF}"
)
# DuckDB's Unicode takes U+0295 for a small letter and U+1171E for a mark that does not count; Spark's does neither.
_ONE_CASED = rf"(?:[{_CASED}]|[^\P{{Ll}}\x{{295}}])"
_ONE_IGNORED = rf"(?:[{_IGNORED}]|[^\P{{Mn}}\x{{1171E}}])"
_ONE_OTHER = rf"(?:[^\p{{Ll}}\p{{Mn}}{_CASED}{_IGNORED}]|[\x{{295}}\x{{1171E}}])"
_ENDS = rf"({_ONE_CASED}{_ONE_IGNORED}*)Σ({_ONE_IGNORED}*(?:{_ONE_OTHER}|$))"


def _upper(text: str) -> str:
    """Letter by letter; one long chain of replace() would cost a millisecond to set up."""
    letters = f"regexp_extract_all('{_UNFOLDED}', '(?s).')"
    uppers = f"string_split('{','.join(map(str.upper, _UNFOLDED))}', ',')"
    one = f"coalesce({uppers}[list_position({letters}, letter)], letter)"
    known = f"list_transform(regexp_extract_all({text}, '(?s).'), lambda letter: {one})"
    return f"upper(translate(array_to_string({known}, ''), '{_NEW_LOWER}', '{_NEW_UPPER}'))"


def _lower(text: str) -> str:
    sql = f"translate({text}, '{_NEW_UPPER}', '{_NEW_LOWER}')"
    sql = rf"regexp_replace({sql}, '{_ENDS}', '\1ς\2', 'g')"
    return f"lower(replace({sql}, '\u0130', 'i\u0307'))"


_CASES = {
    "spark_upper(s)": f"""CASE WHEN strlen(s) > length(s) AND regexp_matches(s, '[{_UNFOLDED}{_NEW_LOWER}]')
        THEN {_upper("s")} ELSE upper(s) END""",
    "spark_lower(s)": f"""CASE WHEN strlen(s) > length(s) AND regexp_matches(s, '[Σ\u0130{_NEW_UPPER}]')
        THEN {_lower("s")} ELSE lower(s) END""",
}

MACROS = _NUMBERS | _shifts(32) | _shifts(64) | _STRINGS | _TEXTS | _TIMES | _CASES
"""Signature to body; each is defined before it is used."""


GUARD = "Guard against it in the query, by CASE, WHERE or try_divide"
"""Advice about an expression that fails."""

ERROR_CHARS_MAX = 300
"""Characters of DuckDB's message about a row; it may quote a value of any length."""

STATEMENTS_MAX = 256
"""Prepared statements kept at a time. A worker has a few for each view; the oldest is dropped first."""

_WORDS = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")+)\"""")
_SPARK_TYPES = {"INT8": "TINYINT", "INT16": "SMALLINT", "INT32": "INT", "INT64": "BIGINT", "VARCHAR": "STRING"}
_DUCK_TYPES = re.compile(rf"\b(of|[Tt]ype) ({'|'.join(_SPARK_TYPES)})\b")
"""What DuckDB's messages call types that have another name in Spark."""
_ROWS_AT_FAULT = (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException)
_BROKEN = (duckdb.InternalException, duckdb.FatalException)
"""After these errors DuckDB must be opened anew."""
_CALLS = re.compile(r"[a-z_0-9]+(?=\()", re.IGNORECASE)
_ANY_BYTES = re.compile(
    "cast|coalesce|contains|decimal|error|greatest|isnan|least|md5|sha1|sha256|starts_with|strlen|suffix|"
    "abs|ceil|day|dayofmonth|dayofweek|dayofyear|epoch_us|floor|hour|isinf|list_transform|make_date|make_timestamp|"
    "minute|month|quarter|replace|round|second|sqrt|to_microseconds|to_months|trunc|xor|year|"
    "spark_(?:ceil|clock|day|div|divide|double_to_bigint|floor|fmod|group|mod|pmod|quotient|signum|try_divide|units)|"
    "spark_shift(?:left|right|rightunsigned)(?:32|64)|"
    "spark_text_of_(?:date|timestamp)",
    re.IGNORECASE,
)
"""Functions that accept any bytes as text, as Spark does, or take no text. Others need UTF-8, or DuckDB breaks."""
_ANY_MOMENT = re.compile("coalesce|decimal|greatest|least", re.IGNORECASE)
_CONSTANT = re.compile(r"CAST\((?:NULL|[-+.\de]*) AS \w+(?:\(\d+, \d+\))?\)", re.IGNORECASE)
_REACHING = re.compile(r"[+-]")
_FIRST_AND_LAST = {32: (2 - 2**31, 2**31 - 2), 64: (-9_223_372_022_400_000_000, 2**63 - 2)}
"""DuckDB's first and last date, and time, as numbers, by their bits."""
_WORD = re.compile(r"\b(?:like|ilike|glob|similar)\b|~~", re.IGNORECASE)
_LIKE = re.compile(r"\b(?:NOT )?LIKE '(?:[^'_\\]|'')*' ESCAPE '\\'")
"""A pattern that counts no letters: it compares bytes, as Spark's does."""
_CONFIG: dict[str, Any] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "python_enable_replacements": False,
}


class Evaluator:
    """One in-process DuckDB without files, network or extensions. For one thread, and not shared.

    No two columns of a batch may differ in case alone. A TIMESTAMP enters and leaves as its UTC wall clock.
    """

    def __init__(self) -> None:
        self._engine = _Engine()
        self._blames = True

    def without_row_text(self) -> "Evaluator":
        """The same evaluator with short errors: they do not name the row at fault, because finding it takes time."""
        other = copy.copy(self)
        other._blames = False
        return other

    def project(self, rows: pa.RecordBatch, projection: Projection) -> pa.RecordBatch:
        """The projection's columns, one row for each of ``rows``, in order; a plain column is not copied.

        Raises RowError, with the values of the first row that fails.
        """
        schema = projection.schema
        columns: list[pa.Array | None] = [_plain(rows, expression) for expression in projection.expressions]
        places = [place for place, found in enumerate(columns) if found is None]
        if places:
            wanted = pa.schema([schema.field(place) for place in places])
            expressions = tuple(projection.expressions[place] for place in places)
            computed = self._compute(rows, expressions, wanted, [f"column {name}" for name in wanted.names])
            for place, values in zip(places, computed, strict=True):
                columns[place] = values
        exact = [_exactly(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(exact, schema=schema)

    def mask(self, rows: pa.RecordBatch, predicate: str) -> npt.NDArray[np.bool_]:
        """Where the predicate is true; NULL counts as false. Raises RowError."""
        (truth,) = self._compute(rows, (f"coalesce(({predicate}), FALSE)",), _TRUTH, ["a condition"])
        mask: npt.NDArray[np.bool_] = truth.to_numpy(zero_copy_only=False)
        return mask

    def close(self) -> None:
        """Free DuckDB's memory; the evaluator cannot be used after that."""
        self._engine.close()

    def _compute(
        self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema, titles: Sequence[str]
    ) -> Sequence[pa.Array]:
        """One array for each expression. titles: how errors call each of them."""
        if not rows.num_rows:
            return [pa.array([], field.type) for field in schema]
        try:
            return self._engine.run(rows, expressions, schema)
        except _RowFault as fault:
            raise RowError(self._told(rows, expressions, schema, titles, str(fault))) from fault
        except duckdb.Error as error:
            raise ProtocolError(f"DuckDB cannot evaluate {' and '.join(expressions)}: {error}") from error

    def _told(
        self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema, titles: Sequence[str], what: str
    ) -> str:
        """The error with the expression at fault, if the row is known, and with the row, if it was looked for."""
        if self._blames:
            rows = self._first_failing(rows, expressions, schema)
        if rows.num_rows > 1:
            return what
        each = zip(expressions, schema, titles, strict=True)
        at_fault = (
            title
            for expression, field, title in each
            if len(titles) == 1 or self._fails(rows, (expression,), pa.schema([field]))
        )
        title = next(at_fault, ", ".join(titles))
        return f"{title}: {what}" + (f"{_row_text(rows, expressions)}. {GUARD}" if self._blames else "")

    def _first_failing(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> pa.RecordBatch:
        """The first row on which the expressions fail."""
        while rows.num_rows > 1:
            half = rows.num_rows // 2
            first = rows.slice(0, half)
            rows = first if self._fails(first, expressions, schema) else rows.slice(half)
        return rows

    def _fails(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> bool:
        try:
            self._engine.run(rows, expressions, schema)
        except (_RowFault, duckdb.Error):
            return True
        return False


class _RowFault(Exception):
    """An expression fails on some row; what DuckDB says of it."""


_TRUTH = pa.schema([("truth", pa.bool_())])


class _Engine:
    """DuckDB and its prepared statements. It is opened anew when it breaks."""

    def __init__(self) -> None:
        self.duck = _opened()
        self._statements: dict[tuple[tuple[str, ...], pa.Schema, pa.Schema], _Statement] = {}
        self._numbers = count(1)
        """Numbers of the next statements."""

    def run(self, rows: pa.RecordBatch, expressions: tuple[str, ...], schema: pa.Schema) -> list[pa.Array]:
        """One array for each expression. Raises _RowFault if a row is at fault, and DuckDB's other errors."""
        statement = self._statement(expressions, schema, rows.schema)
        try:
            return statement.run(rows)
        except _ROWS_AT_FAULT as error:
            raise _RowFault(_said(error)) from error
        except UnicodeDecodeError as error:  # DuckDB's message quotes a text
            raise _RowFault("a text whose bytes are no UTF-8") from error
        except _BROKEN as error:
            self.close()
            self.duck = _opened()
            raise _RowFault(f"DuckDB cannot compute it: {_said(error)}") from error

    def close(self) -> None:
        self._statements.clear()
        self.duck.close()

    def _statement(self, expressions: tuple[str, ...], schema: pa.Schema, rows: pa.Schema) -> "_Statement":
        key = (expressions, schema, rows)
        statement = self._statements.get(key)
        if statement is None:
            if len(self._statements) >= STATEMENTS_MAX:
                oldest = next(iter(self._statements))
                self._statements.pop(oldest).drop()
            statement = _Statement(self.duck, f"s{next(self._numbers)}", expressions, schema, rows)
            self._statements[key] = statement
        return statement


def _opened() -> duckdb.DuckDBPyConnection:
    duck = duckdb.connect(":memory:", config=_CONFIG)
    duck.execute("PRAGMA disable_optimizer")
    for signature, body in MACROS.items():
        duck.execute(f"CREATE MACRO {signature} AS {body}")
    duck.execute("SET lock_configuration = true")
    return duck


class _Batch:
    """What a statement scans: the current batch, through Arrow's C stream."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: pa.RecordBatch | None = None

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, [self.rows]).__arrow_c_stream__()


class _Statement:
    """Prepared expressions over batches of one schema. DuckDB sees only the columns that they name, renamed."""

    def __init__(
        self, duck: duckdb.DuckDBPyConnection, name: str, expressions: Sequence[str], schema: pa.Schema, rows: pa.Schema
    ) -> None:
        self._duck = duck
        self._name = name
        self.schema = schema
        self._names = sorted({column for text in expressions for column in _columns(text)})
        self._places = [rows.get_field_index(column) for column in self._names]
        if -1 in self._places:
            raise ProtocolError(f"{' and '.join(expressions)} names a column that is not in {rows.names}")
        types = [_wall_clock(rows.field(place).type) for place in self._places] or [pa.null()]
        strict = {name for text in expressions if not _takes_any_bytes(text) for name in _columns(text)}
        reaching = {name for text in expressions if not _takes_any_moment(text) for name in _columns(text)}
        named = list(zip(self._names, types, strict=False))
        self._texts = [name for name, type in named if pa.types.is_string(type) and name in strict]
        self._moments = [name for name, type in named if pa.types.is_temporal(type) and name in reaching]
        self._batch = _Batch(pa.schema([pa.field(f"c{number}", type) for number, type in enumerate(types)]))
        short = {column: f"c{number}" for number, column in enumerate(self._names)}
        outputs = ", ".join(
            f"CAST({_renamed(text, short)} AS {duck_name(field.type)}) AS r{number}"
            for number, (text, field) in enumerate(zip(expressions, schema, strict=True))
        )
        duck.register(name, self._batch)
        try:
            duck.execute(f"PREPARE {name} AS SELECT {outputs} FROM {name}")
        except duckdb.Error as error:
            duck.unregister(name)
            raise ProtocolError(f"DuckDB cannot prepare {outputs}: {error}") from error

    def run(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """One array for each expression. Raises DuckDB's errors, and _RowFault for a text that would break DuckDB."""
        for name in self._texts:
            if not _is_utf8(rows.column(name)):
                raise _RowFault(f"the text in {name} is no UTF-8")
        for name in self._moments:
            if _is_at_an_end(rows.column(name)):
                raise _RowFault(f"the {spark_name(rows.schema.field(name).type)} in {name} is too far to compute with")
        columns = [_retyped(rows.column(place)) for place in self._places] or [pa.nulls(rows.num_rows)]
        self._batch.rows = pa.RecordBatch.from_arrays(columns, schema=self._batch.schema)
        try:
            table = self._duck.sql(f"EXECUTE {self._name}").to_arrow_table(rows.num_rows)
        finally:
            self._batch.rows = None
        return [_one(column) for column in table.columns]

    def drop(self) -> None:
        self._duck.execute(f"DEALLOCATE {self._name}")
        self._duck.unregister(self._name)


def _columns(text: str) -> list[str]:
    """The columns that an expression names."""
    return [match[1].replace('""', '"') for match in _WORDS.finditer(text) if match[1] is not None]


def _row_text(rows: pa.RecordBatch, expressions: Sequence[str]) -> str:
    """The first row, limited to the columns that the expressions name."""
    names = sorted({column for text in expressions for column in _columns(text)})
    return f" (row: {', '.join(f'{name} = {value_text(rows.column(name))}' for name in names)})" if names else ""


def _takes_any_bytes(expression: str) -> bool:
    """Whether DuckDB computes it from text of any bytes as Spark does."""
    words = _WORDS.sub("", _LIKE.sub("", expression))
    return _WORD.search(words) is None and all(map(_ANY_BYTES.fullmatch, _CALLS.findall(words)))


def _takes_any_moment(expression: str) -> bool:
    """Whether it only compares points in time, or chooses between them."""
    words = _CONSTANT.sub("", _WORDS.sub("", expression))
    return _REACHING.search(words) is None and all(map(_ANY_MOMENT.fullmatch, _CALLS.findall(words)))


def _is_at_an_end(moments: pa.Array) -> bool:
    """Whether some values are infinite for DuckDB, or beyond its calendar; Spark treats them like others."""
    least, most = _FIRST_AND_LAST[moments.type.bit_width]
    found = pc.min_max(exact(moments)).as_py()
    return found["min"] is not None and not (least <= found["min"] and found["max"] <= most)


def _is_utf8(texts: pa.Array) -> bool:
    if _is_ascii(texts):
        return True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_ascii(texts: pa.Array) -> bool:
    """Ten times as fast as reading UTF-8."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return True
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    letters = np.frombuffer(data, np.int8, int(ends[-1] - ends[0]), int(ends[0]))
    return bool(letters.min(initial=0) >= 0)


def _renamed(text: str, names: dict[str, str]) -> str:
    return _WORDS.sub(lambda match: match[0] if match[1] is None else names[match[1].replace('""', '"')], text)


def _plain(rows: pa.RecordBatch, expression: str) -> pa.Array | None:
    """The column, if the expression is nothing but its name."""
    column = plain_column(expression)
    place = -1 if column is None else rows.schema.get_field_index(column)
    return rows.column(place) if place >= 0 else None


def _wall_clock(type: pa.DataType) -> pa.DataType:
    """DuckDB would read a TIMESTAMP with a time zone of its own."""
    return pa.timestamp("us") if is_instant(type) else type


def _retyped(values: pa.Array) -> pa.Array:
    type = _wall_clock(values.type)
    return values if type is values.type else values.view(type)


def _exactly(values: pa.Array, type: pa.DataType) -> pa.Array:
    """The values as exactly that type; DuckDB's have the same representation."""
    if values.type == type:
        return values
    return values.view(type) if pa.types.is_timestamp(type) else values.cast(type)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _said(error: duckdb.Error) -> str:
    """DuckDB's message without its kind and its stack, and with Spark's names of types; bounded."""
    text = re.split(r"\n\n(?:Stack Trace|LINE \d+):", str(error).strip(), maxsplit=1)[0]
    text = re.sub(
        r"^[A-Z][A-Za-z ]* Error: | when casting from source column c\d+|\n\nLINE \d+:.*", "", text, flags=re.DOTALL
    )
    text = _DUCK_TYPES.sub(lambda match: f"{match[1]} {_SPARK_TYPES[match[2]]}", escaped(text.strip()))
    if len(text) <= ERROR_CHARS_MAX:
        return text
    return f"{text[: ERROR_CHARS_MAX // 2]}...{text[-ERROR_CHARS_MAX // 2 :]}"
