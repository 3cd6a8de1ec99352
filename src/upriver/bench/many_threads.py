"""Many threads of one program that ask at the same time, each one thing after the other."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def ask_on_threads(
    threads: int, ask: Callable[[Asked], Answer], questions: list[Asked]
) -> tuple[float, list[tuple[Asked, Answer]]]:
    """Ask all questions, each on one of so many threads; seconds from the first until the last answer, and the answers.

    Raises what ``ask`` raises.
    """
    ready = threading.Barrier(threads + 1)

    def run(mine: list[Asked]) -> tuple[float, list[tuple[Asked, Answer]]]:
        ready.wait()
        answers = [(question, ask(question)) for question in mine]
        return time.perf_counter(), answers

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(run, questions[thread::threads]) for thread in range(threads)]
        began = time.perf_counter()
        ready.wait()
        done = [each.result() for each in running]
    return max(at for at, _ in done) - began, [answer for _, answers in done for answer in answers]
