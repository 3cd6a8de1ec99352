"""Real servers and formats for tests: jars that Maven fetches once, and a Kafka broker. A test that needs what is not
here is skipped, with the reason."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark
import pytest

SERVERS = Path(__file__).parent / "servers"
FETCH_S_MAX = 240.0
"""Seconds for some 50 MB in a hundred files."""
BROKER_S_MAX = 60.0
"""Seconds in which a broker begins to listen."""
POLL_S = 0.2
CACHE = "UPRIVER_TEST_JARS"
"""The variable of the environment that names the directory of the jars; by default one below the environment's."""
_FIT = {"delta": "4.2", "iceberg": "4.1"}
"""By format: the version of Spark that its jars are for."""


def spark_jars(name: str) -> str:
    """For ``spark.jars``: the jars of a file in ``servers``. Skips the test if they do not fit this Spark."""
    wanted, own = _FIT.get(name), ".".join(pyspark.__version__.split(".")[:2])
    if wanted not in (None, own):
        pytest.skip(f"{name} is fetched for Spark {wanted}, and this is {own}")
    brought = {jar.name.rpartition("-")[0] for jar in Path(pyspark.__file__).parent.glob("jars/*.jar")}
    return ",".join(str(jar) for jar in sorted(jars(name).glob("*.jar")) if jar.name.rpartition("-")[0] not in brought)


def jars(name: str) -> Path:
    """The directory of the jars that ``servers/<name>.xml`` names. Skips the test where Maven cannot fetch them."""
    pom = SERVERS / f"{name}.xml"
    found = Path(os.environ.get(CACHE, sys.prefix)) / f"jars-{name}"
    if found.exists():
        return found
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"the jars of {name} are fetched by mvn, which is not on the PATH")
    found.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=found.parent) as directory:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={directory}/jars"]
        try:
            command = [maven, "-q", "-B", "-f", str(pom), *goal]
            subprocess.run(command, capture_output=True, check=True, timeout=FETCH_S_MAX)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"mvn cannot fetch the jars of {name}: {error}")
        if not found.exists():  # another process may have been faster
            Path(directory, "jars").rename(found)
    return found


@contextmanager
def kafka_broker(folder: Path) -> Iterator[str]:
    """A broker that keeps its log in a folder; gives its address. It ends with the block."""
    port, log = free_ports(), folder / "broker.log"
    with log.open("w") as out:
        command = [str(SERVERS / "kafka.sh"), str(jars("kafka")), str(folder / "kafka"), str(port)]
        broker = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            await_port(port, broker, log)
            yield f"127.0.0.1:{port}"
        finally:
            broker.kill()
            broker.wait()


def free_ports() -> int:
    """A port that is free, as the next one is."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def await_port(port: int, server: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at = time.monotonic() + BROKER_S_MAX
    while time.monotonic() < give_up_at:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"it has ended, {server.wait(POLL_S)}: {log.read_text()[-2000:]}")
    raise AssertionError(f"nothing listens at {port}: {log.read_text()[-2000:]}")
