"""Functions that DuckDB has not, or has otherwise than Spark, over whole columns: DuckDB calls them from its SQL.

A kernel takes Arrow columns, NULL included, and gives one of the same length. It raises ValueError for a bad row.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine import fdlibm
from upriver.engine.json_parts import parts_at
from upriver.engine.macros import MACROS
from upriver.engine.moment_texts import clocks_in, instants_in
from upriver.engine.operators.cardinality import codes_of
from upriver.engine.wide_decimals import OPERATIONS, computed, low_bits, with_sign
from upriver.engine.zone_offsets import day_starts_of, instants_near, instants_of, wall_clocks_of
from upriver.hashing import murmur_finished, murmur_mixed, rehashed

Doubles = npt.NDArray[np.float64]
OR_NULL = "_or_null"
"""Behind a kernel's name: with NULL where it would fail."""
_DECIMAL_KERNEL = re.compile(rf"kernel_decimal_([a-z]+)((?:_\d+_\d+)+)({OR_NULL})?")
"""What :func:`upriver.plan.types.decimal_kernel` makes: a name with the operation, one of
:data:`upriver.engine.wide_decimals.OPERATIONS` or ``negate`` or ``abs``, and the digits and places of operands and
result, which ``div`` gives as BIGINT."""
_OVER_COLUMNS: Mapping[str, Any] = {"type": "arrow", "null_handling": "special"}
_CALLED = re.compile(r"\b(?:kernel|spark)_\w+(?=\()")
_SIGNATURES = {signature.partition("(")[0]: signature for signature in MACROS}


@dataclass(frozen=True, slots=True)
class Kernel:
    """takes, gives: DuckDB's names of the types."""

    takes: tuple[str, ...]
    gives: str
    compute: Callable[..., pa.Array]


def define(duck: duckdb.DuckDBPyConnection, sql: str, defined: set[str]) -> None:
    """Let this SQL run on the connection: define the kernels and macros that it calls, and those that they call.

    defined: the names that the connection has; the new ones are added. Defining all macros takes a tenth of a second.
    """
    for name in _CALLED.findall(sql):
        if name in defined:
            continue
        defined.add(name)
        if kernel := KERNELS.get(name) or _decimal_kernel(name):
            duck.create_function(name, kernel.compute, list(kernel.takes), kernel.gives, **_OVER_COLUMNS)
        elif signature := _SIGNATURES.get(name):
            define(duck, MACROS[signature], defined)
            duck.execute(f"CREATE MACRO {signature} AS {MACROS[signature]}")


def _decimal_kernel(name: str) -> Kernel | None:
    """The kernel of decimals of that name, if it is one."""
    match = _DECIMAL_KERNEL.fullmatch(name)
    if match is None:
        return None
    operation, tolerant, sizes = match[1], match[3] is not None, match[2].split("_")[1:]
    *takes, gives = (f"DECIMAL({precision}, {scale})" for precision, scale in zip(*[iter(sizes)] * 2, strict=True))
    type = pa.decimal128(int(sizes[-2]), int(sizes[-1]))

    def of_one(column: pa.ChunkedArray) -> pa.Array:
        return with_sign(operation, _whole(column), tolerant)

    def of_two(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.Array:
        values = computed(OPERATIONS[operation], _whole(left), _whole(right), type, tolerant)
        return low_bits(values) if operation == "div" else values

    return Kernel(tuple(takes), "BIGINT" if operation == "div" else gives, of_one if len(takes) == 1 else of_two)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _nulls(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _of_one(compute: Callable[[Doubles], Doubles]) -> Callable[[pa.ChunkedArray], pa.Array]:
    """A kernel of a DOUBLE from a function of arrays; NULL where the operand is. DuckDB counts parameters."""
    return lambda column: _of_doubles(compute, column)


def _of_two(compute: Callable[[Doubles, Doubles], Doubles]) -> Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.Array]:
    return lambda left, right: _of_doubles(compute, left, right)


def _of_doubles(compute: Callable[..., Doubles], *columns: pa.ChunkedArray) -> pa.Array:
    given = [_whole(column) for column in columns]
    nulls = np.logical_or.reduce([_nulls(column) for column in given])
    with np.errstate(all="ignore"):
        values = compute(*(column.fill_null(1.0).to_numpy(zero_copy_only=False) for column in given))
    return pa.array(values, pa.float64(), mask=nulls)


def _as_floats(column: pa.ChunkedArray) -> pa.Array:
    """The nearest FLOAT, an infinity beyond the greatest; DuckDB's own cast fails there."""
    values = _whole(column)
    with np.errstate(over="ignore"):
        floats = values.fill_null(0.0).to_numpy().astype(np.float32)
    return pa.array(floats, pa.float32(), mask=_nulls(values))


# Hashes


def _hashed(seeds: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.Array:
    """Spark's xxhash64 with the hash of the columns before it as seed; a NULL leaves that as it is."""
    start = _whole(seeds).to_numpy().view(np.uint64)
    return pa.array(rehashed(start, _whole(column)).view(np.int64), pa.int64())


def _codes(hashes: pa.ChunkedArray, bits: pa.ChunkedArray) -> pa.Array:
    """What approx_count_distinct keeps of values with these hashes."""
    values = _whole(hashes)
    return pa.array(codes_of(values.fill_null(0).to_numpy(), bits[0].as_py()), pa.int64(), mask=_nulls(values))


def _murmured_longs(seeds: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.Array:
    """Spark's hash of BIGINTs; a NULL leaves the seed as it is."""
    start, values = _whole(seeds).to_numpy().view(np.uint32), _whole(column)
    words = values.fill_null(0).to_numpy().view(np.uint64)
    low, high = words.astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    hashes = murmur_finished(murmur_mixed(high, murmur_mixed(low, start)), np.uint32(8))
    return pa.array(np.where(_nulls(values), start, hashes).view(np.int32), pa.int32())


def _murmured_ints(seeds: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.Array:
    start, values = _whole(seeds).to_numpy().view(np.uint32), _whole(column)
    hashes = murmur_finished(murmur_mixed(values.fill_null(0).to_numpy().view(np.uint32), start), np.uint32(4))
    return pa.array(np.where(_nulls(values), start, hashes).view(np.int32), pa.int32())


def _murmured_doubles(seeds: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.Array:
    """Of the bits of DOUBLEs; all zeros are one, and all NaN."""
    return _murmured_longs(seeds, _bits(_whole(column), np.float64(0), pa.int64()))


def _murmured_floats(seeds: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.Array:
    return _murmured_ints(seeds, _bits(_whole(column), np.float32(0), pa.int32()))


def _bits(column: pa.Array, zero: Any, type: pa.DataType) -> pa.Array:
    values = column.fill_null(0.0).to_numpy() + zero
    values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return pa.array(values.view(f"i{values.dtype.itemsize}"), type, mask=_nulls(column))


def _spans(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of a BINARY column, where each value begins, and its length; of a NULL 0."""
    column = column.fill_null(b"").cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    bytes = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return bytes, ends[:-1], ends[1:] - ends[:-1]


def _murmured_bytes(seeds: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.Array:
    """Of bytes: words of four, little-endian, then each byte of the rest by itself, with its sign."""
    start, values = _whole(seeds).to_numpy().view(np.uint32), _whole(column)
    bytes, starts, lengths = _spans(values)
    hashes = start.copy()
    for turn in range(int((lengths // 4).max(initial=0))):
        (rows,) = np.nonzero(lengths // 4 > turn)
        at = starts[rows] + 4 * turn
        words = sum(bytes[at + place].astype(np.uint32) << np.uint32(8 * place) for place in range(4))
        hashes[rows] = murmur_mixed(words, hashes[rows])
    for turn in range(3):
        (rows,) = np.nonzero(lengths % 4 > turn)
        one = bytes[starts[rows] + lengths[rows] // 4 * 4 + turn].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[rows] = murmur_mixed(one, hashes[rows])
    hashes = murmur_finished(hashes, lengths.astype(np.uint32))
    return pa.array(np.where(_nulls(values), start, hashes).view(np.int32), pa.int32())


def _crc_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_CRC = _crc_table()


def _crc32(column: pa.ChunkedArray) -> pa.Array:
    values = _whole(column)
    bytes, starts, lengths = _spans(values)
    sums = np.full(len(values), 0xFFFFFFFF, np.uint32)
    for turn in range(int(lengths.max(initial=0))):
        (rows,) = np.nonzero(lengths > turn)
        sums[rows] = _CRC[(sums[rows] ^ bytes[starts[rows] + turn]) & 0xFF] ^ (sums[rows] >> np.uint32(8))
    return pa.array((~sums).astype(np.int64), pa.int64(), mask=_nulls(values))


def _digested(bits: int) -> Callable[[pa.ChunkedArray], pa.Array]:
    """The SHA-2 hash of so many bits, about a microsecond a value."""

    def kernel(column: pa.ChunkedArray) -> pa.Array:
        values = _whole(column).to_pylist()
        found = [None if one is None else hashlib.new(f"sha{bits}", one).hexdigest() for one in values]
        return pa.array(found, pa.string())

    return kernel


# Time zones


def _in_zone(convert: Callable[[npt.NDArray[np.int64], str], npt.NDArray[np.int64]]) -> Callable[..., pa.Array]:
    def kernel(moments: pa.ChunkedArray, zones: pa.ChunkedArray) -> pa.Array:
        values = _whole(moments).cast(pa.timestamp("us"))
        found = convert(_micros(values), _zone(zones))
        return pa.array(found, pa.int64(), mask=_nulls(values)).view(pa.timestamp("us"))

    return kernel


def _instants_near(clocks: pa.ChunkedArray, zones: pa.ChunkedArray, moments: pa.ChunkedArray) -> pa.Array:
    values, near = (_whole(one).cast(pa.timestamp("us")) for one in (clocks, moments))
    found = instants_near(_micros(values), _zone(zones), _micros(near))
    return pa.array(found, pa.int64(), mask=_nulls(values) | _nulls(near)).view(pa.timestamp("us"))


def _instants_of_texts(tolerant: bool) -> Callable[..., pa.Array]:
    return lambda texts, zones: instants_in(_whole(texts), _zone(zones), tolerant)


def _clocks_of_texts(tolerant: bool) -> Callable[..., pa.Array]:
    return lambda texts: clocks_in(_whole(texts), tolerant)


def _micros(values: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = values.view(pa.int64()).fill_null(0).to_numpy()
    return found


def _json_parts(documents: pa.ChunkedArray, paths: pa.ChunkedArray) -> pa.Array:
    return parts_at(_whole(documents), str(paths[0])) if len(paths) else pa.array([], pa.string())


def _zone(zones: pa.ChunkedArray) -> str:
    return str(zones[0]) if len(zones) else "UTC"


_D = "DOUBLE"
KERNELS: Mapping[str, Kernel] = {
    **{f"kernel_{name}": Kernel((_D,), _D, _of_one(compute)) for name, compute in fdlibm.OF_ONE.items()},
    **{f"kernel_{name}": Kernel((_D, _D), _D, _of_two(compute)) for name, compute in fdlibm.OF_TWO.items()},
    **{
        f"kernel_xxhash_{type.lower()}": Kernel(("BIGINT", type), "BIGINT", _hashed)
        for type in ("INTEGER", "BIGINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB")
    },
    "kernel_hash_bigint": Kernel(("INTEGER", "BIGINT"), "INTEGER", _murmured_longs),
    "kernel_hash_integer": Kernel(("INTEGER", "INTEGER"), "INTEGER", _murmured_ints),
    "kernel_hash_double": Kernel(("INTEGER", "DOUBLE"), "INTEGER", _murmured_doubles),
    "kernel_hash_float": Kernel(("INTEGER", "FLOAT"), "INTEGER", _murmured_floats),
    "kernel_hash_blob": Kernel(("INTEGER", "BLOB"), "INTEGER", _murmured_bytes),
    "kernel_float": Kernel((_D,), "FLOAT", _as_floats),
    "kernel_register_code": Kernel(("BIGINT", "INTEGER"), "BIGINT", _codes),
    "kernel_crc32": Kernel(("BLOB",), "BIGINT", _crc32),
    **{f"kernel_sha{bits}": Kernel(("BLOB",), "VARCHAR", _digested(bits)) for bits in (224, 384, 512)},
    "kernel_json_part": Kernel(("VARCHAR", "VARCHAR"), "VARCHAR", _json_parts),
    "kernel_wall_clock": Kernel(("TIMESTAMP", "VARCHAR"), "TIMESTAMP", _in_zone(wall_clocks_of)),
    "kernel_instant": Kernel(("TIMESTAMP", "VARCHAR"), "TIMESTAMP", _in_zone(instants_of)),
    "kernel_day_start": Kernel(("TIMESTAMP", "VARCHAR"), "TIMESTAMP", _in_zone(day_starts_of)),
    "kernel_instant_of_text": Kernel(("VARCHAR", "VARCHAR"), "TIMESTAMP", _instants_of_texts(tolerant=False)),
    f"kernel_instant_of_text{OR_NULL}": Kernel(("VARCHAR", "VARCHAR"), "TIMESTAMP", _instants_of_texts(tolerant=True)),
    "kernel_clock_of_text": Kernel(("VARCHAR",), "TIMESTAMP", _clocks_of_texts(tolerant=False)),
    f"kernel_clock_of_text{OR_NULL}": Kernel(("VARCHAR",), "TIMESTAMP", _clocks_of_texts(tolerant=True)),
    "kernel_instant_near": Kernel(("TIMESTAMP", "VARCHAR", "TIMESTAMP"), "TIMESTAMP", _instants_near),
}
"""By the name that SQL calls them by."""
