"""One place, the processes that fill it, and a coordinator, in one thread: heartbeats and leases as the shell has them.

Each step does one thing that could happen next: time goes by, an end beats or hears, a process is stopped or goes on,
a connection breaks, another process comes, a process speaks. Time is drawn too, so threads and messages may be as late
as you like. Messages of one channel arrive in order.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from server_kit import SESSION

from simulator.checkers import Violated
from upriver.errors import WorkerLost
from upriver.ids import WorkerId
from upriver.net.channel import ChannelEnd, ChannelLimits, HeartbeatMonitor
from upriver.net.wire import Message
from upriver.runtime.leases import SILENCE_S_MIN, FailureDetection, Lease, WorkerSlots

PLACE = WorkerId(0)
FAILURE_DETECTION = FailureDetection(SILENCE_S_MIN)
WORKER_LIMITS = replace(FAILURE_DETECTION.worker_limits, silence_s_max=2 * SILENCE_S_MIN)
"""So that workers lose patience, too: with the shell's bound, a run would be too short for it."""
HEALING_S = 40 * SILENCE_S_MIN
"""After the last fault some process speaks within these."""


Move = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules hold; docs/internals/failures.md. A test switches them off one by one."""

    l1_speaks_with_a_lease: bool = True
    l1_lease_runs_from_the_beat: bool = True
    l2_waits_for_the_lease: bool = True
    l3_who_is_given_up_is_not_heard: bool = True
    l5_standbys_wait_for_the_lease: bool = True
    l6_only_an_exit_ends_a_lease_early: bool = True


class _HeartByNews(HeartbeatMonitor):
    """Takes what is told it for as new as the telling."""

    def pinged(self, fields: Mapping[str, Any]) -> None:
        super().pinged(fields)
        self._confirmed_at = self._clock()


@dataclass(slots=True, eq=False)
class Side:
    """One end of a channel. coming: what is on its way to it; ``None``, the end of the channel, comes last."""

    end: ChannelEnd
    beats_at: float
    coming: deque[Message | None] = field(default_factory=deque)
    is_over: bool = False

    def beat(self, seconds: float) -> Message:
        self.beats_at = seconds + self.end.limits.ping_s
        return self.end.heartbeats.beat()

    def finish(self) -> None:
        self.is_over = True
        self.end.heartbeats.end()


@dataclass(slots=True, eq=False)
class SlotProcess:
    """A process that has the place, or had it. here, there: its end of the channel, and the coordinator's."""

    life: int
    here: Side
    there: Side
    lease: Lease
    hello_at: float
    """When it has said hello."""
    is_in: bool = False
    """The coordinator has let it in."""
    is_welcome: bool = False
    """It knows."""
    runs: bool = True
    is_dead: bool = False
    exit_is_known: bool = False
    """The coordinator has heard from a witness that the process has exited."""
    has_looked: bool = False
    """It has read what it is about to say."""

    def __str__(self) -> str:
        return f"#{self.life}"


class LeaseWorld:
    """What one seed plays out. counters: what has happened, how often; trace: the same in lines."""

    def __init__(self, rng: Random, rules: Rules = Rules()) -> None:
        self.counters: Counter[str] = Counter()
        self.trace: list[str] = []
        self._rng = rng
        self._rules = rules
        self._seconds = 1000.0
        self._pace = {kind: rng.choice((0.05, 0.3, 1.0, 4.0)) for kind in _FAULTS}
        """How likely each kind of fault is."""
        self._tick_s = rng.choice((0.1, 0.5, 2.0)) * FAILURE_DETECTION.ping_s
        self._is_calm = False
        self._coordinator_runs = True
        self._processes = WorkerSlots(FAILURE_DETECTION, self._clock)
        self._all: list[SlotProcess] = []
        self._current: SlotProcess | None = None
        self._lost: tuple[SlotProcess, float] | None = None
        """Whose keys standbys are to take over, and when they may; ``None`` when they have, or a process has come."""
        self._replaced = 0
        """The life up to which others have the keys."""

    def _clock(self) -> float:
        return self._seconds

    def run(self, steps: int) -> None:
        """Let so many things happen; then faults end, and some process must have the place and speak."""
        for _ in range(steps):
            self._step()
        self._heal()
        spoken, until = self.counters["spoken"], self._seconds + HEALING_S
        while self.counters["spoken"] == spoken:
            if self._seconds > until:
                raise Violated(
                    "somebody_speaks_in_the_end", f"no process has for {HEALING_S} s, and nothing is wrong any more"
                )
            self._step()

    def _step(self) -> None:
        moves = self._moves()
        self._rng.choices([what for _, what in moves], [weight for weight, _ in moves])[0]()

    def _moves(self) -> list[tuple[float, Move]]:
        moves: list[tuple[float, Move]] = [(2.0, self._pass_time)]
        if self._coordinator_runs:
            comer = next((process for process in self._all if not process.is_in and not process.is_dead), None)
            if comer is not None and self._current is None and self._processes.free_in(PLACE) == 0:
                moves.append((1.0, partial(self._enter, comer)))
            if self._lost is not None and self._seconds >= self._lost[1]:
                moves.append((2.0, self._take_over))
            moves += [
                (1.0, partial(self._hear_exit, process)) for process in self._all if self._may_have_exited(process)
            ]
            moves += [move for process in self._all for move in self._moves_there(process)]
        if all(process.is_in or process.is_dead for process in self._all):
            moves.append((1.0, self._come))
        for process in self._all:
            moves += self._moves_here(process)
        return moves if self._is_calm else moves + self._faults()

    def _moves_there(self, process: SlotProcess) -> list[tuple[float, Move]]:
        """What the coordinator can do about a process."""
        if not process.is_in:
            return []
        return self._channel_moves(
            process.there, partial(self._hear_there, process), partial(self._beat_there, process)
        )

    def _moves_here(self, process: SlotProcess) -> list[tuple[float, Move]]:
        if not process.runs or process.is_dead or not process.is_in:
            return []
        if not process.is_welcome:
            return [(1.0, partial(self._be_welcomed, process))]
        speak = partial(self._say if process.has_looked else self._look, process)
        hear, beat = partial(self._hear, process.here), partial(self._beat_here, process)
        return [(3.0, speak), *self._channel_moves(process.here, hear, beat)]

    def _channel_moves(self, side: Side, hear: Move, beat: Move) -> list[tuple[float, Move]]:
        moves: list[tuple[float, Move]] = []
        if side.coming and not side.is_over:
            moves.append((4.0, hear))
        if self._seconds >= side.beats_at and not side.is_over:
            moves.append((4.0, beat))
        return moves

    def _faults(self) -> list[tuple[float, Move]]:
        pace = self._pace
        faults = [(pace["driver"] / 60, self._stop_or_go_on)]
        for process in self._all:
            if not process.is_dead:
                faults.append((pace["stop"] / (20 if process.runs else 40), partial(self._stop_or_resume, process)))
        if (current := self._current) is not None:
            faults.append((pace["kill"] / 100, partial(self._kill, current)))
            faults.append((pace["cut"] / 50, partial(self._cut, current)))
            if self._coordinator_runs:
                faults.append((pace["rival"] / 100, partial(self._put_out, current, "another comes for the place")))
        return faults

    def _happened(self, what: str, line: str) -> None:
        self.counters[what] += 1
        self.trace.append(f"{self._seconds:.3f}  {line}")

    # What happens

    def _pass_time(self) -> None:
        self._seconds += self._rng.uniform(0, self._tick_s)

    def _come(self) -> None:
        """A process comes for the place, and says hello."""
        here, there = self._side(WORKER_LIMITS), self._side(FAILURE_DETECTION.limits)
        lease = Lease(FAILURE_DETECTION)
        lease.begin(here.end)
        self._all.append(SlotProcess(len(self._all) + 1, here, there, lease, self._seconds))
        self._happened("came", f"{self._all[-1]} says hello")

    def _enter(self, process: SlotProcess) -> None:
        with process.there.end.heartbeats.hearing():
            process.is_in, self._current, self._lost = True, process, None
        self._replaced = process.life - 1
        self._processes.enter(PLACE, process.there.end)
        process.there.beats_at = self._seconds
        self._happened("entered", f"{process} has the place")

    def _be_welcomed(self, process: SlotProcess) -> None:
        """Its hello has been heard: what it says from then on may count."""
        process.is_welcome, process.here.beats_at = True, self._seconds
        process.here.end.heartbeats.met(process.hello_at if self._rules.l1_lease_runs_from_the_beat else self._seconds)
        self._happened("welcomed", f"{process} knows that it has the place")

    def _side(self, limits: ChannelLimits) -> Side:
        end = ChannelEnd("the other", WorkerLost, lambda: None, limits, SESSION)
        end.heartbeats = (
            HeartbeatMonitor(self._clock) if self._rules.l1_lease_runs_from_the_beat else _HeartByNews(self._clock)
        )
        return Side(end, self._seconds)

    def _beat_there(self, process: SlotProcess) -> None:
        ping = process.there.beat(self._seconds)
        if process.there.end.is_silent and process is self._current:
            self._put_out(process, "it has been silent")
        else:
            process.here.coming.append(ping)

    def _beat_here(self, process: SlotProcess) -> None:
        ping = process.here.beat(self._seconds)
        if process.here.end.is_silent:
            self._happened("ends", f"{process} gives its coordinator up")
            self._break(process)
        else:
            process.there.coming.append(ping)

    def _hear_there(self, process: SlotProcess) -> None:
        self._hear(process.there)
        if process.there.is_over and process is self._current:
            self._put_out(process, "its channel has closed")

    def _hear(self, side: Side) -> None:
        message = side.coming.popleft()
        if message is None:
            side.finish()
            return
        with side.end.heartbeats.hearing():
            side.end.heartbeats.pinged(message.fields)

    def _may_have_exited(self, process: SlotProcess) -> bool:
        """Whether the coordinator may hear that the process has exited, and has not."""
        if not process.is_in or process.exit_is_known:
            return False
        return process.is_dead or (process.there.is_over and not self._rules.l6_only_an_exit_ends_a_lease_early)

    def _hear_exit(self, process: SlotProcess) -> None:
        """A witness says that the process has exited, before its channel closes or later."""
        self._happened("exits_heard", f"{process} has exited, the coordinator hears")
        process.exit_is_known = True
        if self._processes.exited(PLACE, process.there.end):
            self.counters["leases_over_early"] += 1
            if self._lost is not None and self._lost[0] is process:
                self._lost = process, self._seconds

    def _put_out(self, process: SlotProcess, why: str) -> None:
        """The coordinator gives up the process that has the place."""
        self._happened("given_up", f"{process} is given up: {why}")
        self._current = None
        self._processes.leave(PLACE, process.there.end, is_silenced=not self._rules.l2_waits_for_the_lease)
        free_in = self._processes.free_in(PLACE) if self._rules.l5_standbys_wait_for_the_lease else 0.0
        self._lost = process, self._seconds + free_in
        if self._rules.l3_who_is_given_up_is_not_heard:
            self._break(process)
            process.there.finish()

    def _take_over(self) -> None:
        """Standbys have the keys of the lost process, until another comes for the place."""
        assert self._lost is not None
        (process, _), self._lost = self._lost, None
        self._replaced = process.life
        self._happened("taken_over", f"standbys take over from {process}")

    def _break(self, process: SlotProcess) -> None:
        """The connection is gone: of what was said last, a part is lost, and both will see."""
        for side in (process.here, process.there):
            for _ in range(self._rng.randint(0, len(side.coming))):
                side.coming.pop()
            side.coming.append(None)

    # What a process says

    def _look(self, process: SlotProcess) -> None:
        process.has_looked = True

    def _say(self, process: SlotProcess) -> None:
        process.has_looked = False
        if self._rules.l1_speaks_with_a_lease and not process.lease.wait(0):
            self.counters["kept_silent"] += 1
            return
        self._happened("spoken", f"{process} speaks")
        if process.life <= self._replaced:
            told = "\n".join([f"{process} speaks, and has been replaced", *self.trace[-60:]])
            raise Violated("nobody_speaks_for_a_place_that_others_have", told)
        self.counters["spoken_after_its_loss"] += process is not self._current

    # Faults

    def _stop_or_resume(self, process: SlotProcess) -> None:
        self._happened("stops", f"{process} {'is stopped' if process.runs else 'goes on'}")
        process.runs = not process.runs

    def _stop_or_go_on(self) -> None:
        self._happened("driver_stops", f"the driver {'is stopped' if self._coordinator_runs else 'goes on'}")
        self._coordinator_runs = not self._coordinator_runs

    def _kill(self, process: SlotProcess) -> None:
        self._happened("kills", f"{process} dies")
        process.is_dead = True
        self._break(process)

    def _cut(self, process: SlotProcess) -> None:
        self._happened("cuts", f"the channel of {process} breaks")
        self._break(process)

    def _heal(self) -> None:
        self._is_calm = self._coordinator_runs = True
        for process in self._all:
            process.runs = True


_FAULTS = ("driver", "stop", "kill", "cut", "rival")
