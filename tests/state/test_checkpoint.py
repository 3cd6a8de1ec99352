"""Chunks of state: what the newest of a chain of checkpoints says, and chunks as bytes."""

import numpy as np
import pyarrow as pa
import pytest
from checkpoint_kit import (
    CHANGES,
    HASHES,
    KEPT,
    NOTHING,
    VNODES,
    Kept,
    Model,
    chunk_of,
    chunks_of,
    kept_of,
    model_of,
)
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.errors import ProtocolError
from upriver.ids import Hash64, VnodeId
from upriver.state.checkpoint import Span, StateChunk, decode_chunk, encode_chunk, merged, newest_of

MODELS = st.dictionaries(HASHES, KEPT, min_size=1, max_size=9)


@MANY
@given(
    history=st.lists(CHANGES, min_size=1, max_size=4),
    keys_max=st.integers(1, 4),
    bits=st.integers(0, 6),
    chosen=st.sets(st.integers(0, 63)),
)
def test_the_newest_word_on_each_key_counts(
    history: list[dict[int, tuple[Kept, int]]], keys_max: int, bits: int, chosen: set[int]
) -> None:
    """Written by any worker, in any chunks: what a dict has that takes the changes one after another."""
    count = 2**bits
    vnodes = [VnodeId(vnode) for vnode in chosen if vnode < count]
    model: Model = {}
    chain: list[list[StateChunk]] = []
    for changes in history:
        now = {key: kept for key, (kept, _) in changes.items()}
        model |= now
        by_worker = [{key: now[key] for key in now if changes[key][1] == worker} for worker in range(3)]
        chain.insert(0, [chunk for part in by_worker for chunk in chunks_of(part, keys_max)])
    found = model_of(newest_of(chain, vnodes, count))
    assert kept_of(found, vnodes, count) == kept_of(model, vnodes, count)
    assert set(found) == {key for key in model if key * count >> 64 in chosen}


def test_a_key_that_is_gone_stays_gone() -> None:
    before, gone, again = (chunk_of({1: kept, 2**63: kept}) for kept in (Kept((1,)), NOTHING, Kept((2,))))
    both = [VnodeId(0), VnodeId(1)]
    assert model_of(newest_of([[gone], [before]], both, 2)) == {1: NOTHING, 2**63: NOTHING}
    assert model_of(newest_of([[again], [gone], [before]], both[1:], 2)) == {2**63: Kept((2,))}


def test_a_chunk_that_is_wanted_whole_is_not_copied() -> None:
    chunk = chunk_of({1: Kept((1,)), 2: Kept((2,))})
    (found,) = newest_of([[chunk]], [VnodeId(0)], 1)
    assert [mine is theirs for mine, theirs in zip(found.parts, chunk.parts, strict=True)] == [True, True]


@MANY
@given(models=st.lists(MODELS, min_size=1, max_size=4))
def test_chunks_come_back_from_bytes(models: list[Model]) -> None:
    sink = pa.BufferOutputStream()
    spans = [encode_chunk(chunk_of(model), sink) for model in models]
    content = sink.getvalue()
    found = [model_of([decode_chunk(content.slice(span.offset, span.length))]) for span in spans]
    assert found == models
    assert [(span.least, span.most) for span in spans] == [(min(model), max(model)) for model in models]
    ends = [span.offset + span.length for span in spans]
    assert [span.offset for span in spans] == [0, *ends[:-1]]  # no byte is in no span
    assert ends[-1] == content.size


@MANY
@given(st.dictionaries(HASHES, KEPT, max_size=12), st.sets(st.integers(0, VNODES - 1)))
def test_what_is_of_some_slices_is_what_is_kept_of_their_keys(model: Model, wanted: set[int]) -> None:
    found = chunk_of(model).among(set(map(VnodeId, wanted)), VNODES)
    assert model_of([found]) == {key: kept for key, kept in model.items() if key * VNODES >> 64 in wanted}


def test_slices_of_larger_batches_take_no_more_bytes_than_their_own() -> None:
    sink = pa.BufferOutputStream()
    keys = np.arange(100_000, dtype=np.uint64)
    part = pa.RecordBatch.from_pydict({"0": keys, "1": [f"a text that is number {key}" for key in keys]})
    span = encode_chunk(StateChunk(keys[500:510], (part.slice(500, 10),)), sink)
    assert span == Span(0, sink.tell(), Hash64(500), Hash64(509))
    assert span.length < 2000
    assert decode_chunk(sink.getvalue()).parts == (part.slice(500, 10),)


@pytest.mark.parametrize("keys", [[], [2, 1], [1, 1]])
def test_a_chunk_has_keys_in_order(keys: list[int]) -> None:
    with pytest.raises(ProtocolError, match=f"{len(keys)} keys, not ascending"):
        encode_chunk(StateChunk(np.array(keys, np.uint64), ()), pa.BufferOutputStream())


def test_what_is_no_chunk_is_not_decoded() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("hash64", pa.int64())])) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"hash64": [1]}))
    stream = sink.getvalue()
    for content in (b"", b"ARROW1\0\0", b"\x80\x04K\x07.", stream, stream.slice(0, stream.size - 16)):
        with pytest.raises((ValueError, OSError)):
            decode_chunk(pa.py_buffer(content))


@MANY
@given(model=MODELS, workers=st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_chunks_of_different_keys_are_merged(model: Model, workers: list[int]) -> None:
    split: list[Model] = [{}, {}, {}]
    for key, worker in zip(model, workers, strict=False):
        split[worker][key] = model[key]
    chunk = merged([chunk_of(each) for each in split if each])
    assert model_of([chunk]) == model
    assert chunk.keys.tolist() == sorted(model)


def test_a_key_is_in_one_chunk_only() -> None:
    with pytest.raises(ProtocolError, match="a key is in two chunks of one checkpoint"):
        merged([chunk_of({1: NOTHING, 2: NOTHING}), chunk_of({2: Kept((1,))})])
