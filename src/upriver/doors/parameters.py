"""Parameters of queries, ``$1`` or ``?``, from the text to DuckDB."""

import re
from collections.abc import Sequence

from sqlglot import exp

from upriver.doors.queries import QUERY_CHARS_MAX, ViewQuery, parameter_number
from upriver.errors import UnsupportedSql

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
