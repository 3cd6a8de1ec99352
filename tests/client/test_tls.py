"""A client of an app with a certificate: what is on the network, and that lookups go on over it."""

import random
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
from client_kit import Cluster, View
from relay_kit import Relay, copied, copy_both
from server_kit import SECONDS_MAX, TOKEN
from tls_kit import AUTHORITY, IDENTITY, OWN

import upriver
from upriver.cli import main
from upriver.errors import AccessDenied, UserError, WorkerLost
from upriver.ids import WorkerId
from upriver.net.tls import TlsIdentity
from upriver.protocol.lookups import ViewRoute

HERE = WorkerId(0)
SECRETS = View(
    ViewRoute(("name",), pa.schema([("name", pa.string()), ("salary", pa.string())])),
    [(f"name of {number}", f"salary of {number}") for number in range(100)],
)


class Listening(Relay):
    """Passes connections on to ``target``, and keeps all bytes. change: what he makes of them."""

    def __init__(self, target: str, change: Callable[[bytes], bytes] = lambda some: some) -> None:
        self.heard: list[bytes] = []
        self._change = change
        super().__init__()
        self.target = target

    def pass_on(self, caller: socket.socket, app: socket.socket) -> None:
        copy_both(caller, app, self._kept, self._kept)

    def _kept(self, source: socket.socket) -> Iterator[bytes]:
        for some in copied(source):
            self.heard.append(some)
            yield self._change(some)


def heard_of(tls: TlsIdentity | None) -> bytes:
    """All bytes of a client that looks up, and calls."""
    cluster = Cluster(1, {"status": lambda _: {"plan": "SELECT salary"}}, tls=tls)
    cluster.views["secrets"] = SECRETS
    with Listening(cluster.workers[HERE].server.address) as of_worker:
        cluster.addresses[HERE] = of_worker.address
        with Listening(cluster.coordinator.address) as of_coordinator:
            with upriver.connect(of_coordinator.address, TOKEN, tls=cluster.trusted) as client:
                assert client.lookup_one("secrets", "name of 7") == {"name": "name of 7", "salary": "salary of 7"}
                assert client.status() == {"plan": "SELECT salary"}
            heard = b"".join([*of_worker.heard, *of_coordinator.heard])
    cluster.stop()
    return heard


KNOWN = (b"name of 7", b"salary of 7", b"SELECT salary", b"secrets", b'"act"')


def test_who_listens_reads_nothing() -> None:
    clear, encrypted = heard_of(None), heard_of(IDENTITY)
    assert [known in clear for known in KNOWN] == [True] * len(KNOWN)
    assert [known in encrypted for known in (*KNOWN, TOKEN.encode())] == [False] * (len(KNOWN) + 1)
    assert len(encrypted) > len(clear)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster(2, tls=IDENTITY)
    yield running
    running.stop()


def test_bytes_that_are_changed_on_the_way_change_no_answer(cluster: Cluster) -> None:
    rng = random.Random(5)

    def change(some: bytes) -> bytes:
        if rng.randrange(20):
            return some
        place = rng.randrange(len(some))
        return some[:place] + bytes([some[place] ^ 1]) + some[place + 1 :]

    done = 0
    with Listening(cluster.workers[HERE].server.address, change) as middle:
        cluster.addresses[HERE] = middle.address
        with cluster.connect() as client:
            for number in range(50):
                try:
                    found = client.lookup_one("planes", f"N{number}", timeout=0.2)
                except (WorkerLost, AccessDenied):
                    continue
                assert found == {"tailnum": f"N{number}", "flights": number}
                done += 1
    assert done


def test_many_threads_ask_for_much_and_little(cluster: Cluster) -> None:
    large = [(f"key {number}", "x" * 2_000) for number in range(3_000)]
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    cluster.views["large"] = View(ViewRoute(("k",), schema), large)
    every = dict(large)

    def ask(client: upriver.client.client.Client, turn: int) -> None:
        if turn % 10:
            assert client.lookup_one("planes", f"N{turn}") == {"tailnum": f"N{turn}", "flights": turn}
            return
        keys = [f"key {number}" for number in range(turn, 3_000, 20)]
        found = client.lookup("large", keys, timeout=3 * SECONDS_MAX)
        assert dict(zip(*found.to_pydict().values(), strict=True)) == {key: every[key] for key in keys}

    with cluster.connect() as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(ask, client), range(100)))


def test_what_is_trusted_comes_from_the_environment_too(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPRIVER_ADDRESS", cluster.coordinator.address)
    monkeypatch.setenv("UPRIVER_TOKEN", TOKEN)
    with pytest.raises(UserError, match=r"speaks TLS: give tls="):
        upriver.connect()
    for given in (str(AUTHORITY), "true"):
        monkeypatch.setenv("UPRIVER_TLS", given)
        with pytest.raises(AccessDenied, match=r"a certificate that is not trusted for .127\.0\.0\.1."):
            upriver.connect()
    monkeypatch.setenv("UPRIVER_TLS", str(OWN))
    with upriver.connect() as client:
        assert client.lookup_one("planes", "N3") == {"tailnum": "N3", "flights": 3}


def test_a_command_is_told_what_to_trust(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lookup", "planes", "N3", "--address", cluster.coordinator.address, "--token", TOKEN]
    assert main(command) == 2
    assert "speaks TLS: give tls=" in capsys.readouterr().err
    assert main([*command, "--tls", str(OWN)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["N3", "3"]
