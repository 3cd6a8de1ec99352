"""The README and the guide are short, their links lead somewhere, and what they show is what there is."""

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
from documents_kit import GUIDE, README, ROOT, DocumentExample, examples_of, printed_lines
from links_kit import PageLink, anchors_of, broken_links

import upriver
from upriver.demo import VIEWS
from upriver.errors import UnsupportedSql

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
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
    "docs/guide/queries.md": ["it needs the app around it"] * 5,
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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
    found = {str(page.relative_to(ROOT)): examples_of(page.read_text()) for page in PAGES}
    assert sum(map(len, found.values())) >= 10
    run = {page for page, examples in found.items() if any(example.not_run is None for example in examples)}
    assert run <= {"README.md", *(str(page.relative_to(ROOT)) for page in GUIDE.glob("*.md"))}
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
