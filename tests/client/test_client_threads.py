"""Many threads of one client, whose lookups are asked together, against real servers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from client_kit import PLANES, ROUTES, Cluster, Row
from rows_kit import rows_of

from upriver.client.client import Client
from upriver.errors import RowError, UnknownView
from upriver.ids import WorkerId

THREADS = 24
"""Many more than go by themselves."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    running = Cluster(3)
    yield running
    running.stop()


def test_many_threads_may_look_up_at_once(client: Client) -> None:
    def look_up(thread: int) -> None:
        for number in range(thread, 100, 8):
            keys = [f"N{number}", "N0"]
            assert rows_of(client.lookup("planes", keys)) == list(dict.fromkeys([(f"N{number}", number), ("N0", 0)]))
            assert rows_of(client.lookup("planes", keys[:1])) == [(f"N{number}", number)]
            assert rows_of(client.lookup("routes", [("JFK", number % 4)])) == ROUTES.rows_of(("JFK", number % 4))
            with pytest.raises(UnknownView):
                client.lookup("plains", keys)

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(look_up, range(THREADS))) == [None] * THREADS


def test_a_lookup_that_is_asked_with_others_has_their_errors_not(cluster: Cluster, client: Client) -> None:
    """One worker refuses every lookup of more than one key."""

    def refuse(keys: int) -> None:
        if keys > 1:
            raise RowError(f"{keys} keys")

    cluster.workers[WorkerId(0)].before = refuse

    def look_up(thread: int) -> list[Row]:
        return [row for number in range(50) for row in rows_of(client.lookup("planes", [f"N{thread + number}"]))]

    with ThreadPoolExecutor(THREADS) as pool:
        for thread, rows in enumerate(pool.map(look_up, range(THREADS))):
            assert rows == PLANES.rows[thread : thread + 50]
