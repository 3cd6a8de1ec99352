"""Runs the demo's reader as the package pyspark-client has it: without py4j and the classic session: EXAMPLE.

At the end prints why ``App`` cannot be had there.
"""

import os
import runpy
import sys
from typing import Any

absent: dict[str, Any] = {"py4j": None, "pyspark.core": None}
sys.modules |= absent
os.environ["SPARK_SKIP_CONNECT_COMPAT_TESTS"] = "1"  # so PySpark knows that its classic half is not there

runpy.run_path(sys.argv[1])
try:
    from upriver import App  # noqa: F401
except ImportError as error:
    print(error)
