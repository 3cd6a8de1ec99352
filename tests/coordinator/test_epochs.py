"""The coordinator's account of epochs: rule coordinator.all_workers_finish, for epochs that stay where they are read
and for mixed ones."""

from dataclasses import replace

import pyarrow as pa
import pytest
from coordinator_kit import CHANNEL, PLAN, TABLE, planned
from relation_kit import count, dataflow, group, scan

from upriver.coordinator.epochs import Ledger
from upriver.ids import Channel, Epoch, WorkerId
from upriver.protocol.coordinator_events import EpochPublished
from upriver.protocol.messages import EpochFinished, RowsApplied
from upriver.protocol.rules import ALL_RULES

PLANS = (PLAN, planned(name="other", key="j"))
SIZES = dataflow("sizes", group(count(scan(TABLE), "k"), "n", keys=("count_star", None, pa.int64())), ("n",), TABLE)
"""How many keys have so many rows: of two regions."""
ZERO, ONE = WorkerId(0), WorkerId(1)
BOTH = (ZERO, ONE)


def ledger(*rows: tuple[int, int], mixed: bool = False, waits_for_all: bool = True) -> Ledger:
    """Of epochs from the first on, with so many rows for each of the two views."""
    made = Ledger(PLANS, replace(ALL_RULES, coordinator_all_workers_finish=waits_for_all))
    for number, (for_rows, for_other) in enumerate(rows, 1):
        made.epochs.add(EpochPublished(epoch=Epoch(number), rows={CHANNEL: for_rows, Channel("t/j"): for_other}))
        if mixed:
            made.open_mixed(Epoch(number))
    return made


def finish(made: Ledger, worker: WorkerId, epoch: int, rows: int, other: int = 0) -> list[Epoch]:
    applied = {"rows": rows, "other": other}
    made.finished(worker, EpochFinished(epoch=Epoch(epoch), read={}, applied=applied, stats={}))
    return made.end(BOTH)


def more(made: Ledger, worker: WorkerId, epoch: int, **applied: int) -> list[Epoch]:
    made.applied(worker, RowsApplied(epoch=Epoch(epoch), applied=applied))
    return made.end(BOTH)


def test_nothing_ends_before_anything_is_published() -> None:
    made = ledger()
    assert (made.end(BOTH), made.published, made.ended) == ([], 0, 0)


def test_coordinator_all_workers_finish_the_rows_of_all_workers_add_up_to_those_published() -> None:
    made = ledger((3, 1))
    assert finish(made, ZERO, 1, rows=2) == []
    assert finish(made, ONE, 1, rows=1, other=1) == [1]
    assert made.ended == 1


@pytest.mark.parametrize("of_one", [0, 2])
def test_coordinator_all_workers_finish_an_epoch_that_is_not_mixed_must_add_up_when_all_have_finished(
    of_one: int,
) -> None:
    made = ledger((1, 0))
    finish(made, ZERO, 1, rows=0)
    assert finish(made, ONE, 1, rows=of_one) == [1]
    assert f"{of_one} rows have come, and 1 went in" in made.miscounted["rows"]


def test_coordinator_all_workers_finish_a_view_with_too_many_rows_is_a_fault_where_another_lacks_as_many() -> None:
    made = ledger((1, 1), mixed=True)
    finish(made, ZERO, 1, rows=0)
    assert finish(made, ONE, 1, rows=0, other=2) == []
    assert made.miscounted == {"other": "epoch 1: 2 rows have come, and 1 went in (region 'other')"}
    assert more(made, ONE, 1, rows=1) == [1]


def test_coordinator_all_workers_finish_a_mixed_epoch_waits_for_the_rows_that_are_on_their_way() -> None:
    made = ledger((3, 1), mixed=True)
    assert finish(made, ZERO, 1, rows=1) == []
    assert finish(made, ONE, 1, rows=1) == []
    assert more(made, ZERO, 1, rows=2) == []
    assert more(made, ZERO, 1, rows=2) == [], "told twice"
    assert more(made, ONE, 1, rows=1, other=1) == [1]


def test_coordinator_all_workers_finish_a_mixed_epoch_with_too_many_rows_is_a_fault() -> None:
    made = ledger((1, 0), mixed=True)
    finish(made, ZERO, 1, rows=1)
    finish(made, ONE, 1, rows=1)
    assert "2 rows have come, and 1 went in" in made.miscounted["rows"]


def test_coordinator_all_workers_finish_epochs_end_in_order_several_at_a_time() -> None:
    made = ledger((1, 0), (1, 0))
    for worker, epoch, rows in ((ZERO, 1, 1), (ZERO, 2, 1), (ONE, 2, 0)):
        assert finish(made, worker, epoch, rows) == []
    assert finish(made, ONE, 1, rows=0) == [1, 2]


def test_rows_that_are_told_before_the_worker_has_finished_count() -> None:
    made = ledger((2, 0), mixed=True)
    assert more(made, ZERO, 1, rows=2) == []
    finish(made, ONE, 1, rows=0)
    assert finish(made, ZERO, 1, rows=1) == [1]


def test_a_report_of_an_epoch_that_has_ended_counts_for_nothing() -> None:
    made = ledger((1, 0))
    finish(made, ZERO, 1, rows=1)
    assert finish(made, ONE, 1, rows=0) == [1]
    assert finish(made, ONE, 1, rows=5) == []


def test_what_a_lost_worker_has_applied_is_lost() -> None:
    made = ledger((2, 0))
    finish(made, ZERO, 1, rows=1)
    made.forget(ZERO)
    assert finish(made, ONE, 1, rows=1) == []
    assert finish(made, ZERO, 1, rows=1) == [1]


def test_when_all_begin_anew_what_has_ended_has_ended_and_the_rest_is_counted_again() -> None:
    made = ledger((1, 0), (1, 0), mixed=True)
    finish(made, ZERO, 1, rows=1)
    finish(made, ONE, 1, rows=0)
    finish(made, ZERO, 2, rows=0)
    made.start_anew()
    assert (made.ended, finish(made, ONE, 2, rows=0)) == (1, [])
    finish(made, ZERO, 2, rows=0)
    assert "epoch 2" in made.miscounted["rows"]  # it is not mixed any more


def test_a_worker_that_has_left_is_not_waited_for_but_its_rows_count() -> None:
    made = ledger((2, 0), mixed=True)
    made.finished(ONE, EpochFinished(epoch=Epoch(1), read={}, applied={"rows": 1}, stats={}))
    made.finished(ZERO, EpochFinished(epoch=Epoch(1), read={}, applied={"rows": 1}, stats={}))
    assert made.end((ZERO,)) == [1]
