"""Asks for pages, from a process without Spark: ``python -m benchmarks.lobsters_prober TASK.json``.

The token comes on stdin. The load is a closed loop: some clients, each of which asks for the next page when it has the
one before. What a page writes is asked for by a line on stdout, the number of its request; the answer on stdin is that
number and the epoch that has it all. The last line on stdout is one JSON object.
"""

import gc
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from benchmarks.lobsters_answers import FAILED, PAGES, SiteAnswers, SiteLookup
from benchmarks.lobsters_model import KeyArray
from benchmarks.lobsters_pages import show
from benchmarks.lobsters_requests import Request
from upriver.client.client import Client, connect
from upriver.errors import UpriverError

LOOKUP_S_MAX = 60.0
"""Seconds after which a lookup counts as failed."""
WRITE_S_MAX = 60.0
"""Seconds that a write may take."""
NO_USER = -1
"""A key that no view has: whose eviction changes nothing, and takes workers to say how they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProbeTask:
    """What to ask. requests: file of them all, JSON. warm_up: so many of them come before those that count. clients:
    that ask at once. partial: views whose keys are kept when they are looked up. result: directory for the
    ``SiteAnswers``.
    """

    address: str
    requests: str
    warm_up: int
    clients: int
    partial: Sequence[str]
    result: str


def main() -> None:
    """Do what the command line's file says."""
    task = SiteProbeTask(**json.loads(Path(sys.argv[1]).read_text()))
    requests = [Request(**fields) for fields in json.loads(Path(task.requests).read_text())]
    with connect(task.address, sys.stdin.readline().strip()) as client:
        probe = LobstersProbe(client, task, Writes(sys.stdin, sys.stdout))
        probe.ask(requests[: task.warm_up])
        before = probe.missed()
        gc.collect()
        gc.disable()  # a collection would count as a slow page; what piles up here is small, and no garbage
        probe.ask(requests[task.warm_up :])
        missed = {view: count - before[view] for view, count in probe.missed().items()}
    probe.answers().write(Path(task.result))
    print(json.dumps({"missed": missed}))


class Writes:
    """Has what requests write published by the process that started this one."""

    def __init__(self, told: IO[str], asked: IO[str]) -> None:
        self._asked = asked
        self._lock = threading.Lock()
        self._epochs: dict[int, Future[int]] = {}
        """Of the requests whose rows are being written."""
        threading.Thread(target=self._listen, args=(told,), daemon=True).start()

    def write(self, number: int) -> int:
        """The epoch that has all that this request writes."""
        epoch: Future[int] = Future()
        with self._lock:
            self._epochs[number] = epoch
            print(number, file=self._asked, flush=True)
        return epoch.result(WRITE_S_MAX)

    def _listen(self, told: Iterable[str]) -> None:
        for line in told:
            number, epoch = json.loads(line)
            with self._lock:
                self._epochs.pop(number).set_result(epoch)


class LobstersProbe:
    """Asks as many clients would, by threads of one process."""

    def __init__(self, client: Client, task: SiteProbeTask, writes: Writes) -> None:
        self._client = client
        self._task = task
        self._writes = writes
        self._visits: list[Visit] = []
        self._has_failed = threading.Event()
        """A lookup was not answered: then no more pages are asked for."""

    def ask(self, requests: Sequence[Request]) -> None:
        """All of these; returns when the last one is answered, or one has failed."""
        left, lock = iter(requests), threading.Lock()
        with ThreadPoolExecutor(self._task.clients) as clients:
            asking = [clients.submit(self._ask_for_each, left, lock) for _ in range(self._task.clients)]
        for one in asking:
            one.result()

    def _ask_for_each(self, left: Iterator[Request], lock: threading.Lock) -> None:
        while not self._has_failed.is_set():
            with lock:
                request = next(left, None)
            if request is None:
                return
            visit = Visit(self._client, self._writes, request)
            self._visits.append(visit)
            try:
                visit.go()
            except UpriverError as error:
                print(f"request {request.number}, {request.page}: {error}", file=sys.stderr, flush=True)
                self._has_failed.set()

    def missed(self) -> Mapping[str, int]:
        """Of each partial view: keys that were looked up and were not there, so far."""
        for view in self._task.partial:
            self._client.evict(view, [NO_USER])
        views = self._client.status()["views"]
        return {view: views[view]["missed"] for view in self._task.partial}

    def answers(self) -> SiteAnswers:
        """To all that was asked."""
        pages = [(visit.number, visit.began_at, visit.ended_at) for visit in self._visits]
        columns: list[Any] = [list(column) for column in zip(*pages, strict=True)]
        lookups = itertools.chain.from_iterable(visit.lookups for visit in self._visits)
        return SiteAnswers(pa.table(columns, schema=PAGES), list(lookups))


class Visit:
    """One page: a ``lobsters_pages.Site`` that takes down what it is asked and what it finds."""

    def __init__(self, client: Client, writes: Writes, request: Request) -> None:
        self._client = client
        self._writes = writes
        self._request = request
        self.lookups: list[SiteLookup] = []
        self.began_at = self.ended_at = 0.0

    @property
    def number(self) -> int:
        return self._request.number

    def go(self) -> None:
        """See the page. What a lookup raises ends it."""
        self.began_at = time.perf_counter()
        try:
            show(self._request, self)
        finally:
            self.ended_at = time.perf_counter()

    def look(self, view: str, keys: KeyArray, at_least: int = 0) -> pa.Table:
        found, epoch = None, FAILED
        try:
            found, epoch = self._client.lookup_with_epoch(
                view, pa.array(keys), at_least=at_least or None, timeout=LOOKUP_S_MAX
            )
        finally:
            self.lookups.append(
                SiteLookup(
                    page=self.number,
                    view=view,
                    keys=keys,
                    at_least=at_least,
                    epoch=epoch,
                    answered_at=time.perf_counter(),
                    found=found,
                )
            )
        return found

    def write(self) -> int:
        return self._writes.write(self.number)


if __name__ == "__main__":
    main()
