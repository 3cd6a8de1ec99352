"""The columns that an expression of a plan names: what stands in double quotes, and nothing else does."""

import re
from collections.abc import Mapping

_WORDS = re.compile(r"""'(?:[^']|'')*'|"((?:[^"]|"")+)\"""")


def columns_in(expression: str) -> frozenset[str]:
    """All columns that it names."""
    return frozenset(match[1].replace('""', '"') for match in _WORDS.finditer(expression) if match[1] is not None)


def with_columns(expression: str, names: Mapping[str, str]) -> str:
    """The same expression with other names for its columns; those that are not in ``names`` keep theirs."""

    def renamed(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        column = match[1].replace('""', '"')
        return '"' + names.get(column, column).replace('"', '""') + '"'

    return _WORDS.sub(renamed, expression)
