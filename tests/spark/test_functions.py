"""Declaring stateful maps: what is refused, how functions travel, and that the user's page tells the truth."""

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructType
from state_kit import Row, batch_of, plain_rows

from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.stateful import ANY_STATE, AnyState, MapInputs, Readable, in_order, stateful_map_op
from upriver.errors import DeclarationError, KeyTypeError, RowError
from upriver.plan.plan import Per, TableSpec
from upriver.spark.functions import declare_stateful_map, declared_columns, pickled

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "stateful-maps.md"
FLIGHTS = TableSpec(
    "flights",
    pa.schema([("tailnum", pa.string()), ("ts", pa.int64()), ("dest", pa.string()), ("distance", pa.float64())]),
    ("tailnum",),
    ("ts",),
)
COUNT = pa.schema([("n", pa.int64())])


def op_of(**changes: Any) -> Any:
    """A declaration that is fine, but for the changes."""
    fine = {"function": b"", "schema": COUNT, "state": COUNT}
    key = tuple(changes.pop("key", ["tailnum"]))
    inputs = MapInputs(((Readable.of_table(changes.pop("source", FLIGHTS)), key),))
    return stateful_map_op("trips", changes.pop("inputs", inputs), **(fine | changes))


def test_an_op_has_the_key_before_the_declared_columns() -> None:
    op = op_of(key=["dest", "tailnum"], per="batch")
    assert op.output.names == ["dest", "tailnum", "n"]
    assert (op.key, op.per, op.state) == (("dest", "tailnum"), Per.BATCH, COUNT)


def test_whether_a_column_may_be_null_is_not_declared() -> None:
    op = op_of(schema=pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    assert op.output.field("n").nullable


NO: dict[str, tuple[dict[str, Any], str]] = {
    "per": ({"per": "rows"}, r"per='rows'; it is one of 'row', 'key', 'batch'"),
    "undeclared": ({"per": "batch", "state": ANY_STATE}, r"per='batch' needs a state with columns"),
    "no key": ({"key": []}, "its key has no column"),
    "unknown key": ({"key": ["tail"]}, "key: the table 'flights' has no column 'tail'; it has tailnum, ts"),
    "double key": ({"key": ["ts", "ts"]}, "names a column twice: ts, ts"),
    "key again": ({"schema": pa.schema([("TailNum", pa.string())])}, "'TailNum' is the key's.*leave it out"),
    "no output": ({"schema": pa.schema([])}, "its schema has no column"),
    "no state": ({"state": pa.schema([])}, "its state has no column"),
    "same name": ({"state": pa.schema([("n", pa.int8()), ("N", pa.int8())])}, "state: two columns differ at most in"),
    "odd type": ({"state": pa.schema([("n", pa.time64("us"))])}, r"state: column 'n' is time64\[us\].*supported are"),
}


@pytest.mark.parametrize("no", NO)
def test_what_is_declared_wrongly_is_refused(no: str) -> None:
    changes, message = NO[no]
    with pytest.raises(DeclarationError, match=f"stateful map 'trips': .*{message}"):
        op_of(**changes)


def test_a_key_must_have_a_hash() -> None:
    source = replace(FLIGHTS, schema=pa.schema([("tailnum", pa.map_(pa.string(), pa.int8())), ("ts", pa.int64())]))
    with pytest.raises(KeyTypeError, match="tailnum"):
        op_of(source=source)


def test_an_order_is_of_values_that_have_one() -> None:
    source = TableSpec("t", pa.schema([("k", pa.string()), ("m", pa.map_(pa.string(), pa.int64()))]), ("k",), ())
    with pytest.raises(DeclarationError, match=r"^a map: order_by names 'm', and map<.*> has no order; make a column"):
        in_order(source, ["m"], "a map")


def test_a_table_takes_the_order_that_a_map_needs_if_it_has_none() -> None:
    unordered = replace(FLIGHTS, order_by=())
    assert in_order(unordered, ["ts"], "") == FLIGHTS
    assert in_order(FLIGHTS, [], "") == FLIGHTS
    assert in_order(unordered, [], "") == unordered
    finer = replace(FLIGHTS, order_by=("ts", "dest"))
    assert in_order(finer, ["ts"], "") == finer
    with pytest.raises(DeclarationError, match="has one order for all"):
        in_order(FLIGHTS, ["ts", "dest"], "a map")


# Functions -------------------------------------------------------------------------------------------------------


def run(op: Any, rows: list[Row], turns: int = 1) -> list[list[Row]]:
    """What the rows give, ``turns`` times over."""
    operator = StatefulMap(op, [FLIGHTS.schema], op.key)
    return [plain_rows(operator.apply(0, batch_of(FLIGHTS.schema, rows, op.key)).rows) for _ in range(turns)]


INPUTS = MapInputs(((Readable.of_table(FLIGHTS), ("tailnum",)),))


def declared(function: Callable[..., Any], **more: Any) -> Any:
    return declare_stateful_map("trips", INPUTS, function, **({"schema": COUNT, "timezone": "UTC"} | more))


ROW = ("N1", 1, "IAH", 1.0)


def test_a_function_goes_with_what_it_refers_to() -> None:
    step = 10

    def stepping(key: str, row: Any, state: Any) -> Any:
        n = step if state is None else state.n + step
        return [(n,)], {"n": n}

    assert run(declared(stepping, state=COUNT), [ROW, ROW], turns=2) == [
        [("N1", 10), ("N1", 20)],
        [("N1", 30), ("N1", 40)],
    ]


@pytest.mark.parametrize("per", ["row", "key"])
def test_a_state_that_is_not_declared_may_be_any_value(per: str) -> None:
    def gathering(key: str, rows: Any, state: Any) -> Any:
        seen = [*(state or {"seen": []})["seen"], rows[1] if per == "row" else rows.column("ts").to_pylist()]
        given = [(len(seen),)] if per == "row" else pa.record_batch({"n": [len(seen)]})
        return given, None if len(seen) == 2 else {"seen": seen}

    op = declared(gathering, per=per)
    assert op.state == ANY_STATE
    assert run(op, [ROW], turns=3) == [[("N1", 1)], [("N1", 2)], [("N1", 1)]]


@dataclass
class Trip:
    """A class of a user's."""

    number: int


def unending() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: (n for n in [1]), "it holds a builtins.generator"),
        (lambda: {"trips": [Trip(1)]}, "it holds a .*Trip"),
        (lambda: Per.ROW, "it holds a .*Per"),
        (unending, "it holds itself"),
    ],
)
def test_a_state_that_is_not_plain_is_refused_when_it_is_returned(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(RowError, match=why) as raised:
        run(declared(lambda key, row, state: ([], make())), [ROW])
    assert "declare the columns of the state with state=" in str(raised.value)


def test_what_is_no_pair_is_told_without_a_declared_state_too() -> None:
    with pytest.raises(RowError, match=r"7 is not \(rows, state\)"):
        run(declared(lambda key, row, state: 7), [ROW])


def test_a_function_that_cannot_travel_is_refused() -> None:
    generator = (n for n in [1])
    with pytest.raises(DeclarationError, match="stateful map 'trips': its function cannot be sent to the workers"):
        declared(lambda key, row, state: next(generator))
    with pytest.raises(DeclarationError, match="7 is no function"):
        declared(7)  # type: ignore[arg-type]


async def later(key: str, row: Any, state: Any) -> Any:
    return [], state


def one_by_one(key: str, row: Any, state: Any) -> Any:
    yield [], state


class Awaited:
    async def __call__(self, key: str, row: Any, state: Any) -> Any:
        return [], state


@pytest.mark.parametrize(
    ("function", "made"), [(later, "a coroutine"), (one_by_one, "a generator"), (Awaited(), "a coroutine")]
)
def test_a_function_whose_call_would_not_run_it_is_refused(function: Callable[..., Any], made: str) -> None:
    with pytest.raises(DeclarationError, match=f"^stateful map 'trips': its function makes {made}, and its code would"):
        declared(function)


def test_a_wrapped_function_travels() -> None:
    wrapped = pickle.loads(pickled(AnyState(lambda key, rows, state: ([key], state)), "a map"))
    assert wrapped("k", [], None) == (["k"], None)


def test_columns_may_be_schemas() -> None:
    assert declared_columns(COUNT, "", "UTC") is COUNT
    assert declared_columns(StructType().add("n", IntegerType()), "", "UTC") == pa.schema([("n", pa.int32())])


@pytest.mark.spark
def test_columns_may_be_ddl(spark: Any) -> None:
    columns = declared_columns("n INT, at TIMESTAMP, tags ARRAY<STRING>", "a map", "UTC")
    assert columns.names == ["n", "at", "tags"]
    assert columns.types[:2] == [pa.int32(), pa.timestamp("us", "UTC")]
    for wrong in ("n INTEGR", "INT", "n"):
        with pytest.raises(DeclarationError, match=re.escape(f"a map: {wrong!r} is no list of columns")):
            declared_columns(wrong, "a map", "UTC")


# The user's page -------------------------------------------------------------------------------------------------


def test_all_arguments_of_the_page_are_there() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    in_order = ["source", "key", "sources", "func", "schema", "state", "per", "order_by", "keep", "on_bad_row"]
    assert named == [*in_order, "changes", "version"]
