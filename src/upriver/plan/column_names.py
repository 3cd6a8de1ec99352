"""The columns that an expression of a plan names: exactly the words in double quotes."""

import re
from collections.abc import Callable, Mapping

from upriver.plan.plan import Projection

_WORDS = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")+)\"""")


_LAZY = re.compile(r"\b(?:CASE|coalesce)\b")
"""Constructs that may not evaluate all of their parts."""
_CALLS_OF_CASE = (
    re.compile(r"spark_(?:upper|lower)\((.*)\)", re.DOTALL),
    re.compile(r"list_transform\(\[\{'v0': (.*)\}\], lambda v: spark_(?:upper|lower)\(v\.v0\)\)\[1\]", re.DOTALL),
)
_PLAIN = re.compile(r'"(?:[^"]|"")+"')


def plain_column(expression: str) -> str | None:
    """The column, if the expression is nothing but its name."""
    return expression[1:-1].replace('""', '"') if _PLAIN.fullmatch(expression) else None


def plain_columns(projection: Projection) -> dict[str, str]:
    """For each output column whose expression is just a quoted column name: that column."""
    pairs = zip(projection.schema.names, map(plain_column, projection.expressions), strict=True)
    return {output: column for output, column in pairs if column is not None}


def quoted(column: str) -> str:
    """The expression that is just this column. In plans, only columns are in double quotes."""
    return '"' + column.replace('"', '""') + '"'


def columns_in(expression: str) -> frozenset[str]:
    """All columns that it names."""
    return frozenset(match[1].replace('""', '"') for match in _WORDS.finditer(expression) if match[1] is not None)


def with_columns(expression: str, names: Mapping[str, str]) -> str:
    """The same expression with other names for its columns; columns that are not in ``names`` keep theirs."""
    return with_texts(expression, lambda column: quoted(names.get(column, column)))


def with_texts(expression: str, text_of: Callable[[str], str]) -> str:
    """The expression with a text in place of each column."""
    return _WORDS.sub(lambda match: match[0] if match[1] is None else text_of(match[1].replace('""', '"')), expression)


def operand_of_case(expression: str) -> str | None:
    """The argument of upper() or lower(), if the expression is nothing but such a call."""
    for form in _CALLS_OF_CASE:
        call = form.fullmatch(expression)
        if call is not None and _is_closed(call[1]):
            return call[1]
    return None


def _is_closed(text: str) -> bool:
    """Whether its parentheses are balanced."""
    depth = 0
    for match in re.finditer(r"""'(?:[^']|'')*'|"(?:[^"]|"")+"|[][(){}]""", text):
        depth += (match[0] in "([{") - (match[0] in ")]}")
        if depth < 0:
            return False
    return depth == 0


def inlined(expression: str, texts: Mapping[str, str], chars_max: int) -> str | None:
    """The expression with the texts of these columns in their place; ``None`` if it gets longer than ``chars_max``.

    A macro repeats its operands, so macros within another macro would grow exponentially. They are computed once, and
    passed as part of a list of one element; but not into a CASE, which may skip them.
    """
    plain = plain_column(expression)
    if plain is not None:
        text = texts.get(plain, expression)
        return text if len(text) <= chars_max else None
    named = {name: texts[name] for name in columns_in(expression) if name in texts}
    for name, text in list(named.items()):
        operand = operand_of_case(text)
        if operand is not None:  # as in Spark's optimizer: upper(lower(s)) is upper(s)
            named[f"{name}\0"] = operand
            for function in ("spark_upper", "spark_lower"):
                call = f"{function}({quoted(name)})"
                expression = expression.replace(call, f"{function}({quoted(name + chr(0))})")
    named = {name: named[name] for name in columns_in(expression) if name in named}
    computed = [name for name, text in named.items() if plain_column(text) is None]
    nested = "spark_" in expression and any("spark_" in named[name] for name in computed)
    if nested and not _LAZY.search(expression):
        given = ", ".join(f"'c{number}': {named[name]}" for number, name in enumerate(computed))
        places = {name: f"c.c{number}" for number, name in enumerate(computed)}
        body = with_texts(expression, lambda name: places.get(name, named.get(name, quoted(name))))
        text = f"list_transform([{{{given}}}], lambda c: {body})[1]"
    else:
        text = with_texts(expression, lambda name: _operand(named.get(name, quoted(name))))
    return text if len(text) <= chars_max else None


def _operand(text: str) -> str:
    return text if plain_column(text) is not None else f"({text})"


NAME_CHARS_MAX = 60
"""Characters of a column name that is made from an expression."""


def unique(wanted: str, taken: set[str]) -> str:
    """The name, or a similar one if it is ``taken`` (lower case); it is added to ``taken``."""
    name, number = wanted, 0
    while name.lower() in taken:
        number += 1
        name = f"{wanted}_{number}"
    taken.add(name.lower())
    return name
