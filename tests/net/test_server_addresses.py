"""Where servers listen, and what they advertise."""

import socket
from collections.abc import Sequence

import pytest

from upriver.errors import ClusterError, DeclarationError
from upriver.net.server import Listen, SparkHosts, host_of, is_loopback, listen_for, local_address_to, outward_address

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "debian": ["127.0.1.1"],
    "driver-svc": ["10.9.0.1"],
    "mixed": ["127.0.0.1", "10.0.0.1"],
}
LAPTOP = SparkHosts(master="local[4]", executors_are_here=True, driver_host="192.168.1.7", driver_bind=None)
ON_LOOPBACK = SparkHosts(
    master="spark://127.0.0.1:7077", executors_are_here=False, driver_host="127.0.0.1", driver_bind=None
)
CLUSTER = SparkHosts(master="spark://m:7077", executors_are_here=False, driver_host="10.77.0.1", driver_bind=None)
POD = SparkHosts(master="k8s://api", executors_are_here=False, driver_host="driver-svc", driver_bind="10.1.2.3")


def resolve(name: str) -> Sequence[str]:
    return NAMES.get(name, [])


def listen(bind: str | None, spark: SparkHosts) -> Listen:
    return listen_for(bind, spark, resolve=resolve, outward=lambda: "192.168.1.7")


@pytest.mark.parametrize(
    ("bind", "spark", "host", "address"),
    [
        (None, LAPTOP, "127.0.0.1", "127.0.0.1:7"),
        (None, ON_LOOPBACK, "127.0.0.1", "127.0.0.1:7"),
        (None, CLUSTER, "10.77.0.1", "10.77.0.1:7"),
        (None, POD, "10.1.2.3", "driver-svc:7"),
        ("0.0.0.0", LAPTOP, "0.0.0.0", "192.168.1.7:7"),
        ("0.0.0.0", ON_LOOPBACK, "0.0.0.0", "192.168.1.7:7"),
        ("0.0.0.0", CLUSTER, "0.0.0.0", "10.77.0.1:7"),
        ("::", POD, "::", "driver-svc:7"),
        ("127.0.0.1", LAPTOP, "127.0.0.1", "127.0.0.1:7"),
        ("localhost", ON_LOOPBACK, "localhost", "localhost:7"),
        ("[::1]", LAPTOP, "::1", "[::1]:7"),
        ("10.77.0.9", CLUSTER, "10.77.0.9", "10.77.0.9:7"),
        ("driver-svc", CLUSTER, "driver-svc", "driver-svc:7"),
    ],
)
def test_where_the_coordinator_listens_and_what_it_advertises(
    bind: str | None, spark: SparkHosts, host: str, address: str
) -> None:
    chosen = listen(bind, spark)
    assert (chosen.host, chosen.address(7)) == (host, address)


@pytest.mark.parametrize("bind", ["127.0.0.1", "localhost", "::1", "127.9.9.9", "debian"])
def test_loopback_where_executors_are_elsewhere_is_refused_with_the_way_out(bind: str) -> None:
    with pytest.raises(DeclarationError, match=r"bind=.*spark://m:7077.*Leave bind out.*on 10\.77\.0\.1\. If all"):
        listen(bind, CLUSTER)


@pytest.mark.parametrize(
    ("bind", "alone"),
    [
        ("127.0.0.1:5555", "127.0.0.1"),
        ("[::1]:5555", "::1"),
        ("grpc://node:1", "node"),
        ("node:0", "node"),
        (" node", "127.0.0.1"),
        ("a/b", "127.0.0.1"),
    ],
)
def test_what_is_no_host_is_refused_with_what_to_write(bind: str, alone: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        host_of(bind)
    assert f"bind={bind!r}: give a host alone, without a port, as in bind={alone!r}" in str(refused.value)


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("debian", True), ("mixed", False), ("10.0.0.1", False),
     ("unknown", False), ("0.0.0.0", False)],
)  # fmt: skip
def test_loopback_is_what_this_machine_alone_reaches(host: str, answer: bool) -> None:
    assert is_loopback(host, resolve) == answer


@pytest.mark.parametrize("interface", ["127.0.0.1", "127.0.0.2"])
def test_a_worker_advertises_the_local_address_by_which_it_reached_the_coordinator(interface: str) -> None:
    with socket.create_server((interface, 0)) as server:
        found = local_address_to(f"{interface}:{server.getsockname()[1]}")
        server.accept()[0].close()
    assert is_loopback(found)


def test_an_address_that_cannot_be_reached_is_named_with_the_host_that_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ClusterError, match=f"{address} cannot be reached from {socket.gethostname()}: "):
        local_address_to(address)
    with pytest.raises(ClusterError, match=r"nowhere\.invalid:1 cannot be reached"):
        local_address_to("nowhere.invalid:1")


def test_this_machine_has_an_address_to_advertise() -> None:
    assert socket.inet_aton(outward_address())
