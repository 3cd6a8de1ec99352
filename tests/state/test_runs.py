"""Runs: written and read back, sliced by vnode against a dumb twin, and refused when they are not what they were."""

import itertools
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_kit import HASHES, PATH, before_there_were_blocks, run_table, run_tables
from soak import examples

from upriver.errors import CorruptFile
from upriver.ids import VnodeId
from upriver.state.runs import (
    PACKED_VNODES_MIN,
    RunInfo,
    cut,
    decode_run,
    describe_run,
    encode_run,
    ends_in,
    gathered,
    packed_entry,
    together,
    with_checksums,
)
from upriver.vnodes import vnodes_of

MANY = settings(derandomize=True, deadline=None, max_examples=examples(30))
VNODES = st.integers(0, 9).map(lambda bits: 2**bits)


def written(table: pa.Table, vnodes: int = 256) -> tuple[RunInfo, pa.Buffer]:
    encoded = encode_run(table)
    return describe_run(PATH, encoded, table.column(0).to_numpy(), vnodes), encoded


@MANY
@given(run_tables(), VNODES)
def test_a_run_comes_back_as_it_was(table: pa.Table, vnodes: int) -> None:
    info, encoded = written(table, vnodes)
    rows = decode_run(info, encoded, table.schema)
    assert rows.schema == table.schema
    assert repr(rows.to_pylist()) == repr(table.to_pylist())  # in which a NaN is like another
    assert encode_run(pa.Table.from_batches([rows])) == encoded
    assert (info.path, info.rows, info.bytes) == (PATH, table.num_rows, encoded.size)
    assert RunInfo.from_json(info.to_json()) == info


@MANY
@given(run_tables(), st.integers(1, 7))
def test_a_table_in_chunks_makes_the_same_run(table: pa.Table, chunk_rows: int) -> None:
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=chunk_rows), schema=table.schema)
    assert encode_run(chunked) == encode_run(table)


@MANY
@given(HASHES, VNODES, st.data())
def test_slices_are_the_rows_of_their_vnodes(hashes: list[int], vnodes: int, data: st.DataObject) -> None:
    table = run_table(hashes, {"n": pa.array(range(len(hashes)), pa.int64())})
    info, encoded = written(table, vnodes)
    vnode_of_row = vnodes_of(table.column(0).to_numpy(), vnodes).tolist()
    assert info.vnode_rows == tuple((v, vnode_of_row.count(v)) for v in sorted(set(vnode_of_row)))

    some = st.sets(st.sampled_from(vnode_of_row)) if vnode_of_row else st.just(set())
    wanted = data.draw(some | st.sets(st.integers(0, vnodes - 1)))
    expected = [row for row, vnode in enumerate(vnode_of_row) if vnode in wanted]
    slices = info.slices_of(map(VnodeId, wanted))
    rows = decode_run(info, encoded, table.schema)
    assert [n for start, count in slices for n in rows.slice(start, count).column("n").to_pylist()] == expected
    assert all(count > 0 for _, count in slices)
    assert all(start + count < later for (start, count), (later, _) in itertools.pairwise(slices))
    assert info.rows_of(map(VnodeId, wanted)) == len(expected)


@MANY
@given(HASHES, VNODES, st.integers(1, 9))
def test_workers_share_a_run_out(hashes: list[int], vnodes: int, workers: int) -> None:
    table = run_table(hashes, {"n": pa.array(range(len(hashes)), pa.int64())})
    info, _ = written(table, vnodes)
    shares = [info.slices_of(VnodeId(v) for v in range(worker, vnodes, workers)) for worker in range(workers)]
    read = [row for slices in shares for start, count in slices for row in range(start, start + count)]
    assert sorted(read) == list(range(len(hashes)))


@MANY
@given(HASHES, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 25))), st.integers(1, 9))
def test_cut_leaves_the_rows_and_keeps_a_key_s_rows_together(
    hashes: list[int], slices: list[tuple[int, int]], rows_max: int
) -> None:
    ascending = np.sort(np.array(hashes, np.uint64) % 16)
    within = [(start, min(rows, len(hashes) - start)) for start, rows in slices if start < len(hashes)]
    pieces = list(cut(within, rows_max, ends_in(ascending)))
    assert [r for s, n in pieces for r in range(s, s + n)] == [r for s, n in within for r in range(s, s + n)]
    ends = {start + rows for start, rows in within}
    for start, rows in pieces:
        assert start + rows in ends or ascending[start + rows - 1] != ascending[start + rows]
        assert rows <= rows_max or ascending[start + rows_max - 1] == ascending[start + rows - 1]


@MANY
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9))), st.integers(1, 20))
def test_slices_together_are_the_same_slices(slices: list[tuple[int, int]], rows_max: int) -> None:
    groups = list(together(slices, rows_max))
    assert list(itertools.chain.from_iterable(groups)) == slices
    sizes = [sum(rows for _, rows in group) for group in groups]
    assert all(size <= rows_max or len(group) == 1 for size, group in zip(sizes, groups, strict=True))
    firsts = [group[0][1] for group in groups[1:]]
    assert all(size + first > rows_max for size, first in zip(sizes, firsts, strict=False))  # as large as they may be


@MANY
@given(run_tables(), st.data())
def test_slices_gathered_are_their_rows(table: pa.Table, data: st.DataObject) -> None:
    (rows,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    cuts = data.draw(st.lists(st.integers(0, len(rows)), min_size=2, max_size=8))
    slices = [(min(pair), abs(pair[1] - pair[0])) for pair in itertools.pairwise(cuts)]
    found = gathered(rows, slices)
    assert found.schema == rows.schema
    assert repr(found.to_pylist()) == repr([row for slice in slices for row in rows.slice(*slice).to_pylist()])


SMALL = run_table([1, 2**40, 2**63], {"name": pa.array(["a", None, "é"]), "n": pa.array([1, 2, None], pa.int64())})


def refusal(info: RunInfo, content: bytes, schema: pa.Schema = SMALL.schema) -> str:
    """What is said of a file that is not what the manifest says; it names the file."""
    with pytest.raises(CorruptFile) as raised:
        decode_run(info, pa.py_buffer(content), schema)
    assert str(raised.value).startswith(f"{PATH}: ")
    return str(raised.value).removeprefix(f"{PATH}: ")


@MANY
@given(st.dictionaries(st.integers(0, 1023), st.integers(1, 2**40), min_size=1), st.integers(0, 3))
def test_a_packed_entry_says_the_same(rows: dict[int, int], task: int) -> None:
    vnode_rows = tuple((VnodeId(vnode), rows[vnode]) for vnode in sorted(rows))
    info = RunInfo("tables/t/k/1-a-00000.arrow", sum(rows.values()), 9, "c", vnode_rows, 4096, None, task)
    assert RunInfo.from_json(json.loads(json.dumps(packed_entry(info.to_json())))) == info
    assert RunInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_an_entry_is_packed_where_that_is_shorter() -> None:
    for vnodes in (1, PACKED_VNODES_MIN - 1, PACKED_VNODES_MIN, 256):
        vnode_rows = tuple((VnodeId(vnode), 3_906 + vnode % 90) for vnode in range(vnodes))
        entry = RunInfo("p", 1_000_000, 9, "c", vnode_rows).to_json()
        packed = packed_entry(entry)
        assert (packed == entry) == (vnodes < PACKED_VNODES_MIN)
        assert len(json.dumps(packed)) <= len(json.dumps(entry))
    assert 5 * len(json.dumps(packed)) < len(json.dumps(entry))


def test_a_run_without_blocks_is_read_and_checked_as_a_whole() -> None:
    info, encoded = before_there_were_blocks(SMALL)
    assert decode_run(info, encoded, SMALL.schema).to_pylist() == SMALL.to_pylist()
    assert RunInfo.from_json(info.to_json()) == info
    for place in range(encoded.size):
        content = bytearray(encoded.to_pybytes())
        content[place] ^= 1 << (place % 8)
        assert refusal(info, bytes(content)).endswith(f"where the manifest says {info.checksum}")


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 24, 31, 32, 33, 400])
@pytest.mark.parametrize("block_bytes", [8, 16])
def test_what_is_before_the_checksums_is_told_from_the_length(length: int, block_bytes: int) -> None:
    encoded = with_checksums(pa.py_buffer(bytes(length)), block_bytes)
    info = describe_run(PATH, encoded, np.zeros(0, np.uint64), 256, block_bytes)
    assert (info.arrow_bytes, info.blocks) == (length, -(-length // block_bytes))


def test_a_file_cut_short_anywhere_is_refused() -> None:
    info, encoded = written(SMALL)
    content = encoded.to_pybytes()
    for length in range(len(content)):
        assert refusal(info, content[:length]) == f"{length} bytes where the manifest says {len(content)}"
        if any(content[length:]):  # as a file system leaves it that has noted the length before it lost the bytes
            torn = content[:length].ljust(len(content), b"\0")
            assert refusal(info, torn).endswith(f"where the manifest says {info.checksum}")


def test_a_flipped_bit_anywhere_is_refused() -> None:
    info, encoded = written(SMALL)
    for place in range(encoded.size):
        content = bytearray(encoded.to_pybytes())
        content[place] ^= 1 << (place % 8)
        found = refusal(info, bytes(content))
        if place >= info.arrow_bytes:
            assert found.endswith(f"where the manifest says {info.checksum}")
        else:
            first = place // info.block_bytes * info.block_bytes
            assert found.startswith(
                f"bytes {first} to {min(first + info.block_bytes, info.arrow_bytes)} have checksum "
            )


def test_a_file_with_more_behind_it_is_refused() -> None:
    info, encoded = written(SMALL)
    assert refusal(info, encoded.to_pybytes() + b"\0").startswith(f"{info.bytes + 1} bytes where")


@MANY
@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused(content: bytes) -> None:
    info, _ = written(SMALL)
    assert "where the manifest says" in refusal(info, content)
    sealed = with_checksums(pa.py_buffer(content))
    claimed = describe_run(PATH, sealed, np.zeros(0, np.uint64), 256)
    assert refusal(claimed, sealed.to_pybytes()).startswith("not an Arrow file (")


def as_stream(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def in_two_batches(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("encode", "said"),
    [(as_stream, "not an Arrow file ("), (in_two_batches, "2 record batches, and a run has one")],
)
def test_arrow_that_is_no_run_is_refused(encode: Callable[[pa.Table], pa.Buffer], said: str) -> None:
    encoded = with_checksums(encode(SMALL))
    info = describe_run(PATH, encoded, SMALL.column(0).to_numpy(), 256)
    assert refusal(info, encoded.to_pybytes()).startswith(said)


@pytest.mark.parametrize(
    "table",
    [
        SMALL.drop_columns("n"),
        SMALL.select(["hash64", "n", "name"]),
        SMALL.rename_columns(["hash64", "name", "N"]),
        SMALL.append_column("more", SMALL.column("n")),
        SMALL.set_column(2, "n", SMALL.column("n").cast(pa.int32())),
        SMALL.set_column(0, "hash64", SMALL.column("hash64")),  # it may be null here
    ],
)
def test_another_schema_is_refused(table: pa.Table) -> None:
    info, encoded = written(table)
    text = refusal(info, encoded.to_pybytes())
    assert text.startswith("its columns are hash64 uint64")
    assert text.endswith(", not hash64 uint64 not null, name string, n int64")


def test_another_number_of_rows_is_refused() -> None:
    encoded = encode_run(SMALL)
    info = describe_run(PATH, encoded, np.zeros(2, np.uint64), 256)
    assert refusal(info, encoded.to_pybytes()) == "3 rows where the manifest says 2"
