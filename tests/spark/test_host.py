"""Why a Spark job has failed, in one line."""

import pytest

from upriver.errors import CorruptFile
from upriver.spark.host import cause_in_text, cause_of_job_failure

UNREACHABLE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 1.0 (TID 4) (10.77.0.2 executor 1): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 3413, in main
    process()
  File "/opt/upriver/shell/remote.py", line 196, in dial
    connected = socket.create_connection((host, told["port"]), timeout)
ConnectionRefusedError: [Errno 111] Connection refused

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/upriver/shell/remote.py", line 200, in dial
    raise lost(f"{connection.address} cannot be reached: {error}") from None
upriver.errors.ClusterError: 127.0.0.1:38213 cannot be reached: [Errno 111] Connection refused

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:842)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$3(DAGScheduler.scala:3122)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/upriver/shell/remote.py", line 200, in dial
ValueError: what Java repeats
\t... 1 more
"""
MISSING = """\
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in \
stage 0.0 (TID 3) (node-7.example executor 0): org.apache.spark.api.python.PythonException: Traceback (most recent \
call last):
  File "/opt/pyspark/serializers.py", line 463, in loads
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'upriver'

\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)
"""
LOST_EXECUTOR = """\
Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: Lost task \
0.3 in stage 3.0 (TID 9) (10.0.0.5 executor 4): ExecutorLostFailure (executor 4 exited caused by one of the running \
tasks) Reason: Remote RPC client disassociated.
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""
NO_PYTHON = """\
Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 \
in stage 0.0 (TID 3) (10.0.0.5 executor 4): java.io.IOException: Cannot run program "python3.14": error=2, No such file
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            UNREACHABLE,
            "ClusterError: 127.0.0.1:38213 cannot be reached: [Errno 111] Connection refused "
            "(on 10.77.0.2, executor 1)",
        ),
        (MISSING, "ModuleNotFoundError: No module named 'upriver' (on node-7.example, executor 0)"),
        (
            LOST_EXECUTOR,
            "ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: Remote RPC client "
            "disassociated. (on 10.0.0.5, executor 4)",
        ),
        (
            NO_PYTHON,
            'java.io.IOException: Cannot run program "python3.14": error=2, No such file (on 10.0.0.5, executor 4)',
        ),
        ("x\n: org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 3 cancelled as part of cancellation of tag "
         "t SQLSTATE: XXKDA\n\tat a", "Job 3 cancelled as part of cancellation of tag t SQLSTATE: XXKDA"),
        ("Traceback (most recent call last):\n  File\nRuntimeError: all that is known\n", "all that is known"),
        ("Traceback (most recent call last):\n  File\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("\n  the connection to the JVM is gone\nmore\n", "the connection to the JVM is gone"),
        ("", "the job has failed"),
    ],
)  # fmt: skip
def test_the_cause_is_one_line_without_stacks(text: str, line: str) -> None:
    assert cause_in_text(text) == line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (AssertionError(), "AssertionError"),
        (KeyError("app.json"), "KeyError: 'app.json'"),
        (CorruptFile("the file is gone"), "the file is gone"),
    ],
)
def test_an_error_that_is_none_of_a_job_is_told_with_its_class(error: Exception, line: str) -> None:
    assert cause_of_job_failure(error) == line
