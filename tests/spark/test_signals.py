"""Ctrl-C while the program waits in the JVM, and what stops with a Spark context."""

import signal
import threading

import pytest

from upriver.spark.signals import aside


def test_an_interrupt_ends_the_wait_and_the_call_goes_on_by_itself() -> None:
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        may_end.wait()
        has_ended.set()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            aside(call)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(10.0)


def test_a_call_gives_what_it_returns_and_raises() -> None:
    assert aside(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0)
