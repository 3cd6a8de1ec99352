"""Checkpoints in the lake: the driver that owns the root publishes them, a restoring worker reads them.

::

    checkpoints/<place>/<epoch>/manifest.json   a flow's checkpoint as of that epoch's end; its existence is the commit
    checkpoints/<place>/<epoch>/<id>.arrows     state files: a worker's chunks of one region

Each flow has a place of its own, whose name is the digest of its plans without their names, or the digest and a number
if another flow has the same plans (``CheckpointPlace``). Names of views and regions are translated where manifests are
written and read, and nowhere else. Releases before flows had ``checkpoints/<epoch>/``: such a directory is never read,
and the first sweep of an owner removes it.

Rules checkpoints.all_parts and checkpoints.manifest_removed_first, and the effects of damage:
``docs/internals/checkpoints.md``. Workers copy state as of an epoch's end and write it. No process reads a worker's
files before the driver has published the checkpoint; after that nothing of it changes any more.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upriver.errors import CorruptCheckpoint, CorruptFile, NotWritten, ProtocolError
from upriver.ids import Epoch, VnodeId
from upriver.lake.lake import Lake, OwnedLake, epoch_path
from upriver.lake.runs import REMEDY, UNASKED_BYTES_MAX
from upriver.records import typed
from upriver.state.checkpoint import (
    Checkpoint,
    CheckpointPlace,
    Span,
    StateChunk,
    StateFile,
    decode_chunk,
    encode_chunk,
    merged,
    newest_of,
)
from upriver.state.failure import ViewFailure
from upriver.state.runs import checksum_of
from upriver.vnodes import vnodes_of

FORMAT = 2
DIRECTORY = "checkpoints"
_MANIFEST = "manifest.json"
_PLACE = re.compile(r"[0-9a-f]{32}(-[1-9][0-9]*)?")
_BEFORE_FLOWS = re.compile(r"[0-9]{12}")


def place_directory(place: CheckpointPlace) -> str:
    return f"{DIRECTORY}/{place.name}"


def checkpoint_directory(place: CheckpointPlace, epoch: Epoch) -> str:
    return f"{place_directory(place)}/{epoch:012d}"


def checkpoint_path(place: CheckpointPlace, epoch: Epoch) -> str:
    """The path of a checkpoint's manifest."""
    return f"{checkpoint_directory(place, epoch)}/{_MANIFEST}"


def places(lake: Lake) -> list[str]:
    """The names of the places that have checkpoints, or parts of some. Raises CorruptFile."""
    return [name for name in _names(lake) if not _BEFORE_FLOWS.fullmatch(name)]


def _names(lake: Lake) -> list[str]:
    """The names of places, and those of checkpoints from before flows."""
    names = lake.files.names(DIRECTORY)
    for name in names:
        if not (_PLACE.fullmatch(name) or _BEFORE_FLOWS.fullmatch(name)):
            raise CorruptFile(f"{lake.root}/{DIRECTORY}/{name}: not a directory of this lake")
    return names


# Writing ---------------------------------------------------------------------------------------------------------


def publish(lake: OwnedLake, place: CheckpointPlace, checkpoint: Checkpoint) -> None:
    """Commit a checkpoint. Raises LakeInUse if another driver has taken the root, or this epoch has one already;
    ProtocolError if its files, or the base that it names, are not there, or it names views that are not of this place;
    NotWritten if the lake refuses it.
    """
    there = set(lake.files.names(checkpoint_directory(place, checkpoint.epoch)))
    if missing := [file.name for file in checkpoint.files if file.name not in there]:  # checkpoints.all_parts
        raise ProtocolError(f"checkpoint of epoch {checkpoint.epoch}: {', '.join(missing)} were not written")
    base = checkpoint.base
    if base is not None and not (base < checkpoint.epoch and _is_published(lake, place, base)):
        raise ProtocolError(f"checkpoint of epoch {checkpoint.epoch}: there is none of epoch {base} to build on")
    path = lake.own_path(checkpoint_path(place, checkpoint.epoch))
    lake.commit(path, _to_json(checkpoint, place), f"the checkpoint of epoch {checkpoint.epoch}")


def sweep(lake: OwnedLake, place: CheckpointPlace, keep: Collection[Epoch], before: Epoch) -> int:
    """Remove the checkpoints of a place that are not in ``keep``, unless a remaining one builds on them. Also remove
    files that no checkpoint names, which given-up checkpoints leave behind. Returns how many files were removed.

    before: nothing of this epoch or a later one is touched. A checkpoint that is being written has files and no
    manifest, as has one that was given up; only the driver can tell them apart. So it gives the epoch of the checkpoint
    that is being written. If there is none, it gives the epoch after the newest checkpoint: any other will be of a
    later epoch. Raises LakeInUse if another driver has taken the root, CorruptFile for a damaged manifest of a
    checkpoint that stays.
    """
    lake.fence()
    lake.check_owner()
    stay = _with_bases(lake, place, keep, before)
    removed = 0
    for epoch in sorted(_epochs(lake, place), reverse=True):  # checkpoints.manifest_removed_first: a base is older
        if epoch >= before:
            continue
        manifest = lake.path_of(checkpoint_path(place, epoch)).rpartition("/")[2]
        needed = {manifest, *(file.name for file in stay[epoch].files)} if epoch in stay else set()
        removed += _remove(lake, checkpoint_directory(place, epoch), needed)
    return removed


def sweep_places(lake: OwnedLake, keep: Collection[str]) -> int:
    """Remove all that is in other places than those with these names, and checkpoints from before flows. Returns how
    many files were removed. Raises LakeInUse if another driver has taken the root, CorruptFile."""
    lake.fence()
    lake.check_owner()
    removed = 0
    before_flows = [name for name in _names(lake) if _BEFORE_FLOWS.fullmatch(name)]
    for name in sorted(before_flows, reverse=True):  # checkpoints.manifest_removed_first: a base is older
        removed += _remove(lake, f"{DIRECTORY}/{name}", ())
    for name in places(lake):
        if name not in keep:
            place = CheckpointPlace(name, ())
            removed += sum(
                _remove(lake, checkpoint_directory(place, epoch), ())
                for epoch in sorted(_epochs(lake, place), reverse=True)
            )
            lake.files.remove_directory(place_directory(place))
    return removed


def _remove(lake: OwnedLake, directory: str, needed: Collection[str]) -> int:
    """Remove a checkpoint's files, except those that are needed, and the directory if none is."""
    names = set(lake.files.names(directory)) - set(needed)
    for name in sorted(names, key=lambda name: not name.endswith(".json")):  # checkpoints.manifest_removed_first
        lake.files.remove(f"{directory}/{name}")
    if not needed:
        lake.files.remove_directory(directory)
    return len(names)


def _with_bases(lake: Lake, place: CheckpointPlace, keep: Collection[Epoch], before: Epoch) -> dict[Epoch, Checkpoint]:
    """The checkpoints to keep, those of ``before`` and later epochs, and all that they build on."""
    stay: dict[Epoch, Checkpoint] = {}
    for epoch in _epochs(lake, place):
        if (epoch in keep or epoch >= before) and _is_published(lake, place, epoch):
            base: Epoch | None = epoch
            while base is not None and base not in stay:
                stay[base] = load(lake, place, base)
                base = stay[base].base
    return stay


# Reading ---------------------------------------------------------------------------------------------------------


def load(lake: Lake, place: CheckpointPlace, epoch: Epoch) -> Checkpoint:
    """The checkpoint of the end of this epoch. Raises CorruptFile, which names the file and gives advice."""
    path = lake.path_of(checkpoint_path(place, epoch))
    try:
        checkpoint = _from_json(lake.read_record(path), place)
    except FileNotFoundError as error:
        raise _corrupt(lake, path, "the file is gone") from error
    except (CorruptFile, OSError, pa.ArrowException) as error:
        raise _corrupt(lake, path, f"cannot be read ({error})") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(lake, path, f"not the manifest of a checkpoint ({error!r})") from error
    if checkpoint.epoch != epoch:
        raise _corrupt(lake, path, f"its content names epoch {checkpoint.epoch}")
    if checkpoint.base is not None and checkpoint.base >= epoch:
        raise _corrupt(lake, path, f"it builds on one of epoch {checkpoint.base}, which is not before it")
    return checkpoint


def newest_usable(
    lake: Lake, place: CheckpointPlace, regions: Mapping[str, str]
) -> tuple[tuple[Checkpoint, ...], str | None]:
    """As :func:`chain`; if the newest one is damaged, the chain of an older one, and the damage of the newest."""
    before, damaged = None, None
    while True:
        try:
            return chain(lake, place, regions, before), damaged
        except CorruptCheckpoint as error:
            damaged = damaged or str(error)
            before = newest(lake, place, before)


def newest(lake: Lake, place: CheckpointPlace, before: Epoch | None = None) -> Epoch | None:
    """The epoch of the newest checkpoint of a place with which a worker can begin; ``None`` if there is none. before:
    of those of earlier epochs than this. Raises CorruptFile.

    checkpoints.not_within_a_segment: no worker can go on from the middle of a segment. The epochs of bases get
    there, and those of checkpoints that the last driver found damaged.
    """
    segments = lake.segments()
    for epoch in sorted(_epochs(lake, place), reverse=True):
        is_older = before is None or epoch < before
        if is_older and _is_published(lake, place, epoch) and not any(span.has_within(epoch) for span in segments):
            return epoch
    return None


def chain(
    lake: Lake, place: CheckpointPlace, regions: Mapping[str, str], before: Epoch | None = None
) -> tuple[Checkpoint, ...]:
    """The newest checkpoint of a place, or the newest one before that epoch, and those that it builds on, newest first;
    empty if they are of no use.

    regions: those to restore, each with its plan's fingerprint. All are restored from one chain, as of the end of one
    epoch, or none is. Every checkpoint of the newest chain must have all of these regions with these fingerprints.
    Otherwise, or if a view of the flow was dropped, there is nothing to restore, and older checkpoints are not tried.
    Raises CorruptCheckpoint, and
    CorruptFile if the newest is of an epoch that is not in the lake.
    """
    last = newest(lake, place, before)
    if last is None:
        return ()
    if not lake.ends_a_span(last):
        raise CorruptFile(f"{lake.root}/{epoch_path(last)}: the file is gone, though there is a checkpoint. {REMEDY}")
    found = [load(lake, place, last)]
    while (base := found[-1].base) is not None:
        found.append(load(lake, place, base))
    fits = all(regions.items() <= checkpoint.regions.items() for checkpoint in found)
    is_whole = not any(failure.is_dropped for failure in found[0].failed.values())
    return tuple(found) if fits and is_whole else ()


def read_state(
    lake: Lake,
    place: CheckpointPlace,
    chain: Sequence[Epoch],
    region: str,
    vnodes: Collection[VnodeId],
    count: int,
) -> Iterator[StateChunk]:
    """The state of the keys of these vnodes in a region, in chunks whose parts may be empty, no key in two of them.

    chain: the epochs of a whole chain, newest first. count: the lake's vnodes. Chunks without keys of these vnodes are
    not read, and files without other chunks are not opened. Raises CorruptFile, maybe after some chunks; and
    ProtocolError if this is no chain, or it lacks the region.
    """
    checkpoints = [load(lake, place, epoch) for epoch in chain]
    bases = [checkpoint.base for checkpoint in checkpoints]
    if bases != [*chain[1:], None]:
        raise ProtocolError(f"the checkpoints of epochs {list(chain)} build on those of {bases}")
    if any(region not in checkpoint.regions for checkpoint in checkpoints):
        raise ProtocolError(f"no state of region {region!r} in the checkpoints of epochs {list(chain)}")
    read = (_chunks(lake, place, checkpoint, region, vnodes, count) for checkpoint in checkpoints)
    return newest_of(read, vnodes, count)


def _chunks(
    lake: Lake,
    place: CheckpointPlace,
    checkpoint: Checkpoint,
    region: str,
    vnodes: Collection[VnodeId],
    count: int,
) -> Iterator[StateChunk]:
    """A checkpoint's chunks of a region that may name keys of these vnodes."""
    wanted = np.zeros(count, np.int64)
    wanted[list(vnodes)] = 1
    wanted_before = np.concatenate(([0], np.cumsum(wanted)))
    for file in checkpoint.files:
        if file.region != region:
            continue
        first = vnodes_of(np.array([span.least for span in file.spans], np.uint64), count)
        last = vnodes_of(np.array([span.most for span in file.spans], np.uint64), count)
        meets = wanted_before[last + 1] > wanted_before[first]
        if meets.any():
            path = f"{checkpoint_directory(place, checkpoint.epoch)}/{file.name}"
            for number in np.flatnonzero(meets).tolist():
                yield _chunk(lake, path, file, file.spans[number], file.checksums[number])


def _chunk(lake: Lake, path: str, file: StateFile, span: Span, checksum: str) -> StateChunk:
    """Decodes a copy of the bytes, after their checksum was verified."""
    where = f"bytes {span.offset} to {span.offset + span.length}"
    if span.length > UNASKED_BYTES_MAX:
        _check_length(lake, path, file, _read(lake, path, 0, pa.allocate_buffer(0)))
    content = pa.allocate_buffer(span.length)
    _check_length(lake, path, file, _read(lake, path, span.offset, content))
    if (found := checksum_of(content)) != checksum:
        raise _corrupt(lake, path, f"checksum {found} of {where} where the manifest says {checksum}")
    try:
        chunk = decode_chunk(content)
    except (OSError, ValueError, IndexError) as error:
        raise _corrupt(lake, path, f"no chunk of state in {where} ({error})") from error
    if (chunk.keys[0], chunk.keys[-1]) != (span.least, span.most):
        raise _corrupt(lake, path, f"other keys in {where} than the manifest says")
    return chunk


def _check_length(lake: Lake, path: str, file: StateFile, length: int) -> None:
    if length != file.nbytes:
        raise _corrupt(lake, path, f"{length} bytes where the manifest says {file.nbytes}")


def _read(lake: Lake, path: str, first: int, target: pa.Buffer) -> int:
    """Fill ``target`` with the bytes from there on; returns the file's length."""
    try:
        return lake.files.read_into(path, [(first, memoryview(target).cast("B"))])
    except FileNotFoundError as error:
        raise _corrupt(lake, path, "the file is gone") from error
    except (CorruptFile, OSError, pa.ArrowException) as error:
        raise _corrupt(lake, path, f"cannot be read ({error})") from error


def _corrupt(lake: Lake, path: str, what: str) -> CorruptCheckpoint:
    place = "/".join(path.split("/")[:2])
    return CorruptCheckpoint(
        f"{lake.root}/{path}: {what}. Views can be computed anew from the tables, without checkpoints: "
        f"stop the app, remove the directory {lake.root}/{place}, and start it again"
    )


def _epochs(lake: Lake, place: CheckpointPlace) -> list[Epoch]:
    """The epochs with a checkpoint in a place, or parts of one. Raises CorruptFile."""
    names = lake.files.names(directory := place_directory(place))
    for name in names:
        if not (name.isascii() and name.isdecimal()) or f"{int(name):012d}" != name:
            raise CorruptFile(f"{lake.root}/{directory}/{name}: not a directory of this lake")
    return [Epoch(int(name)) for name in names]


def _is_published(lake: Lake, place: CheckpointPlace, epoch: Epoch) -> bool:
    return _MANIFEST in lake.counted(checkpoint_directory(place, epoch))


# The manifest's record -------------------------------------------------------------------------------------------


def _to_json(checkpoint: Checkpoint, place: CheckpointPlace) -> dict[str, Any]:
    """Raises ProtocolError if it names a view that is not of this place."""
    return {
        "format": FORMAT,
        "epoch": checkpoint.epoch,
        "base": checkpoint.base,
        "regions": {place.to_record(region): mark for region, mark in checkpoint.regions.items()},
        "files": [_file_to_json(file, place) for file in checkpoint.files],
        "failed": {place.to_record(view): [failure.kind, failure.error] for view, failure in checkpoint.failed.items()},
    }


def _file_to_json(file: StateFile, place: CheckpointPlace) -> dict[str, Any]:
    """A row for each span: there are thousands of them."""
    spans = [
        [span.offset, span.length, span.least, span.most, checksum]
        for span, checksum in zip(file.spans, file.checksums, strict=True)
    ]
    region = place.to_record(file.region)
    return {"name": file.name, "region": region, "keys": file.keys, "bytes": file.nbytes, "spans": spans}


def _from_json(record: Mapping[str, Any], place: CheckpointPlace) -> Checkpoint:
    """Raises LookupError, TypeError, ValueError or AttributeError for a record of something else."""
    if record["format"] != FORMAT:
        raise ValueError(f"format {record['format']!r}, not {FORMAT}")
    checkpoint = Checkpoint(
        epoch=Epoch(record["epoch"]),
        base=None if record["base"] is None else Epoch(record["base"]),
        regions={place.from_record(region): mark for region, mark in record["regions"].items()},
        files=tuple(_file_from_json(file, place) for file in record["files"]),
        failed={
            place.from_record(view): ViewFailure(kind=kind, error=error)
            for view, (kind, error) in record["failed"].items()
        },
    )
    return typed(checkpoint)


def _file_from_json(record: Mapping[str, Any], place: CheckpointPlace) -> StateFile:
    file = StateFile(
        name=record["name"],
        region=place.from_record(record["region"]),
        keys=record["keys"],
        nbytes=record["bytes"],
        spans=tuple(Span(*row[:4]) for row in record["spans"]),
        checksums=tuple(row[4] for row in record["spans"]),
    )
    ends = [(span.offset, span.length) for span in map(typed, file.spans)]
    if any(offset < 0 or not 0 < length <= file.nbytes - offset for offset, length in ends):
        raise ValueError(f"spans of {file.name} outside of its {file.nbytes} bytes")
    return typed(file)


SPAN_BYTES_MIN = 256 << 10
"""Chunks with fewer bytes are merged: each costs a manifest some 80 bytes, and its file the schemas of its parts."""

FILE_BYTES_MAX = 64 << 20
"""Bytes of all growing files, in memory. At this limit the longest is completed; a chunk is never split."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """When to merge chunks and to complete files."""

    span_bytes_min: int = SPAN_BYTES_MIN
    file_bytes_max: int = FILE_BYTES_MAX


USUAL = Sizes()


class StateFiles:
    """The files of one worker's part of one checkpoint. Used by one thread. A file appears whole and durable."""

    def __init__(self, lake: Lake, place: CheckpointPlace, epoch: Epoch, sizes: Sizes = USUAL) -> None:
        self._lake = lake
        self._directory = checkpoint_directory(place, epoch)
        self._sizes = sizes
        self._growing: dict[str, _Growing] = {}
        """By region."""
        self._completed: list[StateFile] = []

    def add(self, region: str, chunk: StateChunk) -> None:
        """Take a chunk of keys that no other chunk of this checkpoint has. Raises NotWritten, ProtocolError."""
        if not len(chunk.keys):
            return
        growing = self._growing.setdefault(region, _Growing(region))
        growing.add(chunk, self._sizes.span_bytes_min)
        if self.growing_bytes >= self._sizes.file_bytes_max:
            self.complete_longest()

    @property
    def growing_bytes(self) -> int:
        """The approximate size of the files that are not complete."""
        return sum(each.nbytes for each in self._growing.values())

    def complete_longest(self) -> None:
        """Complete the longest of the growing files, of which there is one. Raises NotWritten, ProtocolError."""
        self._complete(max(self._growing.values(), key=lambda each: each.nbytes))

    def complete(self) -> tuple[StateFile, ...]:
        """All files, after the last chunk. Raises NotWritten, ProtocolError."""
        for growing in tuple(self._growing.values()):
            self._complete(growing)
        return tuple(self._completed)

    def drop(self) -> None:
        """Remove what was written, as far as possible: the driver sweeps the rest."""
        self._growing.clear()
        for file in self._completed:
            with suppress(OSError, NotWritten):
                self._lake.files.remove(f"{self._directory}/{file.name}")
        self._completed.clear()

    def _complete(self, growing: "_Growing") -> None:
        del self._growing[growing.region]
        # Spark may run a worker's task twice: no two files have one name.
        file, content = growing.finished(f"{uuid4().hex}.arrows")
        self._lake.files.create(f"{self._directory}/{file.name}", content)
        self._completed.append(file)


class _Growing:
    """A file that is not complete. nbytes: its approximate size."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._sink = pa.BufferOutputStream()
        self._spans: list[Span] = []
        self._keys = 0
        self._small: list[StateChunk] = []
        """Chunks that will become one span."""
        self._small_bytes = 0

    @property
    def nbytes(self) -> int:
        return int(self._sink.tell()) + self._small_bytes

    def add(self, chunk: StateChunk, span_bytes_min: int) -> None:
        self._keys += len(chunk.keys)
        if chunk.nbytes >= span_bytes_min:
            self._put([chunk])  # by itself: small chunks may have keys from anywhere
            return
        self._small.append(chunk)
        self._small_bytes += chunk.nbytes
        if self._small_bytes >= span_bytes_min:
            self._put_small()

    def finished(self, name: str) -> tuple[StateFile, pa.Buffer]:
        """The file and its bytes."""
        self._put_small()
        content = self._sink.getvalue()
        checksums = tuple(checksum_of(content.slice(span.offset, span.length)) for span in self._spans)
        file = StateFile(
            name=name,
            region=self.region,
            keys=self._keys,
            nbytes=content.size,
            spans=tuple(self._spans),
            checksums=checksums,
        )
        return file, content

    def _put_small(self) -> None:
        if self._small:
            self._put(self._small)
        self._small, self._small_bytes = [], 0

    def _put(self, chunks: Iterable[StateChunk]) -> None:
        self._spans.append(encode_chunk(merged(tuple(chunks)), self._sink))
