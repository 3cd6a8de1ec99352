"""Channels between workers: which peers are met, and what is heard in which order.

A connection that goes dead on the way, while a new one works: no words are lost without word of that.
Channels between workers that do not come about, or are lost.
"""

import itertools
import multiprocessing
import queue
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from channel_kit import Recorder
from peers_kit import Node, Nodes, meet_all, number_of, numbered, several_nodes
from server_kit import KEYS, SECONDS_MAX, TOKEN, cut_connections, peer_of

from upriver.errors import AccessDenied, ClusterError, ProtocolError, WaitTimeout, WorkerLost
from upriver.ids import FlowId, Incarnation, MapVersion, WorkerId
from upriver.migration.messages import Acquire
from upriver.net.channel import ChannelLimits, open_channel
from upriver.net.codec import PEER
from upriver.net.peers import FRAME_MESSAGES_MAX, Link
from upriver.net.server import Server
from upriver.net.wire import Message
from upriver.protocol.peers import Envelope, ForRegion


@pytest.fixture
def node() -> Iterator[Nodes]:
    with several_nodes() as make:
        yield make


# What is said


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_hear_all_in_order(node: Nodes, count: int) -> None:
    nodes = [node(worker) for worker in range(count)]
    meet_all(1, *nodes)

    def talk(pair: tuple[Node, Node]) -> None:
        for number in range(600):
            pair[0].peers.send(pair[1].worker, numbered(number))
            if number % 7 == 0:
                pair[0].peers.flush()

    with ThreadPoolExecutor(count * count) as pool:
        list(pool.map(talk, itertools.permutations(nodes, 2)))
    for each in nodes:
        each.peers.flush()
    for each in nodes:
        heard = defaultdict(list)
        for worker, number in each.hear(600 * (count - 1)):
            heard[worker].append(number)
        assert heard == {other.worker: list(range(600)) for other in nodes if other is not each}


def test_a_flush_is_one_frame(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    one.say(two, 5, 6, 7)
    assert two.heard.get(timeout=SECONDS_MAX) == (1, tuple(map(numbered, (5, 6, 7))))


def test_many_messages_go_without_a_flush(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    for number in range(FRAME_MESSAGES_MAX):
        two.peers.send(one.worker, numbered(number))
    assert len(one.hear(FRAME_MESSAGES_MAX)) == FRAME_MESSAGES_MAX


def test_large_state_goes_without_a_flush_and_in_order(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    state = pa.RecordBatch.from_pydict({"n": np.arange(3_000_000)})
    acquire = Acquire(version=MapVersion(1), keys=np.arange(9, dtype=np.uint64), state=(state,))
    one.peers.send(two.worker, numbered(1))
    one.peers.send(
        two.worker, Envelope(flow=FlowId(1), generation=1, content=ForRegion(region="planes", message=acquire))
    )
    one.say(two, 2)
    _, (first, arrived) = two.heard.get(timeout=SECONDS_MAX)
    assert number_of(first) == 1
    assert isinstance(arrived.content, ForRegion)
    assert isinstance(arrived.content.message, Acquire)
    assert arrived.content.message.state == (state,)
    assert two.hear(1) == [(1, 2)]


def test_only_a_peer_can_be_spoken_to(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    with pytest.raises(ClusterError, match="worker 1 has no channel to worker 3"):
        one.peers.send(WorkerId(3), numbered(1))


# Which peers are met


def test_no_peers_are_met_at_once(node: Nodes) -> None:
    one = node(1)
    one.meet(1, one)
    assert one.met.get_nowait() == 1


def test_what_is_said_before_the_other_side_is_told_is_heard(node: Nodes) -> None:
    early, late = node(1), node(2)
    early.meet(1, late)
    assert early.met.get(timeout=SECONDS_MAX) == 1
    early.say(late, *range(10))
    early.say(late, *range(10, 20))
    assert late.hear(20) == [(1, number) for number in range(20)]
    with pytest.raises(ClusterError, match="no channel"):
        late.peers.send(early.worker, numbered(0))
    late.meet(1, early)
    assert late.met.get(timeout=SECONDS_MAX) == 1
    late.say(early, 7)
    assert early.hear(1) == [(2, 7)]


def test_a_peer_that_is_not_named_is_let_go_behind_all_that_was_said(node: Nodes) -> None:
    one, two, three = node(1), node(2), node(3)
    meet_all(1, one, two, three)
    one.say(two, 1)
    one.peers.send(two.worker, numbered(2))  # not flushed
    one.meet(2, three)
    assert one.met.get(timeout=SECONDS_MAX) == 2
    assert two.hear(2) == [(1, 1), (1, 2)]
    assert two.lost.get(timeout=SECONDS_MAX) == (1, None)
    with pytest.raises(ClusterError, match="no channel"):
        one.peers.send(two.worker, numbered(3))
    one.say(three, 4)
    assert three.hear(1) == [(1, 4)]
    assert one.lost.empty()


@pytest.mark.parametrize(("stays", "comes"), [(1, 2), (2, 1)], ids=["dials", "is dialled"])
def test_another_incarnation_takes_the_channel_over(node: Nodes, stays: int, comes: int) -> None:
    one, old = node(stays), node(comes)
    meet_all(1, one, old)
    old.say(one, 1, 2)
    new = node(comes, incarnation=2)
    new.meet(2, one)
    one.meet(2, new)
    assert one.met.get(timeout=SECONDS_MAX) == 2
    assert new.met.get(timeout=SECONDS_MAX) == 2
    new.say(one, 3)
    one.say(new, 4)
    assert one.hear(3) == [(comes, 1), (comes, 2), (comes, 3)]
    assert new.hear(1) == [(stays, 4)]
    assert old.lost.get(timeout=SECONDS_MAX) == (stays, None)
    assert one.lost.empty()
    assert old.heard.empty()


def test_order_holds_over_a_channel_that_ends_and_the_next(node: Nodes) -> None:
    one, two = node(1), node(2)
    meet_all(1, one, two)
    for meeting in range(2, 10, 2):  # two is not told of these
        one.say(two, meeting)
        one.meet(meeting)
        one.meet(meeting + 1, two)
        assert [one.met.get(timeout=SECONDS_MAX) for _ in range(2)] == [meeting, meeting + 1]
        one.say(two, meeting + 1)
    assert two.hear(8) == [(1, number) for number in range(2, 10)]
    two.meet(9, one)
    assert two.met.get(timeout=SECONDS_MAX) == 9
    two.say(one, 1)
    assert one.hear(1) == [(2, 1)]


def test_meetings_come_in_order(node: Nodes) -> None:
    one = node(1)
    one.meet(2)
    for meeting in (1, 2):
        with pytest.raises(ProtocolError, match=f"meeting {meeting} was announced after meeting 2"):
            one.meet(meeting)


HASTY, PATIENT = (ChannelLimits(ping_s=0.05, silence_s_max=seconds) for seconds in (0.5, 2.0))


class Way:
    """To a server's channels, over connections that can go dead: what is said there is dropped, and its end is not
    told."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._dead: set[socket.socket] = set()
        """Ends whose messages, and whose closing, no process hears."""
        threading.Thread(target=self._accept, daemon=True).start()

    def die(self) -> None:
        """All connections that there are."""
        self._dead.update(self._ends)

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller = self._listener.accept()[0]
                callee = socket.create_connection(("127.0.0.1", self._port))
                self._ends += [caller, callee]
                for ends in ((caller, callee), (callee, caller)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while said := one.recv(1 << 16):
                if one not in self._dead:
                    other.sendall(said)
        if one not in self._dead:
            with suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)


def meet(meeting: int, one: Node, two: Node, way: Way) -> None:
    """Worker 1 is told first, and dials."""
    one.meet_at(meeting, {one.worker: one.place, two.worker: (two.incarnation, way.address)})
    assert two.accepted.get(timeout=SECONDS_MAX) == one.worker
    two.meet(meeting, one, two)
    assert one.met.get(timeout=SECONDS_MAX) == two.met.get(timeout=SECONDS_MAX) == meeting


def test_the_last_to_notice_is_told_too_though_all_have_met_anew_by_then(node: Nodes) -> None:
    one, two = node(1, limits=HASTY), node(2, limits=PATIENT)
    way = Way(two.server)
    meet(1, one, two, way)
    two.say(one, 10)
    assert one.hear(1) == [(2, 10)]
    way.die()
    two.say(one, 11)  # the other one is the first to notice
    worker, error = one.lost.get(timeout=SECONDS_MAX)
    assert (worker, error is None) == (WorkerId(2), False)
    meet(2, one, two, way)
    worker, error = two.lost.get(timeout=SECONDS_MAX)
    assert (worker, error is None) == (WorkerId(1), False)
    two.say(one, 12)
    assert one.hear(1) == [(2, 12)]
    assert one.lost.empty()
    one.peers.close()
    way.close()


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
    assert (one.unreached, one.met.empty()) == ([2], True)


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
    assert two.unreached == [1]
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
    assert (meeting, str(error), three.unreached) == (1, "worker 1 (incarnation 1) has left", [1])
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


@pytest.mark.parametrize("worker", [1, 2])
def test_only_a_worker_of_a_lower_number_dials(worker: int) -> None:
    hello = Message(PEER, {"worker": worker, "incarnation": 0, "meeting": 0, "to": 1})
    with pytest.raises(ProtocolError, match="which has the lower number"):
        Link.greeted(hello, WorkerId(1))
