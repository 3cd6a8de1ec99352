"""Documents name commands as they are. For other names, see test_tidy.py."""

import re
import tomllib
from argparse import ArgumentParser
from pathlib import Path, PurePosixPath

import pytest
from documents_kit import command_lines, inline_commands

import benchmarks.__main__
import simulator.__main__
from upriver.cli import parser_of

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def parser_and_arguments(command: list[str]) -> tuple[ArgumentParser, list[str]] | None:
    """What parses a command, and what it parses; nothing for a program of others'."""
    match command:
        case ["upriver", *arguments] | ["python", "-m", "upriver", *arguments]:
            return parser_of(arguments), arguments
        case ["python", "-m", "benchmarks", *arguments]:
            return benchmarks.__main__.make_parser(), arguments
        case ["python", "-m", "simulator", *arguments]:
            return simulator.__main__.make_parser(), arguments
    return None


def is_accepted(command: list[str]) -> bool:
    """Whether the command line is one that its program takes. Of others' programs: whether it names what is there."""
    match command:
        case ["make", *words]:
            variables = [word.partition("=")[0] for word in words if "=" in word]
            targets = [word for word in words if "=" not in word]
            are_there = all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)
            return are_there and all(f"$({variable})" in MAKEFILE for variable in variables)
        case ["pip", "install", package]:
            name, _, extras = package.rstrip("]").partition("[")
            return name == "upriver" and set(filter(None, extras.split(","))) <= EXTRAS
        case ["python", "-m", "pytest", *arguments]:
            return all((ROOT / name).exists() for name in arguments if name.startswith("tests"))
    parsed = parser_and_arguments(command)
    if parsed is None:
        return False
    parser, arguments = parsed
    try:
        parser.parse_args(arguments)
    except SystemExit as ended:
        return ended.code == 0  # --help
    return True


def unknown_options(command: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The options of a command that the help of its program does not name. The command may lack arguments."""
    parsed = parser_and_arguments(command)
    if parsed is None:
        return []
    parser, arguments = parsed
    subcommand = [word for word in arguments[:1] if not word.startswith("-")]
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([*subcommand, "--help"])
    assert ended.value.code == 0, command
    named = re.findall(r"--[\w-]+", capsys.readouterr().out)
    return [word for word in arguments if word.startswith("--") and word not in named]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(PurePosixPath(page.relative_to(ROOT))))
def test_the_programs_take_the_commands_of_a_document(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text()
    assert [command for command in command_lines(text) if not is_accepted(command)] == []
    assert [command for command in inline_commands(text) if unknown_options(command, capsys)] == []
    assert [command for command in inline_commands(text) if command[0] == "make" and not is_accepted(command)] == []


def test_the_programs_take_the_commands_of_the_benchmarks_table() -> None:
    table = [line for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines() if line.startswith("| ")]
    commands = [re.findall(r"`([^`]+)` \|$", line) for line in table]
    given = [command.split() for (command,) in filter(None, commands)]
    found = [words if words[0] == "upriver" else ["python", "-m", "benchmarks", *words] for words in given]
    assert len(found) > 10
    assert [command for command in found if not is_accepted(command)] == []


def test_commands_are_found_and_wrong_ones_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "```\nupriver status --address h:1 --watched  # all\nmake tea\n```\nor `python -m benchmarks reads --keys 1`."
    )
    status, tea = command_lines(text)
    assert (status, tea) == (["upriver", "status", "--address", "h:1", "--watched"], ["make", "tea"])
    assert not any(map(is_accepted, (status, tea, ["pip", "install", "upriver[sparks]"], ["python", "-m", "nothing"])))
    assert not is_accepted(["make", "demo", "TEA=green"])
    assert is_accepted(["upriver", "lookup", "--help"])
    (reads,) = inline_commands(text)
    assert unknown_options(reads, capsys) == ["--keys"]
    assert inline_commands("`upriver COMMAND --help`, `upriver`, `make_date`") == []
