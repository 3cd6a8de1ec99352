"""How far sources were read through, looked at again and again; the coordinator tells clients what comes of it."""

import threading
import time
from collections.abc import Mapping

from upriver.errors import UpriverError
from upriver.machines.freshness import FAILED, RUNNING
from upriver.shell.coordinator_loop import CoordinatorLoop
from upriver.spark.ingest import EpochLog, Ingest

LOOK_EVERY_S = 0.5
"""Seconds between two looks. Ages of answers are known as exactly as that."""
FIRST_LOOKS_S = 0.05
"""The same until every source was read through once, so that an app is ready as soon as it can be."""


class SourceWatch:
    """Of a river's sources. ingests: by table."""

    def __init__(self, ingests: Mapping[str, Ingest], log: EpochLog, coordinator: CoordinatorLoop) -> None:
        self._ingests = ingests
        self._log = log
        self._coordinator = coordinator
        self._one_at_a_time = threading.Lock()
        self._unread = set(ingests)
        """Tables whose source was not read through yet."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver-source-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Tell the coordinator how far each source was read through by now."""
        with self._one_at_a_time:
            for table, ingest in self._ingests.items():
                self._look_at(table, ingest)

    def _look_at(self, table: str, ingest: Ingest) -> None:
        try:
            until = ingest.read_through()
        except UpriverError as error:
            self._coordinator.source_stands(table, FAILED, str(error).partition("\n")[0])
            return
        self._coordinator.source_stands(table, RUNNING)
        if until is not None:
            self._unread.discard(table)
            # What was published by ``until`` is in the log by now.
            self._coordinator.read_through(table, time.monotonic() - (time.time() - until), self._log.last)

    def _run(self) -> None:
        while not self._stopping.wait(FIRST_LOOKS_S if self._unread else LOOK_EVERY_S):
            self.look()

    def stop(self) -> None:
        """Look no more; returns when no look is under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
