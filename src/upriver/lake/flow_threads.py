"""Threads that do jobs of several flows. Other flows do not wait for a flow whose jobs hang.

The flows take turns, a job each. A flow gets another thread only while it has fewer than are free. So a flow alone has
half of the threads, rounded up, and the next flow half of the rest. The last free thread is for a flow that has none.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable

from upriver.ids import FlowId

Job = Callable[[], None]


class FlowThreads:
    """Used by any thread. The threads are daemons: the process ends without a job that hangs."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._unstarted = self._free = threads_max
        """``_free``: the threads without a job; those that are not started count, too."""
        self._jobs: dict[FlowId, deque[Job]] = {}
        """The jobs that wait, by flow; the flow that was served last is the last."""
        self._busy = Counter[FlowId]()
        """How many threads each flow has that has any."""
        self._is_closed = False
        self._changed = threading.Condition()

    def do(self, flow: FlowId, job: Job) -> None:
        """Do the job soon; it must not raise. The caller bounds the number of jobs that a flow has under way."""
        with self._changed:
            self._jobs.setdefault(flow, deque()).append(job)
            if self._unstarted:  # a worker without jobs needs no thread
                self._unstarted -= 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._changed.notify()

    def drop(self, flow: FlowId) -> None:
        """Forget the flow's jobs that wait."""
        with self._changed:
            self._jobs.pop(flow, None)

    def close(self) -> None:
        """Begin no job any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (taken := self._taken()) is not None:
            flow, job = taken
            try:
                job()
            finally:
                with self._changed:
                    self._free += 1
                    self._busy -= Counter([flow])
                    self._changed.notify()  # two jobs at most may begin now, and this thread takes the first

    def _taken(self) -> tuple[FlowId, Job] | None:
        """Wait for a job that may begin; ``None`` at the end."""
        with self._changed:
            while not self._is_closed:
                flow = next((flow for flow in self._jobs if self._busy[flow] < self._free), None)
                if flow is None:
                    self._changed.wait()
                    continue
                jobs = self._jobs.pop(flow)
                job = jobs.popleft()
                if jobs:
                    self._jobs[flow] = jobs
                self._free -= 1
                self._busy[flow] += 1
                return flow, job
        return None
