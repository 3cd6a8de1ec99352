"""Signs of life: which end is silent, and how old is what the other is known to have heard."""

from dataclasses import dataclass

import pytest

from upriver.net.channel import PING, HeartbeatMonitor


@dataclass
class Clock:
    """Stands still unless it is moved on."""

    seconds: float = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def heartbeats(clock: Clock) -> HeartbeatMonitor:
    return HeartbeatMonitor(clock)


def hear(heartbeats: HeartbeatMonitor, *, beat: int, heard: int) -> None:
    with heartbeats.hearing():
        heartbeats.pinged({"beat": beat, "heard": heard})


def test_a_beat_says_its_number_and_the_last_that_has_come(heartbeats: HeartbeatMonitor) -> None:
    assert heartbeats.beat().fields == {"beat": 1, "heard": 0}
    hear(heartbeats, beat=7, heard=1)
    said = heartbeats.beat()
    assert (said.kind, said.fields) == (PING, {"beat": 2, "heard": 7})


def test_leases_speak_only_with_lease_what_was_heard_is_as_old_as_the_beat_however_long_the_news_took(
    heartbeats: HeartbeatMonitor, clock: Clock
) -> None:
    assert not heartbeats.is_confirmed(1000)
    heartbeats.beat()
    clock.seconds += 5
    hear(heartbeats, beat=1, heard=1)
    assert not heartbeats.is_confirmed(5)
    assert heartbeats.is_confirmed(6)


def test_leases_speak_only_with_lease_what_waits_for_a_process_that_was_stopped_renews_nothing(
    heartbeats: HeartbeatMonitor, clock: Clock
) -> None:
    for number in (1, 2, 3):
        heartbeats.beat()
        clock.seconds += 0.1
        hear(heartbeats, beat=number, heard=number)
    assert heartbeats.is_confirmed(1)
    heartbeats.beat()
    clock.seconds += 60  # stopped; the other has said these meanwhile
    for number in (4, 5, 6):
        hear(heartbeats, beat=number, heard=4)
    assert not heartbeats.is_confirmed(1)
    heartbeats.beat()
    hear(heartbeats, beat=7, heard=5)
    assert heartbeats.is_confirmed(1)


def test_leases_speak_only_with_lease_the_hello_counts_from_when_it_was_said(
    heartbeats: HeartbeatMonitor, clock: Clock
) -> None:
    said_at = clock.seconds
    clock.seconds += 5  # the welcome took its time
    heartbeats.met(said_at)
    assert not heartbeats.is_confirmed(5)
    assert heartbeats.is_confirmed(6)
    heartbeats.beat()
    hear(heartbeats, beat=1, heard=1)
    assert heartbeats.is_confirmed(1)


def test_news_of_an_older_beat_takes_nothing_back(heartbeats: HeartbeatMonitor, clock: Clock) -> None:
    heartbeats.beat()
    clock.seconds += 10
    heartbeats.beat()
    hear(heartbeats, beat=1, heard=2)
    hear(heartbeats, beat=2, heard=1)
    assert heartbeats.is_confirmed(1)


def test_silence_is_counted_in_own_beats(heartbeats: HeartbeatMonitor, clock: Clock) -> None:
    for _ in range(3):
        heartbeats.beat()
    assert heartbeats.silent_beats == 3
    clock.seconds += 1000  # this end could not run, and has not listened
    assert heartbeats.silent_beats == 3
    hear(heartbeats, beat=1, heard=0)
    assert heartbeats.silent_beats == 0
    assert heartbeats.heard_at == clock.seconds


def test_a_peer_is_not_silent_while_its_message_is_handled(heartbeats: HeartbeatMonitor) -> None:
    with heartbeats.hearing():
        for _ in range(3):
            heartbeats.beat()
        assert heartbeats.silent_beats == 0
    heartbeats.beat()
    assert heartbeats.silent_beats == 1


def test_a_waiting_caller_is_told_that_all_is_over(heartbeats: HeartbeatMonitor) -> None:
    heartbeats.beat()
    hear(heartbeats, beat=1, heard=1)
    assert heartbeats.wait_confirmed(1, None)
    heartbeats.end()
    assert not heartbeats.wait_confirmed(1, None)
