"""A connection that goes dead on the way, while a new one works: no words are lost without word of that."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from peers_kit import Node, Nodes, several_nodes
from server_kit import SECONDS_MAX

from upriver.ids import WorkerId
from upriver.net.channel import ChannelLimits
from upriver.net.server import Server

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


@pytest.fixture
def node() -> Iterator[Nodes]:
    with several_nodes() as make:
        yield make


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
