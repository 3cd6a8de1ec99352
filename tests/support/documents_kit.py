"""The examples in a document's text, and what they say that they print."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guide"
PREAMBLE = GUIDE / "index.md"
"""Its example comes before those of any other page of the guide."""
_EXAMPLE = re.compile(r"(?:<!-- not run: (?P<reason>.*?) -->\n+)?```python\n(?P<code>.*?)```", re.DOTALL)
_FENCED = re.compile(r"^```(?:sh|bash)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_PROGRAMS = ("make", "pip", "python", "upriver")


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


def command_lines(text: str) -> list[list[str]]:
    """The words of each line of a text's blocks that a terminal takes, from the program's name on."""
    lines = [line for block in _FENCED.findall(text) for line in block.splitlines()]
    return [words for line in lines if (words := _command(line, comments=True))]


def inline_commands(text: str) -> list[list[str]]:
    """The words of each command in a text's lines. One with a word in capitals stands for several, and is left out."""
    commands = [_command(code, comments=False) for code in _CODE.findall(text)]
    return [words for words in commands if len(words) > 1 and not any(map(str.isupper, words))]


def _command(line: str, *, comments: bool) -> list[str]:
    """The words of a command, with the path to its program left out; none if it is of another program."""
    try:
        program, *words = shlex.split(line, comments=comments)
    except ValueError:  # an open quotation mark, or nothing
        return []
    name = program.rpartition("/")[2]
    return [name, *words] if name in _PROGRAMS else []
