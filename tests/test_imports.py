"""The import contracts of .importlinter hold, each of them bites, and the public door opens without Spark."""

import os
import shutil
import subprocess
import sys
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
        env=os.environ | {"PYTHONPATH": str(root / "src")},
    )


def run_python(code: str) -> str:
    """What ``code`` prints in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The sources and the contracts once more, to be spoilt."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_the_contracts_hold() -> None:
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("state/bad.py", "from upriver.dataflow import batch", "Imports point downward"),
        ("dataflow/bad.py", "from upriver.machines import worker", "Imports point downward"),
        ("sim/bad.py", "from upriver.spark import session", "Imports point downward"),
        ("shell/bad.py", "import pyspark.sql", "Only upriver.spark imports pyspark"),
        ("bench/bad.py", "def f():\n    from pyspark.sql import functions", "Only upriver.spark imports pyspark"),
        ("machines/bad.py", "import socket", "do no I/O"),
        ("state/bad.py", "from time import monotonic", "do no I/O"),
        ("dataflow/bad.py", "from pathlib import Path", "do no I/O"),
        ("machines/bad.py", "import duckdb", "Only the dataflow knows SQL"),
        ("migration/bad.py", "import random", "do no I/O"),
        ("membership/bad.py", "import time", "do no I/O"),
        ("membership/bad.py", "from upriver.upquery import rules", "Imports point downward"),
        ("dataflow/bad.py", "from upriver.migration import icadd", "Imports point downward"),
        ("shell/bad.py", "from upriver.migration import published", "Only the simulator knows the published rules"),
        ("bad.py", "", "bad"),
    ],
)
def test_a_contract_bites(copied: Path, module: str, line: str, broken: str) -> None:
    (copied / "src" / "upriver" / module).write_text(line + "\n")
    run = lint_imports(copied)
    assert run.returncode != 0
    assert "bad" in run.stdout
    assert any(broken in text and "KEPT" not in text for text in run.stdout.splitlines())


def test_importing_upriver_loads_no_spark() -> None:
    loaded = run_python("import sys, upriver; upriver.connect; print([m for m in sys.modules if 'spark' in m])")
    assert loaded == "[]"


def test_the_client_loads_no_spark() -> None:
    loaded = run_python("import sys, upriver.client; print([m for m in sys.modules if 'spark' in m])")
    assert loaded == "[]"


def test_the_package_runs_as_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "upriver", "lookup"], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: upriver lookup")


def test_every_public_name_opens() -> None:
    missing = run_python("import upriver; print([name for name in upriver.__all__ if not hasattr(upriver, name)])")
    assert missing == "[]"
    assert run_python("import upriver; print({'App', 'connect'} <= set(upriver.__all__))") == "True"
