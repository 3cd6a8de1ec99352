"""What a Spark job has failed of, when a task of it has raised an error of ours."""

import re

from pyspark.errors import PythonException

from upriver.errors import UpriverError
from upriver.shell.wire import error_from_json

_LAST_LINE = re.compile(r"^upriver\.errors\.(\w+): (.*)$", re.MULTILINE)
"""Of a traceback."""


def raised_in_task(error: PythonException) -> UpriverError | PythonException:
    """The task's error as it was raised there, without Spark's stack; if it was none of ours, the error as it is."""
    found = _LAST_LINE.findall(str(error))
    if not found:
        return error
    kind, message = found[-1]  # those before it are what it was raised from
    return error_from_json({"error": kind, "message": message})
