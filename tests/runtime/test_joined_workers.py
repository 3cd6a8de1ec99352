"""The processes that have registered, by incarnation."""

import threading
from dataclasses import dataclass, field

import pytest

from upriver.errors import ClusterError, UpriverError
from upriver.ids import WorkerId
from upriver.protocol.messages import Retire, ToWorker
from upriver.runtime.joined_workers import JoinedWorkers

FIRST, SECOND, THIRD = map(WorkerId, range(3))


@dataclass
class End:
    """Our end of a channel. is_broken: nothing can be sent."""

    is_broken: bool = False
    told: list[ToWorker] = field(default_factory=list)
    is_closed: bool = False
    given_up: UpriverError | None = None

    def tell(self, *messages: ToWorker) -> None:
        if self.is_broken:
            raise ClusterError("the channel is gone")
        self.told.extend(messages)

    def close(self) -> None:
        self.is_closed = True

    def give_up(self, error: UpriverError) -> None:
        self.given_up = error


@pytest.fixture
def workers() -> JoinedWorkers:
    return JoinedWorkers(threading.Condition())


def test_of_two_incarnations_the_later_one_has_the_address(workers: JoinedWorkers) -> None:
    first = workers.join(FIRST, "host:1", End())
    later = workers.join(FIRST, "host:2", End())
    assert workers.addresses() == {FIRST: "host:2"}
    workers.leave(later)
    assert workers.addresses() == {FIRST: "host:1"}
    assert (workers.worker_of(first), workers.worker_of(later)) == (FIRST, None)


def test_a_slot_is_missing_until_its_process_joins_and_after_it_leaves(workers: JoinedWorkers) -> None:
    first = workers.join(FIRST, "host:1", End())
    workers.join(SECOND, "host:2", End())
    assert workers.missing([FIRST, SECOND, THIRD]) == {THIRD}
    workers.leave(first)
    assert workers.missing([FIRST, SECOND, THIRD]) == {FIRST, THIRD}


def test_a_process_is_told_until_its_channel_has_closed(workers: JoinedWorkers) -> None:
    end, broken = End(), End(is_broken=True)
    first, second = workers.join(FIRST, "host:1", end), workers.join(SECOND, "host:2", broken)
    workers.tell(first, Retire())
    workers.tell(second, Retire())
    assert broken.is_closed  # the channel's own thread then calls ``leave``
    workers.leave(first)
    workers.tell(first, Retire())
    workers.give_up(first, "out of memory")
    assert (end.told, end.given_up) == ([Retire()], None)


def test_a_process_is_given_up_with_what_it_failed_of(workers: JoinedWorkers) -> None:
    end = End()
    workers.give_up(workers.join(SECOND, "host:2", end), "out of memory")
    assert str(end.given_up) == "worker 1 failed: out of memory"


def test_all_channels_are_closed_but_those_of_the_members(workers: JoinedWorkers) -> None:
    member, other = End(), End()
    first, second = workers.join(FIRST, "host:1", member), workers.join(SECOND, "host:2", other)
    workers.close(but=[first])
    assert (member.is_closed, other.is_closed) == (False, True)
    workers.leave(second)
    assert not workers.wait_gone(0.0)
    workers.leave(first)
    assert workers.wait_gone(0.0)
