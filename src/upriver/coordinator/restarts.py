"""Restarts of workers: which process may fill a worker's place, when the next one starts, and why the last one ended.

Theory of operation. Each process that fills a place is a *life*: it has a number, and a Spark job of its own. A life
ends when its channel or its job is lost, and the next one starts: at once after the first loss, and with back-off after
more losses in a row, for ever. A life that has held its place for ``STEADY_S`` ends the row. Spark may start a task
twice, and again after a failure; each attempt shows its life and its number, and one attempt holds the life.

Times are seconds of one clock, and come with the events. Rules: ``docs/internals/failures.md``.
"""

from dataclasses import dataclass
from enum import Enum, auto

from upriver.ids import WorkerId

BACKOFF_S_MIN = 0.5
"""Seconds between the second loss in a row and the next life; each further loss doubles it."""
BACKOFF_S_MAX = 30.0
"""Seconds between a loss and the next life at most."""
STEADY_S = 60.0
"""Seconds that a life must hold its place for the losses before it to be forgotten."""
FAILURE_CHARS_MAX = 500
"""Characters of a failure that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceWanted:
    """The place needs a worker: it is new, or its last worker has retired."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeLost:
    """The channel or the job of a life is gone. why: for the user."""

    worker: WorkerId
    life: int
    why: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDue:
    """The time of a ``RestartAt`` has come."""

    worker: WorkerId
    life: int


@dataclass(frozen=True, slots=True)
class StopRestarts:
    """The app stops: no life starts from now on, and no attempt is admitted."""


RestartEvent = PlaceWanted | LifeLost | RestartDue | StopRestarts


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLife:
    """Start the job of this life."""

    worker: WorkerId
    life: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLife:
    """Cancel the job of this life: it is lost, and may hold a task slot."""

    worker: WorkerId
    life: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAt:
    """Give back ``RestartDue`` for this life at this time."""

    worker: WorkerId
    life: int
    at: float


RestartAction = StartLife | EndLife | RestartAt


class Claim(Enum):
    """The answer to an attempt that asks for its place. It is admitted, its life is over, or it is a copy of the
    attempt that holds the life: Spark's speculation starts copies."""

    ADMITTED = auto()
    OUTDATED = auto()
    COPY = auto()


@dataclass(frozen=True, slots=True)
class PlaceHistory:
    """restarts: how often the place was filled again. last_failure: why its last worker was lost, in one line."""

    restarts: int = 0
    last_failure: str | None = None


@dataclass(slots=True)
class _WorkerPlace:
    """life: the one that fills the place, or is about to. is_open: that one may be admitted. holder: the attempt that
    was admitted, at ``held_since``. losses: in a row."""

    life: int = 0
    is_open: bool = False
    holder: int | None = None
    held_since: float | None = None
    losses: int = 0
    restarts: int = 0
    last_failure: str | None = None

    def begin(self) -> None:
        """The next life starts now."""
        self.is_open, self.holder, self.held_since = True, None, None


class Restarts:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(self) -> None:
        self._places: dict[WorkerId, _WorkerPlace] = {}
        self._is_stopping = False

    def step(self, event: RestartEvent) -> list[RestartAction]:
        """Advance by one event."""
        match event:
            case StopRestarts():
                self._is_stopping = True
            case PlaceWanted(worker=worker):
                if not self._is_stopping:
                    place = self._places.setdefault(worker, _WorkerPlace())
                    place.life += 1
                    place.begin()
                    return [StartLife(worker=worker, life=place.life)]
            case LifeLost():
                return self._lost(event)
            case RestartDue(worker=worker, life=life):
                place = self._places[worker]
                if not (self._is_stopping or place.life != life or place.is_open):
                    place.begin()
                    return [StartLife(worker=worker, life=life)]
        return []

    def _lost(self, event: LifeLost) -> list[RestartAction]:
        worker, place = event.worker, self._places[event.worker]
        if self._is_stopping or place.life != event.life or not place.is_open:
            return []
        if place.held_since is not None and event.at - place.held_since >= STEADY_S:
            place.losses = 0
        place.losses += 1
        place.restarts += 1
        place.last_failure = one_line(event.why)
        place.life += 1
        place.is_open = False
        end = EndLife(worker=worker, life=event.life)
        wait_s = backoff_s(place.losses)
        if wait_s == 0:
            place.begin()
            return [end, StartLife(worker=worker, life=place.life)]
        return [end, RestartAt(worker=worker, life=place.life, at=event.at + wait_s)]

    def claim(self, worker: WorkerId, life: int, attempt: int, at: float, *, holder_has_lease: bool) -> Claim:
        """An attempt asks for the place. holder_has_lease: whether the process in the place may still speak for it.

        An attempt of the current life is admitted if no other holds it, or the holder has died: then Spark has started
        the task again.
        """
        place = self._places.get(worker)
        if place is None or self._is_stopping or place.life != life or not place.is_open:
            return Claim.OUTDATED
        if place.holder not in (None, attempt) and holder_has_lease:
            return Claim.COPY
        place.holder, place.held_since = attempt, at
        return Claim.ADMITTED

    def is_current(self, worker: WorkerId, life: int) -> bool:
        """Whether this life fills the place, or is about to."""
        place = self._places.get(worker)
        return place is not None and place.life == life and place.is_open and not self._is_stopping

    def life(self, worker: WorkerId) -> int:
        """The life that fills the place, or is about to."""
        return self._places[worker].life

    def holder(self, worker: WorkerId) -> int | None:
        """The attempt that holds the life; ``None``: none was admitted yet."""
        return self._places[worker].holder if worker in self._places else None

    def losses(self, worker: WorkerId) -> int:
        """How many losses in a row the place has had."""
        return self._places[worker].losses if worker in self._places else 0

    def history(self) -> dict[WorkerId, PlaceHistory]:
        """Of each place that was ever filled."""
        return {worker: PlaceHistory(place.restarts, place.last_failure) for worker, place in self._places.items()}


def backoff_s(losses: int) -> float:
    """Seconds between the last of ``losses`` losses in a row and the next life."""
    if losses <= 1:
        return 0.0
    doublings = min(losses - 2, 32)  # a larger power would overflow one day
    return min(BACKOFF_S_MIN * 2.0**doublings, BACKOFF_S_MAX)


def one_line(text: str, chars_max: int = FAILURE_CHARS_MAX) -> str:
    """The text without line breaks, cut to ``chars_max`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= chars_max else f"{line[: chars_max - 3]}..."
