"""The processes that evaluate queries: what ends them, and that the next query has another."""

import pyarrow as pa
import pytest

from upriver.doors.query_processes import IDLE_MAX, ProcessEnded, QueryProcesses
from upriver.doors.query_program import QueryFault, QueryTask

ENDLESS = "SELECT count(*) AS n FROM range(1000000) a(i), range(1000000) b(j) WHERE i + j = 7"


def task(sql: str, **parameters: object) -> QueryTask:
    return QueryTask(sql, parameters, "UTC", (), ("t",), False)


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


def test_few_processes_wait_and_none_outlives_its_driver() -> None:
    processes = QueryProcesses()
    with processes.process() as one, processes.process() as two, processes.process() as three:
        children = [each._process for each in (one, two, three)]
        assert [child.poll() for child in children] == [None] * 3
    assert sum(child.poll() is None for child in children) == IDLE_MAX
    for child in children:
        if child.poll() is None:
            assert child.stdin is not None
            child.stdin.close()  # as the end of the driver does
            assert child.wait(30) == 0
    processes.close()
