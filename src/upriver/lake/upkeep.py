"""Compaction and collection of a root whose app is stopped. A running app does both by itself."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from upriver.errors import DeclarationError
from upriver.ids import Term
from upriver.lake.collection import RemovedFiles, collect, remove_litter, superseded
from upriver.lake.ingest_history import IngestHistory, check_taken
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, term_path
from upriver.lake.report import horizon_of_stopped


def existing(root: str) -> tuple[Lake, LakeRecord]:
    """The lake at a root, and its record. Raises DeclarationError if there is none, CorruptFile."""
    lake = Lake(root)
    record = lake.record()
    if record is None:
        lake.check_not_foreign()
        raise DeclarationError(f"root={str(root)!r}: there is no app's lake")
    return lake, record


@contextmanager
def taken(root: str) -> Iterator[OwnedLake]:
    """The lake, taken as a driver takes it, with everything declared as it is kept; released in the end.

    Reads every span first. Raises LakeInUse if an app runs on it, CorruptFile if epochs are missing, and
    DeclarationError if there is no lake.
    """
    lake, record = existing(root)
    owned = OwnedLake(root, record, _facts(lake))
    try:
        history = IngestHistory()
        for span in owned.spans(owned.last_epoch()):
            history.add(owned.epochs(span))
        check_taken(owned, history)
        yield owned
    finally:
        owned.release()


def _facts(lake: Lake) -> dict[str, Any]:
    """This process, and what the last driver has recorded: readers need some of that."""
    term = lake.last_number("control")
    last = lake.read_record(term_path(Term(term))) if term else {}
    of_driver = {name: fact for name, fact in last.items() if name not in ("term", "owner")}
    return {**of_driver, "host": socket.gethostname(), "process": os.getpid(), "started_at": time.time()}


def collect_all(lake: OwnedLake, grace_s: float) -> RemovedFiles:
    """Remove everything that is not needed any more. grace_s: seconds for which replaced files stay. Raises
    CorruptFile, LakeInUse."""
    lake.sweep()
    total, horizon, made_before = RemovedFiles(), horizon_of_stopped(lake), time.time() - grace_s
    while spans := list(superseded(lake, horizon, made_before)):
        removed = collect(lake, spans)
        total += removed
        if not removed.epochs:
            break  # damage: these files stay
    return total + remove_litter(lake, lake.run_paths())
