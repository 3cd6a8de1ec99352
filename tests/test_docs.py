"""Documents name modules and files as they are."""

import re
from importlib import import_module
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
FILES = [
    path.relative_to(ROOT).as_posix()
    for top in ("src", "simulator", "benchmarks", "examples", "tests", "docs", "scripts")
    for path in ROOT.glob(f"{top}/**/*.*")
]
FILE = re.compile(r"`([\w./-]*\w\.(?:py|md))`")
MODULE = re.compile(r"`(upriver(?:\.\w+)+)(?:\(.*?\))?`")


def is_there(name: str) -> bool:
    """Whether a file of the project is called so, by its path or by the end of it."""
    return any(f"/{path}".endswith(f"/{name}") for path in FILES)


def is_known(name: str) -> bool:
    """Whether Python finds the module, or what is in it, by this name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(PurePosixPath(page.relative_to(ROOT))))
def test_what_a_document_names_is_there(page: Path) -> None:
    text = page.read_text()
    assert [name for name in FILE.findall(text) if not is_there(name)] == []
    assert [name for name in MODULE.findall(text) if not is_known(name)] == []


def test_names_that_are_not_there_are_noticed() -> None:
    assert is_there("operators/compacted.py")
    assert not is_there("operators/lasted.py")
    assert is_known("upriver.plan.plan.DataflowPlan")
    assert not is_known("upriver.plan.plan.ViewPlan")
    assert not is_known("upriver.nothing")
