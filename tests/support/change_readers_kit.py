"""Readers of a view's changes that outlive every process of its app, and what each of them must have had at the end:
each change once, and the view as their sum."""

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from changes_kit import Rows
from relay_kit import Relay

from upriver.client.client import connect
from upriver.client.subscriptions import THROUGH
from upriver.errors import ClusterError

COMES = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}
TOKEN = "s3cret-t0ken"
ANSWER_S_MAX = 600.0
"""Seconds for which a subscriber takes no answer: a driver may be killed soon after it has come."""
POLL_S = 1.0
IDLE_POLLS = 5
"""Polls of a topic without a message, after which all are read."""
Told = tuple[int, int, int, str, int]
"""A change: key, count, sum, type and version."""


def check_once(changes: Iterable[Told], view: Rows) -> int:
    """Each change comes once, in order for each key, and their sum is the view; how many there are."""
    total, once, newest = Rows(), Counter[tuple[int, int, str]](), dict[int, int]()
    for key, n, value, kind, version in changes:
        total[key, n, value] += COMES[kind]
        once[key, version, kind] += 1
        assert version >= newest.get(key, 0), (key, version)
        newest[key] = version
    assert {each: times for each, times in once.items() if times > 1} == {}
    assert {row: times for row, times in total.items() if times} == view
    return once.total()


class Subscriber:
    """A client that subscribes to the view, behind one address for all drivers."""

    def __init__(self) -> None:
        self.changes: list[Told] = []
        self.through = 0
        self.fault: Exception | None = None
        self._relay = Relay()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="subscriber")

    def follow(self, address: str | None) -> None:
        """An app has come at this address; ``None``: it is gone."""
        self._relay.target = address
        if address is not None and self._thread.ident is None:
            self._thread.start()

    def _read(self) -> None:
        try:
            with connect(self._relay.address, TOKEN) as client:
                reading = client.subscribe("sums", timeout=ANSWER_S_MAX)
                while not self._is_over.is_set():
                    batch = reading.step()
                    if batch is not None:
                        self.changes += [tuple(row.values())[:5] for row in batch.to_pylist()]
                        self.through = int((batch.schema.metadata or {}).get(THROUGH, b"0"))
        except Exception as error:  # told by ``check``, on the thread of the test
            self.fault = error

    def check(self, view: Rows) -> int:
        if self.fault is not None:
            raise self.fault
        return check_once(self.changes, view)

    def close(self) -> None:
        self._is_over.set()
        self._relay.target = None
        if self._thread.ident is not None:
            self._thread.join()
        with suppress(ClusterError):
            self._relay.__exit__()


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the topic. row: ``None`` without a value."""

    key: int
    kind: str
    version: int
    row: tuple[int, int, int] | None
    partition: int


@dataclass
class CountingConsumer:
    """A consumer that counts: of each key, it takes what is newer than what it has. repeated: what it has left out."""

    newest: dict[int, Message] = field(default_factory=dict)
    taken: dict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))
    repeated: int = 0
    faults: list[str] = field(default_factory=list)

    def take(self, message: Message) -> None:
        last = self.newest.get(message.key)
        if last is not None and message.partition != last.partition:
            self.faults.append(f"in another partition: {message}")
        if last is None or message.version > last.version:
            self.taken[message.key].append(message)
            self.newest[message.key] = message
            return
        self.repeated += 1
        if message not in self.taken[message.key]:
            self.faults.append(f"not had before, and not newer than {last}: {message}")

    def check(self, last: Mapping[int, Message], changes: Iterable[Told], view: Rows) -> None:
        """last: the last message of each key. changes: all of them, each once."""
        told = defaultdict(list)
        for key, n, value, kind, version in changes:
            if kind != "update_preimage":
                told[key].append((kind, version, None if kind == "delete" else (key, n, value)))
        assert self.faults == []
        taken = {key: [(each.kind, each.version, each.row) for each in own] for key, own in self.taken.items()}
        assert taken == told
        assert Rows(message.row for message in last.values() if message.row is not None) == view


class CountedTopic:
    """A topic that a consumer reads at the end, as a whole."""

    def __init__(self, broker: Any) -> None:
        self.servers = broker.servers
        self.name = broker.topic(partitions=3)

    def messages(self) -> list[Message]:
        """All, in the order of each partition."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "counts", "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.name, partition, OFFSET_BEGINNING) for partition in range(3)])
        found: list[Message] = []
        idle = 0
        while idle < IDLE_POLLS:
            some: list[Any] = consumer.consume(10_000, timeout=POLL_S)
            idle = 0 if some else idle + 1
            found += map(_message, some)
        consumer.close()
        return found

    def check(self, changes: Sequence[Told], view: Rows, seconds: float) -> tuple[int, int]:
        """How many changes were counted, and how many messages were repetitions. seconds: until all must be there."""
        wanted = {(key, version) for key, _, _, kind, version in changes if kind != "update_preimage"}
        give_up_at = time.monotonic() + seconds
        messages = self.messages()
        while time.monotonic() < give_up_at and not wanted <= {(each.key, each.version) for each in messages}:
            messages = self.messages()
        consumer, last = CountingConsumer(), dict[int, Message]()
        for message in messages:
            consumer.take(message)
            last[message.key] = message
        consumer.check(last, changes, view)
        return sum(map(len, consumer.taken.values())), consumer.repeated


def _message(got: Any) -> Message:
    assert got.error() is None, got.error()
    headers = {name: text.decode() for name, text in got.headers()}
    value = None if got.value() is None else json.loads(got.value())
    row = None if value is None else (value["k"], value["n"], value["total"])
    key = json.loads(got.key())["k"]
    return Message(key, headers["_change_type"], int(headers["_commit_version"]), row, got.partition())
