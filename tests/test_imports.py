"""The import contracts of .importlinter hold, each of them bites, and every public name opens."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the sources under ``root``/src against the contracts of ``root``."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--no-logo"],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
    )


def run_python(code: str) -> str:
    """What ``code`` prints in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


BREACHES = (
    ("src/upriver/state/bad_{}.py", "from upriver.engine import batch", "Imports point downward"),
    ("src/upriver/engine/bad_{}.py", "from upriver.worker import worker", "Imports point downward"),
    ("src/upriver/engine/bad_{}.py", "from upriver.migration import icadd", "Imports point downward"),
    ("src/upriver/plan/bad_{}.py", "from upriver.engine import batch", "Imports point downward"),
    ("src/upriver/lake/bad_{}.py", "from upriver.net import wire", "Imports point downward"),
    ("src/upriver/net/bad_{}.py", "from upriver.client import client", "Imports point downward"),
    ("src/upriver/partial/bad_{}.py", "from upriver.migration import icadd", "Imports point downward"),
    ("src/upriver/runtime/bad_{}.py", "import simulator.world", "neither the simulator nor the benchmarks"),
    ("simulator/bad_{}.py", "from upriver.spark import session", "The simulator runs without Spark"),
    ("src/upriver/runtime/bad_{}.py", "import pyspark.sql", "Only upriver.spark imports pyspark"),
    (
        "src/upriver/client/bad_{}.py",
        "def f():\n    from pyspark.sql import functions",
        "Only upriver.spark imports pyspark",
    ),
    ("src/upriver/worker/bad_{}.py", "import socket", "do no I/O"),
    ("src/upriver/state/bad_{}.py", "from time import monotonic", "do no I/O"),
    ("src/upriver/plan/bad_{}.py", "from pathlib import Path", "do no I/O"),
    ("src/upriver/worker/bad_{}.py", "import duckdb", "know SQL"),
    ("src/upriver/migration/bad_{}.py", "import random", "do no I/O"),
    ("src/upriver/coordinator/bad_{}.py", "import time", "do no I/O"),
    ("src/upriver/client/bad_{}.py", "from upriver.runtime import leases", "Imports point downward"),
    ("src/upriver/client/bad_{}.py", "def f():\n    from upriver.lake.scan import scan_from_json", "A client is light"),
    ("src/upriver/client/bad_{}.py", "from upriver.net import codec", "A client is light"),
    ("src/upriver/client/bad_{}.py", "import duckdb", "A client is light"),
)
"""Where a module is put, what is in it, and the contract that it breaks."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What is said of the sources with all breaches in them, by contract: one look takes seconds."""
    copied = _copied(tmp_path_factory.mktemp("breaches"))
    for number, (module, line, _) in enumerate(BREACHES):
        (copied / module.format(number)).write_text(line + "\n")
    run = lint_imports(copied)
    assert run.returncode != 0
    _, _, broken = run.stdout.partition("\nBroken contracts\n")
    titled = re.split(r"^(\S.*)\n-+\n", broken, flags=re.MULTILINE)
    return dict(zip(titled[1::2], titled[2::2], strict=True))


def _copied(folder: Path) -> Path:
    """The sources and the contracts once more, to be spoilt."""
    for top in ("src", "simulator", "benchmarks"):
        shutil.copytree(ROOT / top, folder / top, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


def test_the_contracts_hold() -> None:
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("number", range(len(BREACHES)))
def test_a_contract_bites(report: Mapping[str, str], number: int) -> None:
    module, _, broken = BREACHES[number]
    name = module.format(number).removeprefix("src/").removesuffix(".py").replace("/", ".")
    (told,) = (text for title, text in report.items() if broken in title)
    assert re.search(rf"\b{re.escape(name)}\b", told), told


def test_a_new_module_must_have_its_layer(tmp_path: Path) -> None:
    copied = _copied(tmp_path)
    (copied / "src" / "upriver" / "bad.py").touch()
    run = lint_imports(copied)
    assert run.returncode != 0
    assert "bad" in run.stdout


def test_the_package_runs_as_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "upriver", "lookup"], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: upriver lookup")


def test_every_public_name_opens() -> None:
    missing = run_python("import upriver; print([name for name in upriver.__all__ if not hasattr(upriver, name)])")
    assert missing == "[]"
    assert run_python("import upriver; print({'App', 'connect'} <= set(upriver.__all__))") == "True"
