"""Leases and places: rules leases.* of docs/internals/failures.md.

Leases under all faults: no process speaks for a slot that another has. docs/internals/failures.md, leases.*,
leases.takeover_after_lease.
"""

import queue
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from channel_kit import HELLO, Hub, Recorder
from lease_world import LeaseWorld, Rules
from server_kit import KEYS, SECONDS_MAX, SESSION, peer_of

from simulator.checkers import Violated
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.restarts import PlaceWanted, Restarts
from upriver.errors import ClusterError, DeclarationError, DuplicateAttempt, WorkerLost, WrongOwner
from upriver.ids import WorkerId
from upriver.net.channel import ChannelEnd, now, open_channel
from upriver.net.codec import encode_message
from upriver.net.frames import Seals, write_frame
from upriver.net.handshake import Purpose
from upriver.net.remote import dial
from upriver.net.server import Listen
from upriver.net.wire import Message, encode
from upriver.protocol.messages import WorkerFailed
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import REGISTER, SILENCED, CoordinatorRecords, CoordinatorService
from upriver.runtime.exit_witness import EXITED
from upriver.runtime.leases import SILENCE_S_MIN, FailureDetection, Lease, WorkerSlots
from upriver.vnodes import VnodeMap

QUICK = FailureDetection(SILENCE_S_MIN)
WORKER = WorkerId(0)


def an_end() -> ChannelEnd:
    """An end that nothing has come to."""
    return ChannelEnd("peer", WorkerLost, lambda: None, QUICK.limits, SESSION)


@pytest.mark.parametrize("seconds", [SILENCE_S_MIN, 2.0, 30.0])
def test_leases_place_free_after_lease_silence_is_noticed_in_time_and_not_before_the_lease_has_run_out(
    seconds: float,
) -> None:
    failure_detection = FailureDetection(seconds)
    limits = failure_detection.limits
    assert (limits.silent_beats_max + 1) * limits.ping_s < seconds
    assert limits.silent_beats_max * limits.ping_s > failure_detection.lease_s
    assert failure_detection.worker_limits.silence_s_max > failure_detection.lease_s


@pytest.mark.parametrize("seconds", [0, -1, 0.1, float("nan"), float("inf"), True, "2"])
def test_a_silence_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(DeclarationError, match=r"worker_silence_s=.*: give seconds, at least 0.5"):
        FailureDetection(seconds)


def test_leases_speak_only_with_lease_an_answer_is_given_out_with_a_lease_only() -> None:
    lease, end = Lease(QUICK), an_end()
    assert not lease.is_held
    with pytest.raises(WrongOwner, match="no longer hears"):
        lease.check()
    lease.begin(end)
    assert not lease.is_held
    with pytest.raises(WrongOwner, match="no longer hears"):
        lease.check()
    end.heartbeats.beat()
    end.heartbeats.pinged({"beat": 1, "heard": 1})
    assert lease.is_held
    lease.check()
    end.heartbeats.end()
    assert not lease.is_held
    with pytest.raises(WrongOwner, match="no longer hears"):
        lease.check()


def test_leases_place_free_after_lease_a_place_is_free_when_its_holder_s_lease_has_run_out() -> None:
    processes, end = WorkerSlots(QUICK), an_end()
    processes.make_room(WORKER)
    processes.enter(WORKER, end)
    with pytest.raises(WorkerLost, match="another process"):
        processes.enter(WORKER, an_end())
    with end.heartbeats.hearing():
        assert processes.leave(WORKER, end, is_silenced=False)
        heard_at = end.heartbeats.heard_at  # later, where the block ends
    assert not processes.leave(WORKER, end, is_silenced=False)
    processes.make_room(WORKER)
    assert now() >= heard_at + QUICK.lease_s
    processes.enter(WORKER, an_end())


def test_leases_place_free_after_lease_others_may_take_over_when_the_holder_s_lease_has_run_out() -> None:
    processes, end = WorkerSlots(QUICK), an_end()
    assert processes.free_in(WORKER) == 0
    processes.enter(WORKER, end)
    with end.heartbeats.hearing():
        processes.leave(WORKER, end, is_silenced=False)
    assert 0 < processes.free_in(WORKER) <= QUICK.lease_s
    processes.make_room(WORKER)
    assert processes.free_in(WORKER) == 0


def test_leases_speak_only_with_lease_a_slot_has_a_lease_until_it_has_not_been_heard_for_so_long() -> None:
    at = [100.0]
    processes, end = WorkerSlots(QUICK, clock=lambda: at[0]), an_end()
    assert not processes.has_lease(WORKER)
    processes.enter(WORKER, end)
    at[0] = end.heartbeats.heard_at + 0.99 * QUICK.lease_s
    assert processes.has_lease(WORKER)
    at[0] = end.heartbeats.heard_at + QUICK.lease_s
    assert not processes.has_lease(WORKER)


def test_a_worker_that_has_ended_its_own_lease_need_not_be_waited_for() -> None:
    processes, end = WorkerSlots(QUICK), an_end()
    processes.enter(WORKER, end)
    with end.heartbeats.hearing():
        processes.leave(WORKER, end, is_silenced=True)
    assert processes.free_in(WORKER) == 0


def test_leases_over_when_ended_a_process_that_has_exited_leaves_its_slot_free_at_once() -> None:
    processes, end = WorkerSlots(QUICK), an_end()
    processes.enter(WORKER, end)
    with end.heartbeats.hearing():
        processes.leave(WORKER, end, is_silenced=False)
    assert processes.free_in(WORKER) > 0
    assert processes.exited(WORKER, end)
    assert processes.free_in(WORKER) == 0


def test_leases_over_when_ended_an_exit_that_is_heard_before_the_channel_closes_counts_when_it_closes() -> None:
    processes, end = WorkerSlots(QUICK), an_end()
    processes.enter(WORKER, end)
    with end.heartbeats.hearing():
        assert processes.has_lease(WORKER)
        assert not processes.exited(WORKER, end)
        assert not processes.has_lease(WORKER)
        assert processes.leave(WORKER, end, is_silenced=False)
    assert processes.free_in(WORKER) == 0


def test_leases_over_when_ended_the_exit_of_an_earlier_process_ends_no_later_lease() -> None:
    processes, before, end = WorkerSlots(QUICK), an_end(), an_end()
    processes.enter(WORKER, before)
    processes.leave(WORKER, before, is_silenced=True)
    processes.enter(WORKER, end)
    with end.heartbeats.hearing():
        assert not processes.exited(WORKER, before)
        assert processes.has_lease(WORKER)
        processes.leave(WORKER, end, is_silenced=False)
        assert not processes.exited(WORKER, before)
    assert processes.free_in(WORKER) > 0


# With a coordinator


class Place:
    """A coordinator with one worker's place, and what its keeper is told. lost, ended: lives and attempts, with why."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self.lost: queue.Queue[tuple[int, str]] = queue.Queue()
        self.ended: list[tuple[int, str]] = []
        self.loop = CoordinatorLoop(CoordinatorMachine(VnodeMap.initial(4, [WORKER]), ()))
        self.records = CoordinatorRecords(
            claim=lambda worker, life, attempt, holder_has_lease: self.restarts.claim(
                worker, life, attempt, now(), holder_has_lease=holder_has_lease
            ),
            is_current=self.restarts.is_current,
            lost=lambda _, life, why: self.lost.put((life, why)),
            end_attempt=lambda attempt, why: self.ended.append((attempt, why)),
        )
        self.next_life()
        self.loop.start()
        self.service = CoordinatorService(self.loop, (), (), Listen(), KEYS, self.records, QUICK)

    def silence(self, seconds: float) -> None:
        """The service goes by another failure detection from now on."""
        self.service.stop()
        self.service = CoordinatorService(self.loop, (), (), Listen(), KEYS, self.records, FailureDetection(seconds))

    def say_exited(self, life: int, attempt: int) -> None:
        """A witness says that the process of this attempt has exited."""
        stream, session = dial(peer_of(self.service.address), Purpose.EXIT, SECONDS_MAX)
        told = Message(EXITED, {"worker": int(WORKER), "life": life, "attempt": attempt})
        write_frame(stream, encode(told), Seals(session.sends))
        stream.close()

    def next_life(self) -> None:
        self.restarts.step(PlaceWanted(worker=WORKER))

    def enter(self, life: int, attempt: int = 0, died_in: tuple[int, int] | None = None) -> tuple[ChannelEnd, Recorder]:
        recorder = Recorder()
        who = {"worker": int(WORKER), "life": life, "attempt": attempt, "instance": "executor", "died_in": died_in}
        hello = Message(REGISTER, {**who, "address": f"127.0.0.1:{life}"})
        limits = QUICK.worker_limits
        return open_channel(peer_of(self.service.address), hello, recorder.receiver, limits=limits), recorder


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.loop.stop(SECONDS_MAX)
    made.service.stop()


def test_leases_speak_only_with_lease_a_worker_has_a_lease_as_long_as_its_coordinator_is_there(place: Place) -> None:
    lease = Lease(QUICK)
    end, recorder = place.enter(1)
    lease.begin(end)
    assert lease.wait(SECONDS_MAX)
    end.close()
    assert recorder.closing() is None
    assert not lease.wait(SECONDS_MAX)


def test_leases_speak_only_with_lease_a_worker_has_a_lease_as_soon_as_it_is_welcome(place: Place) -> None:
    """Its first word to a peer, with which keys move, waits for no beat."""
    lease = Lease(QUICK)
    end, _ = place.enter(1)
    lease.begin(end)
    assert lease.wait(0)
    end.close()


def test_leases_place_free_after_lease_a_worker_that_comes_for_a_place_puts_out_its_holder(place: Place) -> None:
    _, recorder = place.enter(1)
    place.next_life()
    end, _ = place.enter(2)
    assert isinstance(recorder.closing(), ClusterError)
    assert place.lost.get(timeout=SECONDS_MAX)[0] == 1
    assert place.loop.addresses() == {WORKER: "127.0.0.1:2"}
    end.close()


def test_leases_given_up_stays_out_a_worker_that_was_given_up_does_not_get_in_again(place: Place) -> None:
    place.next_life()
    with pytest.raises(WorkerLost, match="given up"):
        place.enter(1)
    assert place.loop.addresses() == {}


def test_a_worker_that_has_fallen_silent_by_itself_is_left_alone(place: Place) -> None:
    end, recorder = place.enter(1)
    end.send(Message(SILENCED))
    place.loop.wait_joined(SECONDS_MAX)
    end.close()
    assert recorder.closing() is None
    place.next_life()
    place.enter(2)[0].close()
    assert place.lost.empty()


def test_leases_one_attempt_stays_a_second_attempt_of_a_workers_task_is_ended_and_the_first_stays(place: Place) -> None:
    end, _ = place.enter(1, attempt=7)
    with pytest.raises(DuplicateAttempt, match="another attempt of the same task is the worker"):
        place.enter(1, attempt=8)
    ((attempt, why),) = place.ended
    assert (attempt, "worker 0" in why) == (8, True)
    assert place.loop.addresses() == {WORKER: "127.0.0.1:1"}
    assert place.lost.empty()
    end.close()


def test_an_attempt_that_spark_starts_after_the_first_has_gone_is_admitted(place: Place) -> None:
    end, recorder = place.enter(1, attempt=7)
    end.close()
    assert recorder.closing() is None
    late = now() + SECONDS_MAX
    while place.loop.addresses():  # until the coordinator has heard of it
        assert now() < late
    other, _ = place.enter(1, attempt=8)
    assert place.ended == []
    other.close()


def test_a_worker_that_fails_unexpectedly_is_cut_off_and_its_keeper_told_why(place: Place) -> None:
    end, recorder = place.enter(1)
    end.send(encode_message(WorkerFailed(kind="ProtocolError", error="OSError(24, 'Too many open files')")))
    assert isinstance(recorder.closing(), ClusterError)
    life, why = place.lost.get(timeout=SECONDS_MAX)
    assert (life, why) == (1, "worker 0 failed: OSError(24, 'Too many open files')")
    assert not place.loop.has_failed


def test_leases_over_when_ended_the_next_process_gets_in_when_a_witness_has_seen_the_last_one_exit(
    place: Place,
) -> None:
    """The lease would be over when this test has failed for lack of patience."""
    place.silence(30.0)
    end, _ = place.enter(1, attempt=7)
    end.give_up(ClusterError("the process dies"))
    place.lost.get(timeout=SECONDS_MAX)
    place.next_life()
    place.say_exited(life=1, attempt=6)  # of another process
    place.say_exited(life=1, attempt=7)
    other, _ = place.enter(2)
    place.loop.wait_joined(SECONDS_MAX)
    assert place.loop.addresses() == {WORKER: "127.0.0.1:2"}
    other.close()


def deaths_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [said for said in caplog.messages if "died" in said]


def test_a_process_that_has_died_in_a_step_is_told_with_its_step(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    end, _ = place.enter(1)
    end.give_up(ClusterError("the process dies"))
    place.lost.get(timeout=SECONDS_MAX)
    place.next_life()
    other, _ = place.enter(2, died_in=(7, 3))
    place.loop.wait_joined(SECONDS_MAX)
    late = now() + SECONDS_MAX
    while not deaths_told(caplog):  # the log is written behind the slot
        assert now() < late
    assert deaths_told(caplog) == ["worker 0: its last process has died at epoch 3 in a step of: a flow that is gone"]
    other.close()


@pytest.mark.parametrize("has_held", [True, False])
def test_a_process_that_was_given_up_or_was_none_of_this_slot_has_died_in_no_step(
    place: Place, has_held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark kills it then, perhaps in mid-step."""
    if has_held:
        place.enter(1)
        place.next_life()
    end, _ = place.enter(1 + has_held, died_in=(7, 3))
    place.loop.wait_joined(SECONDS_MAX)
    assert deaths_told(caplog) == []
    end.close()


def test_a_channel_cut_for_a_reason_says_so() -> None:
    hub = Hub()
    with hub.server() as server:
        recorder = Recorder()
        open_channel(peer_of(server.address), HELLO, recorder.receiver)
        theirs, their_ear = hub.accepted()
        theirs.give_up(WorkerLost("another process has come"))
        assert str(their_ear.closing()) == "another process has come"
        assert isinstance(recorder.closing(), ClusterError)


STEPS = 600
SEEDS = 150
SOAK_SEEDS = 20_000
ALL_RULES = Rules()


def played(seed: int, rules: Rules = ALL_RULES) -> Counter[str]:
    world = LeaseWorld(Random(f"leases {seed}"), rules)
    try:
        world.run(STEPS)
    except Violated as violated:
        raise Violated(violated.checker, f"seed {seed}: {violated.problem}") from None
    return world.counters


def all_played(seeds: int, rules: Rules = ALL_RULES) -> Counter[str]:
    return sum((played(seed, rules) for seed in range(seeds)), Counter[str]())


def test_no_worker_speaks_for_a_place_that_another_has(pytestconfig: pytest.Config) -> None:
    seeds = SOAK_SEEDS if pytestconfig.getoption("--soak") else SEEDS
    counters = all_played(seeds)
    seen = ("spoken", "kept_silent", "spoken_after_its_loss", "entered", "taken_over", "given_up", "stops")
    assert min(counters[what] for what in (*seen, "driver_stops", "kills", "cuts", "ends", "leases_over_early")) > 5, (
        counters
    )


@pytest.mark.parametrize("rule", Rules.__dataclass_fields__)
def test_a_rule_switched_off_is_caught(rule: str) -> None:
    with pytest.raises(Violated, match=r"seed \d+: #\d+ speaks, and has been replaced"):
        all_played(SEEDS, Rules(**{rule: False}))


def test_a_seed_goes_again_the_same_way() -> None:
    assert played(7) == played(7)
