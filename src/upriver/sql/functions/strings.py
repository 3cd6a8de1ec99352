"""Functions of texts and bytes. Characters are code points, in Spark and here."""

from dataclasses import replace

import pyarrow as pa

from upriver.engine.macros import CHARS_MAX
from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    is_array,
    is_date,
    is_instant,
    is_integer,
    is_interval,
    is_nested,
    is_null,
    is_string,
    is_wall_clock,
    spark_name,
)
from upriver.sql.functions.arithmetic import to_common
from upriver.sql.functions.casts import cast
from upriver.sql.functions.logic import choose, compare
from upriver.sql.functions.nested_values import once
from upriver.sql.functions.scalars import (
    Context,
    in_order,
    is_nothing,
    literal,
    macro,
    never_null,
    null,
    opaque,
    strict,
    string_sql,
    typed_name,
)
from upriver.sql.functions.signatures import RAISES, Function, OperandKind, Operands, Special, take
from upriver.sql.functions.tries import tried

_STRING, _INT, _BOOLEAN, _BINARY = pa.string(), pa.int32(), pa.bool_(), pa.binary()
_TEXT, _COUNT, _WHOLE, _BYTES = OperandKind.STRING, OperandKind.INT, OperandKind.WHOLE, OperandKind.BYTES
_WRITTEN, _ANY = OperandKind.WRITTEN, OperandKind.ANY
_BLANK = literal(" ", _STRING)
_TO_THE_END = literal(2**31 - 1, pa.int32())


def substring(context: Context, place: Place, operands: Operands) -> Scalar:
    """``substring(s, position[, length])``; the simple case is DuckDB's own."""
    text = take(context, place, _TEXT, operands[0])
    start, length = (take(context, place, _COUNT, value) for value in (*operands[1:], _TO_THE_END)[:2])
    text, start, length = parts = in_order(text, start, length)
    if isinstance(start.constant, int) and start.constant >= 0 and isinstance(length.constant, int):
        sql = f"substring({text.sql}, {max(start.constant, 1)}, {max(length.constant, 0)})"
        return strict(sql, _STRING, parts)
    return strict(macro("spark_substring", text.sql, start.sql, f"CAST({length.sql} AS BIGINT)"), _STRING, parts)


def _left(context: Context, place: Place, operands: Operands) -> Scalar:
    return substring(context, place, (operands[0], literal(1, pa.int32()), operands[1]))


def concatenated(context: Context, place: Place, operands: Operands) -> Scalar:
    """``concat`` or ``||``: NULL if any part is. Other types than strings are cast, if the cast is exact."""
    if any(is_array(value.type) for value in operands):
        parts = in_order(*to_common(context, place, operands))
        return opaque(strict(f"({' || '.join(part.sql for part in parts)})", parts[0].type, parts))
    if all(value.type == _BINARY for value in operands):
        parts = in_order(*operands)
        return opaque(strict(f"({' || '.join(part.sql for part in parts)})", _BINARY, parts))
    parts = in_order(*(cast(context, place, value, _STRING) for value in operands))
    return opaque(strict(f"({' || '.join(part.sql for part in parts)})", _STRING, parts))


def _joined(context: Context, place: Place, operands: Operands) -> Scalar:
    """``concat_ws(separator, a, ...)``, of texts and of arrays of texts."""
    parts = [
        _in_one(context, place, value, operands[0])
        if number and is_array(value.type) and is_string(value.type.value_type)
        else take(context, place, _TEXT, value)
        for number, value in enumerate(operands)
    ]
    joined = Scalar(f"concat_ws({', '.join(part.sql for part in parts)})", _STRING, any_fails(parts))
    return joined if parts[0].null_by else never_null(joined)


def _in_one(context: Context, place: Place, array: Scalar, separator: Scalar) -> Scalar:
    """The texts of an array as one; NULL, which is left out, if there are none."""
    if not isinstance(separator.constant, str):
        raise context.unsupported(place, "concat_ws() of an array by a computed separator", "Write it in quotes.")
    texts = f"list_filter({array.sql}, lambda e: e IS NOT NULL)"
    sql = once(texts, lambda one: f"CASE WHEN len({one}) > 0 THEN array_to_string({one}, {separator.sql}) END")
    return Scalar(sql, _STRING, array.fails)


def trimmed(context: Context, place: Place, function: str, operands: Operands) -> Scalar:
    text, letters = in_order(*(take(context, place, _TEXT, value) for value in (*operands, _BLANK)[:2]))
    return opaque(strict(f"{function}({text.sql}, {letters.sql})", _STRING, (text, letters)))


def _one_sided(function: str) -> Special:
    """``ltrim`` and ``rtrim``; the characters to trim come first, if given."""
    return lambda context, place, operands: trimmed(context, place, function, tuple(reversed(operands)))


def located(context: Context, place: Place, operands: Operands) -> Scalar:
    """``locate(part, text[, start])``: 0 where start is NULL."""
    part, text = (take(context, place, _TEXT, operand) for operand in operands[:2])
    if len(operands) == 2:
        part, text = in_order(part, text)
        return opaque(strict(f"CAST(instr({text.sql}, {part.sql}) AS INTEGER)", _INT, (part, text)))
    start = take(context, place, _COUNT, operands[2])
    if any_fails((part, text, start)):
        raise context.unsupported(place, "locate() of operands that can fail", "Compute them in a subquery.")
    return Scalar(macro("spark_locate", part.sql, text.sql, start.sql), _INT)


def _replaced(context: Context, place: Place, operands: Operands) -> Scalar:
    parts = in_order(*(take(context, place, _TEXT, value) for value in (*operands, literal("", _STRING))[:3]))
    return strict(f"replace({', '.join(part.sql for part in parts)})", _STRING, parts)


def _padded(side: str) -> Special:
    """``lpad(s, length[, by])`` and ``rpad``."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        text, by = (take(context, place, _TEXT, value) for value in (operands[0], (*operands, _BLANK)[2]))
        text, length, by = in_order(text, take(context, place, _COUNT, operands[1]), by)
        sql = macro(f"spark_{side}pad", text.sql, length.sql, by.sql)
        return strict(sql, _STRING, (text, length, by), fails=_may_be_long(length))

    return rule


def _may_be_long(length: Scalar) -> bool:
    return not isinstance(length.constant, int) or length.constant > CHARS_MAX


def _spaces(context: Context, place: Place, operands: Operands) -> Scalar:
    count = take(context, place, _COUNT, operands[0])
    return strict(macro("spark_repeat", "' '", count.sql), _STRING, (count,), fails=_may_be_long(count))


def _digested(context: Context, place: Place, operands: Operands) -> Scalar:
    """``sha2(s, bits)``."""
    bytes, bits = take(context, place, _BYTES, operands[0]), operands[1].constant
    if is_nothing(operands[1]):
        return null(_STRING)
    if not isinstance(bits, int) or bits not in (0, 224, 256, 384, 512):
        raise context.unsupported(place, "sha2() of these bits", "Write 224, 256, 384 or 512.")
    function = f"kernel_sha{bits}" if bits in (224, 384, 512) else "sha256"
    return strict(f"{function}({bytes.sql})", _STRING, (bytes, operands[1]))


def _cased(name: str) -> Special:
    """``upper`` or ``lower``. In Spark's optimizer ``upper(lower(s))`` becomes ``upper(s)``, which differs for some
    letters."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        text = take(context, place, _TEXT, operands[0])
        letters = text if text.letters is None else text.letters
        return replace(strict(macro(name, letters.sql), _STRING, (letters,)), letters=letters)

    return rule


def _of_text_or_bytes(of_text: str, of_bytes: str, gives: pa.DataType) -> Special:
    """A function with other DuckDB SQL for a STRING than for a BINARY."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        (value,) = operands
        if value.type == _BINARY:
            return strict(of_bytes.format(value.sql), gives, (value,))
        text = take(context, place, _TEXT, value)
        return strict(of_text.format(text.sql), gives, (text,))

    return rule


def _hexed(context: Context, place: Place, operands: Operands) -> Scalar:
    """``hex`` of an integer, a STRING or a BINARY."""
    (value,) = operands
    value = cast(context, place, value, pa.int64()) if is_integer(value.type) else take(context, place, _BYTES, value)
    return strict(f"hex({value.sql})", _STRING, (value,))


def _substring_index(context: Context, place: Place, operands: Operands) -> Scalar:
    """``substring_index(s, by, n)``. Spark also finds separators that overlap, which DuckDB does not."""
    by = operands[1].constant
    if not isinstance(by, str) or any(by.endswith(by[:size]) for size in range(1, len(by))):
        instead = "Write one in quotes, whose end is not its beginning, too."
        raise context.unsupported(place, "substring_index() by this separator", instead)
    text, count = in_order(take(context, place, _TEXT, operands[0]), take(context, place, _COUNT, operands[2]))
    sql = macro("spark_substring_index", text.sql, operands[1].sql, count.sql)
    return strict(sql, _STRING, (text, operands[1], count))


def _overlaid(context: Context, place: Place, operands: Operands) -> Scalar:
    """``overlay(s, by, position[, length])``."""
    text, by = (take(context, place, _TEXT, value) for value in operands[:2])
    start, length = (take(context, place, _COUNT, value) for value in (*operands[2:], literal(-1, _INT))[:2])
    text, by, start, length = parts = in_order(text, by, start, length)
    return strict(macro("spark_overlay", *(part.sql for part in parts)), _STRING, parts)


def _chosen(context: Context, place: Place, operands: Operands) -> Scalar:
    """``elt(n, a, b, ...)``: the n-th of the values, of which only that one is computed."""
    number = take(context, place, _COUNT, operands[0])
    values = [take(context, place, _TEXT, value) for value in operands[1:]]
    cases = " ".join(f"WHEN {index} THEN {value.sql}" for index, value in enumerate(values, 1))
    out = f"error('elt() has no element ' || CAST({number.sql} AS VARCHAR))"
    sql = f"CASE {number.sql} {cases} ELSE CASE WHEN {number.sql} IS NOT NULL THEN {out} END END"
    return Scalar(sql, _STRING, fails=True)


def _in_charset(context: Context, place: Place, name: str, value: Scalar) -> None:
    if not isinstance(value.constant, str) or value.constant.upper() not in ("UTF-8", "UTF8"):
        raise context.unsupported(place, f"{name}() in this character set", "Write 'UTF-8'.")


def _encoded(context: Context, place: Place, operands: Operands) -> Scalar:
    _in_charset(context, place, "encode", operands[1])
    text = take(context, place, _TEXT, operands[0])
    return strict(macro("spark_utf8", text.sql), _BINARY, (text,))


def _decoded(context: Context, place: Place, operands: Operands) -> Scalar:
    """``decode(bytes, charset)``, and ``decode(value, search, result, ..., otherwise)``, where NULL equals NULL."""
    if len(operands) == 2:
        _in_charset(context, place, "decode", operands[1])
        bytes = take(context, place, OperandKind.BINARY, operands[0])
        return strict(f"decode({bytes.sql})", _STRING, (bytes,), fails=True)
    value, *rest = operands
    pairs = list(zip(rest[::2], rest[1::2], strict=False))
    tests = [(compare(context, place, "IS NOT DISTINCT FROM", value, search), result) for search, result in pairs]
    return choose(context, place, tests, rest[-1] if len(rest) % 2 else null(pairs[0][1].type))


def _to_binary(context: Context, place: Place, operands: Operands) -> Scalar:
    """``to_binary(s[, format])``: 'hex' or 'utf-8'."""
    written = str((*operands, literal("hex", _STRING))[1].constant).lower()
    text = take(context, place, _TEXT, operands[0])
    if written in ("utf-8", "utf8"):
        return strict(macro("spark_utf8", text.sql), _BINARY, (text,))
    if written != "hex":
        raise context.unsupported(place, "to_binary() in this format", "Write 'hex' or 'utf-8', or unbase64(s).")
    return strict(macro("spark_bytes_of_hex", text.sql), _BINARY, (text,), fails=True)


def _formatted_number(context: Context, place: Place, operands: Operands) -> Scalar:
    """``format_number(x, places)``, half even, with a comma between thousands."""
    places, value = operands[1].constant, operands[0]
    if not isinstance(places, int) or isinstance(places, bool) or not 0 <= places <= 15:
        what = "format_number() to these places"
        raise context.unsupported(place, what, "Write a constant number of places, from 0 to 15.")
    zeros = f" || '.{'0' * places}'" if places else ""
    if is_integer(value.type):
        number = cast(context, place, value, pa.int64())
        return strict(f"(format('{{:,}}', {number.sql}){zeros})", _STRING, (number,))
    if value.type != pa.float64():
        raise context.unsupported(place, f"format_number() of {typed_name(value)}", "CAST it to DOUBLE.")
    form = f"'{{:,.{places}f}}'"
    return strict(macro("spark_format_number", value.sql, form), _STRING, (value,))


_SPECIFIER = {"%s": _TEXT, "%d": _WHOLE}


def _printed(context: Context, place: Place, operands: Operands) -> Scalar:
    """``format_string(format, ...)``, with %s, %d and %%. A NULL is printed as ``null``."""
    form = operands[0].constant
    rest = list(operands[1:])
    if not isinstance(form, str):
        raise context.unsupported(place, "a computed format", "Write it in quotes.")
    parts: list[str] = []
    values: list[Scalar] = []
    at = 0
    while at < len(form):
        two = form[at : at + 2]
        if form[at] != "%":
            end = form.find("%", at) % (len(form) + 1)
            parts.append(string_sql(form[at:end]))
            at = end
            continue
        if two == "%%":
            parts.append("'%'")
        elif two in _SPECIFIER and rest:
            value = rest.pop(0)
            if two == "%d" and not is_integer(value.type):
                raise context.unsupported(place, f"%d of {typed_name(value)}", "CAST it to BIGINT.")
            if is_date(value.type) or is_wall_clock(value.type) or is_instant(value.type) or value.type == pa.binary():
                raise context.unsupported(place, f"%s of {typed_name(value)}", "CAST it to STRING.")
            value = cast(context, place, value, _STRING)
            values.append(value)
            parts.append(f"coalesce({value.sql}, 'null')")
        else:
            raise context.unsupported(place, f"{two!r} in this format", "Take %s and %d, one for each value, and %%.")
        at += 2
    if is_null(operands[0].type) or not parts:
        raise context.unsupported(place, "an empty format", "Write ''.")
    return never_null(Scalar(f"({' || '.join(parts)})", _STRING, any_fails(values)))


def _distance(context: Context, place: Place, operands: Operands) -> Scalar:
    """``levenshtein(a, b[, threshold])``: -1 beyond the threshold."""
    texts = [take(context, place, _TEXT, value) for value in operands[:2]]
    rest = [take(context, place, _COUNT, value) for value in operands[2:]]
    parts = in_order(*texts, *rest)
    name = "spark_levenshtein_within" if rest else "spark_levenshtein"
    return strict(macro(name, *(part.sql for part in parts)), _INT, parts)


def _masked(context: Context, place: Place, operands: Operands) -> Scalar:
    """``mask(s[, capital[, small[, digit[, other]]]])``: a letter for each letter of a kind; NULL leaves them."""
    text, given = take(context, place, _TEXT, operands[0]), [value.constant for value in operands[1:]]
    marks = [*given, *("X", "x", "n", None)[len(given) :]]
    alone = all(is_nothing(one) or isinstance(one.constant, str) for one in operands[1:])
    if not alone or any(mark is not None and (not isinstance(mark, str) or len(mark) != 1) for mark in marks):
        raise context.unsupported(place, "mask() by these letters", "Write a letter in quotes, or NULL, for each kind.")
    kept = {mark: None if mark is None else string_sql(str(mark)) for mark in marks}
    tests = " ".join(
        f"WHEN regexp_matches(c, '{kind}') THEN {kept[mark] or 'c'}"
        for kind, mark in zip((r"\p{Lu}", r"\p{Ll}", r"\p{Nd}", r"(?s)."), marks, strict=True)
    )
    plain = "".join(map(chr, range(1, 128)))
    kinds = [0 if c.isupper() else 1 if c.islower() else 2 if c.isdigit() else 3 for c in plain]
    masked = "".join(c if marks[kind] is None else str(marks[kind]) for c, kind in zip(plain, kinds, strict=True))
    one_by_one = f"array_to_string(list_transform(regexp_extract_all(t, '(?s).'), lambda c: CASE {tests} END), '')"
    quick = f"regexp_full_match(t, '[\\x01-\\x7F]*') THEN translate(t, {string_sql(plain)}, {string_sql(masked)})"
    sql = f"list_transform([{text.sql}], lambda t: CASE WHEN {quick} WHEN t IS NOT NULL THEN {one_by_one} END)[1]"
    return opaque(strict(sql, _STRING, (text,)))


def _reversed(context: Context, place: Place, operands: Operands) -> Scalar:
    """``reverse`` of a text or an array."""
    (value,) = operands
    if is_array(value.type):
        return opaque(strict(f"list_reverse({value.sql})", value.type, (value,)))
    text = take(context, place, _TEXT, value)
    return strict(macro("spark_reverse", text.sql), _STRING, (text,))


def _type_name(context: Context, place: Place, operands: Operands) -> Scalar:
    (value,) = operands
    if is_nested(value.type):
        raise context.unsupported(place, "typeof() of a nested value", "Its type is that of the column: see explain().")
    if is_interval(value.type):
        # All intervals are kept as one type, and Spark's name has the fields that the interval was made of.
        raise context.unsupported(place, "typeof() of an interval", "Leave it out: its value is the same in every row.")
    return literal("void" if is_null(value.type) else spark_name(value.type).lower(), _STRING)


_A_AND_B = (_TEXT, _TEXT)


def _test(names: str, sql: str) -> Function:
    return Function(names, _A_AND_B, sql, _BOOLEAN)


_LONG = f"for more than {CHARS_MAX:,} characters"
_NO_URL = "where the text is no encoded URL"


def _lenient(how: str, gives: pa.DataType) -> Special:
    """``try_...``: the macro's NULL in place of its error."""

    def build(context: Context, place: Place, operands: Operands) -> Scalar:
        text = take(context, place, _TEXT, operands[0])
        return strict(macro(how, text.sql), gives, (text,), fails=True)

    return tried(build)


TEXTS: tuple[Function, ...] = (
    Function(
        "length len char_length character_length",
        (_BYTES,),
        _of_text_or_bytes("CAST(length({0}) AS INTEGER)", "CAST(octet_length({0}) AS INTEGER)", _INT),
        "INT",
        samples="length(s); length(bin); char_length(k); len(s); character_length(s)",
    ),
    Function(
        "octet_length",
        (_BYTES,),
        _of_text_or_bytes("CAST(strlen({0}) AS INTEGER)", "CAST(octet_length({0}) AS INTEGER)", _INT),
        "INT",
        samples="octet_length(s); octet_length(bin); octet_length(k)",
    ),
    Function(
        "bit_length",
        (_BYTES,),
        _of_text_or_bytes("CAST(8 * strlen({0}) AS INTEGER)", "CAST(8 * octet_length({0}) AS INTEGER)", _INT),
        "INT",
        samples="bit_length(s); bit_length(bin); bit_length(k)",
    ),
    Function("upper ucase", (_TEXT,), _cased("spark_upper"), "STRING", samples="upper(s); ucase(k); upper(lower(s))"),
    Function("lower lcase", (_TEXT,), _cased("spark_lower"), "STRING", samples="lower(s); lcase(k); lower(upper(s))"),
    Function("initcap", (_TEXT,), "spark_initcap", _STRING, samples="initcap(s || ' ' || u); initcap(s); initcap(k)"),
    Function(
        "ltrim", (_TEXT, _TEXT), _one_sided("ltrim"), "STRING", 1, is_opaque=True, samples="ltrim(s); ltrim('a ', s)"
    ),
    Function(
        "rtrim", (_TEXT, _TEXT), _one_sided("rtrim"), "STRING", 1, is_opaque=True, samples="rtrim(s); rtrim('b ', s)"
    ),
    Function(
        "btrim",
        (_TEXT, _TEXT),
        lambda context, place, operands: trimmed(context, place, "trim", operands),
        "STRING",
        1,
        is_opaque=True,
        samples="btrim(s); btrim(s, ' a'); btrim(s, u)",
    ),
    Function("left", (_TEXT, _COUNT), _left, "STRING", samples="left(s, i); left(s, 2); left(s, imax)"),
    Function(
        "right",
        (_TEXT, _COUNT),
        "spark_right",
        _STRING,
        is_opaque=True,
        samples="right(s, imax); right(k, i); right(s, 2)",
    ),
    Function(
        "concat", (_TEXT,), concatenated, "STRING", repeats=True, samples="concat(s, u); concat(s, i, d); concat(bin)"
    ),
    Function(
        "concat_ws",
        (_TEXT, _ANY),
        _joined,
        "STRING",
        repeats=True,
        nulls="where the separator is; other NULLs are left out",
        samples="concat_ws('-', s, u); concat_ws(u, s, s, k); concat_ws(', ', array(s, u), k, array(u))",
    ),
    Function("replace", (_TEXT, _TEXT, _TEXT), _replaced, "STRING", 2, samples="replace(s, u); replace(s, u, 'xy')"),
    _test("startswith", "starts_with({0}, {1})"),
    _test("endswith", "suffix({0}, {1})"),
    _test("contains", "contains({0}, {1})"),
    Function(
        "lpad",
        (_TEXT, _COUNT, _TEXT),
        _padded("l"),
        "STRING",
        2,
        fails=_LONG,
        lenient=RAISES,
        samples="lpad(s, i, u); lpad(s, 4); lpad(s, j, 'xy')",
    ),
    Function(
        "rpad",
        (_TEXT, _COUNT, _TEXT),
        _padded("r"),
        "STRING",
        2,
        fails=_LONG,
        lenient=RAISES,
        samples="rpad(s, i, u); rpad(s, 4); rpad(s, j, 'xy')",
    ),
    Function(
        "repeat",
        (_TEXT, _COUNT),
        "spark_repeat",
        _STRING,
        fails=_LONG,
        lenient=RAISES,
        samples="repeat(s, j); repeat(k, -1); repeat(u, y)",
    ),
    Function("space", (_COUNT,), _spaces, "STRING", fails=_LONG, lenient=RAISES, samples="space(j); space(h)"),
    Function("reverse", (_ANY,), _reversed, "STRING, or the array's type", samples="reverse(s); reverse(u)"),
    Function("translate", (_TEXT, _TEXT, _TEXT), "translate({0}, {1}, {2})", _STRING),
    Function(
        "split_part",
        (_TEXT, _TEXT, _COUNT),
        "spark_split_part",
        _STRING,
        fails="for part 0",
        lenient=RAISES,
        samples="split_part(s, u, i); split_part(s, 'a', -1)",
    ),
    Function(
        "substring_index",
        (_TEXT, _WRITTEN, _COUNT),
        _substring_index,
        "STRING",
        samples="substring_index(s, 'a', i); substring_index(s, ' ', j); substring_index(s, '', 1)",
    ),
    Function(
        "overlay",
        (_TEXT, _TEXT, _COUNT, _COUNT),
        _overlaid,
        "STRING",
        3,
        samples="overlay(s, u, i); overlay(s, u, i, j); overlay(s, 'xy', 2); overlay(s, u, imax, 1)",
    ),
    Function("ascii", (_TEXT,), "CAST(ascii({0}) AS INTEGER)", _INT),
    Function("char chr", (_WHOLE,), "spark_chr", _STRING, samples="chr(l); char(imax); chr(h)"),
    Function("instr", _A_AND_B, "CAST(instr({0}, {1}) AS INTEGER)", _INT),
    Function(
        "locate",
        (_TEXT, _TEXT, _COUNT),
        located,
        "INT",
        2,
        nulls="where a text is; 0 where the start is",
        is_opaque=True,
        samples="locate(u, s); locate(u, s, i); locate(u, s, j); locate('', s, 2)",
    ),
    Function(
        "find_in_set",
        _A_AND_B,
        "spark_find_in_set",
        _INT,
        samples="find_in_set(u, s || ',' || u); find_in_set(s, u); find_in_set(k, s)",
    ),
    Function(
        "elt",
        (_COUNT, _TEXT),
        _chosen,
        "STRING",
        repeats=True,
        nulls="where the number or that value is",
        fails="for a number without a value",
        samples="elt(j, s, u, k); elt(1, s); elt(i, s, u)",
    ),
    Function(
        "url_encode", (_TEXT,), "spark_url_encode", _STRING, samples="url_encode(s); url_encode('a b~*-_./?' || u)"
    ),
    Function(
        "url_decode",
        (_TEXT,),
        "spark_url_decode",
        _STRING,
        fails=_NO_URL,
        lenient=RAISES,
        samples="url_decode(url_encode(s)); url_decode(s); url_decode('a+b%20' || u)",
    ),
    Function(
        "try_url_decode",
        (_TEXT,),
        _lenient("spark_url_decode", _STRING),
        "STRING",
        nulls=f"also {_NO_URL}",
        samples="try_url_decode(url_encode(s)); try_url_decode(s)",
    ),
    Function("quote", (_TEXT,), "spark_quote", _STRING),
    Function(
        "levenshtein",
        (_TEXT, _TEXT, _COUNT),
        _distance,
        "INT",
        2,
        samples="levenshtein(s, u); levenshtein(s, k); levenshtein(s, u, 2); levenshtein(s, u, j)",
    ),
    Function(
        "mask",
        (_TEXT, _WRITTEN, _WRITTEN, _WRITTEN, _WRITTEN),
        _masked,
        "STRING",
        1,
        samples="mask(s); mask(s || u, 'q', 'Q', NULL, '*'); mask(u, NULL, 'x', '0'); mask(k); "
        "mask('aÄ\U0001d400' || s)",
    ),
    Function("soundex", (_TEXT,), "spark_soundex", _STRING, samples="soundex(s); soundex(upper(u) || s); soundex(k)"),
    Function("luhn_check", (_TEXT,), "spark_luhn_check", _BOOLEAN, samples="luhn_check(s); luhn_check(digits)"),
    Function(
        "format_number",
        (OperandKind.NUMBER, _COUNT),
        _formatted_number,
        "STRING",
        samples="format_number(x, 2); format_number(w, 0); format_number(l, 3); format_number(imax, 0)",
    ),
    Function(
        "format_string printf",
        (_WRITTEN, _ANY),
        _printed,
        "STRING",
        repeats=True,
        nulls="never",
        samples="format_string('%s-%d%%', s, i); printf('a%sb', u)",
    ),
    Function("typeof", (_ANY,), _type_name, "STRING", nulls="never", samples="typeof(p); typeof(t); typeof(n)"),
)
"""Of texts."""


BYTES: tuple[Function, ...] = (
    Function("md5", (_BYTES,), "md5({0})", _STRING, samples="md5(s); md5(bin)"),
    Function("sha sha1", (_BYTES,), "sha1({0})", _STRING, samples="sha1(s); sha(bin)"),
    Function(
        "sha2",
        (_BYTES, _COUNT),
        _digested,
        "STRING",
        samples="sha2(s, 256); sha2(bin, 0); sha2(bin, 512); sha2(k, 384); sha2(s, 224)",
    ),
    Function("hex", (_ANY,), _hexed, "STRING", samples="hex(s); hex(bin); hex(lmax); hex(i); hex(ymax); hex(k)"),
    Function(
        "unhex",
        (_TEXT,),
        "spark_unhex",
        _BINARY,
        nulls="where the text is no hexadecimal number",
        samples="unhex(hex(s)); unhex(s); unhex(digits); unhex('F' || hex(k))",
    ),
    Function("base64", (_BYTES,), "spark_base64", _STRING, samples="base64(s); base64(bin)"),
    Function(
        "unbase64",
        (_TEXT,),
        "spark_unbase64",
        _BINARY,
        fails="where the text is not base64",
        lenient=RAISES,
        samples="unbase64(base64(s)); unbase64(digits); unbase64(base64(bin))",
    ),
    Function("encode", (_TEXT, _WRITTEN), _encoded, "BINARY", samples="encode(s, 'UTF-8')"),
    Function(
        "decode",
        (_ANY, _WRITTEN),
        _decoded,
        "STRING, or the common type of the results",
        repeats=True,
        fails="where the bytes are no UTF-8",
        lenient=RAISES,
        nulls="where the bytes are, or the result is",
        samples="decode(bin, 'UTF-8'); decode(i, 1, 'one', 7, 'seven'); decode(s, 'a', 1, NULL, 2, 3)",
    ),
    Function(
        "try_to_binary",
        (_TEXT, _WRITTEN),
        tried(_to_binary),
        "BINARY",
        1,
        nulls="also where the text has not the format",
        samples="try_to_binary(hex(s)); try_to_binary(digits, 'hex'); try_to_binary(s); try_to_binary(k, 'utf-8')",
    ),
    Function(
        "to_binary",
        (_TEXT, _WRITTEN),
        _to_binary,
        "BINARY",
        1,
        fails="where the text has not the format",
        lenient=RAISES,
        samples="to_binary(hex(s)); to_binary(s, 'utf-8'); to_binary(digits, 'hex')",
    ),
)
"""Of bytes."""
