"""A standalone Spark cluster of several hosts, each a network namespace or an address of loopback, and a driver on it;
see ``programs/hosts.py``."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pyspark
from jvm import ARCHIVE, QUICK

SPARK = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).parent / "programs" / "hosts.py"
MASTER, ONE, OTHER, CLIENT = range(4)
"""The hosts: of master and driver, of Spark's two workers, and of a client."""
CORES = 2
WAIT_S = 60


class Hosts:
    """Where processes run. ``addresses``: of each host."""

    addresses: Sequence[str]

    def on(self, host: int) -> list[str]:
        """What a command begins with that is to run on this host."""
        raise NotImplementedError

    def close(self) -> None: ...


class LoopbackHosts(Hosts):
    """Hosts that differ in their address alone: all can reach all."""

    addresses = tuple(f"127.0.0.{number}" for number in (1, 2, 3, 4))

    def on(self, host: int) -> list[str]:
        return []


class NamespaceHosts(Hosts):
    """Each host has a network of its own, with a loopback that others do not reach; a bridge joins them.

    Raises OSError where none can be made.
    """

    addresses = tuple(f"10.77.0.{number}" for number in (1, 2, 3, 4))

    def __init__(self) -> None:
        self._names = [f"upriver-{os.getpid()}-{host}" for host in range(len(self.addresses))]
        try:
            self._set_up()
        except OSError:
            self.close()
            raise

    def _set_up(self) -> None:
        first = self._names[0]
        for name in self._names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", first, "link", "add", "br0", "type", "bridge")
        _ip("-n", first, "addr", "add", f"{self.addresses[0]}/24", "dev", "br0")
        _ip("-n", first, "link", "set", "br0", "up")
        for host, name in enumerate(self._names[1:], start=1):
            _ip("link", "add", f"v{host}", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", first, "link", "set", f"v{host}", "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def on(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self._names[host]]

    def cut(self, host: int, other: int) -> None:
        """What a host sends to another one is lost from now on; the other way is open."""
        nowhere = ("lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", "eth0")
        _ip("-n", self._names[host], "neigh", "replace", self.addresses[other], *nowhere)

    def mend(self, host: int, other: int) -> None:
        """It arrives again."""
        _ip("-n", self._names[host], "neigh", "del", self.addresses[other], "dev", "eth0")

    def close(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")


class StandaloneCluster:
    """Spark's master and two workers of ``CORES`` task slots, and a driver that is told what to do.

    directory: of their logs, and of the lakes.
    """

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.hosts, self._directory = hosts, directory
        self._processes: list[subprocess.Popen[str]] = []
        port = _free_port()
        self._master = f"spark://{hosts.addresses[MASTER]}:{port}"
        master = self._java(MASTER, "Master", "--port", str(port), stderr=subprocess.PIPE)
        assert master.stderr is not None
        _wait_for("New state: ALIVE", master.stderr)
        for host in (ONE, OTHER):
            room = ["--cores", str(CORES), "--memory", "2g", "--work-dir", str(directory / f"work-{host}")]
            self._java(host, "Worker", *room, self._master)
        driver = [sys.executable, str(PROGRAM), self._master, hosts.addresses[MASTER], str(directory / "lake")]
        self._driver = self._start(MASTER, driver, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, command: str, *arguments: Any) -> dict[str, Any]:
        """What the driver says."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(f"{command} {json.dumps(arguments)}\n")
        self._driver.stdin.flush()
        told: dict[str, Any] = json.loads(self._driver.stdout.readline())
        return told

    def run(self, host: int, code: str) -> str:
        """What a Python program prints on a host."""
        run = [*self.hosts.on(host), sys.executable, "-c", code]
        return subprocess.run(run, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout

    def stop(self) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=WAIT_S)
        self.hosts.close()

    def _java(self, host: int, kind: str, *arguments: str, **streams: Any) -> "subprocess.Popen[str]":
        archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []
        java = ["java", *QUICK.split(), "-Xmx300m", *archive, "-cp", str(SPARK / "jars" / "*")]
        listen = ["--host", self.hosts.addresses[host], "--webui-port", "0"]
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        return self._start(host, [*java, main, *listen, *arguments], **streams)

    def _start(self, host: int, command: list[str], **streams: Any) -> "subprocess.Popen[str]":
        own = {
            "SPARK_HOME": str(SPARK),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": self.hosts.addresses[host],
            "SPARK_LOCAL_DIRS": str(self._directory / f"scratch-{host}"),
        }
        with (self._directory / "log").open("a") as log:
            process = subprocess.Popen(
                [*self.hosts.on(host), *command],
                text=True,
                start_new_session=True,
                env={**os.environ, **own},
                **{"stderr": log, **streams},
            )
        self._processes.append(process)
        return process


def _wait_for(said: str, log: IO[str]) -> None:
    """Block until a process logs this; what it logs later is read and forgotten."""
    assert any(said in line for line in log), f"it never said {said!r}"
    threading.Thread(target=deque, args=(log, 0), daemon=True).start()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
