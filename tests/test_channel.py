"""Channels: order, goodbyes, and what happens when a peer dies, freezes, drowns or refuses."""

import multiprocessing
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from upriver.errors import AccessDenied, ClusterError, ProtocolError, UpriverError, UserError, WaitTimeout, WorkerLost
from upriver.shell.channel import CHANNEL, ChannelEnd, ChannelExchange, ChannelLimits, Receiver, open_channel
from upriver.shell.flight import FlightBase
from upriver.shell.remote import Connection, Remote, end_exchange
from upriver.shell.wire import Message, encode

TOKEN = "s3cret-t0ken"
SECONDS_MAX = 10.0
"""Seconds that a test waits for what must come at once."""
QUICK = ChannelLimits(ping_s=0.05, silence_s_max=0.5)
HELLO = Message("hello", {"worker": 3})


@dataclass(frozen=True)
class Ear:
    """Keeps what a receiver was told."""

    messages: "queue.Queue[Message]" = field(default_factory=queue.Queue)
    closings: "queue.Queue[UpriverError | None]" = field(default_factory=queue.Queue)

    @property
    def receiver(self) -> Receiver:
        return Receiver(self.messages.put, self.closings.put)

    def hear(self) -> Message:
        return self.messages.get(timeout=SECONDS_MAX)

    def closing(self) -> UpriverError | None:
        """What ``on_close`` was told, after all the messages."""
        return self.closings.get(timeout=SECONDS_MAX)


@dataclass(frozen=True)
class Hub:
    """A server that takes every channel; ``ends`` gives each with its ear and hello."""

    limits: ChannelLimits = QUICK
    ends: "queue.Queue[tuple[ChannelEnd, Ear, Message]]" = field(default_factory=queue.Queue)

    def on_open(self, end: ChannelEnd, hello: Message) -> Receiver:
        if hello.kind == "refuse me":
            raise UserError("worker 3 is here already")
        ear = Ear()
        self.ends.put((end, ear, hello))
        return ear.receiver

    def accepted(self) -> tuple[ChannelEnd, Ear]:
        end, ear, _ = self.ends.get(timeout=SECONDS_MAX * 3)
        return end, ear

    def server(self) -> FlightBase:
        return FlightBase(TOKEN, exchanges={CHANNEL: ChannelExchange(self.on_open, self.limits)})


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("upriver-"):
            thread.join(SECONDS_MAX)
            assert not thread.is_alive(), f"{thread.name} is left over"


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def server(hub: Hub) -> Iterator[FlightBase]:
    with hub.server() as running:
        yield running


def call(server: FlightBase, ear: Ear, hello: Message = HELLO, limits: ChannelLimits = QUICK) -> ChannelEnd:
    return open_channel(Remote(server.address, TOKEN), hello, ear.receiver, limits=limits)


def pair(server: FlightBase, hub: Hub) -> tuple[ChannelEnd, Ear, ChannelEnd, Ear]:
    """Both ends of a channel: the one that has opened it, and the server's."""
    ear = Ear()
    end = call(server, ear)
    return end, ear, *hub.accepted()


def close(end: ChannelEnd, *ears: Ear) -> None:
    """Close in good order, and see that both sides are told so, once."""
    end.close()
    for ear in ears:
        assert ear.closing() is None
    for ear in ears:
        assert ear.closings.empty()


def test_a_server_is_told_the_hello_and_may_speak_first(server: FlightBase, hub: Hub) -> None:
    batch = pa.RecordBatch.from_pydict({"vnode": [1, 2]})
    ear = Ear()
    end = call(server, ear, Message("hello", {"worker": 3}, (batch,)))
    theirs, their_ear, hello = hub.ends.get(timeout=SECONDS_MAX)
    assert hello == Message("hello", {"worker": 3}, (batch,))
    theirs.send(Message("assign", {"vnodes": [0, 1]}))
    assert ear.hear() == Message("assign", {"vnodes": [0, 1]})
    close(end, ear, their_ear)


def test_messages_arrive_whole_and_in_order_both_ways(server: FlightBase, hub: Hub) -> None:
    ours, our_ear, theirs, their_ear = pair(server, hub)
    batches = (pa.RecordBatch.from_pydict({"k": ["a", None]}), pa.RecordBatch.from_pydict({"n": range(100_000)}))
    sent = [Message("rows", {"number": number}, batches[: number % 3]) for number in range(100)]
    for message in sent:
        ours.send(message)
        theirs.send(message)
    assert [their_ear.hear() for _ in sent] == sent
    assert [our_ear.hear() for _ in sent] == sent
    close(theirs, our_ear, their_ear)


def test_each_sender_s_messages_stay_in_order(server: FlightBase, hub: Hub) -> None:
    ours, our_ear, _, their_ear = pair(server, hub)

    def send_all(sender: int) -> None:
        for number in range(200):
            ours.send(Message("count", {"sender": sender, "number": number}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send_all, range(4)))
    heard = [their_ear.hear().fields for _ in range(800)]
    for sender in range(4):
        assert [said["number"] for said in heard if said["sender"] == sender] == list(range(200))
    close(ours, our_ear, their_ear)


@pytest.mark.parametrize("closes", ["opener", "server", "both"])
def test_what_was_sent_before_closing_arrives(server: FlightBase, hub: Hub, closes: str) -> None:
    ours, our_ear, theirs, their_ear = pair(server, hub)
    for number in range(50):
        ours.send(Message("ours", {"number": number}))
        theirs.send(Message("theirs", {"number": number}))
    if closes in ("opener", "both"):
        ours.close()
    if closes in ("server", "both"):
        theirs.close()
    assert our_ear.closing() is None
    assert their_ear.closing() is None
    assert [their_ear.hear().fields["number"] for _ in range(50)] == list(range(50))
    assert [our_ear.hear().fields["number"] for _ in range(50)] == list(range(50))


def test_a_closed_end_takes_nothing_more_and_closes_once(server: FlightBase, hub: Hub) -> None:
    ours, our_ear, theirs, their_ear = pair(server, hub)
    ours.close()
    ours.close()
    assert ours.wait_closed(SECONDS_MAX)
    assert theirs.wait_closed(SECONDS_MAX)
    for end in (ours, theirs):
        end.close()
        with pytest.raises(ClusterError, match="closed"):
            end.send(HELLO)
    assert (our_ear.closing(), their_ear.closing()) == (None, None)
    assert our_ear.closings.empty()
    assert their_ear.closings.empty()


def test_a_stopping_server_says_goodbye(hub: Hub) -> None:
    server = hub.server()
    channels = [pair(server, hub) for _ in range(3)]
    server.stop()
    for _, our_ear, _, their_ear in channels:
        assert our_ear.closing() is None
        assert their_ear.closing() is None


# Channels that do not come about


def test_a_refusal_reaches_whoever_opens(server: FlightBase) -> None:
    ear = Ear()
    with pytest.raises(UserError, match=r"^worker 3 is here already$"):
        call(server, ear, Message("refuse me"))
    assert ear.closings.empty()


def test_a_stranger_opens_nothing(server: FlightBase, hub: Hub) -> None:
    ear = Ear()
    with pytest.raises(AccessDenied):
        open_channel(Remote(server.address, "wrong"), HELLO, ear.receiver)
    assert hub.ends.empty()
    assert ear.closings.empty()


def test_a_server_without_channels_says_so() -> None:
    with FlightBase(TOKEN) as server, pytest.raises(ProtocolError, match="no exchange 'channel'"):
        call(server, Ear())


def test_a_server_that_is_gone_is_named() -> None:
    with FlightBase(TOKEN) as server:
        remote = Remote(server.address, TOKEN)
    with pytest.raises(WorkerLost, match=remote.address):
        open_channel(remote, HELLO, Ear().receiver, lost=WorkerLost)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"{address} cannot be reached in 0.2 s"):
            open_channel(Remote(address, TOKEN), HELLO, Ear().receiver, timeout=0.2)


def test_a_welcome_that_does_not_come_is_given_up() -> None:
    asked, answer = threading.Event(), threading.Event()

    def on_open(end: ChannelEnd, hello: Message) -> Receiver:
        asked.set()
        answer.wait(SECONDS_MAX)
        return Ear().receiver

    ear = Ear()
    with FlightBase(TOKEN, exchanges={CHANNEL: ChannelExchange(on_open, QUICK)}) as server:
        with pytest.raises(WaitTimeout, match="welcomed"):
            open_channel(Remote(server.address, TOKEN), HELLO, ear.receiver, timeout=0.2)
        assert asked.wait(SECONDS_MAX)
        answer.set()
    assert ear.closings.empty()


# Peers that go wrong


def test_a_malformed_frame_ends_the_channel(server: FlightBase, hub: Hub) -> None:
    with Connection(Remote(server.address, TOKEN)) as connection:
        writer, reader = connection.exchange(CHANNEL, timeout=SECONDS_MAX)
        writer.write_metadata(encode(HELLO))
        _, ear = hub.accepted()
        writer.write_metadata(b"\x80\x04pickled")
        error = ear.closing()
        end_exchange(writer, reader)
    assert isinstance(error, ProtocolError)
    assert "malformed" in str(error)


def test_a_receiver_that_fails_ends_the_channel_on_both_sides(server: FlightBase, hub: Hub) -> None:
    closings: queue.Queue[UpriverError | None] = queue.Queue()
    receiver = Receiver(lambda message: print(message.fields["missing"]), closings.put)
    open_channel(Remote(server.address, TOKEN), HELLO, receiver, limits=QUICK)
    theirs, their_ear = hub.accepted()
    theirs.send(Message("anything"))
    error = closings.get(timeout=SECONDS_MAX)
    assert isinstance(error, ProtocolError)
    assert "KeyError: 'missing'" in str(error)
    assert isinstance(their_ear.closing(), WorkerLost)


def send_until_refused(end: ChannelEnd, message: Message) -> None:
    for _ in range(1000):
        end.send(message)


@pytest.mark.parametrize(
    ("limits", "size", "match"),
    [
        (ChannelLimits(outbox_messages_max=5, silence_s_max=60), 1 << 20, "5 messages"),
        (ChannelLimits(outbox_bytes_max=5 << 20, silence_s_max=60), 1 << 20, "bytes"),
    ],
)
def test_a_peer_that_does_not_keep_up_is_cut_off(limits: ChannelLimits, size: int, match: str) -> None:
    hub = Hub(limits)
    stuck, ear = threading.Event(), Ear()
    with hub.server() as server:
        receiver = Receiver(lambda _: stuck.wait(SECONDS_MAX) and None, ear.closings.put)
        open_channel(Remote(server.address, TOKEN), HELLO, receiver, limits=limits)
        theirs, their_ear = hub.accepted()
        message = Message("much", {"text": "x" * size})
        with pytest.raises(ClusterError, match=match):
            send_until_refused(theirs, message)
        with pytest.raises(ClusterError, match="closed"):
            theirs.send(message)
        error = their_ear.closing()
        assert isinstance(error, ClusterError)
        assert match in str(error)
        stuck.set()
        assert isinstance(ear.closing(), ClusterError)


def test_one_message_larger_than_the_outbox_goes_through() -> None:
    hub = Hub(ChannelLimits(outbox_bytes_max=10))
    with hub.server() as server:
        ours, our_ear, theirs, their_ear = pair(server, hub)
        theirs.send(Message("much", {"text": "x" * 1000}))
        assert len(our_ear.hear().fields["text"]) == 1000
        close(ours, our_ear, their_ear)


# Other processes


def open_and_wait(address: str, then: str) -> None:
    """A process that opens a channel, and then waits to be killed, freezes, or ends without closing it."""
    closed = threading.Event()
    receiver = Receiver(lambda _: None, lambda _: closed.set())
    open_channel(Remote(address, TOKEN), HELLO, receiver, limits=QUICK)
    if then == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if then == "wait":
        closed.wait()


def serve_and_wait(address: Any, then: str) -> None:
    """A process that serves channels, and then waits to be killed, freezes, or ends without stopping."""
    hub = Hub()
    server = hub.server()
    address.send(server.address)
    _, ear = hub.accepted()
    ear.hear()
    if then == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if then == "wait":
        threading.Event().wait()


@pytest.fixture
def processes() -> Iterator[list[Any]]:
    started: list[Any] = []
    yield started
    for process in started:
        process.kill()
        process.join()


def start(processes: list[Any], target: Any, *arguments: Any) -> Any:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    processes.append(process)
    process.start()
    return process


def test_a_client_killed_is_noticed_at_once(processes: list[Any]) -> None:
    hub = Hub(ChannelLimits())
    with hub.server() as server:
        process = start(processes, open_and_wait, server.address, "wait")
        _, ear = hub.accepted()
        process.kill()
        error = ear.closings.get(timeout=2.0)  # the limit of silence is far beyond
    assert isinstance(error, WorkerLost)
    assert "without a goodbye" in str(error)


def test_a_frozen_client_is_noticed_by_its_silence(processes: list[Any], server: FlightBase, hub: Hub) -> None:
    start(processes, open_and_wait, server.address, "freeze")
    _, ear = hub.accepted()
    error = ear.closing()
    assert isinstance(error, WorkerLost)
    assert "silent for 0.5 s" in str(error)


@pytest.mark.parametrize(("then", "match"), [("wait", "cannot be reached"), ("freeze", "silent for")])
def test_a_server_killed_or_frozen_is_noticed(processes: list[Any], then: str, match: str) -> None:
    address, told = multiprocessing.get_context("spawn").Pipe()
    process = start(processes, serve_and_wait, told, then)
    assert address.poll(SECONDS_MAX * 3)
    ear = Ear()
    end = open_channel(Remote(address.recv(), TOKEN), HELLO, ear.receiver, limits=QUICK)
    end.send(Message("go on"))
    if then == "wait":
        process.kill()
    error = ear.closing()
    assert isinstance(error, ClusterError)
    assert match in str(error)
    with pytest.raises(ClusterError):
        end.send(HELLO)


def test_a_process_that_just_ends_says_goodbye(processes: list[Any], server: FlightBase, hub: Hub) -> None:
    process = start(processes, open_and_wait, server.address, "end")
    _, ear = hub.accepted()
    assert ear.closing() is None
    process.join(SECONDS_MAX)
    assert process.exitcode == 0


def test_a_server_process_that_just_ends_says_goodbye(processes: list[Any]) -> None:
    address, told = multiprocessing.get_context("spawn").Pipe()
    process = start(processes, serve_and_wait, told, "end")
    assert address.poll(SECONDS_MAX * 3)
    ear = Ear()
    open_channel(Remote(address.recv(), TOKEN), HELLO, ear.receiver, limits=QUICK).send(Message("go on"))
    assert ear.closing() is None
    process.join(SECONDS_MAX)
    assert process.exitcode == 0
