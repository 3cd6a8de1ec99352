"""Upkeep of the change log while an app runs: a thread of the driver that folds it, and removes what was folded."""

import logging
import threading
from typing import Any

from upriver.engine.row_text import error_text
from upriver.errors import LakeInUse
from upriver.lake.change_folding import ChangeFolding, RemovedChanges
from upriver.lake.change_log import first_of
from upriver.lake.lake import OwnedLake

_LOG = logging.getLogger("upriver.changes")
POLL_S = 10.0
"""Seconds between two looks for work; half of the retention, if that is less, and ``POLL_S_MIN`` at least."""
POLL_S_MIN = 0.2


class ChangeUpkeep:
    """Folds the log of one lake. ``start`` once, ``stop`` once; any thread may ask for ``status``."""

    def __init__(self, lake: OwnedLake, retention_s: float | None, grace_s: float) -> None:
        """retention_s: seconds for which versions are kept; ``None``: for good. grace_s: seconds for which folded files
        stay, for readers that have begun."""
        self._lake = lake
        self._folding = ChangeFolding(lake, retention_s, check=self._check)
        self._retention_s = retention_s
        self._grace_s = grace_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upriver-change-upkeep", daemon=True)
        self._status: dict[str, Any] = {"retention_s": retention_s, "views": {}, "failure": None}
        """Replaced, and never changed."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the work under way. What it has written is in the lake, or is removed at the next start."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def status(self) -> dict[str, Any]:
        """As of the last look: by view, the versions that its log has, and their files and bytes. failure: why the last
        look ended early, if it did."""
        return self._status

    # On the thread

    def _check(self) -> None:
        if self._stopping.is_set():
            raise _Stopped

    def _run(self) -> None:
        poll_s = POLL_S if self._retention_s is None else max(POLL_S_MIN, min(POLL_S, self._retention_s / 2))
        while not self._stopping.wait(poll_s):
            try:
                self._look()
            except (LakeInUse, _Stopped):
                return  # a driver that was succeeded has told the app, which fails
            except Exception as error:  # of any class: the next look tries again, and nothing waits for it
                _LOG.warning("the change log could not be folded: %s", error_text(error))
                self._status = {**self._status, "failure": error_text(error)}

    def _look(self) -> None:
        self._lake.check_owner()  # an app that is idle has no other occasion to learn that it was succeeded
        while (fold := self._folding.fold()) is not None:
            first, last = fold.commits[0].first, fold.newest.number
            _LOG.debug("commits %d to %d of the change log are one file", first, last)
        removed = self._folding.remove(self._grace_s)
        if removed != RemovedChanges():
            _LOG.debug("%d files of the change log that were folded are removed", removed.files + removed.parts)
        self._status = {"retention_s": self._retention_s, "views": self._views(), "failure": None}

    def _views(self) -> dict[str, dict[str, int]]:
        commits = self._folding.log.commits()
        if not commits:
            return {}
        found = {}
        for view, begins in sorted(commits[-1].begins.items()):
            parts = [part for commit in commits for part in commit.parts_of(view, begins)]
            found[view] = {
                "first": int(first_of(view, begins, commits)),
                "last": int(commits[-1].through),
                "files": len(parts),
                "bytes": sum(part.bytes for part in parts),
            }
        return found


class _Stopped(Exception):
    """The app stops."""
