"""What is read of the lake by key, apart from slices of epochs."""

from dataclasses import dataclass

from upriver.ids import Channel, Epoch
from upriver.xxh64 import Hashes


@dataclass(frozen=True, slots=True)
class Read:
    """All rows on a lake edge of these keys (hash64, ascending, each once), of the epochs after ``after`` up to and
    including ``through``: sorted by hash64, and those of one key in order of epoch and run."""

    channel: Channel
    keys: Hashes
    after: Epoch
    through: Epoch
