"""Channels between workers that do not come about, or are lost."""

import multiprocessing
import queue
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from channel_kit import Recorder
from peers_kit import Node, Nodes, meet_all, numbered, several_nodes
from server_kit import KEYS, SECONDS_MAX, TOKEN, cut_connections, peer_of

from upriver.errors import AccessDenied, ClusterError, ProtocolError, WaitTimeout, WorkerLost
from upriver.ids import Incarnation, WorkerId
from upriver.net.channel import open_channel
from upriver.net.server import Server
from upriver.net.wire import Message


@pytest.fixture
def node() -> Iterator[Nodes]:
    with several_nodes() as make:
        yield make


# Meetings that do not come about


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_peer_that_is_not_there_fails_the_meeting(node: Nodes) -> None:
    one = node(1)
    with Server(KEYS) as gone:
        address = gone.address
    one.meet_at(1, {WorkerId(2): (Incarnation(1), address)})
    meeting, error = one.failed.get(timeout=SECONDS_MAX)
    assert meeting == 1
    assert isinstance(error, WorkerLost)
    assert address in str(error)
    assert one.met.empty()


def test_a_peer_that_says_nothing_fails_the_meeting_in_time(node: Nodes, mute: str) -> None:
    one = node(1, meet_s_max=0.2)
    one.meet_at(1, {WorkerId(2): (Incarnation(1), mute)})
    meeting, error = one.failed.get(timeout=SECONDS_MAX)
    assert (meeting, isinstance(error, WaitTimeout | WorkerLost)) == (1, True)
    one.peers.close()
    assert one.failed.empty()


def test_a_peer_that_does_not_dial_fails_the_meeting_in_time(node: Nodes) -> None:
    one, two = node(1), node(2, meet_s_max=0.2)
    two.meet(1, one)
    meeting, error = two.failed.get(timeout=SECONDS_MAX)
    assert meeting == 1
    assert isinstance(error, WaitTimeout)
    assert str(error) == "worker 2 has no channel to 1 after 0.2 s"
    assert two.met.empty()


def test_a_later_meeting_takes_the_place_of_one_that_hangs(node: Nodes, mute: str) -> None:
    one, two = node(1, meet_s_max=0.5), node(2)
    one.meet_at(1, {two.worker: two.place, WorkerId(3): (Incarnation(1), mute)})
    one.meet(2, two)
    two.meet(2, one)
    assert one.met.get(timeout=SECONDS_MAX) == 2
    one.peers.close()  # waits for the dial that hangs
    assert one.met.empty()
    assert one.failed.empty()


def held_up(dialled: queue.Queue[None], passing: threading.Semaphore) -> Callable[[], None]:
    """A gate that tells of each dial, and waits to be told to let it pass."""

    def gate() -> None:
        dialled.put(None)
        passing.acquire(timeout=SECONDS_MAX)

    return gate


def test_a_dial_refused_by_the_time_of_an_earlier_meeting_is_tried_again(node: Nodes) -> None:
    dialled, passing = queue.Queue[None](), threading.Semaphore(0)
    one = node(1)
    two = node(2, gate=held_up(dialled, passing))
    two.meet(5)
    one.meet(3, two)  # two is past that, and will refuse
    dialled.get(timeout=SECONDS_MAX)
    one.meet(6, two)
    two.meet(6, one)
    passing.release(2)
    assert one.met.get(timeout=SECONDS_MAX) == 6
    assert [two.met.get(timeout=SECONDS_MAX) for _ in range(2)] == [5, 6]
    assert one.failed.empty()


def test_a_dial_that_is_no_longer_needed_is_let_go(node: Nodes) -> None:
    dialled, passing = queue.Queue[None](), threading.Semaphore(0)
    one = node(1)
    two = node(2, gate=held_up(dialled, passing))
    two.meet(1, one)
    one.meet(1, two)
    dialled.get(timeout=SECONDS_MAX)
    one.meet(2)
    assert one.met.get(timeout=SECONDS_MAX) == 2
    passing.release()
    assert two.met.get(timeout=SECONDS_MAX) == 1
    assert two.lost.get(timeout=SECONDS_MAX) == (1, None)
    assert (one.met.empty(), one.failed.empty(), one.lost.empty()) == (True, True, True)


def test_a_past_meeting_s_dial_is_refused(node: Nodes) -> None:
    one, two = node(1), node(2)
    two.meet(5)
    one.meet(4, two)
    meeting, error = one.failed.get(timeout=SECONDS_MAX)
    assert (meeting, type(error)) == (4, ClusterError)
    assert "worker 2 expects no channel from worker 1 (incarnation 1)" in str(error)


@pytest.mark.parametrize("known", [b"another", TOKEN.encode()])
def test_a_worker_without_the_cluster_s_secret_meets_no_peer(node: Nodes, known: bytes) -> None:
    one, two = node(1, secret=known), node(2)
    one.meet(1, two)
    meeting, error = one.failed.get(timeout=SECONDS_MAX)
    assert meeting == 1
    assert isinstance(error, AccessDenied)
    assert two.heard.empty()


GOOD_HELLO = {"worker": 1, "incarnation": 1, "meeting": 1, "to": 2}
BAD_HELLOS = {
    "another kind": (Message("hello", GOOD_HELLO), ProtocolError, "began with 'hello'"),
    "no meeting": (Message("peer", {"worker": 1, "incarnation": 1, "to": 2}), ProtocolError, "began with 'peer'"),
    "text": (Message("peer", {**GOOD_HELLO, "worker": "1"}), ProtocolError, "began with 'peer'"),
    "another's": (Message("peer", {**GOOD_HELLO, "to": 3}), WorkerLost, "worker 2 serves here, and not worker 3"),
    "higher": (Message("peer", {**GOOD_HELLO, "worker": 4}), ProtocolError, "worker 4 has dialled worker 2"),
}


@pytest.mark.parametrize("case", BAD_HELLOS)
def test_a_bad_hello_is_refused(node: Nodes, case: str) -> None:
    hello, kind, match = BAD_HELLOS[case]
    two = node(2)
    with pytest.raises(kind, match=match):
        open_channel(peer_of(two.server.address), hello, Recorder().receiver)


def test_a_second_channel_of_the_same_meeting_is_refused(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    with pytest.raises(ClusterError, match="or has one already"):
        open_channel(peer_of(two.server.address), Message("peer", GOOD_HELLO), Recorder().receiver)
    one.say(two, 1)
    assert two.hear(1) == [(1, 1)]


# Which peers are lost


def test_a_cut_channel_is_lost_once_on_both_sides(node: Nodes) -> None:
    one, two, three = node(1), node(2), node(3)
    meet_all(1, one, two, three)
    one.say(two, 1)
    assert two.hear(1) == [(1, 1)]
    assert cut_connections(two.server.port) == 1
    for each, other in ((one, 2), (two, 1)):
        worker, error = each.lost.get(timeout=SECONDS_MAX)
        assert (worker, isinstance(error, ClusterError)) == (other, True)
        with pytest.raises(ClusterError, match="no channel"):
            each.peers.send(WorkerId(other), numbered(2))
    one.say(three, 3)
    two.say(three, 4)
    assert sorted(three.hear(2)) == [(1, 3), (2, 4)]
    for each in (one, two):
        each.peers.close()
        assert each.lost.empty()


def test_a_peer_lost_while_others_are_awaited_fails_the_meeting(node: Nodes) -> None:
    one, two, three = node(1), node(2), node(3)
    three.meet(1, one, two)
    one.meet(1, three)
    assert one.met.get(timeout=SECONDS_MAX) == 1
    one.peers.close()
    assert three.lost.get(timeout=SECONDS_MAX) == (1, None)
    meeting, error = three.failed.get(timeout=SECONDS_MAX)
    assert (meeting, str(error)) == (1, "worker 1 (incarnation 1) has left")
    two.meet(1, three)
    assert two.met.get(timeout=SECONDS_MAX) == 1
    assert three.met.empty()


def test_malformed_words_lose_the_peer(node: Nodes) -> None:
    two = node(2)
    end = open_channel(peer_of(two.server.address), Message("peer", GOOD_HELLO), Recorder().receiver)
    two.meet_at(1, {WorkerId(1): (Incarnation(1), "127.0.0.1:1")})
    assert two.met.get(timeout=SECONDS_MAX) == 1
    end.send(Message("peer", {"said": [[1, ["Done", [1, 2]]]]}))
    worker, error = two.lost.get(timeout=SECONDS_MAX)
    assert (worker, type(error)) == (1, ProtocolError)
    assert end.wait_closed(SECONDS_MAX)


def test_a_closed_worker_meets_no_peer(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    one.peers.send(two.worker, numbered(1))
    one.peers.close()
    assert two.hear(1) == [(1, 1)]
    assert two.lost.get(timeout=SECONDS_MAX) == (1, None)
    with pytest.raises(ClusterError, match="closed"):
        one.meet(2, two)
    with pytest.raises(ClusterError, match="no channel"):
        one.peers.send(two.worker, numbered(2))
    assert one.lost.empty()


def be_worker_one(address: str) -> None:
    """A process that meets worker 2, says something, and waits to be killed."""
    one = Node(1)
    one.meet_at(1, {WorkerId(2): (Incarnation(1), address)})
    one.met.get(timeout=SECONDS_MAX)
    one.peers.send(WorkerId(2), numbered(5))
    one.peers.flush()
    threading.Event().wait()


def test_a_killed_process_is_lost_once(node: Nodes) -> None:
    two = node(2)
    process = multiprocessing.get_context("spawn").Process(target=be_worker_one, args=(two.server.address,))
    process.start()
    try:
        assert two.heard.get(timeout=SECONDS_MAX * 3) == (1, (numbered(5),))
        two.meet_at(1, {WorkerId(1): (Incarnation(1), "127.0.0.1:1")})
    finally:
        process.kill()
        process.join()
    worker, error = two.lost.get(timeout=SECONDS_MAX)
    assert (worker, type(error)) == (1, WorkerLost)
    two.peers.close()
    assert two.lost.empty()
