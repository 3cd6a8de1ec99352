"""The gate of a process: one budget of all its listeners, and which caller has to go."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from descriptors_kit import no_descriptors
from server_kit import SECONDS_MAX

from upriver.net.gate import UNPROVED_S_MAX, CallerGate, GatedCaller, GatedListener, Places
from upriver.net.handshake import Identity


class Ports:
    """Listeners of one gate, and callers of them. now: the gate's clock, in seconds."""

    def __init__(self, opened: ExitStack, places: Places) -> None:
        self.now = 0.0
        self.gate = CallerGate(places, lambda: self.now)
        self._opened = opened

    def listener(self, cost: int = 1, callers_max: int | None = None) -> GatedListener:
        listening = self._opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        return GatedListener(listening, self.gate, cost=cost, callers_max=callers_max)

    def caller(self, listener: GatedListener) -> tuple[socket.socket, GatedCaller]:
        """A new caller of a listener: its end, and its place."""
        theirs = socket.create_connection(listener.socket.getsockname(), SECONDS_MAX)
        self._opened.callback(theirs.close)
        place = listener.accept()
        assert place is not None
        self._opened.callback(place.close)
        return theirs, place


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def is_cut(caller: socket.socket) -> bool:
    """Whether the gate has dropped this caller, to which nothing is ever sent."""
    caller.setblocking(False)
    try:
        return caller.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_oldest_caller_of_the_fullest_listener_goes(opened: ExitStack) -> None:
    ports = Ports(opened, Places(unauthenticated=4))
    quiet, flooded = ports.listener(), ports.listener()
    (first, _) = ports.caller(quiet)
    strangers = [ports.caller(flooded)[0] for _ in range(5)]
    assert [is_cut(one) for one in strangers] == [True, True, False, False, False]
    assert not is_cut(first)


def test_a_caller_weighs_what_it_costs(opened: ExitStack) -> None:
    ports = Ports(opened, Places(unauthenticated=4, clients=4))
    plain, relayed = ports.listener(), ports.listener(cost=3)
    (one, _), (two, relayed_place) = ports.caller(plain), ports.caller(relayed)
    (three, _) = ports.caller(relayed)
    assert [is_cut(each) for each in (one, two, three)] == [False, True, False]
    assert not relayed_place.admit(Identity.CLIENT)  # it was dropped before it had proved anything
    assert ports.caller(relayed)[1].admit(Identity.CLIENT)
    assert not ports.caller(relayed)[1].admit(Identity.CLIENT)
    assert ports.caller(plain)[1].admit(Identity.CLIENT, "operator")
    assert ports.caller(plain)[1].admit(Identity.CLUSTER)  # their share is another


def test_listeners_share_the_places_and_get_them_back(opened: ExitStack) -> None:
    ports = Ports(opened, Places(clients=2))
    one, another = ports.listener(), ports.listener(callers_max=1)
    first, second = ports.caller(one)[1], ports.caller(another)[1]
    late, surplus = ports.caller(one)[1], ports.caller(another)[1]
    assert [place.admit(Identity.CLIENT) for place in (first, first, second, late)] == [True, True, True, False]
    first.close()
    first.close()
    assert not surplus.admit(Identity.CLIENT)  # its listener has as many as it may
    assert late.admit(Identity.CLIENT)
    assert not ports.caller(one)[1].admit(Identity.CLIENT)


def test_clients_of_one_host_with_one_token_leave_places_for_others(opened: ExitStack) -> None:
    ports = Ports(opened, Places(clients=9))
    narrow, wide, relayed = ports.listener(callers_max=4), ports.listener(), ports.listener(cost=3)
    readers = [ports.caller(narrow)[1] for _ in range(4)]
    assert [place.admit(Identity.CLIENT, "reader") for place in readers] == [True, True, True, False]
    assert readers[3].admit(Identity.CLIENT, "operator")
    elsewhere = [ports.caller(wide)[1] for _ in range(5)]
    assert [place.admit(Identity.CLIENT, "reader") for place in elsewhere] == [True, True, True, True, False]
    assert not ports.caller(relayed)[1].admit(Identity.CLIENT, "reader")
    assert elsewhere[4].admit(Identity.CLIENT, "operator")
    for place in (*readers, *elsewhere):
        place.close()
    assert ports.caller(relayed)[1].admit(Identity.CLIENT, "reader")
    assert ports.caller(relayed)[1].admit(Identity.CLIENT, "reader")


def test_without_descriptors_one_stranger_at_a_time_makes_room(opened: ExitStack) -> None:
    ports = Ports(opened, Places())
    listener = ports.listener()
    (oldest, oldest_place), (second, _) = ports.caller(listener), ports.caller(listener)
    with socket.socket() as rightful:
        with no_descriptors():
            rightful.connect(listener.socket.getsockname())
            assert listener.accept() is None
            for _ in range(3):
                with pytest.raises(OSError, match="Too many open files"):
                    listener.accept()
            assert [is_cut(each) for each in (oldest, second)] == [True, False]
            oldest_place.close()
            served = listener.accept()
        assert served is not None
        served.close()


def test_the_system_looks_whether_a_caller_s_host_is_there(opened: ExitStack) -> None:
    ports = Ports(opened, Places())
    _, place = ports.caller(ports.listener())
    assert place.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_callers_without_a_proof_are_dropped_in_time(opened: ExitStack) -> None:
    ports = Ports(opened, Places())
    listener = ports.listener()
    assert listener.seconds_left() is None
    slow, _ = ports.caller(listener)
    ports.now = 1.0
    later, _ = ports.caller(listener)
    proved, place = ports.caller(listener)
    assert place.admit(Identity.CLIENT)
    assert listener.seconds_left() == UNPROVED_S_MAX - 1.0
    ports.now = UNPROVED_S_MAX
    listener.drop_late()
    assert [is_cut(each) for each in (slow, later, proved)] == [True, False, False]
    ports.now += 1.0
    listener.drop_late()
    assert [is_cut(each) for each in (slow, later, proved)] == [True, True, False]
    assert listener.seconds_left() is None
