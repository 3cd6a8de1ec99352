"""Object stores without a server."""

import threading
from pathlib import Path

import pyarrow as pa
from obstore.store import LocalStore, MemoryStore

from simulator.late_store import StoredFiles
from upriver.lake.object_store import ObjectStoreFiles, StoreClients

HANGS_S_MAX = 60.0
"""Seconds after which a read that hangs fails: a test has forgotten it."""


def files_in_memory() -> ObjectStoreFiles:
    store = MemoryStore()
    return ObjectStoreFiles(StoreClients(store, store, store), "memory://lake")


def files_in_store_at(directory: Path) -> ObjectStoreFiles:
    """Objects that are files in a directory."""
    store = LocalStore(directory, mkdir=True)
    return ObjectStoreFiles(StoreClients(store, store, store), str(directory))


class HangingStore(StoredFiles):
    """A store behind a network, of which one read hangs: the next one of a path that begins with ``slow``.

    hangs: is set when the read hangs. goes_on: set it to let the read go on.
    """

    is_remote = True

    def __init__(self) -> None:
        super().__init__({})
        self.slow: str | None = None
        self.hangs, self.goes_on = threading.Event(), threading.Event()

    def read(self, path: str) -> pa.Buffer:
        if self.slow is not None and path.startswith(self.slow):
            self.slow = None
            self.hangs.set()
            assert self.goes_on.wait(HANGS_S_MAX)
        return super().read(path)
