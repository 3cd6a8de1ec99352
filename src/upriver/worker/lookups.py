"""A worker's lookups: a client asks one worker, the workers with the keys' state answer, and the first one gathers the
parts; rules worker.wait_for_replay and worker.own_vnodes_only.

Also the checks whether all keys of a lookup are kept here for certain, and as of the end of one epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import pyarrow as pa

from upriver.engine.batch import one_batch
from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UnknownView, UpriverError, WrongOwner
from upriver.hashing import Hashes
from upriver.ids import Epoch, WorkerId
from upriver.protocol.peers import PeerLookup, PeerLookupAnswered, PeerLookupGivenUp, PeerLookupRefused
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
    Answer,
    AnswerTogether,
    LookupAsked,
    LookupGivenUp,
    LookupsAsked,
    Refuse,
)
from upriver.state.columns import taken
from upriver.state.pair_index import ManyMembers
from upriver.state.vectors import Mask, Positions, true_at
from upriver.vnodes import vnodes_of
from upriver.worker.long_answers import LongAnswers
from upriver.worker.migrators import maps_of
from upriver.worker.peers import KnownPeers, StepOutput
from upriver.worker.progress import EpochProgress
from upriver.worker.regions import Regions
from upriver.worker.shard import Shard
from upriver.worker.upqueries import Upqueries

LOOKUPS_WAITING_MAX = 10_000
"""Lookups of one flow that wait for an epoch or for keys at one worker; one more is refused."""


@dataclass(slots=True)
class PendingLookup:
    """A lookup that a client has sent to this worker. left: keys without an answer. together: all parts must be as of
    one epoch. epoch: the lowest of the parts. relayed: whether a peer had some of the keys. held_up: whether some of
    those here were not present, or about to move."""

    view: str
    left: int
    parts: list[pa.RecordBatch]
    together: bool
    epoch: Epoch | None = None
    relayed: bool = False
    held_up: bool = False


@dataclass(frozen=True, slots=True)
class WaitingLookup:
    """A lookup whose keys belong here, and that waits for a later epoch or for keys that are not present."""

    view: str
    question: PeerLookup


class Lookups:
    """The lookups that clients have sent here, and those that wait here for an epoch or for their keys."""

    def __init__(
        self,
        regions: Regions,
        progress: EpochProgress,
        peers: KnownPeers,
        upqueries: Upqueries,
        output: StepOutput,
        rules: Rules,
        *,
        serve_from: Epoch,
        answer_rows_max: int | None,
    ) -> None:
        """serve_from: the epoch from which on lookups are answered. answer_rows_max: rows of a lookup that are read in
        one go; ``None``: any."""
        self._asked: dict[int, PendingLookup] = {}
        """All and only the lookups that clients have sent here and that have no answer, by ticket."""
        self._waiting: list[WaitingLookup] = []
        """All and only the lookups that wait here for a later epoch, or for keys that are not present."""
        self._long_answers = LongAnswers(regions, progress, rules)
        self._regions = regions
        self._progress = progress
        self._peers = peers
        self._upqueries = upqueries
        self._output = output
        self._rules = rules
        self._serve_from = serve_from
        self._answer_rows_max = answer_rows_max

    @property
    def waiting(self) -> int:
        """The number of lookups that wait here."""
        return len(self._waiting)

    @property
    def unread(self) -> int:
        """About how many rows of long answers are not read yet."""
        return self._long_answers.unread

    def has_asked(self, ticket: int) -> bool:
        """Whether a client has sent this lookup here, and it has no answer."""
        return ticket in self._asked

    def waiting_hashes(self, view: str) -> list[Hashes]:
        """hash64 of the keys of each lookup of the view that waits here."""
        return [waiting.question.hash64 for waiting in self._waiting if waiting.view == view]

    def take_all(self) -> list[WaitingLookup]:
        """Remove and return all lookups that wait here or are being read."""
        waiting = self._waiting + [WaitingLookup(long.view, long.question) for long in self._long_answers.take_all()]
        self._waiting = []
        return waiting

    def _all_stay(self, shard: Shard, hash64: Hashes) -> bool:
        """Whether all of these keys are kept here, and not about to move. While keys move, a worker that has lost a
        peer keeps no key for certain (worker.own_vnodes_only)."""
        return bool(self._stay(shard, hash64).all())

    def _stay(self, shard: Shard, hash64: Hashes) -> Mask:
        """Which of these keys are kept here, and not about to move."""
        maps = maps_of(shard.migrator.phase)
        if not maps or (len(maps) > 1 and not self._peers.can_ask):
            return np.zeros(len(hash64), np.bool_)
        vnodes = vnodes_of(hash64, len(maps[0].owners))
        stay = [vnode_map.owners_of(vnodes) == self._regions.me for vnode_map in maps]
        all_stay: Mask = stay[0] if len(stay) == 1 else np.logical_and.reduce(stay)
        return all_stay

    def _are_ahead(self, shard: Shard, hash64: Hashes) -> bool:
        """Whether some of these present keys were filled up to a later epoch than this worker reflects."""
        return shard.partial is not None and bool((shard.partial.through(hash64) > self._progress.reflected).any())

    def answered_together(self, event: LookupsAsked) -> tuple[AnswerTogether | None, Sequence[LookupAsked]]:
        """The answer to all lookups that wait for nothing, as nearly always, by one pass over the view; and the other
        lookups."""
        if not self._may_answer(event):
            return None, each_lookup(event)
        keys, hash64, tickets = event.keys, event.hash64, tickets_of(event)
        ends = np.array([len(hash64)])
        if len(event.lookups) > 1:
            ends = np.cumsum([lookup.keys for lookup in event.lookups])
        at_once = self._at_once(event, ends)
        if at_once is not None:
            lengths = np.diff(ends, prepend=0)
            places = true_at(np.repeat(at_once, lengths))
            keys, hash64, ends = taken(keys, places), hash64[places], lengths[at_once].cumsum()
            tickets = (event.ticket + true_at(at_once)).tolist()
        if not len(tickets):
            return None, each_lookup(event)
        shard = self._regions.shards[event.view]
        try:
            rows, ends = self._rows_of_each(shard, hash64, keys, ends)
        except Exception:
            return None, each_lookup(event)  # each is refused, or has a long answer
        answer = AnswerTogether(
            tickets=tickets, rows=rows, ends=ends, epoch=self._progress.reflected, version=shard.version
        )
        return answer, () if at_once is None else each_lookup(event, at_once)

    def _rows_of_each(
        self, shard: Shard, hash64: Hashes, keys: pa.RecordBatch, ends: Positions
    ) -> tuple[pa.RecordBatch, Positions]:
        if len(ends) > 1:
            return shard.region.lookup_each(hash64, keys, ends, self._answer_rows_max)
        rows = shard.region.lookup(hash64, keys, self._answer_rows_max)
        return rows, np.array([rows.num_rows])

    def _may_answer(self, event: LookupsAsked) -> bool:
        """Whether any lookup of the view may be answered at once."""
        view, regions = event.view, self._regions
        if self._peers.has_left or view not in regions.views or not event.keys.schema.equals(regions.views[view]):
            return False
        return not self._rules.worker_wait_for_replay or self._progress.reflected >= self._serve_from

    def _at_once(self, event: LookupsAsked, ends: Positions) -> Mask | None:
        """Which of the lookups wait for nothing; ``None``: all. ends: where the keys of each end."""
        reflected, lookups, hash64 = self._progress.reflected, event.lookups, event.hash64
        shard, between = self._regions.shards[event.view], self._rules.worker_between_epochs
        whole = self._progress.has_whole_epochs
        due = [
            (lookup.at_least or 0) <= reflected and (whole or not self._must_be_between_epochs(lookup.together))
            for lookup in lookups
        ]
        self._catch_up_with(event.view, hash64)
        good = self._stay(shard, hash64)
        if shard.unfinished:
            good = good & ~shard.unfinished.among(hash64)
        if shard.partial is not None:
            good = good & shard.partial.present(hash64)
            if between and any(lookup.together for lookup in lookups):
                together = np.repeat([lookup.together for lookup in lookups], np.diff(ends, prepend=0))
                good &= ~together | (shard.partial.through(hash64) <= reflected)
        if good.all():
            return None if all(due) else np.array(due)
        bad_so_far = np.concatenate([[0], (~good).cumsum()])
        are_good: Mask = np.array(due) & (bad_so_far[ends] == bad_so_far[np.concatenate([[0], ends[:-1]])])
        return are_good

    def register(self, event: LookupAsked) -> PeerLookup | None:
        """Register a client's lookup. Returns the lookup to route; ``None`` if it was refused."""
        error = self._objection(event)
        if error is not None:
            self._output.add(Refuse(ticket=event.ticket, error=error))
            return None
        stay = self._all_stay(self._regions.shards[event.view], event.hash64)
        self._asked[event.ticket] = PendingLookup(event.view, event.keys.num_rows, [], event.together, held_up=not stay)
        return PeerLookup(event.ticket, self._regions.me, event.at_least, event.keys, event.hash64, event.together)

    def _objection(self, event: LookupAsked) -> UpriverError | None:
        """Why a lookup cannot be answered here."""
        if event.view not in self._regions.views:
            return UnknownView.among(event.view, dict.fromkeys(self._regions.views, ()))
        if event.view in self._regions.failed:
            return self._regions.failed[event.view].raised()
        given, key = event.keys.schema, self._regions.views[event.view]
        if not given.equals(key) and (given.names, given.types) != (key.names, key.types):
            columns = ", ".join(f"{field.name} {field.type}" for field in given)
            return UnknownView(
                f"no view {event.view!r} with the key ({columns})"
            )  # an earlier view of that name may have had it
        if self._peers.has_left:
            return WrongOwner("this worker keeps nothing any more")
        if (
            not self._peers.can_ask and self._rules.worker_own_vnodes_only
        ):  # worker.own_vnodes_only: without peers to ask, there is no other way
            foreign = self._foreign(event)
            if foreign:
                return WrongOwner(f"{foreign} keys are not kept here")
        return None

    def _foreign(self, event: LookupAsked) -> int:
        """How many of the keys other workers keep. All, if a peer was lost while keys moved: the owners are unknown."""
        vnode_map = self._regions.map_of(event.view)
        if vnode_map is None:
            return len(event.hash64)
        return int((vnode_map.owners_of(vnodes_of(event.hash64, len(vnode_map.owners))) != self._regions.me).sum())

    def answer_here(self, view: str, question: PeerLookup) -> None:
        """Answer a lookup whose keys belong here, or let it wait for its epoch or its keys."""
        if view in self._regions.failed:
            self._refuse(question, self._regions.failed[view].raised())
            return
        is_due = not self._must_wait(view, question)
        if is_due and not self._is_missed(view, question) and self._answer(view, question):
            return
        if len(self._waiting) < LOOKUPS_WAITING_MAX:
            self._waiting.append(WaitingLookup(view, question))
        else:
            self._refuse(question, WrongOwner(f"{LOOKUPS_WAITING_MAX} lookups wait here already"))

    def _is_missed(self, view: str, question: PeerLookup) -> bool:
        """Whether some of the keys are not present; then an upquery asks for them."""
        self._catch_up_with(view, question.hash64)  # if that fails, the keys are missing
        partial = self._regions.shards[view].partial
        if partial is None or not partial.lacks(question.hash64):
            return False
        if question.asker == self._regions.me and question.ticket in self._asked:
            self._asked[question.ticket].held_up = True
        partial.want(question.hash64)
        self._upqueries.begin(view)
        return True

    def _must_wait(self, view: str, question: PeerLookup | LookupAsked) -> bool:
        if self._must_wait_for_epochs(question) or self._regions.shards[view].unfinished.among(question.hash64).any():
            return True
        if not question.together or not self._rules.worker_between_epochs:
            return False
        return self._are_ahead(self._regions.shards[view], question.hash64)

    def _must_wait_for_epochs(self, question: PeerLookup | LookupAsked) -> bool:
        """Whether a lookup must wait for an epoch, whatever its keys are."""
        replaying = self._rules.worker_wait_for_replay and self._progress.reflected < self._serve_from
        if replaying or self._progress.reflected < question.at_least:
            return True
        return self._must_be_between_epochs(question.together) and not self._progress.has_whole_epochs

    def _must_be_between_epochs(self, together: bool) -> bool:
        """Whether a lookup is answered between epochs alone. together: as in ``LookupAsked``."""
        of_clock = self._regions.is_clocked and self._rules.clock_lookups_between_epochs
        return of_clock or (together and self._rules.worker_between_epochs)

    def _answer(self, view: str, question: PeerLookup) -> bool:
        """Answer, or refuse, or begin to read a long answer. Returns whether one of these was possible by now."""
        try:
            rows = self._regions.shards[view].region.lookup(question.hash64, question.keys, self._answer_rows_max)
        except ManyMembers:
            return self._begin_long_answer(view, question)
        except Exception as error:
            self._refuse(question, _told(view, error))
            return True
        self._give(question, [rows], self._progress.reflected)
        return True

    def _begin_long_answer(self, view: str, question: PeerLookup) -> bool:
        if not self._long_answers.may_begin:
            return False
        try:
            self._long_answers.begin(view, question)
        except Exception as error:
            self._refuse(question, _told(view, error))
        return True

    def read_on(self, rows_max: int) -> bool:
        """Read about ``rows_max`` more rows of a long answer. With its last rows, the lookup is answered, and another
        long answer may begin. Returns whether it is over."""
        over = self._long_answers.read_on(rows_max) if self._long_answers else None
        if over is None:
            return False
        answer, error = over
        if error is None:
            self._give(answer.question, answer.parts, answer.epoch)
        else:
            self._refuse(answer.question, error)
        return True

    def _catch_up_with(self, view: str, hash64: Hashes) -> None:
        if self._rules.upqueries.partial_rows_before_lookups:
            self._regions.shards[view].catch_up(hash64)

    def _give(self, question: PeerLookup, parts: Sequence[pa.RecordBatch], epoch: Epoch) -> None:
        if question.asker == self._regions.me:
            self._answered_in_part(question.ticket, len(question), parts, epoch)
        elif self._peers.reaches(question.asker):
            rows = one_batch(parts)
            answer = PeerLookupAnswered(ticket=question.ticket, keys=len(question), rows=rows, epoch=epoch)
            self._output.send(question.asker, answer)

    def _refuse(self, question: PeerLookup, error: UpriverError) -> None:
        refusal = PeerLookupRefused(ticket=question.ticket, error=error)
        if question.asker == self._regions.me:
            self.refused(refusal)
        elif self._peers.reaches(question.asker):
            self._output.send(question.asker, refusal)

    def _answered_in_part(self, ticket: int, keys: int, parts: Sequence[pa.RecordBatch], epoch: Epoch) -> None:
        """Record the rows of this many keys of a lookup, and answer the lookup when it has all."""
        asked = self._asked.get(ticket)
        if asked is None:
            return  # given up, or refused already
        if asked.together and asked.epoch not in (None, epoch):
            error = WrongOwner(f"some keys are as of epoch {asked.epoch}, others as of {epoch}: ask again")
            self.refused(PeerLookupRefused(ticket=ticket, error=error))
            return
        asked.parts += parts
        asked.left -= keys
        asked.epoch = epoch if asked.epoch is None else Epoch(min(asked.epoch, epoch))
        if asked.left:
            return
        del self._asked[ticket]
        self._output.add(
            Answer(
                ticket=ticket,
                parts=tuple(asked.parts),
                epoch=asked.epoch,
                version=self._regions.shards[asked.view].version,
                relayed=asked.relayed,
                held_up=asked.held_up,
            )
        )

    def answered_by_peer(self, answer: PeerLookupAnswered) -> None:
        """A peer has sent the rows of some keys. The answer tells the client that a peer keeps them (``relayed``)."""
        asked = self._asked.get(answer.ticket)
        if asked is not None:
            asked.relayed = True
            self._answered_in_part(answer.ticket, answer.keys, [answer.rows], answer.epoch)

    def refused(self, refusal: PeerLookupRefused) -> None:
        """A part of a lookup cannot be answered, and so the lookup cannot."""
        if self._asked.pop(refusal.ticket, None) is not None:
            self.drop(self._regions.me, refusal.ticket)
            self._output.add(Refuse(ticket=refusal.ticket, error=refusal.error))

    def given_up(self, event: LookupGivenUp) -> None:
        """The client no longer waits for a lookup: tell the peers that have a part of it. (A part that is still on its
        way, held or sent on by another peer, stays until its epoch comes.)"""
        asked = self._asked.pop(event.ticket, None)
        here = self.drop(self._regions.me, event.ticket)
        if asked is not None and asked.left > here:
            for peer in self._peers.others:
                self._output.send(peer, PeerLookupGivenUp(ticket=event.ticket))

    def drop(self, asker: WorkerId, ticket: int) -> int:
        """Drop what is left of a lookup here. Returns how many keys that are."""
        is_its = [(waiting.question.asker, waiting.question.ticket) == (asker, ticket) for waiting in self._waiting]
        keys = sum(len(waiting.question) for waiting in compress(self._waiting, is_its))
        self._waiting = [waiting for waiting, gone in zip(self._waiting, is_its, strict=True) if not gone]
        return keys + self._long_answers.drop(asker, ticket)

    def refuse_all(self, error: UpriverError) -> None:
        """Refuse all clients' lookups, so that no client waits in vain."""
        for ticket in self._asked:
            self._output.add(Refuse(ticket=ticket, error=error))
        self._asked.clear()
        self.forget_asker(self._regions.me)

    def forget_asker(self, asker: WorkerId | None) -> None:
        """Drop all lookups of worker ``asker``: it no longer waits for them."""
        self._waiting = [waiting for waiting in self._waiting if waiting.question.asker != asker]
        self._long_answers.forget_asker(asker)

    def take_ready(self) -> list[WaitingLookup]:
        """Remove and return the lookups that have nothing to wait for. Route them anew: their keys may have moved
        since."""
        due = [
            waiting
            for waiting in self._waiting
            if not self._must_wait_for_epochs(waiting.question) and not self._is_put_off(waiting)
        ]
        views = {waiting.view for waiting in due}
        ready = {id(w) for view in views for w in self._having_their_keys(view, [w for w in due if w.view == view])}
        if not ready:
            return []
        gone = [waiting for waiting in self._waiting if id(waiting) in ready]
        self._waiting = [waiting for waiting in self._waiting if id(waiting) not in ready]
        return gone

    def _is_put_off(self, waiting: WaitingLookup) -> bool:
        """Whether a lookup of several keys waits until its view, which has fallen behind, catches up. Otherwise the
        view would catch up for each such lookup. A lookup that asks for this very epoch does not wait: its client has
        rows of other keys as of its end."""
        question = waiting.question
        return (
            question.together
            and self._regions.shards[waiting.view].is_behind
            and question.at_least != self._progress.reflected
        )

    def _having_their_keys(self, view: str, due: list[WaitingLookup]) -> list[WaitingLookup]:
        """The lookups that wait for none of their keys, neither to come nor, if asked for together, to be as of one
        epoch. All keys are checked in one go: dozens of lookups may wait, and checking each alone takes longer than
        answering one."""
        shard = self._regions.shards[view]
        partial = shard.partial
        if partial is None and not shard.unfinished:
            return due
        hash64 = np.concatenate([waiting.question.hash64 for waiting in due])
        lengths = [len(waiting.question) for waiting in due]
        waits = shard.unfinished.among(hash64)
        if partial is not None:
            waits |= partial.awaited(hash64)
            if self._rules.worker_between_epochs:
                waits |= np.repeat([w.question.together for w in due], lengths) & (
                    partial.through(hash64) > self._progress.reflected
                )
        so_far = np.concatenate([[0], waits.cumsum()])
        ends = np.cumsum(lengths)
        are_there = so_far[ends] == so_far[ends - lengths]
        return list(compress(due, are_there.tolist()))

    def answer_together(self, ready: list[WaitingLookup]) -> list[WaitingLookup]:
        """Answer the lookups that can be answered here at once, each view's in one go. Returns the other lookups."""
        others: list[WaitingLookup] = []
        for view in dict.fromkeys(waiting.view for waiting in ready):
            of_view = [waiting for waiting in ready if waiting.view == view]
            is_here = [self._is_here(waiting) for waiting in of_view]
            here = [waiting.question for waiting in compress(of_view, is_here)]
            if len(here) < 2 or not self._answer_each(view, here):
                others += of_view
            else:
                others += [waiting for waiting, gone in zip(of_view, is_here, strict=True) if not gone]
        return others

    def _is_here(self, waiting: WaitingLookup) -> bool:
        """Whether the lookup's keys are kept here, and present."""
        vnode_map, hash64 = self._regions.map_of(waiting.view), waiting.question.hash64
        if (
            vnode_map is None
            or (vnode_map.owners_of(vnodes_of(hash64, len(vnode_map.owners))) != self._regions.me).any()
        ):
            return False
        partial = self._regions.shards[waiting.view].partial
        return partial is None or not partial.lacks(hash64)

    def _answer_each(self, view: str, questions: list[PeerLookup]) -> bool:
        """Answer all these lookups, or none. Returns whether all could be answered."""
        shard = self._regions.shards[view]
        hash64 = np.concatenate([question.hash64 for question in questions])
        self._catch_up_with(view, hash64)
        if shard.partial is not None and shard.partial.lacks(hash64):
            return False
        # By column: pyarrow cannot concatenate batches whose schemas differ in whether a column may be null.
        columns = [
            pa.concat_arrays(parts) for parts in zip(*(question.keys.columns for question in questions), strict=True)
        ]
        keys = pa.RecordBatch.from_arrays(columns, schema=self._regions.views[view])
        try:
            ends = np.cumsum([len(question) for question in questions])
            rows, ends = shard.region.lookup_each(hash64, keys, ends, self._answer_rows_max)
        except Exception:
            return False
        start = 0
        for question, stop in zip(questions, ends.tolist(), strict=True):
            self._give(question, [rows.slice(start, stop - start)], self._progress.reflected)
            start = stop
        return True

    def refuse_keys(self, view: str, keys: Hashes, error: UpriverError) -> None:
        """Refuse every waiting lookup of any of these keys: it cannot be answered."""
        is_hopeless = [w.view == view and bool(np.isin(w.question.hash64, keys).any()) for w in self._waiting]
        hopeless = list(compress(self._waiting, is_hopeless))
        if hopeless:
            self._waiting = [waiting for waiting, gone in zip(self._waiting, is_hopeless, strict=True) if not gone]
        for waiting in hopeless:
            self._refuse(waiting.question, error)

    def refuse_view(self, view: str, error: UpriverError) -> None:
        """Refuse every lookup of the view, from clients and peers: it cannot be answered."""
        hopeless = [waiting.question for waiting in self._waiting if waiting.view == view]
        hopeless += self._long_answers.take_view(view)
        self._waiting = [waiting for waiting in self._waiting if waiting.view != view]
        for question in hopeless:
            self._refuse(question, error)
        for ticket in [ticket for ticket, asked in self._asked.items() if asked.view == view]:
            self.refused(PeerLookupRefused(ticket=ticket, error=error))


def tickets_of(event: LookupAsked | LookupsAsked) -> Sequence[int]:
    """The tickets of the lookups."""
    count = len(event.lookups) if isinstance(event, LookupsAsked) else 1
    return range(event.ticket, event.ticket + count)


def each_lookup(event: LookupsAsked, but: Mask | None = None) -> list[LookupAsked]:
    """The lookups as events of their own. but: which to leave out."""
    lookups, start = [], 0
    for place, lookup in enumerate(event.lookups):
        if but is None or not but[place]:
            lookups.append(
                LookupAsked(
                    ticket=event.ticket + place,
                    view=event.view,
                    keys=event.keys.slice(start, lookup.keys),
                    hash64=event.hash64[start : start + lookup.keys],
                    at_least=Epoch(lookup.at_least or 0),
                    together=lookup.together,
                )
            )
        start += lookup.keys
    return lookups


def _told(view: str, error: Exception) -> UpriverError:
    """The error for the client. An error of another package is a fault of ours, which fails only this lookup."""
    return error if isinstance(error, UpriverError) else ProtocolError(f"view {view!r}: {error_text(error)}")
