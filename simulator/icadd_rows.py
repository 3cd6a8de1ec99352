"""Light rows for the migration model: each names its sender and its number there, so that checkers can judge it."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from upriver.hashing import Hashes
from upriver.ids import VnodeId, WorkerId
from upriver.migration.events import RescaleAnnounced
from upriver.migration.messages import Acquire, Message, RowsSent
from upriver.state.vectors import Mask
from upriver.vnodes import VnodeMap

KEYS_PER_VNODE_MAX = 1 << 8  # the low bits of a hash64 number the keys of a vnode


class TracedRow(NamedTuple):
    """One row: the ``seq``-th of its key from its origin, of one epoch."""

    key: int
    origin: WorkerId
    seq: int
    epoch: int = 1

    def __str__(self) -> str:
        return f"{key_name(self.key)}#{self.seq} of {self.origin}"


class Key(NamedTuple):
    """A key of the model: the ``number``-th of a vnode."""

    vnode: VnodeId
    number: int

    def hash64(self, vnodes: int) -> int:
        """A hash64 that lies in this vnode."""
        return (self.vnode * ((1 << 64) // vnodes)) | self.number


def key_name(hash64: int) -> str:
    """A short name for traces: the vnode's leading bits, and the number."""
    return f"k{hash64 >> 56:x}.{hash64 & (KEYS_PER_VNODE_MAX - 1)}"


@dataclass(frozen=True, slots=True)
class ModelRows:
    """Rows with their hash64; the model's counterpart of a ``Batch``."""

    items: tuple[TracedRow, ...]
    hash64: Hashes

    @classmethod
    def of(cls, *items: TracedRow) -> "ModelRows":
        return cls(items, np.array([item.key for item in items], np.uint64))

    def __len__(self) -> int:
        return len(self.items)

    def filtered(self, mask: Mask) -> "ModelRows":
        if mask.all():
            return self
        kept = tuple(item for item, keep in zip(self.items, mask.tolist(), strict=True) if keep)
        return ModelRows(kept, self.hash64[mask])


def brief(message: Message) -> str:
    """A message for a trace."""
    match message:
        case RowsSent(rows=ModelRows(items=items), version=version):
            return f"{' and '.join(map(str, items))} (version {version})"
        case Acquire(keys=keys):
            return f"Acquire({', '.join(map(key_name, keys.tolist()))})"
        case _:
            return type(message).__name__


def frozen(value: Any) -> Any:
    """A hashable value that is equal for equal states: of phases, messages and events."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, ModelRows):
        return value.items
    if isinstance(value, RescaleAnnounced | VnodeMap):
        return value.version  # within one run, maps of one version are equal
    if isinstance(value, dict):
        return tuple((key, frozen(value[key])) for key in sorted(value))
    if isinstance(value, tuple) and not isinstance(value, TracedRow):
        return tuple(map(frozen, value))
    if is_dataclass(value):
        return (type(value).__name__, *(frozen(getattr(value, field.name)) for field in fields(value)))
    return value
