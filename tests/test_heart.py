"""Signs of life: who is silent, and how old is what the other is known to have heard."""

from dataclasses import dataclass

import pytest

from upriver.net.channel import PING, Heart


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
def heart(clock: Clock) -> Heart:
    return Heart(clock)


def hear(heart: Heart, *, beat: int, heard: int) -> None:
    with heart.hearing():
        heart.pinged({"beat": beat, "heard": heard})


def test_a_beat_says_its_number_and_the_last_that_has_come(heart: Heart) -> None:
    assert heart.beat().fields == {"beat": 1, "heard": 0}
    hear(heart, beat=7, heard=1)
    said = heart.beat()
    assert (said.kind, said.fields) == (PING, {"beat": 2, "heard": 7})


def test_l1_what_was_heard_is_as_old_as_the_beat_however_long_the_news_took(heart: Heart, clock: Clock) -> None:
    assert not heart.is_confirmed(1000)
    heart.beat()
    clock.seconds += 5
    hear(heart, beat=1, heard=1)
    assert not heart.is_confirmed(5)
    assert heart.is_confirmed(6)


def test_l1_what_waits_for_a_process_that_was_stopped_renews_nothing(heart: Heart, clock: Clock) -> None:
    for number in (1, 2, 3):
        heart.beat()
        clock.seconds += 0.1
        hear(heart, beat=number, heard=number)
    assert heart.is_confirmed(1)
    heart.beat()
    clock.seconds += 60  # stopped; the other has said these meanwhile
    for number in (4, 5, 6):
        hear(heart, beat=number, heard=4)
    assert not heart.is_confirmed(1)
    heart.beat()
    hear(heart, beat=7, heard=5)
    assert heart.is_confirmed(1)


def test_l1_the_hello_counts_from_when_it_was_said(heart: Heart, clock: Clock) -> None:
    said_at = clock.seconds
    clock.seconds += 5  # the welcome took its time
    heart.met(said_at)
    assert not heart.is_confirmed(5)
    assert heart.is_confirmed(6)
    heart.beat()
    hear(heart, beat=1, heard=1)
    assert heart.is_confirmed(1)


def test_news_of_an_older_beat_takes_nothing_back(heart: Heart, clock: Clock) -> None:
    heart.beat()
    clock.seconds += 10
    heart.beat()
    hear(heart, beat=1, heard=2)
    hear(heart, beat=2, heard=1)
    assert heart.is_confirmed(1)


def test_silence_is_counted_in_own_beats(heart: Heart, clock: Clock) -> None:
    for _ in range(3):
        heart.beat()
    assert heart.silent_beats == 3
    clock.seconds += 1000  # this end could not run, and has not listened
    assert heart.silent_beats == 3
    hear(heart, beat=1, heard=0)
    assert heart.silent_beats == 0
    assert heart.heard_at == clock.seconds


def test_nobody_is_silent_while_what_he_said_is_handled(heart: Heart) -> None:
    with heart.hearing():
        for _ in range(3):
            heart.beat()
        assert heart.silent_beats == 0
    heart.beat()
    assert heart.silent_beats == 1


def test_who_waits_is_told_that_all_is_over(heart: Heart) -> None:
    heart.beat()
    hear(heart, beat=1, heard=1)
    assert heart.wait_confirmed(1, None)
    heart.end()
    assert not heart.wait_confirmed(1, None)
