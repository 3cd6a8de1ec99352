"""The witness of workers' exits, with processes that are killed: rule leases.over_when_ended."""

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from server_kit import SECONDS_MAX, keys_of, peer_of
from tls_kit import IDENTITY

from upriver.net.handshake import Purpose
from upriver.net.server import Server
from upriver.net.tls import TlsIdentity
from upriver.runtime.exit_witness import ExitNotices, ExitWitness

ROOT = Path(__file__).parent.parent.parent
DAEMON = """
import os, pickle, signal, sys
from upriver.runtime.exit_witness import ExitWitness

witness = ExitWitness.fork()
for attempt in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        is_watched = witness.watch(pickle.loads(bytes.fromhex(sys.argv[2])), 1, 2, attempt)
        os.write(1, f"{attempt} {os.getpid()} {is_watched}\\n".encode())
        signal.pause()
if "end" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""
"""As Spark's daemon: it forks the witness, then workers. Each says its attempt, its pid, and whether it is watched."""

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no handles of processes")


class World:
    """A coordinator's server, and daemons with workers."""

    def __init__(self, tls: TlsIdentity | None = None) -> None:
        self._tls = tls
        self.heard: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self.server = Server(keys_of(tls), {Purpose.EXIT: ExitNotices(self.heard.put)})
        self._daemons: list[subprocess.Popen[str]] = []
        self._workers: list[int] = []

    def start(self, workers: int, *, address: str | None = None, ends: bool = False) -> dict[int, tuple[int, bool]]:
        """A daemon with so many workers. Returns their numbers by attempt, and whether they are watched."""
        remote = peer_of(address or self.server.address, self._tls)
        arguments = [str(workers), pickle.dumps(remote).hex(), *(["end"] if ends else [])]
        daemon = subprocess.Popen(
            [sys.executable, "-c", DAEMON, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        self._daemons.append(daemon)
        assert daemon.stdout is not None
        told = [daemon.stdout.readline().split() for _ in range(workers)]
        self._workers += [int(pid) for _, pid, _ in told]
        return {int(attempt): (int(pid), is_watched == "True") for attempt, pid, is_watched in told}

    def stop(self) -> None:
        for worker in self._workers:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for daemon in self._daemons:
            daemon.kill()
            daemon.communicate()
        self.server.stop()


@pytest.fixture(params=[None, IDENTITY], ids=["plain", "tls"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.stop()


def test_a_worker_that_is_killed_is_told_of_and_no_other(world: World) -> None:
    workers = world.start(3)
    assert [is_watched for _, is_watched in workers.values()] == [True] * 3
    os.kill(workers[1][0], signal.SIGKILL)
    assert world.heard.get(timeout=SECONDS_MAX) == {"worker": 1, "life": 2, "attempt": 1}
    os.kill(workers[0][0], signal.SIGKILL)
    assert world.heard.get(timeout=SECONDS_MAX)["attempt"] == 0
    assert world.heard.empty()


def test_a_worker_that_is_stopped_has_not_exited(world: World) -> None:
    workers = world.start(2)
    os.kill(workers[0][0], signal.SIGSTOP)
    os.kill(workers[1][0], signal.SIGKILL)
    assert world.heard.get(timeout=SECONDS_MAX)["attempt"] == 1
    assert world.heard.empty()
    os.kill(workers[0][0], signal.SIGKILL)
    assert world.heard.get(timeout=SECONDS_MAX)["attempt"] == 0


def test_the_witness_outlives_the_daemon_as_long_as_workers_do(world: World) -> None:
    workers = world.start(2, ends=True)
    for pid, _ in workers.values():
        os.kill(pid, signal.SIGKILL)
    assert {world.heard.get(timeout=SECONDS_MAX)["attempt"] for _ in workers} == {0, 1}


def test_a_worker_that_does_not_reach_the_coordinator_goes_without_a_witness(world: World) -> None:
    world.server.stop()
    assert [is_watched for _, is_watched in world.start(1).values()] == [False]


def test_where_processes_have_no_handles_there_is_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert ExitWitness.fork() is None
