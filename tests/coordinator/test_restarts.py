"""Restarts of workers: which life fills a place, when the next one starts, and which attempt of a task is admitted."""

import pytest

from upriver.coordinator.restarts import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    FAILURE_CHARS_MAX,
    STEADY_S,
    Claim,
    EndLife,
    LifeLost,
    PlaceHistory,
    PlaceWanted,
    RestartAction,
    RestartAt,
    RestartDue,
    Restarts,
    StartLife,
    StopRestarts,
    backoff_s,
)
from upriver.ids import WorkerId

WORKER = WorkerId(2)


def filled() -> Restarts:
    """A place whose first life has started."""
    restarts = Restarts()
    assert restarts.step(PlaceWanted(worker=WORKER)) == [StartLife(worker=WORKER, life=1)]
    return restarts


def lost(life: int, at: float = 0.0, why: str = "gone") -> LifeLost:
    return LifeLost(worker=WORKER, life=life, why=why, at=at)


def claim(restarts: Restarts, life: int, attempt: int, at: float = 0.0, holder_has_lease: bool = False) -> Claim:
    return restarts.claim(WORKER, life, attempt, at, holder_has_lease=holder_has_lease)


def lose_in_a_row(restarts: Restarts, count: int) -> list[RestartAction]:
    """So many lives are lost at once, each as soon as it starts; what follows the last loss."""
    actions: list[RestartAction] = []
    for life in range(1, count + 1):
        actions = restarts.step(lost(life))
        restarts.step(RestartDue(worker=WORKER, life=life + 1))
    return actions


def test_the_first_loss_is_made_good_at_once_and_the_old_job_ends() -> None:
    assert filled().step(lost(1)) == [EndLife(worker=WORKER, life=1), StartLife(worker=WORKER, life=2)]


def test_back_off_doubles_between_bounds_and_restarts_go_on_for_ever() -> None:
    waits = [backoff_s(losses) for losses in range(1, 11)]
    assert waits == [0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert (waits[1], waits[-1]) == (BACKOFF_S_MIN, BACKOFF_S_MAX)
    assert backoff_s(1_000_000) == BACKOFF_S_MAX


def test_losses_in_a_row_wait_and_the_thousandth_is_made_good_as_well() -> None:
    restarts = filled()
    assert lose_in_a_row(restarts, 3)[-1] == RestartAt(worker=WORKER, life=4, at=1.0)
    restarts = filled()
    assert lose_in_a_row(restarts, 1000)[-1] == RestartAt(worker=WORKER, life=1001, at=BACKOFF_S_MAX)
    assert restarts.history()[WORKER].restarts == 1000
    assert claim(restarts, 1001, attempt=7) is Claim.ADMITTED


def test_a_restart_that_is_due_starts_once() -> None:
    restarts = filled()
    restarts.step(lost(1))
    assert restarts.step(lost(2, at=5.0))[-1] == RestartAt(worker=WORKER, life=3, at=5.0 + BACKOFF_S_MIN)
    due = RestartDue(worker=WORKER, life=3)
    assert restarts.step(due) == [StartLife(worker=WORKER, life=3)]
    assert restarts.step(due) == []


def test_a_loss_that_is_heard_of_twice_counts_once() -> None:
    """The channel's end and the job's are told separately."""
    restarts = filled()
    restarts.step(lost(1))
    assert restarts.step(lost(1, why="the job has failed")) == []
    assert restarts.history()[WORKER] == PlaceHistory(1, "gone")


@pytest.mark.parametrize(("held_s", "losses"), [(STEADY_S, 1), (STEADY_S - 1, 5)])
def test_a_life_that_held_its_place_long_enough_ends_the_row(held_s: float, losses: int) -> None:
    restarts = filled()
    lose_in_a_row(restarts, 4)
    claim(restarts, 5, attempt=1, at=100.0)
    actions = restarts.step(lost(5, at=100.0 + held_s))
    wait_s = backoff_s(losses)
    assert actions[-1] == (
        RestartAt(worker=WORKER, life=6, at=100.0 + held_s + wait_s) if wait_s else StartLife(worker=WORKER, life=6)
    )


def test_a_life_that_never_came_does_not_end_the_row_however_long_it_was_waited_for() -> None:
    restarts = filled()
    lose_in_a_row(restarts, 2)
    assert restarts.step(lost(3, at=1000.0))[-1] == RestartAt(worker=WORKER, life=4, at=1001.0)


def test_a_place_that_is_wanted_while_a_restart_waits_starts_now() -> None:
    restarts = filled()
    lose_in_a_row(restarts, 1)
    restarts.step(lost(2))
    assert restarts.step(PlaceWanted(worker=WORKER)) == [StartLife(worker=WORKER, life=4)]
    assert restarts.step(RestartDue(worker=WORKER, life=3)) == []


def test_once_stopped_no_life_starts_and_no_attempt_is_admitted() -> None:
    restarts = filled()
    restarts.step(StopRestarts())
    assert restarts.step(lost(1)) == []
    assert restarts.step(PlaceWanted(worker=WORKER)) == []
    assert claim(restarts, 1, attempt=1) is Claim.OUTDATED
    assert not restarts.is_current(WORKER, 1)


def test_a_failure_is_one_line_of_bounded_length() -> None:
    restarts = filled()
    restarts.step(lost(1, why=f"first\n\tsecond  {'x' * 2 * FAILURE_CHARS_MAX}"))
    kept = restarts.history()[WORKER].last_failure
    assert kept is not None
    assert kept.startswith("first second xxx")
    assert len(kept) == FAILURE_CHARS_MAX


# Attempts of one task


def test_a_copy_of_an_attempt_that_has_its_lease_is_refused() -> None:
    restarts = filled()
    assert claim(restarts, 1, attempt=10) is Claim.ADMITTED
    assert claim(restarts, 1, attempt=11, holder_has_lease=True) is Claim.COPY
    assert restarts.is_current(WORKER, 1)


def test_spark_may_start_the_task_again_after_its_attempt_has_died() -> None:
    restarts = filled()
    claim(restarts, 1, attempt=10)
    assert claim(restarts, 1, attempt=11, holder_has_lease=False) is Claim.ADMITTED
    assert claim(restarts, 1, attempt=12, holder_has_lease=True) is Claim.COPY


def test_the_next_life_is_admitted_while_the_last_one_still_speaks_for_the_place() -> None:
    """It puts out the one before it."""
    restarts = filled()
    claim(restarts, 1, attempt=10)
    restarts.step(lost(1))
    assert claim(restarts, 2, attempt=20, holder_has_lease=True) is Claim.ADMITTED


def test_an_attempt_of_a_life_that_is_lost_is_outdated_while_the_next_one_waits_too() -> None:
    """Else Spark's own retry would come without back-off."""
    restarts = filled()
    lose_in_a_row(restarts, 1)
    restarts.step(lost(2))
    assert claim(restarts, 2, attempt=5) is Claim.OUTDATED
    assert claim(restarts, 3, attempt=6) is Claim.OUTDATED
    restarts.step(RestartDue(worker=WORKER, life=3))
    assert claim(restarts, 3, attempt=6) is Claim.ADMITTED


def test_a_place_that_was_never_wanted_admits_nothing() -> None:
    assert claim(Restarts(), 1, attempt=1) is Claim.OUTDATED
