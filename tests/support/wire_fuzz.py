"""Malformed frames, tried in a process of their own: ``python wire_fuzz.py SEED COUNT`` ends well or by a signal.

Frames of many kinds of batches are changed here and there, then decoded as channels and lines decode them. What is
taken is used, as a worker would: a batch that is malformed and not refused reads memory that is not its own.
"""

import random
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import ProtocolError
from upriver.net.wire import Message, decode, encode, read_batch

ROWS = 5
COLUMNS = {
    "text": pa.array(["a", None, "ccc", "", "naïve"]),
    "large": pa.array(["a", None, "ccc", "", "e"], pa.large_string()),
    "bytes": pa.array([b"a", None, b"\xff", b"", b"e"]),
    "number": pa.array([1, None, 3, 4, 5]),
    "flag": pa.array([True, None, False, True, True]),
    "decimal": pa.array([1, None, 3, 4, 5], pa.decimal128(20, 3)),
    "list": pa.array([[1], None, [2, 3], [], [4]]),
    "large_list": pa.array([["x"], None, ["y", None], [], ["z"]], pa.large_list(pa.string())),
    "fixed": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}, {"a": 5, "b": "z"}]),
    "map": pa.array([[("k", 1)], None, [("l", None)], [], [("m", 2)]], pa.map_(pa.string(), pa.int64())),
    "word": pa.array(["a", "b", None, "a", "b"]).dictionary_encode(),
    "words": pa.array([["a"], None, ["b", "a"], [], ["c"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "view": pa.array(["short", None, "longer than twelve", "", "e"], pa.string_view()),
    "list_view": pa.array([[1], None, [2, 3], [], [4]], pa.list_view(pa.int64())),
    "runs": pc.run_end_encode(pa.array(["a", "a", "b", "b", "b"])),
    "union": pa.UnionArray.from_sparse(
        pa.array([0, 1, 0, 1, 0], pa.int8()), [pa.array([1, 2, 3, 4, 5]), pa.array(["a", "b", "c", "d", "e"])]
    ),
    "dense": pa.UnionArray.from_dense(
        pa.array([0, 1, 0, 1, 0], pa.int8()),
        pa.array([0, 0, 1, 1, 2], pa.int32()),
        [pa.array([1, 2, 3]), pa.array(["a", "b"])],
    ),
}


def use(batch: pa.RecordBatch) -> None:
    """Touch every value."""
    with suppress(Exception):  # what Python refuses ends nothing
        batch.to_pylist()
        batch.take(pa.array(np.arange(batch.num_rows)[::-1]))
        pa.concat_batches([batch, batch]).to_pylist()


def changed(rng: random.Random, frame: bytes) -> bytes:
    """Some bytes are others; now and then some are gone, or come twice."""
    data = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                data[at : at + 4] = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**20)).to_bytes(4, "little")
            case 3:
                data[at : at + 8] = rng.choice((0, 1, 2**40, 2**63 - 1, 2**64 - 1)).to_bytes(8, "little")
            case 4:
                del data[at : at + rng.randrange(1, 16)]
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 16)]
        if not data:
            return b""
    return bytes(data)


def main(seed: int, count: int) -> None:
    rng, taken = random.Random(seed), 0
    batches = [pa.RecordBatch.from_arrays([column], [name]) for name, column in COLUMNS.items()]
    whole = pa.RecordBatch.from_arrays([COLUMNS[name] for name in ("text", "number", "list")], ["a", "b", "c"])
    frames = [encode(Message("rows", {"n": 1}, (batch,))).to_pybytes() for batch in [*batches, whole]]
    plain = [batch for batch in [*batches, whole] if "dictionary" not in str(batch.schema)]
    bodies = [(batch.serialize().to_pybytes(), batch.schema) for batch in plain]
    for number in range(count):
        try:
            if number % 2:
                found = list(decode(pa.py_buffer(changed(rng, rng.choice(frames)))).batches)
            else:
                body, schema = rng.choice(bodies)
                found = [read_batch(pa.py_buffer(changed(rng, body)), schema, 1 << 20)]
        except ProtocolError:
            continue
        for batch in found:
            if batch.num_rows < 1 << 20:
                taken += 1
                use(batch)
    print(f"{count} frames, {taken} taken")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
