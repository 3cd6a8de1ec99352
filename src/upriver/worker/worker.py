"""The worker machine: keeps its vnodes' share of every view current and answers lookups on it.

Theory of operation. A worker is assigned once per incarnation, and again when all workers start anew. From then on the
coordinator opens epochs, in order. The worker asks the shell to read its slices of each epoch (``ReadEpoch``). As rows
come (``RowsRead``), it hands them to the shares of the regions that they feed. It reports the epoch when the shell has
read all slices (``EpochRead``). Each share has a distributor, which applies rows here; during a rescale, it may send
them to the peer that keeps their keys. A key's rows of one epoch are never split, so a client that looks a key up sees
all of an epoch's rows or none.

Lookups come at any time between two events, and go through the distributors as rows do: the worker with the keys'
state answers. The worker that was asked gathers the parts.

Phases: ``Unassigned`` -> ``Serving`` -> ``Retired``. Rules worker.*: ``docs/internals/epochs.md`` and
``docs/internals/rescale.md``.
"""

from upriver.errors import IllegalEvent, WrongOwner
from upriver.protocol.messages import Assign, Evicted, Resume, Retire, StartedAnew
from upriver.protocol.peers import Envelope, PeerLookupAnswered, PeerLookupGivenUp, PeerLookupRefused
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    KeysRead,
    KeysUnread,
    LookupAsked,
    LookupGivenUp,
    PeerSaid,
    ReadTakesLong,
    Refuse,
    Report,
    RowsFetched,
    RowsUnfetched,
    Stop,
    WorkerAction,
    WorkerEvent,
)
from upriver.worker.long_answers import ANSWER_ROWS_MAX
from upriver.worker.regions import BuildRegion
from upriver.worker.serving import Serving, WorkerSettings
from upriver.worker.upqueries import CROWD_KEYS


class Unassigned:
    """The worker has registered, and has no assignment yet."""


class Retired:
    """The worker was told to stop."""


class WorkerMachine:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(
        self,
        build_region: BuildRegion,
        rules: Rules = ALL_RULES,
        memory_budget: int | None = None,
        crowd_keys: int = CROWD_KEYS,
        answer_rows_max: int = ANSWER_ROWS_MAX,
    ) -> None:
        """memory_budget: bytes that the worker's state may take; ``None`` for any. crowd_keys,
        answer_rows_max: see the constants."""
        self._settings = WorkerSettings(
            build_region=build_region,
            rules=rules,
            memory_budget=memory_budget,
            crowd_keys=crowd_keys,
            answer_rows_max=answer_rows_max,
        )
        self.phase: Unassigned | Serving | Retired = Unassigned()

    @property
    def next_to_move(self) -> str | None:
        """The region that ``TimeToMove`` would move keys of; ``None`` if there is none."""
        return self.phase.distributors.next_to_move if isinstance(self.phase, Serving) else None

    @property
    def can_move(self) -> bool:
        """Whether ``TimeToMove`` would move a key."""
        return self.next_to_move is not None

    @property
    def can_copy(self) -> bool:
        """Whether ``TimeToCopy`` would copy a key."""
        return isinstance(self.phase, Serving) and self.phase.checkpoints.can_copy

    @property
    def can_feed(self) -> bool:
        """Whether ``TimeToFeed`` would copy a key."""
        return isinstance(self.phase, Serving) and self.phase.replication.can_feed

    @property
    def can_fill(self) -> bool:
        """Whether upqueries rest until ``TimeToFill``."""
        return isinstance(self.phase, Serving) and self.phase.upqueries.fills_rest

    @property
    def unread(self) -> int:
        """About how many rows ``TimeToAnswer`` would read."""
        return self.phase.lookups.unread if isinstance(self.phase, Serving) else 0

    @property
    def unfilled(self) -> int:
        """About how many rows ``TimeToTakeIn`` would take in."""
        return self.phase.fills.unfilled if isinstance(self.phase, Serving) else 0

    @property
    def unsettled(self) -> int:
        """About how many rows ``TimeToSettle`` would take in or send."""
        return self.phase.epochs.unsettled if isinstance(self.phase, Serving) else 0

    @property
    def must_evict(self) -> bool:
        """Whether ``TimeToEvict`` has work: a requested eviction, state that evicted keys have left behind, or keys to
        evict because memory is over budget."""
        return isinstance(self.phase, Serving) and self.phase.evictions.has_work

    @property
    def evicted(self) -> int:
        """Keys that the last ``TimeToEvict`` handled: fewer than it allows, if there were no more."""
        return self.phase.evictions.evicted if isinstance(self.phase, Serving) else 0

    def step(self, event: WorkerEvent) -> list[WorkerAction]:
        """Advance by one event. Raises IllegalEvent when the phase does not allow it."""
        phase = self.phase
        if isinstance(phase, Serving):
            return self._serve(phase, event)
        match event:
            case Assign() if isinstance(phase, Unassigned):
                return self._assign(event, [])
            case Retire():
                return self._retire([])
            case LookupAsked():
                return [Refuse(ticket=event.ticket, error=WrongOwner("this worker owns nothing"))]
            case LookupGivenUp() | KeysRead() | KeysUnread() | ReadTakesLong() | RowsFetched() | RowsUnfetched():
                return []
            case PeerSaid(envelope=Envelope(content=PeerLookupAnswered() | PeerLookupRefused() | PeerLookupGivenUp())):
                return []  # meant for the worker that was in this place before
        if isinstance(phase, Retired):
            return []
        raise IllegalEvent(f"{type(event).__name__} in phase {type(phase).__name__}")

    def _serve(self, phase: Serving, event: WorkerEvent) -> list[WorkerAction]:
        match event:
            case LookupAsked():
                answer = phase.lookups.answered_at_once(event)
                return phase.handle(event) if answer is None else [answer]
            case Assign():
                return self._assign_anew(phase, event)
            case Resume():
                self.phase = phase.resumed(event, self._settings)
                return self.phase.output.actions
            case Retire():
                return self._retire(phase.end(WrongOwner("this worker has retired")))
        return phase.handle(event)

    def _assign(self, event: Assign, first: list[WorkerAction]) -> list[WorkerAction]:
        self.phase = Serving(event, self._settings, event.generation)
        return [*first, *self.phase.begin()]

    def _assign_anew(self, old: Serving, event: Assign) -> list[WorkerAction]:
        """Begin anew: earlier state and lookups belong to another generation."""
        ended = old.end(WrongOwner("this worker starts anew; ask again"))
        self.phase = Serving(event, self._settings, event.generation)
        evicted = [
            Report(message=Evicted(eviction=number, stats=self.phase.regions.stats()))
            for number in old.evictions.unfinished
        ]
        started = Report(message=StartedAnew(generation=event.generation))
        return [*ended, started, *evicted, *self.phase.begin()]

    def _retire(self, first: list[WorkerAction]) -> list[WorkerAction]:
        self.phase = Retired()
        return [*first, Stop()]
