"""Random keys looked up without pause, each answer checked: ``python -m upriver.demo_prober``, without Spark.

The first line on stdin is the probe's parameters, as JSON. The end of stdin ends the lookups; then the prober prints
one JSON object with its observations.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.client.client import connect
from upriver.errors import ClusterError, UpriverError

WARM_UP = 50
"""First lookups, whose latency does not count: they open connections and load code."""

STOP_S_MAX = 30.0
"""Seconds that a prober has for its last answer."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProbeTask:
    """The lookups to make. view: with one key column. keys: to choose from. count: the column that never falls for a
    key."""

    address: str
    token: str = field(repr=False)
    view: str
    key: str
    count: str
    keys: Sequence[str | None]
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoProbes:
    """What a prober saw. began: of each lookup, by ``time.monotonic``, which all processes of a machine share.

    seconds: the duration of each lookup. wrong: how many answers were wrong, or failed. first_wrong: the first of
    those.
    """

    began: Floats
    seconds: Floats
    wrong: int
    first_wrong: str | None

    def between(self, start: float, end: float) -> Floats:
        """Seconds of the lookups that were under way at any time from ``start`` to ``end``, by ``time.monotonic``."""
        return self.seconds[(self.began < end) & (self.began + self.seconds > start)]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"began": self.began.tolist(), "seconds": self.seconds.tolist()}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`."""
        began, seconds = (np.array(json[name], np.float64) for name in ("began", "seconds"))
        return cls(began=began, seconds=seconds, wrong=json["wrong"], first_wrong=json["first_wrong"])


class Witness:
    """Remembers the last count of each key, and so recognises a wrong answer."""

    def __init__(self, key: str, count: str) -> None:
        self._key = key
        self._count = count
        self._counts: dict[str | None, int] = {}

    def fault(self, key: str | None, found: pa.Table) -> str | None:
        """The error in an answer for one key, if there is one. A key without rows counts 0."""
        keys = found[self._key].to_pylist()
        if keys not in ([], [key]):
            return f"{key!r}: the answer has rows of {keys}"
        count = sum(found[self._count].to_pylist())
        before, self._counts[key] = self._counts.get(key, 0), count
        return f"{key!r}: the count went back from {before} to {count}" if count < before else None


class DemoProber:
    """A prober in a process of its own, from construction until ``stop``; as a context manager, at most until its
    end."""

    def __init__(self, task: DemoProbeTask) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent process
        )
        assert self._process.stdin is not None
        print(json.dumps(asdict(task)), file=self._process.stdin, flush=True)

    def stop(self) -> DemoProbes:
        """End the lookups; returns the observations. Raises ClusterError if the process has failed."""
        seen, _ = self._process.communicate(timeout=STOP_S_MAX)
        if self._process.returncode != 0:
            raise ClusterError(f"the prober has failed, with status {self._process.returncode}")
        return DemoProbes.from_json(json.loads(seen))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # no effect if it has ended
        self._process.communicate()


def main() -> None:
    """Make the lookups that stdin describes, until stdin ends."""
    task = DemoProbeTask(**json.loads(sys.stdin.readline()))
    stopped = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(stopped,), daemon=True).start()
    with connect(task.address, task.token) as client:
        probes = probe(task, lambda key: client.lookup(task.view, [key], allow_warming=True), stopped)
    print(json.dumps(probes.to_json()))


def _wait_for_the_end(stopped: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1):  # sys.stdin.read has a lock that would keep the interpreter from ending
        pass
    stopped.set()


def probe(task: DemoProbeTask, look_up: Callable[[str | None], pa.Table], stopped: threading.Event) -> DemoProbes:
    """Look random keys up, one after the other and without pause, until ``stopped``."""
    lots = np.random.default_rng(task.seed)
    witness = Witness(task.key, task.count)
    began: list[float] = []
    seconds: list[float] = []
    faults: list[str] = []
    while not stopped.is_set():
        key = task.keys[int(lots.integers(len(task.keys)))]
        began.append(time.monotonic())
        try:
            fault = witness.fault(key, look_up(key))
        except UpriverError as error:
            fault = f"{key!r}: {type(error).__name__}: {error}"
        seconds.append(time.monotonic() - began[-1])
        if fault is not None:
            faults.append(fault)
    return DemoProbes(
        began=np.array(began[WARM_UP:]),
        seconds=np.array(seconds[WARM_UP:]),
        wrong=len(faults),
        first_wrong=faults[0] if faults else None,
    )


if __name__ == "__main__":
    main()
