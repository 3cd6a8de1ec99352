"""The other end of a :class:`benchmarks.probed_load.Probing`: the process that looks keys up."""

import collections
import gc
import json
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from benchmarks.probed_load import READY
from upriver.client.client import Client, connect


class ProberTask(Protocol):
    """What to ask, as the command line's file says. address: of the app. result: file for the answers, an Arrow
    stream."""

    @property
    def address(self) -> str: ...

    @property
    def result(self) -> str: ...


class Prober(Protocol):
    """Asks a client."""

    def warm_up(self) -> None:
        """Before the clock starts."""

    def probe(self, told: Iterable[str], /) -> pa.Table:
        """Ask until the lines end, one for each epoch published; all answers."""


def ask_until_end(told: Iterable[str], ask_on: Callable[[threading.Event], None]) -> None:
    """Call ``ask_on`` on another thread, set its event when the lines have ended, and wait until it returns."""
    is_over = threading.Event()
    asking = threading.Thread(target=ask_on, args=(is_over,))
    asking.start()
    collections.deque(told, maxlen=0)
    is_over.set()
    asking.join()


Asked = TypeVar("Asked", bound=ProberTask)


def run_prober(read_task: Callable[..., Asked], prober_of: Callable[[Client, Asked], Prober]) -> None:
    """Do what the command line's file says, until stdin ends. Its first line is the token."""
    task = read_task(**json.loads(Path(sys.argv[1]).read_text()))
    with connect(task.address, sys.stdin.readline().strip()) as client:
        prober = prober_of(client, task)
        prober.warm_up()
        gc.disable()  # a collection would count as a slow lookup; what piles up here is small, and no garbage
        print(READY, flush=True)
        answers = prober.probe(sys.stdin)
    with pa.OSFile(task.result, "wb") as sink, pa.ipc.new_stream(sink, answers.schema) as stream:
        stream.write_table(answers)
