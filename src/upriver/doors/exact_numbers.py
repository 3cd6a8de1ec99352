"""Numbers of queries and parameters, with all their digits or refused.

DuckDB rounds where PostgreSQL and Spark do not: a text that is compared with a number, a NUMERIC without digits, which
has three places there, and a number of more than 38 digits, which becomes a double. Here each gets a type that holds
it.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlglot import exp

from upriver.errors import RowError, UnsupportedSql
from upriver.plan.types import DECIMAL_DIGITS_MAX

NUMERIC_NODES_MAX = 10_000
"""Nodes of the values that a query casts to NUMERIC without digits."""
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,100}\s*")
_TIME_OF_DAY = re.compile(r"(\d)[ T](\d{1,2}:\d\d(?::\d\d(?:\.(\d+))?)?)\s*(Z|UTC|[+-]\d\d?(?::?\d\d)*)?\s*", re.ASCII)
_WHOLE_DIGITS: Mapping[str, int] = {
    "TINYINT": 3,
    "UTINYINT": 3,
    "SMALLINT": 5,
    "USMALLINT": 5,
    "INTEGER": 10,
    "INT": 10,
    "UINTEGER": 10,
    "BIGINT": 19,
    "UBIGINT": 20,
    "HUGEINT": 38,
    "UHUGEINT": 38,
}
"""The digits of DuckDB's whole numbers."""
_FLOATS: Mapping[str, str] = {"FLOAT": "!f", "REAL": "!f", "DOUBLE": "!d"}
_PLACES = 18
"""Places of a NUMERIC that is made of a float or of a text, which has so many at most."""
_SAME_TYPE = (exp.Max, exp.Min, exp.Sum, exp.Abs, exp.Round, exp.Ceil, exp.Floor, exp.AnyValue, exp.First, exp.Last)


def decimal_of(text: str) -> Decimal:
    """The number that a text is. Raises ValueError for what no DECIMAL of 38 digits holds exactly."""
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"{text[:50]!r} is no number") from None
    return checked_decimal(number)


def checked_decimal(number: Decimal) -> Decimal:
    """The number, without zeros at its end that have no room. Raises ValueError as :func:`decimal_of` does."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{number}: a DECIMAL of a view has only finite numbers")
    if not any(digits):
        return Decimal((sign, (0,), max(min(exponent, 0), -DECIMAL_DIGITS_MAX)))
    while digits[-1] == 0 and exponent < 0 and sum(decimal_size(number)) > DECIMAL_DIGITS_MAX:
        digits, exponent = digits[:-1], exponent + 1
        number = Decimal((sign, digits, exponent))
    if sum(decimal_size(number)) > DECIMAL_DIGITS_MAX:
        raise ValueError(f"{str(number)[:50]} has more than the {DECIMAL_DIGITS_MAX} digits of a DECIMAL")
    return number


def decimal_size(number: Decimal) -> tuple[int, int]:
    """Digits before the point, and behind it."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    return max(0, len(digits) + exponent), max(0, -exponent)


def alike_decimals(numbers: Sequence[Decimal | None]) -> list[Decimal | None]:
    """The numbers, all with as many places as the one with most: DuckDB gives a list one type, and would round.
    Raises ValueError if they do not have the room."""
    sizes = [decimal_size(number) for number in numbers if number is not None]
    whole, places = max((size[0] for size in sizes), default=0), max((size[1] for size in sizes), default=0)
    if whole + places > DECIMAL_DIGITS_MAX:
        raise ValueError(f"numbers of {whole} digits before the point and {places} behind it do not fit one list")
    return [None if number is None else _with_places(number, places) for number in numbers]


def _with_places(number: Decimal, places: int) -> Decimal:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    return Decimal((sign, (*digits, *(0,) * (exponent + places)), -places))


def value_of_text(type: str, text: str) -> Any:
    """The value of a text that is compared with a column of one of DuckDB's types, or cast to it; the text itself for
    types that read every text alike. Raises ValueError for a text that the type does not hold: DuckDB would round it.
    """
    name = type.upper().split("(")[0]
    if name in _WHOLE_DIGITS:
        if _WHOLE.fullmatch(text) is None:
            raise ValueError(f"{text[:50]!r} is no whole number")
        return int(text)
    if name in ("DECIMAL", "NUMERIC"):
        return decimal_of(text)
    if name in _FLOATS:
        return _float_of(name, text)
    if name in ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"):
        _check_time(name, text)
    return text


def _float_of(name: str, text: str) -> float:
    number = float(text)
    (held,) = struct.unpack(_FLOATS[name], struct.pack(_FLOATS[name], number))  # raises OverflowError
    is_named = not re.search(r"[0-9]", text)
    if not is_named and (number in (float("inf"), -float("inf")) or (held == 0 and Decimal(text.strip()) != 0)):
        raise ValueError(f"{text[:50]!r} is out of the range of {name}")
    return number


def _check_time(name: str, text: str) -> None:
    found = _TIME_OF_DAY.search(text)
    if found is None:
        return
    if name == "DATE" and re.search(r"[1-9]", found[2]):
        raise ValueError(f"{text[:50]!r} is a time, and no date")
    if name == "TIMESTAMP" and found[4]:
        raise ValueError(f"{text[:50]!r} has a time zone, and a TIMESTAMP_NTZ has none")
    if (found[3] or "")[6:].strip("0"):
        raise ValueError(f"{text[:50]!r} is not a whole microsecond")


# Queries


def plain_numbers(tree: exp.Expr) -> None:
    """Write numbers with an exponent without one, as far as a DECIMAL holds them: to PostgreSQL they are NUMERIC."""
    for literal in tree.find_all(exp.Literal):
        if not literal.is_string and "e" in literal.name.lower():
            try:
                literal.set("this", f"{decimal_of(literal.name):f}")
            except ValueError:
                continue  # a double then, as before


def check_numbers(tree: exp.Expr) -> None:
    """Raise UnsupportedSql for a number that DuckDB would take for a double although it has no exponent."""
    for literal in tree.find_all(exp.Literal):
        if not literal.is_string and "e" not in literal.name.lower() and len(literal.name) > DECIMAL_DIGITS_MAX:
            try:
                decimal_of(literal.name)
            except ValueError as error:
                raise UnsupportedSql(f"the query has a number with too many digits: {error}") from None


def with_exact_texts(query: exp.Query, columns: Mapping[str, str]) -> None:
    """Make the texts that are compared with columns values of the columns' types. columns: types by name in lower case.

    Raises RowError for a text that is none, as PostgreSQL and Spark do."""
    known = _known(query, columns)
    for comparison in query.find_all(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between):
        parts = [part.unnest() for part in comparison.iter_expressions()]
        type = next((known[part.name.lower()] for part in parts if _is_known(part, known)), None)
        if type is None:
            continue
        for part in parts:
            literals = part.this.unnest().expressions if isinstance(part, exp.Any) else [part]
            for literal in literals:
                if isinstance(literal, exp.Literal) and literal.is_string:
                    _make_exact(literal, type)


def _make_exact(literal: exp.Expr, type: str) -> None:
    try:
        value = value_of_text(type, literal.name)
    except (ValueError, OverflowError, struct.error) as error:
        raise RowError(f"{literal.name[:50]!r} is no value of type {type}: {error}") from None
    if isinstance(value, Decimal):
        number: exp.Expr = exp.Literal.number(f"{abs(value):f}")
        literal.replace(exp.Neg(this=number) if value < 0 else number)


def _known(query: exp.Expr, columns: Mapping[str, str]) -> Mapping[str, str]:
    """The columns whose names stand for nothing else in the query."""
    others = {alias.alias.lower() for alias in query.find_all(exp.Alias) if alias.this.name != alias.alias}
    for alias in query.find_all(exp.TableAlias):
        others |= {column.name.lower() for column in alias.args.get("columns") or ()}
    return {name: type for name, type in columns.items() if name not in others}


def _is_known(part: exp.Expr, columns: Mapping[str, str]) -> bool:
    return isinstance(part, exp.Column) and part.name.lower() in columns


def with_exact_numerics(query: exp.Query, columns: Mapping[str, str], parameters: Sequence[str | None]) -> None:
    """Give each NUMERIC without digits those of its value. parameters: their types, by number.

    Raises UnsupportedSql where they are not known, RowError for a text that is no number."""
    types = _Types(_known(query, columns), parameters)
    nodes = 0
    for cast in reversed(list(query.find_all(exp.Cast))):
        if cast.to.is_type(exp.DType.DECIMAL) and not cast.to.expressions:
            nodes += sum(1 for _ in cast.this.walk())  # some values are written several times, and what is in them too
            if nodes > NUMERIC_NODES_MAX:
                raise UnsupportedSql("too many values are NUMERIC without digits: give digits, NUMERIC(38, 9)")
            cast.replace(_numeric(cast.this, types.of(cast.this)))


def _numeric(value: exp.Expr, type: str | None) -> exp.Expr:
    name = (type or "").upper().split("(")[0]
    if name in ("DECIMAL", "NUMERIC"):
        return exp.paren(value.copy())
    if name in _WHOLE_DIGITS:
        return exp.cast(value.copy(), exp.DataType.build(f"DECIMAL({_WHOLE_DIGITS[name]}, 0)"))
    if name == "NULL":
        return exp.cast(value.copy(), exp.DataType.build("DECIMAL(1, 0)"))
    text, longest = exp.cast(value.copy(), exp.DataType.build("TEXT")), exp.DataType.build(f"DECIMAL(38, {_PLACES})")
    if isinstance(value.unnest(), exp.Literal):
        return _of_literal(value.unnest().name)
    number = exp.cast(text, longest)
    if name in _FLOATS:
        again = exp.cast(
            exp.cast(number.copy(), exp.DataType.build("TEXT")), exp.DataType.build(name, dialect="duckdb")
        )
        is_same: exp.Expr = exp.EQ(this=again, expression=exp.paren(value.copy()))
    elif name == "VARCHAR":
        digits = exp.Literal.string(rf"\s*[+-]?(\d+(\.\d{{0,{_PLACES}}}0*)?|\.\d{{1,{_PLACES}}}0*)\s*")
        is_same = exp.Anonymous(this="regexp_full_match", expressions=[text.copy(), digits])
    else:
        raise UnsupportedSql(
            f"NUMERIC of {value.sql('postgres')[:100]}, whose digits are not known before: give them, NUMERIC(38, 9)"
        )
    why = exp.Literal.string(f"Conversion Error: a value has more than {_PLACES} places, so it is no NUMERIC without")
    otherwise = exp.Anonymous(this="error", expressions=[why])
    nothing = exp.Is(this=exp.paren(value.copy()), expression=exp.Null())
    return exp.Case(ifs=[exp.If(this=nothing, true=exp.Null()), exp.If(this=is_same, true=number)], default=otherwise)


def _of_literal(text: str) -> exp.Expr:
    try:
        number = decimal_of(text)
    except ValueError as error:
        raise RowError(f"{text[:50]!r} is no value of type NUMERIC: {error}") from None
    whole, places = decimal_size(number)
    type = exp.DataType.build(f"DECIMAL({max(1, whole + places)}, {places})")
    return exp.cast(exp.Literal.string(f"{number:f}"), type)


class _Types:
    """The types of expressions, as far as they are plain. columns: types by name. parameters: by number."""

    def __init__(self, columns: Mapping[str, str], parameters: Sequence[str | None]) -> None:
        self._columns, self._parameters = columns, parameters

    def of(self, value: exp.Expr) -> str | None:
        """DuckDB's name of the type, without digits where they do not matter; ``None`` if it is not known."""
        value = value.unnest()
        if isinstance(value, exp.Subquery):
            items = value.this.selects
            return self.of(items[0]) if len(items) == 1 else None
        if isinstance(value, exp.Neg | exp.Alias | exp.Window | exp.Filter | exp.Distinct):
            return self.of(value.this if value.this is not None else value.expressions[0])
        if isinstance(value, exp.Column):
            return self._columns.get(value.name.lower())
        if isinstance(value, exp.Parameter | exp.Placeholder):
            return self._parameters[int(value.name) - 1] if value.name.isdecimal() else None
        if isinstance(value, exp.Cast):
            name = str(value.to.sql("duckdb"))
            return "VARCHAR" if name == "TEXT" else name
        if isinstance(value, exp.Literal):
            return "VARCHAR" if value.is_string else "DOUBLE" if "e" in value.name.lower() else _of_number(value.name)
        return self._of_call(value)

    def _of_call(self, value: exp.Expr) -> str | None:
        if isinstance(value, exp.Null):
            return "NULL"
        if isinstance(value, exp.Count):
            return "BIGINT"
        if isinstance(value, exp.Avg):
            return "DOUBLE"
        if isinstance(value, _SAME_TYPE):
            type = self.of(value.this)
            return "HUGEINT" if isinstance(value, exp.Sum) and type in _WHOLE_DIGITS else type
        if isinstance(value, exp.Coalesce | exp.Greatest | exp.Least):
            return self._common([value.this, *value.expressions])
        if isinstance(value, exp.Case):
            return self._common(
                [*(part.args["true"] for part in value.args["ifs"]), value.args.get("default") or exp.null()]
            )
        if isinstance(value, exp.Add | exp.Sub | exp.Mul):
            return self._common([value.this, value.expression])
        if isinstance(value, exp.Div | exp.IntDiv):
            type = self._common([value.this, value.expression])
            return type if type in _WHOLE_DIGITS or type is None else "DOUBLE"
        return None

    def _common(self, values: Sequence[exp.Expr]) -> str | None:
        """The type of any of these values; of numbers the widest kind."""
        types = [(self.of(value) or "").upper().split("(")[0] for value in values]
        names = [name for name in types if name != "NULL"]
        if not names:
            return "NULL"
        if len(set(names)) == 1:
            return names[0] or None
        if not all(name in _WHOLE_DIGITS or name in _FLOATS or name == "DECIMAL" for name in names):
            return None
        if any(name in _FLOATS for name in names):
            return "DOUBLE"
        return "DECIMAL" if "DECIMAL" in names else max(names, key=lambda name: _WHOLE_DIGITS[name])


def _of_number(text: str) -> str:
    if "." in text:
        return "DECIMAL"
    return "BIGINT" if len(text) < _WHOLE_DIGITS["BIGINT"] else "HUGEINT"


def with_decimals(query: exp.Query, parameters: Sequence[Any]) -> exp.Query:
    """The query in which decimals are written out in place of their parameters, each with its own digits.

    A list of decimals that is compared with a value becomes ``IN``: DuckDB would round its elements to the value's
    type. parameters: values, by number."""
    decimals = {str(number): value for number, value in enumerate(parameters, start=1) if _has_decimals(value)}
    if not decimals:
        return query
    tree = query.copy()
    for node in list(tree.find_all(exp.Any, exp.All)):
        listed, comparison = node.this.unnest(), node.parent
        is_in = isinstance(node, exp.Any) and isinstance(comparison, exp.EQ)
        is_out = isinstance(node, exp.All) and isinstance(comparison, exp.NEQ)
        if (is_in or is_out) and isinstance(listed, exp.Parameter | exp.Placeholder) and listed.name in decimals:
            assert comparison is not None
            found: exp.Expr = exp.In(this=comparison.this, expressions=list(map(_written, decimals[listed.name])))
            comparison.replace(exp.paren(exp.Not(this=found)) if is_out else found)
    for parameter in list(tree.find_all(exp.Parameter, exp.Placeholder)):
        if parameter.name in decimals:
            parameter.replace(_written(decimals[parameter.name]))
    return tree


def _has_decimals(value: Any) -> bool:
    return isinstance(value, Decimal) or (isinstance(value, list) and any(map(_has_decimals, value)))


def _written(value: Any) -> exp.Expr:
    if isinstance(value, list):
        return exp.Array(expressions=list(map(_written, value)))
    return exp.null() if value is None else _of_literal(str(value))
