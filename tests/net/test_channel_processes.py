"""Channels between processes that are killed, freeze, or just end."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from channel_kit import HELLO, QUICK, Hub, Recorder
from server_kit import SECONDS_MAX, peer_of

from upriver.errors import ClusterError, WorkerLost
from upriver.net.channel import ChannelLimits, Receiver, open_channel
from upriver.net.server import Server
from upriver.net.wire import Message


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def server(hub: Hub) -> Iterator[Server]:
    with hub.server() as running:
        yield running


def open_and_wait(address: str, then: str) -> None:
    """A process that opens a channel, and then waits to be killed, freezes, or ends without closing it."""
    closed = threading.Event()
    receiver = Receiver(lambda _: None, lambda _: closed.set())
    open_channel(peer_of(address), HELLO, receiver, limits=QUICK)
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
        process = start(processes, open_and_wait, server.address, "wait")
        _, recorder = hub.accepted()
        process.kill()
        error = recorder.closings.get(timeout=2.0)  # the limit of silence is far beyond
    assert isinstance(error, WorkerLost)
    assert "without a closing message" in str(error)


def test_a_frozen_client_is_noticed_by_its_silence(processes: list[Any], server: Server, hub: Hub) -> None:
    start(processes, open_and_wait, server.address, "freeze")
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
    process = start(processes, open_and_wait, server.address, "end")
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
