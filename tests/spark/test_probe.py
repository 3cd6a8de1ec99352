"""What a first task finds on an executor, and what is said about it."""

import subprocess
import sys
from typing import Any

import pytest
from pyspark import cloudpickle

from upriver.spark.host import cause_in_text
from upriver.spark.probe import PACKAGES, fault_of, look, packages_for, why_no_task_runs

DRIVER = {"host": "driver", "python": "/opt/driver/python", "versions": dict.fromkeys(PACKAGES, "1.2"), "missing": {}}
OTHER_PYTHON = """Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.5 executor 4): PythonException: Traceback (most recent call last):
  File "worker.py"
pyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.11 than that in \
driver: 3.13, PySpark cannot run with different minor versions.
"""  # noqa: E501
NO_DAEMON = """Lost task 0.0 in stage 0.0 (TID 0) (node executor 1): org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'upriver.spark.daemon' (ModuleNotFoundError: No \
module named 'upriver')
PYTHONPATH was:
  /opt
"""


def executor(versions: dict[str, str] | None = None, **missing: str) -> dict[str, Any]:
    found = {**DRIVER["versions"], **(versions or {})}  # type: ignore[dict-item]
    return {"host": "node", "python": "/usr/bin/python3", "versions": found, "missing": missing}


def test_an_executor_like_the_driver_has_no_fault() -> None:
    assert fault_of(DRIVER, executor()) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_versions_that_differ_are_named_with_both_sides(package: str) -> None:
    fault = fault_of(DRIVER, executor({package: "1.3"}))
    assert fault is not None
    assert fault.startswith(f"the executor on node (/usr/bin/python3) has {package} 1.3, and the driver 1.2. Install")
    assert "\n" not in fault


def test_a_version_that_is_not_known_is_no_difference() -> None:
    assert fault_of(DRIVER, executor({"upriver": ""})) is None


def test_what_is_missing_is_named_with_what_to_do() -> None:
    gone = "ModuleNotFoundError: No module named 'upriver'"
    fault = fault_of(DRIVER, executor(upriver=gone, pyarrow="ImportError: libstdc++.so.6: version not found"))
    assert fault is not None
    assert "node (/usr/bin/python3): lacks upriver; pyarrow cannot be imported (ImportError: libstdc++.so.6" in fault
    assert all(
        way in fault for way in ("spark.pyspark.python", "spark.archives", "--py-files", "docs/guide/clusters.md")
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OTHER_PYTHON, "executors run Python 3.11, and the driver 3.13. Install"),
        (NO_DAEMON, "executors lack the package upriver (/usr/bin/python3: Error while finding module specification"),
        ("Cannot run program", "no Python task runs on the executors: Cannot run program"),
    ],
)
def test_a_task_that_cannot_run_at_all_says_why(text: str, said: str) -> None:
    assert why_no_task_runs(text, cause_in_text(text)).startswith(said)


def test_this_process_has_all_that_a_worker_needs() -> None:
    ((found),) = look(PACKAGES, ())
    assert found["missing"] == {}
    assert found["versions"].keys() == set(PACKAGES)


def test_a_root_in_an_object_store_needs_its_package_on_every_executor() -> None:
    assert packages_for("/data/lake") == PACKAGES
    needed = packages_for("s3://bucket/lake")
    assert set(needed) - set(PACKAGES) == {"obstore"}
    ((found,)) = look(needed, ())
    assert found["missing"] == {}
    fault = fault_of(DRIVER, executor(obstore="ModuleNotFoundError: No module named 'obstore'"))
    assert fault is not None
    assert "node (/usr/bin/python3): lacks obstore. Install" in fault
    assert "'upriver[object-stores]'" in fault


def test_the_task_runs_where_upriver_cannot_be_imported() -> None:
    """By the pickle that Spark would send."""
    pickled = cloudpickle.dumps((look, ("upriver", "json")))  # type: ignore[no-untyped-call]
    code = (
        "import sys; sys.modules['upriver'] = None\n"
        "from pyspark import cloudpickle\n"
        "task, packages = cloudpickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "(found,) = task(packages, ())\n"
        "print(sorted(found['missing']), sorted(found['versions']))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, pickled.hex()], capture_output=True, text=True, check=True)
    assert run.stdout == "['upriver'] ['json']\n"
