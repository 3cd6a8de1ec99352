"""Processes of a small cluster that are killed or stopped, while a prober looks keys up: no answer is ever wrong.

Each test prints what it has measured; ``pytest -s`` shows it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from failure_kit import KEYS, Feed, Prober, Replacement, addresses, is_there, parent_of, probing

from upriver.bench.recovery_kill import pid_listening
from upriver.client import Client, connect
from upriver.errors import WorkerLost, WrongOwner
from upriver.hashing import hash64
from upriver.ids import WorkerId
from upriver.shell.lookup import LookupStream
from upriver.shell.remote import Connection, Remote
from upriver.vnodes import VNODES_DEFAULT, VnodeMap, vnodes_of

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).parent / "programs" / "failures.py"
CLUSTER, ALONE = "local-cluster[2,2,1024]", "local[4]"
KEY = pa.schema([("k", pa.int64())])


class River:
    """A driver in a process of its own, its client, and what feeds it."""

    def __init__(self, directory: Path) -> None:
        self.feed = Feed(directory / "events")
        self._root = directory / "lake"
        self.feed.feed(2)
        self.start(CLUSTER)

    def start(self, master: str) -> None:
        command = [sys.executable, str(PROGRAM), master, str(self._root), str(self.feed.directory)]
        self.driver = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.told = self._hear()
        self.client: Client = connect(self.told["address"], self.told["token"])

    def _hear(self) -> dict[str, Any]:
        assert self.driver.stdout is not None
        return json.loads(self.driver.stdout.readline())

    def keys_at(self, worker: int) -> pa.RecordBatch:
        """All keys of a worker."""
        keys = pa.array(range(KEYS), pa.int64())
        vnode_map = VnodeMap.initial(VNODES_DEFAULT, [WorkerId(0), WorkerId(1)])
        owners = vnode_map.owners_of(vnodes_of(hash64([keys], KEYS), VNODES_DEFAULT))
        return pa.RecordBatch.from_arrays([keys.filter(pa.array(owners == worker))], schema=KEY)

    def streams_to(self, address: str, count: int) -> list[LookupStream]:
        """Open streams to one worker, past any client."""
        connection = Connection(Remote(address, self.told["token"]), WorkerLost)
        return [LookupStream(connection, "sums", KEY, 10.0) for _ in range(count)]

    def check(self) -> None:
        """The view has all that was fed, and is what Spark says."""
        assert self.driver.stdin is not None
        self.driver.stdin.write(f"check {self.feed.fed}\n")
        self.driver.stdin.flush()
        assert self._hear() == {"keys": KEYS, "differing": 0}

    def stop(self) -> None:
        self.client.close()
        self.driver.communicate(timeout=60)


@pytest.fixture(scope="module")
def river(tmp_path_factory: pytest.TempPathFactory) -> Iterator[River]:
    running = River(tmp_path_factory.mktemp("failures"))
    yield running
    running.stop()


def survive(river: River, prober: Prober, worker: int, old: str, what: str) -> None:
    """Another takes the worker's place, takes in what is fed meanwhile, and answers."""
    harmed = Replacement()
    prober.measure()
    river.feed.feed()
    harmed.wait(river.client, worker, old)
    river.client.lookup("sums", prober.keys, at_least=river.feed.fed, timeout=60)
    served_s = time.monotonic() - harmed.began
    river.check()
    recoveries = river.client.status()["recoveries"]  # an executor may have had both workers
    assert [told["served_again_s"] > 0 for told in recoveries if told["worker"] == worker][-1:] == [True]
    print(f"\n{what}: noticed after {harmed.noticed_s:.2f} s, replaced {harmed.replaced_s:.2f} s,", end=" ")
    print(f"new rows {served_s:.2f} s; the longest that a lookup waited was {prober.gap_s:.2f} s")


def test_a_python_worker_that_is_killed(river: River) -> None:
    old = addresses(river.client)[0]
    assert old is not None
    with probing(river.client, river.feed) as prober:
        os.kill(pid_listening(old), signal.SIGKILL)
        survive(river, prober, 0, old, "kill -9 of a Python worker")
    assert addresses(river.client)[0] != old


def test_an_executor_that_is_killed(river: River) -> None:
    old = addresses(river.client)[1]
    assert old is not None
    executor = parent_of(parent_of(pid_listening(old)))
    with probing(river.client, river.feed) as prober:
        os.kill(executor, signal.SIGKILL)
        survive(river, prober, 1, old, "kill -9 of an executor")
    assert not is_there(executor)


def test_a_worker_that_was_stopped_and_replaced_may_not_speak_when_it_wakes(river: River) -> None:
    old = addresses(river.client)[0]
    assert old is not None
    process = pid_listening(old)
    streams = river.streams_to(old, 8)
    with probing(river.client, river.feed) as prober:
        os.kill(process, signal.SIGSTOP)
        try:
            survive(river, prober, 0, old, "SIGSTOP of a Python worker")
            for stream in streams:
                stream.ask(river.keys_at(0), None, False, 30.0)  # it finds these when it wakes up
        finally:
            os.kill(process, signal.SIGCONT)
        for stream in streams:
            with pytest.raises((WrongOwner, WorkerLost)):
                stream.answer()
            stream.close()
        river.check()


def ask_without_end(stream: LookupStream, keys: pa.RecordBatch) -> None:
    """Ask for some keys for a minute."""
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        stream.ask(keys, None, False, 30.0)
        stream.answer()


def test_l1_workers_whose_driver_stands_still_say_nothing_and_go_on_after_it(river: River) -> None:
    before = addresses(river.client)
    assert before[0] is not None
    (stream,) = river.streams_to(before[0], 1)
    os.kill(river.driver.pid, signal.SIGSTOP)
    try:
        with pytest.raises(WrongOwner, match="lost touch with its coordinator"):
            ask_without_end(stream, river.keys_at(0))  # it answers until its lease has run out
    finally:
        os.kill(river.driver.pid, signal.SIGCONT)
    stream.close()
    river.check()
    assert addresses(river.client) == before


def test_a_driver_that_is_killed_and_started_again_on_the_same_root(river: River) -> None:
    client = river.client
    with probing(client, river.feed):
        river.driver.kill()
        river.driver.communicate(timeout=30)
        client.close()  # nobody would answer it
    began = time.monotonic()
    river.feed.feed()
    river.start(ALONE)
    with probing(river.client, river.feed) as prober:
        river.client.lookup("sums", prober.keys, at_least=river.feed.fed, timeout=60)
        print(f"\nkill -9 of the driver: served {time.monotonic() - began:.2f} s after it was started again")
        river.check()
