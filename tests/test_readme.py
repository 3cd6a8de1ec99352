"""What the README says is so: its first program runs, its refusal is refused so, what it points to is there."""

import re
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

import upriver
from upriver.demo_views import VIEWS
from upriver.errors import UnsupportedSql

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
GUIDE = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "guide").glob("*.md"))}
PROGRAMS = [
    program for text in (README, *GUIDE.values()) for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_its_programs_are_python() -> None:
    assert len(PROGRAMS) >= 8
    for program in PROGRAMS:
        compile(program, "README.md", "exec")


def test_it_is_short() -> None:
    assert len(README.split()) <= 900


@pytest.mark.smoke
@pytest.mark.spark
def test_its_first_program_prints_what_it_says(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAMS[0].replace("/tmp/orders-lake", str(tmp_path / "lake"))
    *lines, stop = program.strip().splitlines()
    assert stop == "app.stop()"
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    app = names["app"]
    try:
        printed = capsys.readouterr().out
        assert printed.splitlines()[0] == re.findall(r"^# (.*)$", program, re.MULTILINE)[0]
        assert "view totals, looked up by (customer)" in printed
        with upriver.connect(app.address, app.token) as client:
            assert client.lookup("totals", ["ada"]).to_pylist() == [{"customer": "ada", "n": 2, "total": 17}]
    finally:
        app.stop()


@pytest.mark.spark
def test_what_it_shows_refused_is_refused_with_these_words(spark: Any, tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```\nUnsupportedSql: (.*?)\n```$", GUIDE["sources"], re.DOTALL | re.MULTILINE)
    app = upriver.App(spark, root=str(tmp_path / "lake"))
    app.table("orders", spark.createDataFrame([], "id INT, kind STRING"), key="id")
    with pytest.raises(UnsupportedSql) as refused:
        app.view("v", shown.splitlines()[1], key="kind")
    assert str(refused.value) == shown


def test_the_demo_that_it_shows_has_its_views() -> None:
    shown = re.findall(r"^app.lookup\(('\w+'), (.*)\)  # ", README, re.MULTILINE)
    assert shown
    for name, keys in shown:
        assert str(list(VIEWS[literal_eval(name)].shown)) == keys
        assert re.search(rf"^view {literal_eval(name)}\n-+\n[\d,]+ rows: equal to Spark's", README, re.MULTILINE)
