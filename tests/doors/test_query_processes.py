"""The processes that evaluate queries: what ends them, and that the next query has another."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from upriver.doors.cancellation import Cancellation
from upriver.doors.query_processes import IDLE_MAX, ProcessEnded, QueryProcesses
from upriver.doors.query_program import QueryFault, QueryTask
from upriver.doors.shares import QueryCaller

ENDLESS = "SELECT count(*) AS n FROM range(1000000) a(i), range(1000000) b(j) WHERE i + j = 7"


def task(sql: str, **parameters: object) -> QueryTask:
    return QueryTask(sql, parameters, "UTC", (), ("t",))


def test_a_process_answers_one_task_after_the_other_until_one_takes_too_long() -> None:
    processes = QueryProcesses()
    table = {"t": pa.table({"x": [1, 2, 3]})}
    try:
        with processes.process() as first:
            assert first.answer(task("SELECT sum(x)::INT AS n FROM t"), table)["n"].to_pylist() == [6]
            with pytest.raises(QueryFault, match="nothing"):
                first.answer(task("SELECT nothing FROM t"), table)
            assert first.answer(task("SELECT x FROM t WHERE x > $1", **{"1": 2}), table)["x"].to_pylist() == [3]
        with processes.process() as again:
            assert again is first
            with pytest.raises(ProcessEnded) as ended:
                again.answer(task(ENDLESS), table, seconds=0.2)
            assert ended.value.is_late
        with processes.process() as other:
            assert other is not first
            assert other.answer(task("SELECT 7 AS n"), table)["n"].to_pylist() == [7]
    finally:
        processes.close()


DRIVER = f"""
from upriver.doors.query_processes import QueryProcesses
from upriver.doors.query_program import QueryTask
def ask(sql):
    process.answer(QueryTask(sql, {{}}, "UTC", (), ()), {{}})
with QueryProcesses().process() as process:
    ask("SELECT 1 AS n")
    print(process._process.pid, flush=True)
    ask({ENDLESS!r})
"""
"""A program whose second query takes longer than a query may."""
END_S_MAX = 40.0
"""Seconds in which a query must be under way, and in which its process must end after its driver."""
BUSY_TICKS = 30
"""Of a process's time, which only a query takes."""


def ticks(pid: int) -> int:
    """What a process has taken of the processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells what a process has taken")
def test_a_query_ends_with_a_driver_that_is_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert driver.stdout is not None
    pid = int(driver.stdout.readline())
    before, give_up_at = ticks(pid), time.monotonic() + END_S_MAX
    while ticks(pid) < before + BUSY_TICKS:
        assert time.monotonic() < give_up_at
    driver.kill()
    _, said = driver.communicate(timeout=END_S_MAX)  # the query's process has the same standard error
    assert said == ""


def test_few_processes_wait_and_none_outlives_its_driver() -> None:
    processes = QueryProcesses()
    callers = [Cancellation(caller=QueryCaller(str(number))) for number in range(3)]
    with ExitStack() as turns:
        one, two, three = (turns.enter_context(processes.process(caller)) for caller in callers)
        children = [each._process for each in (one, two, three)]
        assert [child.poll() for child in children] == [None] * 3
    assert sum(child.poll() is None for child in children) == IDLE_MAX
    for child in children:
        if child.poll() is None:
            assert child.stdin is not None
            child.stdin.close()  # as the end of the driver does
            assert child.wait(30) == 0
    processes.close()
