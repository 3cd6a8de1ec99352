"""Numbers that people give, to a client or past it: nonsense is refused by its name, and does no harm."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from client_kit import Cluster
from server_kit import KEYS, client_of
from upquery_kit import PARTIAL

from upriver.arguments import SECONDS_MAX, as_spelled, names, seconds, whole
from upriver.client.client import Client
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import DeclarationError, UnknownView, UpriverError
from upriver.ids import WorkerId
from upriver.net.remote import Connection
from upriver.net.server import Listen
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import CoordinatorService
from upriver.vnodes import VnodeMap

ANSWER_S_MAX = 10.0
"""Seconds for an answer, or an end, that must come at once."""


@pytest.mark.parametrize("given", [7, np.int32(7), np.uint64(7)])
def test_whole_numbers_of_any_type(given: int) -> None:
    assert whole("at_least", given) == 7
    assert type(whole("at_least", given)) is int


@pytest.mark.parametrize(("given", "kind"), [(True, "bool"), (2.0, "float"), ("5", "str"), (None, "NoneType")])
def test_what_is_no_whole_number(given: Any, kind: str) -> None:
    with pytest.raises(DeclarationError) as error:
        whole("at_least", given)
    assert str(error.value) == f"at_least={given!r}: give a whole number, not a {kind}"


@pytest.mark.parametrize("given", [np.array([1, 2]), Decimal("sNaN"), 10**400])
def test_what_cannot_be_made_a_number(given: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^timeout=.+: give a number of seconds \("):
        seconds("timeout", given)
    with pytest.raises(DeclarationError, match=r"^at_least=.+: give a whole number"):
        whole("at_least", np.array([1, 2]))


@pytest.mark.parametrize(
    ("given", "expected"), [(0, 0.0), (2, 2.0), (0.5, 0.5), (np.float32(0.5), 0.5), (Decimal("0.5"), 0.5)]
)
def test_seconds_of_any_type(given: float, expected: float) -> None:
    assert seconds("timeout", given) == expected


class Column:
    """Looks iterable, and is not, like a Column of Spark's."""

    def __iter__(self) -> Iterator[str]:
        raise TypeError("not iterable")

    def __repr__(self) -> str:
        return "Column<'k'>"


@pytest.mark.parametrize("given", [Column(), [Column()], 5, None, b"k", {"k": 1}])
def test_what_names_no_column(given: Any) -> None:
    with pytest.raises(DeclarationError) as error:
        names("table 't': key", given)
    assert str(error.value) == f"table 't': key={given!r}: give the name of a column, or a list of names"


def test_for_ever_is_a_long_time() -> None:
    assert seconds("timeout", math.inf) == SECONDS_MAX


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (-1, "timeout=-1: give a number of seconds, 0 or more"),
        (math.nan, "timeout=nan: give a number of seconds, 0 or more"),
        (-math.inf, "timeout=-inf: give a number of seconds, 0 or more"),
        ("5", "timeout='5': give a number of seconds, not a str"),
        (None, "timeout=None: give a number of seconds, not a NoneType"),
        (True, "timeout=True: give a number of seconds, not a bool"),
    ],
)
def test_what_are_no_seconds(given: Any, said: str) -> None:
    with pytest.raises(DeclarationError) as error:
        seconds("timeout", given)
    assert str(error.value) == said


# To a client


@pytest.fixture
def client() -> Iterator[Client]:
    cluster = Cluster(2)
    with cluster.connect() as client:
        yield client
    cluster.stop()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda client: client.lookup("planes", ["N1"], at_least="5"), "at_least='5': give a whole number"),
        (lambda client: client.lookup("planes", ["N1"], timeout="1"), "timeout='1': give a number of seconds"),
        (lambda client: client.lookup("planes", ["N1"], timeout=math.nan), "timeout=nan: give a number of seconds"),
        (lambda client: client.lookup_with_epoch("planes", ["N1"], maxage=5), "maxage=5: a lookup has no such limit"),
        (lambda client: client.rescale_of("x"), "ticket='x': give a whole number"),
        (lambda client: next(client.rescale_of(1).follow(timeout=-1)), "timeout=-1: give a number of seconds"),
    ],
)
def test_a_client_sends_no_request_for_nonsense(client: Client, call: Callable[[Client], object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        call(client)
    assert client.lookup("planes", ["N7"], at_least=5, timeout=math.inf).num_rows == 1


@pytest.mark.parametrize("view", [None, 3, ["planes"]])
def test_a_view_has_a_name(client: Client, view: Any) -> None:
    for ask in (lambda: client.lookup(view, ["N7"]), lambda: client.explain(view), lambda: client.evict(view)):
        with pytest.raises(UnknownView, match="give the name of a view"):
            ask()


# Past it


@pytest.fixture
def coordinator() -> Iterator[Connection]:
    """For every holder of the token."""
    loop = CoordinatorLoop(CoordinatorMachine(VnodeMap.initial(4, [WorkerId(0)]), (PARTIAL,)))
    loop.start()
    service = CoordinatorService(loop, (PARTIAL,), (), Listen(), KEYS)
    connection = Connection(client_of(service.address))
    yield connection
    connection.close()
    loop.stop(ANSWER_S_MAX)
    service.stop()


RESCALE: dict[str, Any] = {"workers": None, "moves": None, "strategy": "icadd", "keys_max": None}


@pytest.mark.parametrize(
    ("action", "fields", "said"),
    [
        ("evict", {"view": "seen", "keys": [-1]}, "keys: -1 is no hash64"),
        ("evict", {"view": "seen", "keys": [2**64]}, f"keys: {2**64} is no hash64"),
        ("evict", {"view": "seen", "keys": ["1"]}, "keys='1': give a whole number"),
        ("rescale", {**RESCALE, "workers": 1.5}, "workers=1.5: give a whole number"),
        ("rescale", {**RESCALE, "workers": 5}, "workers=5: there are 1 to 4 workers"),
        ("rescale", {**RESCALE, "workers": 1, "keys_max": "many"}, "keys_max='many': give a whole number"),
        ("rescale", {**RESCALE, "workers": 1, "keys_max": 0}, "keys_max=0: there is at least 1 key at a time"),
        ("rescale", {**RESCALE, "moves": {"1": 0.5}}, "moves=0.5: give a whole number"),
        ("rescale_progress", {"ticket": 1, "unless": "moving", "wait_s": "1"}, "wait_s='1': give a number of seconds"),
    ],
)
def test_a_coordinator_is_not_harmed_by_nonsense(
    coordinator: Connection, action: str, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(UpriverError, match=said):
        coordinator.act(action, fields, timeout=ANSWER_S_MAX)
    assert coordinator.act("status", {}, timeout=ANSWER_S_MAX)["failure"] is None


def test_names_of_columns_are_taken_in_any_case() -> None:
    assert as_spelled(["K", "v", "X"], ["k", "V"]) == ("k", "V", "X")
    assert as_spelled(["K", "k"], ["k", "K"]) == ("K", "k")
