"""Channels between workers: which peers are met, and what is heard in which order."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from peers_kit import Node, Nodes, meet_all, number_of, numbered, several_nodes
from server_kit import SECONDS_MAX

from upriver.errors import ClusterError, ProtocolError
from upriver.ids import MapVersion, WorkerId
from upriver.migration.messages import Acquire
from upriver.net.peers import FRAME_MESSAGES_MAX
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
    one.peers.send(two.worker, Envelope(generation=1, content=ForRegion(region="planes", message=acquire)))
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
