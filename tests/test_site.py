"""The site of the documents has every page, and its reference every public name. `make docs` builds it."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import upriver

ROOT = Path(__file__).parents[1]
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
