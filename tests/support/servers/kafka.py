"""A Kafka broker on loopback, one node that is its own controller (KRaft), for the tests of a process."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from servers.maven import Jars, Missing

VERSION = "4.3.1"
BROKER = Jars(f"org.apache.kafka:kafka_2.13:{VERSION}", more=("org.slf4j:slf4j-nop:1.7.36",))
START_S_MAX = 60.0
"""Seconds from the start of the JVM to the first answer."""
SEND_S_MAX = 60.0
HEAP = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
num.network.threads=1
num.io.threads=2
"""


class KafkaBroker:
    """The broker. directory: of its data, which outlives a restart. Raises Missing where it cannot run.

    ``servers``: what ``kafka.bootstrap.servers`` takes. The broker ends with this process.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which("java") is None:
            raise Missing("Kafka needs java, which is not on the PATH")
        try:
            from confluent_kafka import admin
        except ImportError as error:
            raise Missing("the tests with Kafka need the package confluent-kafka") from error
        self._class_path = ":".join(map(str, BROKER.fetched()))
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        port, controller = _free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        self._properties = directory / "server.properties"
        self._properties.write_text(PROPERTIES.format(port=port, controller=controller, directory=directory))
        ours = {"reconnect.backoff.max.ms": 200, "log_level": 0}
        self._client_settings: dict[str, Any] = {"bootstrap.servers": self.servers, **ours}
        self._api: Any = admin  # what it exports, it does not tell
        self._admin = self._api.AdminClient(self._client_settings)
        identity = self._tool("random-uuid").strip().splitlines()[-1]
        self._tool("format", "-t", identity, "-c", str(self._properties))
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Start it, on its port and its data, and wait until it answers."""
        java = ["java", *HEAP, "-cp", self._class_path, "kafka.Kafka", str(self._properties)]
        # The shell outlives neither this process nor the broker: reading ends when this process does.
        guard = 'exec 3<&0; "$@" 3<&- </dev/null & broker=$!; read _ <&3; kill -9 $broker; wait $broker'
        with (self._directory / "broker.log").open("a") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", guard, "broker", *java], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
            )
        self._admin.list_topics(timeout=START_S_MAX)

    def stop(self) -> None:
        """Kill it; what it has acknowledged is in its log."""
        if self._process is not None:
            self._process.communicate("stop\n")
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def topic(self, partitions: int = 1, name: str | None = None) -> str:
        """Make a topic, by default of a name that no other has; returns the name."""
        name = name or f"topic-{uuid4().hex[:12]}"
        for made in self._admin.create_topics([self._api.NewTopic(name, partitions, 1)]).values():
            made.result(SEND_S_MAX)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic partitions, so that it has so many."""
        for grown in self._admin.create_partitions([self._api.NewPartitions(topic, partitions)]).values():
            grown.result(SEND_S_MAX)

    def send(self, topic: str, rows: Iterable[tuple[Any, Mapping[str, Any] | None]], partition: int = -1) -> None:
        """Send messages in order and wait for all: of each its key and its value, both as JSON; ``None``: no value.

        partition: the same for all; by default the key says which.
        """
        from confluent_kafka import Producer

        producer = Producer({**self._client_settings, "enable.idempotence": True})
        failed: list[str] = []
        for key, value in rows:
            producer.produce(
                topic,
                key=json.dumps(key),
                value=None if value is None else json.dumps(value),
                partition=partition,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
            producer.poll(0)
        assert producer.flush(SEND_S_MAX) == 0, "messages are not acknowledged"
        assert not failed, failed[0]

    def _tool(self, *arguments: str) -> str:
        command = ["java", *HEAP, "-cp", self._class_path, "kafka.tools.StorageTool", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_S_MAX).stdout


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now. Another process may take one before it is bound, which fails the start."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
