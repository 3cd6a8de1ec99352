"""Channels: order, goodbyes, and what happens when a peer dies, freezes, drowns or refuses."""

import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from channel_kit import HELLO, QUICK, Hub, Recorder
from server_kit import KEYS, SECONDS_MAX, SECRET, client_of, peer_of

from upriver.errors import AccessDenied, ClusterError, ProtocolError, UpriverError, UserError, WaitTimeout, WorkerLost
from upriver.net.channel import ChannelEnd, ChannelLimits, Channels, Receiver, open_channel
from upriver.net.frames import SEAL_BYTES, Seals, joined, read_frame
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


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def server(hub: Hub) -> Iterator[Server]:
    with hub.server() as running:
        yield running


def call(server: Server, recorder: Recorder, hello: Message = HELLO, limits: ChannelLimits = QUICK) -> ChannelEnd:
    return open_channel(peer_of(server.address), hello, recorder.receiver, limits=limits)


def pair(server: Server, hub: Hub) -> tuple[ChannelEnd, Recorder, ChannelEnd, Recorder]:
    """Both ends of a channel: the one that has opened it, and the server's."""
    recorder = Recorder()
    end = call(server, recorder)
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
    end = call(server, recorder, Message("hello", {"worker": 3}, (batch,)))
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
            call(server, recorder)
            assert recorder.closing() is None


def test_a_stopping_server_says_goodbye(hub: Hub) -> None:
    server = hub.server()
    channels = [pair(server, hub) for _ in range(3)]
    server.stop()
    for _, our_ear, _, their_ear in channels:
        assert our_ear.closing() is None
        assert their_ear.closing() is None


# Channels that do not come about


def test_a_refusal_reaches_the_opening_side(server: Server) -> None:
    recorder = Recorder()
    with pytest.raises(UserError, match=r"^worker 3 is here already$"):
        call(server, recorder, Message("refuse me"))
    assert recorder.closings.empty()


def test_the_token_opens_no_channel(server: Server, hub: Hub) -> None:
    recorder = Recorder()
    with pytest.raises(AccessDenied):
        open_channel(client_of(server.address), HELLO, recorder.receiver)
    assert hub.ends.empty()
    assert recorder.closings.empty()


def test_no_channel_goes_in_the_clear_where_tls_is_asked_for(server: Server, hub: Hub) -> None:
    with pytest.raises(ClusterError, match="TLS"):
        open_channel(Remote(server.address, SECRET, b"PEM"), HELLO, Recorder().receiver)
    assert hub.ends.empty()


def test_a_server_without_channels_says_so() -> None:
    with Server(KEYS) as server, pytest.raises(ProtocolError, match="does not serve channel"):
        call(server, Recorder())


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
    stream, session = dial(peer_of(server.address), Purpose.CHANNEL, SECONDS_MAX, WorkerLost)
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
    assert isinstance(error, ProtocolError)
    assert "malformed" in str(error)
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
    open_channel(peer_of(server.address), HELLO, receiver, limits=QUICK)
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
        open_channel(peer_of(server.address), HELLO, receiver, limits=limits)
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
