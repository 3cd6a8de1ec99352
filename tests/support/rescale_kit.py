"""What tests of a rescale's face share: a coordinator that plays its part in a rescale, as scripted."""

import os
import queue
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from client_kit import EPOCH, VNODES

Json = dict[str, Any]
TICKET = 7


def progress(state: str, moved: int = 0, left: int = 0, **fields: Any) -> Json:
    """A rescale's progress as a coordinator tells it: 100 bytes for each key."""
    known = {"ticket": TICKET, "strategy": "icadd", "from": 2, "to": 3, "state": state, "error": None, "workers": []}
    vnodes = {"vnodes_moving": 5, "vnodes_moved": 0}
    amounts = {"keys_moved": moved, "keys_left": left, "bytes_moved": 100 * moved, "bytes_left": 100 * left}
    return {**known, **vnodes, **amounts, "seconds": 0.5, "seconds_left": None, "waits_for": None, **fields}


def report(outcome: str, error: str | None = None) -> Json:
    return {
        "ticket": TICKET,
        "strategy": "icadd",
        "from": 2,
        "to": 3,
        "outcome": outcome,
        "moved_keys": 1234,
        "moved_bytes": 56789,
        "moved_vnodes": 5,
        "seconds": 1.25,
        "max_hold_ms": 3.21,
        "max_stall_ms": 4.56,
        "rows_forwarded": 1000,
        "rows_bounced": 20,
        "error": error,
    }


UNDERWAY = [progress("starting"), progress("moving", 400, 600, seconds=0.9), progress("moving", 900, 100, seconds=1.1)]


@dataclass
class Coordinator:
    """Plays a coordinator's part in a rescale. script: what it tells of the progress; the last again and again.

    before: is called with each action and may fail it. asked: what it was asked for, in order.
    """

    script: list[Json] = field(default_factory=lambda: [*UNDERWAY, progress("finished", 1000)])
    report: Json = field(default_factory=lambda: report("finished"))
    before: Callable[[str], None] = lambda action: None
    rescales: list[Json] = field(default_factory=list)
    views: list[Json] = field(default_factory=list)
    asked: "queue.SimpleQueue[tuple[str, Json]]" = field(default_factory=queue.SimpleQueue)

    def actions(self) -> dict[str, Callable[[Mapping[str, Any]], Json]]:
        return {
            "rescale": lambda asked: self._hear("rescale", asked, {"ticket": TICKET}),
            "rescale_progress": lambda asked: self._hear("rescale_progress", asked, self._progress()),
            "rescale_report": lambda asked: self._hear("rescale_report", asked, self.report),
            "rescale_abort": lambda asked: self._hear("rescale_abort", asked, {}),
            "rescales": lambda asked: self._hear("rescales", asked, {"rescales": self.rescales}),
            "views": lambda asked: self._hear("views", asked, {"views": self.views}),
            "status": lambda asked: self._hear("status", asked, status(self._progress())),
        }

    def _hear(self, action: str, asked: Mapping[str, Any], answer: Json) -> Json:
        self.asked.put((action, dict(asked)))
        self.before(action)
        return answer

    def _progress(self) -> Json:
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def heard(self) -> list[tuple[str, Json]]:
        return [self.asked.get() for _ in range(self.asked.qsize())]

    def fail(self, action: str, error: Exception) -> None:
        """Answer ``action`` with an error."""

        def before(asked: str) -> None:
            if asked == action:
                raise error

        self.before = before

    def interrupt(self, action: str) -> None:
        """Ctrl-C comes with the third time that ``action`` is asked for."""
        times = iter(range(1, 1000))

        def before(asked: str) -> None:
            if asked == action and next(times) == 3:
                os.kill(os.getpid(), signal.SIGINT)

        self.before = before


def status(rescale: Json | None) -> Json:
    return {
        "epoch": EPOCH,
        "published": 6,
        "map_version": 2,
        "workers": [{"worker": 0, "address": "127.0.0.1:1", "epoch": EPOCH, "vnodes": VNODES, "bytes": 0}],
        "views": {"planes": {"state": "running", "error": None, "rows": 12, "keys": 12, "bytes": 3456}},
        "tables": {},
        "rescale": rescale,
        "rescales_waiting": 1,
        "unrecorded": None,
        "recoveries": [],
        "failure": None,
    }
