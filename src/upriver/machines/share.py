"""Share: what one worker keeps of one region, behind the distributor through which all that concerns it comes.

Rows, lookups and state take the same way: an event goes to the distributor, and what that wants done is done to the
state at once. So the operators have answered an Interrogate or a Collect before anything else can come.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from upriver.dataflow.batch import Batch, Hashes, Outgoing
from upriver.errors import RowError
from upriver.ids import Epoch, MapVersion, WorkerId
from upriver.machines.peers import Portion, Question
from upriver.machines.strategies import MakeMigrator, Migrator
from upriver.migration.actions import (
    Collect,
    Drop,
    Interrogate,
    Leave,
    PassDown,
    ReportGone,
    ReportSettled,
    Send,
    TakeState,
)
from upriver.migration.events import CollectAsked, Collected, Event, Interrogated, Received
from upriver.migration.keysets import key_set
from upriver.migration.messages import RowsSent

State = tuple[pa.RecordBatch, ...]
"""All that a region keeps of some keys."""


class Region(Protocol):
    """One region's state at one worker, as :class:`upriver.dataflow.running.Region` keeps it."""

    @property
    def gathered(self) -> int:
        """Rows that came over exchange edges and are not taken in."""
        ...

    def apply(self, port: int, batch: Batch) -> None: ...

    def settle(self) -> int: ...

    def drain(self) -> Sequence[Outgoing]: ...

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch) -> pa.RecordBatch: ...

    def scan(self) -> pa.Table: ...

    def stats(self) -> Mapping[str, int]: ...

    def keys_of(self, vnode: int, vnodes: int) -> Hashes: ...

    def collect(self, keys: Hashes) -> State: ...

    def install(self, state: State) -> None: ...

    def drop(self, keys: Hashes) -> None: ...


@dataclass(frozen=True, slots=True)
class Applied:
    """Rows of an epoch have come to the region."""

    epoch: Epoch
    rows: int


@dataclass(frozen=True, slots=True)
class AskedHere:
    """The state of the question's keys is here, if there is any."""

    question: Question


@dataclass(frozen=True, slots=True)
class Gave:
    """The state of so many keys was collected, and is here no more."""

    keys: int


@dataclass(frozen=True, slots=True)
class Took:
    """The state of so many keys has come, and is in place."""

    keys: int


Outcome = Applied | AskedHere | Gave | Took | Send | ReportSettled | ReportGone | Leave


@dataclass(slots=True)
class Travelled:
    """What has left this worker since the last rescale began. keys, bytes: of state. forwarded: own rows sent to a
    peer. bounced: a peer's rows sent on."""

    keys: int = 0
    bytes: int = 0
    forwarded: int = 0
    bounced: int = 0


class Share:
    """``step(event) -> outcomes``. ``region`` is there to be read."""

    def __init__(self, name: str, region: Region, migrator: Migrator, vnodes: int) -> None:
        self.region = region
        self.migrator = migrator
        self.travelled = Travelled()
        self.version: MapVersion = migrator.phase.map.version
        """Of the map by which the keys are kept; while they move, by which they were."""
        self._name = name
        self._vnodes = vnodes

    @property
    def can_give(self) -> bool:
        """Whether ``give`` would move a key."""
        return self.migrator.can_collect

    def begin(self, make: MakeMigrator, me: WorkerId) -> None:
        """Go by this strategy from now on. Nothing moves at this time."""
        self.migrator = make(me, self.migrator.phase.map)
        self.travelled = Travelled()

    def step(self, event: Event) -> list[Outcome]:
        """Take an event to its end. Raises RowError, naming the view, for a row that cannot be applied."""
        outcomes: list[Outcome] = []
        events = deque([event])
        while events:
            current = events.popleft()
            for action in self.migrator.step(current):
                events.extend(self._carry_out(action, current, outcomes))
        self.version = getattr(self.migrator.phase, "map", self).version
        return outcomes

    def give(self, keys_max: int) -> list[Outcome]:
        """Send the next keys to their new owner."""
        return self.step(CollectAsked(keys_max=keys_max))

    def _carry_out(self, action: object, cause: Event, outcomes: list[Outcome]) -> list[Event]:
        """Do what the distributor wants; returns what it is to be told of it."""
        match action:
            case PassDown(rows=Portion() as portion):
                self._apply(portion)
                outcomes.append(Applied(portion.epoch, len(portion)))
            case PassDown(rows=Question() as question):
                outcomes.append(AskedHere(question))
            case Interrogate(vnodes=asked):
                keys = [self.region.keys_of(vnode, self._vnodes) for vnode in asked]
                return [Interrogated(keys=key_set(*keys))]
            case Collect(keys=keys):
                state = self.region.collect(keys)
                self.travelled.keys += len(keys)
                self.travelled.bytes += sum(batch.nbytes for batch in state)
                outcomes.append(Gave(len(keys)))
                return [Collected(keys=keys, state=state)]
            case TakeState():
                self.region.install(_as_state(action.state))
                outcomes.append(Took(len(action.keys)))
            case Drop(keys=keys):
                self.region.drop(keys)
            case Send():
                self._count(action, cause)
                outcomes.append(action)
            case ReportSettled() | ReportGone() | Leave():
                outcomes.append(action)
            case _:
                raise AssertionError(f"no distributor wants {action!r}")
        return []

    def settle(self, epoch: Epoch) -> tuple[int, Sequence[Outgoing]]:
        """Take in what was gathered: how many rows that was, and what is to be sent of this and of what came before.

        Raises RowError, naming the region, for a row that cannot be applied.
        """
        with self._naming(epoch):
            return self.region.settle(), self.region.drain()

    def _apply(self, portion: Portion) -> None:
        with self._naming(portion.epoch):
            self.region.apply(portion.port, portion.batch)

    @contextmanager
    def _naming(self, epoch: Epoch) -> Iterator[None]:
        try:
            yield
        except RowError as error:
            raise RowError(f"view {self._name!r}, epoch {epoch}: {error}") from error

    def _count(self, sent: Send, cause: Event) -> None:
        if isinstance(sent.message, RowsSent) and isinstance(sent.message.rows, Portion):
            if isinstance(cause, Received):
                self.travelled.bounced += len(sent.message.rows)
            else:
                self.travelled.forwarded += len(sent.message.rows)


def _as_state(state: Any) -> State:
    """Migration does not look into what it carries."""
    return tuple(state)
