"""Every program of examples/, and every example of the README and the guide, runs and prints what it says.

The examples of a page are one program. On a page of the guide it begins with the example of the guide's index, which
runs once for all pages. The test drops the views and tables that a page adds to its app. Files go below the test's
folder instead of /tmp.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents_kit import GUIDE, PREAMBLE, README, ROOT, examples_of, printed_lines

import upriver
from upriver.errors import DeclarationError, IngestFailed, UnknownView

PROGRAMS = [
    path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in ("first_program", "spark_connect")
]
"""The first program is that of the README, and runs there; ``test_connect.py`` runs the one on Spark Connect."""
PAGES = [path for path in sorted(GUIDE.glob("**/*.md")) if path != PREAMBLE and examples_of(path.read_text())]

pytestmark = pytest.mark.spark


def run(code: str, names: dict[str, Any], folder: Path) -> None:
    exec(compile(code.replace('"/tmp/', f'"{folder}/'), "example", "exec"), names)


def check(code: str, names: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a program; it prints what it says, and every app that it makes is stopped at the end."""
    given = list(names.values())
    try:
        run(code, names, folder)
    finally:
        for made in names.values():
            if isinstance(made, upriver.App) and not any(made is one for one in given):
                made.stop()
    said = list(printed_lines(code))
    assert [line for line in capsys.readouterr().out.splitlines() if line in said] == said


@pytest.fixture(scope="module")
def preamble(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names of the guide's first example, whose app runs while the other pages' examples do."""
    names: dict[str, Any] = {"__name__": "__main__"}
    (example,) = examples_of(PREAMBLE.read_text())
    run(example.code, names, tmp_path_factory.mktemp("preamble"))
    yield names
    names["app"].stop()


@pytest.fixture
def app_of_the_environment(preamble: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The address and the token of the guide's app, where a process without Spark finds them."""
    monkeypatch.setenv("UPRIVER_ADDRESS", preamble["app"].address)
    monkeypatch.setenv("UPRIVER_TOKEN", preamble["app"].token)


def run_examples(path: Path, names: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(example.code for example in examples_of(path.read_text()) if example.not_run is None)
    check(code, names, folder, capsys)


@pytest.mark.smoke
@pytest.mark.usefixtures("app_of_the_environment")
def test_the_readme_prints_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples(README, {"__name__": "__main__"}, tmp_path, capsys)


FIRST = examples_of(README.read_text())[0].code


def test_the_quickstart_has_the_readme_s_program() -> None:
    code = examples_of((GUIDE / "quickstart.md").read_text())[0].code
    assert FIRST.startswith(code)


def test_the_first_edits_of_the_first_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def edited(before: str = "", after: str = "") -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "__main__"}
        check(FIRST.replace(before, after) if before else FIRST, names, tmp_path, capsys)
        return names

    for _ in range(2):  # the second run counts no row twice
        edited()
    with pytest.raises(IngestFailed, match=r"has other rows than were loaded .* on another root"):
        edited('("ada", 10)', '("ada", 11)')
    with pytest.raises(IngestFailed, match="on_changed_rows='take_in' to take in what is new"):
        edited('("ada", 7)]', '("ada", 7), ("cid", 1)]')
    with pytest.raises(DeclarationError, match=r"view 'totals': .*amonut.*amount.*customer.* line 1"):
        edited("sum(amount)", "sum(amonut)")
    with pytest.raises(DeclarationError, match=r"view 'totals': .*Syntax error at or near 'BY'.* \(line 1"):
        edited("GROUP BY", "GRUOP BY")
    with pytest.raises(UnknownView, match="no view 'totls'; there are: totals"):
        edited('lookup("totals"', 'lookup("totls"')
    with pytest.raises(DeclarationError, match="key"):
        edited('orders, key="customer"', 'orders, key="costumer"')
    edited()


@pytest.mark.usefixtures("app_of_the_environment")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_the_guide_prints_what_it_says(
    path: Path, preamble: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = preamble["app"]
    before = app.status()
    run_examples(path, dict(preamble), tmp_path, capsys)
    for view in app.status()["views"].keys() - before["views"]:
        app.drop_view(view)
    for table in app.status()["tables"].keys() - before["tables"]:
        app.drop_table(table)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_prints_what_it_says(
    path: Path, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(path.read_text(), {"__name__": "__main__"}, tmp_path, capsys)
