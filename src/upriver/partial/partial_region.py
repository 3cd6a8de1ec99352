"""PartialRegion: a region that keeps only the keys that lookups have asked for (docs/internals/partial.md).

A key is missing until a lookup asks for it. Then it is pending, while an *upquery* reads its rows out of the lake. Then
it is present, and kept up to date like any key of a full region, until it is evicted. An upquery reads through the
epoch that is open when it begins. So a row of a pending key is either read by its upquery, or it is of a later epoch
and retained until the answer has come.

Rows of present keys are not applied as they come, but when they are read: rows of several epochs together cost little
more than those of one epoch. So a region that lags has less to do for each epoch. If the rows cannot be applied, their
keys are missing again, and a lookup of such a key says what is wrong with it.

One upquery is read at a time, unless it takes long; keys that lookups ask for meanwhile wait for the next one, all
together. The region keeps nothing of a missing key, so it applies the answer's rows as they are, some at a time. The
keys are present once all rows are in. The next upquery does not wait for that, so a long answer holds up no other key.
If the view cannot be computed from one of the rows, all state of the keys is dropped again. So that row spoils the
answer of its key, and nothing else.

WantedKeys: the keys that the next upqueries read.

Unfillable: the keys of a partial view whose last fill failed. Each of them is missing; a lookup of it tries again. They
are only counted.

KeysToRead: a read of the lake by key, apart from slices of epochs.

Filling: an upquery's answer on its way into a region, some rows at a time.

Its keys are pending until the last row is in. If the view cannot be computed from one of the rows, all state of the
keys that it came with is dropped again. These are then filled in halves, until the key with the bad row is alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.engine.bad_rows import SetAside
from upriver.engine.batch import Batch, Outgoing
from upriver.engine.clock import BEFORE_ALL
from upriver.engine.operators.operator import concatenated
from upriver.engine.operators.view import LongRead
from upriver.engine.region import FullRegionState
from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UpriverError
from upriver.hashing import Hashes
from upriver.ids import Channel, Epoch
from upriver.partial.presence import PRESENT, LookupClock, Numbers, Presence
from upriver.partial.rules import UpqueryRules
from upriver.partial.waiting_rows import RETAINED_ROWS_MAX, Retained, RetainedRows, RowsBehind
from upriver.state.columns import cells_of
from upriver.state.vectors import NO_KEYS, Mask, Positions, contains, key_set
from upriver.vnodes import vnode_range, vnodes_of


class WantedKeys:
    """Keys, each once. They are sorted when they are read, not whenever a key comes: many may come one by one while an
    upquery is under way."""

    def __init__(self) -> None:
        self._in_order: Hashes = NO_KEYS
        self._more: list[Hashes] = []
        """Keys added since ``_in_order`` was sorted; some may be in it already."""

    def __len__(self) -> int:
        """How many there are, or more: a key that came several times since the last read counts each time."""
        return len(self._in_order) + sum(map(len, self._more))

    @property
    def keys(self) -> Hashes:
        """All of them, ascending."""
        if self._more:
            self._in_order, self._more = np.unique(np.concatenate([self._in_order, *self._more])), []
        return self._in_order

    def add(self, keys: Hashes) -> None:
        if len(keys):
            self._more.append(keys)

    def among(self, keys: Hashes) -> Mask:
        """Which of these are wanted."""
        return contains(self.keys, keys)

    def take(self, keys_max: int) -> Hashes:
        """Remove and return the first ``keys_max`` keys."""
        keys = self.keys
        self._in_order = keys[keys_max:].copy()  # a slice, of none even, would keep all of them in memory
        return keys[:keys_max]

    def remove(self, keys: Hashes) -> None:
        """Remove these keys."""
        self._in_order = np.setdiff1d(self.keys, keys)


UNFILLABLE_KEYS_MAX = 65_536
"""Keys that are remembered; the count goes no higher."""


@dataclass(frozen=True, slots=True)
class UnansweredKeys:
    """Keys that have no answer, and why."""

    keys: Hashes
    error: UpriverError

    @classmethod
    def because(cls, keys: Hashes, error: Exception) -> "UnansweredKeys":
        """The keys with this error; an error of another package becomes a ProtocolError."""
        if isinstance(error, UpriverError):
            return cls(keys, error)
        return cls(keys, ProtocolError(error_text(error)))


class Unfillable:
    """Of one partial view at one worker."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, unanswered: Sequence[UnansweredKeys]) -> None:
        for of_one in unanswered:
            room = max(0, UNFILLABLE_KEYS_MAX - len(self._keys))
            self._keys.update(of_one.keys[:room].tolist())

    def filled(self, keys: Hashes) -> None:
        """These keys are present."""
        if self._keys:
            self._keys.difference_update(keys.tolist())

    def leave(self, vnode: int, vnodes: int) -> None:
        """The vnode's keys are kept elsewhere from now on. vnodes: the lake's."""
        if self._keys:
            keys = np.fromiter(self._keys, np.uint64, len(self._keys))
            self._keys.difference_update(keys[vnodes_of(keys, vnodes) == vnode].tolist())


@dataclass(frozen=True, slots=True)
class KeysToRead:
    """All rows on a lake edge of these keys (hash64, ascending, each once), of the epochs after ``after`` up to and
    including ``through``: sorted by hash64, and those of one key in order of epoch and run."""

    channel: Channel
    keys: Hashes
    after: Epoch
    through: Epoch


class Filling:
    """number: the upquery's. keys: that the rows are of, ascending and unique. through: the last epoch that was read.
    clock: its instant; ``None`` if that is not known."""

    def __init__(
        self,
        number: int,
        keys: Hashes,
        rows: Sequence[tuple[int, Batch]],
        through: Epoch,
        clock: int | None,
    ) -> None:
        """rows: by port, in order."""
        self.clock = clock
        self.number = number
        self.keys = keys
        self.through = through
        self.unanswered: list[UnansweredKeys] = []
        """Keys whose rows the view cannot be computed from."""
        self._ports = tuple(sorted(rows, key=lambda of_port: (len(of_port[1]), -of_port[0])))
        """The fewest rows first: a row never meets very many rows of another side of a join in one step. Of equal sides
        the right one first: a left join puts no left row out alone."""
        self._groups = [keys] if len(keys) else []
        """Groups of keys that are filled together: the last group now, the others later."""
        self._port = self._row = 0
        """Where the rows begin that the last group still needs."""

    @property
    def group(self) -> Hashes:
        """The keys that are being filled."""
        return self._groups[-1]

    @property
    def has_all_of_group(self) -> bool:
        """Whether all rows of the group have been taken."""
        return self._port == len(self._ports)

    @property
    def left(self) -> int:
        """At least how many rows ``take`` still looks through; 0 if there is nothing more to do."""
        if not self._groups:
            return 0
        rows = sum(len(batch) for _, batch in self._ports)
        seen = sum(len(batch) for _, batch in self._ports[: self._port]) + self._row
        return rows - seen + rows * (len(self._groups) - 1)

    def take(self, rows_max: int) -> tuple[int, Batch] | None:
        """The next rows of one port, the group's among them; ``None`` if no group needs any more."""
        while self._groups:
            while self._port < len(self._ports):
                port, batch = self._ports[self._port]
                start, end = self._row, min(self._row + rows_max, len(batch))
                self._port, self._row = (self._port, end) if end < len(batch) else (self._port + 1, 0)
                if start < end:
                    return port, batch.slice(start, end)
            self._groups.pop()
            self._port = self._row = 0
        return None

    def spoil(self, error: Exception) -> None:
        """One of the group's rows is bad: begin with its halves. There must be no state of its keys."""
        keys = self._groups.pop()
        self._port = self._row = 0
        if len(keys) == 1:
            self.unanswered.append(UnansweredKeys.because(keys, error))
            return
        half = len(keys) // 2
        self._groups += [keys[half:], keys[:half]]


UPQUERY_KEYS_MAX = 65_536
"""Keys of one upquery; more wait for the next one."""
ANSWER_ROWS_MAX = 32_768
"""Rows of an upquery's answer that are taken in with it; more follow, some at a time."""
UPQUERIES_MAX = 4
"""Upqueries that are read, and answers that are taken in, at the same time."""
HOT_KEYS_MAX = 1_024
"""Keys of one slice that a new owner fills at once, under ``lazy``."""


@dataclass(frozen=True, slots=True)
class Upquery:
    """A read of the lake: all rows of these keys (ascending, unique), through this epoch, or further. number: its
    name."""

    number: int
    keys: Hashes
    through: Epoch


class UpqueriesUnderWay:
    """The upqueries of one region that are read."""

    __slots__ = ("_last", "_long", "_under_way")

    def __init__(self) -> None:
        self._under_way: dict[int, Upquery] = {}
        """By number."""
        self._long: set[int] = set()
        """The numbers of those that take long."""
        self._last = PRESENT
        """The number of the last upquery."""

    def __len__(self) -> int:
        return len(self._under_way)

    def __iter__(self) -> Iterator[Upquery]:
        return iter(self._under_way.values())

    @property
    def all_take_long(self) -> bool:
        return self._long.issuperset(self._under_way)

    def begin(self, keys: Hashes, through: Epoch) -> Upquery:
        self._last += 1
        upquery = self._under_way[self._last] = Upquery(self._last, keys, through)
        return upquery

    def takes_long(self, number: int) -> None:
        """Reading this upquery takes long."""
        if number in self._under_way:
            self._long.add(number)

    def end(self, number: int) -> Hashes:
        """An upquery is read, or cannot be; returns its keys."""
        self._long.discard(number)
        return self._under_way.pop(number).keys


class PartialRegion:
    """One worker's share of a region that only lake edges feed. It keeps the keys that lookups ask for."""

    def __init__(
        self, build: Callable[[], FullRegionState], rules: UpqueryRules, retained_rows_max: int = RETAINED_ROWS_MAX
    ) -> None:
        """build: makes an empty region of the plan. retained_rows_max: see ``RETAINED_ROWS_MAX``."""
        self._rules = rules
        self._region = build()
        self._presence = Presence()
        self._wanted = WantedKeys()
        """Keys that were missing when they were asked for."""
        self._under_way = UpqueriesUnderWay()
        self._fillings: list[Filling] = []
        """Answers of earlier upqueries, until all rows are taken in; the oldest first."""
        self._retained = RetainedRows(retained_rows_max)
        self._unfillable = Unfillable()
        self._behind = RowsBehind()
        self._clock = LookupClock()

    # Rows -------------------------------------------------------------------------------------------------------------

    def take(self, epoch: Epoch, port: int, batch: Batch) -> None:
        """Take in rows of one input. Rows of present keys wait for ``catch_up``, rows of pending keys for their
        upquery; rows of missing keys are dropped."""
        look = self._presence.look(batch.hash64)
        new = ~look.missing & (look.through < epoch) if self._rules.partial_each_row_once else ~look.missing
        pending = new & look.pending
        if pending.any() and self._rules.partial_pending_keys_retain:
            self._retain(Retained(epoch, port, batch.filtered(pending)))
        present = new & look.present
        if not self._rules.partial_missing_is_not_empty:
            present |= look.missing
        if present.any():
            self._behind.add(port, batch.filtered(present))

    @property
    def is_behind(self) -> bool:
        """Whether rows wait to be applied."""
        return bool(self._behind)

    @property
    def must_catch_up(self) -> bool:
        """Whether more rows wait than ``BEHIND_ROWS_MAX``."""
        return self._behind.are_due

    def is_behind_with(self, hash64: Hashes) -> bool:
        """Whether rows of some of these keys wait."""
        return self._behind.has_some_of(hash64)

    def catch_up(self) -> None:
        """Apply all rows that wait. If that is impossible, their keys are missing from now on."""
        behind = self._behind.take()
        try:
            for port in sorted({port for port, _ in behind}):
                self._region.apply(port, concatenated([batch for of, batch in behind if of == port]))
            self._region.try_again(key_set(*(batch.hash64 for _, batch in behind)))
        except Exception:  # of any class: an upquery finds the key with the bad row
            self.drop(key_set(*(batch.hash64 for _, batch in behind)))

    def _forget(self, keys: Hashes) -> None:
        """Keep neither state nor rows of these keys."""
        self._behind.drop(keys)
        self._region.drop(keys)

    def _retain(self, rows: Retained) -> None:
        self._retained.add(rows)
        if self._retained.are_too_many:
            pending = np.sort(self._presence.pending())
            self._abandon(pending)
            self._wanted.add(pending)
            self._retained.clear()

    def due(self, clock: int) -> Hashes:
        return self._region.due(clock)

    def advance(self, clock: int) -> None:
        """The clock gets to this instant. If rows cannot be put out anew, their keys are missing from now on."""
        due = self._region.due(clock)
        try:
            self._region.try_again(self._region.advance_keys(clock))
        except Exception:  # of any class, as in ``catch_up``
            self.drop(due)

    def show_due(self) -> None:
        self.advance(BEFORE_ALL)

    def left_out(self) -> Sequence[SetAside]:
        return self._region.left_out()

    @property
    def gathered(self) -> int:
        return self._region.gathered

    @property
    def waiting(self) -> int:
        return self._region.waiting

    @property
    def unsettled(self) -> int:
        return self._region.unsettled

    def settle(self, rows_max: int) -> int:
        return self._region.settle(rows_max)

    def drain(self, rows_max: int) -> Sequence[Outgoing]:
        return self._region.drain(rows_max)

    # Upqueries --------------------------------------------------------------------------------------------------------

    def lacks(self, hash64: Hashes) -> bool:
        """Whether some of these keys are not present."""
        return not bool(self.present(hash64).all())

    def present(self, hash64: Hashes) -> Mask:
        """Which of these keys are present."""
        return self._presence.look(hash64).present

    def awaited(self, hash64: Hashes) -> Mask:
        """Which of these keys are pending, or wanted for a later upquery."""
        return self._presence.look(hash64).pending | self._wanted.among(hash64)

    def want(self, hash64: Hashes) -> None:
        """A lookup waits for these keys: the next upquery reads those that are missing."""
        look = self._presence.look(hash64)
        self._clock.want(self._presence, hash64, int(np.count_nonzero(look.missing)))
        self._wanted.add(hash64[look.missing])

    @property
    def wanted(self) -> int:
        """About how many keys wait for the next upqueries: a key may count more than once."""
        return len(self._wanted)

    @property
    def puts_off(self) -> bool:
        """Whether keys are wanted, and an upquery may begin."""
        return bool(self._wanted) and self._may_begin

    @property
    def _may_begin(self) -> bool:
        """An upquery of twenty keys costs about as much as one of a single key. So the next one waits for those under
        way, unless they take long."""
        return self._under_way.all_take_long and len(self._under_way) + len(self._fillings) < UPQUERIES_MAX

    def overtake(self, number: int) -> None:
        """Reading this upquery takes long: others may begin."""
        self._under_way.takes_long(number)

    def upquery(self, through: Epoch, keys_max: int = UPQUERY_KEYS_MAX) -> Upquery | None:
        """Begin an upquery, if keys are wanted and it may. through: the epoch that is open, or the last one. keys_max:
        how many keys may be filled."""
        while self._may_begin and self._wanted and keys_max:
            keys = self._wanted.take(min(keys_max, UPQUERY_KEYS_MAX))
            keys = keys[self._presence.look(keys).missing]  # state may have come from a peer meanwhile
            if len(keys):
                return self._begin(keys, through)
        return None

    def _begin(self, keys: Hashes, through: Epoch) -> Upquery:
        upquery = self._under_way.begin(keys, through)
        self._presence.put(keys, upquery.number, through, self._clock.tick())
        return upquery

    def answer(
        self,
        number: int,
        rows: Sequence[tuple[int, Batch]],
        through: Epoch,
        rows_max: int = ANSWER_ROWS_MAX,
        clock: int | None = None,
    ) -> list[UnansweredKeys] | None:
        """The upquery's rows, by port, in order. As ``fill``, with the first of them. Another upquery may begin.

        through: the last epoch that was read. clock: its instant, if it is known.
        """
        keys = self._keys_of_answer(self._under_way.end(number), number)
        filling = Filling(number, keys, rows, through, clock if self._rules.partial_clock_of_the_answer else None)
        self._raise_clock(filling, keys)
        self._fillings.append(filling)
        return self._fill(filling, rows_max)

    def _raise_clock(self, filling: Filling, keys: Hashes) -> None:
        """partial.clock_of_the_answer"""
        if filling.clock is not None:
            self._region.raise_clock(keys, filling.clock)

    def _keys_of_answer(self, keys: Hashes, number: int) -> Hashes:
        return self._still_asked(keys, number) if self._rules.partial_own_upquery_only else keys

    @property
    def unfilled(self) -> int:
        """About how many rows of an answer are still to be taken in by ``fill``."""
        return sum(filling.left for filling in self._fillings)

    @property
    def half_filled(self) -> Hashes:
        """The keys, ascending, whose rows may be in only in part: they are pending."""
        return key_set(*(self._still_asked(filling.keys, filling.number) for filling in self._fillings))

    def fill(self, rows_max: int) -> list[UnansweredKeys] | None:
        """Take in about ``rows_max`` rows of the oldest answer. After the last row its keys are present, retained rows
        included.

        Returns ``None`` while rows are left, then the keys whose rows the view cannot be computed from. They are
        missing. So are keys with a retained row that cannot be applied: another upquery finds the bad row's key.
        """
        return self._fill(self._fillings[0], rows_max)

    def _fill(self, filling: Filling, rows_max: int) -> list[UnansweredKeys] | None:
        left = rows_max
        while left > 0 and (taken := filling.take(left)) is not None:
            port, batch = taken
            left -= len(batch)
            keys = self._keys_of_answer(filling.group, filling.number)
            mine = _rows_of(keys, batch)
            try:
                if len(mine):
                    self._region.apply(port, mine)
                if filling.has_all_of_group:
                    self._region.try_again(keys)
            except Exception as error:  # of any class: it is about some of these keys
                self._region.drop(keys)  # there was nothing of them before
                self._raise_clock(filling, keys)
                filling.spoil(error)
        if filling.left and not self._rules.partial_whole_keys_only:
            keys = self._keys_of_answer(filling.keys, filling.number)
            self._presence.put(keys, PRESENT, filling.through, self._clock.tick())
        return None if filling.left else self._filled(filling)

    def _filled(self, filling: Filling) -> list[UnansweredKeys]:
        """All rows of the answer are in."""
        unanswered = [each for each in filling.unanswered if len(self._still_asked(each.keys, filling.number))]
        self._presence.drop(key_set(*(each.keys for each in unanswered)))
        bad = key_set(*(each.keys for each in filling.unanswered))
        keys = self._keys_of_answer(filling.keys, filling.number)
        keys = keys[~contains(bad, keys)]
        self._presence.put(keys, PRESENT, filling.through, self._clock.tick())
        self._unfillable.filled(keys)
        self._fillings.remove(filling)
        self._apply_retained(keys)
        self._unfillable.add(unanswered)
        return unanswered

    def _apply_retained(self, keys: Hashes) -> None:
        for kept in self._retained.release(self._presence):
            look = self._presence.look(kept.batch.hash64)
            present = look.present & np.isin(kept.batch.hash64, keys)
            if self._rules.partial_each_row_once:
                present &= look.through < kept.epoch
            if present.any():
                rows_of_present = kept.batch.filtered(present)
                try:
                    self._region.apply(kept.port, rows_of_present)
                except Exception:  # of any class
                    self.drop(key_set(rows_of_present.hash64))
        try:
            self._region.try_again(keys)
        except Exception:  # of any class
            self.drop(keys)

    def refuse(self, number: int, error: UpriverError) -> list[UnansweredKeys]:
        """The upquery cannot be answered: its keys are missing. Returns the keys that waited for it."""
        keys = self._still_asked(self._under_way.end(number), number)
        self._presence.drop(keys)
        self._retained.release(self._presence)
        unanswered = [UnansweredKeys(keys, error)]
        self._unfillable.add(unanswered)
        return unanswered

    def _still_asked(self, keys: Hashes, number: int) -> Hashes:
        """The keys of an upquery that still wait for it (partial.own_upquery_only). Others were given up since, or came
        from a peer."""
        still: Hashes = keys[self._presence.look(keys).upquery == number]
        return still

    def _abandon(self, pending: Hashes) -> None:
        """These keys wait for no upquery any more: drop the rows of an answer that are already in. (A bad key has no
        rows in.)"""
        self._presence.drop(pending)
        if self._fillings:
            self._region.drop(pending)

    def through(self, hash64: Hashes) -> Numbers:
        """For each of these keys, the last epoch that its upquery has read; no meaning for a key that is not present.
        The key's state may be ahead of other keys' up to that epoch."""
        return self._presence.look(hash64).through

    # Reads ------------------------------------------------------------------------------------------------------------

    def lookup(self, hash64: Hashes, keys: pa.RecordBatch, rows_max: int | None = None) -> pa.RecordBatch:
        """As :meth:`Region.lookup`, for keys that are all present and have no waiting rows."""
        self._clock.read(self._presence, hash64)
        return self._region.lookup(hash64, keys, rows_max)

    def lookup_each(
        self, hash64: Hashes, keys: pa.RecordBatch, ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        """As :meth:`Region.lookup_each`, for such keys."""
        self._clock.read(self._presence, hash64)
        return self._region.lookup_each(hash64, keys, ends, rows_max)

    def long_read(self, hash64: Hashes, keys: pa.RecordBatch) -> LongRead:
        """As :meth:`Region.long_read`, for such keys."""
        self._clock.read(self._presence, hash64)
        return self._region.long_read(hash64, keys)

    def scan(self) -> pa.Table:
        """The rows of the present keys, and those rows of ``half_filled`` keys that are in, sorted by hash64. Raises
        RowError if an output expression fails."""
        self._check_caught_up()
        return self._region.scan()

    def _check_caught_up(self) -> None:
        if self._behind:
            raise ProtocolError("a region is read whole, or gives keys away, while it is behind")

    def stats(self) -> Mapping[str, int]:
        """As :meth:`Region.stats`, and numbers of keys. present, pending: now. unfillable: keys whose last fill
        failed. The others: as :meth:`LookupClock.stats`."""
        stats = self._region.stats()
        pending = len(self.half_filled)
        pending += sum(len(self._still_asked(each.keys, each.number)) for each in self._under_way)
        return {
            **stats,
            "bytes": stats["bytes"] + self._presence.nbytes,
            "live_bytes": stats["live_bytes"] + self._presence.live_nbytes,
            "present": self._presence.known - pending,
            "pending": pending,
            **self._clock.stats(),
            "unfillable": len(self._unfillable),
        }

    # Evictions --------------------------------------------------------------------------------------------------------

    def evict(self, keys: Hashes) -> int:
        """Evict these keys (ascending, unique); returns how many were present."""
        present = keys[self._presence.look(keys).present]
        self._forget(present)
        self._presence.drop(present)
        self._clock.evict(len(present))
        return len(present)

    def evict_oldest(self, keys_max: int, waiting: Sequence[Hashes]) -> int:
        """Evict up to ``keys_max`` keys, roughly the least recently read. waiting: keys that lookups wait for, which
        stay (partial.asked_keys_stay). Returns how many were evicted."""
        stay = waiting if self._rules.partial_asked_keys_stay else ()
        oldest = self._clock.oldest(self._presence, keys_max, stay)
        return self.evict(oldest) if len(oldest) else 0

    # Moves ------------------------------------------------------------------------------------------------------------

    def give_up_vnode(self, vnode: int, vnodes: int) -> bool:
        """The vnode's keys begin to move: a lookup that waits here for a key that is not present must ask the new owner
        (partial.ask_where_the_key_goes). vnodes: the lake's. Returns whether there was such a key."""
        wanted = self._wanted.keys
        mine = wanted[vnodes_of(wanted, vnodes) == vnode]
        self._unfillable.leave(vnode, vnodes)
        return self.give_up(np.union1d(self._presence.pending(*vnode_range(vnode, vnodes)), mine))

    def give_up(self, keys: Hashes) -> bool:
        """Give up those of these keys (ascending, unique) that are pending or wanted: they are missing. Returns whether
        there was any."""
        pending = keys[self._presence.look(keys).pending]
        unsettled = bool(len(pending) or self._wanted.among(keys).any())
        if self._rules.partial_ask_where_the_key_goes:
            self._abandon(pending)
            self._wanted.remove(keys)
        return unsettled

    def leave(self, vnode: int, vnodes: int) -> Hashes:
        """Evict the vnode's keys; their new owner fills them. Returns the most recently read, which the new owner fills
        before a lookup asks for them."""
        keys = self.keys_of(vnode, vnodes)
        hot = self._presence.newest(keys, HOT_KEYS_MAX)
        self.evict(keys)
        return hot

    def keys_of(self, vnode: int, vnodes: int) -> Hashes:
        """The hash64 of all present keys of that vnode, ascending. vnodes: the lake's."""
        return np.sort(self._presence.present(*vnode_range(vnode, vnodes)))

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """As :meth:`Region.collect`. Keys that are not present have no state."""
        self._check_caught_up()
        return (self._presence.collect(keys), *self._region.collect(keys[~self._presence.look(keys).pending]))

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """As :meth:`Region.install`."""
        presence, *rest = state
        keys = np.sort(cells_of(presence.column("hash64")))
        self._abandon(keys[self._presence.look(keys).pending])
        self._region.install(tuple(rest))
        self._presence.install(presence, self._clock.tick())

    def drop(self, keys: Hashes) -> None:
        """As :meth:`Region.drop`: these keys are missing from now on."""
        self._forget(keys)
        self._presence.drop(keys)


def _rows_of(keys: Hashes, batch: Batch) -> Batch:
    """The rows of these keys (ascending, unique): nearly always all rows of the batch."""
    return batch.filtered(contains(keys, batch.hash64))
