"""Object stores without a server."""

from pathlib import Path

from obstore.store import LocalStore, MemoryStore

from upriver.lake.object_store import ObjectStoreFiles, StoreClients


def files_in_memory() -> ObjectStoreFiles:
    store = MemoryStore()
    return ObjectStoreFiles(StoreClients(store, store, store), "memory://lake")


def files_in_store_at(directory: Path) -> ObjectStoreFiles:
    """Objects that are files in a directory."""
    store = LocalStore(directory, mkdir=True)
    return ObjectStoreFiles(StoreClients(store, store, store), str(directory))
