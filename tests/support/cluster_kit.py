"""A driver in a process of its own, whose processes tests harm; see ``programs/failures.py``."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from failure_kit import FILES, KEYS, LOOKUP_S_MAX, Feed
from lookup_kit import KeysAsked, LookupStream

from upriver.client.client import Client, connect
from upriver.hashing import hash64
from upriver.net.remote import Remote
from upriver.vnodes import vnodes_of

PROGRAM = Path(__file__).parent / "programs" / "failures.py"
CLUSTER, ALONE = "local-cluster[2,2,1024]", "local[4]"
KEY = pa.schema([("k", pa.int64())])


class RunningCluster:
    """A driver in a process of its own, its client, and what feeds it.

    settings: of the app. log: what the driver, and Spark, say of themselves.
    """

    program = PROGRAM
    arguments: tuple[str, ...] = ()
    """Further ones of the program."""

    def __init__(self, directory: Path, master: str = CLUSTER, files: int = FILES, **settings: Any) -> None:
        self.feed = Feed(directory / "events", files)
        self._root, self._settings = directory / "lake", json.dumps(settings)
        self.log = directory / "driver.log"
        self.feed.feed(2)
        self.start(master)

    def start(self, master: str) -> None:
        given = [master, str(self._root), str(self.feed.directory), self._settings, *self.arguments]
        command = [sys.executable, str(self.program), *given]
        with self.log.open("a") as log:
            self.driver = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.told = self._hear()
        self.client: Client = connect(self.told["address"], self.told["token"])

    def _hear(self) -> dict[str, Any]:
        assert self.driver.stdout is not None
        told: dict[str, Any] = json.loads(self.driver.stdout.readline())
        return told

    def ask(self, command: str) -> dict[str, Any]:
        """What the driver says to a line."""
        assert self.driver.stdin is not None
        self.driver.stdin.write(f"{command}\n")
        self.driver.stdin.flush()
        return self._hear()

    def all_at(self, worker: int) -> KeysAsked:
        """What to ask for, past any client, to be given all keys of a worker."""
        keys, owners = pa.array(range(KEYS), pa.int64()), np.array(self.ask("group")["owners"])
        mine = owners[vnodes_of(hash64([keys], KEYS), len(owners))] == worker
        batch = pa.RecordBatch.from_arrays([keys.filter(pa.array(mine))], schema=KEY)
        return KeysAsked("sums", batch, hash64(batch.columns), at_least=None, together=False, timeout=LOOKUP_S_MAX)

    @contextmanager
    def streams_to(self, address: str, count: int) -> Iterator[list[LookupStream]]:
        """Open streams to one worker, past any client."""
        remote = Remote.parse(address, self.told["token"])
        with ExitStack() as opened:
            streams = [LookupStream(remote, 10.0) for _ in range(count)]
            for stream in streams:
                opened.callback(stream.close)
            yield streams

    def check(self) -> None:
        """The views have all that was fed, and are what Spark says."""
        assert self.ask(f"check {self.feed.fed}") == {"keys": KEYS, "differing": 0}

    def stop(self) -> None:
        self.client.close()
        self.driver.communicate(timeout=60)
