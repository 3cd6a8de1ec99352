"""Sources through rescales: every record of every partition is sent on once and in order, if the source is split."""

from typing import Any

import pytest

from simulator.published.sources import Emit, PartitionReader, RecordsRead, SourceRead
from simulator.sources_world import UnsplitWorld, random_sources, sources_campaign
from upriver.hashing import Hashes

RUNS = 250


@pytest.fixture(scope="module")
def campaign() -> dict[str, Any]:
    return sources_campaign(0, RUNS)


def test_every_record_is_read_once_and_in_order_through_rescales(campaign: dict[str, Any]) -> None:
    assert campaign["violations"] == 0, campaign["message"]
    assert campaign["records"] > RUNS * 10


@pytest.mark.parametrize(
    "happening",
    [
        *("case files", "case topics", "cursors move", "Bye", "Kept", "RowsSent"),
        *("records are thrown away", "a rescale waits for another"),
    ],
)
def test_everything_that_can_happen_to_a_source_does(campaign: dict[str, Any], happening: str) -> None:
    assert campaign["counters"].get(happening, 0) > RUNS / 20


def test_a_source_goes_again_from_its_seed_the_same_way() -> None:
    assert random_sources(4) == random_sources(4)
    assert sources_campaign(4, 1) == sources_campaign(4, 1)


def test_a_source_that_was_not_split_is_read_twice() -> None:
    found = sources_campaign(0, 40, world=UnsplitWorld)
    assert found["violations"] > 20
    assert found["kinds"]["DOUBLED"] > 20


class ReadsOn(PartitionReader[Any]):
    """Goes on reading between Collect and Drop."""

    def collect(self, keys: Hashes) -> tuple[Any, ...]:
        state = super().collect(keys)
        self.sealed = frozenset()
        return state


class BelievesAll(PartitionReader[Any]):
    """Takes what was read from wherever it begins."""

    def _records(self, event: RecordsRead[Any]) -> tuple[SourceRead[Any] | Emit[Any], ...]:
        cursor = self.cursors.get(event.partition)
        if cursor is None or cursor.hash64 in self.sealed or cursor.offset == event.offset:
            return super()._records(event)
        return (Emit(partition=event.partition, offset=event.offset, records=event.records),)


@pytest.mark.parametrize(("reader", "first_seed"), [(ReadsOn, 0), (BelievesAll, 300)])  # 315: a cursor comes back
def test_a_reader_that_takes_what_is_not_its_own_sends_records_on_twice(
    reader: type[PartitionReader[Any]], first_seed: int
) -> None:
    found = sources_campaign(first_seed, 60, reader=reader)
    assert set(found["kinds"]) == {"DOUBLED"}
