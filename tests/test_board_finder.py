"""A client's side of boards, with real memory and real servers: who is given one, and what is found on several."""

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from server_kit import calls_server, client_of

from upriver.client.asking import KeySet, Lookup, in_key_order
from upriver.client.board_finder import AGAIN_S, ASKING, LOOKUPS_MIN, VAIN_EVERY, VAIN_MAX, BoardFinder
from upriver.engine.batch import Hashes
from upriver.errors import ProtocolError
from upriver.hashing import hash64
from upriver.ids import Epoch, WorkerId
from upriver.net.heart import now
from upriver.net.remote import Connection
from upriver.net.routing import Routing, ViewRoute
from upriver.net.server import Server
from upriver.plan.plan import schema_to_json
from upriver.protocol.worker_events import BoardGiven
from upriver.runtime.boards import BOARD, BOARD_BYTES_MAX, BOARDS_BYTES_MAX, BUDGET_SHARE, Boards, machine
from upriver.state.board import Board
from upriver.state.board_layout import HEAD
from upriver.vnodes import VnodeMap, vnodes_of

pytestmark = pytest.mark.skipif(machine() is None, reason="no boards on this machine")

VNODES = 8
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
LISTS = pa.schema([("k", pa.string()), ("l", pa.list_(pa.int64()))])
ROUTE = ViewRoute(("k",), ROWS)
NAMES = [f"k{number}" for number in range(40)]
OWNERS = VnodeMap.initial(VNODES, [WorkerId(0), WorkerId(1)])
LEASE_S = 1_000.0


def hashed(*keys: str) -> Hashes:
    return hash64([pa.array(keys, pa.string())], len(keys))


def key_set(*keys: str) -> KeySet:
    columns = [pa.array(keys, pa.string())]
    return KeySet.of(pa.RecordBatch.from_arrays(columns, schema=ROUTE.key_schema))


def names_of(worker: int) -> list[str]:
    owners = OWNERS.owners_of(vnodes_of(hashed(*NAMES), VNODES)).tolist()
    return [name for name, owner in zip(NAMES, owners, strict=True) if owner == worker]


def wish(**fields: Any) -> dict[str, Any]:
    return {"view": "v", "key": ["k"], "machine": machine(), "view_schema": schema_to_json(ROWS), **fields}


@dataclass
class Worker:
    """A server that gives boards, on which a test puts rows."""

    given: list[BoardGiven] = field(default_factory=list)
    boards: Boards = field(init=False)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.boards = Boards(self.given.append, None)
        self.boards.good_until(now() + LEASE_S)
        self.server = calls_server({BOARD: self.boards.ask})

    @property
    def board(self) -> Board:
        return self.given[-1].board

    def show(self, epoch: int, *keys: str) -> None:
        """The epoch's end, as of which each of these keys has its number."""
        rows = [{"k": key, "n": epoch} for key in keys]
        self.board.take_all_down()
        self.board.turn(Epoch(epoch))
        self.board.put(hashed(*keys), pa.RecordBatch.from_pylist(rows, schema=ROWS))

    def stop(self) -> None:
        self.boards.close()
        self.server.stop()


@dataclass
class Cluster:
    """Two workers, and a client's finder that knows them."""

    workers: list[Worker]
    finder: BoardFinder = field(init=False)
    routing: Routing = field(init=False)
    time: float = 0.0

    def __post_init__(self) -> None:
        addresses = {WorkerId(place): worker.server.address for place, worker in enumerate(self.workers)}
        self.routing = Routing(OWNERS, addresses, {"v": ROUTE}, Epoch(0))
        self.connections: dict[str, Connection] = {}
        self.finder = BoardFinder(self._connection, lambda: self.time)

    def _connection(self, address: str) -> Connection:
        return self.connections.setdefault(address, Connection(client_of(address)))

    def lookup(self, at_least: int | None = None) -> Lookup:
        return Lookup("v", ROUTE, at_least, True, 10.0, now() + 10.0)

    def ask_workers(self, times: int = LOOKUPS_MIN) -> None:
        for _ in range(times):
            self.finder.asked(self.lookup(), self.routing)
        for thread in threading.enumerate():
            if thread.name == ASKING:
                thread.join()

    def find(self, *keys: str, at_least: int | None = None) -> list[tuple[str, int]] | None:
        """What is found, in order; ``None``: workers are to be asked."""
        asked = key_set(*keys)
        found = self.finder.find(self.lookup(at_least), asked, self.routing)
        if found is None:
            return None
        rows = [(row["k"], row["n"]) for row in in_key_order([found], asked, ROWS).to_pylist()]
        assert {number for _, number in rows} == {found.answered.epoch}
        return rows


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster([Worker(), Worker()])
    yield running
    running.finder.close()
    for connection in running.connections.values():
        connection.close()
    for worker in running.workers:
        worker.stop()


@pytest.fixture
def shown(cluster: Cluster) -> Cluster:
    """Where everything is shown as of epoch 5."""
    cluster.ask_workers()
    for place, worker in enumerate(cluster.workers):
        worker.show(5, *names_of(place))
    return cluster


def test_boards_are_asked_for_after_some_lookups(cluster: Cluster) -> None:
    cluster.ask_workers(LOOKUPS_MIN - 1)
    assert [worker.given for worker in cluster.workers] == [[], []]
    cluster.ask_workers(1)
    assert [[given.view for given in worker.given] for worker in cluster.workers] == [["v"], ["v"]]


def test_keys_of_several_workers_are_found_in_order_as_of_one_epoch(shown: Cluster) -> None:
    mixed = [NAMES[7], *reversed(NAMES[:5]), NAMES[30]]
    assert shown.find(*mixed) == [(name, 5) for name in mixed]
    assert shown.find(mixed[0]) == [(mixed[0], 5)]
    assert shown.find() is None


def test_if_some_key_is_not_found_workers_are_to_be_asked(shown: Cluster) -> None:
    first, second, *_ = names_of(0)
    there = names_of(1)[0]
    shown.workers[0].board.take_down(hashed(first))
    assert shown.find(first, there, second) is None
    assert shown.find(there, second) == [(there, 5), (second, 5)]
    assert shown.find("nobody") is None


def test_boards_of_several_epochs_are_of_no_use_together(shown: Cluster) -> None:
    here, there = names_of(0)[0], names_of(1)[0]
    shown.workers[1].show(6, there)
    assert shown.find(here, there) is None
    assert (shown.find(here), shown.find(there)) == ([(here, 5)], [(there, 6)])
    shown.workers[0].show(6, here)
    assert shown.find(here, there) == [(here, 6), (there, 6)]


def test_who_waits_for_an_epoch_finds_nothing_older(shown: Cluster) -> None:
    here = names_of(0)[0]
    assert shown.find(here, at_least=5) == [(here, 5)]
    assert shown.find(here, at_least=6) is None


def test_where_hardly_anything_is_found_few_lookups_look_until_one_finds_something(shown: Cluster) -> None:
    here = names_of(0)[0]
    assert [shown.find("nobody") for _ in range(VAIN_MAX + 1)] == [None] * (VAIN_MAX + 1)
    assert [shown.find(here) for _ in range(VAIN_EVERY)] == [*[None] * (VAIN_EVERY - 1), [(here, 5)]]
    assert shown.find(here) == [(here, 5)]


def test_b6_nothing_is_found_after_the_lease(shown: Cluster) -> None:
    here, there = names_of(0)[0], names_of(1)[0]
    shown.workers[0].boards.good_until(now())
    assert (shown.find(here), shown.find(there)) == (None, [(there, 5)])
    shown.workers[0].boards.good_until(now() + LEASE_S)
    assert shown.find(here, there) == [(here, 5), (there, 5)]


def test_two_keys_of_one_hash_are_not_taken_for_one_another(shown: Cluster) -> None:
    here = names_of(0)[0]
    impostor = key_set("impostor")
    asked = KeySet(impostor.keys, hashed(here), impostor.places)
    assert shown.finder.find(shown.lookup(), asked, shown.routing) is None


def test_rows_of_another_view_of_that_name_are_not_found(shown: Cluster) -> None:
    here = names_of(0)[0]
    other = ViewRoute(("k",), pa.schema([*ROWS, ("more", pa.int64())]))
    lookup = Lookup("v", other, None, True, 10.0, now() + 10.0)
    assert shown.finder.find(lookup, key_set(here), shown.routing) is None


def test_a_board_that_was_closed_is_asked_for_again(shown: Cluster) -> None:
    here = names_of(0)[0]
    shown.workers[0].board.close()
    assert shown.find(here) is None
    shown.ask_workers()
    assert [len(worker.given) for worker in shown.workers] == [1, 1]
    shown.time += AGAIN_S
    shown.ask_workers()
    assert [len(worker.given) for worker in shown.workers] == [2, 1]
    shown.workers[0].show(7, here)
    assert shown.find(here) == [(here, 7)]


def test_who_is_no_worker_any_more_is_forgotten(shown: Cluster) -> None:
    here, there = names_of(0)[0], names_of(1)[0]
    shown.finder.keep_only([shown.workers[1].server.address])
    assert (shown.find(here), shown.find(there)) == (None, [(there, 5)])


def test_a_client_that_is_closed_finds_nothing(shown: Cluster) -> None:
    here = names_of(0)[0]
    shown.finder.close()
    assert shown.find(here) is None
    shown.ask_workers()
    assert [len(worker.given) for worker in shown.workers] == [1, 1]


def test_who_cannot_be_reached_is_left_alone(cluster: Cluster) -> None:
    cluster.workers[0].stop()
    cluster.ask_workers()
    assert [len(worker.given) for worker in cluster.workers] == [0, 1]


# The worker's side


@pytest.fixture
def boards() -> Iterator[Boards]:
    made = Boards(lambda _: None, None)
    yield made
    made.close()


@pytest.mark.parametrize(
    "asked",
    [
        wish(machine="another"),
        wish(machine=None),
        wish(view_schema=schema_to_json(LISTS)),
        wish(key=[]),
    ],
    ids=["another machine", "no machine", "a list", "no key"],
)
def test_some_are_given_none(boards: Boards, asked: Mapping[str, Any]) -> None:
    assert boards.ask(asked) == {}


@pytest.mark.parametrize("asked", [wish(view=3), wish(key="k"), {}])
def test_what_is_no_wish_is_refused(boards: Boards, asked: Mapping[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="a board is of a view, by name"):
        boards.ask(asked)


def test_all_clients_have_one_board_of_a_view_and_none_if_they_know_another_view(boards: Boards) -> None:
    told = boards.ask(wish())
    assert told
    assert boards.ask(wish()) == told
    assert boards.ask(wish(view_schema=schema_to_json(ROUTE.key_schema))) == {}


@pytest.mark.parametrize(("budget", "most"), [(None, BOARDS_BYTES_MAX), (8 << 20, (8 << 20) // BUDGET_SHARE)])
def test_all_boards_together_take_so_much_and_no_more(budget: int | None, most: int) -> None:
    given: list[BoardGiven] = []
    boards = Boards(given.append, budget)
    told = [bool(boards.ask(wish(view=f"v{number}"))) for number in range(8)]
    taken = [event.board.nbytes for event in given]
    assert sum(taken) <= most
    assert max(taken) <= BOARD_BYTES_MAX
    assert sum(taken) > 0.9 * most
    assert told.index(False) == len(given)
    given[0].board.close()
    assert boards.ask(wish(view="one more"))
    boards.close()
    assert boards.ask(wish(view="too late")) == {}


def test_a_budget_too_small_for_a_board_has_none() -> None:
    boards = Boards(_nobody, 10_000)
    assert boards.ask(wish()) == {}


def test_b6_a_new_board_is_good_for_as_long_as_the_others(boards: Boards) -> None:
    boards.good_until(1234.5)
    told = boards.ask(wish())
    assert HEAD.unpack(os.pread(told["file"], HEAD.size, 0))[3] == 1234.5
    boards.good_until(2345.5)
    assert HEAD.unpack(os.pread(told["file"], HEAD.size, 0))[3] == 2345.5


def test_whoever_ends_closes_its_boards() -> None:
    given: list[BoardGiven] = []
    boards = Boards(given.append, None)
    boards.ask(wish())
    boards.close()
    assert given[0].board.is_closed


def _nobody(_: BoardGiven) -> None:
    """Nobody is told."""
