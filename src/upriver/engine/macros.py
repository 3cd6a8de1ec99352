"""DuckDB macros with the meaning of Spark's functions, where DuckDB's own function means something else.

A macro gives NULL for a NULL operand, as Spark's function does, and is strict about its operands' types: the translator
casts operands to the types named here.
"""

import re
import unicodedata

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


def _floating_of_text(type: str) -> str:
    return f"""CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '{_BLANK}{_DECIMAL}[dDfF]?{_BLANK}')
        THEN CAST(regexp_extract(s, '{_DECIMAL}') AS {type})
        WHEN regexp_full_match(s, '{_BLANK}[+]?(?i:inf|infinity){_BLANK}') THEN CAST('Infinity' AS {type})
        WHEN regexp_full_match(s, '{_BLANK}-(?i:inf|infinity){_BLANK}') THEN CAST('-Infinity' AS {type})
        WHEN regexp_full_match(s, '{_BLANK}(?:(?i:nan)|[+-]NaN){_BLANK}') THEN CAST('NaN' AS {type})
        ELSE {_malformed("s", type)} END"""


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


_INDEX = "error('The index ' || i || ' is outside of the array')"
_NESTED = {
    "spark_item(a, i)": f"""CASE WHEN a IS NULL OR i IS NULL THEN NULL
        WHEN i >= 0 AND i < len(a) THEN list_extract(a, i + 1) ELSE {_INDEX} END""",
    "spark_array_contains(a, v)": """CASE WHEN a IS NULL OR v IS NULL THEN NULL WHEN list_contains(a, v) THEN TRUE
        WHEN len(list_filter(a, lambda e: e IS NULL)) > 0 THEN NULL ELSE FALSE END""",
    "spark_array_position(a, v)": """CASE WHEN a IS NULL OR v IS NULL THEN NULL
        ELSE coalesce(CAST(list_position(a, v) AS BIGINT), CAST(0 AS BIGINT)) END""",
    "spark_array_remove(a, v)": """CASE WHEN a IS NOT NULL AND v IS NOT NULL
        THEN list_filter(a, lambda e: e IS NULL OR e <> v) END""",
    "spark_array_append(a, v)": "CASE WHEN a IS NOT NULL THEN list_concat(a, [v]) END",
    "spark_array_prepend(a, v)": "CASE WHEN a IS NOT NULL THEN list_concat([v], a) END",
    "spark_array_distinct(a)": "list_filter(a, lambda e, i: list_position(a, e) = i)",
    "spark_array_union(a, b)": "spark_array_distinct((a || b))",
    "spark_array_intersect(a, b)": """CASE WHEN a IS NOT NULL AND b IS NOT NULL
        THEN list_filter(a, lambda e, i: list_position(a, e) = i AND list_position(b, e) IS NOT NULL) END""",
    "spark_array_except(a, b)": """CASE WHEN a IS NOT NULL AND b IS NOT NULL
        THEN list_filter(a, lambda e, i: list_position(a, e) = i AND list_position(b, e) IS NULL) END""",
    "spark_arrays_overlap(a, b)": """CASE WHEN a IS NULL OR b IS NULL THEN NULL
        WHEN len(list_filter(a, lambda e: e IS NOT NULL AND list_position(b, e) IS NOT NULL)) > 0 THEN TRUE
        WHEN len(a) > 0 AND len(b) > 0 AND len(list_filter((a || b), lambda e: e IS NULL)) > 0 THEN NULL
        ELSE FALSE END""",
    "spark_array_join(a, s)": """CASE WHEN a IS NOT NULL AND s IS NOT NULL
        THEN coalesce(array_to_string(list_filter(a, lambda e: e IS NOT NULL), s), '') END""",
    "spark_array_join_all(a, s, n)": """CASE WHEN a IS NOT NULL AND s IS NOT NULL AND n IS NOT NULL
        THEN coalesce(array_to_string(list_transform(a, lambda e: coalesce(e, n)), s), '') END""",
    "spark_slice(a, i, n)": """CASE WHEN a IS NULL OR i IS NULL OR n IS NULL THEN NULL
        WHEN i = 0 THEN error('The start of slice() cannot be 0')
        WHEN n < 0 THEN error('The length of slice() cannot be negative')
        WHEN i < -len(a) OR n = 0 THEN list_filter(a, lambda e: FALSE)
        WHEN i > 0 THEN list_filter(a, lambda e, k: k >= i AND k - i < n)
        ELSE list_filter(a, lambda e, k: k >= len(a) + i + 1 AND k - (len(a) + i + 1) < n) END""",
    "spark_flatten(a)": """CASE WHEN a IS NOT NULL AND len(list_filter(a, lambda e: e IS NULL)) = 0
        THEN flatten(a) END""",
    "spark_map(k, v)": """CASE WHEN k IS NULL OR v IS NULL THEN NULL
        WHEN list_contains(list_transform(k, lambda e: e IS NULL), TRUE) THEN error('A key of a map cannot be NULL')
        WHEN len(k) <> len(v) THEN error('The keys and the values of a map differ in number')
        WHEN len(list_distinct(k)) <> len(k) THEN error('A key of a map comes twice')
        ELSE MAP(k, v) END""",
    "spark_get(a, i)": "CASE WHEN i >= 0 AND i < len(a) THEN list_extract(a, i + 1) END",
    "spark_element_at(a, i)": f"""CASE WHEN a IS NULL OR i IS NULL THEN NULL
        WHEN i = 0 THEN error('The index 0 is invalid: an index begins at 1, or at -1 from the end')
        WHEN i BETWEEN -len(a) AND len(a) THEN list_extract(a, i) ELSE {_INDEX} END""",
    "spark_try_element_at(a, i)": """CASE WHEN a IS NULL OR i IS NULL THEN NULL
        WHEN i = 0 THEN error('The index 0 is invalid: an index begins at 1, or at -1 from the end')
        WHEN i BETWEEN -len(a) AND len(a) THEN list_extract(a, i) END""",
}
"""Of arrays."""


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


CHARS_MAX = 10_000_000
"""Characters of a text that lpad, rpad, repeat or space makes of one row."""
_TOO_LONG = f"error('A text of more than {CHARS_MAX:,} characters')"

_STRINGS = {
    "spark_repeat(s, n)": f"""CASE WHEN s IS NOT NULL AND n > 0 AND length(s) * CAST(n AS BIGINT) > {CHARS_MAX}
        THEN {_TOO_LONG} ELSE repeat(s, n) END""",
    # p: 1 is the first character, so is 0; negative counts from the end. A part before the first character is cut off.
    "spark_substring_from(s, start, n)": """CASE WHEN n <= 0 OR start + n <= 0 THEN ''
        WHEN start < 0 THEN substring(s, 1, start + n) ELSE substring(s, start + 1, n) END""",
    "spark_like(s, p, e)": """CASE WHEN NOT contains(p, e) THEN s LIKE p
        WHEN contains(replace(replace(replace(p, e || e, ''), e || '%', ''), e || '_', ''), e)
        THEN error('The pattern ' || p || ' has an escape before a plain letter')
        ELSE s LIKE p ESCAPE e END""",
    "spark_substring(s, p, n)": """CASE WHEN s IS NULL OR p IS NULL OR n IS NULL THEN NULL
        ELSE spark_substring_from(s, CASE WHEN p > 0 THEN p - 1 WHEN p < 0 THEN length(s) + p ELSE 0 END, n) END""",
    "spark_right(s, n)": "CASE WHEN s IS NOT NULL AND n <= 0 THEN '' ELSE right(s, n) END",
    "spark_lpad(s, n, p)": f"""CASE WHEN s IS NULL OR n IS NULL OR p IS NULL THEN NULL WHEN n <= 0 THEN ''
        WHEN length(s) >= n THEN left(s, n) WHEN p = '' THEN s WHEN n > {CHARS_MAX} THEN {_TOO_LONG}
        ELSE lpad(s, n, p) END""",
    "spark_rpad(s, n, p)": f"""CASE WHEN s IS NULL OR n IS NULL OR p IS NULL THEN NULL WHEN n <= 0 THEN ''
        WHEN length(s) >= n THEN left(s, n) WHEN p = '' THEN s WHEN n > {CHARS_MAX} THEN {_TOO_LONG}
        ELSE rpad(s, n, p) END""",
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
    "spark_double_of_text(s)": _floating_of_text("DOUBLE"),
    "spark_float_of_text(s)": _floating_of_text("FLOAT"),
    "spark_ascii_digits(s)": f"""CASE WHEN strlen(s) > length(s)
        THEN translate(s, '{_FOREIGN_DIGITS}', '{_DIGITS_MEANT}') ELSE s END""",
    "spark_decimal_of_ascii(s)": f"""CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '{_SPACE}{_HUGE_ZERO}{_SPACE}')
        AND CAST(regexp_extract(s, '[eE]([+]?[0-9]+)', 1) AS BIGINT) - length(regexp_extract(s, '[.](0*)', 1)) > 37
        THEN {_malformed("s", "DECIMAL")}
        WHEN regexp_full_match(s, '{_SPACE}{_PLAIN}{_SPACE}') THEN regexp_extract(s, '{_PLAIN}')
        ELSE {_malformed("s", "DECIMAL")} END""",
    # Digits, none of them a zero at the start, with a point behind so many; before the first one below 0.
    "spark_pointed(sign, digits, n)": """CASE WHEN digits = '' OR n < -40 THEN '0' WHEN n > 40 THEN sign || '1e41'
        WHEN n <= 0 THEN sign || '0.' || repeat('0', -n) || digits
        WHEN n >= length(digits) THEN sign || digits || repeat('0', n - length(digits))
        ELSE sign || left(digits, n) || '.' || substring(digits, n + 1) END""",
    "spark_without_zeros(sign, digits, n)": """spark_pointed(sign, ltrim(digits, '0'),
        n - length(digits) + length(ltrim(digits, '0')))""",
    # DuckDB takes few numbers with an exponent, but any that is written out.
    "spark_written_out(s)": """CASE WHEN regexp_matches(s, '[eE]') THEN spark_without_zeros(regexp_extract(s, '^-'),
        regexp_extract(s, '^[+-]?([0-9]*)', 1) || regexp_extract(s, '[.]([0-9]*)', 1),
        length(regexp_extract(s, '^[+-]?([0-9]*)', 1)) + CAST(regexp_extract(s, '[eE](.*)', 1) AS BIGINT))
        ELSE s END""",
    "spark_decimal_text(s)": "spark_written_out(spark_decimal_of_ascii(spark_ascii_digits(s)))",
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

# Letters whose title case is not their upper case.
_TITLED = "".join(
    letter for letter in map(chr, [*range(0xDF, 0x2000), *range(0xFB00, 0xFB18)]) if letter.title() != letter.upper()
)
_LETTERS = "regexp_extract_all({}, '(?s).')"


def _title(letter: str) -> str:
    letters = _LETTERS.format(f"'{_TITLED}'")
    titles = f"string_split('{','.join(map(str.title, _TITLED))}', ',')"
    return f"coalesce({titles}[list_position({letters}, {letter})], spark_upper({letter}))"


_SMALL_CODES = "".join(chr(code) for code in range(1, 128) if chr(code) != "'")
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SOUNDS = "01230127022455012623017202"
"""Soundex's digits for A to Z; 7 for a letter that does not count."""

_MORE_STRINGS = {
    "spark_titled(word)": f"""CASE WHEN word = '' THEN ''
        WHEN ascii(word) < 128 THEN upper(left(word, 1)) || substring(word, 2)
        ELSE {_title("left(word, 1)")} || substring(word, 2) END""",
    "spark_capital(word)": """CASE WHEN starts_with(word, '\u0130') THEN '\u0130' || substring(spark_lower(word), 3)
        ELSE spark_titled(spark_lower(word)) END""",
    "spark_initcap(s)": """CASE WHEN s IS NOT NULL THEN
        array_to_string(list_transform(string_split(s, ' '), lambda word: spark_capital(word)), ' ') END""",
    "spark_chr(n)": "CASE WHEN n < 0 THEN '' ELSE chr(CAST(n & 255 AS INTEGER)) END",
    "spark_substring_index(s, d, n)": """CASE WHEN s IS NULL OR d IS NULL OR n IS NULL THEN NULL
        WHEN n = 0 OR d = '' THEN '' WHEN n > 0 THEN array_to_string(list_slice(string_split(s, d), 1, n), d)
        WHEN -CAST(n AS BIGINT) >= len(string_split(s, d)) THEN s
        ELSE array_to_string(list_slice(string_split(s, d), n, -1), d) END""",
    "spark_overlay(s, r, p, n)": """CASE WHEN s IS NULL OR r IS NULL OR p IS NULL OR n IS NULL THEN NULL
        ELSE spark_substring(s, 1, CAST(p AS BIGINT) - 1) || r || spark_substring(s, CAST(p AS BIGINT)
        + CASE WHEN n < 0 THEN length(r) ELSE CAST(n AS BIGINT) END, CAST(2147483647 AS BIGINT)) END""",
    "spark_locate_from(part, s, p)": """CASE instr(substring(s, p), part) WHEN 0 THEN 0
        ELSE instr(substring(s, p), part) + p - 1 END""",
    "spark_locate(part, s, p)": """CAST(CASE WHEN p IS NULL THEN 0 WHEN part IS NULL OR s IS NULL THEN NULL
        WHEN p < 1 THEN 0 WHEN part = '' THEN 1 ELSE spark_locate_from(part, s, p) END AS INTEGER)""",
    "spark_find_in_set(s, l)": """CAST(CASE WHEN s IS NULL OR l IS NULL THEN NULL WHEN contains(s, ',') THEN 0
        ELSE coalesce(list_position(string_split(l, ','), s), 0) END AS INTEGER)""",
    "spark_quote(s)": r"chr(39) || replace(s, chr(39), '\' || chr(39)) || chr(39)",
    # DuckDB compares bytes, so each letter becomes one.
    "spark_levenshtein_coded(a, b, letters)": f"""CASE WHEN length(letters) > {len(_SMALL_CODES)}
        THEN error('The texts have too many different letters')
        ELSE levenshtein(translate(a, letters, '{_SMALL_CODES}'), translate(b, letters, '{_SMALL_CODES}')) END""",
    "spark_levenshtein(a, b)": f"""CAST(CASE WHEN a IS NULL OR b IS NULL THEN NULL
        WHEN strlen(a) = length(a) AND strlen(b) = length(b) THEN levenshtein(a, b)
        ELSE spark_levenshtein_coded(a, b, array_to_string(list_distinct({_LETTERS.format("a || b")}), '')) END
        AS INTEGER)""",
    "spark_levenshtein_within(a, b, n)": """CASE WHEN n IS NULL THEN NULL WHEN spark_levenshtein(a, b) <= n
        THEN spark_levenshtein(a, b) WHEN a IS NOT NULL AND b IS NOT NULL THEN CAST(-1 AS INTEGER) END""",
    "spark_sounds(s)": f"""replace(translate(regexp_replace(translate(s, '{_CAPITALS.lower()}', '{_CAPITALS}'),
        '[^A-Z]', 'A', 'g'), '{_CAPITALS}', '{_SOUNDS}'), '7', '')""",
    "spark_sounds_once(s)": """regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
        regexp_replace(s, '1+', '1', 'g'), '2+', '2', 'g'), '3+', '3', 'g'), '4+', '4', 'g'), '5+', '5', 'g'),
        '6+', '6', 'g')""",
    "spark_soundex(s)": """CASE WHEN regexp_matches(s, '^[A-Za-z]') THEN left(rpad(upper(left(s, 1))
        || replace(CASE WHEN regexp_matches(s, '^[HWhw]') THEN spark_sounds_once(spark_sounds(s))
        ELSE substring(spark_sounds_once(spark_sounds(s)), 2) END, '0', ''), 4, '0'), 4) ELSE s END""",
    "spark_luhn_sum(s)": """list_sum(list_transform(regexp_extract_all(s, '.'), lambda digit, place:
        CASE WHEN (len(s) - place) % 2 = 0 THEN CAST(digit AS INTEGER)
        WHEN digit > '4' THEN 2 * CAST(digit AS INTEGER) - 9 ELSE 2 * CAST(digit AS INTEGER) END))""",
    "spark_luhn_check(s)": """CASE WHEN regexp_full_match(s, '[0-9]+') THEN spark_luhn_sum(s) % 10 = 0
        WHEN s IS NOT NULL THEN FALSE END""",
    "spark_format_number(x, form)": """CASE WHEN isnan(x) THEN 'NaN'
        WHEN isinf(x) THEN CASE WHEN x < 0 THEN '-∞' ELSE '∞' END
        WHEN abs(x) >= 1e15 THEN error('format_number() of a DOUBLE that is too far to compute with')
        ELSE format(form, x) END""",
}

_BYTES = {
    "spark_utf8(s)": "encode(s)",  # refuses bytes that are no UTF-8, as encode() of an expression need not
    "spark_unhex(s)": "CASE WHEN regexp_full_match(s, '[0-9A-Fa-f]*') THEN unhex(s) END",
    "spark_bytes_of_hex(s)": """CASE WHEN s IS NULL THEN NULL WHEN regexp_full_match(s, '[0-9A-Fa-f]*') THEN unhex(s)
        ELSE error('The text ''' || s || ''' is not hexadecimal') END""",
    # In lines of 76 characters, as MIME has it.
    "spark_base64(z)": r"""rtrim(regexp_replace(base64(z), '(.{76})', '\1' || chr(13) || chr(10), 'g'),
        chr(13) || chr(10))""",
    "spark_unbase64_plain(s)": """CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '([A-Za-z0-9+/]{4})*') THEN from_base64(s)
        WHEN regexp_full_match(s, '([A-Za-z0-9+/]{4})*[A-Za-z0-9+/]{2}(==)?') THEN from_base64(rtrim(s, '=') || '==')
        WHEN regexp_full_match(s, '([A-Za-z0-9+/]{4})*[A-Za-z0-9+/]{3}=?') THEN from_base64(rtrim(s, '=') || '=')
        ELSE error('The text ''' || s || ''' is not base64') END""",
    "spark_unbase64(s)": "spark_unbase64_plain(regexp_replace(s, '[^A-Za-z0-9+/=]', '', 'g'))",
}

_MORE_NUMBERS = {
    "spark_ln(x)": "CASE WHEN x > 0 THEN kernel_log(x) END",
    "spark_log(b, x)": "CASE WHEN b > 0 AND x > 0 THEN kernel_log(x) / kernel_log(b) END",
    "spark_log2(x)": "CASE WHEN x > 0 THEN kernel_log(x) / CAST('0.6931471805599453' AS DOUBLE) END",
    "spark_log10(x)": "CASE WHEN x > 0 THEN kernel_log10(x) END",
    "spark_log1p(x)": "CASE WHEN x > -1 THEN kernel_log1p(x) END",
    "spark_sin(x)": "CASE WHEN isinf(x) THEN CAST('NaN' AS DOUBLE) ELSE sin(x) END",
    "spark_cos(x)": "CASE WHEN isinf(x) THEN CAST('NaN' AS DOUBLE) ELSE cos(x) END",
    "spark_tan(x)": "CASE WHEN isinf(x) THEN CAST('NaN' AS DOUBLE) ELSE tan(x) END",
    "spark_factorial(n)": "CASE WHEN n BETWEEN 0 AND 20 THEN CAST(factorial(CAST(n AS INTEGER)) AS BIGINT) END",
    "spark_bucket(share, n)": """CASE WHEN share >= 9.2e18 THEN error('width_bucket() has too many buckets')
        ELSE CAST(trunc(share) AS BIGINT) + 1 END""",
    "spark_width_bucket(x, low, high, n)": """CASE WHEN x IS NULL OR low IS NULL OR high IS NULL OR n IS NULL THEN NULL
        WHEN n <= 0 OR n = 9223372036854775807 OR isnan(x) OR low = high OR isnan(low) OR isnan(high) OR isinf(low)
        OR isinf(high) THEN NULL WHEN low < high THEN CASE WHEN x < low THEN CAST(0 AS BIGINT) WHEN x >= high THEN n + 1
        ELSE spark_bucket(CAST(n AS DOUBLE) * (x - low) / (high - low), n) END
        WHEN x > low THEN CAST(0 AS BIGINT) WHEN x <= high THEN n + 1
        ELSE spark_bucket(CAST(n AS DOUBLE) * (low - x) / (low - high), n) END""",
    "spark_bit(a, n, bits)": """CASE WHEN (n < 0 OR n >= bits) AND a IS NOT NULL
        THEN error('There is no bit ' || CAST(n AS VARCHAR))
        ELSE CAST((a >> CAST(n AS BIGINT)) & 1 AS TINYINT) END""",
    "spark_bitmap_bit_position(n)": """CAST(CASE WHEN n > 0 THEN (n - 1) % 32768
        ELSE (-CAST(n AS HUGEINT)) % 32768 END AS BIGINT)""",
    "spark_bitmap_bucket_number(n)": "CAST(CASE WHEN n > 0 THEN 1 + (n - 1) // 32768 ELSE n // 32768 END AS BIGINT)",
    # Java adds the divisor in as many bits as the operands have.
    "spark_wrapped(n, bits)": """CASE WHEN n < -(CAST(1 AS HUGEINT) << CAST(bits - 1 AS HUGEINT))
        THEN n + (CAST(1 AS HUGEINT) << CAST(bits AS HUGEINT)) ELSE n END""",
    "spark_pmod_any(a, b, bits)": """CASE WHEN b = 0 AND a IS NOT NULL THEN error('Division by zero')
        WHEN CAST(a AS HUGEINT) % b < 0 THEN spark_wrapped(CAST(a AS HUGEINT) % b + b, bits) % b
        ELSE CAST(a AS HUGEINT) % b END""",
}

_LAST_UNSIGNED = 2**64 - 1
_DIGITS_OF_BASES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONVERSIONS = {
    # The digits of a text up to the first letter that is none, and the number that they write: 2^64 or more is too far.
    "spark_digits_until(digits, n)": "list_slice(digits, 1, coalesce(n, len(digits) + 1) - 1)",
    "spark_digits_in(digits, base)": """spark_digits_until(digits,
        list_position(list_transform(digits, lambda d: d < 0 OR d >= base), TRUE))""",
    "spark_digits_of(s)": f"""list_transform(regexp_extract_all(s, '(?s).'), lambda letter:
        CAST(instr('{_DIGITS_OF_BASES}', upper(letter)) - 1 AS HUGEINT))""",
    "spark_number_of_digits(digits, base)": f"""list_reduce(digits, lambda so_far, digit: CASE
        WHEN so_far > {_LAST_UNSIGNED} THEN so_far ELSE so_far * base + digit END, CAST(0 AS HUGEINT))""",
    "spark_in_base(n, base)": f"""CASE WHEN n < base THEN '' ELSE to_base(CAST(n // base AS BIGINT), base) END
        || substring('{_DIGITS_OF_BASES}', CAST(n % base AS INTEGER) + 1, 1)""",
    # Of 64 bits, as Java has them: a result that may be negative (base < 0) is one from 2^63 on.
    "spark_converted(n, negative, base)": f"""CASE WHEN n > {_LAST_UNSIGNED} THEN error('A number does not fit 64 bits')
        WHEN base > 0 AND negative THEN CASE WHEN n > {2**63 - 1} THEN spark_in_base({_LAST_UNSIGNED}, base)
        ELSE spark_in_base(({2**64} - n) % {2**64}, base) END WHEN base > 0 THEN spark_in_base(n, base)
        WHEN n > {2**63 - 1} THEN '-' || spark_in_base({2**64} - n, -base)
        ELSE CASE WHEN negative THEN '-' ELSE '' END || spark_in_base(n, -base) END""",
    "spark_conv_of(s, f, t)": """list_transform([spark_number_of_digits(spark_digits_in(spark_digits_of(
        CASE WHEN starts_with(s, '-') THEN substring(s, 2) ELSE s END), f),
        CAST(f AS HUGEINT))], lambda n: spark_converted(n, starts_with(s, '-'), t))[1]""",
    "spark_conv(s, f, t)": """CASE WHEN s IS NULL OR f NOT BETWEEN 2 AND 36 OR abs(t) NOT BETWEEN 2 AND 36
        OR trim(s) = '' THEN NULL WHEN f IS NOT NULL AND t IS NOT NULL THEN spark_conv_of(trim(s), f, t) END""",
}

_CLOCKS = {
    "spark_clock_of(d, h, m, us)": """CASE WHEN h < 0 OR h > 23 OR m < 0 OR m > 59 OR us < 0 OR us > 60000000
        THEN error('There is no such time of day') ELSE CAST(d AS TIMESTAMP)
        + to_microseconds(CAST(h AS BIGINT) * 3600000000 + CAST(m AS BIGINT) * 60000000 + us) END""",
    "spark_made_clock(y, mo, d, h, m, us)": """CASE WHEN y IS NULL OR mo IS NULL OR d IS NULL OR h IS NULL OR m IS NULL
        OR us IS NULL THEN NULL ELSE spark_clock_of(make_date(y, mo, d), h, m, us) END""",
    "spark_clock_of_second(d, h, m, us)": """CASE WHEN us > 59999999 THEN error('There is no such second')
        ELSE spark_clock_of(d, h, m, us) END""",
    # Of the numbers in a text of a given form; a text of another form has none.
    "spark_parsed(s, y, mo, d, h, m, us)": """CASE WHEN s IS NULL THEN NULL WHEN y = '' THEN error('The text '''
        || s || ''' has not the form') WHEN CAST(y AS BIGINT) < 1 THEN error('There is no year 0')
        ELSE spark_clock_of_second(make_date(CAST(y AS BIGINT), CAST(mo AS BIGINT), CAST(d AS BIGINT)),
        CAST(h AS BIGINT), CAST(m AS BIGINT), CAST(us AS BIGINT)) END""",
    "spark_near_instant(n)": """CASE WHEN abs(n) > 253402300800
        THEN error('A timestamp outside the years 1 to 9999 cannot be formatted')
        ELSE make_timestamp(n * 1000000) END""",
    "spark_seconds_of_day(t)": "hour(t) * 3600 + minute(t) * 60 + second(t)",
    "spark_months_apart(a, b)": "CAST((year(a) - year(b)) * 12 + month(a) - month(b) AS DOUBLE)",
    "spark_days_apart(a, b, s)": "CAST((day(a) - day(b)) * 86400 + s AS DOUBLE) / CAST(2678400 AS DOUBLE)",
    # s: the seconds by which a is later in its day than b
    "spark_months_between(a, b, s)": """CASE WHEN day(a) = day(b)
        OR (CAST(a AS DATE) = last_day(a) AND CAST(b AS DATE) = last_day(b)) THEN spark_months_apart(a, b)
        ELSE spark_months_apart(a, b) + spark_days_apart(a, b, s) END""",
    # An incomplete last day does not count; nor does an incomplete month, by the number of its day.
    "spark_until(a, b)": """CAST(b AS DATE) + CASE WHEN CAST(b AS DATE) > CAST(a AS DATE)
        AND CAST(b AS TIME) < CAST(a AS TIME) THEN -1 WHEN CAST(b AS DATE) < CAST(a AS DATE)
        AND CAST(b AS TIME) > CAST(a AS TIME) THEN 1 ELSE 0 END""",
    "spark_month_and_day(d)": "(CAST(year(d) AS BIGINT) * 12 + month(d)) * 32 + day(d)",
    "spark_whole_months(a, b)": """(spark_month_and_day(spark_until(a, b)) - spark_month_and_day(CAST(a AS DATE)))
        // CAST(32 AS BIGINT)""",
    "spark_rounded_8(x)": """floor(x * CAST(100000000 AS DOUBLE) + CAST('0.5' AS DOUBLE))
        / CAST(100000000 AS DOUBLE)""",
    "spark_next_day(d, n)": "d + CAST(1 + (n + 13 - CAST(d - DATE '1970-01-01' AS INTEGER) % 7) % 7 AS INTEGER)",
}

_URLS = {
    "spark_url_encode(s)": "replace(replace(replace(url_encode(s), '%20', '+'), '~', '%7E'), '%2A', '*')",
    "spark_url_decode(s)": """CASE WHEN s IS NULL THEN NULL
        WHEN regexp_full_match(s, '(?s)(?:[^%]|%[0-9A-Fa-f]{2})*') THEN url_decode(replace(s, '+', ' '))
        ELSE error('The text ''' || s || ''' is no encoded URL') END""",
}


_ALL = (
    _NUMBERS
    | _MORE_NUMBERS
    | _shifts(32)
    | _shifts(64)
    | _STRINGS
    | _TEXTS
    | _TIMES
    | _CASES
    | _MORE_STRINGS
    | _BYTES
    | _CLOCKS
    | _URLS
    | _CONVERSIONS
    | _NESTED
)
_ERROR = re.compile(r"error\((?:'(?:[^']|'')*'|CAST\([^()]*\)|[^'()])*\)")
_CALL = re.compile(r"\bspark_\w+(?=\()")


def _failing() -> frozenset[str]:
    """The macros that call ``error()``, themselves or by another."""
    found: set[str] = set()
    for signature, body in _ALL.items():
        if "error(" in body or not found.isdisjoint(_CALL.findall(body)):
            found.add(signature.partition("(")[0])
    return frozenset(found)


LENIENT = _failing()
"""The macros that have a twin with NULL in place of ``error()``."""


def lenient_name(name: str) -> str:
    """The name of a macro's twin."""
    return name.replace("spark_", "spark_lenient_", 1)


def _lenient(sql: str) -> str:
    sql = _ERROR.sub("NULL", sql)
    return _CALL.sub(lambda match: lenient_name(match[0]) if match[0] in LENIENT else match[0], sql)


_TWINS = {
    _lenient(signature): _lenient(body) for signature, body in _ALL.items() if signature.partition("(")[0] in LENIENT
}
MACROS = _ALL | _TWINS
"""Signature to body; each is defined before it is used."""
