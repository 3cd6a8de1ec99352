"""The share machine: keeps a worker's vnodes of one flow current, and answers lookups on the flow's views.

Theory of operation. A share is assigned once, and again when all shares of the flow start anew. From then on the
coordinator opens epochs, in order. The share asks the shell to read its slices of each epoch (``ReadEpoch``). As rows
come (``RowsRead``), it hands them to the shards of the regions that they feed. It reports the epoch when the shell has
read all slices (``EpochRead``). Each shard has a distributor, which applies rows here; during a rescale, it may send
them to the peer that keeps their keys. A key's rows of one epoch are never split, so a client that looks a key up sees
all of an epoch's rows or none.

Lookups come at any time between two events, and go through the distributors as rows do: the worker with the keys'
state answers. The worker that was asked gathers the parts.

Phases: ``Unassigned`` -> ``Serving`` -> ``Retired``. Rules worker.*: ``docs/internals/epochs.md`` and
``docs/internals/rescale.md``.
"""

from upriver.errors import IllegalEvent, UpriverError, WrongOwner
from upriver.ids import BEGINNING, Epoch, FlowId, WorkerId
from upriver.protocol.messages import Assign, Evicted, Resume, Retire, StartedAnew
from upriver.protocol.peers import Envelope, PeerLookupAnswered, PeerLookupGivenUp, PeerLookupRefused
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    KeysRead,
    KeysUnread,
    LookupAsked,
    LookupGivenUp,
    LookupsAsked,
    PeerSaid,
    ReadTakesLong,
    Refuse,
    Report,
    RowsFetched,
    RowsUnfetched,
    ShareAction,
    ShareEvent,
)
from upriver.worker.long_answers import ANSWER_ROWS_MAX
from upriver.worker.lookups import each_lookup
from upriver.worker.memory import MemoryBudget
from upriver.worker.regions import BuildRegion
from upriver.worker.serving import Serving, ShareSettings
from upriver.worker.upqueries import CROWD_KEYS


class Unassigned:
    """The share has no assignment yet."""


class Retired:
    """The worker was told to stop, or the flow is gone."""


class FlowShare:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(
        self,
        flow: FlowId,
        build_region: BuildRegion,
        rules: Rules = ALL_RULES,
        memory: MemoryBudget | None = None,
        crowd_keys: int = CROWD_KEYS,
        answer_rows_max: int = ANSWER_ROWS_MAX,
    ) -> None:
        """memory: what all shares of the worker may take; ``None``: anything. crowd_keys, answer_rows_max: see the
        constants."""
        self.flow = flow
        self._settings = ShareSettings(
            flow=flow,
            build_region=build_region,
            rules=rules,
            memory=MemoryBudget() if memory is None else memory,
            crowd_keys=crowd_keys,
            answer_rows_max=answer_rows_max,
        )
        self.phase: Unassigned | Serving | Retired = Unassigned()

    @property
    def is_serving(self) -> bool:
        """Whether it has an assignment, and is not over."""
        return isinstance(self.phase, Serving)

    @property
    def unfinished(self) -> Epoch:
        """The first epoch that it is not through; ``BEGINNING`` without an assignment."""
        return self.phase.unfinished if isinstance(self.phase, Serving) else BEGINNING

    @property
    def views(self) -> tuple[str, ...]:
        """The views of the flow that are not dropped."""
        return self.phase.regions.served if isinstance(self.phase, Serving) else ()

    @property
    def parted(self) -> frozenset[WorkerId]:
        """The peers that have taken leave of this share, and have no successor yet."""
        return self.phase.peers.parted if isinstance(self.phase, Serving) else frozenset()

    def has_asked(self, ticket: int) -> bool:
        """Whether a client has sent this lookup here, and it has no answer."""
        return isinstance(self.phase, Serving) and self.phase.lookups.has_asked(ticket)

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
    def has_own_evictions(self) -> bool:
        """Whether ``TimeToEvict`` has work even if memory is within budget."""
        return isinstance(self.phase, Serving) and self.phase.evictions.has_own_work

    @property
    def largest_partial(self) -> int:
        """The bytes that the kept keys of the largest partial region take; -1 if there is none."""
        return self.phase.evictions.largest if isinstance(self.phase, Serving) else -1

    @property
    def evicted(self) -> int:
        """Keys that the last ``TimeToEvict`` handled: fewer than it allows, if there were no more."""
        return self.phase.evictions.evicted if isinstance(self.phase, Serving) else 0

    def step(self, event: ShareEvent) -> list[ShareAction]:
        """Advance by one event. Raises IllegalEvent when the phase does not allow it."""
        phase = self.phase
        if isinstance(phase, Serving):
            return self._serve(phase, event)
        match event:
            case Assign() if isinstance(phase, Unassigned):
                return self._assign(event)
            case Retire():
                self.phase = Retired()
                return []
            case LookupAsked():
                return [Refuse(ticket=event.ticket, error=WrongOwner("this worker owns nothing"))]
            case LookupsAsked():
                return [action for lookup in each_lookup(event) for action in self.step(lookup)]
            case LookupGivenUp() | KeysRead() | KeysUnread() | ReadTakesLong() | RowsFetched() | RowsUnfetched():
                return []
            case PeerSaid(envelope=Envelope(content=PeerLookupAnswered() | PeerLookupRefused() | PeerLookupGivenUp())):
                return []  # meant for the worker that was in this place before
        if isinstance(phase, Retired):
            return []
        raise IllegalEvent(f"{type(event).__name__} in phase {type(phase).__name__}")

    def _serve(self, phase: Serving, event: ShareEvent) -> list[ShareAction]:
        match event:
            case LookupsAsked():
                together, others = phase.lookups.answered_together(event)
                actions: list[ShareAction] = [] if together is None else [together]
                for lookup in others:
                    actions += self.step(lookup)
                return actions
            case Assign():
                return self._assign_anew(phase, event)
            case Resume():
                self.phase = phase.resumed(event, self._settings)
                return self.phase.output.take()
            case Retire():
                return self.end(WrongOwner("this worker has retired"))
        return phase.handle(event)

    def _assign(self, event: Assign) -> list[ShareAction]:
        self.phase = Serving(event, self._settings, event.generation)
        begun: list[ShareAction] = [Report(message=StartedAnew(generation=event.generation))] if event.builds else []
        return [*begun, *self.phase.begin()]

    def _assign_anew(self, old: Serving, event: Assign) -> list[ShareAction]:
        """Begin anew: earlier state and lookups belong to another generation."""
        ended = old.end(WrongOwner("this worker starts anew; ask again"))
        self.phase = Serving(event, self._settings, event.generation)
        evicted = [
            Report(message=Evicted(eviction=number, stats=self.phase.regions.stats()))
            for number in old.evictions.unfinished
        ]
        started = Report(message=StartedAnew(generation=event.generation))
        return [*ended, started, *evicted, *self.phase.begin()]

    def end(self, error: UpriverError) -> list[ShareAction]:
        """Refuse all lookups, and keep nothing any more."""
        phase, self.phase = self.phase, Retired()
        self._settings.memory.leave(self.flow)
        return phase.end(error) if isinstance(phase, Serving) else []

    def fail(self, error: Exception) -> list[ShareAction]:
        """A step has failed: so do all views of the flow (flows.fail_alone)."""
        assert isinstance(self.phase, Serving)
        return self.phase.fail(error)

    def memory_changed(self) -> list[ShareAction]:
        """Another share has made or taken room."""
        return self.phase.memory_changed() if isinstance(self.phase, Serving) else []
