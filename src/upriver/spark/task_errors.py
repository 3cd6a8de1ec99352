"""Why a Spark job has failed: an error of ours as it was raised in a task, or one line for a person."""

import re

from pyspark.errors import PythonException

from upriver.errors import UpriverError
from upriver.net.wire import error_from_json

_LAST_LINE = re.compile(r"^upriver\.errors\.(\w+): (.*)$", re.MULTILINE)
"""Of a traceback."""
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:\w+\.)*(\w+)(?:: (.*))?")
"""The line of a traceback that names the error."""
_LOST_TASK = re.compile(r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \((\S+) executor (\S+)\): (.*)")
_PYTHON_FAILED = re.compile(r"Error from python worker:\s*(\S.*)")
_STAGE_FAILED = re.compile(r"Job aborted due to stage failure: (.*)")
_PLAIN_KINDS = ("Exception", "RuntimeError")
"""Classes of errors that say nothing which the message does not."""
_CANCELLED = re.compile(r"Job \d+ cancelled.*")


def raised_in_task(error: PythonException) -> UpriverError | PythonException:
    """The task's error as it was raised there, without Spark's stack; if it was none of ours, the error as it is."""
    found = _LAST_LINE.findall(str(error))
    if not found:
        return error
    kind, message = found[-1]  # those before it are what it was raised from
    return error_from_json({"error": kind, "message": message})


def cause_of_job_failure(error: BaseException) -> str:
    """Why the job has failed, in one line, without stacks: the error that its task raised, and on which host.

    ``error``: what the job's action raised in the driver.
    """
    return cause_in_text(str(error))


def cause_in_text(text: str) -> str:
    """The same of an error's text, as Spark gives it."""
    lost = _LOST_TASK.search(text)
    where = f" (on {lost[1]}, executor {lost[2]})" if lost else ""
    raised = _raised_in(text)
    if raised is not None:
        return f"{raised}{where}"
    if found := _PYTHON_FAILED.search(text):
        return f"{found[1].strip()}{where}"
    if lost:
        return f"{lost[3].strip()}{where}"
    for pattern in (_CANCELLED, _STAGE_FAILED):
        if found := pattern.search(text):
            return found[found.lastindex or 0].strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "the job has failed")


def _raised_in(text: str) -> str | None:
    """The last line of the first Python traceback, or of the last of those that are chained to it; ``None`` without."""
    _, found, rest = text.partition(_TRACEBACK)
    if not found:
        return None
    raised: str | None = None
    in_traceback = True
    for line in rest.splitlines():
        if line.lstrip().startswith(("at ", "Caused by:", "Driver stacktrace")):
            break  # Java's stack, which repeats all of it
        if line.endswith(_TRACEBACK):
            in_traceback = True
        elif in_traceback and line and not line[0].isspace():
            raised, in_traceback = _without_module(line.strip()), False
    return raised


def _without_module(line: str) -> str:
    """``upriver.errors.ClusterError: text`` as ``ClusterError: text``; of a class that says nothing, the text alone."""
    named = _RAISED.fullmatch(line)
    if named is None:
        return line
    kind, message = named[1], named[2]
    if not message:
        return kind
    return message if kind in _PLAIN_KINDS else f"{kind}: {message}"
