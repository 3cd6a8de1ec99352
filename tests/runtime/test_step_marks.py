"""The file with the mark of a worker's step: what the next process in the slot finds in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from upriver.ids import Epoch, FlowId, WorkerId
from upriver.runtime.step_marks import MarkFile
from upriver.worker.step_mark import StepMark, marked

SECRET, WORKER = b"of this run", WorkerId(3)
DIES = """
import os, signal, sys
from upriver.runtime.step_marks import MarkFile
from upriver.worker.step_mark import StepMark
mark = StepMark()
MarkFile(sys.argv[1].encode(), 3, sys.argv[2]).replace(mark)
outer = mark.begin(7, 12)
if sys.argv[3] == "after":
    mark.end(outer)
os.kill(os.getpid(), signal.SIGKILL)
"""


def file_in(directory: Path, secret: bytes = SECRET, worker: WorkerId = WORKER) -> MarkFile:
    return MarkFile(secret, worker, str(directory))


@pytest.mark.parametrize(("when", "found"), [("in", (7, 12)), ("after", None)])
def test_a_process_that_is_killed_leaves_the_mark_of_the_step_that_it_was_in(
    tmp_path: Path, when: str, found: tuple[int, int] | None
) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES, SECRET.decode(), str(tmp_path), when], check=False)
    assert killed.returncode < 0
    assert file_in(tmp_path).last() == found
    assert file_in(tmp_path, secret=b"of another run").last() is None
    assert file_in(tmp_path, worker=WorkerId(4)).last() is None


def test_a_process_that_ends_by_itself_leaves_no_mark_and_that_of_its_successor_stays(tmp_path: Path) -> None:
    first, second = file_in(tmp_path), file_in(tmp_path)
    mark, other = StepMark(), StepMark()
    first.replace(mark)
    mark.begin(FlowId(1), Epoch(5))
    second.replace(other)
    assert second.last() is None
    other.begin(FlowId(2), Epoch(6))
    first.remove()
    assert second.last() == (2, 6)
    second.remove()
    assert list(tmp_path.iterdir()) == []
    second.remove()


def test_a_process_does_not_warm_up_if_the_last_one_has_died_of_it_or_in_a_step(tmp_path: Path) -> None:
    first, second, third = (file_in(tmp_path) for _ in range(3))
    assert first.begin_warm_up()
    assert not second.begin_warm_up()
    assert third.begin_warm_up()
    third.end_warm_up()
    mark = StepMark()
    third.replace(mark)
    mark.begin(FlowId(1), Epoch(5))
    assert not second.begin_warm_up()
    third.remove()
    assert second.begin_warm_up()
    assert file_in(tmp_path / "absent").begin_warm_up()


def test_without_a_file_steps_are_marked_and_no_process_finds_it(tmp_path: Path) -> None:
    file, mark = file_in(tmp_path / "absent"), StepMark()
    file.replace(mark)
    mark.begin(FlowId(1), Epoch(5))
    assert (marked(mark.memory), file.last()) == ((1, 5), None)
    file.remove()


def test_a_file_that_is_too_short_has_no_mark(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.replace(StepMark())
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"torn")
    assert file.last() is None
