"""A key of a cone that moves is not shown as of an earlier epoch by its new owner; rule cones.never_back."""

import pytest
from cone_kit import trade, visit
from cone_workers_kit import GIVES_3, PAGE, WORKERS, Workers
from machines_kit import hashed, meet

from upriver.protocol.rules import ALL_RULES, Rules


def ahead(rules: Rules = ALL_RULES) -> Workers:
    """Both workers have applied the first epoch, and met; worker 0 alone has applied the second, and shown the page as
    of its end."""
    workers = Workers(rules)
    workers.lake.publish(visit(PAGE, 1), trade("X", 1))
    workers.lake.publish(trade("Y", 1))
    for worker in WORKERS:
        workers.open(worker, 1)
        workers.step(worker, meet(*WORKERS))
    first = workers.look_up(0, PAGE)
    workers.fetch(0)
    assert workers.answers[first] == ([(PAGE, 1)], 1)
    workers.open(0, 2)
    workers.fetch(0)
    assert workers.answers[workers.look_up(0, PAGE)] == ([(PAGE, 2)], 2)
    return workers


@pytest.mark.parametrize("looked_up_at", WORKERS)
def test_cones_catch_up_first_a_key_that_moved_is_not_shown_as_of_an_earlier_epoch(looked_up_at: int) -> None:
    workers = ahead()
    workers.rescale(GIVES_3)
    assert workers.present(0) == []
    ticket = workers.look_up(looked_up_at, PAGE)
    workers.carry_all()
    workers.fetch(1)
    workers.carry_all()
    assert workers.present(1) == hashed([PAGE]).tolist(), "as of the first epoch"
    assert ticket not in workers.answers
    workers.open(1, 2)
    workers.fetch(1)
    workers.carry_all()
    rows, _ = workers.answers[ticket]
    assert rows == [(PAGE, 2)]


def test_keys_that_were_read_lately_are_filled_where_they_go_before_a_lookup_asks() -> None:
    workers = ahead()
    workers.open(1, 2)
    workers.rescale(GIVES_3)
    workers.fetch(1)
    assert workers.present(1) == hashed([PAGE]).tolist()
    assert workers.answers[workers.look_up(1, PAGE)] == ([(PAGE, 2)], 2)
    assert workers.present(0) == []


def test_partial_ask_where_the_key_goes_a_key_whose_slice_moves_while_it_is_filled_is_filled_where_it_goes() -> None:
    workers = Workers()
    workers.lake.publish(visit(PAGE, 1), trade("X", 1))
    for worker in WORKERS:
        workers.open(worker, 1)
        workers.step(worker, meet(*WORKERS))
    ticket = workers.look_up(0, PAGE)
    workers.rescale(GIVES_3)
    workers.fetch(0)
    assert workers.present(0) == []
    workers.fetch(1)
    workers.carry_all()
    assert workers.answers[ticket] == ([(PAGE, 1)], 1)
    assert workers.present(1) == hashed([PAGE]).tolist()
