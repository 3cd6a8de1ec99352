"""A task on each executor before any worker starts there: it finds missing packages and different versions.

The task must run where ``upriver`` cannot be imported. So its function is pickled by value, and imports itself what it
needs.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from upriver.errors import ClusterError
from upriver.lake.address import object_address
from upriver.spark.host import cause_of_job_failure

PACKAGES = ("upriver", "pyarrow", "duckdb", "numpy", "sqlglot", "msgspec", "xxhash", "pyspark")
"""Packages that a worker imports, and that need the driver's version."""
OBJECT_STORES = ("obstore",)
"""Packages that a worker imports beside them, if the root is in an object store."""
PROBED_MAX = 32
"""Executors that are probed. A start on more of them must not wait for Python to start on all."""
_ADVICE = (
    "Install the driver's requirements ('upriver[object-stores]' for a root in an object store) on the nodes and set "
    "spark.pyspark.python, or ship an environment with "
    "spark.archives, or the wheel with --py-files (docs/guide/clusters.md)"
)
_NOT_FOUND = re.compile(r"No module named '([\w.]+)'")
_OTHER_PYTHON = re.compile(r"different version: (?:Python )?([\d.]+\d) than that in driver:? ?(?:Python )?([\d.]+\d)")

Found = Mapping[str, Any]
"""``host``, ``python``: the interpreter, ``versions``: of each package that can be imported, or ``""`` if unknown,
``missing``: why others cannot be imported."""


def look(packages: Iterable[str], _: Iterable[int]) -> list[dict[str, Any]]:
    """The facts about this process. Runs on an executor, where only Python itself is certain to exist."""
    import importlib
    import importlib.metadata
    import socket
    import sys

    versions, missing = {}, {}
    for package in packages:
        try:
            module = importlib.import_module(package)
        except Exception as error:
            missing[package] = f"{type(error).__name__}: {error}"
            continue
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # a zip with only its files
            versions[package] = str(getattr(module, "__version__", ""))
    return [{"host": socket.gethostname(), "python": sys.executable, "versions": versions, "missing": missing}]


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def packages_for(root: str) -> tuple[str, ...]:
    """The packages that a worker on this root imports."""
    return PACKAGES if object_address(root) is None else (*PACKAGES, *OBJECT_STORES)


def check_executors(spark: SparkSession, packages: Sequence[str]) -> None:
    """Run the task on each registered executor. Spark deals tasks out to them in turn, so each executor with a free
    slot gets one.

    Raises ClusterError if workers could not run as the driver does, with advice.
    """
    context = spark.sparkContext
    executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one of them
    tasks = min(max(executors, 1), PROBED_MAX)
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(partial(look, packages)).collect()
    except Exception as error:
        raise ClusterError(why_no_task_runs(str(error), cause_of_job_failure(error))) from None
    (driver,) = look(packages, ())
    for executor in found:
        if (fault := fault_of(driver, executor)) is not None:
            raise ClusterError(fault)


def fault_of(driver: Found, executor: Found) -> str | None:
    """Why workers cannot run on an executor like this one, with advice; ``None`` if they can."""
    where = f"the executor on {executor['host']} ({executor['python']})"
    if missing := executor["missing"]:
        absent = [package for package, why in missing.items() if f"No module named '{package}'" in why]
        broken = [f"{package} cannot be imported ({why})" for package, why in missing.items() if package not in absent]
        lacks = [f"lacks {', '.join(absent)}"] if absent else []
        return f"{where}: {'; '.join([*lacks, *broken])}. {_ADVICE}."
    differ = [
        f"{package} {theirs}, and the driver {ours}"
        for package, ours in driver["versions"].items()
        if ours and (theirs := executor["versions"].get(package)) and theirs != ours
    ]
    return f"{where} has {'; '.join(differ)}. {_ADVICE}." if differ else None


def why_no_task_runs(text: str, cause: str) -> str:
    """The message if the task itself has failed. text: of the job's error. cause: in one line."""
    if found := _OTHER_PYTHON.search(text):
        return f"executors run Python {found[1]}, and the driver {found[2]}. {_ADVICE}."
    if found := _NOT_FOUND.search(text):
        return f"executors lack the package {found[1].partition('.')[0]} ({cause}). {_ADVICE}."
    return f"no Python task runs on the executors: {cause}"
