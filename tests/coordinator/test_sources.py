"""One source's state machine: when it is tried again, and what it is said to be meanwhile."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.coordinator.sources import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    SILENT_DOUBLINGS_MAX,
    SILENT_S_MAX,
    STALLED_S,
    UNANSWERED_S,
    AttemptFailed,
    AttemptFinished,
    AttemptProgressed,
    AttemptWorks,
    BeginAttempt,
    EndAttempt,
    RestartAsked,
    SourceEvent,
    SourceMachine,
    SourceStarted,
    SourceStopped,
    TimePassed,
)
from upriver.protocol.freshness import SourceState


def started(at: float = 0.0) -> SourceMachine:
    machine = SourceMachine()
    assert machine.step(SourceStarted(at)) == [BeginAttempt(1)]
    return machine


def fail(machine: SourceMachine, at: float, is_permanent: bool = False) -> None:
    assert machine.step(AttemptFailed(at, machine.attempt, "no room", is_permanent)) == []


def test_a_source_that_works_runs() -> None:
    machine = started()
    assert machine.state(1.0) is SourceState.RUNNING
    machine.step(AttemptProgressed(50.0, 1, has_committed=True))
    assert machine.state(50.0 + STALLED_S) is SourceState.RUNNING
    assert machine.error is None


def test_back_off_doubles_up_to_its_limit() -> None:
    machine, now, waits = started(), 0.0, []
    for _ in range(9):
        fail(machine, now)
        assert machine.state(now) is SourceState.FAILED
        wait = machine.retry_in_s(now)
        assert wait is not None
        waits.append(wait)
        assert machine.step(TimePassed(now + wait - 0.001)) == []
        now += wait
        assert machine.step(TimePassed(now)) == [BeginAttempt(machine.attempt)]
    assert waits == [BACKOFF_S_MIN * 2**n for n in range(6)] + [BACKOFF_S_MAX] * 3


@pytest.mark.parametrize(
    ("at", "has_committed", "wait"), [(2.0, True, 1.0), (1.0 + BACKOFF_S_MAX, False, 1.0), (2.0, False, 2.0)]
)
def test_back_off_begins_anew_after_a_commit_or_a_long_life(at: float, has_committed: bool, wait: float) -> None:
    machine = started()
    fail(machine, 0.0)
    machine.step(TimePassed(1.0))
    machine.step(AttemptProgressed(at, 2, has_committed))
    fail(machine, at)
    assert machine.retry_in_s(at) == wait


def test_a_permanent_failure_waits_for_a_user() -> None:
    machine = started()
    fail(machine, 1.0, is_permanent=True)
    assert machine.retry_in_s(1.0) is None
    assert machine.step(TimePassed(1e6)) == []
    assert machine.state(1e6) is SourceState.FAILED
    assert machine.step(RestartAsked(1e6)) == [BeginAttempt(2)]


def test_an_attempt_after_a_failure_is_failing_until_it_shows_something() -> None:
    machine = started()
    fail(machine, 0.0)
    machine.step(TimePassed(1.0))
    assert (machine.state(1.0), machine.error) == (SourceState.FAILING, "no room")
    machine.step(AttemptProgressed(2.0, 2, has_committed=False))
    assert (machine.state(2.0), machine.error) == (SourceState.RUNNING, None)


def test_a_source_at_work_without_a_batch_is_stalled_and_can_be_restarted() -> None:
    machine = started()
    assert machine.state(STALLED_S) is SourceState.RUNNING
    assert machine.step(RestartAsked(STALLED_S)) == []
    assert machine.state(STALLED_S + 1) is SourceState.STALLED
    assert machine.step(RestartAsked(STALLED_S + 1)) == [EndAttempt(1), BeginAttempt(2)]
    assert machine.state(STALLED_S + 2) is SourceState.RUNNING


def test_a_source_that_does_not_answer_is_stalled_sooner_than_one_whose_batch_takes_long() -> None:
    machine = started()
    for at in (1.0, 5.0):
        machine.step(AttemptWorks(at, 1, asks=True))
    assert machine.state(1.0 + UNANSWERED_S) is SourceState.RUNNING
    late = 1.5 + UNANSWERED_S
    assert (machine.state(late), machine.is_unanswered(late), machine.stalled_for_s(late)) == ("stalled", True, late)
    machine.step(AttemptWorks(late, 1, asks=False))
    assert (machine.state(late), machine.is_unanswered(late)) == ("running", False)
    machine.step(AttemptWorks(late, 1, asks=True))
    machine.step(AttemptProgressed(late + 1, 1, has_committed=False))
    machine.step(AttemptWorks(late + 2, 1, asks=True))
    assert machine.state(late + 2 + UNANSWERED_S) is SourceState.RUNNING


def test_an_attempt_that_shows_nothing_is_ended_and_has_failed_also_after_a_failure() -> None:
    machine, now = started(), 0.0
    for attempt in range(1, SILENT_DOUBLINGS_MAX + 3):
        limit = SILENT_S_MAX * 2 ** min(attempt - 1, SILENT_DOUBLINGS_MAX)
        machine.step(AttemptWorks(now, attempt, asks=False))
        machine.step(AttemptWorks(now + 1, attempt, asks=True, is_silent=True, doing="Getting offsets"))
        assert machine.step(TimePassed(now + limit - 0.5)) == []
        assert machine.state(now + limit - 0.5) is SourceState.STALLED
        now += limit + 0.5
        assert machine.step(TimePassed(now)) == [EndAttempt(attempt)]
        assert machine.state(now) is SourceState.FAILED
        assert (machine.error or "").startswith(
            f"its attempt was ended: for {limit + 0.5:.0f} s it has finished no batch"
        )
        assert 'Spark says "Getting offsets".' in (machine.error or "")
        now += machine.retry_in_s(now) or 0.0
        assert machine.step(TimePassed(now)) == [BeginAttempt(attempt + 1)]


def test_an_attempt_that_has_jobs_of_spark_or_progresses_is_never_ended() -> None:
    machine = started()
    for now in range(0, 20 * int(SILENT_S_MAX), int(SILENT_S_MAX)):
        machine.step(AttemptWorks(now, 1, asks=False))
        assert machine.step(TimePassed(now + SILENT_S_MAX)) == []
    machine.step(AttemptProgressed(1e6, 1, has_committed=False))
    machine.step(AttemptWorks(1e6 + 1, 1, asks=False, is_silent=True))
    assert machine.step(TimePassed(1e6 + SILENT_S_MAX)) == []
    assert machine.step(TimePassed(1e6 + SILENT_S_MAX + 1)) == [EndAttempt(1)]


def test_what_an_attempt_says_that_is_over_does_not_count() -> None:
    machine = started()
    fail(machine, 0.0)
    machine.step(TimePassed(1.0))
    for late in (AttemptFinished(2.0, 1), AttemptFailed(2.0, 1, "late", True), AttemptProgressed(2.0, 1, True)):
        machine.step(late)
    assert (machine.state(2.0), machine.error) == (SourceState.FAILING, "no room")


def test_a_finished_source_is_left_alone() -> None:
    machine = started()
    machine.step(AttemptFinished(1.0, 1))
    assert machine.step(RestartAsked(2.0)) == machine.step(TimePassed(1e6)) == []
    assert machine.state(1e6) is SourceState.FINISHED


@dataclass
class World:
    """A source whose attempts fail and progress at random; what must hold at every step is checked here."""

    machine: SourceMachine = field(default_factory=SourceMachine)
    now: float = 0.0
    alive: int | None = None
    begun: list[float] = field(default_factory=list)
    may_retry: bool = True
    """Whether the machine may begin an attempt without being asked."""
    is_stopped: bool = False

    def step(self, event: SourceEvent) -> None:
        was_asked = isinstance(event, SourceStarted | RestartAsked)
        for action in self.machine.step(event):
            match action:
                case EndAttempt(attempt):
                    assert attempt == self.alive
                    self.alive = None
                case BeginAttempt(attempt):
                    assert self.alive is None, "two attempts at once"
                    assert not self.is_stopped
                    assert was_asked or self.may_retry, "a permanent failure was tried again"
                    assert attempt == len(self.begun) + 1
                    self.alive, self.may_retry = attempt, True
                    self.begun.append(self.now)
        assert self.machine.is_alive == (self.alive is not None)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(0.0, 100.0), st.floats(0.0, 2 * SILENT_S_MAX)),
            st.sampled_from(
                [
                    "fail",
                    "fail for good",
                    "finish",
                    "commit",
                    "idle",
                    "jobs",
                    "silence",
                    "tick",
                    "restart",
                    "stop",
                    "late",
                ]
            ),
        ),
        max_size=40,
    )
)
def test_whatever_happens_one_attempt_is_on_at_most_and_none_is_forgotten(schedule: list[tuple[float, str]]) -> None:
    world = World()
    world.step(SourceStarted(0.0))
    for passed, what in schedule:
        world.now += passed
        now, attempt, alive = world.now, world.machine.attempt, world.alive
        match what:
            case "fail" | "fail for good" if alive is not None:
                world.alive, world.may_retry = None, what == "fail"
                world.step(AttemptFailed(now, attempt, "no room", is_permanent=what == "fail for good"))
            case "finish" if alive is not None:
                world.alive, world.may_retry = None, False
                world.step(AttemptFinished(now, attempt))
            case "commit" | "idle":
                world.step(AttemptProgressed(now, attempt, has_committed=what == "commit"))
            case "jobs" | "silence":
                world.step(AttemptWorks(now, attempt, asks=False, is_silent=what == "silence"))
            case "late":
                world.step(AttemptFailed(now, attempt - 1, "late", is_permanent=True))
            case "restart":
                world.step(RestartAsked(now))
            case "stop":
                world.step(SourceStopped(now))
                world.is_stopped = True
            case _:
                world.step(TimePassed(now))
        state, error = world.machine.state(now), world.machine.error
        assert (state is SourceState.FAILED) == (error is not None and world.alive is None)
    if not world.is_stopped:
        waits = world.machine.retry_in_s(world.now)
        is_waiting = world.alive is None and world.may_retry
        assert (waits is not None) == is_waiting
        assert waits is None or waits <= BACKOFF_S_MAX
        if is_waiting:
            world.now += BACKOFF_S_MAX
            world.step(TimePassed(world.now))
            assert world.alive is not None
