"""What tests of checkpoints share: state of keys as a plain dict has it, as chunks, and as files of a lake."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.checkpoints import USUAL, Sizes, StateFiles, chain, publish, read_state
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.plan.plan import TableSpec
from upriver.state.checkpoint import Checkpoint, CheckpointPlace, StateChunk, StateFile

VNODES = 16
RECORD = LakeRecord(VNODES, (TableSpec("t", pa.schema([("k", pa.int64())]), ("k",)),), {"t": (("k",),)})
PLANS = {"a": "plan of a", "b": "plan of b"}
"""Regions, with the fingerprints of their plans."""
PLACE = CheckpointPlace("0" * 32, ("a", "b"))
AT_PLACE = f"checkpoints/{PLACE.name}"
PARTS = (
    pa.schema([("0", pa.uint64()), ("1", pa.int64())]),
    pa.schema([("0", pa.uint64()), ("1", pa.string()), ("2", pa.list_(pa.int32()))]),
)


class Kept(NamedTuple):
    """What is kept of a key: the rows of two parts."""

    numbers: tuple[int, ...] = ()
    texts: tuple[str | None, ...] = ()


NOTHING = Kept()
Model = dict[int, Kept]
"""By hash64; NOTHING for keys that are named and gone."""

HASHES = st.sampled_from([0, 1, 2**60 - 1, 2**60, 2**61 + 5, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
KEPT = st.builds(
    Kept,
    st.lists(st.integers(-5, 5), max_size=2).map(tuple),
    st.lists(st.none() | st.text(max_size=3), max_size=2).map(tuple),
)
CHANGES = st.dictionaries(HASHES, st.tuples(KEPT | st.just(NOTHING), st.integers(0, 2)), max_size=12)
"""What has become of keys, and which of three workers has them when the checkpoint is taken."""

ALL = tuple(map(VnodeId, range(VNODES)))
TINY = Sizes(span_bytes_min=1)
FIRST: Model = {1: Kept((1, 2)), 2**60: Kept((), ("x", None)), 2**63: Kept((3,))}
SECOND: Model = {1: NOTHING, 2**62: Kept((4,), ("y",))}


def chunk_of(model: Mapping[int, Kept]) -> StateChunk:
    """One chunk that names all keys of the model."""
    keys = sorted(model)
    numbers = [{"0": key, "1": number} for key in keys for number in model[key].numbers]
    texts = [{"0": key, "1": text, "2": [1, None]} for key in keys for text in model[key].texts]
    parts = (pa.RecordBatch.from_pylist(rows, schema) for rows, schema in zip((numbers, texts), PARTS, strict=True))
    return StateChunk(np.array(keys, np.uint64), tuple(parts))


def model_of(chunks: Iterable[StateChunk]) -> Model:
    """What chunks say of the keys that they name; none may be named twice, nor rows be of another key."""
    model: Model = {}
    for chunk in chunks:
        assert tuple(part.schema for part in chunk.parts) == PARTS
        keys = chunk.keys.tolist()
        assert keys == sorted(set(keys) - model.keys())
        numbers, texts = (part.to_pylist() for part in chunk.parts)
        assert all(row["2"] == [1, None] for row in texts)
        for key in keys:
            of_key = [tuple(row["1"] for row in rows if row["0"] == key) for rows in (numbers, texts)]
            model[key] = Kept(*of_key)
        assert {row["0"] for row in (*numbers, *texts)} <= set(keys)
    return model


def chunks_of(model: Mapping[int, Kept], keys_max: int) -> Iterator[StateChunk]:
    """The model in chunks of a few keys."""
    keys = sorted(model)
    for first in range(0, len(keys), keys_max):
        yield chunk_of({key: model[key] for key in keys[first : first + keys_max]})


def kept_of(model: Mapping[int, Kept], vnodes: Iterable[int] = range(VNODES), count: int = VNODES) -> Model:
    """What a model has, without keys that are gone, of so many of ``count`` vnodes."""
    wanted = set(vnodes)
    return {key: kept for key, kept in model.items() if kept != NOTHING and key * count >> 64 in wanted}


def other(model: Mapping[int, Kept]) -> Model:
    """Of the same keys something else: what region b has when region a has this."""
    return {key: Kept((7,) if kept.texts else (), tuple(map(str, kept.numbers))) for key, kept in model.items()}


def add_epochs(lake: OwnedLake, through: int) -> None:
    """Publish all epochs up to this one."""
    for epoch in range(lake.last_epoch() + 1, through + 1):
        lake.publish(
            Manifest(epoch=Epoch(epoch), term=lake.term, table="t", query="q", batch=epoch, runs={Channel("t/k"): ()})
        )


def written(
    lake: OwnedLake,
    epoch: int,
    base: int | None,
    changes: Mapping[str, Iterable[Iterable[StateChunk]]],
    sizes: Sizes = USUAL,
    place: CheckpointPlace = PLACE,
) -> Checkpoint:
    """A checkpoint whose files are there, to be published. changes: per region, the chunks of each worker."""
    files: list[StateFile] = []
    for region, workers in changes.items():
        for chunks in workers:
            writing = StateFiles(lake, place, Epoch(epoch), sizes)
            for chunk in chunks:
                writing.add(region, chunk)
            files += writing.complete()
    on = None if base is None else Epoch(base)
    return Checkpoint(epoch=Epoch(epoch), base=on, regions=dict(PLANS), files=tuple(files))


def a_lake(directory: Path) -> Iterator[OwnedLake]:
    """Of a few epochs, which this process owns."""
    lake = OwnedLake(str(directory / "lake"), RECORD, {})
    add_epochs(lake, 9)
    yield lake
    lake.release()


def take(lake: OwnedLake, epoch: int, base: int | None, model: Model, sizes: Sizes = TINY) -> Checkpoint:
    """A checkpoint that is published. Region b has something else of the same keys."""
    changes = {"a": [chunks_of(model, 2)], "b": [chunks_of(other(model), 2)]}
    checkpoint = written(lake, epoch, base, changes, sizes)
    publish(lake, PLACE, checkpoint)
    return checkpoint


def read(lake: Lake, region: str, epochs: Collection[int], vnodes: Collection[int] = ALL) -> Model:
    found = read_state(lake, PLACE, tuple(map(Epoch, epochs)), region, tuple(map(VnodeId, vnodes)), VNODES)
    return kept_of(model_of(found), vnodes)


def everything(lake: Lake) -> tuple[Model, Model]:
    """Both regions, as of the newest checkpoint."""
    epochs = [checkpoint.epoch for checkpoint in chain(lake, PLACE, PLANS)]
    return read(lake, "a", epochs), read(lake, "b", epochs)
