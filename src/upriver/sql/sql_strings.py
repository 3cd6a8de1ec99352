"""String functions. Characters are code points, in Spark and here."""

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Scalar, any_fails
from upriver.sql.sql_casts import cast
from upriver.sql.sql_scalar import Context, Rule, in_order, literal, macro, strict
from upriver.sql.sql_signatures import Functions, Kind, Operands, Signature, Spoken, take

_STRING, _INT, _BOOLEAN = pa.string(), pa.int32(), pa.bool_()
_BLANK = literal(" ", _STRING)
_TO_THE_END = literal(2**31 - 1, pa.int32())


def substring(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``substring(s, position[, length])``; the simple case is DuckDB's own."""
    text = take(context, node, Kind.STRING, operands[0])
    start, length = (take(context, node, Kind.INT, value) for value in (*operands[1:], _TO_THE_END)[:2])
    text, start, length = parts = in_order(text, start, length)
    if isinstance(start.constant, int) and start.constant >= 0 and isinstance(length.constant, int):
        sql = f"substring({text.sql}, {max(start.constant, 1)}, {max(length.constant, 0)})"
        return strict(sql, _STRING, parts)
    return strict(macro("spark_substring", text.sql, start.sql, f"CAST({length.sql} AS BIGINT)"), _STRING, parts)


def _left(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    return substring(context, node, (operands[0], literal(1, pa.int32()), operands[1]))


def concatenated(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``concat`` or ``||``: NULL if any part is. Parts that are no strings are cast, where that is exact."""
    parts = in_order(*(cast(context, node, value, _STRING) for value in operands))
    return strict(f"({' || '.join(part.sql for part in parts)})", _STRING, parts)


def _joined(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    parts = [take(context, node, Kind.STRING, value) for value in operands]
    return Scalar(f"concat_ws({', '.join(part.sql for part in parts)})", _STRING, any_fails(parts))


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
    text, letters = in_order(*(take(context, node, Kind.STRING, value) for value in (*operands, _BLANK)[:2]))
    return strict(f"{function}({text.sql}, {letters.sql})", _STRING, (text, letters))


def _one_sided(function: str) -> Spoken:
    """``ltrim`` and ``rtrim``, whose characters come first when they are given."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        return _trimmed(context, node, function, tuple(reversed(operands)))

    return Spoken((1, 2), rule)


def _position(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "substr")
    operands = (context.translate(operand) for operand in (node.args["substr"], node.this))
    part, text = in_order(*(take(context, node, Kind.STRING, operand) for operand in operands))
    return strict(f"CAST(instr({text.sql}, {part.sql}) AS INTEGER)", _INT, (part, text))


def _replaced(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    parts = in_order(*(take(context, node, Kind.STRING, value) for value in (*operands, literal("", _STRING))[:3]))
    return strict(f"replace({', '.join(part.sql for part in parts)})", _STRING, parts)


def _padded(side: str) -> Spoken:
    """``lpad(s, length[, by])`` and ``rpad``."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        text, by = (take(context, node, Kind.STRING, value) for value in (operands[0], (*operands, _BLANK)[2]))
        text, length, by = in_order(text, take(context, node, Kind.INT, operands[1]), by)
        return strict(macro(f"spark_{side}pad", text.sql, length.sql, by.sql), _STRING, (text, length, by))

    return Spoken((2, 3), rule)


def _digested(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``sha2(s, bits)``, of 256 bits."""
    if operands[1].constant not in (0, 256):
        raise context.unsupported(node, "sha2() of these bits", "Take 256.")
    text = take(context, node, Kind.STRING, operands[0])
    return Scalar(f"sha256({text.sql})", _STRING, text.fails)


def _cased(context: Context, node: exp.Expr, name: str, value: Scalar) -> Scalar:
    """``upper`` or ``lower``. In Spark's optimizer ``upper(lower(s))`` becomes ``upper(s)``, which differs for some
    letters."""
    text = take(context, node, Kind.STRING, value)
    letters = text if text.letters is None else text.letters
    return Scalar(macro(name, letters.sql), _STRING, letters.fails, letters=letters)


_LENGTH = Signature((Kind.STRING,), "CAST(length({0}) AS INTEGER)", _INT)
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
    "right": Signature((Kind.STRING, Kind.INT), "spark_right", _STRING),
    "concat": Spoken((1, 1000), concatenated),
    "concat_ws": Spoken((2, 1000), _joined),
    "replace": Spoken((2, 3), _replaced),
    "startswith": Signature((Kind.STRING, Kind.STRING), "starts_with({0}, {1})", _BOOLEAN),
    "endswith": Signature((Kind.STRING, Kind.STRING), "suffix({0}, {1})", _BOOLEAN),
    "contains": Signature((Kind.STRING, Kind.STRING), "contains({0}, {1})", _BOOLEAN),
    "lpad": _padded("l"),
    "rpad": _padded("r"),
    "repeat": Signature((Kind.STRING, Kind.INT), "repeat({0}, {1})", _STRING),
    "space": Signature((Kind.INT,), "repeat(' ', {0})", _STRING),
    "reverse": Signature((Kind.STRING,), "spark_reverse", _STRING),
    "translate": Signature((Kind.STRING, Kind.STRING, Kind.STRING), "translate({0}, {1}, {2})", _STRING),
    "split_part": Signature((Kind.STRING, Kind.STRING, Kind.INT), "spark_split_part", _STRING, fails=True),
    "ascii": Signature((Kind.STRING,), "CAST(ascii({0}) AS INTEGER)", _INT),
    "octet_length": Signature((Kind.STRING,), "CAST(strlen({0}) AS INTEGER)", _INT),
    "md5": Signature((Kind.STRING,), "md5({0})", _STRING),
    "sha": Signature((Kind.STRING,), "sha1({0})", _STRING),
    "sha1": Signature((Kind.STRING,), "sha1({0})", _STRING),
    "sha2": Spoken((2, 2), _digested),
    "instr": Signature((Kind.STRING, Kind.STRING), "CAST(instr({0}, {1}) AS INTEGER)", _INT),
    "locate": Signature((Kind.STRING, Kind.STRING), "CAST(instr({1}, {0}) AS INTEGER)", _INT),
}

STRING_RULES: dict[type[exp.Expr], Rule] = {
    exp.DPipe: _pipes,
    exp.Substring: _substring_from,
    exp.Trim: _trim_from,
    exp.StrPosition: _position,
}
