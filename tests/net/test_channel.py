"""Channels: order, goodbyes, and what happens when a peer dies, freezes, drowns or refuses.

Signs of life: which end is silent, and how old is what the other is known to have heard.
What is put into an outbox is written once and in order, by the thread that puts it or by the thread that
iterates.
Channels between processes that are killed, freeze, or just end.
"""

import multiprocessing
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from channel_kit import HELLO, QUICK, Hub, Recorder
from server_kit import KEYS, SECONDS_MAX, client_of, peer_of
from tls_kit import IDENTITY

from upriver.errors import (
    AccessDenied,
    ClusterError,
    ProtocolError,
    SealBroken,
    UpriverError,
    UserError,
    WaitTimeout,
    WorkerLost,
)
from upriver.net.byte_stream import ByteStream
from upriver.net.channel import (
    AT_ONCE_BYTES_MAX,
    PING,
    ChannelEnd,
    ChannelLimits,
    Channels,
    Full,
    HeartbeatMonitor,
    Outbox,
    Receiver,
    Shut,
    open_channel,
)
from upriver.net.frames import PIECE_BYTES_MAX, SEAL_BYTES, Joiner, Seals, joined, read_frame
from upriver.net.handshake import Purpose
from upriver.net.remote import Remote, dial
from upriver.net.server import Caller, Server
from upriver.net.wire import Message, decode, encode


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("upriver-"):
            thread.join(SECONDS_MAX)
            assert not thread.is_alive(), f"{thread.name} is left over"


@pytest.fixture(params=[None, IDENTITY], ids=["plain", "tls"])
def hub(request: pytest.FixtureRequest) -> Hub:
    return Hub(tls=request.param)


@pytest.fixture
def server(hub: Hub) -> Iterator[Server]:
    with hub.server() as running:
        yield running


def call(remote: Remote, recorder: Recorder, hello: Message = HELLO, limits: ChannelLimits = QUICK) -> ChannelEnd:
    return open_channel(remote, hello, recorder.receiver, limits=limits)


def pair(server: Server, hub: Hub) -> tuple[ChannelEnd, Recorder, ChannelEnd, Recorder]:
    """Both ends of a channel: the one that has opened it, and the server's."""
    recorder = Recorder()
    end = call(hub.peer(server), recorder)
    return end, recorder, *hub.accepted()


def close(end: ChannelEnd, *ears: Recorder) -> None:
    """Close in good order, and see that both sides are told so, once."""
    end.close()
    for recorder in ears:
        assert recorder.closing() is None
    for recorder in ears:
        assert recorder.closings.empty()


def test_a_server_is_told_the_hello_and_may_speak_first(server: Server, hub: Hub) -> None:
    batch = pa.RecordBatch.from_pydict({"vnode": [1, 2]})
    recorder = Recorder()
    end = call(hub.peer(server), recorder, Message("hello", {"worker": 3}, (batch,)))
    theirs, their_ear, hello = hub.ends.get(timeout=SECONDS_MAX)
    assert hello == Message("hello", {"worker": 3}, (batch,))
    theirs.send(Message("assign", {"vnodes": [0, 1]}))
    assert recorder.hear() == Message("assign", {"vnodes": [0, 1]})
    close(end, recorder, their_ear)


def test_messages_arrive_whole_and_in_order_both_ways(server: Server, hub: Hub) -> None:
    ours, our_ear, theirs, their_ear = pair(server, hub)
    batches = (pa.RecordBatch.from_pydict({"k": ["a", None]}), pa.RecordBatch.from_pydict({"n": range(100_000)}))
    sent = [Message("rows", {"number": number}, batches[: number % 3]) for number in range(100)]
    for message in sent:
        ours.send(message)
        theirs.send(message)
    assert [their_ear.hear() for _ in sent] == sent
    assert [our_ear.hear() for _ in sent] == sent
    close(theirs, our_ear, their_ear)


def test_messages_that_go_together_arrive_one_by_one_and_in_order(server: Server, hub: Hub) -> None:
    ours, our_ear, _, their_ear = pair(server, hub)
    batch = pa.record_batch([[1, 2]], names=["k"])
    sent = [Message("a", {"n": 1}), Message("b"), Message("c", {}, (batch,)), Message("d", {"n": [2]})]
    ours.send_together(sent)
    ours.send_together([])
    ours.send_together(sent[:1])
    assert [their_ear.hear() for _ in range(5)] == [*sent, sent[0]]
    close(ours, our_ear, their_ear)


def test_each_sender_s_messages_stay_in_order(server: Server, hub: Hub) -> None:
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
def test_what_was_sent_before_closing_arrives(server: Server, hub: Hub, closes: str) -> None:
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


def test_a_closed_end_takes_nothing_more_and_closes_once(server: Server, hub: Hub) -> None:
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


HASTY_PEERS = 200


class Hasty:
    """A server's side that is gone as soon as both have said goodbye."""

    def serve(self, caller: Caller) -> None:
        says, hears = Seals(caller.session.sends), Seals(caller.session.hears)
        read_frame(caller.stream, hears)
        for said in ("channel.welcome", "channel.bye"):
            caller.stream.write(joined(encode(Message(said)), says))
        while (frame := read_frame(caller.stream, hears)) and decode(frame).kind != "channel.bye":
            pass

    def stop(self) -> None:
        """Nothing is left to say."""


def test_peers_that_are_gone_after_their_goodbye_have_closed_in_good_order() -> None:
    with Server(KEYS, {Purpose.CHANNEL: Hasty()}) as server:
        for _ in range(HASTY_PEERS):
            recorder = Recorder()
            call(peer_of(server.address), recorder)
            assert recorder.closing() is None


def test_a_stopping_server_says_goodbye(hub: Hub) -> None:
    server = hub.server()
    channels = [pair(server, hub) for _ in range(3)]
    server.stop()
    for _, our_ear, _, their_ear in channels:
        assert our_ear.closing() is None
        assert their_ear.closing() is None


# Channels that do not come about


def test_a_refusal_reaches_the_opening_side(server: Server, hub: Hub) -> None:
    recorder = Recorder()
    with pytest.raises(UserError, match=r"^worker 3 is here already$"):
        call(hub.peer(server), recorder, Message("refuse me"))
    assert recorder.closings.empty()


def test_the_token_opens_no_channel(server: Server, hub: Hub) -> None:
    recorder = Recorder()
    with pytest.raises(AccessDenied):
        open_channel(client_of(server.address, hub.tls), HELLO, recorder.receiver)
    assert hub.ends.empty()
    assert recorder.closings.empty()


def test_a_server_without_channels_says_so() -> None:
    with Server(KEYS) as server, pytest.raises(ProtocolError, match="does not serve channel"):
        call(peer_of(server.address), Recorder())


def test_a_server_that_is_gone_is_named() -> None:
    with Server(KEYS) as server:
        remote = peer_of(server.address)
    with pytest.raises(WorkerLost, match=remote.address):
        open_channel(remote, HELLO, Recorder().receiver, lost=WorkerLost)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"{address} cannot be reached in 0.2 s"):
            open_channel(peer_of(address), HELLO, Recorder().receiver, timeout=0.2)


def test_a_welcome_that_does_not_come_is_given_up() -> None:
    asked, answer = threading.Event(), threading.Event()

    def on_open(end: ChannelEnd, hello: Message) -> Receiver:
        asked.set()
        answer.wait(SECONDS_MAX)
        return Recorder().receiver

    recorder = Recorder()
    with Server(KEYS, {Purpose.CHANNEL: Channels(on_open, QUICK)}) as server:
        with pytest.raises(WaitTimeout, match="accepted"):
            open_channel(peer_of(server.address), HELLO, recorder.receiver, timeout=0.2)
        assert asked.wait(SECONDS_MAX)
        answer.set()
    assert recorder.closings.empty()


# Peers that go wrong


MALFORMED = pa.py_buffer(b"\x80\x04pickled")


@pytest.mark.parametrize("fault", ["no message", "size", "no seal", "repeated", "left out", "another direction's"])
def test_what_is_no_frame_of_the_other_end_ends_the_channel(server: Server, hub: Hub, fault: str) -> None:
    stream, session = dial(hub.peer(server), Purpose.CHANNEL, SECONDS_MAX, WorkerLost)
    seals, first = Seals(session.sends), encode(HELLO)
    hello = joined(first, seals)
    stream.write(hello)
    _, recorder = hub.accepted()
    other = joined(encode(Message("rows")), seals)
    said = {
        "no message": joined(MALFORMED, _after(session.sends, 1)),
        "size": b"\xff" * 4,
        "no seal": other[:-SEAL_BYTES] + bytes(SEAL_BYTES),
        "repeated": hello,
        "left out": joined(first, seals),
        "another direction's": joined(first, _after(session.hears, 1)),
    }
    stream.write(said[fault])
    error = recorder.closing()
    stream.close()
    kind, text = (ProtocolError, "malformed") if fault in ("no message", "size") else (SealBroken, "lacks the seal")
    assert isinstance(error, kind)
    assert text in str(error)
    assert recorder.messages.empty()


def _after(key: bytes, frames: int) -> Seals:
    """Seals of a direction in which so many frames were said."""
    seals = Seals(key)
    for _ in range(frames):
        seals.next(b"")
    return seals


def test_a_receiver_that_fails_ends_the_channel_on_both_sides(server: Server, hub: Hub) -> None:
    closings: queue.Queue[UpriverError | None] = queue.Queue()
    receiver = Receiver(lambda message: print(message.fields["missing"]), closings.put)
    open_channel(hub.peer(server), HELLO, receiver, limits=QUICK)
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
    stuck, recorder = threading.Event(), Recorder()

    def hear_nothing(_: Message) -> None:
        stuck.wait(SECONDS_MAX)

    with hub.server() as server:
        receiver = Receiver(hear_nothing, recorder.closings.put)
        open_channel(hub.peer(server), HELLO, receiver, limits=limits)
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
        assert isinstance(recorder.closing(), ClusterError)


def test_one_message_larger_than_the_outbox_goes_through() -> None:
    hub = Hub(ChannelLimits(outbox_bytes_max=500))  # a welcome and a ping may wait before it
    with hub.server() as server:
        ours, our_ear, theirs, their_ear = pair(server, hub)
        theirs.send(Message("much", {"text": "x" * 1000}))
        assert len(our_ear.hear().fields["text"]) == 1000
        close(ours, our_ear, their_ear)


@dataclass
class Clock:
    """Stands still unless it is moved on."""

    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heartbeats(clock: Clock) -> HeartbeatMonitor:
    return HeartbeatMonitor(clock)


def hear(heartbeats: HeartbeatMonitor, *, beat: int, heard: int) -> None:
    with heartbeats.hearing():
        heartbeats.pinged({"beat": beat, "heard": heard})


def test_a_beat_says_its_number_and_the_last_that_has_come(heartbeats: HeartbeatMonitor) -> None:
    assert heartbeats.beat().fields == {"beat": 1, "heard": 0}
    hear(heartbeats, beat=7, heard=1)
    said = heartbeats.beat()
    assert (said.kind, said.fields) == (PING, {"beat": 2, "heard": 7})


def test_leases_speak_only_with_lease_what_was_heard_is_as_old_as_the_beat_however_long_the_news_took(
    heartbeats: HeartbeatMonitor, clock: Clock
) -> None:
    assert not heartbeats.is_confirmed(1000)
    heartbeats.beat()
    clock.seconds += 5
    hear(heartbeats, beat=1, heard=1)
    assert not heartbeats.is_confirmed(5)
    assert heartbeats.is_confirmed(6)


def test_leases_speak_only_with_lease_what_waits_for_a_process_that_was_stopped_renews_nothing(
    heartbeats: HeartbeatMonitor, clock: Clock
) -> None:
    for number in (1, 2, 3):
        heartbeats.beat()
        clock.seconds += 0.1
        hear(heartbeats, beat=number, heard=number)
    assert heartbeats.is_confirmed(1)
    heartbeats.beat()
    clock.seconds += 60  # stopped; the other has said these meanwhile
    for number in (4, 5, 6):
        hear(heartbeats, beat=number, heard=4)
    assert not heartbeats.is_confirmed(1)
    heartbeats.beat()
    hear(heartbeats, beat=7, heard=5)
    assert heartbeats.is_confirmed(1)


def test_leases_speak_only_with_lease_the_hello_counts_from_when_it_was_said(
    heartbeats: HeartbeatMonitor, clock: Clock
) -> None:
    said_at = clock.seconds
    clock.seconds += 5  # the welcome took its time
    heartbeats.met(said_at)
    assert not heartbeats.is_confirmed(5)
    assert heartbeats.is_confirmed(6)
    heartbeats.beat()
    hear(heartbeats, beat=1, heard=1)
    assert heartbeats.is_confirmed(1)


def test_news_of_an_older_beat_takes_nothing_back(heartbeats: HeartbeatMonitor, clock: Clock) -> None:
    heartbeats.beat()
    clock.seconds += 10
    heartbeats.beat()
    hear(heartbeats, beat=1, heard=2)
    hear(heartbeats, beat=2, heard=1)
    assert heartbeats.is_confirmed(1)


def test_silence_is_counted_in_own_beats(heartbeats: HeartbeatMonitor, clock: Clock) -> None:
    for _ in range(3):
        heartbeats.beat()
    assert heartbeats.silent_beats == 3
    clock.seconds += 1000  # this end could not run, and has not listened
    assert heartbeats.silent_beats == 3
    hear(heartbeats, beat=1, heard=0)
    assert heartbeats.silent_beats == 0
    assert heartbeats.heard_at == clock.seconds


def test_a_peer_is_not_silent_while_its_message_is_handled(heartbeats: HeartbeatMonitor) -> None:
    with heartbeats.hearing():
        for _ in range(3):
            heartbeats.beat()
        assert heartbeats.silent_beats == 0
    heartbeats.beat()
    assert heartbeats.silent_beats == 1


def test_a_waiting_caller_is_told_that_all_is_over(heartbeats: HeartbeatMonitor) -> None:
    heartbeats.beat()
    hear(heartbeats, beat=1, heard=1)
    assert heartbeats.wait_confirmed(1, None)
    heartbeats.end()
    assert not heartbeats.wait_confirmed(1, None)


SMALL, LARGE = pa.py_buffer(b"small"), pa.py_buffer(bytes(AT_ONCE_BYTES_MAX + 1))
LAST = pa.py_buffer(b"last")
KEY = b"of this direction"


def wire(*frames: pa.Buffer) -> bytes:
    """Frames as they are to be on the wire, each sealed in its turn."""
    seals = Seals(KEY)
    return b"".join(joined(frame, seals) for frame in frames)


class Stream:
    """Takes so many bytes at once, and all of what is written later. takes: ``None`` if its other end is gone."""

    def __init__(self, takes: int | None) -> None:
        self.takes = takes
        self.at_once = b""

    def write_at_once(self, data: bytes) -> int:
        if self.takes is None:
            raise BrokenPipeError
        self.at_once += data[: self.takes]
        return min(len(data), self.takes)


def opened(takes: int | None) -> tuple[Outbox, Stream]:
    outbox, stream = Outbox(messages_max=3, bytes_max=1 << 20, seals=Seals(KEY)), Stream(takes)
    outbox.open(stream.write_at_once)
    return outbox, stream


def rest(outbox: Outbox) -> bytes:
    """What is left to be written, the last frame at its end."""
    outbox.shut(LAST)
    return b"".join(bytes(chunk) for chunk in outbox)


def test_before_it_is_opened_all_waits() -> None:
    outbox = Outbox(messages_max=3, bytes_max=1 << 20, seals=Seals(KEY))
    outbox.put(SMALL)
    assert rest(outbox) == wire(SMALL, LAST)


@pytest.mark.parametrize("takes", [0, 1, 4, 8, 20, 1 << 20])
def test_what_does_not_go_at_once_is_written_after_it(takes: int) -> None:
    outbox, stream = opened(takes)
    outbox.put(SMALL)
    assert stream.at_once == wire(SMALL)[:takes]
    assert stream.at_once + rest(outbox) == wire(SMALL, LAST)


def test_nothing_overtakes_what_waits() -> None:
    outbox, stream = opened(1)
    for frame in (SMALL, LAST):
        outbox.put(frame)
    assert stream.at_once == wire(SMALL)[:1]
    assert stream.at_once + rest(outbox) == wire(SMALL, LAST, LAST)


def test_putting_a_large_frame_does_not_block() -> None:
    outbox, stream = opened(1 << 20)
    outbox.put(LARGE)
    outbox.put(SMALL)
    assert stream.at_once == b""
    assert rest(outbox) == wire(LARGE, SMALL, LAST)


def test_while_a_frame_is_written_no_other_is() -> None:
    outbox, stream = opened(1 << 20)
    outbox.put(LARGE)
    writing = iter(outbox)
    begun = bytes(next(writing))
    outbox.put(SMALL)
    assert stream.at_once == b""
    outbox.shut(LAST)
    assert begun + b"".join(bytes(chunk) for chunk in writing) == wire(LARGE, SMALL, LAST)
    with pytest.raises(Shut):
        outbox.put(SMALL)


def test_if_the_other_end_is_gone_nothing_more_is_taken() -> None:
    outbox, _ = opened(None)
    outbox.put(SMALL)
    with pytest.raises(Shut):
        outbox.put(SMALL)
    assert list(outbox) == []


def test_what_was_begun_counts_as_waiting() -> None:
    outbox, _ = opened(1)
    for _ in range(3):
        outbox.put(SMALL)
    with pytest.raises(Full, match="3 messages"):
        outbox.put(SMALL)


def test_over_a_real_socket_all_frames_come_whole_and_each_sender_s_in_order() -> None:
    """Of all sizes, by many threads, to an end that reads slower than they write."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = ByteStream(socket.create_connection(listener.getsockname()))
        ours = ByteStream(listener.accept()[0])
    outbox = Outbox(messages_max=1 << 20, bytes_max=1 << 40, seals=Seals(KEY))

    def write_all() -> None:
        for chunk in outbox:
            ours.write(chunk)

    def send_all(sender: int) -> None:
        rng = np.random.default_rng(sender)
        for number in range(60):
            size = int(rng.choice([0, 1, 1 << 10, 1 << 14, AT_ONCE_BYTES_MAX, 1 << 18, PIECE_BYTES_MAX]))
            batch = pa.RecordBatch.from_pydict({"n": np.full(size, number, np.uint8)})
            outbox.put(encode(Message("count", {"sender": sender, "number": number}, (batch,))))

    writing = threading.Thread(target=write_all)
    writing.start()
    outbox.open(ours.write_at_once)
    heard: list[tuple[int, int]] = []
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(send_all, sender) for sender in range(4)]
        joiner, seals = Joiner(), Seals(KEY)
        while len(heard) < 240:
            frame = read_frame(theirs, seals)
            assert frame is not None
            message = decode(frame)
            if message.kind == "channel.piece":
                whole = joiner.join(message, frame)
                if whole is None:
                    continue
                message = decode(whole)
            number = message.fields["number"]
            assert set(message.batches[0].column(0).to_pylist()) <= {number}
            heard.append((message.fields["sender"], number))
        for each in sent:
            each.result(SECONDS_MAX)
    outbox.shut(LAST)
    writing.join(SECONDS_MAX)
    for sender in range(4):
        assert [number for who, number in heard if who == sender] == list(range(60))
    for stream in (ours, theirs):
        stream.close()


def open_and_wait(remote: Remote, then: str) -> None:
    """A process that opens a channel, and then waits to be killed, freezes, or ends without closing it."""
    closed = threading.Event()
    receiver = Receiver(lambda _: None, lambda _: closed.set())
    open_channel(remote, HELLO, receiver, limits=QUICK)
    if then == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    if then == "wait":
        closed.wait()


def serve_and_wait(address: Any, then: str) -> None:
    """A process that serves channels, and then waits to be killed, freezes, or ends without stopping."""
    hub = Hub()
    server = hub.server()
    address.send(server.address)
    _, recorder = hub.accepted()
    recorder.hear()
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
        process = start(processes, open_and_wait, hub.peer(server), "wait")
        _, recorder = hub.accepted()
        process.kill()
        error = recorder.closings.get(timeout=2.0)  # the limit of silence is far beyond
    assert isinstance(error, WorkerLost)
    assert "without a closing message" in str(error)


def test_a_frozen_client_is_noticed_by_its_silence(processes: list[Any], server: Server, hub: Hub) -> None:
    start(processes, open_and_wait, hub.peer(server), "freeze")
    _, recorder = hub.accepted()
    error = recorder.closing()
    assert isinstance(error, WorkerLost)
    assert "silent for 0.5 s" in str(error)


@pytest.mark.parametrize(("then", "match"), [("wait", "without a closing message"), ("freeze", "silent for")])
def test_a_server_killed_or_frozen_is_noticed(processes: list[Any], then: str, match: str) -> None:
    address, told = multiprocessing.get_context("spawn").Pipe()
    process = start(processes, serve_and_wait, told, then)
    assert address.poll(SECONDS_MAX * 3)
    recorder = Recorder()
    end = open_channel(peer_of(address.recv()), HELLO, recorder.receiver, limits=QUICK)
    end.send(Message("go on"))
    if then == "wait":
        process.kill()
    error = recorder.closing()
    assert isinstance(error, ClusterError)
    assert match in str(error)
    with pytest.raises(ClusterError):
        end.send(HELLO)


def test_a_process_that_just_ends_says_goodbye(processes: list[Any], server: Server, hub: Hub) -> None:
    process = start(processes, open_and_wait, hub.peer(server), "end")
    _, recorder = hub.accepted()
    assert recorder.closing() is None
    process.join(SECONDS_MAX)
    assert process.exitcode == 0


def test_a_server_process_that_just_ends_says_goodbye(processes: list[Any]) -> None:
    address, told = multiprocessing.get_context("spawn").Pipe()
    process = start(processes, serve_and_wait, told, "end")
    assert address.poll(SECONDS_MAX * 3)
    recorder = Recorder()
    open_channel(peer_of(address.recv()), HELLO, recorder.receiver, limits=QUICK).send(Message("go on"))
    assert recorder.closing() is None
    process.join(SECONDS_MAX)
    assert process.exitcode == 0
