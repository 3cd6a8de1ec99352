"""The functions that a view may call, by Spark's name. All others are refused: DuckDB may have one of that name.

String functions: characters are code points, in Spark and here.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import decimal_type, duck_name, is_decimal, is_floating, is_integer, is_null
from upriver.sql.aggregates import AGGREGATES, INSTEAD
from upriver.sql.casts import cast, rounded_double
from upriver.sql.logic import LOGIC, choose, compare, is_null_test, not_null_test
from upriver.sql.operators import (
    CAST_IT,
    OPERATORS,
    as_condition,
    as_doubles,
    modulo,
    negated,
    shifted,
    to_common,
    whole_divide,
)
from upriver.sql.patterns import PATTERNS
from upriver.sql.scalars import (
    Context,
    Rule,
    in_order,
    intolerant,
    literal,
    macro,
    never_null,
    null,
    opaque,
    strict,
    typed_name,
)
from upriver.sql.signatures import Functions, OperandKind, Operands, Signature, Spoken, call, take
from upriver.sql.times import CLOCKS, FORMATS, TIME_RULES, TIMES

_STRING, _INT, _BOOLEAN = pa.string(), pa.int32(), pa.bool_()
_BLANK = literal(" ", _STRING)
_TO_THE_END = literal(2**31 - 1, pa.int32())


def substring(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``substring(s, position[, length])``; the simple case is DuckDB's own."""
    text = take(context, node, OperandKind.STRING, operands[0])
    start, length = (take(context, node, OperandKind.INT, value) for value in (*operands[1:], _TO_THE_END)[:2])
    text, start, length = parts = in_order(text, start, length)
    if isinstance(start.constant, int) and start.constant >= 0 and isinstance(length.constant, int):
        sql = f"substring({text.sql}, {max(start.constant, 1)}, {max(length.constant, 0)})"
        return strict(sql, _STRING, parts)
    return strict(macro("spark_substring", text.sql, start.sql, f"CAST({length.sql} AS BIGINT)"), _STRING, parts)


def _left(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    return substring(context, node, (operands[0], literal(1, pa.int32()), operands[1]))


def concatenated(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``concat`` or ``||``: NULL if any part is. Other types than strings are cast, if the cast is exact."""
    parts = in_order(*(cast(context, node, value, _STRING) for value in operands))
    return opaque(strict(f"({' || '.join(part.sql for part in parts)})", _STRING, parts))


def _joined(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    parts = [take(context, node, OperandKind.STRING, value) for value in operands]
    joined = Scalar(f"concat_ws({', '.join(part.sql for part in parts)})", _STRING, any_fails(parts))
    return joined if parts[0].null_by else never_null(joined)


def _pipes(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expression", "safe")
    return concatenated(context, node, context.translate_all((node.this, node.expression)))


def _substring_from(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "start", "length")
    parts = [node.this, node.args.get("start"), node.args.get("length")]
    return substring(context, node, context.translate_all(part for part in parts if part is not None))


def _trim_from(context: Context, node: exp.Expr) -> Scalar:
    """``trim(s)``, ``trim(characters, s)`` and ``TRIM([BOTH|LEADING|TRAILING] characters FROM s)``."""
    context.only(node, "this", "expression", "position")
    function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")).upper(), "trim")
    parts = [node.this] if node.expression is None else [node.this, node.expression]
    return _trimmed(context, node, function, context.translate_all(parts))


def _trimmed(context: Context, node: exp.Expr, function: str, operands: Operands) -> Scalar:
    text, letters = in_order(*(take(context, node, OperandKind.STRING, value) for value in (*operands, _BLANK)[:2]))
    return opaque(strict(f"{function}({text.sql}, {letters.sql})", _STRING, (text, letters)))


def _one_sided(function: str) -> Spoken:
    """``ltrim`` and ``rtrim``; the characters to trim come first, if given."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        return _trimmed(context, node, function, tuple(reversed(operands)))

    return Spoken((1, 2), rule)


def _position(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "substr")
    operands = (context.translate(operand) for operand in (node.args["substr"], node.this))
    part, text = in_order(*(take(context, node, OperandKind.STRING, operand) for operand in operands))
    return opaque(strict(f"CAST(instr({text.sql}, {part.sql}) AS INTEGER)", _INT, (part, text)))


def _replaced(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    parts = in_order(
        *(take(context, node, OperandKind.STRING, value) for value in (*operands, literal("", _STRING))[:3])
    )
    return strict(f"replace({', '.join(part.sql for part in parts)})", _STRING, parts)


def _padded(side: str) -> Spoken:
    """``lpad(s, length[, by])`` and ``rpad``."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        text, by = (take(context, node, OperandKind.STRING, value) for value in (operands[0], (*operands, _BLANK)[2]))
        text, length, by = in_order(text, take(context, node, OperandKind.INT, operands[1]), by)
        return strict(macro(f"spark_{side}pad", text.sql, length.sql, by.sql), _STRING, (text, length, by))

    return Spoken((2, 3), rule)


def _digested(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``sha2(s, bits)``, of 256 bits."""
    if operands[1].constant not in (0, 256):
        raise context.unsupported(node, "sha2() of these bits", "Take 256.")
    text = take(context, node, OperandKind.STRING, operands[0])
    return strict(f"sha256({text.sql})", _STRING, (text, operands[1]))


def _cased(context: Context, node: exp.Expr, name: str, value: Scalar) -> Scalar:
    """``upper`` or ``lower``. In Spark's optimizer ``upper(lower(s))`` becomes ``upper(s)``, which differs for some
    letters."""
    text = take(context, node, OperandKind.STRING, value)
    letters = text if text.letters is None else text.letters
    return replace(strict(macro(name, letters.sql), _STRING, (letters,)), letters=letters)


_LENGTH = Signature((OperandKind.STRING,), "CAST(length({0}) AS INTEGER)", _INT)
_UPPER = Spoken((1, 1), lambda context, node, operands: _cased(context, node, "spark_upper", operands[0]))
_LOWER = Spoken((1, 1), lambda context, node, operands: _cased(context, node, "spark_lower", operands[0]))

STRINGS: Functions = {
    "length": _LENGTH,
    "len": _LENGTH,
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "upper": _UPPER,
    "ucase": _UPPER,
    "lower": _LOWER,
    "lcase": _LOWER,
    "ltrim": _one_sided("ltrim"),
    "rtrim": _one_sided("rtrim"),
    "btrim": Spoken((1, 2), lambda context, node, operands: _trimmed(context, node, "trim", operands)),
    "left": Spoken((2, 2), _left),
    "right": Signature((OperandKind.STRING, OperandKind.INT), "spark_right", _STRING, is_opaque=True),
    "concat": Spoken((1, 1000), concatenated),
    "concat_ws": Spoken((2, 1000), _joined),
    "replace": Spoken((2, 3), _replaced),
    "startswith": Signature((OperandKind.STRING, OperandKind.STRING), "starts_with({0}, {1})", _BOOLEAN),
    "endswith": Signature((OperandKind.STRING, OperandKind.STRING), "suffix({0}, {1})", _BOOLEAN),
    "contains": Signature((OperandKind.STRING, OperandKind.STRING), "contains({0}, {1})", _BOOLEAN),
    "lpad": _padded("l"),
    "rpad": _padded("r"),
    "repeat": Signature((OperandKind.STRING, OperandKind.INT), "repeat({0}, {1})", _STRING),
    "space": Signature((OperandKind.INT,), "repeat(' ', {0})", _STRING),
    "reverse": Signature((OperandKind.STRING,), "spark_reverse", _STRING),
    "translate": Signature(
        (OperandKind.STRING, OperandKind.STRING, OperandKind.STRING), "translate({0}, {1}, {2})", _STRING
    ),
    "split_part": Signature(
        (OperandKind.STRING, OperandKind.STRING, OperandKind.INT), "spark_split_part", _STRING, fails=True
    ),
    "ascii": Signature((OperandKind.STRING,), "CAST(ascii({0}) AS INTEGER)", _INT),
    "octet_length": Signature((OperandKind.STRING,), "CAST(strlen({0}) AS INTEGER)", _INT),
    "md5": Signature((OperandKind.STRING,), "md5({0})", _STRING),
    "sha": Signature((OperandKind.STRING,), "sha1({0})", _STRING),
    "sha1": Signature((OperandKind.STRING,), "sha1({0})", _STRING),
    "sha2": Spoken((2, 2), _digested),
    "instr": Signature((OperandKind.STRING, OperandKind.STRING), "CAST(instr({0}, {1}) AS INTEGER)", _INT),
    "locate": Signature(
        (OperandKind.STRING, OperandKind.STRING), "CAST(instr({1}, {0}) AS INTEGER)", _INT, is_opaque=True
    ),
}

STRING_RULES: dict[type[exp.Expr], Rule] = {
    exp.DPipe: _pipes,
    exp.Substring: _substring_from,
    exp.Trim: _trim_from,
    exp.StrPosition: _position,
}


PLACES_MAX = 15
"""The largest number of places to which a DOUBLE is rounded."""

_CHANGING = re.compile(
    "rand|random|randn|randstr|uniform|uuid|shuffle|now|curdate|localtimestamp|user|session_user|version|"
    "current_.*|monotonically_increasing_id|spark_partition_id|input_file_.*"
)


_MEANING = re.compile(r"[\\^$.|?*+()\[\]{}]")
"""Letters with a meaning in a regular expression, which split() takes."""
_INSTEAD = {
    "split": "Take a part of the text: split_part(s, ',', 2), by the separator itself and not by a regular expression.",
    "element_at": "Take a part of the text: split_part(s, ',', 2), or make the element a column before app.table().",
}
"""What to do instead of a function that is not supported."""


# Choosing


def _coalesced(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    given = to_common(context, node, operands)
    if is_null(given[0].type):
        return null(pa.null())
    values = _needed([value for value, operand in zip(given, operands, strict=True) if not is_null(operand.type)])
    if len(values) == 1:
        return replace(values[0], constant=None, nulls=values[0].null_by)
    return _unless_one_is_there(Scalar(f"coalesce({', '.join(v.sql for v in values)})", values[0].type), values)


def _needed(values: Sequence[Scalar]) -> Sequence[Scalar]:
    """The values up to the first that is never NULL."""
    last = next((place for place, value in enumerate(values) if not value.null_by), len(values))
    return values[: last + 1]


def _if(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    test, value, otherwise = operands
    return choose(context, node, [(as_condition(context, node, test), value)], otherwise)


def _nvl2(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    tested, value, otherwise = operands
    return choose(context, node, [(not_null_test(tested), value)], otherwise)


def _null_if(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    value, other = operands
    return choose(context, node, [(compare(context, node, "=", value, other), null(value.type))], value)


def _extreme(function: str) -> Spoken:
    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        values = to_common(context, node, operands)
        if duck_name(values[0].type) is None:
            raise context.unsupported(node, f"{function}() of {typed_name(values[0])}", ELSEWHERE)
        return _unless_one_is_there(Scalar(f"{function}({', '.join(v.sql for v in values)})", values[0].type), values)

    return Spoken((2, 1000), rule)


def _unless_one_is_there(value: Scalar, operands: Sequence[Scalar]) -> Scalar:
    """A value that is NULL only if all operands are."""
    value = replace(value, fails=any_fails(operands))
    return value if all(operand.null_by for operand in operands) else never_null(value)


# Numbers


def _double(context: Context, node: exp.Expr, value: Scalar) -> Scalar:
    if not (is_integer(value.type) or is_decimal(value.type) or is_floating(value.type) or is_null(value.type)):
        raise context.unsupported(node, f"{typed_name(value)} where a number is wanted", CAST_IT)
    return cast(context, node, value, pa.float64())


def _absolute(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    (value,) = operands
    if not (is_integer(value.type) or is_decimal(value.type) or is_floating(value.type)):
        raise context.unsupported(node, f"abs() of {typed_name(value)}", CAST_IT)
    return strict(f"abs({value.sql})", value.type, (value,), fails=is_integer(value.type))


def _to_whole(function: str) -> Spoken:
    """``floor`` or ``ceil``: of a double or an integer a BIGINT, of a decimal a decimal without places."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        (value,) = operands
        if is_integer(value.type):
            return cast(context, node, value, pa.int64())
        if is_decimal(value.type):
            type = decimal_type(value.type.precision - value.type.scale + 1, 0)
            if type is not None:
                return strict(f"CAST({function}({value.sql}) AS {duck_name(type)})", type, (value,))
        double = _double(context, node, value)
        return strict(macro(f"spark_{function}", double.sql), pa.int64(), (double,), fails=True)

    return Spoken((1, 1), rule)


def _rounded(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``round``, half up."""
    value = operands[0]
    places = operands[1].constant if len(operands) > 1 else 0
    if not isinstance(places, int) or places < 0:
        raise context.unsupported(node, "round() to these places", "Give a constant number of places, 0 or more.")
    if is_integer(value.type):
        return opaque(value)
    if is_decimal(value.type):
        scale = min(places, value.type.scale)
        type = decimal_type(value.type.precision - value.type.scale + 1 + scale, scale)
        if type is not None:
            return opaque(strict(f"CAST({value.sql} AS {duck_name(type)})", type, (value,)))
    if value.type == pa.float64() and 0 < places <= PLACES_MAX:
        return rounded_double(value, places)
    if value.type != pa.float64() or places:
        what = f"round() of {typed_name(value)} to {places} places"
        raise context.unsupported(node, what, "Round when you read the view, or compute with DECIMAL.")
    rounded = f"(round({value.sql}) + CAST(0 AS DOUBLE))"  # -0.4 gives 0.0, not -0.0
    return opaque(strict(rounded, value.type, (value,)))


def _positive_modulo(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    left, right = operands
    if not is_integer(left.type) or not isinstance(right.constant, int) or right.constant <= 0:
        raise context.unsupported(node, "this pmod()", "Take an integer modulo a positive integer constant.")
    left, right = to_common(context, node, (left, right))
    return strict(macro("spark_pmod", left.sql, right.sql), left.type, (left, right))


def _two(combine: Callable[[Context, exp.Expr, Scalar, Scalar], Scalar]) -> Spoken:
    return Spoken((2, 2), lambda context, node, operands: combine(context, node, operands[0], operands[1]))


def _try_divide(context: Context, node: exp.Expr, left: Scalar, right: Scalar) -> Scalar:
    if is_decimal(left.type) or is_decimal(right.type):
        raise context.unsupported(node, "try_divide() of DECIMAL", CAST_IT)
    right, left = in_order(*reversed(as_doubles(context, node, left, right)))
    divided = Scalar(macro("spark_try_divide", left.sql, right.sql), pa.float64(), any_fails((left, right)))
    return intolerant(divided, (left, right))


def _square_root(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    value = _double(context, node, operands[0])
    return strict(f"sqrt({value.sql})", pa.float64(), (value,))


def _signum(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    value = _double(context, node, operands[0])
    return strict(macro("spark_signum", value.sql), pa.float64(), (value,))


def _equal_null(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    return compare(context, node, "IS NOT DISTINCT FROM", *operands)


def _zero(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``nullifzero(x)``."""
    return _null_if(context, node, (operands[0], literal(0, pa.int32())))


def _or_zero(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``zeroifnull(x)``."""
    return _coalesced(context, node, (operands[0], literal(0, pa.int32())))


def _is_nan(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    value = _double(context, node, operands[0])
    return never_null(Scalar(f"coalesce(isnan({value.sql}), FALSE)", pa.bool_(), value.fails))


def _not_a_number(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``nanvl(a, b)``: b where a is NaN."""
    value, other = (_double(context, node, operand) for operand in operands)
    test = Scalar(f"isnan({value.sql})", pa.bool_(), value.fails)
    return choose(context, node, [(test, other)], value)


def _cast_to(type: pa.DataType) -> Spoken:
    """``int(x)`` and its kin."""
    return Spoken((1, 1), lambda context, node, operands: cast(context, node, operands[0], type))


FUNCTIONS: Functions = {
    **STRINGS,
    **PATTERNS,
    **TIMES,
    **FORMATS,
    "if": Spoken((3, 3), _if),
    "coalesce": Spoken((1, 1000), _coalesced),
    "nvl": Spoken((2, 2), _coalesced),
    "ifnull": Spoken((2, 2), _coalesced),
    "nvl2": Spoken((3, 3), _nvl2),
    "nullif": Spoken((2, 2), _null_if),
    "isnull": Spoken((1, 1), lambda context, node, operands: is_null_test(operands[0])),
    "isnotnull": Spoken((1, 1), lambda context, node, operands: not_null_test(operands[0])),
    "greatest": _extreme("greatest"),
    "least": _extreme("least"),
    "abs": Spoken((1, 1), _absolute),
    "floor": _to_whole("floor"),
    "ceil": _to_whole("ceil"),
    "ceiling": _to_whole("ceil"),
    "round": Spoken((1, 2), _rounded),
    "sqrt": Spoken((1, 1), _square_root),
    "div": _two(whole_divide),
    "mod": _two(modulo),
    "pmod": Spoken((2, 2), _positive_modulo),
    "negative": Spoken((1, 1), lambda context, node, operands: negated(context, node, operands[0])),
    "try_divide": _two(_try_divide),
    "sign": Spoken((1, 1), _signum),
    "signum": Spoken((1, 1), _signum),
    "equal_null": Spoken((2, 2), _equal_null),
    "nullifzero": Spoken((1, 1), _zero),
    "zeroifnull": Spoken((1, 1), _or_zero),
    "shiftleft": _two(shifted("shiftleft")),
    "shiftright": _two(shifted("shiftright")),
    "shiftrightunsigned": _two(shifted("shiftrightunsigned")),
    "isnan": Spoken((1, 1), _is_nan),
    "nanvl": Spoken((2, 2), _not_a_number),
    "boolean": _cast_to(pa.bool_()),
    "tinyint": _cast_to(pa.int8()),
    "smallint": _cast_to(pa.int16()),
    "int": _cast_to(pa.int32()),
    "bigint": _cast_to(pa.int64()),
    "double": _cast_to(pa.float64()),
    "string": _cast_to(pa.string()),
    "date": _cast_to(pa.date32()),
}


def _called(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expressions")
    name = node.name.lower()
    function = FUNCTIONS.get(name)
    if function is None or (name in CLOCKS and not node.expressions):
        raise _unknown(context, node)
    return call(context, node, name, function, context.translate_all(node.expressions))


def _unknown(context: Context, node: exp.Expr) -> Exception:
    """The error for a call of a function that is not in :data:`FUNCTIONS`."""
    name = node.name.lower()
    if name in AGGREGATES:
        return context.source.wrong(node, f"{name}() cannot stand here", "Aggregates belong in SELECT and HAVING.")
    if name in CLOCKS or _CHANGING.fullmatch(name):
        what = f"{name}(), which gives another answer each time,"
        return context.unsupported(node, what, "A view must depend on its rows alone: make it a column.")
    return context.unsupported(node, f"the function {name}()", INSTEAD.get(name, _INSTEAD.get(name, ELSEWHERE)))


def _filtered(context: Context, node: exp.Expr) -> Scalar:
    """``f(x) FILTER (WHERE ...)`` of no known aggregate: the error is about the function."""
    if isinstance(node.this, exp.Anonymous):
        raise _unknown(context, node.this)
    raise context.unsupported(node, "FILTER here", "It belongs behind an aggregate in SELECT or HAVING.")


def _element(context: Context, node: exp.Expr) -> Scalar:
    """``split(s, ',')[1]``, or an element of a column: refused, with what to write instead."""
    call, places = node.this, node.expressions
    if not isinstance(call, exp.Anonymous) or call.name.lower() != "split":
        raise context.unsupported(node, "an element of an ARRAY or a MAP", ELSEWHERE)
    separator = call.expressions[1] if len(call.expressions) == 2 else None
    is_plain = isinstance(separator, exp.Literal) and separator.is_string and not _MEANING.search(separator.this)
    instead = f"{_INSTEAD['split']} It gives '' where there is no such part."
    if is_plain and separator is not None and len(places) == 1 and places[0].name.isdigit():
        text, by, part = call.expressions[0].sql("spark"), separator.sql("spark"), int(places[0].name) + 1
        instead = f"Write split_part({text}, {by}, {part}), which gives '' where there is no such part."
    raise context.unsupported(node, "an element of split()", instead)


RULES: dict[type[exp.Expr], Rule] = {
    **OPERATORS,
    **LOGIC,
    **STRING_RULES,
    **TIME_RULES,
    exp.Anonymous: _called,
    exp.Filter: _filtered,
    exp.Bracket: _element,
}
"""The whitelist of constructs."""
