"""The driver's part of the change log, on a disk that answers wrongly."""

import errno
import queue
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator_kit import planned

from upriver.errors import NotWritten
from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog
from upriver.lake.change_writer import ChangePublisher
from upriver.lake.files import Files
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.protocol.coordinator_events import ChangesPublished, CoordinatorEvent, PublishChanges

WAIT_S = 20
PLAN = replace(planned("sums"), logs_changes=True)


class DeniedFiles:
    """Files of a disk that says once of a file of the log that it has not written it, and has."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.denied: list[str] = []

    def create(self, path: str, content: Any) -> None:
        self._files.create(path, content)
        if path.startswith("changes/commits/") and not self.denied:
            self.denied.append(path)
            raise NotWritten(f"{path}: {errno.EIO}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_a_commit_that_the_disk_denies_is_made_again_and_not_another_one(tmp_path: Path) -> None:
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(8, (), {}), {})
    files: Any = DeniedFiles(lake.files)
    lake.files = files
    heard: queue.Queue[CoordinatorEvent] = queue.Queue()
    publisher = ChangePublisher(lake, [PLAN])
    publisher.start(heard.put)
    for number, at in enumerate((3, 5), start=1):
        begins = ("sums",) if number == 1 else ()
        publisher.carry_out(
            PublishChanges(taking=number, at=Epoch(at), views=("sums",), begins=begins, parts=()), (PLAN,)
        )
        assert heard.get(timeout=WAIT_S) == ChangesPublished(taking=number)
    publisher.stop()
    assert len(files.denied) == 1
    assert [(commit.number, commit.through) for commit in ChangeLog(lake).commits()] == [(1, 3), (2, 5)]
    lake.release()


def test_the_log_of_a_view_that_may_have_other_rows_begins_anew(tmp_path: Path) -> None:
    plan = replace(PLAN, full_because="")
    lake = OwnedLake(str(tmp_path / "lake"), LakeRecord(8, (), {}), {})
    heard: queue.Queue[CoordinatorEvent] = queue.Queue()
    publisher = ChangePublisher(lake, [plan])
    publisher.start(heard.put)
    begins = PublishChanges(taking=1, at=Epoch(0), views=("sums",), begins=("sums",), parts=())
    publisher.carry_out(begins, (plan,))
    assert heard.get(timeout=WAIT_S) == ChangesPublished(taking=1)
    publisher.stop()
    goes_on, anew = ChangePublisher(lake, [plan]), ChangePublisher(lake, [plan], anew=["sums"])
    lake.release()
    assert (goes_on.found, goes_on.ended) == ({"sums": 0}, {"sums": 0})
    assert (anew.found, anew.ended) == ({}, {"sums": 0})
