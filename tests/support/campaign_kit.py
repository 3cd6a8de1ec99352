"""A campaign: a cluster whose processes are harmed at random while it is rescaled, as a seed says.

Nothing that is done is wrong, so nothing may come of it but lookups that wait or fail clearly, and rescales that fail
and say so. After each round all is healed, and the cluster must come to rest, whole and right.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from cluster_kit import RunningCluster
from failure_kit import KEYS, Prober, addresses, asking, check_lookup, cut_between, parent_of
from standby_kit import await_that, feeding

from benchmarks.recovery_kill import pid_listening
from upriver.client.client import Client, connect
from upriver.client.rescale import Rescale
from upriver.errors import ClusterError

CLUSTER = "local-cluster[3,2,1024]"
WORKERS = range(2, 6)
"""How many there may be: one slot of six is for ingest."""
VNODES = 32
FILES = 1000
"""More than a campaign can feed."""
SIZE_KEYS = list(range(1, 5 * FILES))
HARMS_MAX = 3
"""Times that a place is emptied; an app fails when one of its workers is lost too often."""
FEED_S = 0.2
"""Seconds between two looks whether the next file may come."""
RESCALE_S_MAX = 120.0
ANSWER_S_MAX = 60.0
"""Seconds for the driver's answer; a rescale is told its ticket when there are slots enough."""
CHECK_S_MAX = 240.0
PAUSES_S = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
"""Between two steps, in seconds: stages of a rescale last from milliseconds to a second."""
STOPS_S = (0.2, 0.8, 1.5, 2.0, 3.0, 5.0)
"""For which a worker is stopped: with the usual silence, the middle ones may be too long or not."""
STRATEGIES = ("icadd", "redistribute", "lazy", "learner", "restart")
STEPS = {"rescale": 6, "kill": 3, "stop": 3, "executor": 1, "cut": 2, "move": 2, "abort": 1}
"""What is done, and how often."""


class Campaign:
    """log: what was done, and when, in seconds. settings: of the app."""

    def __init__(self, directory: Path, seed: int, **settings: Any) -> None:
        self.log = [f"seed {seed}, {settings}"]
        self._began = time.monotonic()
        self._random = random.Random(seed)
        self._settings = {"workers": 3, "vnodes": VNODES, "checkpoints": {"interval_epochs": 3}, **settings}
        self.cluster = RunningCluster(directory, CLUSTER, FILES, **self._settings)
        self.cluster.ask("add sizes")
        self._client = self._connect()
        feed = self.cluster.feed
        self._probers = [
            Prober(self._client, "sums", feed.view, list(range(0, KEYS, 25))),
            Prober(self._client, "sizes", feed.sizes, SIZE_KEYS),
        ]
        self._harms: Counter[int] = Counter()
        self._timers: list[threading.Timer] = []
        self._rescales: list[Rescale] = []
        self.note("up")

    def _connect(self) -> Client:
        return connect(self.cluster.told["address"], self.cluster.told["token"], timeout=ANSWER_S_MAX)

    def note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:8.2f} {what}")

    # A round

    def round(self, steps: int) -> None:
        """Do so many things, heal, and see that all is well."""
        workers = len(self._client.status()["workers"])
        with feeding(self.cluster.feed, self._client.status, FEED_S), asking(*self._probers):
            for _ in range(steps):
                (step,) = self._random.choices(list(STEPS), list(STEPS.values()))
                getattr(self, f"_{step}")()
                threading.Event().wait(self._random.choice(PAUSES_S))
            self._heal()
            allowed = self._rescales_end(workers)
            await_that(self._is_whole, self._client.status)
            epoch = self._client.status()["epoch"]
            await_that(lambda: self._client.status()["checkpoint"]["epoch"] > epoch, self._client.status)
            self.note(f"whole again, of {allowed} workers; a checkpoint later than epoch {epoch}")
        self._check(allowed)

    def _heal(self) -> None:
        timers, self._timers = self._timers, []
        for timer in timers:
            timer.join()
        self.note("healed")

    def _rescales_end(self, workers: int) -> set[int]:
        """Each as it says it does. workers: before it. Returns how many there may be after it."""
        allowed, rescales = {workers}, self._rescales
        self._rescales = []
        for rescale in rescales:
            for _ in rescale.follow(RESCALE_S_MAX):
                pass
            report = rescale.report()
            self.note(f"rescale {rescale.ticket} {report['outcome']} {report['error'] or ''}")
            allowed = workers_after(report, allowed)
        return allowed

    def _check(self, allowed: set[int]) -> None:
        """Every view is what Spark SQL says, every key is found, and the cluster says that all is well."""
        cluster = self.cluster
        late = threading.Timer(CHECK_S_MAX, cluster.driver.kill)
        late.start()
        try:
            cluster.check()
        finally:
            late.cancel()
        check_lookup(self._client, "sums", cluster.feed.view, list(range(KEYS)), cluster.feed.fed)
        check_lookup(self._client, "sizes", cluster.feed.sizes, SIZE_KEYS, cluster.feed.fed)
        await_that(self._is_whole, self._client.status)
        status = self._client.status()
        assert status["epoch"] == status["published"] == cluster.feed.fed, status
        assert len(status["workers"]) in allowed, (allowed, status)
        assert status["views"]["sums"]["rows"] == KEYS, status
        self.note("checked")

    def restart(self) -> None:
        """Kill the driver, and start another on the same root."""
        self.note("the driver is killed")
        with feeding(self.cluster.feed, self._client.status, FEED_S):
            threading.Event().wait(self._random.choice(PAUSES_S))
        self.cluster.driver.kill()
        self.cluster.driver.communicate(timeout=60)
        self.close()
        self.cluster.start(CLUSTER)
        self.cluster.ask("add sizes")
        self._client = self._connect()
        for prober in self._probers:
            prober.client = self._client
        self._harms.clear()
        self.note("another driver is up")

    def close(self) -> None:
        self._client.close()
        self.cluster.client.close()

    def _is_whole(self) -> bool:
        """Whether all is at rest, and every worker that can stand by does: not on the executor where it is lost,
        too."""
        status = self._client.status()
        if not is_at_rest(status):
            return False
        processes = [self._process(worker) for worker in addresses(self._client)]
        executors = {parent_of(parent_of(pid)) for pid in processes if pid is not None}
        can_stand_by = status["standbys"]["wanted"] and len(executors) > 1
        return None not in processes and status["standbys"]["ready"] == (VNODES if can_stand_by else 0)

    # What is done

    def _process(self, worker: int) -> int | None:
        """The process in a place, if there is one."""
        address = addresses(self._client).get(worker)
        with suppress(ClusterError):  # it has gone, and that is not noticed yet
            return None if address is None else pid_listening(address)
        return None

    def _processes(self) -> dict[int, int]:
        """Of the processes that may be harmed, by worker."""
        found = {worker: self._process(worker) for worker in addresses(self._client)}
        return {worker: pid for worker, pid in found.items() if pid is not None and self._harms[worker] < HARMS_MAX}

    def _victim(self) -> tuple[int, int] | None:
        processes = self._processes()
        return self._random.choice(sorted(processes.items())) if processes else None

    def _kill(self) -> None:
        if victim := self._victim():
            worker, pid = victim
            self._harms[worker] += 1
            self.note(f"kill -9 of worker {worker}")
            send(pid, signal.SIGKILL)

    def _executor(self) -> None:
        """One all of whose workers may be harmed."""
        if victim := self._victim():
            with suppress(OSError):  # it has just gone
                executor = parent_of(parent_of(victim[1]))
                workers = [worker for worker, pid in self._processes().items() if parent_of(parent_of(pid)) == executor]
                self._harms.update(workers)
                self.note(f"kill -9 of the executor of workers {workers}")
                send(executor, signal.SIGKILL)

    def _stop(self) -> None:
        if victim := self._victim():
            worker, pid = victim
            seconds = self._random.choice(STOPS_S)
            self._harms[worker] += seconds > 1
            self.note(f"worker {worker} is stopped for {seconds} s")
            send(pid, signal.SIGSTOP)
            timer = threading.Timer(seconds, send, (pid, signal.SIGCONT))
            timer.start()
            self._timers.append(timer)

    def _cut(self) -> None:
        processes = sorted(self._processes().items())
        if len(processes) > 1:
            (one, pid), (other, other_pid) = self._random.sample(processes, 2)
            with suppress(OSError):  # one has just gone
                cut = cut_between(pid, other_pid)
                self.note(f"{cut} connections between workers {one} and {other} are cut")

    def _rescale(self) -> None:
        workers, strategy = self._random.choice(WORKERS), self._random.choice(STRATEGIES)
        keys_max = self._random.choice((None, 1, 8))
        self._wish(
            self._client.rescale(workers, strategy=strategy, keys_max=keys_max),
            f"to {workers} by {strategy}, {keys_max} keys at a time",
        )

    def _move(self) -> None:
        """Some slices, by a strategy that can."""
        workers = sorted(addresses(self._client))
        strategy = self._random.choice([strategy for strategy in STRATEGIES if strategy != "learner"])
        moves = {vnode: self._random.choice(workers) for vnode in self._random.sample(range(VNODES), 3)}
        self._wish(self._client.rescale(moves=moves, strategy=strategy), f"by {strategy}, {moves}")

    def _wish(self, rescale: Rescale, what: str) -> None:
        self.note(f"rescale {rescale.ticket} {what}")
        self._rescales.append(rescale)

    def _abort(self) -> None:
        if self._rescales:
            rescale = self._random.choice(self._rescales)
            self.note(f"rescale {rescale.ticket} is aborted")
            rescale.abort()


def send(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just gone, or Spark has killed it
        os.kill(pid, sign)


def is_at_rest(status: Mapping[str, Any]) -> bool:
    """Whether every place is filled, all keys are served, and nothing is under way."""
    assert status["failure"] is None, status
    vnodes = [worker["vnodes"] for worker in status["workers"]]
    is_filled = all(worker["address"] for worker in status["workers"])
    is_served = all(told["served_again_s"] is not None for told in status["recoveries"])
    goes_on = status["rescale"] or status["rescales_waiting"] or status["standbys"]["learners"]
    return is_filled and is_served and not goes_on and sum(vnodes) == VNODES and all(vnodes)


def workers_after(report: Mapping[str, Any], before: set[int]) -> set[int]:
    """How many workers there may be after a rescale."""
    first, last = report["from"], report["to"]
    if first is None or report["outcome"] == "refused":
        return before  # it has not begun
    match report["outcome"]:
        case "finished":
            return {last}
        case "failed":
            return {first}
        case "aborted":
            return set(range(min(first, last), max(first, last) + 1))
    raise AssertionError(report)


@contextmanager
def campaign(directory: Path, seed: int, **settings: Any) -> Iterator[Campaign]:
    """A campaign; if it fails, the error says what was done by then."""
    running = Campaign(directory, seed, **settings)
    with ExitStack() as at_end:
        at_end.callback(running.cluster.driver.kill)
        at_end.callback(running.close)
        try:
            yield running
        except BaseException as error:
            error.add_note("\n".join([*running.log, f"the driver's log: {running.cluster.log}"]))
            raise
        running.cluster.stop()
        running.note("stopped")
        print("", *running.log, sep="\n")
