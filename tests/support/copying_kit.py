"""Short words for tests of a worker's part of checkpoints: what is asked, and what was copied. See machines_kit."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from machines_kit import KEYS, SEEN, Seen, hashed

from upriver.engine.batch import Batch
from upriver.ids import Epoch
from upriver.protocol.messages import DropCheckpoint, KeepCheckpoint, TakeCheckpoint
from upriver.protocol.worker_events import SealState, ShareAction, StateRead, TimeToCopy, WriteState
from upriver.state.checkpoint import StateChunk

A, B, C = KEYS[0][0], KEYS[3][0], KEYS[5][0]
"""Keys of different slices, ascending by hash64."""
NAMES = {int(hashed([key])[0]): key for keys in KEYS for key in keys}


class Fading(Seen):
    """A key is gone with its second row, until it has a third one."""

    def apply(self, port: int, batch: Batch) -> None:
        super().apply(port, batch)
        self.epochs = {key: epochs for key, epochs in self.epochs.items() if len(epochs) < 2}


# What is asked -------------------------------------------------------------------------------------------------------


def take(checkpoint: int, at: int, whole: bool = False) -> TakeCheckpoint:
    return TakeCheckpoint(checkpoint=checkpoint, at=Epoch(at), whole=whole)


def keep(checkpoint: int) -> KeepCheckpoint:
    return KeepCheckpoint(checkpoint=checkpoint)


def drop(checkpoint: int) -> DropCheckpoint:
    return DropCheckpoint(checkpoint=checkpoint)


def copy(keys_max: int = 100) -> TimeToCopy:
    return TimeToCopy(keys_max=keys_max)


def state_read(seen: Mapping[str, list[int]], region: str = "seen") -> StateRead:
    """What checkpoints have of these keys."""
    batch = pa.RecordBatch.from_pylist([{"k": key, "seen": epochs} for key, epochs in seen.items()], schema=SEEN)
    return StateRead(region=region, chunk=StateChunk(np.sort(hashed(list(seen))), (batch,)))


# What came out -------------------------------------------------------------------------------------------------------


def copied(actions: Sequence[ShareAction]) -> dict[str, list[int]]:
    """By key, ascending by hash64, the epochs that the checkpoint has; none for a key that is gone."""
    found: dict[str, list[int]] = {}
    for chunk in [action.chunk for action in actions if isinstance(action, WriteState)]:
        keys = chunk.keys.tolist()
        assert keys == sorted(set(keys))
        assert len(keys) > 0
        rows = {row["k"]: row["seen"] for part in chunk.parts for row in part.to_pylist()}
        names = [NAMES[key] for key in keys]
        assert rows.keys() <= set(names)
        assert found.keys().isdisjoint(names)
        found |= {name: rows.get(name, []) for name in names}
    return found


def sealed(actions: Sequence[ShareAction]) -> list[SealState]:
    return [action for action in actions if isinstance(action, SealState)]
