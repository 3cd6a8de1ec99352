"""The examples in a document's text, and what they say that they print."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide"
PREAMBLE = GUIDE / "index.md"
"""Its example comes before those of any other page of the guide."""
_EXAMPLE = re.compile(r"(?:<!-- not run: (?P<reason>.*?) -->\n+)?```python\n(?P<code>.*?)```", re.DOTALL)


class DocumentExample(NamedTuple):
    """code: Python. not_run: the reason why no test runs it, if there is one."""

    code: str
    not_run: str | None


def examples_of(text: str) -> list[DocumentExample]:
    """The blocks of Python in a text, in order; one below ``<!-- not run: REASON -->`` is not run."""
    return [DocumentExample(found["code"], found["reason"]) for found in _EXAMPLE.finditer(text)]


def printed_lines(code: str) -> Iterator[str]:
    """The lines that a program says that it prints: the comments below a call of ``print``."""
    is_below = False
    for line in code.splitlines():
        if is_below and line.startswith("# "):
            yield line.removeprefix("# ")
        else:
            is_below = line.startswith("print(")
