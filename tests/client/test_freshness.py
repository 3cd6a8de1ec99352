"""What a client knows of how fresh views are, and when it asks again."""

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from upriver.client.freshness import (
    AGE_S,
    ASK_EVERY_S,
    COMMITS_MAX,
    COMMITTED_AT,
    EPOCH,
    OLD_S,
    SOURCES,
    KnownFreshness,
)
from upriver.errors import ClusterError, StaleView
from upriver.ids import Epoch
from upriver.protocol.freshness import FreshnessReport, TableFreshness
from upriver.protocol.lookups import ViewRoute

ROUTE = ViewRoute(("k",), pa.schema([("k", pa.int64())]), ("orders",))


@dataclass
class Coordinator:
    """Tells of one table, and counts how often it was asked."""

    age_s: float | None = 0.5
    lacks: str | None = None
    state: str = "running"
    late: str | None = ""
    """What a second table lacks; empty: there is none."""
    is_gone: bool = False
    asked: int = 0
    now: float = 100.0
    commits: dict[int, float] = field(default_factory=dict)

    def __call__(self, timeout: float | None, epoch: int | None = None) -> tuple[FreshnessReport, float | None]:
        self.asked += 1
        if self.is_gone:
            raise ClusterError("the app cannot be reached")
        table = TableFreshness(state=self.state, age_s=self.age_s, cause="its source has failed: why", lacks=self.lacks)
        committed_at = None if epoch is None else self.commits.get(epoch)
        late = {} if self.late == "" else {"late": replace(table, lacks=self.late)}
        return FreshnessReport(Epoch(3), {"orders": table, **late}), committed_at

    def clock(self) -> float:
        return self.now


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def known(coordinator: Coordinator) -> KnownFreshness:
    return KnownFreshness(coordinator, coordinator.clock)


def test_what_a_view_lacks_is_asked_for_until_it_lacks_nothing(coordinator: Coordinator, known: KnownFreshness) -> None:
    coordinator.lacks = "epoch 2 of 5 is reflected"
    for _ in range(2):
        assert known.lacks(ROUTE) == "table 'orders': epoch 2 of 5 is reflected"
    coordinator.lacks = None
    for _ in range(10):
        assert known.lacks(ROUTE) is None
    assert coordinator.asked == 3


def test_a_table_that_the_last_report_does_not_know_is_asked_for(
    coordinator: Coordinator, known: KnownFreshness
) -> None:
    late = ViewRoute(ROUTE.key, ROUTE.schema, ("orders", "late"))
    assert known.lacks(ROUTE) is None
    coordinator.late = "its source is still being read"
    assert known.lacks(ROUTE) is None
    assert known.lacks(late) == "table 'late': its source is still being read"
    assert (known.lacks(ROUTE), coordinator.asked) == (None, 2)
    coordinator.late = None
    for _ in range(2):
        assert known.lacks(late) is None
    assert coordinator.asked == 3


def test_an_answer_that_is_young_enough_is_asked_for_without_asking_the_coordinator(
    coordinator: Coordinator, known: KnownFreshness
) -> None:
    known.check_age("v", ROUTE, 5.0)
    coordinator.now += 4.5  # it may be 5 s old by now
    known.check_age("v", ROUTE, 5.0)
    assert coordinator.asked == 1
    coordinator.now += 0.25
    known.check_age("v", ROUTE, 5.0)
    assert coordinator.asked == 2


def test_an_answer_that_is_too_old_is_refused_with_age_and_cause(
    coordinator: Coordinator, known: KnownFreshness
) -> None:
    coordinator.age_s = 12.3
    with pytest.raises(
        StaleView,
        match=r"^view 'v': an answer is 12\.3 s old, and at most 5 s are allowed: "
        r"table 'orders': its source has failed: why$",
    ):
        known.check_age("v", ROUTE, 5.0)
    coordinator.age_s = None
    with pytest.raises(StaleView, match="an answer is of an age that is not known"):
        known.check_age("v", ROUTE, 5.0)
    coordinator.age_s = 0.0
    known.check_age("v", ROUTE, 5.0)


def test_an_app_that_does_not_answer_makes_answers_stale(coordinator: Coordinator, known: KnownFreshness) -> None:
    known.check_age("v", ROUTE, 5.0)
    coordinator.is_gone = True
    known.check_age("v", ROUTE, 5.0)
    coordinator.now += 5.0
    with pytest.raises(StaleView, match="the app does not say how old an answer is: the app cannot be reached"):
        known.check_age("v", ROUTE, 5.0)


# What answers say


def test_an_answer_says_its_epoch_its_age_and_how_its_sources_are(
    coordinator: Coordinator, known: KnownFreshness
) -> None:
    assert known.metadata(ROUTE, 7, 1_700_000_000.25) == {
        EPOCH: b"7",
        COMMITTED_AT: b"2023-11-14T22:13:20.250000+00:00",
        AGE_S: b"0.500",
        SOURCES: b"running",
    }
    coordinator.now += ASK_EVERY_S / 2
    assert known.metadata(ROUTE, 7, 1_700_000_000.25)[AGE_S] == b"1.000"
    assert coordinator.asked == 1


def test_before_the_first_epoch_nothing_was_committed(known: KnownFreshness) -> None:
    assert COMMITTED_AT not in known.metadata(ROUTE, 0, None)


def test_a_source_that_has_failed_is_told(coordinator: Coordinator, known: KnownFreshness) -> None:
    coordinator.state = "failed"
    assert known.metadata(ROUTE, 7, 1.0)[SOURCES] == b"failed: orders"


def test_after_a_pause_a_lookup_asks_first(coordinator: Coordinator, known: KnownFreshness) -> None:
    known.metadata(ROUTE, 7, 1.0)
    coordinator.now, coordinator.age_s = coordinator.now + OLD_S, 0.1
    assert known.metadata(ROUTE, 7, 1.0)[AGE_S] == b"0.100"
    assert coordinator.asked == 2


def test_what_is_too_old_is_not_told(coordinator: Coordinator, known: KnownFreshness) -> None:
    known.metadata(ROUTE, 7, 1.0)
    coordinator.now, coordinator.is_gone = coordinator.now + OLD_S, True
    for _ in range(3):
        assert known.metadata(ROUTE, 7, 1.0).keys() == {EPOCH, COMMITTED_AT}
    assert coordinator.asked == 2  # and it is not asked at each lookup


def test_commit_times_that_no_worker_told_are_asked_for_once(coordinator: Coordinator, known: KnownFreshness) -> None:
    coordinator.commits = {7: 0.0}
    for _ in range(3):
        assert known.metadata(ROUTE, 7, None)[COMMITTED_AT] == b"1970-01-01T00:00:00+00:00"
        assert COMMITTED_AT not in known.metadata(ROUTE, 8, None)
    assert coordinator.asked == 3  # for both epochs, and before that for the report
    for epoch in range(9, 9 + COMMITS_MAX):
        known.metadata(ROUTE, epoch, 1.0)
    known.metadata(ROUTE, 7, None)
    assert coordinator.asked == 4
