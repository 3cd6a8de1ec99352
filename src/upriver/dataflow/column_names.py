"""The columns that an expression of a plan names: what stands in double quotes, and nothing else does."""

import re
from collections.abc import Callable, Mapping

_WORDS = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")+)\"""")


def columns_in(expression: str) -> frozenset[str]:
    """All columns that it names."""
    return frozenset(match[1].replace('""', '"') for match in _WORDS.finditer(expression) if match[1] is not None)


def with_columns(expression: str, names: Mapping[str, str]) -> str:
    """The same expression with other names for its columns; those that are not in ``names`` keep theirs."""
    return with_texts(expression, lambda column: '"' + names.get(column, column).replace('"', '""') + '"')


def with_texts(expression: str, text_of: Callable[[str], str]) -> str:
    """The expression with a text in place of each column."""
    return _WORDS.sub(lambda match: match[0] if match[1] is None else text_of(match[1].replace('""', '"')), expression)
