"""Parameters of queries, ``$1``, ``?`` or ``:name``, from the text to DuckDB."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from upriver.doors.queries import QUERY_CHARS_MAX, ViewQuery, parameter_number, parsed
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.plan.types import is_instant

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between, exp.Like)
PARAMETERS_MAX = 1_000
"""Parameters of one statement."""
PARAMETER = "upriver_parameter"
"""The function that stands for a parameter until the query is parsed: sqlglot takes two parameters for a text in
dollars."""
QUERY_PARTS = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*+(?:'|\Z) | '(?:[^']|'')*+(?:'|\Z) | "(?:[^"]|"")*+(?:"|\Z)
    | (?P<comment>--[^\n]*+ | /\*(?:[^*]|\*(?!/))*+(?:\*/|\Z))
    | (?<![\w$])\$(?P<tag>[A-Za-z_]\w*+|)\$(?:[^$]|\$(?!(?P=tag)\$))*+(?:\$(?P=tag)\$|\Z)
    | (?<![\w$])\$(?P<number>\d{1,5})(?!\w) | (?P<mark>\?) | ;
    | (?P<label>(?:(?<!\w)AS\s+|(?<=\w)\.)SELECT(?!\w))
    | (?P<cast>::\s*|(?<!\w)AS\s+)(?:pg_catalog\.)?(?P<type>reg\w+|oid)\[\]""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""Texts, names, comments, parameters and semicolons; and what sqlglot does not take: SELECT as a column's name, and
arrays of the catalog's references. What has no end goes up to the end of the text."""


def part_as_parsed(match: re.Match[str]) -> str:
    """A part of a query, but for parameters and semicolons, as sqlglot takes it."""
    if match["comment"] is not None:
        return " "
    if match["label"] is not None:
        return f'{match[0][:-6]}"{match[0][-6:].lower()}"'
    if match["type"] is None:
        return match[0]
    return f"{match['cast']}{'uinteger' if match['type'].lower() == 'oid' else 'text'}[]"


def with_calls(text: str) -> str:
    """The query with a call of ``PARAMETER`` for each ``$1``, and for each ``?``, which are numbered from 1 on; without
    comments. Raises UnsupportedSql if it has both."""
    if len(text) > QUERY_CHARS_MAX:
        raise UnsupportedSql(f"a query of {len(text):,} characters: at most {QUERY_CHARS_MAX:,} are taken")
    parts: list[str] = []
    place = marks = numbers = 0
    for match in QUERY_PARTS.finditer(text):
        parts.append(text[place : match.start()])
        place = match.end()
        marks += match["mark"] is not None
        numbers += match["number"] is not None
        if match["mark"] or match["number"]:
            parts.append(f" {PARAMETER}({marks if match['mark'] else match['number']}) ")
        else:
            parts.append(part_as_parsed(match))
    if marks and numbers:
        raise UnsupportedSql("the query has parameters as ? and as $1: use one of both")
    return "".join(parts) + text[place:]


def with_parameters(tree: exp.Expr) -> exp.Expr:
    """The query with its parameters, for which calls stand."""
    for call in list(tree.find_all(exp.Anonymous)):
        if call.name == PARAMETER and len(call.expressions) == 1:
            call.replace(exp.Parameter(this=call.expressions[0]))
    return tree


def parameter_count(query: ViewQuery) -> int:
    """The highest number of a parameter. Raises UnsupportedSql for one without a number, or beyond the limit."""
    numbers = {parameter_number(node) for node in query.tree.find_all(exp.Parameter, exp.Placeholder)}
    if None in numbers:
        raise UnsupportedSql("parameters are $1, $2, ...")
    known = [number for number in numbers if number is not None]
    if 0 in known or max(known, default=0) > PARAMETERS_MAX:
        raise UnsupportedSql(f"a statement has at most {PARAMETERS_MAX:,} parameters, from $1 on")
    return max(known, default=0)


def with_casts(tree: exp.Query, types: Sequence[str | None]) -> exp.Query:
    """The query with each parameter cast to its type. types: as DuckDB names them, from ``$1`` on; ``None`` leaves a
    parameter as it is."""
    for node in list(tree.find_all(exp.Parameter, exp.Placeholder)):
        number = parameter_number(node)
        type = None if number is None else types[number - 1]
        if type is not None:
            node.replace(exp.Cast(this=node.copy(), to=exp.DataType.build(type, dialect="duckdb")))
    return tree


def with_values(text: str, values: pa.RecordBatch) -> exp.Expr:
    """A query in Spark's SQL with a constant in place of each parameter, as ``spark.sql(text, args)`` has it.

    values: one row, a column for each ``?`` in their order, or for each ``:name``. A list stands for its elements in
    ``k IN (?)``, and for an array elsewhere. Raises UnsupportedSql for a malformed query, DeclarationError for
    parameters without a value, and values without a parameter.
    """
    text, marks = _with_names(text)
    if marks and values.num_columns != len(marks):
        raise DeclarationError(f"the query has {len(marks)} parameters as ?, and {values.num_columns} values are given")
    if marks:
        if values.schema.names != [str(place) for place in range(1, len(marks) + 1)]:
            raise DeclarationError("the query has parameters as ?: give their values as a list")
        values = values.rename_columns(marks)
    tree = parsed(text, "spark")
    found = [node for node in tree.find_all(exp.Placeholder) if node.name]
    names = {node.name for node in found}
    if marks and names - set(marks):
        raise UnsupportedSql("the query has parameters as ? and as :name: use one of both")
    if missing := [name for name in sorted(names) if name not in values.schema.names]:
        raise DeclarationError(f"no value is given for the parameter :{missing[0]}")
    if spare := [name for name in values.schema.names if name not in names]:
        raise DeclarationError(f"a value is given for {spare[0]!r}, and the query has no such parameter")
    for node in found:
        column, above = values.column(node.name), node.parent
        if kinds.is_list(column.type) and isinstance(above, exp.In) and above.expressions == [node]:
            elements = column.flatten() if column[0].is_valid else pa.nulls(1)
            above.set("expressions", _constants(elements))
            if not len(elements):
                above.replace(exp.false())
        elif kinds.is_list(column.type) and isinstance(above, _COMPARISONS):
            raise DeclarationError("a list is compared with a value: write k IN (?), or k IN (:name)")
        else:
            node.replace(_constants(column)[0])
    return tree


def _with_names(text: str) -> tuple[str, list[str]]:
    """The query with a name for each ``?``, and the names."""
    if len(text) > QUERY_CHARS_MAX:
        raise UnsupportedSql(f"a query of {len(text):,} characters: at most {QUERY_CHARS_MAX:,} are taken")
    try:
        tokens = sqlglot.tokenize(text, read="spark")
    except SqlglotError:
        return text, []  # the parser says more
    places = [token.start for token in tokens if token.token_type == TokenType.PLACEHOLDER]
    names = [f"{PARAMETER}_{number}" for number in range(1, len(places) + 1)]
    parts = [text[before:place] for before, place in zip([0, *(place + 1 for place in places)], places, strict=False)]
    marked = "".join(f"{part} :{name} " for part, name in zip(parts, names, strict=True))
    return marked + text[places[-1] + 1 if places else 0 :], names


def _constants(column: pa.Array) -> list[exp.Expr]:
    """The values of a parameter. Raises DeclarationError for a type that no constant has."""
    type = column.type
    if kinds.is_list(type) or kinds.is_large_list(type):
        return [exp.Array(expressions=_constants(each.values)) if each.is_valid else exp.null() for each in column]
    duck = _duck_type(type)
    if duck is None:
        raise DeclarationError(
            f"a parameter of type {type}: give a number, a text, bytes, a date, a datetime, a bool, None, or a "
            "list of these"
        )
    return [exp.null() if not each.is_valid else _constant(each.as_py(), duck) for each in column]


def _duck_type(type: pa.DataType) -> str | None:
    """DuckDB's name of a constant's type; empty if the constant shows it."""
    if kinds.is_decimal(type):
        return f"DECIMAL({type.precision}, {type.scale})" if type.precision <= 38 else None
    if kinds.is_timestamp(type):
        return "TIMESTAMPTZ" if is_instant(type) else "TIMESTAMP"
    if kinds.is_floating(type):
        return "FLOAT" if type.bit_width == 32 else "DOUBLE"
    if kinds.is_date(type):
        return "DATE"
    if kinds.is_binary(type) or kinds.is_large_binary(type):
        return "BLOB"
    shows = kinds.is_integer(type) or kinds.is_boolean(type) or kinds.is_null(type)
    return "" if shows or kinds.is_string(type) or kinds.is_large_string(type) else None


def _constant(value: Any, duck: str) -> exp.Expr:
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, int):
        number = exp.Literal.number(abs(value))
        return exp.Neg(this=number) if value < 0 else number
    if isinstance(value, bytes):
        value = "".join(f"\\x{byte:02X}" for byte in value)
    constant = exp.Literal.string(str(value))
    return exp.Cast(this=constant, to=exp.DataType.build(duck, dialect="duckdb")) if duck else constant
