"""What comes of an event that a share has taken, for the worker to see to."""

from dataclasses import dataclass

from upriver.engine.set_aside import SetAside
from upriver.ids import Epoch, WorkerId
from upriver.migration.actions import Leave, ReportGone, ReportSettled, Send
from upriver.protocol.peers import Question
from upriver.state.checkpoint import StateChunk
from upriver.xxh64 import Hashes


@dataclass(frozen=True, slots=True)
class Applied:
    """Rows of an epoch have come to the region."""

    epoch: Epoch
    rows: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of an epoch have come from which the view cannot be computed."""

    epoch: Epoch
    aside: SetAside


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


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Keys that were present here, to be filled at their new owner. shown: no lookup has seen any of them as of a later
    epoch."""

    to: WorkerId
    keys: Hashes
    shown: Epoch


@dataclass(frozen=True, slots=True)
class Uprooted:
    """Questions wait here for keys that will not be present here."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a checkpoint is to have of some keys, which change now."""

    chunk: StateChunk


Outcome = (
    LeftBehind
    | Uprooted
    | Applied
    | LeftOut
    | AskedHere
    | Gave
    | Took
    | Copied
    | Send
    | ReportSettled
    | ReportGone
    | Leave
)
