"""ICADD's messages inside a region whose operators split and unite (document 000, "Dealing with multi-pathing").

An operator puts a message into each of its outgoing edges, so one behind a union sees several copies. All copies are
one object with a count of references; the distributor keeps one, and when no other is left every operator has seen
every copy. What operators do with a copy may be done again with the next:

- ``MultipathInterrogate.add_keys`` adds to a set. A key that came between two copies is added by the later one.
- ``MultipathCollect.add_state`` replaces what the operator added before: the later state is the better one. That is so
  because an operator keeps its state until ``MultipathDrop``; one that gave it away at the first copy would begin a
  new one for a row on a slower path, and replace all of it by that.
- ``MultipathAcquire.take`` gives the state once: rows behind the first copy may have changed it before the next comes.
- ``MultipathDrop`` forgets once. By then no row of its keys is on any edge.

Rows go along the same edges, first in first out. A region with several inputs has one distributor for all of them
(R14): its messages go into every input, behind all rows that it passed down there.
"""

from collections import deque
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Generic, NamedTuple, NewType, Protocol, TypeVar

from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import Hashes
from upriver.ids import VnodeId
from upriver.state.vectors import NO_KEYS, key_set

OperatorId = NewType("OperatorId", str)
"""Names an operator within its region; the same on all workers."""


class Travelling:
    """A message with counted copies. references: the distributor's own, and one per copy on its way."""

    def __init__(self) -> None:
        self.references = 1

    def put_into(self, edges: int) -> None:
        """A copy goes into each of so many edges."""
        self.references += edges

    def hand_back(self) -> None:
        """The holder of a copy needs it no more. Raises ProtocolError for one copy too many."""
        if self.references == 1:
            raise ProtocolError(f"{type(self).__name__} was handed back more often than it was copied")
        self.references -= 1

    @property
    def over(self) -> bool:
        """Every operator has seen every copy that comes to it."""
        return self.references == 1


class MultipathInterrogate(Travelling):
    """Asks every operator which keys of ``vnodes`` have state. keys: what was answered so far, a set."""

    def __init__(self, vnodes: tuple[VnodeId, ...]) -> None:
        super().__init__()
        self.vnodes = vnodes
        self.keys: Hashes = NO_KEYS

    def add_keys(self, keys: Hashes) -> None:
        """More keys that have state; those that are known already change nothing."""
        self.keys = key_set(self.keys, keys)


class MultipathCollect(Travelling):
    """Gathers the state of ``keys``, none of which has a row behind this. state: by operator."""

    def __init__(self, keys: Hashes) -> None:
        super().__init__()
        self.keys = keys
        self.state: dict[OperatorId, object] = {}

    def add_state(self, operator: OperatorId, state: object) -> None:
        """All that the operator keeps for the keys, in place of what it said before."""
        self.state[operator] = state


class MultipathAcquire(Travelling):
    """Brings the state of ``keys`` to their new owner's operators, ahead of all their rows."""

    def __init__(self, keys: Hashes, state: Mapping[OperatorId, object]) -> None:
        super().__init__()
        self.keys = keys
        self._state = dict(state)

    def take(self, operator: OperatorId) -> object | None:
        """The operator's state the first time; ``None`` if there is none, or it was taken."""
        return self._state.pop(operator, None)


class MultipathDrop(Travelling):
    """The operators may forget ``keys``."""

    def __init__(self, keys: Hashes) -> None:
        super().__init__()
        self.keys = keys


Message = MultipathInterrogate | MultipathCollect | MultipathAcquire | MultipathDrop
Row = TypeVar("Row")


class MultipathOperator(Protocol[Row]):
    """One operator of a region. Its state is by key."""

    def apply(self, row: Row) -> Mapping[OperatorId, Row]:
        """Take a row, or a batch of them; what goes out, by the operator that it goes to."""

    def keys_of(self, vnodes: tuple[VnodeId, ...]) -> Hashes:
        """All keys of these vnodes that have state, ascending, unique."""

    def collect(self, keys: Hashes) -> object | None:
        """All state of these keys, which stays until they are dropped; ``None`` if there is none."""

    def install(self, state: object) -> None:
        """Keep such state."""

    def drop(self, keys: Hashes) -> None:
        """Forget these keys; that some have no state is no error."""


class MultipathEdge(NamedTuple):
    """From an operator, or from the distributor (``None``), to another."""

    source: OperatorId | None
    target: OperatorId


class RegionGraph(Generic[Row]):
    """The operators of one region on one worker, and what is between them. ``deliver`` is the only thing that moves.

    queues: per edge what is on it, in order.
    """

    def __init__(
        self,
        operators: Mapping[OperatorId, MultipathOperator[Row]],
        edges: Mapping[OperatorId, tuple[OperatorId, ...]],
        inputs: tuple[OperatorId, ...],
    ) -> None:
        """edges: per operator, those it feeds. inputs: those that the distributor feeds.

        Raises DeclarationError for an edge to nowhere, an operator that nothing feeds, and a circle: a message on it
        would never be over.
        """
        self.operators = operators
        self._outgoing = {
            name: tuple(MultipathEdge(name, target) for target in edges.get(name, ())) for name in operators
        }
        self._incoming = tuple(MultipathEdge(None, name) for name in inputs)
        queued = [*self._incoming, *(edge for outgoing in self._outgoing.values() for edge in outgoing)]
        _check(set(operators), set(edges), queued)
        self.queues: dict[MultipathEdge, deque[Row | Message]] = {edge: deque() for edge in queued}

    def pass_down(self, row: Row, to: OperatorId) -> None:
        """The distributor passes a row down to one of the inputs."""
        self.queues[MultipathEdge(None, to)].append(row)

    def send(self, message: Message) -> None:
        """The distributor sends a message to every operator, behind all rows that it passed down."""
        self._put(message, self._incoming)

    def busy(self) -> list[MultipathEdge]:
        """The edges with anything on them, in a fixed order."""
        return [edge for edge, queue in self.queues.items() if queue]

    def deliver(self, edge: MultipathEdge) -> Message | None:
        """The operator at the edge's end sees what is first on it, and passes it on. Returns a message, for its count
        of references, and ``None`` for a row."""
        first = self.queues[edge].popleft()
        operator = self.operators[edge.target]
        if not isinstance(first, Message):
            for target, row in operator.apply(first).items():
                self.queues[MultipathEdge(edge.target, target)].append(row)
            return None
        _show(operator, edge.target, first)
        self._put(first, self._outgoing[edge.target])
        first.hand_back()
        return first

    def _put(self, message: Message, edges: tuple[MultipathEdge, ...]) -> None:
        message.put_into(len(edges))
        for edge in edges:
            self.queues[edge].append(message)


def _show(operator: MultipathOperator[Row], name: OperatorId, message: Message) -> None:
    match message:
        case MultipathInterrogate(vnodes=vnodes):
            message.add_keys(operator.keys_of(vnodes))
        case MultipathCollect(keys=keys):
            state = operator.collect(keys)
            if state is not None:
                message.add_state(name, state)
        case MultipathAcquire():
            state = message.take(name)
            if state is not None:
                operator.install(state)
        case MultipathDrop(keys=keys):
            operator.drop(keys)


def _check(operators: set[OperatorId], feeding: set[OperatorId], edges: list[MultipathEdge]) -> None:
    fed = {edge.target for edge in edges}
    wrong = (fed ^ operators) | (feeding - operators)
    if wrong:
        raise DeclarationError(f"operators that are not there, or that nothing feeds: {sorted(wrong)}")
    before = TopologicalSorter[OperatorId]()
    for edge in edges:
        before.add(edge.target, *([] if edge.source is None else [edge.source]))
    try:
        before.prepare()
    except CycleError as error:
        raise DeclarationError(f"operators feed each other in a circle: {' -> '.join(error.args[1])}") from error
