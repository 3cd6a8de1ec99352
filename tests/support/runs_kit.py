"""Runs by lot, of columns of any types, and runs as they were before they had blocks."""

from typing import Any

import pyarrow as pa
from hashing_kit import KEY_VALUES
from hypothesis import strategies as st

from upriver.state.runs import (
    RunInfo,
    checksum_of,
    describe_run,
    encode_rows,
    run_schema,
)

PATH = "tables/flights/tailnum/000000000003-x-00000.arrow"
TEXTS = st.none() | st.text(max_size=5)
INTEGERS = st.none() | st.integers(-9, 9)
NESTED_VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.list_(pa.int64()), st.lists(INTEGERS, max_size=3)),
    (pa.struct([("a", pa.string()), ("b", pa.int64())]), st.fixed_dictionaries({"a": TEXTS, "b": INTEGERS})),
    (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=3), INTEGERS), max_size=3)),
    (
        pa.list_(pa.struct([("c", pa.list_(pa.string()))])),
        st.lists(st.fixed_dictionaries({"c": st.none() | st.lists(TEXTS, max_size=2)}), max_size=2),
    ),
]
# One hash may have many rows, and one vnode nearly all of them.
HASHES = st.lists(st.sampled_from([0, 7, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1), max_size=30)


def run_table(hashes: list[int], columns: dict[str, pa.Array]) -> pa.Table:
    schema = run_schema(pa.schema([(name, array.type) for name, array in columns.items()]))
    return pa.Table.from_arrays([pa.array(sorted(hashes), pa.uint64()), *columns.values()], schema=schema)


@st.composite
def run_tables(draw: st.DrawFn) -> pa.Table:
    """Columns of any types, nulls among them; any number of rows."""
    hashes = draw(HASHES)
    columns: dict[str, pa.Array] = {}
    for type, values in draw(st.lists(st.sampled_from(KEY_VALUES + NESTED_VALUES), max_size=6)):
        drawn = draw(st.lists(st.none() | values, min_size=len(hashes), max_size=len(hashes)))
        columns[f"c {len(columns)}"] = pa.array(drawn, type)
    return run_table(hashes, columns)


def before_there_were_blocks(table: pa.Table) -> tuple[RunInfo, pa.Buffer]:
    """A run as a lake of format 2 has it."""
    encoded = encode_rows(table)
    entry = describe_run(PATH, encoded, table.column(0).to_numpy(), 256).to_json()
    del entry["block_bytes"]
    return RunInfo.from_json({**entry, "xxh3_64": checksum_of(encoded)}), encoded
