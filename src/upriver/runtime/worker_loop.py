"""The worker's event loop: one thread that feeds the worker machine and carries out its actions.

While an epoch is being read, the loop takes from its inbox and from the lake in turn, so that neither lookups nor
epochs starve. It moves keys in steps, one after each turn, and answers the lookups that wait after each step.

Requests of lookups come in on the server's threads. While the loop waits for work, such a thread feeds the machine
itself, with all requests that have come, and need not wake the loop; otherwise they wait in the inbox. The thread that
feeds the machine has the ``Floor``.

``Inbox``: what waits for the loop. Lookups go ahead of everything else. The loop takes everything else in the order in
which it came, since the order of each channel counts. A lookup has no place in that order, since its answer names its
epoch. And a client waits for a lookup, while no client waits for a peer's rows.

``BackgroundTasks``: what a worker does some rows or keys at a time. It settles the rows gathered for a stage, takes in
long answers of upqueries, and reads long answers of lookups. When there is time, it evicts, copies state for
checkpoints, feeds standbys, and goes on with upqueries that rest.
"""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Protocol, assert_never

from upriver.errors import ClusterError, ProtocolError, UpriverError, WaitTimeout
from upriver.ids import BEGINNING, Epoch, FlowId, WorkerId
from upriver.lake.lake import Lake
from upriver.net.lookups import LookupConnection, LookupRequest
from upriver.protocol.messages import (
    Assign,
    CloseInput,
    DropFlow,
    EpochFinished,
    ForShare,
    FromWorker,
    Meet,
    OfShare,
    Resume,
    Retire,
    Settled,
    WorkerFailed,
    WorkerLoad,
)
from upriver.protocol.peers import Envelope
from upriver.protocol.worker_events import (
    Answer,
    AnswerTogether,
    ForgetSnapshot,
    HoldSnapshot,
    KeysRead,
    LookupGivenUp,
    LookupsAsked,
    MeetPeers,
    PeerLost,
    PeerSaid,
    Refuse,
    Report,
    SendPeer,
    ShareHears,
    ShareWants,
    Stop,
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToMove,
    TimeToSettle,
    TimeToTakeIn,
    WorkerAction,
    WorkerEvent,
)
from upriver.runtime.flow_functions import FlowFunctions
from upriver.runtime.pace import Mover, RowPace, SlicePace
from upriver.runtime.snapshots import HeldSnapshots
from upriver.runtime.waiting_lookups import WaitingLookups, passes
from upriver.runtime.worker_lake import WorkerLake
from upriver.worker.held_events import HeldEvents, OfAllShares, Rest
from upriver.worker.worker import WorkerMachine


class Inbox:
    """``put``, ``ask`` and ``requests`` are called by any thread, ``next`` by the loop's."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[WorkerEvent | None] = queue.SimpleQueue()
        """``None`` wakes the loop: there is a request, or was."""
        self._requests: deque[LookupRequest] = deque()
        """Bounded by the connections: each has at most ``LOOKUPS_MAX`` lookups without an answer."""

    def put(self, event: WorkerEvent) -> None:
        self._events.put(event)

    def ask(self, request: LookupRequest) -> None:
        self._requests.append(request)

    def wake(self) -> None:
        self._events.put(None)

    @property
    def has_requests(self) -> bool:
        return bool(self._requests)

    def requests(self) -> list[LookupRequest]:
        """Take the requests that are there, up to ``REQUESTS_TURN_MAX``; others wait for the next call, so all else
        gets its turn."""
        requests: list[LookupRequest] = []
        while self._requests and len(requests) < REQUESTS_TURN_MAX:
            try:
                requests.append(self._requests.popleft())
            except IndexError:  # another thread has taken it
                break
        return requests

    def next(self, seconds: float | None) -> WorkerEvent | None:
        """Take the next event; wait for it at most so many seconds, or, with ``None``, until it comes. Returns ``None``
        if only requests have come. Raises queue.Empty."""
        return self._events.get(timeout=seconds)


class PeerChannels(Protocol):
    """Of :class:`upriver.net.peers.Peers`, perhaps behind a lease."""

    def send(self, to: WorkerId, envelope: Envelope) -> None:
        """Put an envelope on the channel to a peer. Raises ClusterError if there is no channel."""

    def flush(self) -> None: ...


EVICTION_BUDGET_S = 0.002
"""Seconds that one slice of an eviction may take."""
COPY_BUDGET_S = 0.005
"""Seconds that one slice of copying state for a checkpoint, or for this worker's standbys, may take."""
EVICTION_AIM_SHARE = 0.5
"""Share of ``EVICTION_BUDGET_S`` that a slice aims at. A slice takes half a millisecond however few its keys are, so
with a lower aim evictions would fall behind what lookups fill."""
EVICTED_KEYS_MIN = 32
"""At least how many keys a slice evicts, however long the last one took: with fewer, eviction would hardly end."""

FILL_REST_TIMES = 4.0
"""How long upqueries rest when lookups ask for keys all the time: so many times the time of the last upquery's rows. An
upquery costs about the same for one key and for twenty, and other processes need the processors, too."""
FILL_REST_S_MAX = 0.02
"""The longest such rest, in seconds."""

BackgroundTask = (
    TimeToCopy | TimeToEvict | TimeToFeed | TimeToSettle | ShareHears | TimeToFill | TimeToTakeIn | TimeToAnswer
)
Step = Callable[[BackgroundTask], object]


class BackgroundTasks:
    """The background work of one worker's loop. has_room: whether the lake keeps up with what is copied for a
    checkpoint."""

    def __init__(self, machine: WorkerMachine, step: Step, has_room: Callable[[], bool]) -> None:
        self._machine = machine
        self._step = step
        self._has_room = has_room
        self._evictor = SlicePace(EVICTION_BUDGET_S, aim_share=EVICTION_AIM_SHARE)
        self._copier = SlicePace(COPY_BUDGET_S)
        self._feeder = SlicePace(COPY_BUDGET_S)
        self._settler = RowPace()
        self._filler = RowPace()
        self._reader = RowPace()
        self._fills_rest_until = 0.0
        """By ``time.perf_counter``; valid while upqueries rest."""

    @property
    def are_due(self) -> bool:
        """Whether any of it is due."""
        machine = self._machine
        others_wait = (
            machine.unsettled
            or machine.unfilled
            or machine.unread
            or machine.must_evict
            or machine.can_feed
            or self.due_in_s == 0
        )
        return bool(others_wait) or (machine.can_copy and self._has_room())

    @property
    def due_in_s(self) -> float:
        """Seconds until upqueries have rested; infinite if they do not rest."""
        return max(0.0, self._fills_rest_until - time.perf_counter()) if self._machine.can_fill else math.inf

    def fill(self, event: ShareHears) -> None:
        """Take an upquery's rows in (``KeysRead``)."""
        rested = self._machine.can_fill
        seconds = self._timed(event)
        if not rested:  # a rest under way goes on: other regions' upqueries do not extend it
            self._fills_rest_until = time.perf_counter() + min(FILL_REST_TIMES * seconds, FILL_REST_S_MAX)

    def do(self) -> None:
        """Do a slice of each kind of work that is due."""
        if unsettled := self._machine.unsettled:
            rows = self._settler.rows
            self._settler.timed(min(rows, unsettled), partial(self._step, TimeToSettle(rows_max=rows)))
        if unfilled := self._machine.unfilled:
            rows = self._filler.rows
            self._filler.timed(min(rows, unfilled), partial(self._step, TimeToTakeIn(rows_max=rows)))
        if unread := self._machine.unread:
            rows = self._reader.rows
            self._reader.timed(min(rows, unread), partial(self._step, TimeToAnswer(rows_max=rows)))
        if self.due_in_s == 0:
            self._step(TimeToFill())
        if self._machine.must_evict:
            keys = max(EVICTED_KEYS_MIN, self._evictor.keys)
            seconds = self._timed(TimeToEvict(keys_max=keys))
            self._evictor.took(self._machine.evicted, seconds)
        if self._machine.can_copy and self._has_room():
            keys = self._copier.keys
            self._copier.took(keys, self._timed(TimeToCopy(keys_max=keys)))
        if self._machine.can_feed:
            keys = self._feeder.keys
            self._feeder.took(keys, self._timed(TimeToFeed(keys_max=keys)))

    def _timed(self, event: BackgroundTask) -> float:
        """Step, and return the seconds of processor time: by the clock it takes longer on a busy machine, but no less
        with fewer keys."""
        began = time.thread_time()
        self._step(event)
        return time.thread_time() - began


NO_TICKET = -1
"""A ticket that no lookup has."""
REQUESTS_TURN_MAX = 256
"""Requests of lookups that are answered together."""
INBOX_TURN_MAX = 64
"""Events taken from the inbox between two slices of an epoch, or two steps of a migration."""
INBOX_TURN_S = 0.005
"""Seconds for these events: after that, the loop ends the event under way and takes no other. So an epoch makes
progress however many lookups come."""


READS_TURN_S = 0.005
"""Seconds for which the loop reads, a piece of each flow in turn, before it does anything else but lookups."""
CALLS_MAX = 8
"""Flows that wait for functions at a time, each inside of a turn of another one: Python's stack is limited."""


class Floor:
    """Which thread may feed the machine: the loop's, unless the loop rests. The loop has it at first."""

    __slots__ = ("_is_free", "_taken")

    def __init__(self) -> None:
        self._taken = threading.Lock()
        self._taken.acquire()
        self._is_free = False

    def take(self) -> bool:
        """Take the floor for a lookup, without waiting; returns whether the thread has it."""
        return self._is_free and self._taken.acquire(blocking=False)

    def give_back(self) -> None:
        """After ``take``."""
        self._taken.release()

    def rest(self) -> None:
        """The loop waits for something to do: other threads may take the floor."""
        self._is_free = True
        self._taken.release()

    def resume(self) -> None:
        """The loop has been woken: from now on no other thread takes the floor. Waits for the one that has it."""
        self._is_free = False
        self._taken.acquire()


class WorkerLoop:
    """Runs one worker. One thread calls ``run``; any thread calls everything else.

    lake: to read slices from. step_budget_s: seconds that one step of a migration may take. functions: of users;
    ``None`` if no view calls any in a process of its own.
    """

    def __init__(
        self, machine: WorkerMachine, lake: Lake, step_budget_s: float, functions: FlowFunctions | None = None
    ) -> None:
        self._machine = machine
        self._functions = functions
        self._held = HeldEvents(machine)
        self._waiting: list[FlowId] = []
        """The flows that wait for a function, each inside of a turn that the one before it has given to others."""
        self._steps_all = 0
        """How many steps of several shares are under way."""
        self._thread: int | None = None
        """The loop's thread."""
        if functions is not None:
            functions.meanwhile = self._serve_others
        self._lake = WorkerLake(lake, self.hear, self.fail, self._wake, self._report)
        self._mover = Mover(step_budget_s)
        self._background = BackgroundTasks(machine, self._step, lambda: self._lake.has_room)
        self._failure: BaseException | None = None
        self._send_reports: Callable[[Sequence[FromWorker]], None] = _not_running
        self._reports: list[FromWorker] = []
        """What the loop has to report, in order, since it last did."""
        self._meet: Callable[[Meet], None] = _not_running
        self._peers: PeerChannels | None = None
        self._inbox = Inbox()
        self._floor = Floor()
        self._lookups = WaitingLookups(self._lake.committed_at, self._late)
        self.snapshots = HeldSnapshots()
        self._serve_from: dict[FlowId, Epoch] = {}
        self._closes_input = False
        """The worker must leave its peers, while the app goes on."""
        self._without_slices: set[FlowId] = set()
        """The flows that resumed without slices for this worker: it is about to retire."""
        self._stopped = False

    def hear(self, event: WorkerEvent) -> None:
        """Take a message from the coordinator, or another event."""
        self._inbox.put(event)

    def upqueries(self) -> dict[str, int]:
        """Upqueries, and reads of cones, that were begun, by view."""
        return dict(self._lake.upqueries)

    def fail(self, error: BaseException) -> None:
        """Another thread has failed, and the worker cannot go on."""
        self._failure = error
        self._wake()

    def hurry(self) -> None:
        """The coordinator is gone, so no process can ask for anything any more."""
        if self._functions is not None:
            self._functions.close()
        self.snapshots.hurry()
        self._inbox.put(Retire())

    def _wake(self) -> None:
        """Wake the loop: there may be something to do."""
        self._inbox.put(LookupGivenUp(ticket=NO_TICKET))

    def hear_peer(self, peer: WorkerId, envelopes: tuple[Envelope, ...]) -> None:
        """Take a peer's messages."""
        for envelope in envelopes:
            self._inbox.put(PeerSaid(sender=peer, envelope=envelope))

    def ask(self, request: LookupRequest) -> None:
        """Answer the request's lookups, now or later. Feeds the machine with all requests that have come, if the loop
        has nothing to do; else they wait for it."""
        self._inbox.ask(request)
        if self._calls_functions(request.view) or self._lookups.is_closed:
            self._inbox.wake()  # functions are called on the loop's thread alone
            if self._lookups.is_closed:
                self._lookups.refuse(self._inbox.requests())
            return
        # Whichever thread has the floor looks for requests again after it has given the floor back.
        while self._inbox.has_requests and self._floor.take():
            try:
                self._feed()
            finally:
                self._floor.give_back()

    def _feed(self) -> None:
        """As the thread that has the floor, while the loop rests."""
        requests = self._inbox.requests()
        if any(self._calls_functions(request.view) for request in requests):
            for request in requests:
                self._inbox.ask(request)
            self._inbox.wake()
            return
        try:
            if self._take_requests(requests):
                self._flush()
                if self._has_work:
                    self._wake()
        except Exception as error:  # of any class: it is the worker's fault, not the lookups'
            self.fail(error)

    def _take_requests(self, requests: Sequence[LookupRequest], waiting: frozenset[FlowId] | None = None) -> bool:
        """Step by the lookups of some requests, each view's in as few passes as may be. Returns whether there is new
        work, as there is none after mere answers. waiting: as of ``_pass``; ``None``: no flow waits for a function."""
        has_new_work = False
        for batch in passes(requests):
            event = self._lookups.begin(batch)
            if waiting is None:
                actions = self._step(event)
                has_new_work |= len(actions) != 1 or not isinstance(actions[0], AnswerTogether)
            else:
                has_new_work |= self._pass(event, waiting)
            self._lookups.end(event, batch)
            self._lookups.flush()
        return has_new_work

    def leave(self, connection: LookupConnection) -> None:
        """The client has gone, and no longer waits for its lookups."""
        for ticket in self._lookups.leave(connection):
            self._inbox.put(LookupGivenUp(ticket=ticket))

    def _late(self, ticket: int, view: str, seconds: float) -> WaitTimeout:
        self._inbox.put(LookupGivenUp(ticket=ticket))
        held_up = self._lake.held_up
        why = "" if held_up is None else f": its worker is held up: {held_up}"
        return WaitTimeout(f"view {view!r}: no answer in {seconds:.3g} s{why}")

    def linger(self, seconds: float) -> None:
        """After ``run``: if the app goes on, wait until the snapshots held here were read, at most that long."""
        if self._closes_input or self._without_slices:
            self.snapshots.wait_read(seconds)

    def run(
        self, report: Callable[[Sequence[FromWorker]], None], meet: Callable[[Meet], None], peers: PeerChannels
    ) -> Exception | None:
        """Run until the worker retires or fails; returns the error with which it failed.

        report: sends to the coordinator, in order and together, without blocking. meet: opens channels to these
        peers, and then calls ``hear``; returns at once. A failure is reported, and ends the worker.
        """
        self._send_reports, self._meet, self._peers = report, meet, peers
        self._thread = threading.get_ident()
        try:
            while not self._stopped:
                self._turn()
                self._lake.write()
                self._read()
                self._lake.tell_held_up()
                region = self._machine.next_to_move
                if region is not None:
                    self._take(TimeToMove(keys_max=self._mover.keys(region)))
                    self._answer_first()
                self._background.do()
                self._flush()
            return None
        except Exception as error:  # of any class: the coordinator must not wait for this worker in vain
            kind = type(error).__name__ if isinstance(error, UpriverError) else ProtocolError.__name__
            text = str(error) if isinstance(error, UpriverError) else repr(error)
            self._report(WorkerFailed(kind=kind, error=text))
            self._flush_reports()
            return error
        finally:
            self._lake.close()
            self._lookups.close()
            self._lookups.refuse(self._inbox.requests())
            if self._functions is not None:
                self._functions.close()
                self._functions.reap()

    def _read(self) -> None:
        """Read a piece of each flow that has something to read, and so on for a while. All other work would look at
        every flow after each piece."""
        ends_at = time.perf_counter() + READS_TURN_S
        while self._lake.can_read and not self._stopped:
            self._lake.read(self._step)
            self._answer_first()
            if time.perf_counter() > ends_at:
                return

    def _report(self, message: FromWorker) -> None:
        """Report at the end of the turn."""
        self._reports.append(message)

    def _flush(self) -> None:
        self._flush_reports()
        if self._peers is not None:
            self._peers.flush()

    def _flush_reports(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._send_reports(reports)

    def _turn(self) -> None:
        """Take events from the inbox; wait for them only if there is nothing else to do."""
        ends_at = math.inf
        for taken in range(INBOX_TURN_MAX):
            if time.perf_counter() > ends_at:
                return
            self._answer_first()
            try:
                event = self._next(waits=not taken and not self._has_work)
            except queue.Empty:
                return
            if not taken:
                ends_at = time.perf_counter() + INBOX_TURN_S
            self._answer_first()
            if event is not None:
                self._take(event)

    def _next(self, *, waits: bool) -> WorkerEvent | Rest | None:
        """As :meth:`Inbox.next`; what was held goes first."""
        if self._held:
            return self._held.next()
        return self._wait() if waits else self._inbox.next(0)

    @property
    def sets_aside(self) -> frozenset[str]:
        """As of :class:`WorkerLake`."""
        return self._lake.sets_aside

    @property
    def _has_work(self) -> bool:
        """Whether there is something to do besides the inbox."""
        has_own = self._lake.can_read or self._lake.must_write or self._background.are_due or self._machine.can_move
        return has_own or bool(self._held)

    def _wait(self) -> WorkerEvent | None:
        """Wait for an event, or until it is time to fill keys or to read again; threads with lookups may take the floor
        meanwhile. Raises queue.Empty."""
        self._flush()  # the lookups that came last may have asked peers
        seconds = min(self._background.due_in_s, self._lake.due_in_s)
        self._floor.rest()
        try:
            if self._inbox.has_requests:  # they came before this thread rested
                return None
            return self._inbox.next(None if seconds == math.inf else seconds)
        finally:
            self._floor.resume()

    def _answer_first(self) -> None:
        """Take the lookups that wait."""
        for lookups in self._held.lookups():
            self._take(lookups)
        if self._inbox.has_requests:
            self._take_requests(self._inbox.requests())

    # While a user's function is called

    def _calls_functions(self, view: str) -> bool:
        return self._functions is not None and self._machine.flow_of(view) in self._functions.flows

    def _serve_others(self, flow: FlowId) -> bool:
        """A function of this flow is called: work for the others, for a turn of the loop. Returns whether there was
        anything to do. It runs inside of the step that calls the function; another flow's step inside of it may call
        one, too."""
        before = self._machine.paused
        is_elsewhere = self._thread != threading.get_ident()
        if is_elsewhere or self._failure is not None or self._steps_all or len(self._waiting) >= CALLS_MAX:
            return False
        self._waiting.append(flow)
        try:
            return self._turn_for_others(frozenset(self._waiting))
        except Exception as error:  # of any class: it is not the function's, and the loop raises it after this step
            self._failure = error
            return False
        finally:
            self._waiting.pop()
            self._machine.pause(before)

    def _turn_for_others(self, waiting: frozenset[FlowId]) -> bool:
        is_busy = False
        for _ in range(INBOX_TURN_MAX):
            for lookups in self._held.lookups():
                is_busy |= self._pass(lookups, waiting)
            if self._inbox.has_requests:
                is_busy |= self._take_requests(self._inbox.requests(), waiting)
            held = self._held.next(waiting)
            if held is not None:
                self._pause(waiting)
                self._take(held)
                is_busy = True
                continue
            try:
                event = self._inbox.next(0)
            except queue.Empty:
                break
            if isinstance(event, DropFlow) and self._functions is not None and event.flow in waiting:
                self._functions.interrupt(event.flow)
            if event is not None:
                is_busy |= self._pass(event, waiting)
        paused = self._pause(waiting)
        if self._lake.can_read:
            is_busy |= self._lake.read(self._step, paused)
        region = self._machine.next_to_move
        if region is not None:
            self._take(TimeToMove(keys_max=self._mover.keys(region)))
        is_busy |= region is not None or self._background.are_due
        self._background.do()
        self._flush()
        return is_busy

    def _pause(self, waiting: frozenset[FlowId]) -> frozenset[FlowId]:
        """Pause the shares that wait for a function, and those with held events; returns their flows."""
        paused = waiting | self._held.flows
        self._machine.pause(paused)
        return paused

    def _pass(self, event: WorkerEvent, waiting: frozenset[FlowId]) -> bool:
        """Step by the event if it need not wait; returns whether it need not."""
        passes = self._held.passes(event, waiting)
        if passes:
            self._pause(waiting)
            self._take(event)
        return passes

    def _take_rest(self, rest: Rest) -> None:
        """Step the shares that were paused when the others were stepped by an event."""
        with self._stepping_all():
            for flow in sorted(rest.flows):
                for action in self._machine.step_rest(flow, rest.event):
                    self._carry_out(action)

    @contextmanager
    def _stepping_all(self) -> Iterator[None]:
        """Several shares are stepped one by one: none may be stepped by later events before it has had its turn."""
        self._steps_all += 1
        try:
            yield
        finally:
            self._steps_all -= 1

    def _take(self, event: WorkerEvent | Rest) -> None:
        """Step by an event, and time the events of migrations and upqueries."""
        match event:
            case Rest():
                self._take_rest(event)
            case TimeToMove() | PeerSaid() | ForShare(message=Resume()):
                self._take_timed(event)
            case ShareHears(event=KeysRead()):
                self._background.fill(event)
            case _:
                self._step(event)

    def _take_timed(self, event: TimeToMove | PeerSaid | ForShare) -> None:
        """Step by an event that makes keys come or go, and time it. Other events are not timed: reading a thread's
        processor time takes tens of microseconds where processors are busy."""
        self._mover.step_begins()
        self._step(event)
        if isinstance(event, PeerSaid):
            self._mover.hears(event.envelope)
        elif isinstance(event, ForShare):
            self._mover.resumed()
            self._report(self._load_of_rescale())
        if self._mover.gives and self._peers is not None:
            self._peers.flush()  # packing is part of the step
            self._mover.gave()

    def _step(self, event: WorkerEvent) -> list[WorkerAction]:
        """Step by an event, and carry out the actions that follow; returns them."""
        if self._failure is not None:
            raise self._failure
        match event:
            case ForShare(flow=flow, message=Assign() as assign) if not self._machine.is_gone(flow):
                self._assigned(flow, assign)
            case ForShare(flow=flow, message=Resume() as resume):
                self._resumed(flow, resume)
            case DropFlow(flow=flow):
                self._dropped(flow)
            case CloseInput():
                self._closes_input = True
        with self._stepping_all() if isinstance(event, OfAllShares | Retire | TimeToFill) else nullcontext():
            actions = self._machine.step(event)
        for action in actions:
            self._carry_out(action)
        if not isinstance(event, LookupsAsked):
            self._lookups.flush()
        return actions

    def _assigned(self, flow: FlowId, event: Assign) -> None:
        self._lake.assign(flow, event)
        self._serve_from[flow] = event.serve_from
        self._without_slices.discard(flow)
        if event.generation:
            self._mover.begins_anew(flow)

    def _resumed(self, flow: FlowId, event: Resume) -> None:
        """Stop reading: an epoch that is not over will be read again. A worker with no slices left is about to
        retire."""
        self._serve_from[flow] = event.serve_from
        if event.reads:
            self._closes_input = False
            self._without_slices.discard(flow)
        else:
            self._without_slices.add(flow)
        self._lake.give_up_read(flow)

    def _dropped(self, flow: FlowId) -> None:
        self._lake.drop(flow)
        if self._functions is not None:
            self._functions.drop(flow)
        self._serve_from.pop(flow, None)
        self._without_slices.discard(flow)
        self._mover.forget(flow)

    def _carry_out(self, action: WorkerAction) -> None:
        match action:
            case ShareWants():
                self._lake.carry_out(action.flow, action.action)
            case Report():
                self._report_load(action.message)
                self._lake.report_behind_writes(action.message)
            case SendPeer():
                self._send(action)
            case MeetPeers(meet=meet):
                self._mover.begin(meet.keys_max)
                self._meet(meet)
            case Answer():
                self._lookups.settle(action.ticket, action)
            case AnswerTogether():
                self._lookups.settle_together(action)
            case Refuse():
                self._lookups.settle(action.ticket, action.error)
            case HoldSnapshot():
                self.snapshots.hold(action.snapshot, action.rows)
            case ForgetSnapshot():
                self.snapshots.forget(action.snapshot)
            case Stop():
                self._stopped = True
            case _:
                assert_never(action)

    def _report_load(self, ahead_of: FromWorker) -> None:
        """Report what a rescale has cost here, once it is over here."""
        if not isinstance(ahead_of, OfShare):
            return
        flow, message = ahead_of.flow, ahead_of.message
        is_back = (
            isinstance(message, EpochFinished)
            and message.epoch >= self._serve_from.get(flow, BEGINNING)
            and self._mover.is_back(flow)
        )
        if is_back or isinstance(message, Settled):
            self._report(self._load_of_rescale())

    def _load_of_rescale(self) -> WorkerLoad:
        return WorkerLoad(stall_ms=self._mover.stall_s * 1000, hold_ms=self._mover.hold_s * 1000)

    def _send(self, action: SendPeer) -> None:
        assert self._peers is not None
        envelope = self._mover.sends(action.envelope)
        try:
            self._peers.send(action.to, envelope)
        except ClusterError as error:
            self._inbox.put(PeerLost(peer=action.to, why=str(error)))


def _not_running(message: object) -> None:
    raise ProtocolError(f"{type(message).__name__} before the loop runs")
