"""A worker's processes for functions are up, with the functions loaded, before it joins."""

import os
import pickle
from typing import Any

import pyarrow as pa

from upriver.engine.stateful import MapInputs, Readable, stateful_map_op
from upriver.ids import FlowId
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.runtime.flow_functions import FlowFunctions
from upriver.sql.views import MapRelation, mapped_rows, mapped_view

EVENTS = TableSpec("events", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ("k",))
COLUMNS = pa.schema([("n", pa.int64())])


def counting(key: Any, row: Any, state: Any) -> Any:
    return [(row.v,)], (row.v,)


def planned(name: str, function: bytes = pickle.dumps(counting)) -> DataflowPlan:
    inputs = MapInputs(((Readable.of_table(EVENTS), ("k",)),))
    op = stateful_map_op(name, inputs, function, COLUMNS, COLUMNS)
    return mapped_view(name, mapped_rows(op, [MapRelation.of_table(EVENTS)]), {"events": EVENTS})


def no_plain(*_: Any) -> Any:
    raise AssertionError("these views have functions")


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_flow_takes_the_process_of_its_view_and_those_of_others_end_with_the_worker() -> None:
    functions = FlowFunctions(no_plain)
    plans = [planned("first"), planned("second")]
    functions.begin_spares(plans)
    functions.load_spares()
    spare = dict(functions.spares)
    assert spare.keys() == {"first", "second"}
    build = functions.builder(FlowId(1))
    build(plans[0], plans[0].regions[-1])
    assert functions.spares.keys() == {"second"}
    assert functions.process_of(FlowId(1)) == spare["first"]
    functions.close()
    functions.reap()
    assert not any(is_there(pid) for pid in spare.values() if pid is not None)


def test_a_function_that_cannot_be_loaded_keeps_no_worker_from_joining() -> None:
    functions = FlowFunctions(no_plain)
    functions.begin_spares([planned("broken", b"no pickle"), planned("whole")])
    functions.load_spares()
    assert functions.spares.keys() == {"broken", "whole"}
    functions.close()
    functions.reap()
