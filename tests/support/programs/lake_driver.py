"""A driver of a lake without Spark: ``lake_driver.py ROOT OPTIONS``, where OPTIONS are those of the store, as JSON.

It says its term, or why it has none. Then it does what each line of input says, and says ``done`` or why not.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from segments_kit import EVENTS, INDEXES, USERS, VNODES, compacted, publish

from upriver.errors import UpriverError
from upriver.lake.address import Root
from upriver.lake.collection import RemovedFiles, remove_litter
from upriver.lake.ingest_history import fence
from upriver.lake.lake import LakeRecord, OwnedLake


def said(work: Callable[[], object]) -> str:
    try:
        work()
    except UpriverError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def swept(lake: OwnedLake) -> RemovedFiles:
    fence(lake)
    lake.sweep()
    return remove_litter(lake, lake.run_paths())


def main(address: str, options: str) -> None:
    root = Root(address, json.loads(options)) if options else address
    facts = {"process": os.getpid(), "host": "here"}
    try:
        lake = OwnedLake(root, LakeRecord(VNODES, (EVENTS, USERS), INDEXES), facts)
    except UpriverError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return
    print(lake.term, flush=True)
    works: dict[str, Callable[[], object]] = {
        "publish": lambda: publish(lake, EVENTS, [(lake.last_epoch(), lake.last_epoch())]),
        "compact": lambda: compacted(lake),
        "sweep": lambda: swept(lake),
    }
    for line in sys.stdin:
        print(said(works[line.strip()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
