"""hash64 on Arrow columns, against pinned vectors of Spark and against the xxhash library, row by row."""

import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hashing_kit import KEY_VALUES, MICROS, MICROS_UTC
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.errors import KeyTypeError
from upriver.hashing import check_hashable, hash64, hash_bytes

# Spark 4.3's own answers. The lake's files are in this order: to change one vector is to change the format.
GOLDEN = [
    (True, pa.bool_(), 0xA309B38455455929),
    (False, pa.bool_(), 0x3229FBC4681E48F3),
    (-1, pa.int8(), 0x1BFDDA8861C06E45),
    (127, pa.int8(), 0x77CC15D9F9F2CDC2),
    (-2, pa.int16(), 0x5586687D02583C54),
    (32767, pa.int16(), 0x7C3DC27696A6023D),
    (0, pa.int32(), 0x3229FBC4681E48F3),
    (2147483647, pa.int32(), 0x14F0AC009C21721C),
    (0, pa.int64(), 0xB71B47EBDA15746C),
    (-1, pa.int64(), 0x358AE035BFB46FD2),
    (9223372036854775807, pa.int64(), 0xD2F1C616AE7EB306),
    (-0.0, pa.float32(), 0x3229FBC4681E48F3),
    (1.5, pa.float32(), 0x55890E6BB0F5007E),
    (float("nan"), pa.float32(), 0x255D1BE3831088F8),
    (float("-inf"), pa.float32(), 0x96CC76CA3B1FB209),
    (-0.0, pa.float64(), 0xB71B47EBDA15746C),
    (1.5, pa.float64(), 0x6B63CE66FF6C0CB6),
    (float("nan"), pa.float64(), 0xD4974F72D7833F32),
    (float("inf"), pa.float64(), 0x50A4C53232A9CB04),
    (Decimal("1234.56"), pa.decimal128(18, 2), 0x5A066269BC0FAB93),
    (Decimal("-1234.56"), pa.decimal128(18, 2), 0xECA6DCF05D17E0B4),
    (Decimal("1234.56"), pa.decimal128(19, 2), 0x7D1945666BA266BC),
    (Decimal("-1234.56"), pa.decimal128(19, 2), 0x10C8083CF0F69591),
    (Decimal("-12345678901234567890123456789012345678"), pa.decimal128(38), 0xF0D09319B93FF5D0),
    (Decimal(0), pa.decimal128(38), 0x83A7B47F8D92D727),
    (Decimal(128), pa.decimal128(38), 0x5D30D1FD44CAAAD5),
    (Decimal(-128), pa.decimal128(38), 0x92633470FA9CC655),
    (Decimal(-129), pa.decimal128(38), 0xA65B30868FB7ED1C),
    ("", pa.string(), 0x98B1582B0977E704),
    ("N14228", pa.string(), 0x271BA8503875028D),
    ("abcdefghijkl", pa.string(), 0x361822724E57F75B),
    ("été", pa.string(), 0x2790996D39EFC8F4),
    ("0123456789" * 4, pa.string(), 0x4C732E9EA22D8BC6),
    ("0123456789" * 100, pa.string(), 0x1C35B4EA115A5677),
    ("N14228", pa.large_string(), 0x271BA8503875028D),
    (b"", pa.binary(), 0x98B1582B0977E704),
    (b"\x00\xff\x80", pa.binary(), 0x6D3581C104EE5E1E),
    (b"\x00\xff\x80", pa.large_binary(), 0x6D3581C104EE5E1E),
    (date(1969, 12, 31), pa.date32(), 0x1BFDDA8861C06E45),
    (date(2013, 1, 1), pa.date32(), 0x12B9904E72E9FC69),
    (datetime(2013, 1, 1, 5, 15, 0, 1, UTC), MICROS_UTC, 0x6A6149A823BC320C),
    (datetime(1969, 12, 31, 23, 59, 59, 999999), MICROS, 0x358AE035BFB46FD2),
]


@st.composite
def key_column(draw: st.DrawFn, rows: int) -> pa.Array:
    type, values = draw(st.sampled_from(KEY_VALUES))
    drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
    return pa.array(drawn, type)


def key_columns() -> st.SearchStrategy[list[pa.Array]]:
    """One to four columns of any types, of one length: few rows, which the library hashes, or more."""
    counts = st.integers(0, 8) | st.integers(17, 24)
    return counts.flatmap(lambda rows: st.lists(key_column(rows), min_size=1, max_size=4))


def redressed(column: pa.Array) -> list[pa.Array | pa.ChunkedArray]:
    """The same values in every other form that Arrow may hand us."""
    third = len(column) // 3
    chunks = [column[:third], column[third:third], column[third:]]
    forms = [
        pa.concat_arrays([column[:3], column, column[:2]]).slice(len(column[:3]), len(column)),
        pa.chunked_array(chunks, column.type),
        column.dictionary_encode(),
        pa.chunked_array([chunk.dictionary_encode() for chunk in chunks]),
    ]
    if pa.types.is_string(column.type):
        forms.append(column.cast(pa.large_string()))
    return forms


def hashed_bytes(value: pa.Scalar) -> bytes:
    """What XXH64 sees of a value, by Spark's rules: the slow and plain way."""
    type = value.type
    if pa.types.is_decimal(type):
        unscaled = int(value.as_py().scaleb(type.scale, Context(prec=40)))
        if type.precision <= 18:
            return struct.pack("<q", unscaled)
        bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
        return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
    if pa.types.is_floating(type):
        canonical = value.as_py() + 0.0
        return struct.pack("<f" if type == pa.float32() else "<d", canonical if canonical == canonical else np.nan)
    if pa.types.is_string(type):
        return bytes(value.as_py(), "utf-8")
    if pa.types.is_binary(type):
        return bytes(value.as_py())
    if pa.types.is_timestamp(type):
        return struct.pack("<q", value.value)
    number = value.value if pa.types.is_date(type) else value.as_py()
    return struct.pack("<q" if type == pa.int64() else "<i", number)


def hashed_one_by_one(columns: Sequence[pa.Array]) -> list[int]:
    hashes = []
    for row in zip(*columns, strict=True):
        running = 42
        for value in row:
            if value.is_valid:
                running = xxhash.xxh64_intdigest(hashed_bytes(value), running)
        hashes.append(running)
    return hashes


@pytest.mark.parametrize(("value", "type", "expected"), GOLDEN, ids=lambda part: str(part)[:20])
def test_golden_vector(value: Any, type: pa.DataType, expected: int) -> None:
    for rows in (1, 100):  # few rows and many are hashed in two ways
        assert hash64([pa.array([value] * rows, type)]).tolist() == [expected] * rows


@pytest.mark.parametrize(("value", "type"), [row[:2] for row in GOLDEN], ids=lambda part: str(part)[:20])
def test_a_list_is_hashed_as_columns_of_its_elements(value: Any, type: pa.DataType) -> None:
    values = [value, None, value, value] * 5
    lists = [values, None, [], values[3:9], [None]]
    expected = [int(hash64([pa.array([one], type) for one in found or [None]])[0]) for found in lists]
    for copies in (1, 30):  # few arrays and many are hashed in two ways
        column = pa.concat_arrays([pa.array([[value]], pa.list_(type)), pa.array(lists * copies, pa.list_(type))])[1:]
        assert hash64([column]).tolist() == expected * copies


def test_golden_vectors_of_several_columns() -> None:
    one, a = pa.array([1], pa.int32()), pa.array(["a"])
    flight = [pa.array(["UA"]), pa.array([2013], pa.int32()), pa.array([date(2013, 1, 1)])]
    assert hash64(flight).tolist() == [0x52EAF43AAD52AA5D]
    assert hash64([one, a]).tolist() == [0x71E116AC3230DA31]
    assert hash64([a, one]).tolist() == [0xBD3D806EB1D80FBE]


@settings(derandomize=True, deadline=None, max_examples=examples(60))
@given(key_columns())
def test_equals_the_library_row_by_row(columns: list[pa.Array]) -> None:
    hashes = hash64(columns)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == hashed_one_by_one(columns)


@settings(derandomize=True, deadline=None, max_examples=examples(30))
@given(key_columns())
def test_the_form_of_a_column_does_not_matter(columns: list[pa.Array]) -> None:
    expected = hash64(columns).tolist()
    for forms in zip(*map(redressed, columns), strict=False):
        assert hash64(forms).tolist() == expected


def test_large_strings_hash_as_strings() -> None:
    texts = ["", "a", None, "0123456789" * 40, "é"]
    assert hash64([pa.array(texts, pa.large_string())]).tolist() == hash64([pa.array(texts)]).tolist()


def test_a_null_leaves_the_hash_as_it_was() -> None:
    nulls = pa.array([None, None], pa.string())
    numbers = pa.array([1, None], pa.int32())
    assert hash64([nulls]).tolist() == [42, 42]
    assert hash64([nulls, numbers, nulls]).tolist() == hash64([numbers]).tolist() == [0xA309B38455455929, 42]


def test_what_lies_under_a_null_does_not_matter() -> None:
    validity = pa.py_buffer(b"\x02")
    text = pa.Array.from_buffers(
        pa.string(), 2, [validity, pa.py_buffer(np.array([0, 3, 4], np.int32)), pa.py_buffer(b"xyza")]
    )
    signalling = pa.py_buffer(np.array([0x7F800001, 0x3FC00000], np.uint32))
    assert hash64([text]).tolist() == [42, 0x88E4FE59ADF7B0CC]
    assert hash64([pa.Array.from_buffers(pa.float32(), 2, [validity, signalling])]).tolist() == [
        42,
        0x55890E6BB0F5007E,
    ]


def test_every_nan_is_one_nan() -> None:
    bits = np.array([0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF, 0x7FF8000000000000], np.uint64)
    assert set(hash64([pa.array(bits.view(np.float64))]).tolist()) == {0xD4974F72D7833F32}


def test_every_length_of_text_and_any_seed() -> None:
    """Each length up to 300 has its own mix of stripes, words, ints and bytes; every row has its own seed."""
    rng = np.random.default_rng(7)
    lengths = rng.permutation(np.arange(301, dtype=np.int64))
    starts = rng.integers(0, 50, len(lengths))
    data = rng.integers(0, 256, 350, np.uint8)
    seeds = rng.integers(0, 2**64, len(lengths), np.uint64)
    expected = [
        xxhash.xxh64_intdigest(data[start : start + length].tobytes(), int(seed))
        for seed, start, length in zip(seeds, starts, lengths, strict=True)
    ]
    assert hash_bytes(seeds, data, starts, lengths).tolist() == expected


def test_many_rows_hash_as_few_at_a_time() -> None:
    rng = np.random.default_rng(8)
    numbers = pa.array(rng.integers(-(2**63), 2**63 - 1, 40_000), mask=rng.random(40_000) < 0.1)
    texts = pa.array([None if number % 11 == 0 else "x" * (number % 50) for number in range(40_000)])
    whole = hash64([numbers, texts])
    pieces = [hash64([numbers[at : at + 1_000], texts[at : at + 1_000]]) for at in range(0, 40_000, 1_000)]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))


def test_no_columns_and_no_rows() -> None:
    assert hash64([], rows=3).tolist() == [42, 42, 42]
    assert hash64([pa.array([], pa.string())]).tolist() == []
    assert hash64([pa.chunked_array([], pa.int64())], rows=0).tolist() == []
    with pytest.raises(KeyTypeError, match="how many rows"):
        hash64([])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(KeyTypeError, match="column #1 has 1 values, not 2"):
        hash64([pa.array([1, 2]), pa.array([1])])
    with pytest.raises(KeyTypeError, match="column #0 has 1 values, not 0"):
        hash64([pa.array([1])], rows=0)


@pytest.mark.parametrize(
    ("type", "advice"),
    [
        (pa.map_(pa.string(), pa.int32()), "to_json"),
        (pa.list_(pa.map_(pa.string(), pa.int32())), "to_json"),
        (pa.dictionary(pa.int8(), pa.map_(pa.string(), pa.int32())), "to_json"),
        (pa.timestamp("ns"), r"timestamp\[us\]"),
        (pa.uint32(), "signed integer"),
        (pa.float16(), "cast it"),
        (pa.decimal256(50), "decimal128"),
        (pa.null(), "cast it"),
    ],
    ids=str,
)
def test_other_types_are_refused_with_a_way_out(type: pa.DataType, advice: str) -> None:
    with pytest.raises(KeyTypeError, match=f"column tags of type .* cannot be part of a key: .*{advice}") as caught:
        check_hashable(type, "tags")
    assert str(type) in str(caught.value)


def test_hashing_checks_the_types_too() -> None:
    with pytest.raises(KeyTypeError, match="column #1 of type map"):
        hash64([pa.array([1]), pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))])


@pytest.mark.parametrize("type", [type for type, _ in KEY_VALUES], ids=str)
def test_key_types_are_accepted(type: pa.DataType) -> None:
    check_hashable(type, "id")
    check_hashable(pa.dictionary(pa.int32(), type), "id")
