"""A client's knowledge of how fresh views are: the last report, when the client asked, and when it must ask again."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from upriver.errors import StaleView, UpriverError
from upriver.protocol.freshness import FreshnessReport
from upriver.protocol.lookups import ViewRoute

ASK_EVERY_S = 1.0
"""Seconds between two reports while lookups go on; another thread asks for the next."""
OLD_S = 5.0
"""Seconds after which a report is too old for an answer's metadata: a lookup waits for another one first."""
ASK_S_MAX = 0.25
"""Seconds that a lookup waits for a report that it can do without."""
COMMITS_MAX = 64
"""How many epochs' commit times a client remembers: the last that it heard of."""

EPOCH, COMMITTED_AT, AGE_S, SOURCES = (
    b"upriver.epoch",
    b"upriver.committed_at",
    b"upriver.age_s",
    b"upriver.sources",
)
"""Keys of the schema metadata of every answer; docs/internals/lookups.md explains their values."""


class AskFreshness(Protocol):
    """Asks the coordinator. Raises UpriverError if there is no answer in ``timeout`` seconds; ``None``: the client's
    usual timeout."""

    def __call__(self, timeout: float | None, epoch: int | None = None) -> "tuple[FreshnessReport, float | None]":
        """A report, and when ``epoch`` was committed, in seconds since 1970, if the coordinator knows."""


@dataclass(frozen=True, slots=True)
class ToldFreshness:
    """A report, and when the client asked for it, monotonic: since then, views can only be staler than it says."""

    report: FreshnessReport
    asked_at: float
    _of_tables: dict[tuple[str, ...], tuple[float | None, str | None]] = field(default_factory=dict)
    _ready: dict[tuple[str, ...], bool] = field(default_factory=dict)
    """Results of ``of`` and ``has_ready``, which every lookup calls."""

    def of(self, tables: tuple[str, ...]) -> tuple[float | None, str | None]:
        """The age of a view of these tables at ``asked_at``, and the state of their sources."""
        known = self._of_tables.get(tables)
        if known is None:
            known = self._of_tables[tables] = self.report.age_s(tables), self.report.sources(tables)
        return known

    def has_ready(self, tables: tuple[str, ...]) -> bool:
        """Whether the report knows all these tables, and none lacks anything. One without tables knows nothing, and
        says so of all."""
        known = self._ready.get(tables)
        if known is None:
            knows = not self.report.tables or all(table in self.report.tables for table in tables)
            known = self._ready[tables] = knows and self.report.lacks(tables) is None
        return known

    def age_s(self, route: ViewRoute, now: float) -> float | None:
        """The maximal age of an answer of the view to a later question; ``None`` if that is not known."""
        age_s, _ = self.of(route.tables)
        return None if age_s is None else age_s + (now - self.asked_at)


class KnownFreshness:
    """What a client knows. Usable by many threads. ask: asks the coordinator. clock: seconds, monotonic."""

    def __init__(self, ask: AskFreshness, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._told: ToldFreshness | None = None
        self._next_ask_at = 0.0
        self._asking = threading.Lock()
        """Held while another thread asks for a report beside the lookups."""
        self._commits: dict[int, bytes | None] = {}
        """When epochs were committed, as text. No lock guards it: at worst the client asks for one twice."""

    def heard(self, report: FreshnessReport, asked_at: float) -> ToldFreshness:
        """The coordinator has sent a report, perhaps with the routing."""
        told = ToldFreshness(report, asked_at)
        self._told = told
        self._next_ask_at = asked_at + ASK_EVERY_S
        return told

    def ask(self, timeout: float | None = None, epoch: int | None = None) -> ToldFreshness:
        """Ask now. epoch: the epoch to ask the commit time of. Raises UpriverError if there is no answer."""
        asked_at = self._clock()
        self._next_ask_at = asked_at + ASK_EVERY_S  # other threads do not ask meanwhile
        report, committed_at = self._ask(timeout, epoch)
        if epoch is not None:
            self._note_commit(epoch, committed_at)
        return self.heard(report, asked_at)

    def lacks(self, route: ViewRoute) -> str | None:
        """What the first table that the view reads lacks, if one is not ready."""
        if self.is_known_ready(route):
            return None
        return self.ask().report.lacks(route.tables)

    def is_known_ready(self, route: ViewRoute) -> bool:
        """Whether the last report says that all tables which the view reads are ready."""
        told = self._told
        return told is not None and told.has_ready(route.tables)

    def young(self, route: ViewRoute, max_age: float) -> ToldFreshness | None:
        """The last report, if answers to questions from now on are not older by it."""
        told = self._told
        return None if told is None or not self.is_young(told, route, max_age) else told

    def check_age(self, view: str, route: ViewRoute, max_age: float) -> ToldFreshness:
        """A report by which answers to questions from now on are not older. Raises StaleView if they may be."""
        told = self.young(route, max_age)
        if told is None:
            try:
                told = self.ask()
            except UpriverError as error:
                raise StaleView(f"view {view!r}: the app does not say how old an answer is: {error}") from error
        if not self.is_young(told, route, max_age):
            raise self.stale(view, route, max_age, told)
        return told

    def is_young(self, told: ToldFreshness, route: ViewRoute, max_age: float) -> bool:
        """Whether an answer to a later question is at most ``max_age`` old by now."""
        age_s = told.age_s(route, self._clock())
        return age_s is not None and age_s <= max_age

    def stale(self, view: str, route: ViewRoute, max_age: float, told: ToldFreshness) -> StaleView:
        """The error for an answer that is older than ``max_age``."""
        age_s = told.age_s(route, self._clock())
        old = "of an age that is not known" if age_s is None else f"{age_s:.1f} s old"
        cause = told.report.cause(route.tables)
        return StaleView(f"view {view!r}: an answer is {old}, and at most {max_age:g} s are allowed: {cause}")

    def must_ask(self, epoch: int, committed_at: float | None) -> bool:
        """Whether ``metadata`` would ask the coordinator, and wait for it."""
        if epoch and committed_at is None and epoch not in self._commits:
            return True
        now, told = self._clock(), self._told
        return now >= self._next_ask_at and (told is None or now >= told.asked_at + OLD_S)

    def keep_recent(self) -> None:
        """If it is time to, ask for a newer report, on another thread."""
        if self._clock() >= self._next_ask_at and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask_beside, name="upriver-freshness", daemon=True).start()

    def metadata(self, route: ViewRoute, epoch: int, committed_at: float | None) -> dict[bytes, bytes]:
        """The metadata of an answer's schema, as far as known: its epoch, when that was committed, how old the answer
        is at most, and the state of its sources. committed_at: the worker's; ``None`` if it does not know."""
        told = self._recent()
        metadata = {EPOCH: b"%d" % epoch}
        if epoch and (committed := self._commit(epoch, committed_at)) is not None:
            metadata[COMMITTED_AT] = committed
        if told is not None:
            age_s, sources = told.of(route.tables)
            if age_s is not None:
                metadata[AGE_S] = b"%.3f" % (age_s + self._clock() - told.asked_at)
            if sources is not None:
                metadata[SOURCES] = sources.encode()
        return metadata

    def _commit(self, epoch: int, committed_at: float | None) -> bytes | None:
        if epoch not in self._commits:
            if committed_at is None:  # the worker did not know
                self._ask_quietly(ASK_S_MAX, epoch)
            else:
                self._note_commit(epoch, committed_at)
        return self._commits.get(epoch)

    def _note_commit(self, epoch: int, committed_at: float | None) -> None:
        text = None if committed_at is None else datetime.fromtimestamp(committed_at, UTC).isoformat().encode()
        commits = {**self._commits, epoch: text}
        self._commits = dict(list(commits.items())[-COMMITS_MAX:])

    def _recent(self) -> ToldFreshness | None:
        """A report for an answer's metadata, not older than ``OLD_S``; ``None`` if the coordinator does not answer.
        When it is time, another thread asks for a newer one."""
        now, told = self._clock(), self._told
        is_old = told is None or now >= told.asked_at + OLD_S
        if now < self._next_ask_at:
            return None if is_old else told
        if is_old:
            return self._ask_quietly(ASK_S_MAX)
        self.keep_recent()
        return told

    def _ask_beside(self) -> None:
        try:
            self._ask_quietly(None)
        finally:
            self._asking.release()

    def _ask_quietly(self, timeout: float | None, epoch: int | None = None) -> ToldFreshness | None:
        try:
            return self.ask(timeout, epoch)
        except UpriverError:
            return None
