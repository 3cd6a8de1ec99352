"""Many threads of one program that look keys up at the same time, each in one lookup after the other."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from benchmarks.figures import median

ROUNDS = 3
"""Times that they do; the median counts."""

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def keys_per_s_on_threads(
    threads: int,
    keys: int,
    draw: Callable[[], list[Asked]],
    ask: Callable[[Asked], Answer],
    check: Callable[[Asked, Answer], None],
) -> int:
    """Keys a second that so many threads are given together. draw: the lookups of a round, of so many keys each. check:
    sees each answer, when the clock has stopped. Raises what ``ask`` and ``check`` raise."""
    rates = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            questions = draw()
            seconds, answers = _asked(pool, threads, ask, questions)
            rates.append(keys * len(questions) / seconds)
            for question, answer in answers:
                check(question, answer)
    return round(median(rates))


def _asked(
    pool: ThreadPoolExecutor, threads: int, ask: Callable[[Asked], Answer], questions: list[Asked]
) -> tuple[float, list[tuple[Asked, Answer]]]:
    """Seconds from the first question until the last answer, and all of them."""
    ready = threading.Barrier(threads + 1)

    def run(mine: list[Asked]) -> tuple[float, list[tuple[Asked, Answer]]]:
        ready.wait()
        answers = [(question, ask(question)) for question in mine]
        return time.perf_counter(), answers

    running = [pool.submit(run, questions[thread::threads]) for thread in range(threads)]
    began = time.perf_counter()
    ready.wait()
    done = [each.result() for each in running]
    return max(at for at, _ in done) - began, [answer for _, answers in done for answer in answers]
