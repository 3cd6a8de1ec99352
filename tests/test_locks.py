"""The lock files pin what pyproject.toml allows: hashes for each package, no registry's name, the oldest versions."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = sorted(ROOT.glob("requirements*.lock"))
PINNED = re.compile(r"^([a-z0-9_.-]+)==([^ ;]+)", re.MULTILINE)
FLOOR = re.compile(r"([a-z0-9_.-]+)>=([0-9.]+)")


def test_there_is_a_lock_for_each_set_of_versions() -> None:
    names = [lock.name for lock in LOCKS]
    assert names == [f"requirements{of}.lock" for of in ("-docs", "-spark-4.0", "-spark-4.1", "-spark-4.2", "")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_each_pin_has_hashes_and_no_registry_is_named(lock: Path) -> None:
    text = lock.read_text()
    blocks = re.split(r"^(?=[a-z0-9_.-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(PINNED.findall(text)) > 15
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text


def test_the_oldest_versions_that_are_allowed_are_those_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    floors = dict(FLOOR.findall(" ".join(allowed)))
    pinned = dict(PINNED.findall((ROOT / "requirements-spark-4.0.lock").read_text()))
    del floors["pandas"]  # its lowest versions need a numpy that is older than is allowed
    assert {name: pinned[name] for name in floors} == {name: _in_full(version) for name, version in floors.items()}


def _in_full(version: str) -> str:
    return ".".join([*version.split("."), "0", "0"][:3])
