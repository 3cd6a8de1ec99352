"""A worker's lookups: a client asks one worker, the workers with the keys' state answer, and the first one gathers the
parts; rules worker.wait_for_replay and worker.own_vnodes_only.

Also the checks whether all keys of a lookup are kept here for certain, and as of the end of one epoch.
"""

from collections.abc import Sequence
from itertools import compress

import numpy as np
import pyarrow as pa

from upriver.engine.batch import one_batch
from upriver.engine.row_text import error_text
from upriver.errors import ProtocolError, UnknownView, UpriverError, WrongOwner
from upriver.hashing import Hashes
from upriver.ids import Epoch, WorkerId
from upriver.partial.partial_region import PartialRegion
from upriver.protocol.peers import Hot, PeerLookup, PeerLookupAnswered, PeerLookupGivenUp, PeerLookupRefused
from upriver.protocol.strategies import maps_of
from upriver.protocol.worker_events import (
    Answer,
    LookupAsked,
    LookupGivenUp,
    ReadKeys,
    Refuse,
    TimeToAnswer,
    TimeToFill,
)
from upriver.state.pair_index import ManyMembers
from upriver.vnodes import vnodes_of
from upriver.worker.long_answers import begin, may_begin, read_on
from upriver.worker.long_answers import let_go as read_no_more
from upriver.worker.memory import room_of, work_on
from upriver.worker.serving import PendingLookup, Serving, WaitingLookup
from upriver.worker.shard import Shard


def all_stay(phase: Serving, share: Shard, hash64: Hashes) -> bool:
    """Whether all of these keys are kept here, and not about to move. While keys move, a worker that has lost a peer
    keeps no key for certain (worker.own_vnodes_only)."""
    if not len(hash64):
        return True
    maps = maps_of(share.migrator.phase)
    if not maps or (len(maps) > 1 and not phase.peers):
        return False
    vnodes = vnodes_of(hash64, len(maps[0].owners))
    return all(bool((vnode_map.owners_of(vnodes) == phase.me).all()) for vnode_map in maps)


def is_between_epochs(phase: Serving) -> bool:
    """Whether keys are as of the end of the epoch that this worker reflects, except those filled up to a later one."""
    if phase.reading is not None or phase.reflected != phase.applied or phase.reflected < phase.arrived:
        return False
    return not any(epoch > phase.applied and counts.total() for epoch, counts in phase.counts.items())


def are_ahead(phase: Serving, share: Shard, hash64: Hashes) -> bool:
    """Whether some of these present keys were filled up to a later epoch than this worker reflects."""
    return share.partial is not None and bool((share.partial.through(hash64) > phase.reflected).any())


FEW_KEYS = 256
"""An upquery of this many keys does not wait for more: below that, a few more keys cost hardly anything."""
LOOKUPS_WAITING_MAX = 10_000
"""Lookups that wait for an epoch at one worker; one more is refused."""


def answered_at_once(phase: Serving, event: LookupAsked) -> Answer | None:
    """The answer to a lookup whose keys all stay here and that waits for nothing, as in nearly every case. By the
    distributor's rules N1 and I1.2 the whole lookup is answered here, in one part. ``None`` if it must be routed."""
    view = event.view
    if phase.has_left or view not in phase.views or not event.keys.schema.equals(phase.views[view]):
        return None
    share = phase.shares[view]
    if not all_stay(phase, share, event.hash64) or _must_wait(phase, view, event):
        return None
    _catch_up_with(phase, view, event.hash64)
    if share.partial is not None and share.partial.lacks(event.hash64):
        return None
    try:
        rows = share.region.lookup(event.hash64, event.keys, phase.answer_rows_max)
    except Exception:
        return None  # the routed lookup is refused, or has a long answer
    return Answer(
        ticket=event.ticket, parts=(rows,), epoch=phase.reflected, version=share.version, relayed=False, held_up=False
    )


def lookup_asked(phase: Serving, event: LookupAsked) -> PeerLookup | None:
    """Register a client's lookup. Returns the lookup to route; ``None`` if it was refused."""
    error = _objection(phase, event)
    if error is not None:
        phase.actions.append(Refuse(ticket=event.ticket, error=error))
        return None
    stay = all_stay(phase, phase.shares[event.view], event.hash64)
    phase.asked[event.ticket] = PendingLookup(event.view, event.keys.num_rows, [], event.together, held_up=not stay)
    return PeerLookup(event.ticket, phase.me, event.at_least, event.keys, event.hash64, event.together)


def _objection(phase: Serving, event: LookupAsked) -> UpriverError | None:
    """Why a lookup cannot be answered here."""
    if event.view not in phase.views:
        return UnknownView.among(event.view, phase.views)
    if event.view in phase.failed:
        return phase.failed[event.view].raised()
    given, key = event.keys.schema, phase.views[event.view]
    if not given.equals(key) and (given.names, given.types) != (key.names, key.types):
        columns = ", ".join(f"{field.name} {field.type}" for field in given)
        return UnknownView(
            f"no view {event.view!r} with the key ({columns})"
        )  # an earlier view of that name may have had it
    if phase.has_left:
        return WrongOwner("this worker keeps nothing any more")
    if (
        not phase.peers and phase.rules.worker_own_vnodes_only
    ):  # worker.own_vnodes_only: without peers to ask, there is no other way
        foreign = _foreign(phase, event)
        if foreign:
            return WrongOwner(f"{foreign} keys are not kept here")
    return None


def _foreign(phase: Serving, event: LookupAsked) -> int:
    """How many of the keys other workers keep. All, if a peer was lost while keys moved: the owners are unknown."""
    vnode_map = phase.map_of(event.view)
    if vnode_map is None:
        return len(event.hash64)
    return int((vnode_map.owners_of(vnodes_of(event.hash64, len(vnode_map.owners))) != phase.me).sum())


def asked_here(phase: Serving, view: str, question: PeerLookup) -> None:
    """Answer a lookup whose keys belong here, or let it wait for its epoch or its keys."""
    if view in phase.failed:
        _refuse(phase, question, phase.failed[view].raised())
        return
    is_due = not _must_wait(phase, view, question)
    if is_due and not _is_missed(phase, view, question) and _answer(phase, view, question):
        return
    if len(phase.waiting) < LOOKUPS_WAITING_MAX:
        phase.waiting.append(WaitingLookup(view, question))
    else:
        _refuse(phase, question, WrongOwner(f"{LOOKUPS_WAITING_MAX} lookups wait here already"))


def _is_missed(phase: Serving, view: str, question: PeerLookup) -> bool:
    """Whether some of the keys are not present; then an upquery asks for them."""
    _catch_up_with(phase, view, question.hash64)  # if that fails, the keys are missing
    partial = phase.shares[view].partial
    if partial is None or not partial.lacks(question.hash64):
        return False
    if question.asker == phase.me and question.ticket in phase.asked:
        phase.asked[question.ticket].held_up = True
    partial.want(question.hash64)
    begin_upquery(phase, view)
    return True


def want_hot(phase: Serving, hot: Hot) -> None:
    """Fill keys that were read lately at their old owner."""
    share = phase.shares.get(hot.region)
    if share is None or share.partial is None:
        return
    if share.cone is not None:
        share.cone.wait_until(hot.shown)
    share.partial.want(hot.keys)
    begin_upquery(phase, hot.region)


def begin_upquery(phase: Serving, region: str) -> None:
    """Begin an upquery of the wanted keys, unless one is under way already, or upqueries rest."""
    share = phase.shares[region]
    if share.cone is not None:
        work_on(phase, region, share.cone)
        return
    partial = share.partial
    assert isinstance(partial, PartialRegion)
    if phase.fills_rest and partial.wanted < FEW_KEYS:
        return
    upquery = partial.upquery(phase.begun, room_of(phase, region))
    if upquery is not None:
        generation, ports = phase.refilled_since, phase.lake_ports[region]
        phase.actions.append(ReadKeys(generation=generation, region=region, upquery=upquery, ports=ports))


def time_to_fill(phase: Serving, _event: TimeToFill) -> None:
    """Upqueries have rested: begin those that were put off."""
    phase.fills_rest = False
    _begin_what_was_put_off(phase)


def fill_what_was_put_off(phase: Serving) -> None:
    """Begin upqueries that were put off for lack of room (partial.room_first): there may be room now."""
    if phase.memory_budget is not None:
        _begin_what_was_put_off(phase)


def _begin_what_was_put_off(phase: Serving) -> None:
    for region, share in phase.shares.items():
        if share.partial is not None and share.partial.puts_off:
            begin_upquery(phase, region)


def _must_wait(phase: Serving, view: str, question: PeerLookup | LookupAsked) -> bool:
    if _must_wait_for_epochs(phase, question):
        return True
    if not question.together or not phase.rules.worker_between_epochs:
        return False
    return are_ahead(phase, phase.shares[view], question.hash64)


def _must_wait_for_epochs(phase: Serving, question: PeerLookup | LookupAsked) -> bool:
    """Whether a lookup must wait for an epoch, whatever its keys are."""
    replaying = phase.rules.worker_wait_for_replay and phase.reflected < phase.assignment.serve_from
    if replaying or phase.reflected < question.at_least:
        return True
    return question.together and phase.rules.worker_between_epochs and not is_between_epochs(phase)


def _answer(phase: Serving, view: str, question: PeerLookup) -> bool:
    """Answer, or refuse, or begin to read a long answer. Returns whether one of these was possible by now."""
    try:
        rows = phase.shares[view].region.lookup(question.hash64, question.keys, phase.answer_rows_max)
    except ManyMembers:
        return _begin_long_answer(phase, view, question)
    except Exception as error:
        _refuse(phase, question, _told(view, error))
        return True
    _give(phase, question, [rows], phase.reflected)
    return True


def _begin_long_answer(phase: Serving, view: str, question: PeerLookup) -> bool:
    if not may_begin(phase):
        return False
    try:
        begin(phase, view, question)
    except Exception as error:
        _refuse(phase, question, _told(view, error))
    return True


def _told(view: str, error: Exception) -> UpriverError:
    """The error for the client. An error of another package is a fault of ours, which fails only this lookup."""
    return error if isinstance(error, UpriverError) else ProtocolError(f"view {view!r}: {error_text(error)}")


def time_to_answer(phase: Serving, event: TimeToAnswer) -> None:
    """Read more of a long answer. With its last rows, the lookup is answered, and another long answer may begin."""
    over = read_on(phase, event.rows_max) if phase.long_answers else None
    if over is None:
        return
    answer, error = over
    if error is None:
        _give(phase, answer.question, answer.parts, answer.epoch)
    else:
        _refuse(phase, answer.question, error)


def _catch_up_with(phase: Serving, view: str, hash64: Hashes) -> None:
    if phase.rules.upqueries.partial_rows_before_lookups:
        phase.shares[view].catch_up(hash64)


def _give(phase: Serving, question: PeerLookup, parts: Sequence[pa.RecordBatch], epoch: Epoch) -> None:
    if question.asker == phase.me:
        _answered_in_part(phase, question.ticket, len(question), parts, epoch)
    elif phase.reaches(question.asker):
        rows = one_batch(parts)
        answer = PeerLookupAnswered(ticket=question.ticket, keys=len(question), rows=rows, epoch=epoch)
        phase.tell(question.asker, answer)


def _refuse(phase: Serving, question: PeerLookup, error: UpriverError) -> None:
    refusal = PeerLookupRefused(ticket=question.ticket, error=error)
    if question.asker == phase.me:
        refused(phase, refusal)
    elif phase.reaches(question.asker):
        phase.tell(question.asker, refusal)


def _answered_in_part(phase: Serving, ticket: int, keys: int, parts: Sequence[pa.RecordBatch], epoch: Epoch) -> None:
    """Record the rows of this many keys of a lookup, and answer the lookup when it has all."""
    asked = phase.asked.get(ticket)
    if asked is None:
        return  # given up, or refused already
    if asked.together and asked.epoch not in (None, epoch):
        error = WrongOwner(f"some keys are as of epoch {asked.epoch}, others as of {epoch}: ask again")
        refused(phase, PeerLookupRefused(ticket=ticket, error=error))
        return
    asked.parts += parts
    asked.left -= keys
    asked.epoch = epoch if asked.epoch is None else Epoch(min(asked.epoch, epoch))
    if asked.left:
        return
    del phase.asked[ticket]
    phase.actions.append(
        Answer(
            ticket=ticket,
            parts=tuple(asked.parts),
            epoch=asked.epoch,
            version=phase.shares[asked.view].version,
            relayed=asked.relayed,
            held_up=asked.held_up,
        )
    )


def answered_by_peer(phase: Serving, answer: PeerLookupAnswered) -> None:
    """A peer has sent the rows of some keys. The answer tells the client that a peer keeps them (``relayed``)."""
    asked = phase.asked.get(answer.ticket)
    if asked is not None:
        asked.relayed = True
        _answered_in_part(phase, answer.ticket, answer.keys, [answer.rows], answer.epoch)


def refused(phase: Serving, refusal: PeerLookupRefused) -> None:
    """A part of a lookup cannot be answered, and so the lookup cannot."""
    if phase.asked.pop(refusal.ticket, None) is not None:
        let_go(phase, phase.me, refusal.ticket)
        phase.actions.append(Refuse(ticket=refusal.ticket, error=refusal.error))


def given_up(phase: Serving, event: LookupGivenUp) -> None:
    """The client no longer waits for a lookup: tell the peers that have a part of it. (A part that is still on its way,
    held or sent on by another peer, stays until its epoch comes.)"""
    asked = phase.asked.pop(event.ticket, None)
    here = let_go(phase, phase.me, event.ticket)
    if asked is not None and asked.left > here:
        for peer in sorted(phase.peers.keys() - {phase.me}):
            phase.tell(peer, PeerLookupGivenUp(ticket=event.ticket))


def let_go(phase: Serving, asker: WorkerId, ticket: int) -> int:
    """Drop what is left of a lookup here. Returns how many keys that are."""
    is_its = [(waiting.question.asker, waiting.question.ticket) == (asker, ticket) for waiting in phase.waiting]
    keys = sum(len(waiting.question) for waiting in compress(phase.waiting, is_its))
    phase.waiting = [waiting for waiting, gone in zip(phase.waiting, is_its, strict=True) if not gone]
    return keys + read_no_more(phase, asker, ticket)


def refuse_all(phase: Serving, error: UpriverError) -> None:
    """Refuse all clients' lookups, so that no client waits in vain."""
    phase.actions += [Refuse(ticket=ticket, error=error) for ticket in phase.asked]
    phase.asked.clear()
    forget_questions_of(phase, phase.me)


def forget_questions_of(phase: Serving, asker: WorkerId | None) -> None:
    """Drop all lookups of worker ``asker``: it no longer waits for them."""
    phase.waiting = [waiting for waiting in phase.waiting if waiting.question.asker != asker]
    phase.long_answers = [answer for answer in phase.long_answers if answer.question.asker != asker]


def no_longer_waiting(phase: Serving) -> list[WaitingLookup]:
    """Remove and return the lookups that have nothing to wait for. Route them anew: their keys may have moved since."""
    due = [
        waiting
        for waiting in phase.waiting
        if not _must_wait_for_epochs(phase, waiting.question) and not _is_put_off(phase, waiting)
    ]
    views = {waiting.view for waiting in due}
    ready = {id(w) for view in views for w in _having_their_keys(phase, view, [w for w in due if w.view == view])}
    if not ready:
        return []
    gone = [waiting for waiting in phase.waiting if id(waiting) in ready]
    phase.waiting = [waiting for waiting in phase.waiting if id(waiting) not in ready]
    return gone


def _is_put_off(phase: Serving, waiting: WaitingLookup) -> bool:
    """Whether a lookup of several keys waits until its view, which has fallen behind, catches up. Otherwise the view
    would catch up for each such lookup. A lookup that asks for this very epoch does not wait: its client has rows of
    other keys as of its end."""
    question = waiting.question
    return question.together and phase.shares[waiting.view].is_behind and question.at_least != phase.reflected


def _having_their_keys(phase: Serving, view: str, due: list[WaitingLookup]) -> list[WaitingLookup]:
    """The lookups that wait for none of their keys, neither to come nor, if asked for together, to be as of one epoch.
    All keys are checked in one go: dozens of lookups may wait, and checking each alone takes longer than answering one.
    """
    partial = phase.shares[view].partial
    if partial is None:
        return due
    hash64 = np.concatenate([waiting.question.hash64 for waiting in due])
    lengths = [len(waiting.question) for waiting in due]
    waits = partial.awaited(hash64)
    if phase.rules.worker_between_epochs:
        waits |= np.repeat([w.question.together for w in due], lengths) & (partial.through(hash64) > phase.reflected)
    so_far = np.concatenate([[0], waits.cumsum()])
    ends = np.cumsum(lengths)
    are_there = so_far[ends] == so_far[ends - lengths]
    return list(compress(due, are_there.tolist()))


def answer_together(phase: Serving, ready: list[WaitingLookup]) -> list[WaitingLookup]:
    """Answer the lookups that can be answered here at once, each view's in one go. Returns the other lookups."""
    others: list[WaitingLookup] = []
    for view in dict.fromkeys(waiting.view for waiting in ready):
        of_view = [waiting for waiting in ready if waiting.view == view]
        is_here = [_is_here(phase, waiting) for waiting in of_view]
        here = [waiting.question for waiting in compress(of_view, is_here)]
        if len(here) < 2 or not _answer_each(phase, view, here):
            others += of_view
        else:
            others += [waiting for waiting, gone in zip(of_view, is_here, strict=True) if not gone]
    return others


def _is_here(phase: Serving, waiting: WaitingLookup) -> bool:
    """Whether the lookup's keys are kept here, and present."""
    vnode_map, hash64 = phase.map_of(waiting.view), waiting.question.hash64
    if vnode_map is None or (vnode_map.owners_of(vnodes_of(hash64, len(vnode_map.owners))) != phase.me).any():
        return False
    partial = phase.shares[waiting.view].partial
    return partial is None or not partial.lacks(hash64)


def _answer_each(phase: Serving, view: str, questions: list[PeerLookup]) -> bool:
    """Answer all these lookups, or none. Returns whether all could be answered."""
    share = phase.shares[view]
    hash64 = np.concatenate([question.hash64 for question in questions])
    _catch_up_with(phase, view, hash64)
    if share.partial is not None and share.partial.lacks(hash64):
        return False
    # By column: pyarrow cannot concatenate batches whose schemas differ in whether a column may be null.
    columns = [
        pa.concat_arrays(parts) for parts in zip(*(question.keys.columns for question in questions), strict=True)
    ]
    keys = pa.RecordBatch.from_arrays(columns, schema=phase.views[view])
    try:
        lengths = [len(question) for question in questions]
        rows = share.region.lookup_each(hash64, keys, lengths, phase.answer_rows_max)
    except Exception:
        return False
    for question, of_one in zip(questions, rows, strict=True):
        _give(phase, question, [of_one], phase.reflected)
    return True


def refuse_those_of(phase: Serving, view: str, keys: Hashes, error: UpriverError) -> None:
    """Refuse every waiting lookup of any of these keys: it cannot be answered."""
    is_hopeless = [w.view == view and bool(np.isin(w.question.hash64, keys).any()) for w in phase.waiting]
    hopeless = list(compress(phase.waiting, is_hopeless))
    if hopeless:
        phase.waiting = [waiting for waiting, gone in zip(phase.waiting, is_hopeless, strict=True) if not gone]
    for waiting in hopeless:
        _refuse(phase, waiting.question, error)


def refuse_those_who_ask_for(phase: Serving, view: str, error: UpriverError) -> None:
    """Refuse every lookup of the view, from clients and peers: it cannot be answered."""
    hopeless = [waiting.question for waiting in phase.waiting if waiting.view == view]
    hopeless += [answer.question for answer in phase.long_answers if answer.view == view]
    phase.waiting = [waiting for waiting in phase.waiting if waiting.view != view]
    phase.long_answers = [answer for answer in phase.long_answers if answer.view != view]
    for question in hopeless:
        _refuse(phase, question, error)
    for ticket in [ticket for ticket, asked in phase.asked.items() if asked.view == view]:
        refused(phase, PeerLookupRefused(ticket=ticket, error=error))
