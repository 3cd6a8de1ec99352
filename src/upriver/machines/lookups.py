"""A worker's lookups: asked here, answered wherever the keys' state is, gathered here; rules W3 and W4."""

import pyarrow as pa

from upriver.errors import UnknownView, UpriverError, WrongOwner
from upriver.ids import Epoch
from upriver.machines.following import Asked, Following, Waiting
from upriver.machines.peers import Question, QuestionAnswered, QuestionRefused
from upriver.machines.worker_events import Answer, LookupAsked, LookupGivenUp, Refuse
from upriver.vnodes import vnodes_of

LOOKUPS_WAITING_MAX = 10_000
"""Lookups that wait for an epoch at one worker; one more is refused."""


def lookup_asked(phase: Following, event: LookupAsked) -> Question | None:
    """What is to be routed, unless the lookup was refused."""
    if event.view not in phase.views:
        phase.actions.append(Refuse(ticket=event.ticket, error=UnknownView.among(event.view, phase.views)))
        return None
    if phase.has_left:
        phase.actions.append(Refuse(ticket=event.ticket, error=WrongOwner("this worker keeps nothing any more")))
        return None
    if not phase.peers and phase.rules.w4_own_vnodes_only:  # W4: with nobody to ask, there is no other way
        foreign = _foreign(phase, event)
        if foreign:
            error = WrongOwner(f"{foreign} keys are not kept here")
            phase.actions.append(Refuse(ticket=event.ticket, error=error))
            return None
    phase.asked[event.ticket] = Asked(event.view, event.keys.num_rows, [])
    return Question(event.ticket, phase.me, event.at_least, event.keys, event.hash64)


def _foreign(phase: Following, event: LookupAsked) -> int:
    """How many of the keys are kept elsewhere. All, if keys were moving when a peer was lost: nobody knows where."""
    vnode_map = phase.map_of(event.view)
    if vnode_map is None:
        return len(event.hash64)
    return int((vnode_map.owners_of(vnodes_of(event.hash64, len(vnode_map.owners))) != phase.me).sum())


def asked_here(phase: Following, view: str, question: Question) -> None:
    """Answer a question whose keys' state is here, or let it wait for its epoch."""
    if not _must_wait(phase, question):
        _answer(phase, view, question)
    elif len(phase.waiting) < LOOKUPS_WAITING_MAX:
        phase.waiting.append(Waiting(view, question))
    else:
        _refuse(phase, question, WrongOwner(f"{LOOKUPS_WAITING_MAX} lookups wait here already"))


def _must_wait(phase: Following, question: Question) -> bool:
    replaying = phase.rules.w3_wait_for_replay and phase.reflected < phase.assignment.serve_from  # W3
    return replaying or phase.reflected < question.at_least


def _answer(phase: Following, view: str, question: Question) -> None:
    try:
        rows = phase.shares[view].region.lookup(question.hash64, question.keys)
    except UpriverError as error:
        _refuse(phase, question, error)
        return
    answer = QuestionAnswered(ticket=question.ticket, keys=len(question), rows=rows, epoch=phase.reflected)
    if question.asker == phase.me:
        answered(phase, answer)
    elif phase.reaches(question.asker):
        phase.tell(question.asker, answer)


def _refuse(phase: Following, question: Question, error: UpriverError) -> None:
    refusal = QuestionRefused(ticket=question.ticket, error=error)
    if question.asker == phase.me:
        refused(phase, refusal)
    elif phase.reaches(question.asker):
        phase.tell(question.asker, refusal)


def answered(phase: Following, answer: QuestionAnswered) -> None:
    """A part of a lookup has its rows; with the last part, so has the lookup."""
    asked = phase.asked.get(answer.ticket)
    if asked is None:
        return  # given up, or refused already
    asked.parts.append(answer.rows)
    asked.left -= answer.keys
    asked.epoch = answer.epoch if asked.epoch is None else Epoch(min(asked.epoch, answer.epoch))
    if asked.left:
        return
    del phase.asked[answer.ticket]
    rows = asked.parts[0] if len(asked.parts) == 1 else pa.concat_batches(asked.parts)
    version = phase.shares[asked.view].version
    phase.actions.append(Answer(ticket=answer.ticket, rows=rows, epoch=asked.epoch, version=version))


def refused(phase: Following, refusal: QuestionRefused) -> None:
    """A part of a lookup cannot be answered, and so the lookup cannot."""
    if phase.asked.pop(refusal.ticket, None) is not None:
        phase.actions.append(Refuse(ticket=refusal.ticket, error=refusal.error))


def given_up(phase: Following, event: LookupGivenUp) -> None:
    phase.asked.pop(event.ticket, None)
    phase.waiting = [w for w in phase.waiting if (w.question.asker, w.question.ticket) != (phase.me, event.ticket)]


def refuse_all(phase: Following, error: UpriverError) -> None:
    """Nobody who has asked here shall wait in vain."""
    phase.actions += [Refuse(ticket=ticket, error=error) for ticket in phase.asked]
    phase.asked.clear()


def no_longer_waiting(phase: Following) -> list[Waiting]:
    """The questions whose epoch has come. Their keys may have moved on since: they are to be routed anew."""
    ready = [waiting for waiting in phase.waiting if not _must_wait(phase, waiting.question)]
    if ready:
        phase.waiting = [waiting for waiting in phase.waiting if _must_wait(phase, waiting.question)]
    return ready
