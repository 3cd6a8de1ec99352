"""Lookups of many threads of one client, asked as one.

A client's workers have no use for each of a hundred small lookups by itself, and neither has the client: a round trip,
and a call of a worker, cost about the same for one lookup and for twenty. So where more than a few are under way, those
that come wait for the round under way to end, and are the next round: one of their threads asks for all. The more
threads there are, the larger the rounds; who is alone waits for nobody. (Databases commit transactions in this way.)
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from upriver.client.asking import ANSWER_GRACE_S, Found, KeySet, Lookup, in_key_order
from upriver.client.joint import Joint
from upriver.client.keys import KeyColumns
from upriver.net.latch import Latch
from upriver.net.routing import ViewRoute

FREE_LOOKUPS_MAX = 4
"""Lookups under way at once that do not wait for a round."""
WAIT_S_MAX = 0.01
"""Seconds that a lookup waits for the round under way; after that it leads one itself."""
ROUND_LOOKUPS_MAX = 64
"""Lookups of a round."""
LOOKUP_KEYS_MAX = 1_000
"""Keys of a lookup that waits for a round; larger ones gain nothing by it."""
APART_S = 1.0
"""Seconds after a lookup was held up, by keys that were missing or moving, in which no lookup of the view waits for a
round: it would wait for others' keys."""


class FoundRows(NamedTuple):
    """The answer to a lookup. epoch: as of whose end the rows are; 0 for no keys. committed_at: when it was, in seconds
    since 1970; ``None`` if that is not known."""

    rows: pa.Table
    epoch: int
    committed_at: float | None


class _Kind(NamedTuple):
    """What the lookups of one round have in common."""

    view: str
    route: ViewRoute
    together: bool


class _Turn:
    """A lookup in a round, or waiting for one. Its thread is told once: that it has its answer, that it is to lead a
    round (``leads``), or, with neither, that it is to ask by itself. If it is told nothing in its time, it asks by
    itself, too: an interrupt may have ended whoever led."""

    __slots__ = ("answer", "is_told", "keys", "kind", "leads", "lookup")

    def __init__(self, lookup: Lookup, keys: KeyColumns) -> None:
        self.lookup = lookup
        self.keys = keys
        self.kind = _Kind(lookup.view, lookup.route, lookup.together)
        self.answer: FoundRows | None = None
        self.leads = False
        self.is_told = Latch()


class Rounds:
    """A client's. Usable by many threads.

    ask: finds the rows of keys, for one lookup or for several as one. Blocks. wait_s_max, clock: seconds.
    """

    def __init__(
        self,
        ask: Callable[[Lookup, KeySet], list[Found]],
        *,
        wait_s_max: float = WAIT_S_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._wait_s_max = wait_s_max
        self._clock = clock
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._lookups = 0
        """Under way, of whatever sort."""
        self._rounds = 0
        """Under way. While there is none, nobody waits for one."""
        self._waiting: dict[_Kind, list[_Turn]] = {}
        """In the order in which they came."""
        self._apart_until: dict[str, float] = {}
        """By view, monotonic."""

    def look_up(self, lookup: Lookup, keys: KeyColumns) -> FoundRows:
        """The rows of the keys, in the order in which the keys are first given, each key once.

        Raises what ``ask`` raises for this lookup by itself, whatever becomes of a round that it was in.
        """
        with self._lock:
            self._lookups += 1
            is_free = self._lookups <= FREE_LOOKUPS_MAX or not self._may_wait(lookup, keys)
            turn = None if is_free else self._queued(lookup, keys)
        try:
            answer = None if turn is None else self._with_others(turn)
            return answer or self._by_itself(lookup, keys)
        finally:
            with self._lock:
                self._lookups -= 1

    def _may_wait(self, lookup: Lookup, keys: KeyColumns) -> bool:
        if lookup.at_least is not None or not 0 < len(keys[0]) <= LOOKUP_KEYS_MAX:
            return False
        return self._apart_until.get(lookup.view, -math.inf) < self._clock()

    def _by_itself(self, lookup: Lookup, keys: KeyColumns) -> FoundRows:
        asked = KeySet.of(pa.RecordBatch.from_arrays(keys, schema=lookup.route.key_schema))
        if lookup.together and len(asked.hash64) < 2:
            lookup = replace(lookup, together=False)
        found = self._found(lookup, asked)
        return FoundRows(in_key_order(found, asked, lookup.route.schema), *_epoch_of(found))

    def _found(self, lookup: Lookup, asked: KeySet) -> list[Found]:
        found = self._ask(lookup, asked)
        if any(part.answered.held_up for part in found):
            with self._lock:
                self._apart_until[lookup.view] = self._clock() + APART_S
        return found

    # Rounds

    def _queued(self, lookup: Lookup, keys: KeyColumns) -> _Turn:
        """A lookup that waits now, or leads a round if none is under way. With the lock held."""
        turn = _Turn(lookup, keys)
        self._waiting.setdefault(turn.kind, []).append(turn)
        if not self._rounds:
            self._begin(turn)
        return turn

    def _begin(self, leader: _Turn) -> None:
        """Begin a round, of which nobody is known yet but the leader, which waits no more. With the lock held."""
        waiting = self._waiting[leader.kind]
        waiting.remove(leader)
        if not waiting:
            del self._waiting[leader.kind]
        self._rounds += 1
        leader.leads = True

    def _with_others(self, turn: _Turn) -> FoundRows | None:
        """The answer that a round has for a lookup, if it has."""
        try:
            if not turn.leads and not turn.is_told.wait(self._wait_s_max) and not self._leads_now(turn):
                # A leader is as patient as its hastiest company. One that is gone would be waited for without end.
                turn.is_told.wait(turn.lookup.give_up_at + ANSWER_GRACE_S - self._clock())
        except BaseException:  # an interrupt: the others shall not wait for this thread
            self._leads_now(turn)
            if turn.leads:
                self._end([turn])
            raise
        if turn.leads:
            self._lead(turn)
        return turn.answer

    def _leads_now(self, turn: _Turn) -> bool:
        """Whether it has waited in vain so far, and leads a round now."""
        with self._lock:
            if turn not in self._waiting.get(turn.kind, ()):
                return False
            self._begin(turn)
            return True

    def _lead(self, leader: _Turn) -> None:
        """Ask for all of a round."""
        company = [leader]
        try:
            company += self._company(leader.kind)
            if len(company) == 1:
                leader.answer = self._by_itself(leader.lookup, leader.keys)
            else:
                with suppress(Exception):  # each finds out by itself what it is, and what it means to it
                    self._answer_all(company)
        finally:
            self._end(company)

    def _company(self, kind: _Kind) -> list[_Turn]:
        """Those that wait by the time that their leader's thread runs, as far as there is room: they wait no more."""
        with self._lock:
            waiting = self._waiting.pop(kind, [])
            if len(waiting) >= ROUND_LOOKUPS_MAX:
                self._waiting[kind] = waiting[ROUND_LOOKUPS_MAX - 1 :]
            return waiting[: ROUND_LOOKUPS_MAX - 1]

    def _answer_all(self, company: Sequence[_Turn]) -> None:
        hasty = min((turn.lookup for turn in company), key=lambda lookup: lookup.give_up_at)
        joint = Joint.of([turn.keys for turn in company], hasty.route.key_schema)
        if joint is None:
            return
        found = self._found(hasty, joint.asked)
        epoch, committed_at = _epoch_of(found)
        for turn, rows in zip(company, joint.deal(found, hasty.route.schema), strict=True):
            turn.answer = FoundRows(rows, epoch, committed_at)

    def _end(self, company: list[_Turn]) -> None:
        """The next round begins, unless there is another one under way, and whoever was in this one goes on."""
        leader = None
        with self._lock:
            self._rounds -= 1
            if self._waiting and not self._rounds:
                leader = next(iter(self._waiting.values()))[0]
                self._begin(leader)
        if leader is not None:
            leader.is_told.open()
        for turn in company[1:]:
            turn.is_told.open()


def _epoch_of(found: Sequence[Found]) -> tuple[int, float | None]:
    """The lowest epoch of the answers, and when it was committed."""
    if not found:
        return 0, None
    oldest = min((part.answered for part in found), key=lambda answered: answered.epoch)
    return oldest.epoch, oldest.committed_at
