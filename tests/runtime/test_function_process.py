"""A process for users' functions: it gives what a call in this process gives, and may be late, or die, alone."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_kit import batch_of
from stateful_kit import map_op, recall_op
from user_function_kit import user_function

from upriver.engine.expressions import Evaluator
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.user_functions import column_function
from upriver.errors import DeclarationError, FunctionFailed, RowError, UpriverError
from upriver.logs import LogSettings
from upriver.plan.plan import FunctionForm, Per, Projection, UserFunction
from upriver.runtime.function_process import FunctionProcess

LONG = pa.int64()
TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def process() -> Iterator[FunctionProcess]:
    process = FunctionProcess()
    yield process
    process.close()
    process.reap()


@pytest.fixture
def hasty() -> Iterator[FunctionProcess]:
    """Its calls may take ``TIMEOUT_S``."""
    process = FunctionProcess(TIMEOUT_S)
    yield process
    process.close()
    process.reap()


VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (LONG, st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=8)),
    (pa.binary(), st.binary(max_size=8)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.decimal128(20, 4), st.decimals(-(10**12), 10**12, places=4)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))),
]


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize("form", list(FunctionForm))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_values_come_and_go_as_in_this_process(
    process: FunctionProcess, form: FunctionForm, data: st.DataObject
) -> None:
    type, values = data.draw(st.sampled_from(VALUES))
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=5)), type)
    function = user_function("same", same, [type], type, form)
    outcomes = [outcome(call, column) for call in (column_function(function), process.column_function(function))]
    assert outcomes[0] == outcomes[1]


def outcome(call: Callable[..., pa.Array], column: pa.Array) -> tuple[Any, ...]:
    """The values, by their bytes: NaN is NaN. Or the error."""
    try:
        made = call(column)
    except UpriverError as error:
        return type(error), str(error)
    return made.type, made.is_null().to_pylist(), [repr(one) for one in made.to_pylist()]


@pytest.mark.parametrize("per", list(Per))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.text(max_size=3), st.floats()), max_size=12)
)
def test_a_stateful_map_gives_and_keeps_the_same(process: FunctionProcess, per: Per, rows: list[Any]) -> None:
    source = pa.schema([("k", LONG), ("s", pa.string()), ("x", pa.float64())])
    op = recall_op(source, ["k"], per)
    here, there = StatefulMap(op, [source], ["k"]), StatefulMap(op, [source], ["k"], make_call=process.map_call)
    for part in (rows[:5], rows[5:]):
        batch = batch_of(source, part, ["k"])
        made = [operator.apply(0, batch).rows for operator in (here, there)]
        assert repr(made[0].to_pylist()) == repr(made[1].to_pylist())
        assert made[0].schema == made[1].schema
        assert here.held == there.held


def picky(key: int, row: Any, state: Any) -> Any:
    if row.v % 5 == 0:
        raise ValueError(f"not {row.v}")
    return [(row.v,)], ((0 if state is None else state.n) + 1,)


@pytest.mark.parametrize("per", [Per.ROW])
def test_bad_rows_are_found_by_further_calls(process: FunctionProcess, per: Per) -> None:
    source, columns = pa.schema([("k", LONG), ("v", LONG)]), pa.schema([("n", LONG)])
    op = map_op(picky, source, ["k"], columns, columns, per)
    batch = batch_of(source, [(v % 3, v) for v in range(20)], ["k"])
    here, there = (
        operator.apply_good([batch])
        for operator in (StatefulMap(op, [source], ["k"]), StatefulMap(op, [source], ["k"], make_call=process.map_call))
    )
    assert here[0].rows == there[0].rows
    assert here[1:] == there[1:]
    assert len(there[2]) == 4


class Fatal(BaseException):
    pass


def raises(kind: type[BaseException], key: int, row: Any, state: Any) -> Any:
    if row.v == 2:
        raise kind
    return [(row.v,)], None


@pytest.mark.parametrize("kind", [Fatal, KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_whatever_a_map_raises_is_of_its_row(process: FunctionProcess, kind: type[BaseException]) -> None:
    source, columns = pa.schema([("k", LONG), ("v", LONG)]), pa.schema([("n", LONG)])
    op = map_op(partial(raises, kind), source, ["k"], columns, columns, Per.ROW)
    batch = batch_of(source, [(1, v) for v in range(4)], ["k"])
    operator = StatefulMap(op, [source], ["k"], make_call=process.map_call)
    pid = process.pid
    good, bad, told = operator.apply_good([batch])
    assert (good.rows["n"].to_pylist(), bad["v"].to_pylist()) == ([0, 1, 3], [2])
    assert f"raised {kind.__name__} (line" in told[0]
    assert process.pid == pid


def test_an_interrupt_from_outside_is_not_of_the_function(process: FunctionProcess) -> None:
    def interrupted(value: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return value

    call = process.column_function(user_function("f", interrupted, [LONG], LONG))
    assert call(pa.array([1])).to_pylist() == [1]


def test_an_interrupt_is_raised_where_it_may_be_of_the_process() -> None:
    def interrupted(value: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        column_function(user_function("f", interrupted, [LONG], LONG))(pa.array([1]))


def fails(value: Any) -> Any:
    return 1 // value


def test_an_error_is_told_with_its_line_as_in_this_process(process: FunctionProcess) -> None:
    function = user_function("fails", fails, [LONG], LONG)
    told = [outcome(call, pa.array([0])) for call in (column_function(function), process.column_function(function))]
    assert told[0] == told[1]
    assert told[0][0] is RowError
    assert f"line {fails.__code__.co_firstlineno + 1} of {__file__}" in told[1][1]


def test_a_large_batch_passes(process: FunctionProcess) -> None:
    texts = pa.array(["é" * 40] * 200_000)
    call = process.column_function(user_function("f", same, [pa.string()], pa.string(), FunctionForm.ARROW))
    assert call(texts) == texts


def test_dates_and_numbers_keep_their_value(process: FunctionProcess) -> None:
    for type, value in ((pa.date32(), date(1, 1, 1)), (pa.decimal128(38, 0), Decimal(10**37))):
        call = process.column_function(user_function("f", same, [type], type))
        assert call(pa.array([value, None], type)).to_pylist() == [value, None]


def test_what_a_function_prints_does_not_come_between(
    capfd: pytest.CaptureFixture[str], hasty: FunctionProcess
) -> None:
    def says(value: int) -> int:
        print("out", value)
        print("err", sys.stdin.read(), file=sys.stderr)
        os.write(1, b"raw\n")
        return value

    call = hasty.column_function(user_function("says", says, [LONG], LONG))
    assert call(pa.array([7])).to_pylist() == [7]
    said = capfd.readouterr()
    assert ("out 7" in said.out, "raw" in said.out, "err" in said.err) == (True, True, True)


def test_it_imports_what_this_process_can_import(process: FunctionProcess, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def add(value): return value + 1\n")
    sys.path.append(str(tmp_path))
    fresh = FunctionProcess()
    try:
        import only_here  # type: ignore[import-not-found]

        assert fresh.column_function(user_function("add", only_here.add, [LONG], LONG))(pa.array([1])).to_pylist() == [
            2
        ]
    finally:
        sys.path.remove(str(tmp_path))
        fresh.close()
        fresh.reap()


def test_it_logs_as_it_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def logs(value: int) -> int:
        import logging

        logging.getLogger("upriver.mine").info("told of %s", value)
        return value

    process = FunctionProcess(logs=LogSettings("json", "INFO"))
    process.column_function(user_function("logs", logs, [LONG], LONG))(pa.array([3]))
    process.close()
    process.reap()
    assert '"message": "told of 3"' in capfd.readouterr().err


def test_a_function_that_cannot_be_loaded_is_named(process: FunctionProcess) -> None:
    broken = UserFunction("f", (LONG,), LONG, FunctionForm.ROW, b"nothing")
    call = process.column_function(broken)
    with pytest.raises(DeclarationError, match=r"the function f\(\) cannot be loaded"):
        call(pa.array([1]))
    evaluator = Evaluator(process)
    evaluator.define([broken])
    with pytest.raises(DeclarationError, match=r"the function f\(\) cannot be loaded"):
        evaluator.project(pa.record_batch({"v": pa.array([1])}), projection(broken))


def projection(function: UserFunction) -> Projection:
    return Projection((f'{function.sql_name}("v")',), pa.schema([("w", LONG)]))


def endless(value: int) -> int:
    while True:
        pass


def deadly(value: int) -> int:
    os._exit(3)


def crashing(value: int) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return value


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (endless, r"a call of the function f\(\) did not return within function_timeout=2 s"),
        (deadly, r"the process of the function f\(\) ended itself with the exit status 3"),
        (crashing, r"the process of the function f\(\) was ended by SIGSEGV"),
    ],
)
def test_a_call_that_does_not_return_fails_once_and_for_all_and_other_functions_go_on(
    hasty: FunctionProcess, function: Any, said: str
) -> None:
    declared, other = (user_function("f", function, [LONG], LONG), user_function("g", same, [LONG], LONG))
    evaluator = Evaluator(hasty)
    evaluator.define([declared, other])
    rows = pa.record_batch({"v": pa.array([1, 2, 3])})
    assert evaluator.project(rows, projection(other)).column(0).to_pylist() == [1, 2, 3]
    first = hasty.pid
    with pytest.raises(FunctionFailed, match=said):
        evaluator.project(rows, projection(declared))
    began = time.monotonic()
    with pytest.raises(FunctionFailed, match=said):
        evaluator.project(rows, projection(declared))
    assert time.monotonic() - began < TIMEOUT_S
    assert evaluator.project(rows, projection(other)).column(0).to_pylist() == [1, 2, 3]
    assert hasty.pid != first


def test_many_slow_calls_are_not_one_that_does_not_return(hasty: FunctionProcess) -> None:
    def slow(value: int) -> int:
        threading.Event().wait(TIMEOUT_S / 4)
        return value

    call = hasty.column_function(user_function("slow", slow, [LONG], LONG))
    assert call(pa.array(range(8))).to_pylist() == [*range(8)]


def test_other_work_is_done_while_a_function_is_called() -> None:
    done: list[float] = []

    def work() -> bool:
        done.append(time.monotonic())
        return False

    def nap(value: int) -> int:
        threading.Event().wait(0.3)
        return value

    process = FunctionProcess(TIMEOUT_S, work)
    process.column_function(user_function("nap", nap, [LONG], LONG))(pa.array([1]))
    process.close()
    process.reap()
    assert len(done) >= 10


def test_an_error_of_the_other_work_leaves_no_answer_for_the_next_call() -> None:
    errors = [ZeroDivisionError()]

    def work() -> bool:
        if errors:
            raise errors.pop()
        return False

    process = FunctionProcess(TIMEOUT_S, work)
    call = process.column_function(user_function("same", same, [LONG], LONG))
    with pytest.raises(ZeroDivisionError):
        call(pa.array([1]))
    assert call(pa.array([2])).to_pylist() == [2]
    process.close()
    process.reap()


def test_a_closed_process_calls_nothing(hasty: FunctionProcess) -> None:
    call = hasty.column_function(user_function("same", same, [LONG], LONG))
    call(pa.array([1]))
    hasty.close()
    for _ in range(2):
        with pytest.raises(FunctionFailed, match="its view or its worker ends"):
            call(pa.array([1]))


def test_the_process_ends_with_the_worker_even_in_a_call() -> None:
    program = (
        "import sys, threading, pyarrow as pa; sys.path.insert(0, sys.argv[1])\n"
        "from user_function_kit import user_function\n"
        "from upriver.runtime.function_process import FunctionProcess\n"
        "process = FunctionProcess()\n"
        "function = user_function('nap', lambda v: threading.Event().wait(100), [pa.int64()], pa.int64())\n"
        "call = process.column_function(function)\n"
        "print(process.pid, flush=True)\n"
        "call(pa.array([1]))\n"
    )
    kit = str(Path(__file__).parents[1] / "support")
    with subprocess.Popen([sys.executable, "-c", program, kit], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        threading.Event().wait(1.0)
        worker.kill()
    ends_at = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < ends_at
        threading.Event().wait(0.05)
