"""Documents name commands as they are (for other names, see test_tidy.py), are short, and show what there is; their
links lead somewhere. The site that `make docs` builds has every page, and its reference every public name. The tables
of rules in docs/internals and the switches in the code tell of the same rules.
"""

import re
import tomllib
from argparse import ArgumentParser
from ast import literal_eval
from collections import Counter
from dataclasses import fields
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from documents_kit import (
    GUIDE,
    README,
    ROOT,
    DocumentExample,
    command_lines,
    examples_of,
    inline_commands,
    printed_lines,
)
from links_kit import PageLink, anchors_of, broken_links

import benchmarks.__main__
import simulator.__main__
import upriver
from upriver.cli import parser_of
from upriver.demo import VIEWS
from upriver.errors import UnsupportedSql
from upriver.migration.rules import MendedRules, RedistributeRules
from upriver.partial.rules import UpqueryRules
from upriver.protocol.rules import Rules

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
            return name in ("upriver", ".") and set(filter(None, extras.split(","))) <= EXTRAS
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


LINKED_PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WORDS_MAX = 900
NOT_RUN: dict[str, list[str]] = {
    "docs/guide/lookups.md": ["it waits for changes without end"],
    "docs/guide/reading.md": ["it needs a server of Spark Connect; tests/spark/test_connect.py starts one"],
    "docs/guide/changes.md": [
        "the log must be there",
        "it ends when it is stopped",
        "the log must be there",
        "it needs Delta",
        "it needs a Kafka broker",
    ],
    "docs/guide/http.md": ["it needs the app around it"],
    "docs/guide/quickstart.md": ["it is the README's, which runs", "it needs files with tokens"],
    "docs/guide/queries.md": ["it needs the app around it"] * 6,
    "docs/guide/security.md": ["it needs the app around it"],
    "docs/guide/sources.md": [
        "it runs only with a broker",
        "it runs only with Delta",
        "it runs only with Delta",
        "it runs only with Iceberg",
        "it runs only with those files",
        "it runs only with a broker",
    ],
}
"""By page, the reasons of the examples that no test runs."""


@pytest.mark.parametrize("page", LINKED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    assert broken_links(page, site=ROOT / "docs") == []


def test_links_that_lead_nowhere_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "outside.md").write_text("# Outside")
    site = tmp_path / "site"
    site.mkdir()
    (site / "there.md").write_text(
        "# A `heading`: with [a link](x.md)\n\n# Twice\n\n# Twice\n\n```\n# a comment\n```\n"
    )
    assert anchors_of((site / "there.md").read_text()) == {"a-heading-with-a-link", "twice"}
    page = site / "page.md"
    right = (
        "[a](there.md) ![b](there.md#twice) [c](https://example.org/d) [e](there.md#a-heading-with-a-link) [f](#top)"
    )
    page.write_text(f"# Top\n\n{right}\n\n```\n[g](nothing.md)\n```\n")
    assert broken_links(page, site) == []
    page.write_text(
        f"# Top\n\n{right}\n[h](nothing.md) [i](there.md#a-comment) [j](../outside.md) [k](#nothing) [l](.)\n"
    )
    assert broken_links(page, site) == [
        PageLink("nothing.md", ""),
        PageLink("there.md", "a-comment"),
        PageLink("../outside.md", ""),
        PageLink("", "nothing"),
        PageLink(".", ""),
    ]
    assert broken_links(page, site=tmp_path / "elsewhere") == [
        PageLink("nothing.md", ""),
        PageLink("there.md", "a-comment"),
        PageLink("", "nothing"),
    ]


def test_examples_of_documents_are_run_unless_a_reason_is_known() -> None:
    """Those of the README and the guide run in tests/spark; no other page has any."""
    found = {str(page.relative_to(ROOT)): examples_of(page.read_text()) for page in LINKED_PAGES}
    assert sum(map(len, found.values())) >= 10
    run = {page for page, examples in found.items() if any(example.not_run is None for example in examples)}
    assert run <= {"README.md", *(str(page.relative_to(ROOT)) for page in GUIDE.glob("**/*.md"))}
    reasons = {page: [example.not_run for example in examples if example.not_run] for page, examples in found.items()}
    assert {page: told for page, told in reasons.items() if told} == NOT_RUN


def test_an_example_and_what_it_says_that_it_prints_are_found() -> None:
    text = "```python\nprint(1)\n# 1\n# 2\nx = 3\n# no\n```\n<!-- not run: needs Kafka -->\n```python\nx\n```\n"
    assert examples_of(text) == [
        DocumentExample("print(1)\n# 1\n# 2\nx = 3\n# no\n", None),
        DocumentExample("x\n", "needs Kafka"),
    ]
    assert list(printed_lines(examples_of(text)[0].code)) == ["1", "2"]


def test_the_first_program_is_among_the_programs() -> None:
    first = examples_of(README.read_text())[0].code
    assert (ROOT / "examples" / "first_program.py").read_text().endswith(f'"""\n\n{first}')


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= WORDS_MAX


@pytest.mark.spark
def test_what_it_shows_refused_is_refused_with_these_words(spark: Any, tmp_path: Path) -> None:
    text = (GUIDE / "sources.md").read_text()
    (shown,) = re.findall(r"^```\nUnsupportedSql: (.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    app = upriver.App(spark, root=str(tmp_path / "lake"))
    app.table("orders", spark.createDataFrame([], "id INT, kind STRING"), key="id")
    with pytest.raises(UnsupportedSql) as refused:
        app.view("v", shown.splitlines()[1], key="kind")
    assert str(refused.value) == shown


def test_the_demo_that_it_shows_has_its_views() -> None:
    text = README.read_text()
    shown = re.findall(r"^app.lookup\(('\w+'), (.*)\)$", text, re.MULTILINE)
    assert shown
    for name, keys in shown:
        assert str(list(VIEWS[literal_eval(name)].shown)) == keys
    for name in VIEWS:
        assert re.search(rf"^view {name}: [\d,]+ rows, equal to Spark's, row by row$", text, re.MULTILINE)


DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
SHOWN = [
    target
    for page in sorted((DOCS / "reference").glob("*.md"))
    for target in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


def home(name: str) -> tuple[str, str]:
    """The module and the full name of something that ``upriver`` exports."""
    exported: Any = getattr(upriver, name)
    return exported.__module__, f"{exported.__module__}.{exported.__qualname__}"


def test_every_page_is_in_the_navigation_once() -> None:
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))
    assert sorted(re.findall(r"[\w./-]+\.md", NAVIGATION)) == pages


@pytest.mark.parametrize("name", upriver.__all__)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    assert set(home(name)) & set(SHOWN)
    assert f"`upriver.{name}`" in (DOCS / "reference" / "index.md").read_text()


@pytest.mark.parametrize("target", SHOWN)
def test_what_the_reference_shows_is_documented(target: str) -> None:
    module, _, name = target.rpartition(".")
    shown = import_module(target) if target == "upriver.errors" else getattr(import_module(module), name)
    members = [shown, *(member for label, member in vars(shown).items() if not label.startswith("_"))]
    ours = [member for member in members if getattr(member, "__module__", "").startswith("upriver")]
    assert ours
    assert [member for member in [shown, *ours] if not member.__doc__] == []


INTERNALS = ROOT / "docs" / "internals"
WITHOUT_SWITCH = {
    "checkpoints.manifest_removed_first",
    "coordinator.bounded_epochs_ahead",
    "replication.epoch_waits_for_followers",
    "replication.published_epochs_first",
    "worker.bounded_loads_out",
}
"""Rules of these areas that are bounds, or are kept by more code than one condition."""


def switches() -> set[str]:
    """The rules that have one, by name."""
    sets = (Rules, UpqueryRules, MendedRules, RedistributeRules)
    names = [field.name for rules in sets for field in fields(rules) if field.name != "upqueries"]
    return {name.replace("_", ".", 1) for name in names}


def documented() -> Counter[str]:
    """The rules that stand first in a row of a table, by name."""
    rows = "\n".join(path.read_text() for path in sorted(INTERNALS.glob("*.md")))
    return Counter(re.findall(r"^\| `(\w+\.\w+)` \|", rows, flags=re.MULTILINE))


def test_every_switch_is_a_rule_of_the_documents() -> None:
    assert sorted(switches() - documented().keys()) == []


def test_every_rule_of_the_documents_has_its_switch_or_is_known_to_have_none() -> None:
    areas = {name.partition(".")[0] for name in switches()}
    told = {name for name in documented() if name.partition(".")[0] in areas}
    assert sorted(told - switches()) == sorted(WITHOUT_SWITCH)
